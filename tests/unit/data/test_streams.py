"""Streams: batches of a source, read by a thread while the device computes, also without an end."""

import gc
import itertools
import os
import threading
import time
import traceback

import numpy as np
import pytest
from error_texts import error_text, refused
from stream_cases import BATCH, TEST, TRAIN, Endless, batches_of, fault, reading, trained
from test_streams_continued import CONTINUED, failing, fitted
from training_cases import fit, network, same, training

import lamina as lm
from lamina.data import Dataset, Stream, background
from lamina.data.background import Reader
from lamina.data.positions import WindowOrder
from lamina.engines.gpu.engine import GpuEngine
from lamina.errors import DataError, DTypeError, ShapeError
from lamina.runtime import streaming


def expected(epochs, engine="cpu"):
    """The parameters after training steps on these examples of `TRAIN`."""
    model = lm.Model(network(), engine=engine, seed=3)
    steps = [rows for epoch in epochs for rows in epoch]
    with training(model, max(map(len, steps))) as running:
        for rows in steps:
            running.step(TRAIN.inputs[rows], TRAIN.targets[rows])
    return model.parameters()


def in_batches(order):
    return [order[start : start + BATCH] for start in range(0, len(order), BATCH)]


IN_ORDER = in_batches(np.arange(90))


@pytest.fixture(autouse=True)
def no_reader_stays():
    yield
    gc.collect()
    names = [thread.name for thread in threading.enumerate()]
    assert "lamina reader" not in names


# What is read ------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["interpreter", "opencl"])
def test_a_stream_gives_the_bits_of_single_steps_on_every_engine(engine, request):
    name = request.getfixturevalue("opencl_name") if engine == "opencl" else engine
    parameters, _ = trained(batches_of(TRAIN, 33), name, epochs=1)
    assert same(parameters, expected([IN_ORDER], name))


