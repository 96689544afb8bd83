"""The background reader of a stream: a thread that fills chunks of examples while others are used.

The thread alone touches the source: it opens it, reads it, asks for its state and closes it. Its
errors are raised where a chunk is taken.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from typing import final

import numpy as np

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, size_of
from lamina.data.dataset import Dataset
from lamina.data.positions import Position, WindowOrder
from lamina.data.reading import Convert, EpochBatches, EpochExamples
from lamina.data.stream import Stream

# The most bytes of a chunk of an unshuffled stream, unless a batch is larger. Larger chunks would
# not be read faster.
_CHUNK_BYTES = 4 << 20
_LEAST_SLOTS, _MOST_SLOTS = 2, 16
_ALIGNMENT_BYTES = 64
# How often a thread that waits looks whether it should go on.
_PAUSE_SECONDS = 0.1
# How long `close` waits for a source that is reading. A fit has two at most: together 5 s.
_PATIENCE_SECONDS = 2.5


@frozen_dataclass
class Plan:
    """What a reader makes of the batches of a source.

    Attributes:
        epochs: the number of epochs of the whole fit; None to read without an end.
        steps: the batches after which the reader ends, over all epochs; None if that is not known.
        examples: the examples after which an epoch ends; None for all examples of the source.
    """

    convert: Convert
    batch_size: int
    drop_last: bool = False
    epochs: int | None = 1
    steps: int | None = None
    examples: int | None = None


@frozen_dataclass(eq=False)
class Chunk:
    """Examples in the order in which they were read, and the batches made of them.

    Attributes:
        groups: the examples of the batches: int64 (batches, batch size) for each batch size.
        first: the number in the epoch of its first batch's first example.
        starts: the blocks from which it can be read again: the number in the epoch of the first
            example, and the position.
    """

    arrays: tuple[Array, ...]
    groups: tuple[Array, ...]
    slot: int
    first: int
    starts: tuple[tuple[int, Position], ...]
    ends: bool

    def position(self, used: int) -> Position:
        """Where the stream is continued after the first `used` examples of the batches."""
        number = self.first + used
        if self.ends and used == sum(rows.size for rows in self.groups):
            return Position(self.starts[0][1].epoch + 1)
        before = (start for start in self.starts if start[0] <= number)
        start, position = max(before, key=itemgetter(0))
        return replace(position, used=number - start + position.used)


@final
class Reader:
    """Reads a stream in a thread of its own.

    Args:
        resumes: whether another process has read it up to the position.
        keeps_states: whether positions hold the state of the source, if it has one.
        is_over: whether nothing is read after the position. Then the sample is of an epoch that was
            read before: the source may have no further one.
    """

    def __init__(
        self,
        stream: Stream,
        position: Position | None = None,
        *,
        seed: int | None = None,
        resumes: bool = False,
        keeps_states: bool = False,
        is_over: bool = False,
    ) -> None:
        self.seed = seed if seed is None or stream.seed is None else stream.seed
        self.stream, self.start = stream, position or Position()
        self.buffer_bytes = stream.buffer_bytes
        self._resumes = resumes
        self._keeps_states, self._is_over = keeps_states, is_over
        self._changed = threading.Condition()
        self._sample: Dataset | None = None
        self._plan: Plan | None = None
        self._ready: deque[Chunk] = deque()
        # Makes a chunk of what is read while the source is asked for more.
        self._offer: Callable[[], Chunk] | None = None
        self._is_waited_for = False
        self.slots: list[list[Array]] = []
        self._free: list[int] = []
        self._most_slots = _LEAST_SLOTS
        self._error: BaseException | None = None
        self._done = self._closed = False
        self._thread = threading.Thread(target=self._run, name="lamina reader", daemon=True)
        self._thread.start()

    # For the caller's thread ----------------------------------------------------------------------

    def sample(self) -> Dataset:
        """The first batch of the source."""
        sample = self.sample_unless(lambda: False)
        assert sample is not None
        return sample

    def sample_unless(self, stopped: Callable[[], bool]) -> Dataset | None:
        """The first batch of the source; None as soon as `stopped` returns True."""
        with self._changed:
            while self._sample is None and not self._done:
                if stopped():
                    return None
                self._changed.wait(_PAUSE_SECONDS)
            if self._sample is None:
                self._raise()
            return self._sample

    def begin(self, plan: Plan) -> None:
        with self._changed:
            self._plan = plan
            self._changed.notify_all()

    def take(self, stopped: Callable[[], bool] = lambda: False) -> Chunk | None:
        """The next chunk; None at the end, or as soon as `stopped` returns True."""
        with self._changed:
            while not self._ready:
                if self._offer is not None:
                    make, self._offer = self._offer, None
                    return make()
                if self._error is not None:
                    self._raise()
                if self._done or stopped():
                    return None
                self._is_waited_for = True
                self._changed.wait(_PAUSE_SECONDS)
                self._is_waited_for = False
            return self._ready.popleft()

    def give_back(self, chunk: Chunk) -> None:
        """Lets the thread fill the memory of a chunk again."""
        with self._changed:
            self._free.append(chunk.slot)
            self._changed.notify_all()

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for slot in self.slots for array in slot)

    def close(self) -> None:
        """Ends the thread, which closes the source.

        It does not wait longer than a few seconds for a source that is reading, and only once.
        """
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(_PATIENCE_SECONDS)

    def _raise(self) -> None:
        assert self._error is not None
        error, self._error = self._error, None
        self._done = True
        raise error

    # For the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._read()
        except _Closed:
            pass
        # Broad on purpose: whatever the source raises is raised in the caller's thread.
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._done = True
                self._changed.notify_all()

    def _read(self) -> None:
        position, plan, left = self.start, None, None
        if self._is_over:
            position, self._resumes = Position(max(0, position.epoch - 1)), False
        while plan is None or (left != 0 and (plan.epochs is None or position.epoch < plan.epochs)):
            how = {"resumes": self._resumes, "keeps_state": self._keeps_states}
            batches = EpochBatches(self.stream.source, position, self.seed, **how)
            try:
                first = batches.first()
                if plan is None:
                    plan = self._plan_for(first)
                    left = plan.steps
                if left != 0:
                    left = _Blocks(self, batches, first, plan, left).read()
            finally:
                batches.close()
            position, self._resumes = Position(position.epoch + 1), False

    def _plan_for(self, sample: Dataset) -> Plan:
        """Gives the first batch to the caller, and waits for the plan."""
        with self._changed:
            self._sample = sample
            self._changed.notify_all()
            while self._plan is None:
                self._require_open()
                self._changed.wait(_PAUSE_SECONDS)
            return self._plan

    def slot(self, like: EpochExamples, count: int) -> int:
        """The number of a slot that is free, with room for so many examples."""
        most = self.buffer_bytes // max(1, like.each_bytes * count)
        self._most_slots = min(max(_LEAST_SLOTS, most), _MOST_SLOTS)
        with self._changed:
            while not self._free and len(self.slots) >= self._most_slots:
                self._require_open()
                self._changed.wait(_PAUSE_SECONDS)
            self._require_open()
            number = self._free.pop() if self._free else len(self.slots)
            if number == len(self.slots):
                self.slots.append([])
        slot = self.slots[number]
        if not slot or len(slot[0]) < count:
            slot[:] = [_room(count, array) for array in like.arrays]
        return number

    def filled(self, slot: int, count: int) -> tuple[Array, ...]:
        """The first examples in the memory of a slot."""
        return tuple(array[:count] for array in self.slots[slot])

    def give(self, chunk: Chunk) -> None:
        """Passes a chunk to the caller."""
        with self._changed:
            self._require_open()
            self._ready.append(chunk)
            self._changed.notify_all()

    def offer(self, make: Callable[[], Chunk]) -> bool:
        """Lets the caller take what is read, until `withdraw`; returns whether it has waited."""
        with self._changed:
            self._require_open()
            if self._is_waited_for and not self._ready:
                self._ready.append(make())
                self._changed.notify_all()
                return True
            self._offer = make
            return False

    def withdraw(self) -> bool:
        """Ends the offer; returns whether the caller took the chunk."""
        with self._changed:
            offer, self._offer = self._offer, None
            return offer is None

    def _require_open(self) -> None:
        if self._closed:
            raise _Closed


class _Closed(Exception):
    """The reader was closed."""


def _room(count: int, like: Array) -> Array:
    """Memory for examples, from a cache line on."""
    shape = (count, *like.shape[1:])
    size = size_of(shape) * like.dtype.itemsize
    block = np.empty(size + _ALIGNMENT_BYTES, np.uint8)
    start = -block.ctypes.data % _ALIGNMENT_BYTES
    return block[start : start + size].view(like.dtype).reshape(shape)


@final
class _Blocks:
    """Makes chunks of an epoch: blocks of examples, each in an order of its own.

    The examples that do not fill a batch are moved to the next chunk. With a window, a block is
    what the window's rule says. Without one it has the examples that are read until the caller
    waits for them, at least a batch, and at most a chunk: the batches are the same. Batches that
    are taken as they are (`regroups` is False) are a block each.
    """

    def __init__(
        self, reader: Reader, batches: EpochBatches, first: Dataset, plan: Plan, steps: int | None
    ) -> None:
        self._reader, self._plan, self._steps = reader, plan, steps
        position = batches.position
        self._epoch, self._block = position.epoch, position.block
        seed, self._regroups = reader.seed, reader.stream.regroup
        window = 0 if seed is None else reader.stream.window
        self._order = WindowOrder(window, seed or 0, position.epoch) if window else None
        # The examples of the first block that were used before. Without a window, they are the
        # first ones after the position.
        self._used, before = (position.used, 0) if window else (0, position.used)
        skip = position.examples + before
        self._examples = EpochExamples(batches, first, plan.convert, skip, plan.examples)
        self._carried: list[Array] = []
        # The number in the epoch of the next example, after those before the first block.
        self._number = 0
        self._starts: deque[tuple[int, Position]] = deque()

    def read(self) -> int | None:
        """Reads the epoch to its end; returns how many of the batches are left."""
        ends = False
        while not ends and self._steps != 0:
            ends = self._read_chunk()
        return self._steps

    def _read_chunk(self) -> bool:
        """Passes a chunk to the caller; returns whether it ends the epoch."""
        examples, carried = self._examples, self._carried
        count = len(carried[0]) if carried else 0
        examples.left()
        length = self._length(count)
        slot = self._reader.slot(examples, count + length)
        target = self._reader.slots[slot]
        for array, values in zip(target, carried, strict=False):
            array[:count] = values
        position = examples.position(self._epoch, self._block, self._used)
        self._starts.append((self._number + count, position))
        while len(self._starts) > 1 and self._starts[1][0] <= self._number:
            self._starts.popleft()
        added, taken = self._fill(slot, count, length)
        # A batch as it is has no examples only at the end.
        ends = (added < length or not length) and not taken
        chunk, rest = self._chunk(slot, count, added, ends=ends)
        self._carried = [array[rest] for array in target] if rest.size and not ends else []
        if not taken:
            self._reader.give(chunk)
        self._number += sum(rows.size for rows in chunk.groups)
        if self._steps is not None:
            self._steps = max(0, self._steps - sum(map(len, chunk.groups)))
        self._block, self._used = self._block + 1, 0
        return ends

    def _length(self, carried: int) -> int:
        if self._order is not None:
            return self._order.length(self._block)
        if not self._regroups:
            return self._examples.left()
        batch = self._plan.batch_size
        most = min(_CHUNK_BYTES, self._reader.buffer_bytes // _LEAST_SLOTS)
        batches = max(1, most // max(1, self._examples.each_bytes * batch))
        if self._steps is not None:
            batches = min(batches, self._steps)
        return batches * batch - carried

    def _fill(self, slot: int, carried: int, length: int) -> tuple[int, bool]:
        """Copies the next examples; returns their number, and whether the caller took the chunk."""
        added, target = 0, self._reader.slots[slot]
        while added < length:
            has_batch = self._order is None and carried + added >= self._plan.batch_size
            if has_batch and self._examples.must_read and self._is_taken(slot, carried, added):
                return added, True
            some = self._examples.copy(target, carried + added, length - added)
            if not some:
                break
            added += some
        return added, False

    def _is_taken(self, slot: int, carried: int, added: int) -> bool:
        """Asks the source for more; returns whether the caller took the chunk as it is."""

        def make() -> Chunk:
            return self._chunk(slot, carried, added, ends=False)[0]

        if self._reader.offer(make):
            return True
        try:
            self._examples.left()
        except BaseException:
            # Whether the caller waits does not decide which batches it gets before an error.
            if not self._reader.withdraw():
                self._reader.give(make())
            raise
        return self._reader.withdraw()

    def _chunk(self, slot: int, carried: int, added: int, *, ends: bool) -> tuple[Chunk, Array]:
        """A chunk of a slot, and the examples that are in none of its batches."""
        before = np.arange(carried, dtype=np.int64)
        size = self._plan.batch_size if self._regroups else max(added, 1)
        if self._order is None or not added:
            order = np.arange(added, dtype=np.int64)
        else:
            order = self._order.permutation(self._block, added)
        rows = np.concatenate([before, carried + order[self._used :]])
        batched = len(rows) // size * size
        groups, rest = [rows[:batched].reshape(-1, size)] if batched else [], rows[batched:]
        if ends and rest.size and not self._plan.drop_last:
            groups.append(rest.reshape(1, -1))
        if not self._regroups and self._plan.drop_last and added < self._plan.batch_size:
            groups = []
        arrays = self._reader.filled(slot, carried + added)
        starts = tuple(self._starts)
        return Chunk(arrays, tuple(groups), slot, self._number, starts, ends), rest
