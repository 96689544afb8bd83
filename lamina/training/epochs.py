"""The epochs of a training: batches of a data set in shuffled order, or of a stream."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import final

import numpy as np

from lamina.base.shapes import Array
from lamina.data import Dataset, Stream
from lamina.data.arrays import as_tuple
from lamina.data.background import Reader
from lamina.data.positions import Position
from lamina.data.stream import whole_of
from lamina.errors import DataError
from lamina.runtime.feeds import Feed, Stopped
from lamina.training.batches import Examples
from lamina.training.training import Training


class Epochs(ABC):
    """The batches of a fit, epoch by epoch."""

    # The training steps of an epoch; None if that is not known yet.
    steps: int | None
    _done = 0

    @property
    def position(self) -> Position | None:
        """Where the stream is; None for a data set."""
        return None

    @abstractmethod
    def groups(self, epoch: int, done: int, stopped: Stopped) -> Iterator[tuple[Examples, Array]]:
        """Examples, and the batches in them after so many: int64 (batches, batch size)."""

    def advance(self, steps: int) -> None:
        """Counts training steps as done."""
        self._done += steps

    @abstractmethod
    def fault(self) -> str:
        """The first example with a value that is not finite, as text for an error."""


class Opened:
    """The data of a fit: a data set, or a stream whose first batch is read.

    Args:
        position: where a stream begins, from `Epochs.position`; None for the beginning.
        done: the epochs that are done, and the training steps of the next one.
        keeps_states: whether notes have the state of the source, if it has one.
        seconds: in which the first batch of a stream must be there.
    """

    def __init__(
        self,
        data: Dataset | Stream,
        seed: int | None,
        epochs: int,
        position: Position | None = None,
        done: tuple[int, int] = (0, 0),
        *,
        keeps_states: bool = False,
        seconds: float = math.inf,
    ) -> None:
        self.data, self.seed = data, seed
        self._seconds, self._ends_at = seconds, time.monotonic() + seconds
        # The epochs and the training steps that are read; None if their number is not known.
        self.to_read: tuple[int | None, int | None] = epochs, None
        self._reader: Reader | None = None
        if isinstance(data, Stream):
            each = data.steps_per_epoch
            if each is not None:
                self.to_read = None, max(0, each * (epochs - done[0]) - done[1])
            elif position is not None and position.epoch >= epochs:
                self.to_read = None, 0
            self._reader = Reader(
                data,
                position,
                seed=seed,
                resumes=position is not None,
                keeps_states=keeps_states,
                is_over=self.to_read[1] == 0,
            )

    @property
    def sample(self) -> Dataset:
        """The data set, or the first batch of the stream."""
        if isinstance(self.data, Dataset):
            return self.data
        sample = self.reader.sample_unless(lambda: time.monotonic() >= self._ends_at)
        if sample is None:
            raise DataError(
                "the stream has given no batch, and the time of the fit is over",
                facts=(
                    ("expected", f"a first batch within {self._seconds:g} seconds"),
                    ("found", "none"),
                ),
                where="fit",
                advice="Find out why the source waits, or give lm.callbacks.TimeLimit more time.",
            )
        return sample

    @property
    def reader(self) -> Reader:
        assert self._reader is not None
        return self._reader

    def batch_size(self, wanted: int) -> int:
        """The most examples of a training step."""
        if isinstance(self.data, Dataset):
            return min(wanted, len(self.data))
        return wanted if self.data.regroup else len(self.sample)

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()


def require_epochs(data: Dataset | Stream, epochs: int, role: str = "the training data") -> None:
    """Raises DataError if data that can be read once is needed for several epochs."""
    if isinstance(data, Stream) and data.is_one_shot and epochs > 1:
        raise DataError(
            f"{role} can be read once, and there are {epochs} epochs",
            facts=(
                ("expected", "a source that can be iterated again"),
                ("found", f"an iterator ({type(data.source).__name__})"),
            ),
            where="fit",
            advice="Give the generator function itself, without calling it, or a list of batches; "
            "or train for one epoch.",
        )


@contextmanager
def epochs_of(opened: Opened, training: Training, *, drop_last: bool) -> Generator[Epochs]:
    """The epochs of a training; their memory is released after the block."""
    if isinstance(opened.data, Dataset):
        with training.uploaded(opened.data) as resident:
            yield _OfDataset(opened.data, training, resident, opened.seed, drop_last)
        return
    epochs, steps = opened.to_read
    reader, sample = opened.reader, opened.sample
    with training.fed(reader, sample, drop_last=drop_last, epochs=epochs, steps=steps) as feed:
        known = whole_of(opened.data)
        size = training.batch_size
        each = None if known is None else _steps_of(len(known), size, drop_last=drop_last)
        yield _OfStream(opened.data, feed, each)


@final
class _OfDataset(Epochs):
    """The epochs of a data set."""

    def __init__(
        self,
        dataset: Dataset,
        training: Training,
        resident: Examples,
        seed: int | None,
        drop_last: bool,
    ) -> None:
        self._dataset, self._training, self._resident = dataset, training, resident
        self._seed, self._drop_last = seed, drop_last
        self.steps = _steps_of(len(dataset), training.batch_size, drop_last=drop_last)

    def groups(self, epoch: int, done: int, stopped: Stopped) -> Iterator[tuple[Examples, Array]]:
        left: list[Array] = []
        given = self._dataset, self._seed, epoch
        for rows in self._training.batches_of(*given, drop_last=self._drop_last):
            left += [rows[done:]] if done < len(rows) else []
            done = max(0, done - len(rows))
        for rows in self._training.in_order(self._resident, left):
            yield self._resident, rows

    def fault(self) -> str:
        return fault_of(self._dataset)


def fault_of(dataset: Dataset) -> str:
    """The first example with a value that is not finite, as text for an error or a warning."""
    arrays: list[tuple[str, Array]] = []
    for role, given in (("input", dataset.inputs), ("target", dataset.targets)):
        named = given if isinstance(given, Mapping) else dict(enumerate(as_tuple(given)))
        arrays += [(f"{role} {name!r}", array) for name, array in named.items()]
    features = () if dataset.coding is None else dataset.coding.features
    return _first_fault(arrays, columns=dataset.column_names or features)


def _steps_of(examples: int, size: int, *, drop_last: bool) -> int:
    return examples // size if drop_last else -(-examples // size)


@final
class _OfStream(Epochs):
    """The epochs of a stream."""

    def __init__(self, stream: Stream, feed: Feed, steps: int | None) -> None:
        self._stream, self._feed = stream, feed
        self.steps = steps if stream.steps_per_epoch is None else stream.steps_per_epoch

    def groups(self, epoch: int, done: int, stopped: Stopped) -> Iterator[tuple[Examples, Array]]:
        each = self._stream.steps_per_epoch
        self._done = done
        # After the last training step of an epoch the stream is at the begin of the next one.
        is_ended = each is None and done > 0 and self._feed.position.epoch > epoch
        if not is_ended:
            yield from self._feed.groups(None if each is None else each - done, stopped)
        if not stopped():
            self.steps = self._done

    def advance(self, steps: int) -> None:
        super().advance(steps)
        self._feed.advance(steps)

    @property
    def position(self) -> Position | None:
        return self._feed.position

    def fault(self) -> str:
        first, arrays = self._feed.examples()
        named = [(f"array {n} of the batch", one) for n, one in enumerate(arrays)]
        return _first_fault(named, first)


# The fault of data that has none.
ALL_FINITE = "all finite"


def _first_fault(
    arrays: list[tuple[str, Array]], first: int = 0, columns: Sequence[str] = ()
) -> str:
    """The first element that is not finite; the columns belong to the first array."""
    for name, array in arrays:
        broken = ~np.isfinite(array)
        if broken.any():
            example, *position = map(int, np.unravel_index(broken.argmax(), array.shape))
            where = f", element {position}" if position else ""
            if len(position) == 1:
                is_named = array is arrays[0][1] and array.shape[1] == len(columns)
                where = (
                    f", column {columns[position[0]]!r}" if is_named else f", column {position[0]}"
                )
            return f"{name} is not finite at example {first + example}{where}"
    return ALL_FINITE
