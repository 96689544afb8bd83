"""What the cuda engine waits for, on a device whose streams run as late or as early as they may.

The fixture `use` fails a test whose device has a fault.
"""

import gc
import threading

import numpy as np
import pytest
from cuda_cases import data, kernel, network, opened, read
from doubles import CUresult, DeviceDescription, Order

import lamina as lm
from lamina.base import copies
from lamina.engines.cuda import build, calls, devices
from lamina.engines.cuda.calls import CudaError
from lamina.engines.gpu import arena
from lamina.engines.gpu.engine import GpuEngine
from lamina.engines.gpu.memory import DeviceMemory
from lamina.engines.gpu.transfers import DeviceStaging
from lamina.runtime import streaming

ORDERS = (Order("late"), Order("early"), Order("random", 1), Order("random", 6))
BATCH = 8


@pytest.fixture(params=ORDERS, ids=str)
def in_any_order(use, request):
    """The driver of a device, in each order."""
    use(order=request.param)
    return opened()


def host(driver):
    array = driver.host_array(16).view(np.int32)
    array[:] = 1, 2, 3, 4
    return array


def added(driver, target, source, number):
    """A kernel that writes the sums of a source and a number to a target."""
    text = (
        'extern "C" __global__ __launch_bounds__(4) void added(int *to, const int *from, int n) '
        "{ to[threadIdx.x] = from[threadIdx.x] + n; }"
    )
    return kernel(driver, text, [target, source], 4, numbers=[number], group=4)


@pytest.mark.cases(
    "send",
    lambda driver, *given: driver.queue.send(*given).wait(),
    lambda driver, *given: (driver.queue.send(*given), driver.queue.finish()),
    lambda driver, *given: driver.queue.write(*given),
    ids=["transfer", "queue", "write"],
)
def test_memory_of_the_host_is_free_after_its_transfer(driver, send):
    buffer, array = driver.allocate(16), host(driver)
    send(driver, buffer, array)
    array[:] = 0
    assert read(driver, buffer) == [1, 2, 3, 4]


def test_parts_of_a_buffer_are_sent_and_fetched(in_any_order):
    driver = in_any_order
    buffer, array = driver.allocate(16), host(driver)
    driver.queue.send(buffer, array[:2], 4).wait()
    driver.queue.fetch(array[2:], buffer, 8).wait()
    assert array.tolist() == [1, 2, 2, 0]
    assert read(driver, buffer) == [0, 1, 2, 0]


def test_a_transfer_is_done_before_later_commands_of_its_queue(driver):
    buffer, array = driver.allocate(16), host(driver)
    transfer = driver.upload_queue.send(buffer, array)
    driver.upload_queue.fill(buffer, 16)
    transfer.wait()
    assert read(driver, buffer) == [0, 0, 0, 0]


def test_an_array_is_read_when_the_call_returns(driver):
    buffer, array = driver.allocate(16), host(driver)
    driver.queue.read(array, buffer)
    assert array.tolist() == [0, 0, 0, 0]


def test_new_memory_is_filled_before_another_queue_writes_to_it(driver):
    buffer, array = driver.allocate(16), host(driver)
    driver.upload_queue.send(buffer, array).wait()
    assert read(driver, buffer) == [1, 2, 3, 4]


def test_a_queue_waits_for_transfers_of_another_one(in_any_order):
    driver = in_any_order
    buffer, target = driver.allocate(16), driver.allocate(16)
    adding, array = added(driver, target, buffer, 10), host(driver)
    driver.queue.wait_for([driver.upload_queue.send(buffer, array)])
    driver.queue.launch(adding)
    assert read(driver, target) == [11, 12, 13, 14]


@pytest.mark.parametrize("copies", [False, True])
def test_memory_is_freed_after_the_commands_that_use_it(driver, copies):
    source, target = driver.allocate(16), driver.allocate(16)
    adding, array = added(driver, target, source, 10), host(driver)
    if copies:
        driver.upload_queue.send(source, array)
    else:
        driver.queue.launch(adding)
    driver.release(source)
    driver.queue.finish()
    driver.upload_queue.finish()


