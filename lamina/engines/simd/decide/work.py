"""The work of a kernel, and how workers share it."""

from __future__ import annotations

from lamina.base.records import frozen_dataclass

# A slice costs at least SLICE_CYCLES. Slices of STEALABLE_SLICE_CYCLES and more are split into
# chunks of about CHUNK_CYCLES, so that other threads can steal some.
SLICE_CYCLES, STEALABLE_SLICE_CYCLES, CHUNK_CYCLES = 1500.0, 50_000.0, 10_000.0

# The most chunks that the kernels of a phase may have in a slot: the limit of a word of claims.
MOST_CHUNKS = (1 << 24) - 1


@frozen_dataclass
class Work:
    """The work of a kernel.

    Attributes:
        items: the number of work items.
        cycles: a rough estimate for all work items together.
    """

    items: int
    cycles: float

    def __str__(self) -> str:
        return f"{counted(self.items, 'work item')}, {self.cycles:,.0f} cycles"


@frozen_dataclass
class Slices:
    """How workers share a kernel.

    Attributes:
        work: the work items of the kernel.
        count: the number of slices; each worker begins with a different slice.
        at_once: the work items of a chunk, which a worker claims at once.
    """

    work: Work
    count: int
    at_once: int

    def __str__(self) -> str:
        return f"{counted(self.count, 'slice')}, {counted(self.at_once, 'work item')} at once"


def slices(items: int, cycles: float, threads: int) -> tuple[int, int]:
    """The number of slices of a kernel, and the number of work items in a chunk.

    All of its work items together are estimated to cost `cycles`.
    """
    slice_count = max(1, min(threads, items, int(cycles / SLICE_CYCLES)))
    chunk_items = -(-items // slice_count)
    if cycles >= slice_count * STEALABLE_SLICE_CYCLES:
        chunk_items = max(1, int(items * CHUNK_CYCLES / cycles))
    return slice_count, max(chunk_items, -(-items // MOST_CHUNKS))


def sliced(work: Work, workers: int) -> Slices:
    """How `workers` workers share a kernel."""
    return Slices(work, *slices(work.items, work.cycles, workers))


def counted(number: int, noun: str) -> str:
    """A number and its noun, in the plural if the number is not 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
