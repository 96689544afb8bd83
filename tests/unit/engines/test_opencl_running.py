"""How programs are run on an OpenCL device: recorded launches, and no waiting."""

import ctypes
import gc
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from error_texts import error_text
from opencl_cases import cl, refusing, with_offsets
from random_arrays import normal
from test_opencl_programs import DATA, EMPTY, LAUNCHES, C, X, check_run, expected, made

import lamina as lm
from lamina.engines.gpu import arena
from lamina.engines.gpu.launches import Launch, Launches, RepeatedLaunches
from lamina.engines.opencl import command_buffer
from lamina.engines.opencl import direct as direct_module
from lamina.engines.opencl import driver as driver_module
from lamina.engines.opencl.command_buffer import command_buffers
from lamina.errors import EngineError


@pytest.fixture
def recorder(driver):
    if driver._command_buffers is None:
        pytest.skip(f"{driver.record.description} has no command buffers that Lamina knows")
    return driver._command_buffers


@pytest.fixture(params=["recorded", "one by one"])
def any_engine(request, engine, driver, monkeypatch):
    """The engine, with command buffers and without them."""
    if request.param == "recorded":
        request.getfixturevalue("recorder")
    else:
        monkeypatch.setattr(driver, "_command_buffers", None)
    return engine


def long(iterations):
    """The program of the tests, whose first step is repeated: s = c + iterations * x."""
    repeats = (RepeatedLaunches(0, 1, iterations),)
    return Launches(LAUNCHES.text, LAUNCHES.launches, repeats, LAUNCHES.gather)


def test_every_iteration_has_its_own_number(any_engine):
    executable, memory = made(any_engine, launches=long(7))
    for run in range(3):
        executable.run([X + run, EMPTY])
        reference = (7 * (X + run).reshape(-1) + C + run).reshape(3, 2)
        np.testing.assert_array_equal(executable.output("result"), reference)
    np.testing.assert_array_equal(memory.read(), [3, 3, 3])


def test_a_run_is_one_call_of_the_driver(engine, recorder, on_call):
    executable, _ = made(engine, launches=long(50))
    calls = []
    on_call(driver_module.cl, "enqueue_nd_range_kernel", lambda *_: calls.append("launch"))
    kind = type(recorder.record(executable._driver.queue.handle, []))
    on_call(kind, "enqueue", lambda _: calls.append("command buffer"))
    # Methods are bound when a program is moved.
    executable.move_to([block.buffer for block in executable._arena._blocks])
    executable.run([X, EMPTY])
    assert calls == ["command buffer"]


def nothing_made(*arguments):
    """Writes a status to the last argument."""
    ctypes.cast(arguments[-1], ctypes.POINTER(ctypes.c_int))[0] = -5


@pytest.mark.cases(
    ("function", "refuse", "routine", "doing"),
    ("_launch", lambda *_: -5, "clCommandNDRangeKernelKHR", "creating a program's kernels"),
    ("_finalize", lambda *_: -5, "clFinalizeCommandBufferKHR", "creating a program's kernels"),
    ("_set_argument", lambda *_: -5, "clSetKernelArg", "creating a program's kernels"),
    ("_enqueue", lambda *_: -5, "clEnqueueCommandBufferKHR", "running a program"),
    ("_create", nothing_made, "clCreateCommandBufferKHR", "creating a program's kernels"),
    ("_create_kernel", nothing_made, "clCreateKernel", "creating a program's kernels"),
)
def test_refused_command_buffers_are_engine_errors(
    engine, recorder, monkeypatch, function, refuse, routine, doing
):
    monkeypatch.setattr(recorder, function, refuse)
    text = error_text(EngineError, lambda: made(engine)[0].run([X, EMPTY]))
    assert f"the OpenCL driver failed at {doing}" in text
    assert f"OUT_OF_RESOURCES in {routine}" in text
    monkeypatch.undo()
    executable, _ = made(engine)
    check_run(executable)


def test_command_buffers_and_their_kernels_are_released(engine, recorder, on_call):
    released = []
    for name in ("_release", "_release_kernel"):
        on_call(recorder, name, lambda _, name=name: released.append(name))
    gc.collect()
    released.clear()
    executable, _ = made(engine, launches=long(4))
    assert released == []
    executable.release()
    assert sorted(released) == ["_release", *["_release_kernel"] * 4]


def device(extensions="cl_khr_command_buffer", version=9 << 12):
    listed = [SimpleNamespace(name="cl_khr_command_buffer", version=version)]
    return SimpleNamespace(extensions=extensions, extensions_with_version=listed)


