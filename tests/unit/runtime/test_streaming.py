"""Data sets that do not fit into the memory of a device."""

import gc
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import stream_cases
from error_texts import refused
from random_arrays import normal
from stream_cases import BATCH, TEST, TRAIN
from training_cases import data, fit, network, same

import lamina as lm
from lamina.data import Dataset
from lamina.engines.discovery import open_engine
from lamina.engines.gpu.engine import GpuEngine
from lamina.errors import DataError
from lamina.runtime import streaming


@pytest.fixture
def engine(opencl_name):
    return open_engine(opencl_name)


@pytest.fixture
def driver(engine):
    return engine.arena().driver


@pytest.fixture
def chunks(monkeypatch):
    """Streams every data set, in chunks of so many batches of the tests."""

    def stream(count):
        monkeypatch.setattr(GpuEngine, "shared", lambda *_: None)
        monkeypatch.setattr(streaming, "_RESIDENT_FRACTION", 0.0)
        monkeypatch.setattr(streaming, "NOT_ASKED_BYTES", -1)
        # An example has four floats and an index.
        monkeypatch.setattr(streaming, "_CHUNK_BYTES", count * BATCH * (4 * 4 + 8))

    return stream


@pytest.fixture
def calls(driver, monkeypatch):
    """The calls of both queues."""
    recorded = []
    queues = {"": driver.queue, "upload ": driver.upload_queue}
    for name in ("send", "finish", "write", "read", "run"):
        function = getattr(type(driver.queue), name)

        def counted(queue, *arguments, function=function, name=name):
            recorded.extend(f"{kind}{name}" for kind, other in queues.items() if other is queue)
            return function(queue, *arguments)

        monkeypatch.setattr(type(driver.queue), name, counted)
    return recorded


def trained(engine, **how):
    return stream_cases.trained(TRAIN, engine, validation=TEST, **how)


@pytest.mark.cases(
    ("count", "how"),
    *((count, {"drop_last": drop_last}) for count in (1, 3, 100) for drop_last in (False, True)),
    *((count, {"micro_batch": 3}) for count in (1, 3)),
)
def test_a_streamed_data_set_gives_the_same_bits(opencl_name, chunks, count, how):
    resident, history = trained(opencl_name, **how)
    chunks(count)
    streamed, other = trained(opencl_name, **how)
    assert other.values == history.values
    assert same(streamed, resident)


@pytest.mark.parametrize("count", [1, 20])
def test_members_of_a_population_read_streamed_examples_of_their_own(opencl_name, chunks, count):
    generator = np.random.default_rng(0)
    subsets, validated = ([generator.integers(0, n, k) for k in (19, 19, 23)] for n in (90, 41))

    def trained_members():
        # The second member stops first: the others go on.
        stop = [lambda history: history["loss"][-1] > 2 and len(history) == 2]
        population = lm.Population(network(), 3, opencl_name, seeds=3)
        rates = [lm.SGD(rate) for rate in (0.1, 9.0, 0.2)]
        how = {"optimizer": rates, "subsets": subsets, "validation_subsets": validated}
        histories = fit(population, TRAIN, validation=TEST, callbacks=stop, **how)
        training = population.training(lm.CrossEntropy(), lm.Adam(0.01), BATCH)
        losses = training.run(TRAIN, 15, seeds=[1, 2, 1])
        evaluate = partial(population.evaluate, TEST, lm.CrossEntropy(), batch_size=4)
        measured = [each["loss"] for each in (evaluate(), evaluate(subsets=validated))]
        return [history.values for history in histories], population.parameters(), losses, measured

    values, parameters, losses, measured = trained_members()
    assert [len(each["loss"]) for each in values] == [3, 2, 3]
    chunks(count)
    others, streamed, again, evaluated = trained_members()
    assert others == values
    assert same(streamed, parameters)
    np.testing.assert_array_equal(again, losses)
    np.testing.assert_array_equal(evaluated, measured)


