"""Finds races: who accessed which bytes of a memory since the last barrier.

Two accesses of a byte are a race if at least one writes, at least one is not atomic, and no barrier
orders them: they are of different blocks, or of different threads of a block between barriers (PTX
ISA, Memory Consistency Model: such programs have undefined results).

An access is known by its tag: the number of its block, the epoch of the block (how many barriers it
has passed), the thread, and whether it is atomic. Accesses are collected and checked together when
a barrier is passed. If nobody wrote since the last barrier, there is nothing to check.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

# Bits of a tag: atomic 1, thread 10 and one more for "many threads", epoch 21, block 31.
_THREAD_BITS: Final = 12
_BLOCK_BITS: Final = 32
_MANY: Final = (1 << _THREAD_BITS - 1) - 1
_MANY_BLOCKS: Final = (1 << 63 - _BLOCK_BITS) - 1
# Accesses are checked at the latest when so many have been collected.
_MOST: Final = 1 << 22


@dataclass(frozen=True)
class Race:
    """Two accesses that no barrier orders, each a tag and the line of its instruction."""

    one: tuple[int, int]
    other: tuple[int, int]
    position: int


@dataclass(frozen=True)
class _Access:
    positions: Integers
    tags: Integers
    line: int
    writes: bool


def tags_of(blocks: Integers, epochs: Integers, threads: Integers) -> Integers:
    """The tags of accesses that are not atomic."""
    return (blocks + 1 << _BLOCK_BITS) | (epochs << _THREAD_BITS) | (threads << 1)


def block_of(tag: int) -> int:
    """The number of the block of a tag."""
    return (tag >> _BLOCK_BITS) - 1


def thread_of(tag: int) -> int:
    """The number of the thread of a tag within its block."""
    return (tag & (1 << _THREAD_BITS) - 1) >> 1


def _unordered(one: Integers, other: Integers) -> npt.NDArray[np.bool_]:
    """Whether two accesses, of which one writes, are a race; a tag of zero is no access."""
    differ = one ^ other
    apart = (differ >> 1 != 0) & (other != 0)
    close = (differ >> _THREAD_BITS == 0) | (differ >> _BLOCK_BITS != 0)
    return apart & close & ((one & other & 1) == 0)


class Shadow:
    """The accesses of a memory.

    Args:
        size: bytes of the memory.
        granule: bytes that are always accessed together: the size of the smallest access.
        across: whether accesses of different blocks may meet, as they do in global memory.
    """

    def __init__(self, size: int, granule: int, *, across: bool) -> None:
        self._shift = granule.bit_length() - 1
        count = (size >> self._shift) + 1
        self._writers: Integers = np.zeros(count, np.int64)
        self._writer_lines: npt.NDArray[np.int32] = np.zeros(count, np.int32)
        self._readers: Integers = np.zeros(count, np.int64)
        self._reader_lines: npt.NDArray[np.int32] = np.zeros(count, np.int32)
        # A reader of another block than that of `_readers`.
        self._others: Integers = np.zeros(count if across else 0, np.int64)
        self._across = across
        self._accesses: list[_Access] = []
        self._collected = 0
        self._written = False

    def access(
        self, offsets: Integers, size: int, tags: Integers, line: int, *, writes: bool, atomic: bool
    ) -> Race | None:
        """Collects accesses of `size` bytes at offsets; a race, if this made it check."""
        granules = max(1, size >> self._shift)
        positions = offsets >> self._shift
        if granules > 1:
            positions = (positions[:, None] + np.arange(granules)).reshape(-1)
            tags = np.repeat(tags, granules)
        if atomic:
            tags = tags | 1
        self._accesses.append(_Access(positions, tags, line, writes))
        self._collected += len(positions)
        self._written |= writes
        return self.check(keep=True) if self._collected > _MOST else None

    def check(self, *, keep: bool) -> Race | None:
        """Checks what was collected.

        Args:
            keep: whether accesses of the present epochs, or of other blocks, may follow. If not,
                reads are forgotten.
        """
        accesses, self._accesses, self._collected = self._accesses, [], 0
        keep = keep or self._across
        if not keep and not self._written:
            return None
        found = None
        for one in accesses:
            if one.writes:
                found = found or self._write(one)
        for one in accesses:
            if not one.writes:
                found = found or self._read(one, keep)
        if not keep:
            self._written = False
        return found

    def _write(self, access: _Access) -> Race | None:
        at, tags = access.positions, access.tags
        for known, lines in (
            (self._writers, self._writer_lines),
            (self._readers, self._reader_lines),
            *([(self._others, self._reader_lines)] if self._across else []),
        ):
            if found := self._conflict(access, known, lines):
                return found
        before = self._writers[at]
        self._writers[at] = tags
        self._writer_lines[at] = access.line
        if found := self._conflict(access, self._writers, self._writer_lines):
            return found
        # What is left are atomic accesses of several threads: all of them may race with others.
        for known in (before, self._writers[at]):
            differ = known ^ tags
            several = (known != 0) & (differ != 0)
            if several.any():
                blocks = several & (differ >> _BLOCK_BITS != 0)
                several &= differ >> _THREAD_BITS == 0
                self._writers[at[several]] = tags[several] | (_MANY << 1)
                self._writers[at[blocks]] = tags[blocks] | (_MANY_BLOCKS << _BLOCK_BITS)
        return None

    def _read(self, access: _Access, keep: bool) -> Race | None:
        at, tags = access.positions, access.tags
        if self._written and (found := self._conflict(access, self._writers, self._writer_lines)):
            return found
        if not keep:
            return None
        before = self._readers[at]
        self._readers[at] = tags
        # Threads of one block in one epoch: they are many readers.
        now = self._readers[at]
        many = (now != tags) | ((before != tags) & (before >> _THREAD_BITS == tags >> _THREAD_BITS))
        if many.any():
            self._readers[at[many]] = tags[many] | (_MANY << 1)
        if self._across:
            other = (before != 0) & (before >> _BLOCK_BITS != tags >> _BLOCK_BITS)
            self._others[at[other]] = before[other]
            lost = now >> _BLOCK_BITS != tags >> _BLOCK_BITS
            self._others[at[lost]] = tags[lost]
        self._reader_lines[at] = access.line
        return None

    def _conflict(
        self, access: _Access, known: Integers, lines: npt.NDArray[np.int32]
    ) -> Race | None:
        others = known[access.positions]
        bad = _unordered(access.tags, others)
        if not bad.any():
            return None
        number = int(bad.argmax())
        at = int(access.positions[number])
        return Race(
            (int(access.tags[number]), access.line),
            (int(others[number]), int(lines[at])),
            at << self._shift,
        )