def test_released_memory_is_free_at_once(double, driver):
    buffer = driver.allocate(1 << 10)
    driver.release(buffer)
    assert not any(leak.startswith("1024 bytes on") for leak in double.leaks())


def test_released_staging_waits_for_its_copies(double, driver):
    staging = DeviceStaging(driver, {"x": 16})
    staging.arrays["x"][:] = 1
    staging.send({"x": 16})
    staging.release()
    del staging
    gc.collect()
    driver.upload_queue.finish()
    assert [leak for leak in double.leaks() if "page-locked" in leak or "bytes on" in leak] == []


@pytest.mark.parametrize("owner", ["memory", "memory of the host", "kernel"])
def test_what_is_dropped_is_freed_after_the_commands_that_use_it(driver, owner):
    target, array = driver.allocate(16), host(driver)
    adding = added(driver, target, driver.allocate(16), 10)
    kept = {"memory": array, "memory of the host": target, "kernel": target}[owner]
    if owner == "memory of the host":
        driver.queue.send(target, array)
    else:
        driver.queue.launch(adding)
    del array, adding, target
    gc.collect()
    driver.queue.finish()
    assert kept is not None


def test_a_forked_process_frees_nothing(double, driver, monkeypatch):
    buffer = driver.allocate(1 << 10)
    monkeypatch.setattr(devices.own_process, "was_forked", True)
    del buffer
    gc.collect()
    assert any(leak.startswith("1024 bytes on") for leak in double.leaks())


def test_a_sequence_keeps_its_buffers(driver):
    source, target = driver.allocate(16), driver.allocate(16)
    sequence = driver.sequence([(added(driver, target, source, 10), None)] * 2)
    del source
    gc.collect()
    driver.queue.run(sequence)
    assert read(driver, target) == [10] * 4


def test_a_part_of_a_buffer_keeps_the_whole(driver):
    part = driver.part(driver.allocate(32), 16)
    gc.collect()
    driver.queue.write(part, np.arange(4, dtype=np.int32))
    assert read(driver, part) == [0, 1, 2, 3]


def test_launches_of_a_sequence_have_their_numbers(driver):
    text = 'extern "C" __global__ void put(int *to, int first, int n) { to[n] += first + n; }'
    target = driver.allocate(16)
    put = kernel(driver, text, [target], numbers=[7], numbered=True, group=1)
    sequence = driver.sequence([(put, 2), (put, 0)])
    for _ in range(2):
        driver.queue.run(sequence)
    assert read(driver, target) == [14, 0, 18, 0]


class _During:
    """Instead of a kernel: calls a function while launches are captured."""

    def __init__(self, act):
        self._act = act

    def enqueue(self, calls, stream, number):
        self._act(calls, stream)


def test_a_capture_leaves_the_commands_of_other_threads_alone(driver):
    source, target = driver.allocate(16), driver.allocate(16)
    problems = []

    def work():
        try:
            driver.queue.write(source, np.arange(4, dtype=np.int32))
        except BaseException as problem:
            problems.append(problem)

    def act(calls, stream):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    launches = [(_During(act), None), (added(driver, target, source, 10), None)]
    sequence = driver.sequence(launches)
    assert problems == []
    driver.queue.run(sequence)
    assert read(driver, target) == [10, 11, 12, 13]


def test_a_capture_that_fails_says_which_call_was_refused(driver):
    launches = [(_During(lambda calls, stream: calls.cuStreamSynchronize(stream)), None)]
    with pytest.raises(CudaError, match="STREAM_CAPTURE_UNSUPPORTED in cuStreamSynchronize"):
        driver.sequence(launches)


