"""The number of lanes of vectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lamina.engines.simd.processor import Processor
from lamina.program.scalar import CONVERSIONS, Apply, Scalar, varying
from lamina.program.target import EXPENSIVE

# The most operations of a short expression.
SHORT_EXPRESSION = 12


def lanes_for(values: Sequence[Scalar], processor: Processor) -> int:
    """The lanes of a register for the widest float among the values, or the widest integer."""
    floats = [value.dtype.itemsize for value in values if value.dtype.is_float]
    widest = max(floats or [value.dtype.itemsize for value in values])
    return processor.vector_bytes // max(widest, 4)


def widened(values: Iterable[Scalar], lanes: int, extent: int, processor: Processor) -> int:
    """The lanes of several registers, if expressions are short and the axis is long enough."""
    if not are_wide(values, processor):
        return lanes
    wide = lanes
    while 2 * wide <= min(extent, lanes * processor.registers_at_once):
        wide *= 2
    return wide


def are_wide(values: Iterable[Scalar], processor: Processor) -> bool:
    """Whether expressions are short enough for vectors of several registers."""
    if processor.registers_at_once == 1:
        return False
    # Conversions are not counted: most are those of floats of 16 bits, after a load or before a
    # store.
    operations = [
        scalar
        for scalar in varying(*values)
        if isinstance(scalar, Apply) and scalar.primitive not in CONVERSIONS
    ]
    expensive = any(scalar.primitive in EXPENSIVE for scalar in operations)
    return len(operations) <= SHORT_EXPRESSION and not expensive
