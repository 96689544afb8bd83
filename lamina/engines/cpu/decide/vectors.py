"""How many lanes vectors have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lamina.engines.cpu.processor import Processor
from lamina.program.scalar import Apply, Scalar, postorder
from lamina.program.target import EXPENSIVE

# Vectors are this many registers wide where expressions are short: that hides latencies.
REGISTERS_AT_ONCE = 4
SHORT_EXPRESSION = 12


def lanes_for(values: Sequence[Scalar], processor: Processor) -> int:
    """How many of the widest floats that are computed (or integers, without any) fill a vector."""
    floats = [value.dtype.itemsize for value in values if value.dtype.is_float]
    widest = max(floats or [value.dtype.itemsize for value in values])
    return processor.vector_bytes // max(widest, 4)


def widened(values: Iterable[Scalar], lanes: int, extent: int) -> int:
    """Several registers at once, where there are points for them and expressions are short."""
    if not are_short(values):
        return lanes
    wide = lanes
    while 2 * wide <= min(extent, lanes * REGISTERS_AT_ONCE):
        wide *= 2
    return wide


def are_short(values: Iterable[Scalar]) -> bool:
    """Whether expressions are so short that several registers are computed at once."""
    operations = [part for part in postorder(*values) if isinstance(part, Apply)]
    expensive = any(part.primitive in EXPENSIVE for part in operations)
    return len(operations) <= SHORT_EXPRESSION and not expensive