class Old(SimpleNamespace):
    """A device that is older than OpenCL 3.0."""

    extensions = "cl_khr_command_buffer"
    extensions_with_version = property(refusing("INVALID_VALUE", "clGetDeviceInfo"))


@pytest.mark.parametrize(
    "unknown", [device("cl_khr_fp64"), Old(), device(version=2 << 22), device(version=8 << 12)]
)
def test_devices_without_a_known_version_of_the_extension_have_no_command_buffers(unknown):
    assert command_buffers(unknown) is None


@pytest.mark.cases(
    ("vendor", "kind", "records"),
    ("Intel(R) Corporation", cl.device_type.CPU, False),
    ("Intel(R) Corporation", cl.device_type.GPU, True),
    ("The pocl project", cl.device_type.CPU, True),
)
def test_a_driver_that_keeps_released_programs_has_no_command_buffers(
    vendor, kind, records, monkeypatch
):
    monkeypatch.setattr(command_buffer, "_command_buffers", lambda _: "functions")
    one = device()
    one.platform, one.type = SimpleNamespace(vendor=vendor), kind
    assert (command_buffer.command_buffers(one) is not None) == records


def test_finish_waits_for_commands_that_were_flushed(driver, monkeypatch):
    # Mesa's does not wait for them.
    monkeypatch.setattr(cl.CommandQueue, "finish", lambda _: None)
    text = """__kernel void mix_up(__global uint *x, uint x_offset) {
        uint own = x[get_global_id(0)];
        for (uint round = 0; round < 20000; ++round)
            own = own * 1664525u + 1013904223u;
        x[get_global_id(0)] = own;
    }"""
    module, count = driver.build(text), 1 << 12
    with driver.errors("a test"):
        buffer = driver.allocate(4 * count)
        kernel = driver.kernel(module, "mix_up", [buffer], count, numbered=False)
        for _ in range(3):
            launched = driver.queue.enqueue(kernel, None)
            driver.queue.flush()
            driver.queue.finish()
            assert launched.command_execution_status == cl.command_execution_status.COMPLETE


def test_an_incomplete_extension_has_no_command_buffers(driver, monkeypatch):
    if command_buffer.command_buffers(driver._handle) is None:
        pytest.skip("the device has no command buffers")
    monkeypatch.setattr(command_buffer, "require_success", refusing("INVALID_VALUE", "create"))
    assert command_buffer.command_buffers(driver._handle) is None


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "by-pyopencl"])
def test_an_array_is_sent_without_waiting_for_it(driver, monkeypatch, direct):
    if direct:
        assert direct_module._writing() is not None
    else:
        monkeypatch.setattr(direct_module, "_writing", lambda: None)
    array = np.arange(1000, dtype="float32")
    buffer = driver.allocate(array.nbytes)
    driver.queue.send(buffer, array).wait()
    received = np.zeros_like(array)
    driver.queue.read(received, buffer)
    np.testing.assert_array_equal(received, array)
    # The second half, and back from where it is.
    driver.queue.send(buffer, array[500:], 4 * 100).wait()
    driver.queue.fetch(received[:300], buffer, 4 * 50).wait()
    np.testing.assert_array_equal(received[:50], array[50:100])
    np.testing.assert_array_equal(received[50:300], array[500:750])


def test_an_array_that_is_larger_than_its_buffer_is_refused_by_the_driver(driver):
    buffer = driver.allocate(16)
    with pytest.raises(EngineError) as caught, driver.errors("copying inputs"):
        driver.queue.send(buffer, np.zeros(1000, "float32"))
    assert "INVALID_VALUE in clEnqueueWriteBuffer" in str(caught.value)


def test_runs_do_not_wait_for_the_device(engine, driver, on_call):
    layers = (lm.Linear(4), lm.Tanh(), lm.Linear(1))
    x, y = normal(60, 3), normal(60, 1)
    waits = []

    def losses(name):
        model = lm.Model(lm.Sequential(lm.Input(3), *layers), engine=name, seed=1)
        with model.training(loss=lm.MSE(), optimizer=lm.SGD(0.1), batch_size=6) as training:
            training.step(x[:6], y[:6])
            waits.clear()
            scalars = [training.step(x[n : n + 6], y[n : n + 6]) for n in range(0, 60, 6)]
            assert waits == []
        # Every loss is read after all training steps, and after the training was released.
        return [float(scalar) for scalar in scalars]

    for name in ("finish", "write", "read"):
        on_call(driver.queue, name, lambda *_, name=name: waits.append(name))
    on_device = losses(engine.device.engine)
    assert waits.count("read") == len(on_device)
    np.testing.assert_allclose(on_device, losses("cpu"), rtol=1e-5)