@pytest.mark.parametrize("made", [lm.Model, lambda *given: lm.Population(given[0], 2, given[1])])
def test_a_run_goes_on_in_a_stream_where_the_last_one_ended(opencl_name, chunks, made):
    batches, losses = stream_cases.batches_of(TRAIN, 20), []
    chunks(2)
    with made(network(), opencl_name).training(lm.CrossEntropy(), lm.SGD(0.1), BATCH) as training:
        losses += [training.run(batches, 5), training.run(batches, 9)]
    with made(network(), opencl_name).training(lm.CrossEntropy(), lm.SGD(0.1), BATCH) as training:
        whole = training.run(batches, 14)
    np.testing.assert_array_equal(np.concatenate(losses, axis=-1), whole)


def run_stream(engine, count, calls):
    """The calls of two epochs of so many batches."""
    model = lm.Model(network(), engine=engine, seed=3)
    examples = data(count * BATCH)
    rows = np.arange(count * BATCH, dtype=np.int64).reshape(-1, BATCH)
    epochs = []
    with (
        model.training(lm.CrossEntropy(), lm.SGD(0.1), BATCH, data=examples) as training,
        training.uploaded(examples) as stream,
    ):
        assert isinstance(stream, streaming.Streamed)
        for _ in range(2):
            stream.begin([rows])
            calls.clear()
            training._run_batches(stream, rows)
            epochs.append(list(calls))
    return epochs


def test_every_chunk_is_uploaded_once_while_the_device_works(opencl_name, chunks, calls):
    chunks(4)
    for epoch in run_stream(opencl_name, 16, calls):
        # The first of four chunks, of an input and a target, was uploaded before.
        counts = {name: epoch.count(name) for name in ("upload send", "run", "finish")}
        assert counts == {"upload send": 3 * 2, "run": 16, "finish": 4}
        assert epoch.count("upload finish") == 0
        order = [call for call in epoch if call in counts]
        assert order[:7] == [*["run"] * 4, "upload send", "upload send", "finish"]


def test_the_queue_of_kernels_waits_for_the_copies_of_each_chunk(
    opencl_name, driver, chunks, monkeypatch
):
    sent = []
    waited = []
    kind = type(driver.queue)
    send, wait_for = kind.send, kind.wait_for

    def noted(queue, *arguments):
        transfer = send(queue, *arguments)
        if queue is driver.upload_queue:
            sent.append(transfer)
        return transfer

    def waits(queue, transfers):
        assert queue is driver.queue
        waited.extend(transfers)
        wait_for(queue, transfers)

    monkeypatch.setattr(kind, "send", noted)
    monkeypatch.setattr(kind, "wait_for", waits)
    chunks(4)
    run_stream(opencl_name, 16, [])
    assert len(sent) == 2 * 4 * 2
    assert all(waiting is transfer for waiting, transfer in zip(waited, sent, strict=True))


def test_a_data_set_that_takes_most_of_the_memory_is_streamed(opencl_name, driver, monkeypatch):
    monkeypatch.setattr(GpuEngine, "shared", lambda *_: None)
    examples = Dataset(normal(4000, 250), normal(4000, 2))
    layers = (lm.Linear(4), lm.Tanh(), lm.Linear(2))
    gc.collect()
    before = driver.allocated.bytes

    def run():
        model = lm.Model(lm.Sequential(lm.Input(250), *layers), engine=opencl_name, seed=3)
        most = []

        def note(_):
            most.append(driver.allocated.bytes)

        history = fit(model, examples, loss=lm.MSE(), batch_size=50, callbacks=[note], epochs=1)
        return history.values, most[0] - before

    values, taken = run()
    assert taken > examples.inputs.nbytes
    limit = before + 2_000_000
    monkeypatch.setattr(
        type(driver), "available_bytes", lambda self: max(limit - self.allocated.bytes, 0)
    )
    again, less = run()
    assert again == values
    # Two chunks, each on the device and in the memory from which it is copied.
    assert less < 1_500_000