def test_only_kernels_that_follow_a_kernel_begin_before_its_end(use, counts):
    use(DeviceDescription(capability=(9, 0)))
    driver = opened()
    other = _During(lambda calls, stream: None)
    adding = added(driver, *[driver.allocate(16)] * 2, 1)
    row = [(launch, None) for launch in (adding, adding, other, adding)]
    driver.sequence(row)
    assert (counts["cuLaunchKernel"], counts["cuLaunchKernelEx"]) == (2, 1)


def test_kernels_are_loaded_before_their_launches_are_captured(driver, counts):
    adding = added(driver, *[driver.allocate(16)] * 2, 1)
    assert counts["cuFuncLoad"] == 1
    assert not counts["cuStreamBeginCapture"]
    driver.sequence([(adding, None)])
    assert counts["cuFuncLoad"] == counts["cuStreamEndCapture"] == 1


def test_the_last_group_need_not_be_whole(driver):
    text = (
        'extern "C" __global__ void number(int *to) '
        "{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < 10) to[i] = i; }"
    )
    target = driver.allocate(4 * 12)
    driver.queue.launch(kernel(driver, text, [target], 10, group=4))
    assert read(driver, target, 12) == [*range(10), 0, 0]


def test_the_context_of_another_library_stays_current(use):
    double = use(DeviceDescription("A"), DeviceDescription("B"))
    driver = opened()
    _, other = double.driver.cuDevicePrimaryCtxRetain(1)
    double.driver.cuCtxPushCurrent(other)
    memory = DeviceMemory(driver, (4,), np.dtype(np.int32))
    memory.write(np.arange(4, dtype=np.int32))
    assert memory.read().tolist() == [0, 1, 2, 3]
    assert double.driver.cuCtxGetCurrent() == (CUresult.CUDA_SUCCESS, other)


def test_launches_are_timed_together_by_events_of_one_graph(in_any_order, counts):
    driver = in_any_order
    source, target = driver.allocate(16), driver.allocate(16)
    kernels = [(added(driver, target, source, number), None) for number in (1, 2, 3)]
    timed = [driver.timed(kernels[:count]) for count in (1, 3)]
    counts.clear()
    seconds = [measure() for measure in (*timed, *timed)]
    assert seconds[:2] == pytest.approx(seconds[2:])
    assert seconds[0] > 0
    assert seconds[1] == pytest.approx(3 * seconds[0])
    assert read(driver, target) == [3] * 4
    # The host makes no call between the launches.
    assert (counts["cuGraphLaunch"], counts["cuLaunchKernel"]) == (4, 0)
    assert counts["cuEventRecord"] == counts["cuEventRecordWithFlags"] == 0


@pytest.mark.usefixtures("double")
def test_each_architecture_has_its_own_compiled_kernels():
    text = 'extern "C" __global__ void of_an_architecture(int *x) { *x = __CUDA_ARCH__; }'
    binaries = [build.build(calls.cuda(), capability, text) for capability in ((8, 0), (9, 0))]
    assert binaries[0] != binaries[1]


def losses(engine, *, predicts=False):
    """The losses of steps, read after the last one; each step's arrays are overwritten.

    Args:
        engine: that runs them.
        predicts: whether the model predicts between some steps, in the same memory.
    """
    rows, targets = data(40 * BATCH)
    x, y = np.zeros((BATCH, 12), "float32"), np.zeros(BATCH, np.int64)
    model = lm.Model(network(), engine=engine, seed=3)
    with model.training(lm.CrossEntropy(), lm.SGD(0.1), BATCH) as training:
        kept = []
        for start in range(0, len(rows), BATCH):
            x[:], y[:] = rows[start : start + BATCH], targets[start : start + BATCH]
            kept.append(training.step(x, y))
            if predicts and start % (3 * BATCH) == 0:
                kept.append(model.predict(x + 1).sum())
        x[:] = 0
        return [float(loss) for loss in kept]


@pytest.mark.usefixtures("in_any_order")
def test_losses_that_are_read_late_are_those_of_their_steps():
    np.testing.assert_allclose(losses("cuda"), losses("interpreter"), rtol=1e-4, atol=1e-5)


