"""Into what kernels are cut for the threads: decided beforehand, and for batches when they come."""

from __future__ import annotations

# A slice is worth so many cycles. Slices of more are cut into chunks of about so many, so that
# other threads can help.
CYCLES_WORTH_SHARING, CYCLES_WORTH_STEALING, CYCLES_AT_ONCE = 1500.0, 50_000.0, 10_000.0

# How many chunks the kernels of a phase may have in a slot: as many as a word of claims can count.
MOST_CHUNKS = (1 << 24) - 1


def slices(units: int, cycles: float, threads: int) -> tuple[int, int]:
    """Into how many slices a kernel is cut, and of how many units a chunk consists.

    Args:
        units: how many the kernel has.
        cycles: what all of them cost, roughly.
        threads: how many there are.
    """
    share = max(1, min(threads, units, int(cycles / CYCLES_WORTH_SHARING)))
    at_once = -(-units // share)
    if cycles >= share * CYCLES_WORTH_STEALING:
        at_once = max(1, int(units * CYCLES_AT_ONCE / cycles))
    return share, max(at_once, -(-units // MOST_CHUNKS))