def test_a_data_set_with_an_array_above_the_limit_of_an_allocation_is_streamed(engine, monkeypatch):
    name = engine.device.engine
    resident, history = trained(name)
    family = type(engine.family)
    target = replace(engine.target, largest_block_bytes=1000)
    monkeypatch.setattr(family, "target", target, raising=False)
    streamed, other = trained(name)
    assert other.values == history.values
    assert same(streamed, resident)


def test_a_fit_with_a_stream_releases_all_memory(opencl_name, driver, chunks):
    model = lm.Model(network(), engine=opencl_name)
    gc.collect()
    before = driver.allocated.bytes
    chunks(2)
    fit(model, data(50), validation=data(20), epochs=2)
    gc.collect()
    assert driver.allocated.bytes == before
    with pytest.raises(ZeroDivisionError):
        fit(model, data(50), epochs=2, callbacks=[lambda _: 1 / 0])
    gc.collect()
    assert driver.allocated.bytes == before


def test_memory_for_two_chunks_that_is_missing_is_an_error(
    opencl_name, driver, chunks, monkeypatch
):
    chunks(2)
    model = lm.Model(network(), engine=opencl_name)
    gc.collect()
    before = driver.allocated.bytes
    allocated = []

    def limited(size, own=driver.host_array):
        allocated.append(size)
        if len(allocated) == 3:
            with driver.errors("testing"):
                raise MemoryError
        return own(size)

    monkeypatch.setattr(driver, "host_array", limited)
    with pytest.raises(MemoryError):
        fit(model, data(50))
    gc.collect()
    assert driver.allocated.bytes == before


def test_other_data_is_checked_before_it_is_streamed(opencl_name, chunks):
    chunks(2)
    refused(DataError, fit, lm.Model(network(), engine=opencl_name), (normal(9, 4), np.full(9, 7)))


@pytest.mark.parametrize("name", ["cpu", "interpreter"])
def test_engines_without_memory_of_their_own_copy_no_data_set(name):
    model, examples = lm.Model(network(), engine=name), data(50)
    with (
        model.training(lm.CrossEntropy(), lm.SGD(0.1), BATCH) as training,
        training.uploaded(examples) as resident,
    ):
        arrays = (examples.inputs, examples.targets)
        for memory, array in zip(resident.values(), arrays, strict=True):
            assert np.shares_memory(memory.array, array)


@pytest.fixture
def sharing(driver):
    if not driver._handle.host_unified_memory:
        pytest.skip(f"{driver.record.description} has memory of its own")


def aligned(array, offset=0):
    """The same array, so many bytes after an address that is divisible by 64."""
    block = np.zeros(array.nbytes + 128, "uint8")
    start = -block.ctypes.data % 64 + offset
    found = block[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


@pytest.mark.usefixtures("sharing")
def test_a_device_that_shares_the_memory_of_the_computer_copies_no_data_set(
    opencl_name, driver, monkeypatch
):
    written = []
    write = type(driver.queue).write

    def counted(queue, buffer, array):
        written.append(array.nbytes)
        write(queue, buffer, array)

    monkeypatch.setattr(type(driver.queue), "write", counted)
    x, y = aligned(normal(500, 4)), aligned(np.arange(500) % 3)
    x.flags.writeable = False

    def bytes_of(examples):
        model = lm.Model(network(), engine=opencl_name, seed=3)
        written.clear()
        fit(model, examples, epochs=1, batch_size=50, progress=False)
        return sum(written), model.parameters()

    shared, parameters = bytes_of((x, y))
    copied, others = bytes_of((aligned(x, 4), aligned(y, 8)))
    assert copied == shared + x.nbytes + y.nbytes
    assert same(parameters, others)


@pytest.mark.usefixtures("sharing")
def test_shared_arrays_are_kept_until_they_are_released(engine, driver):
    array = aligned(np.arange(12, dtype="float32"))
    before = driver.allocated.bytes
    memory = engine.shared(array)
    assert driver.allocated.bytes == before
    np.testing.assert_array_equal(memory.read(), array)
    for _ in range(2):
        memory.release()
    empty = engine.shared(np.zeros((0, 3), "float32"))
    assert empty.read().shape == (0, 3)