def test_a_training_step_makes_few_calls_of_the_driver(use, counts):
    use()
    net = lm.Sequential(lm.Input(1 << 14), lm.Linear(2))
    training = lm.Model(net, engine="cuda").training(lm.CrossEntropy(), lm.SGD(0.1), batch_size=8)
    x, y = np.zeros((8, 1 << 14), np.float32), np.zeros(8, np.int64)
    for _ in range(3):
        training.step(x, y)
    counts.clear()
    training.step(x, y)
    # Both inputs are sent to upload buffers, whence they are copied.
    for name, count in counts.items():
        assert count <= 3, name
    assert counts["cuCtxPushCurrent"] == counts["cuCtxPopCurrent"]
    assert counts["cuGraphLaunch"] == 1
    never = "cuLaunchKernel", "cuMemAlloc", "cuStreamSynchronize", "cuEventCreate"
    assert not any(counts[name] for name in never)


@pytest.mark.parametrize(("limit", "runs"), [("LARGEST_TENSOR_BYTES", 1), ("LARGEST_ON_GPU", 3)])
def test_predictions_have_larger_batches_on_a_gpu(use, counts, monkeypatch, limit, runs):
    use()
    x = np.random.default_rng(1).standard_normal((40, 5), np.float32)
    model = lm.Model(lm.Sequential(lm.Input(5), lm.Linear(20)), engine="cuda", seed=2)
    expected = lm.Model(model.network, engine="interpreter", seed=2).predict(x)
    # The outputs of 16 examples.
    monkeypatch.setattr(f"lamina.runtime.inference.{limit}", 16 * 20 * 4)
    assert np.abs(model.predict(x) - expected).max() < 1e-6
    assert counts["cuGraphLaunch"] == runs


@pytest.mark.usefixtures("in_any_order")
def test_large_arrays_are_copied_in_pieces_while_the_host_copies_others(monkeypatch, counts):
    expected = losses("interpreter", predicts=True)
    monkeypatch.setattr(arena, "_LEAST_EARLY_BYTES", 1)
    # A batch of 8 x 12 floats and 8 integers is in three pieces, and one.
    monkeypatch.setattr(copies, "PIECE_BYTES", 128)
    np.testing.assert_allclose(losses("cuda", predicts=True), expected, rtol=1e-4, atol=1e-5)
    model = lm.Model(network(), engine="cuda", seed=3)
    x, _ = data(40)
    first = model.predict(x)
    counts.clear()
    again = model.predict(x)
    assert again.tobytes() == first.tobytes()
    assert counts["cuMemcpyHtoDAsync"] == 40 * 12 * 4 // 128
    assert counts["cuMemcpyDtoHAsync"] == 40 * 4 * 4 // 128


@pytest.mark.parametrize("transposed", [False, True])
def test_inputs_in_any_layout_are_copied_in_pieces(use, monkeypatch, transposed):
    use()
    monkeypatch.setattr(copies, "PIECE_BYTES", 100)
    x, _ = data(40)
    inputs = np.asfortranarray(x) if transposed else x
    model = lm.Model(network(), engine="cuda", seed=3)
    expected = lm.Model(network(), engine="interpreter", seed=3).predict(x)
    np.testing.assert_allclose(model.predict(inputs), expected, rtol=1e-5, atol=1e-6)


