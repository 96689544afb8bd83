"""Reads a source in one epoch: its batches, and their examples one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, final

from lamina.base.shapes import Array, size_of
from lamina.data.dataset import Dataset
from lamina.data.positions import Position, is_stateful, plain_state, saved_state
from lamina.data.stream import as_batch, depends_on_epochs_before, is_one_example, opened
from lamina.errors import DataError, LaminaError

# Converts a batch of the source to the arrays that the program reads.
Convert = Callable[[Dataset], Sequence[Array]]


@final
class EpochExamples:
    """The examples of an epoch one after the other, whatever the batches of the source.

    Args:
        skip: the number of examples that are omitted at the beginning.
        most: the examples after which the epoch ends; None for all of the source.
    """

    def __init__(
        self, batches: EpochBatches, first: Dataset, convert: Convert, skip: int, most: int | None
    ) -> None:
        self._batches, self._convert, self._most = batches, convert, most
        self.arrays: Sequence[Array] = ()
        self._used, self._state = skip, batches.state
        self._load(first)
        self.left()

    def _load(self, batch: Dataset | None) -> bool:
        """Takes the next batch; False at the end."""
        self._state = self._batches.state
        if batch is None:
            self.arrays = [array[:0] for array in self.arrays]
            return False
        try:
            arrays = self._convert(batch)
        except LaminaError as error:
            number = f"batch {self._batches.read - 1} of the stream"
            error.where = f"{number}, {error.where}" if error.where else number
            raise error from None
        for before, array in zip(self.arrays, arrays, strict=False):
            _require_like(before, array, self._batches.read - 1)
        self.arrays = arrays
        return True

    def left(self) -> int:
        """The examples of this batch, or else of the next, that are not used yet; 0 at the end."""
        if self._most == 0:
            return 0
        while self.arrays and len(self.arrays[0]) and self._used >= len(self.arrays[0]):
            self._used -= len(self.arrays[0])
            if not self._load(self._batches.next()):
                break
        left = len(self.arrays[0]) - self._used if len(self.arrays[0]) else 0
        return left if self._most is None else min(left, self._most)

    @property
    def each_bytes(self) -> int:
        return sum(size_of(array.shape[1:]) * array.dtype.itemsize for array in self.arrays)

    @property
    def must_read(self) -> bool:
        """Whether the next example has to be read from the source."""
        return self._most != 0 and 0 < len(self.arrays[0]) <= self._used

    def position(self, epoch: int, block: int, used: int = 0) -> Position:
        read = self._batches.read - (1 if len(self.arrays[0]) else 0)
        return Position(epoch, read, self._used, block, used, self._state)

    def copy(self, targets: Sequence[Array], start: int, count: int) -> int:
        """Copies at most `count` examples of the present batch; returns their number."""
        some = min(self.left(), count)
        for target, source in zip(targets, self.arrays, strict=True):
            _require_like(target, source, self._batches.read - 1)
            target[start : start + some] = source[self._used : self._used + some]
        self._used += some
        if self._most is not None:
            self._most -= some
        return some


def _require_like(before: Array, array: Array, number: int) -> None:
    if before.shape[1:] != array.shape[1:] or before.dtype != array.dtype:
        expected, batch = (f"{a.dtype}, each example {[*a.shape[1:]]}" for a in (before, array))
        raise DataError(
            "the batches of the stream differ",
            facts=(("expected", expected), ("found", batch)),
            where=f"batch {number} of the stream",
            advice="Give all batches one dtype and examples of one shape.",
        )


@final
class EpochBatches:
    """The batches of a source in one epoch, after a position; `state` precedes the next batch."""

    def __init__(
        self, source: Any, position: Position, seed: int | None, *, resumes: bool, keeps_state: bool
    ) -> None:
        self.position, self._source, self._keeps_state = position, source, keeps_state
        self.read = 0
        stateful = position.state is not None
        if stateful and is_stateful(source):
            source.load_state_dict(plain_state(position.state))
        elif resumes and depends_on_epochs_before(source):
            # A source that draws random numbers draws the next ones after these epochs.
            for epoch in range(position.epoch):
                iterator, _ = opened(source, epoch, 0, seed)
                deque(iterator, maxlen=0)
                _close(iterator)
        self._iterator, omitted = opened(source, position.epoch, position.batches, seed)
        if stateful and not is_stateful(source):
            self._iterator.set_state(plain_state(position.state))
        if stateful or omitted:
            self.read = position.batches
        while self.read < position.batches and self._next() is not _END:
            pass
        self.state = self._present_state()

    def _present_state(self) -> Any:
        return saved_state(self._source, self._iterator) if self._keeps_state else None

    def _next(self) -> Any:
        batch = next(self._iterator, _END)
        self.read += batch is not _END
        return batch

    def first(self) -> Dataset:
        """The first batch."""
        first = self.next()
        if first is None:
            raise DataError(
                "the stream has no batches",
                facts=(("source", type(self._source).__name__),),
                where="Stream",
                advice="An iterator can be read once: give a generator function, or a list."
                if self.read == 0
                else "The source has fewer batches than when the fit was interrupted.",
            )
        return first

    def next(self) -> Dataset | None:
        """The next batch; None at the end."""
        self.state = self._present_state()
        batch = self._next()
        if batch is _END:
            return None
        try:
            return as_batch(batch).dense()
        except LaminaError as error:
            if is_one_example(batch):
                error.advice = _NOT_BATCHES
            raise error.at(f"batch {self.read - 1} of the stream") from None

    def close(self) -> None:
        """Closes the source, so that its last lines run in this thread."""
        _close(self._iterator)


_END: Any = object()
_NOT_BATCHES = (
    "A source gives batches, and this is a single example: give several, stacked along a first "
    "axis; (x[None], y[None]) is a batch of one."
)


def _close(iterator: Any) -> None:
    close = getattr(iterator, "close", None)
    # An error while closing must not hide the one that ended the reading.
    with suppress(Exception):
        if close is not None:
            close()