PAIRS = [*batches_of(TRAIN, 20)()]
SOURCES = {
    **{f"batches of {size}": batches_of(TRAIN, size) for size in (1, 7, 8, 20, 33, 90, 200)},
    "list of pairs": PAIRS,
    "list of data sets": [Dataset(x, y) for x, y in PAIRS],
    "list of dictionaries": [{"x": x, "y": y} for x, y in PAIRS],
    "other names": [{"images": x, "labels": y} for x, y in PAIRS],
    "lists": [[x, y] for x, y in PAIRS],
    "an iterable object": type("Loader", (), {"__iter__": lambda _: iter(PAIRS)})(),
    "a function that returns a list": lambda: PAIRS,
    "Stream": Stream(batches_of(TRAIN, 20)),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
def test_all_sources_are_read_in_batches_of_the_fit(source):
    parameters, history = trained(source, validation=source, epochs=2)
    assert same(parameters, expected([IN_ORDER] * 2))
    assert len(history) == 2
    model = lm.Model(network(), seed=3)
    model.set_parameters(parameters)
    scores = model.evaluate(TRAIN, lm.CrossEntropy(), [lm.Accuracy()])
    assert history.values["validation_loss"][-1] == pytest.approx(scores["loss"], rel=1e-6)
    assert model.evaluate(source, lm.CrossEntropy(), [lm.Accuracy()]) == scores


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loaders_of_pytorch_are_read(workers, torch):
    pairs = torch.utils.data.TensorDataset(torch.tensor(TRAIN.inputs), torch.tensor(TRAIN.targets))
    loader = torch.utils.data.DataLoader(pairs, batch_size=20, num_workers=workers)
    parameters, _ = trained(loader, epochs=2)
    assert same(parameters, expected([IN_ORDER] * 2))


def test_an_iterator_is_read_in_a_single_epoch_and_refused_for_more():
    parameters, _ = trained(batches_of(TRAIN, 20)(), epochs=1)
    assert same(parameters, expected([IN_ORDER]))
    assert error_text(DataError, lambda: trained(batches_of(TRAIN, 20)(), epochs=2)) == (
        "in fit: the training data can be read once, and there are 2 epochs\n"
        "  expected  a source that can be iterated again\n"
        "  found     an iterator (generator)\n"
        "  Give the generator function itself, without calling it, or a list of batches; "
        "or train for one epoch."
    )
    text = error_text(DataError, trained, TRAIN, validation=batches_of(TEST, 20)(), epochs=2)
    assert "the validation data can be read once" in text


def test_predictions_of_a_stream_are_those_of_its_arrays():
    model = lm.Model(network(), seed=3)
    predictions = model.predict(TRAIN.inputs)
    np.testing.assert_array_equal(model.predict(batches_of(TRAIN, 33)), predictions)
    inputs = lambda: (x for x, _ in batches_of(TRAIN, 33)())  # noqa: E731
    # They are not shuffled.
    np.testing.assert_array_equal(model.predict(Stream(inputs, window=30)), predictions)
    kept = model.predict(Stream(batches_of(TRAIN, 33), regroup=False))
    np.testing.assert_allclose(kept, predictions, rtol=1e-5, atol=1e-6)


def test_a_run_continues_after_the_training_steps_done():
    def losses(*counts):
        stream = Stream(batches_of(TRAIN, 20), window=30)
        with training(lm.Model(network(), seed=3), BATCH) as running:
            return [float(loss) for count in counts for loss in running.run(stream, count, seed=5)]

    assert losses(30) == losses(4, 26) == losses(12, 1, 17)


# Epochs ------------------------------------------------------------------------------------------


UNEVEN = np.split(np.arange(29), np.cumsum([5, 1, 8, 12]))


@pytest.mark.cases(
    ("source", "how", "rows"),
    (batches_of(TRAIN, 20), {"epochs": 1}, [IN_ORDER]),
    (batches_of(TRAIN, 20), {"epochs": 1, "drop_last": True}, [IN_ORDER[:-1]]),
    # Batches as they are.
    (
        Stream([(TRAIN.inputs[rows], TRAIN.targets[rows]) for rows in UNEVEN], regroup=False),
        *({"epochs": 2}, [UNEVEN] * 2),
    ),
    # An epoch continues the stream of the one before.
    (Stream(batches_of(TRAIN, 20), steps_per_epoch=5), {"epochs": 4}, [[*IN_ORDER * 2][:20]]),
)
def test_an_epoch_has_the_batches_of_its_source(source, how, rows):
    parameters, history = trained(source, **how)
    assert same(parameters, expected(rows))
    assert len(history) == how["epochs"]


def test_a_source_is_opened_once_for_each_epoch_with_its_number():
    opened = []

    def source(name):
        def batches(epoch):
            opened.append((name, epoch))
            return batches_of(TRAIN, 20)()

        return batches

    trained(source("train"), validation=source("validation"), epochs=3)
    assert sorted(opened) == [("train", 0), ("train", 1), ("train", 2), *[("validation", 0)] * 3]


# Windows -----------------------------------------------------------------------------------------


def window_order(window, seed, epoch, count=90):
    """The order of the examples, by the rule of `Stream`."""
    order, rows = WindowOrder(window, seed, epoch), []
    for block in itertools.count():
        size = min(order.length(block), count - len(rows))
        if not size:
            return np.array(rows)
        rows += (len(rows) + order.permutation(block, size)).tolist()


@pytest.mark.sampled
@pytest.mark.parametrize("window", [1, 3, 20, 64, 1000])
@pytest.mark.parametrize("size", [7, 90])
def test_a_window_shuffles_by_its_rule(window, size):
    stream = Stream(batches_of(TRAIN, size), window=window, seed=11)
    orders = [window_order(window, 11, epoch) for epoch in range(2)]
    assert same(trained(stream, epochs=2)[0], expected([in_batches(one) for one in orders]))


def test_the_orders_of_a_window_are_permutations_that_differ():
    orders = [window_order(40, seed, epoch) for seed in (0, 1) for epoch in range(3)]
    assert all(sorted(order) == list(range(90)) for order in orders)
    assert len({order.tobytes() for order in orders}) == 6
    # Recorded, because the order must not depend on the machine or the version.
    assert window_order(5, 0, 0, 12).tolist() == [1, 0, 3, 5, 2, 6, 4, 9, 7, 11, 10, 8]


# The thread --------------------------------------------------------------------------------------


def test_errors_of_the_source_arrive_with_their_traceback():
    def broken():
        yield TRAIN.inputs, TRAIN.targets
        raise ZeroDivisionError("in the middle")

    for call in (
        trained,
        lambda source: trained(TRAIN, validation=source),
        lm.Model(network()).predict,
        lambda source: lm.Model(network()).evaluate(source, lm.CrossEntropy()),
    ):
        error = refused(ZeroDivisionError, call, broken)
        lines = traceback.extract_tb(error.__traceback__)
        assert 'raise ZeroDivisionError("in the middle")' in [line.line for line in lines]


def test_errors_name_the_batch():
    x, y = good = (TRAIN.inputs[:10], TRAIN.targets[:10])
    assert "labels out of range" in fault([good, good, (x, y + 5)], DataError)
    text = fault([good, (x[:, :3], y)], ShapeError)
    problem = "input 0 has another shape than the network expects"
    assert text.startswith(f"in batch 1 of the stream, input 0: {problem}")
    assert fault([good, (x, y[:9])], DataError).startswith(
        "in batch 1 of the stream: the inputs and the targets differ in the number of examples\n"
        "  inputs   10 examples, float32[10, 4]\n"
        "  targets  9 examples, int64[9]\n"
    )
    assert fault(lambda: zip(x, y, strict=True), DataError) == (
        "in batch 0 of the stream: the targets have no axis of examples\n"
        "  expected  one axis or more\n"
        "  found     int64[]\n"
        "  A source gives batches, and this is a single example: give several, stacked along a "
        "first axis; (x[None], y[None]) is a batch of one."
    )
    assert fault(Stream([good, (1, 2, 3, 4)]), DataError) == (
        "in batch 1 of the stream: a batch is neither inputs nor a pair (inputs, targets)\n"
        "  expected  (x, y)\n"
        "  found     4 values\n"
        "  Several inputs make a tuple, and so do several targets: ((a, b), (y, z)). A third value "
        "is the weights of the examples."
    )
    assert fault([{"x": x, "labels": y}], DataError) == (
        "in batch 0 of the stream: the names in a batch do not tell inputs from targets\n"
        "  expected  x/y, inputs/targets, images/labels; and weights, if the examples have any\n"
        "  found     x, labels\n"
        "  Give pairs: ({'a': batch['a'], 'b': batch['b']}, batch['c']) for batch in loader."
    )


@pytest.mark.sampled
def test_batches_with_names_may_have_weights():
    weights = np.split(np.linspace(0.1, 2, 90), (20, 40, 60, 80))
    parts = [(*pair, weight) for pair, weight in zip(PAIRS, weights, strict=True)]
    named = trained([{"weights": w, "images": x, "labels": y} for x, y, w in parts])[0]
    assert same(named, trained(parts)[0])
    assert not same(named, trained(TRAIN, shuffle=False)[0])


@pytest.mark.sampled
def test_the_seed_of_the_fit_is_that_of_the_window():
    stream = Stream(batches_of(TRAIN, 20), window=40)
    seeded = Stream(batches_of(TRAIN, 20), window=40, seed=7)
    fitted = trained(stream, seed=7)[0]
    # The seed of the fit also seeds dropout.
    assert same(fitted, trained(seeded, seed=7)[0])
    assert not same(fitted, trained(stream, seed=8)[0])
    assert not same(fitted, trained(seeded, seed=3)[0])
    # Without shuffle it is not shuffled.
    plain = trained(TRAIN, shuffle=False)[0]
    assert same(trained(stream, shuffle=False)[0], plain)
    assert not same(trained(stream)[0], plain)


def test_batches_of_another_dtype_are_refused(monkeypatch):
    source = [(PAIRS[0][0].astype("uint8"), PAIRS[0][1]), PAIRS[1]]
    assert "another dtype than the program was compiled for" in fault(source, DTypeError)
    text = error_text(DataError, lm.Model(network()).predict, lambda: (x for x, _ in source))
    assert "the batches of the stream differ" in text
    # Whatever the chunks.
    hand_out(monkeypatch, lambda: True)
    x = TRAIN.inputs[:10]
    with reading([x, x, x.astype("float64")]) as reader:
        assert "the batches of the stream differ" in error_text(DataError, list, taken(reader))


def test_sources_without_batches_are_refused():
    assert fault(lambda: iter(()), DataError) == (
        "in Stream: the stream has no batches\n"
        "  source  function\n"
        "  An iterator can be read once: give a generator function, or a list."
    )
    assert fault(Stream(iter([])), DataError, epochs=1).startswith("in Stream: the stream has no")
    running = batches_of(TRAIN, 20)()
    assert "the stream has no batches" in fault(lambda: running, DataError, epochs=2)
    assert fault([(TRAIN.inputs[:3], TRAIN.targets[:3])], DataError, drop_last=True) == (
        "in fit: an epoch of the stream has no training step\n"
        "  batch_size  8\n"
        "  Leave drop_last out, or take a smaller batch_size."
    )


def test_what_is_no_source_is_refused():
    for value in ("text", 3, {"x": 1}, Dataset):
        assert "this is not a source of batches" in error_text(DataError, Stream, value)
    text = error_text(DataError, Stream, lambda size: [])
    assert text.splitlines()[1:] == [
        "  expected  no arguments, or epoch, skip and seed",
        "  Wrap it: lambda: <lambda>(...).",
    ]
    assert "the function needs an argument 'size'" in text
    assert "the function does not return batches" in fault(lambda: 3, DataError)
    assert error_text(DataError, Stream, [], window=3, regroup=False).startswith(
        "in Stream: a window shuffles examples, but the batches are taken as they are"
    )


def test_the_source_is_closed_in_its_thread():
    threads = []

    def noted():
        threads.append(threading.current_thread())
        try:
            yield from itertools.cycle(PAIRS)
        finally:
            threads.append(threading.current_thread())

    trained(Stream(noted, steps_per_epoch=3), epochs=1)
    opened, closed = threads
    assert opened is closed is not threading.main_thread()


def test_a_callback_that_ends_the_fit_ends_the_reader():
    _, history = trained(batches_of(TRAIN, 1), epochs=100, callbacks=[lambda h: len(h) == 2])
    assert len(history) == 2
    refused(ZeroDivisionError, trained, batches_of(TRAIN, 5), callbacks=[lambda _: 1 / 0])


def test_the_buffer_is_bounded():
    source = Endless()
    each = TRAIN.inputs[:10].nbytes + TRAIN.targets[:10].nbytes
    with reading(Stream(source, buffer_bytes=10 * each)) as reader:
        first = reader.take()
        assert first is not None
        time.sleep(0.5)
        assert reader.bytes <= 11 * each
        assert source.read <= 12
        reader.give_back(first)
        assert reader.take() is not None


def test_a_time_limit_holds_for_the_first_batch(monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(background, "_PATIENCE_SECONDS", 0.1)
    limit = lm.callbacks.TimeLimit(0.2)
    text = fault(lambda: iter(lambda: released.wait(60), True), DataError, callbacks=[limit])
    released.set()
    assert text == (
        "in fit: the stream has given no batch, and the time of the fit is over\n"
        "  expected  a first batch within 0.2 seconds\n"
        "  found     none\n"
        "  Find out why the source waits, or give lm.callbacks.TimeLimit more time."
    )


def test_a_loss_that_is_not_finite_names_the_example():
    x = TRAIN.inputs.copy()
    x[40] = np.nan
    text = fault(batches_of(Dataset(x, TRAIN.targets), 30), lm.errors.NonFiniteError)
    assert "the loss became nan in training step 6 of epoch 1" in text
    assert "array 0 of the batch is not finite at example 40" in text


# Devices with memory of their own ----------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 100])
@pytest.mark.parametrize("options", [{}, {"window": 20}, {"steps_per_epoch": 5}], ids=str)
def test_a_stream_is_copied_to_the_device_in_chunks(opencl_name, monkeypatch, count, options):
    source = batches_of(TRAIN, 20)
    shared = trained(Stream(source, **options), opencl_name, validation=source)
    monkeypatch.setattr(GpuEngine, "shared", lambda *_: None)
    monkeypatch.setattr(streaming, "_CHUNK_BYTES", count * BATCH * (4 * 4 + 8))
    copied = trained(Stream(source, **options), opencl_name, validation=source)
    assert same(shared[0], copied[0])
    assert shared[1].values == copied[1].values
    broken = Stream(lambda: [(TRAIN.inputs, TRAIN.targets), 1 / 0])
    refused(ZeroDivisionError, trained, broken, opencl_name)


def test_floats_of_a_stream_that_are_converted_are_reported_once(recwarn):
    model = lm.Model(lm.Sequential(lm.Input(2), lm.Linear(1)))
    batches = [(np.ones((8, 2)), np.ones((8, 1)))] * 5
    fit(model, batches, loss=lm.MSE(), epochs=2)
    texts = [str(warning.message).partition(" from ")[0] for warning in recwarn.list]
    assert texts == ["input 0 is converted", "target 0 is converted"]
    assert {os.path.basename(warning.filename) for warning in recwarn.list} == {"training_cases.py"}


# Streams without an end ---------------------------------------------------------------------------


# Long enough for a thread to run; nothing waits so long unless a test fails.
PATIENCE = 30


def taken(reader):
    """The chunks up to the end."""
    while (chunk := reader.take()) is not None:
        yield chunk
        reader.give_back(chunk)


def test_a_prediction_ends_after_the_steps_of_an_epoch():
    source, model = Endless(), lm.Model(network(), seed=3)
    outputs = model.predict(Stream(source, steps_per_epoch=3))
    np.testing.assert_array_equal(outputs, model.predict(np.tile(TRAIN.inputs, (9, 1))[: 3 * 256]))
    assert source.read == 77
    source = Endless()
    assert model.predict(Stream(source, steps_per_epoch=3, regroup=False)).shape == (30, 3)
    assert source.read == 3
    # The source ends before.
    outputs = model.predict(Stream(batches_of(TRAIN, 20), steps_per_epoch=3))
    np.testing.assert_array_equal(outputs, model.predict(TRAIN.inputs))


@pytest.mark.parametrize(
    ("how", "counts"),
    # Batches as they are, one for each step; whole windows.
    [({}, {7}), ({"regroup": False}, {8}), ({"window": 30}, {7, 8, 9, 10})],
)
def test_a_fit_reads_what_its_steps_need(how, counts):
    source = Endless()
    trained(Stream(source, steps_per_epoch=4, **how), epochs=2)
    assert source.read in counts


def test_an_evaluation_and_a_run_read_what_their_steps_need():
    source, model = Endless(), lm.Model(network(), seed=3)
    score = model.evaluate(Stream(source, steps_per_epoch=3), lm.CrossEntropy(), batch_size=20)
    assert score == model.evaluate(TRAIN.subset(0, 60), lm.CrossEntropy(), batch_size=20)
    assert source.read == 6
    source = Endless()
    with model.training(lm.CrossEntropy(), lm.SGD(0.1), BATCH) as training:
        assert len(training.run(source, 5)) == 5
        assert source.read == 4
        training.run(source, 2)
    assert source.read == 4 + 6


def test_a_fit_that_continues_reads_what_its_steps_need(path):
    how = {"epochs": 2, "checkpoint": path, "checkpoint_steps": 1}
    with failing(6):
        trained(Stream(Endless(), steps_per_epoch=5), **how)
    source = Endless()
    trained(Stream(source, steps_per_epoch=5), resume=True, **how)
    assert source.read == 8


@pytest.fixture
def go_on():
    """An event for which a source waits; it is set at the end."""
    event = threading.Event()
    yield event
    event.set()


def test_whole_batches_are_handed_out_while_the_source_is_read(go_on):
    def slow():
        yield TRAIN.inputs[:20]
        go_on.wait(PATIENCE)
        yield TRAIN.inputs[20:30]

    with reading(slow) as reader:
        first = reader.take()
        assert not go_on.is_set()
        assert [rows.tolist() for rows in first.groups] == [np.arange(16).reshape(2, 8).tolist()]
        go_on.set()
        second = reader.take()
        assert second.first == 16
        np.testing.assert_array_equal(second.arrays[0][second.groups[0][0]], TRAIN.inputs[16:24])


def test_chunks_grow_while_nobody_waits(go_on):
    read = threading.Event()

    def source():
        for _ in range(1000):
            yield TRAIN.inputs[:BATCH]
        read.set()
        go_on.wait(PATIENCE)

    with reading(source) as reader:
        assert read.wait(PATIENCE)
        chunk = reader.take()
        assert sum(map(len, chunk.groups)) == 1000
        go_on.set()


@pytest.mark.parametrize("waits", [False, True], ids=["busy", "waits"])
def test_the_batches_before_an_error_are_handed_out(monkeypatch, waits):
    def broken():
        yield from batches_of(TRAIN, 10)()
        raise ZeroDivisionError

    hand_out(monkeypatch, lambda: waits)
    chunks = []
    with reading(broken) as reader:
        refused(ZeroDivisionError, chunks.extend, taken(reader))
        assert sum(len(rows) for chunk in chunks for rows in chunk.groups) == 90 // BATCH


def hand_out(monkeypatch, waits):
    """Readers hand out what they have when the function says so, whoever waits."""

    def offer(self, make):
        if is_taken := waits():
            self.give(make())
        return is_taken

    monkeypatch.setattr(Reader, "offer", offer)
    monkeypatch.setattr(Reader, "withdraw", lambda _: False)


def at_random(seed):
    random = np.random.default_rng(seed)
    return lambda: bool(random.random() < 0.4)


@pytest.mark.parametrize("name", ["function", "window", "state", "steps_per_epoch"])
def test_a_fit_continues_with_other_chunks(name, monkeypatch, path):
    make = CONTINUED[name]
    never, always = lambda: False, lambda: True
    hand_out(monkeypatch, never)
    expected = fitted(make)
    for before, after in ((never, always), (always, never), (at_random(1), at_random(2))):
        hand_out(monkeypatch, before)
        with failing(7):
            fitted(make, checkpoint=path, checkpoint_steps=1)
        hand_out(monkeypatch, after)
        continued = fitted(make, checkpoint=path, resume=True)
        assert same(expected[0], continued[0])
        assert expected[1].values == continued[1].values


def test_a_stream_is_continued_with_a_smaller_buffer(path):
    source, how = batches_of(TRAIN, 7), {"epochs": 2}
    uninterrupted = trained(source, **how)
    with failing(20):
        trained(source, checkpoint=path, checkpoint_steps=1, **how)
    continued = trained(Stream(source, buffer_bytes=1), checkpoint=path, resume=True, **how)
    assert same(uninterrupted[0], continued[0])
