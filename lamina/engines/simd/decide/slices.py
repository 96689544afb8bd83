"""Splitting kernels for the threads: in a schedule, and for batches when they arrive."""

from __future__ import annotations

# A slice costs at least SLICE_CYCLES. Slices of STEALABLE_SLICE_CYCLES and more are split into
# chunks of about CHUNK_CYCLES, so that other threads can steal some.
SLICE_CYCLES, STEALABLE_SLICE_CYCLES, CHUNK_CYCLES = 1500.0, 50_000.0, 10_000.0

# The most chunks that the kernels of a phase may have in a slot: the limit of a word of claims.
MOST_CHUNKS = (1 << 24) - 1


def slices(items: int, cycles: float, threads: int) -> tuple[int, int]:
    """The number of slices of a kernel, and the number of work items in a chunk.

    All of its work items together are estimated to cost `cycles`.
    """
    slice_count = max(1, min(threads, items, int(cycles / SLICE_CYCLES)))
    chunk_items = -(-items // slice_count)
    if cycles >= slice_count * STEALABLE_SLICE_CYCLES:
        chunk_items = max(1, int(items * CHUNK_CYCLES / cycles))
    return slice_count, max(chunk_items, -(-items // MOST_CHUNKS))