def test_an_upload_does_not_wait_for_the_kernels_of_the_step_before(use, on_call, monkeypatch):
    use()
    monkeypatch.setattr(arena, "_LEAST_EARLY_BYTES", 1)
    rows, targets = data(BATCH)
    model = lm.Model(network(), engine="cuda", seed=3)
    with model.training(lm.CrossEntropy(), lm.SGD(0.1), BATCH) as training:
        driver, done = opened(), []
        queues = {"kernels": driver.queue, "uploads": driver.upload_queue}
        for name, queue in queues.items():
            for call in ("send", "wait_for", "copy", "mark", "run"):
                on_call(queue, call, lambda *_, text=f"{name} {call}": done.append(text))
        training.step(rows, targets)
        done.clear()
        training.step(rows, targets)
    # Each copy to an upload buffer is marked.
    uploaded = ["uploads send", "uploads mark"] * 2
    copied = ["kernels copy"] * 2
    waited = ["uploads wait_for", *uploaded, "kernels wait_for"]
    assert done[: len(waited) + 4] == [*waited, *copied, "kernels mark", "kernels run"]


@pytest.mark.usefixtures("in_any_order")
def test_steps_that_are_timed_compute_what_they_compute_in_a_run(monkeypatch, counts):
    expected, launches = losses("cuda", predicts=True), counts["cuGraphLaunch"]
    compile = GpuEngine.compile
    monkeypatch.setattr(
        GpuEngine, "compile", lambda *args, **how: compile(*args, **{**how, "timed": True})
    )
    assert losses("cuda", predicts=True) == expected
    # A graph for each step, and a copy back and forth of what it changes.
    assert counts["cuGraphLaunch"] > 5 * launches


def test_runs_that_are_timed_together_are_one_graph(use, counts):
    use()
    rows, targets = data(BATCH)
    parameters = []
    for how in ("repeat", "together"):
        model = lm.Model(network(), engine="cuda", seed=3)
        with model.training(lm.CrossEntropy(), lm.SGD(0.1), BATCH) as training:
            training.step(rows, targets)
            executable = training._program(BATCH).executable
            counts.clear()
            if how == "repeat":
                executable.repeat(7)
                assert (counts["cuStreamEndCapture"], counts["cuGraphLaunch"]) == (0, 7)
            else:
                executable.together(7)()
                executable.together(7)
                assert (counts["cuStreamEndCapture"], counts["cuGraphLaunch"]) == (1, 1)
        parameters.append(model.parameters())
    for name, value in parameters[0].items():
        assert value.tobytes() == parameters[1][name].tobytes()


@pytest.fixture
def chunks(monkeypatch):
    """Streams every data set, in chunks of so many batches."""

    def stream(batches):
        monkeypatch.setattr(streaming, "_RESIDENT_FRACTION", 0.0)
        monkeypatch.setattr(streaming, "NOT_ASKED_BYTES", -1)
        # An example has twelve floats and an index.
        monkeypatch.setattr(streaming, "_CHUNK_BYTES", batches * BATCH * (12 * 4 + 8))

    return stream


@pytest.mark.usefixtures("in_any_order")
def test_a_data_set_that_does_not_fit_is_streamed(chunks, on_call):
    chunks(2)
    begun = []
    on_call(streaming.Streamed, "begin", lambda *_: begun.append(1))
    parameters, expected = (streamed(engine) for engine in ("cuda", "interpreter"))
    assert begun
    for name, value in expected.items():
        np.testing.assert_allclose(parameters[name], value, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("epochs", [1, 3])
def test_graphs_for_chunks_that_alternate_are_captured_once(use, counts, chunks, on_call, epochs):
    use()
    chunks(1)
    captured = []
    load = streaming.Streamed, "_load"
    on_call(*load, lambda _: captured.append(counts["cuStreamEndCapture"]))
    streamed("cuda", epochs)
    # One graph for each of two stages: a chunk is begun before the next one is loaded.
    assert len(captured) > 11 * epochs
    assert [count - captured[0] for count in captured] == [0, 1, *[2] * (len(captured) - 2)]


def streamed(engine, epochs=2):
    model = lm.Model(network(), engine=engine, seed=3)
    how = {"epochs": epochs, "batch_size": BATCH, "progress": False}
    model.fit(data(11 * BATCH), loss=lm.CrossEntropy(), optimizer=lm.Adam(1e-2), **how)
    return dict(model.parameters())