def test_inputs_may_change_as_soon_as_a_run_has_begun(engine):
    executable, memory = made(engine)
    x, results = X.copy(), []
    for run in range(40):
        x[:] = X + run
        executable.run([x, EMPTY])
        results.append(executable.output("result") if run % 7 == 0 else None)
    for run in range(0, 40, 7):
        np.testing.assert_array_equal(results[run], expected(X + run, run))
    np.testing.assert_array_equal(memory.read(), [40, 40, 40])


def test_a_device_that_copies_during_runs_uploads_inputs_before_their_run(
    engine, driver, on_call, monkeypatch
):
    network = lm.Sequential(lm.Input(6), lm.Linear(5), lm.Tanh(), lm.Linear(2))
    rows = normal(20, 8, 6)

    def losses():
        model = lm.Model(network, engine=engine.device.engine, seed=1)
        x, kept = np.zeros((8, 6), "float32"), []
        with model.training(lm.MSE(), lm.SGD(0.1), batch_size=8) as training:
            for row in rows:
                x[:] = row
                kept.append(training.step(x, row[:, :2]))
                # It uses the memory of the training's upload buffers.
                kept.append(model.predict(x).sum())
            return [float(scalar) for scalar in kept]

    sent = []
    for name, queue in (("kernels", driver.queue), ("uploads", driver.upload_queue)):
        on_call(queue, "send", lambda *_, to=name: sent.append(to))
    reference = losses()
    assert set(sent) == {"kernels"}
    sent.clear()
    monkeypatch.setattr(driver, "traits", replace(driver.traits, uploads_during_runs=True))
    monkeypatch.setattr(arena, "_LEAST_EARLY_BYTES", 1)
    assert losses() == reference
    assert set(sent) == {"uploads"}


def test_host_memory_of_inputs_is_counted_and_released(engine, driver):
    gc.collect()
    executable, memory = made(engine)
    before = driver.allocated.bytes
    for run in range(20):
        executable.run([X, EMPTY])
        assert driver.allocated.bytes == before + min(run + 1, 16) * 64
    executable.release()
    memory.release()
    assert driver.allocated.bytes <= before


def test_memory_of_runs_over_a_data_set_is_allocated_once(engine, driver):
    executable, _ = made(engine)
    resident = {name: engine.allocate(shape, X.dtype) for name, shape in DATA.items()}
    rows = np.random.default_rng(0).integers(0, 10, (40, 3))
    executable.run_many(resident, rows, ["result"])
    taken = driver.allocated.bytes
    for count in (40, 7, 1):
        executable.run_many(resident, rows[:count], ["result"])
        assert driver.allocated.bytes == taken
    executable.release()
    assert driver.allocated.bytes < taken


def test_operands_are_packed_again_when_memories_change(engine):
    text = with_offsets("""
    kernel void pack(global float* kept, global const float* p, global int* count) {
        size_t n = get_global_id(0);
        if (n < 3) kept[n] = 10.0f * p[n];
        if (n == 0) count[0] += 1;
    }
    kernel void use(global float* y, global const float* kept) {
        size_t n = get_global_id(0);
        if (n < 6) y[n] = kept[n % 3];
    }
    """)
    launches = Launches(
        LAUNCHES.text + text,
        (Launch("use", ("y", "kept"), 6, 0),),
        (),
        (),
        kept={"kept": 12, "count": 4},
        load=(Launch("pack", ("kept", "p", "count"), 3, 0),),
    )
    executable, memory = made(engine, launches=launches)
    # The steps of the program state that it changes p; these kernels do not.
    count = executable._kept["count"]

    def result():
        executable.run([X, EMPTY])
        return executable.output("result").reshape(-1)[:3].tolist()

    assert result() == [0, 0, 0]
    memory.write(np.array([1, 2, 3], "float32"))
    for _ in range(3):
        assert result() == [10, 20, 30]
    assert count.read().view(np.int32)[0] == 2
    other = engine.allocate((3,), np.dtype("float32"))
    other.write(np.array([4, 5, 6], "float32"))
    memory.copy_from(other)
    assert result() == [40, 50, 60]
    # Another program of the same memories sees that this one has changed them.
    assert executable._changes_memories
    before = memory.changes.count
    executable.run([X, EMPTY])
    assert memory.changes.count == before + 1
