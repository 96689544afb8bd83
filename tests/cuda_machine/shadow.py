"""Finds races: who accessed which bytes of a memory since the last barrier.

Two accesses of a byte are a race if at least one writes, and nothing orders them (PTX ISA, Memory
Consistency Model: the results of such programs are undefined):

- they are of different blocks;
- they are of threads of one block, and no barrier of the block is between them.

An access is known by its tag: the number of its block, the epoch of the block (how many barriers it
has passed), and the thread. Accesses are collected and checked together when a barrier is passed.
If nobody wrote since the last barrier, there is nothing to check.
"""

from dataclasses import dataclass

import numpy as np

# Bits of a tag, from the lowest: thread 10, "several threads" 1, epoch of the block 32, block 20.
_THREADS = 0x3FF
_SEVERAL = 1 << 10
_EPOCH = 11
_BLOCK = 43
MOST_BLOCKS = (1 << 20) - 2
# Accesses are checked at the latest when so many have been collected.
_MOST = 1 << 22
# Accesses are forgotten for so many granules at a time, as a power of two.
_PAGE = 9


@dataclass(frozen=True)
class Access:
    """One access of a race: the thread is None if there are several."""

    block: int
    thread: int | None
    line: int


@dataclass(frozen=True)
class _Accesses:
    positions: np.ndarray
    tags: np.ndarray
    line: int
    writes: bool


def tags_of(blocks, epochs, threads):
    """The tags of accesses."""
    return (blocks + 1 << _BLOCK) | (epochs << _EPOCH) | threads


def _access(tag, line):
    block = (tag >> _BLOCK) - 1
    several = bool(tag & _SEVERAL)
    return Access(block, None if several else tag & _THREADS, line)


def _unordered(one, other):
    """Whether two accesses, one of them a write, are a race; a tag of zero is no access."""
    differ = one ^ other
    return (differ > 0) & (other != 0) & ((differ >> _EPOCH == 0) | (differ >> _BLOCK != 0))


def _joined(before, tags):
    """Tags that stand for what was known before too, if that is of this epoch of the block."""
    differ = before ^ tags
    several = (differ > 0) & (differ >> _EPOCH == 0) & (before != 0)
    return tags | np.where(several, _SEVERAL, 0)


class Shadow:
    """The accesses of a memory of `size` bytes.

    Args:
        granule: bytes that are always accessed together: the size of the smallest access.
        across: whether accesses of different blocks may meet, as they do in global memory.
    """

    def __init__(self, size, granule, *, across):
        self._shift = granule.bit_length() - 1
        count = (size >> self._shift) + 1
        self._writers = np.zeros(count, np.int64)
        self._writer_lines = np.zeros(count, np.int32)
        self._readers = np.zeros(count, np.int64)
        self._reader_lines = np.zeros(count, np.int32)
        # A reader of another block than the reader in `_readers`.
        self._others = np.zeros(count if across else 0, np.int64)
        self._across = across
        # Pages of the arrays above that are not zero any more.
        self._touched = np.zeros((count >> _PAGE) + 1, np.bool_)
        self._accesses = []
        self._collected = 0
        self._written = False

    def clear(self):
        """Forgets all accesses. New arrays would take longer: the system clears large pages."""
        pages = np.flatnonzero(self._touched)
        for run in np.split(pages, np.flatnonzero(np.diff(pages) > 1) + 1) if len(pages) else ():
            cleared = slice(int(run[0]) << _PAGE, int(run[-1]) + 1 << _PAGE)
            for tags in (self._writers, self._readers, self._others):
                tags[cleared] = 0
        self._touched[pages] = False
        self._accesses, self._collected, self._written = [], 0, False

    def _touch(self, positions):
        if len(positions):
            first, last = int(positions.min()) >> _PAGE, int(positions.max()) >> _PAGE
            self._touched[first : last + 1] = True

    def access(self, offsets, size, tags, line, *, writes):
        """Collects accesses of `size` bytes at offsets; a race, if this made it check."""
        granules = max(1, size >> self._shift)
        positions = offsets >> self._shift
        if granules > 1:
            positions = (positions[:, None] + np.arange(granules)).reshape(-1)
            tags = np.repeat(tags, granules)
        self._accesses.append(_Accesses(positions, tags, line, writes))
        self._collected += len(positions)
        self._written |= writes
        return self.check(keep=True) if self._collected > _MOST else None

    def check(self, *, keep):
        """Checks what was collected.

        Args:
            keep: whether accesses of the present epochs, or of other blocks, may follow. If not,
                reads are forgotten.
        """
        accesses, self._accesses, self._collected = self._accesses, [], 0
        if not keep and not self._written:
            return None
        race = None
        # All writes first.
        for access in sorted(accesses, key=lambda access: not access.writes):
            race = race or (self._write(access) if access.writes else self._read(access, keep))
        if not keep:
            self._written = False
        return race

    def _write(self, access):
        at, tags = access.positions, access.tags
        self._touch(at)
        for earlier, lines in (
            (self._writers, self._writer_lines),
            (self._readers, self._reader_lines),
            *([(self._others, self._reader_lines)] if self._across else []),
        ):
            if race := self._conflict(access, earlier, lines):
                return race
        self._writers[at] = tags
        self._writer_lines[at] = access.line
        return self._conflict(access, self._writers, self._writer_lines)

    def _read(self, access, keep):
        at, tags = access.positions, access.tags
        if self._written and (race := self._conflict(access, self._writers, self._writer_lines)):
            return race
        if not keep:
            return None
        self._touch(at)
        before = self._readers[at]
        self._readers[at] = tags
        now = self._readers[at]
        for earlier in (before, now):
            joined = _joined(earlier, tags)
            changed = joined != tags
            if changed.any():
                self._readers[at[changed]] = joined[changed]
        if self._across:
            for earlier, kept in ((before, before), (now, tags)):
                other = (earlier != 0) & (earlier >> _BLOCK != tags >> _BLOCK)
                self._others[at[other]] = kept[other]
        self._reader_lines[at] = access.line
        return None

    def _conflict(self, access, earlier, lines):
        others = earlier[access.positions]
        bad = _unordered(access.tags, others)
        if not bad.any():
            return None
        number = int(bad.argmax())
        at = int(access.positions[number])
        present = _access(int(access.tags[number]), access.line)
        return present, _access(int(others[number]), int(lines[at])), at << self._shift
