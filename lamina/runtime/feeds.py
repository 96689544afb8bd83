"""Feeds: the batches of a stream, where programs on an engine can read them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import final

import numpy as np

from lamina.base.shapes import Array
from lamina.data.background import Chunk, Plan, Reader
from lamina.data.positions import Position
from lamina.engines.engine import Engine
from lamina.runtime.streaming import Examples, Streamed, streamed, uploaded

# Whether to end early.
Stopped = Callable[[], bool]


@final
class Feed:
    """Reads a stream from a position on, and counts the training steps that are done."""

    def __init__(
        self, reader: Reader, plan: Plan, engine: Engine, inputs: Mapping[str, Array]
    ) -> None:
        self._reader, self._engine, self._names = reader, engine, tuple(inputs)
        self._batch = plan.batch_size
        # Memory on a device that does not read the host's.
        self._streamed: Streamed | None = None
        shared = engine.shared(np.zeros(64, np.uint8))
        if shared is None:
            self._streamed = streamed(engine, inputs, self._batch)
        else:
            shared.release()
        # A chunk with batches left at the end of an epoch, and the number of these batches.
        self._left: tuple[Chunk, int] | None = None
        # The chunks that were taken, and how many training steps of the first one are done.
        self._taken: deque[Chunk] = deque()
        self._done = 0
        reader.begin(plan)

    def groups(self, steps: int | None, stopped: Stopped) -> Iterator[tuple[Examples, Array]]:
        """Memories of examples, and the batches in them; without steps to the end of the epoch."""
        if self._streamed is None:
            for chunk, rows in self._chunks(steps, stopped):
                arrays = dict(zip(self._names, chunk.arrays, strict=True))
                with uploaded(self._engine, arrays, self._batch) as resident:
                    yield resident, rows
            return
        stream = self._streamed
        stream.begin_chunks(
            (dict(zip(self._names, chunk.arrays, strict=True)), rows)
            for chunk, rows in self._chunks(steps, stopped)
        )
        while (rows := stream.loaded) is not None:
            yield stream, rows

    def skip(self, steps: int, stopped: Stopped) -> None:
        """Reads so many batches, which are not used."""
        for _ in self._chunks(steps, stopped):
            pass

    def _chunks(self, steps: int | None, stopped: Stopped) -> Iterator[tuple[Chunk, Array]]:
        while steps is None or steps > 0:
            chunk, used = self._left or (self._reader.take(stopped), 0)
            self._left = None
            if chunk is None:
                return
            if not used:
                self._taken.append(chunk)
            for rows in _groups_after(chunk.groups, used):
                some = rows if steps is None else rows[:steps]
                used += len(some)
                if len(some):
                    yield chunk, some
                if steps is not None:
                    steps -= len(some)
            if used < _steps_of(chunk):
                self._left = chunk, used
                return
            self._reader.give_back(chunk)
            if chunk.ends and steps is None:
                return

    def advance(self, steps: int) -> None:
        """Counts training steps as done."""
        self._done += steps
        self._forget_done()

    def _forget_done(self) -> None:
        """Forgets the chunks whose training steps are all done, except the last one."""
        while len(self._taken) > 1 and self._done >= _steps_of(self._taken[0]):
            self._done -= _steps_of(self._taken.popleft())

    @property
    def position(self) -> Position:
        """After the training steps that are done."""
        self._forget_done()
        if not self._taken:
            return self._reader.start
        chunk, used, left = self._taken[0], 0, self._done
        for rows in chunk.groups:
            used += rows[:left].size
            left = max(0, left - len(rows))
        return chunk.position(used)

    def examples(self) -> tuple[int, Sequence[Array]]:
        """The number in the epoch of the first example of the chunk in use, and its examples.

        There are none before the first chunk.
        """
        self._forget_done()
        return (self._taken[0].first, self._taken[0].arrays) if self._taken else (0, ())

    def close(self) -> None:
        """Ends the reader, and releases memory on the device."""
        try:
            self._reader.close()
        finally:
            if self._streamed is not None:
                self._streamed.release()


def _steps_of(chunk: Chunk) -> int:
    return sum(map(len, chunk.groups))


def _groups_after(groups: Sequence[Array], steps: int) -> Iterator[Array]:
    for rows in groups:
        if steps < len(rows):
            yield rows[steps:]
        steps = max(0, steps - len(rows))
