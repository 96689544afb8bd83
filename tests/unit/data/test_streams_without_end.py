"""Streams without an end: how many batches are read, and when they are handed out."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from error_texts import error_text, refused
from stream_cases import BATCH, TRAIN, Endless, batches_of, reading, trained
from test_streams_continued import CONTINUED, failing, fitted
from training_cases import network, same

import lamina as lm
from lamina.data import Stream
from lamina.data.background import Chunk, Reader
from lamina.errors import DataError

# Long enough for a thread to run; nothing waits so long unless a test fails.
PATIENCE = 30


def taken(reader: Reader) -> Iterator[Chunk]:
    """The chunks up to the end."""
    while (chunk := reader.take()) is not None:
        yield chunk
        reader.give_back(chunk)


def test_a_prediction_ends_after_the_steps_of_an_epoch():
    source, model = Endless(), lm.Model(network(), seed=3)
    found = model.predict(Stream(source, steps_per_epoch=3))
    np.testing.assert_array_equal(found, model.predict(np.tile(TRAIN.inputs, (9, 1))[: 3 * 256]))
    assert source.read == 77
    source = Endless()
    assert model.predict(Stream(source, steps_per_epoch=3, regroup=False)).shape == (30, 3)
    assert source.read == 3
    # The source ends before.
    found = model.predict(Stream(batches_of(TRAIN, 20), steps_per_epoch=3))
    np.testing.assert_array_equal(found, model.predict(TRAIN.inputs))


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
    how: Any = {"epochs": 2, "checkpoint": path, "checkpoint_steps": 1}
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
        assert first is not None
        assert not go_on.is_set()
        assert [rows.tolist() for rows in first.groups] == [np.arange(16).reshape(2, 8).tolist()]
        go_on.set()
        second = reader.take()
        assert second is not None
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
        assert chunk is not None
        assert sum(map(len, chunk.groups)) == 1000
        go_on.set()


@pytest.mark.parametrize("waits", [False, True], ids=["busy", "waits"])
def test_the_batches_before_an_error_are_handed_out(monkeypatch, waits):
    def broken():
        yield from batches_of(TRAIN, 10)()
        raise ZeroDivisionError

    hand_out(monkeypatch, lambda: waits)
    chunks = list[Chunk]()
    with reading(broken) as reader:
        refused(ZeroDivisionError, chunks.extend, taken(reader))
        assert sum(len(rows) for chunk in chunks for rows in chunk.groups) == 90 // BATCH


def hand_out(monkeypatch: pytest.MonkeyPatch, waits: Callable[[], bool]) -> None:
    """Readers hand out what they have when the function says so, whoever waits."""

    def offer(self: Reader, make: Callable[[], Chunk]) -> bool:
        if is_taken := waits():
            self.give(make())
        return is_taken

    monkeypatch.setattr(Reader, "offer", offer)
    monkeypatch.setattr(Reader, "withdraw", lambda _: False)


def at_random(seed: int) -> Callable[[], bool]:
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
        found = fitted(make, checkpoint=path, resume=True)
        assert same(expected[0], found[0])
        assert expected[1].values == found[1].values


def test_a_stream_is_continued_with_a_smaller_buffer(path):
    source, how = batches_of(TRAIN, 7), {"epochs": 2}
    whole = trained(source, **how)
    with failing(20):
        trained(source, checkpoint=path, checkpoint_steps=1, **how)
    found = trained(Stream(source, buffer_bytes=1), checkpoint=path, resume=True, **how)
    assert same(whole[0], found[0])


def test_batches_of_another_dtype_are_refused_whatever_the_chunks(monkeypatch):
    x = TRAIN.inputs[:10]
    hand_out(monkeypatch, lambda: True)
    with reading([x, x, x.astype("float64")]) as reader:
        text = error_text(DataError, list, taken(reader))
    assert "the batches of the stream differ" in text
