"""Operands in pairs of bfloat16 along K: an i32 holds two neighbouring k of a row or column."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lamina.base.shapes import float32
from lamina.codegen.builder import BasicBlock, Builder
from lamina.codegen.values import Value
from lamina.engines.simd.emit.context import Points
from lamina.program.index import Axis
from lamina.program.scalar import Apply, Scalar

Read = TypeVar("Read")


def numbers(points: Points, view: Scalar, *, paired: bool = True) -> Value:
    """A vector of an operand; if it is paired, bfloat16 as i16, or floats that `zipped` rounds."""
    if paired and isinstance(view, Apply) and view.primitive == "cast":
        (source,) = view.operands
        if source.dtype == float32:
            return points.vector(source)
    return points.vector(view)


def at_both(
    points: Points,
    axis: Axis,
    number: Value,
    read: Callable[[], Read],
    *,
    single: bool = False,
    before: BasicBlock | None = None,
) -> list[Read]:
    """What `read` gives at both k of a pair along an axis, or at the first if it is `single`."""
    values: list[Read] = []
    k = number * 2
    for offset in (0,) if single else (0, 1):
        with points.bound(axis, k + offset, before=before):
            values.append(read())
    return values


def zipped(code: Builder, first: Value, second: Value | None = None) -> Value:
    """Pairs of the same lanes of two vectors of one type; None for zeros."""
    second = code.constant(0, first.type) if second is None else second
    lanes = first.type.lanes
    if first.type.is_float:
        halves = code.rounded_to_bfloat16(first, second)
        picks = [lane + half for lane in range(lanes) for half in (0, lanes)]
        return code.as_pairs(code.shuffle(halves, None, picks))
    low, high = (code.convert("zext", vector, "i32") for vector in (first, second))
    return low | (high << 16)


def neighbours(code: Builder, vector: Value) -> Value:
    """Pairs of neighbouring lanes of one vector."""
    if not vector.type.is_float:
        return code.as_pairs(vector)
    lanes = vector.type.lanes
    halves = (range(lanes // 2), range(lanes // 2, lanes))
    return code.as_pairs(
        code.rounded_to_bfloat16(*(code.shuffle(vector, None, half) for half in halves))
    )
