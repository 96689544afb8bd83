"""How reductions combine values, from point to point and across lanes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Protocol, final

from lamina.base.shapes import int64, size_of
from lamina.codegen.builder import Builder
from lamina.codegen.points import Points
from lamina.codegen.primitives import EMITTERS, element
from lamina.codegen.values import Type, Value, constants
from lamina.program.index import row_major
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Apply, Position
from lamina.program.steps import Reduce

# The current point: no axis is replaced.
_HERE = Rewrite({})
# Positions below 2**31 are carried in 32 bits, as wide as most values.
_FEW_BITS = 31


class Combining(Protocol):
    """What a loop over the points of reductions needs of them.

    Attributes:
        sums_floats: whether it adds floats; long sums are made in blocks.
    """

    @property
    def sums_floats(self) -> bool: ...

    def start(self, lanes: int) -> tuple[Value, ...]: ...

    def accumulate(
        self, points: Points[Builder], carried: tuple[Value, ...], at: Rewrite = _HERE
    ) -> tuple[Value, ...]: ...

    def merged(self, left: Sequence[Value], right: Sequence[Value]) -> tuple[Value, ...]: ...


class Combiner(ABC):
    """A reduction. It carries one or several values, of equal lanes, from point to point.

    Attributes:
        sums_floats: whether it adds floats; long sums are made in blocks.
    """

    def __init__(self, stage: Reduce, code: Builder) -> None:
        self._stage = stage
        self._code = code
        self.sums_floats = stage.combine == "sum" and stage.dtype.is_float

    @abstractmethod
    def start(self, lanes: int) -> tuple[Value, ...]:
        """The carried values before the first point; their lanes do not change."""

    @abstractmethod
    def accumulate(
        self, points: Points[Builder], carried: tuple[Value, ...], at: Rewrite = _HERE
    ) -> tuple[Value, ...]:
        """The carried values after the current point, which may have fewer lanes.

        `at` replaces the inner axes by numbers if the points are unrolled.
        """

    @abstractmethod
    def merged(self, left: Sequence[Value], right: Sequence[Value]) -> tuple[Value, ...]:
        """The carried values of two sets of points together."""

    def result(self, carried: tuple[Value, ...]) -> Value:
        """The result, in as many lanes as the carried values."""
        return carried[-1]

    @abstractmethod
    def finish(self, carried: tuple[Value, ...]) -> Value:
        """All lanes combined, always in the same order."""


def combiner(stage: Reduce, code: Builder) -> Combiner:
    """The combiner of a reduction."""
    kind = _Position if stage.combine in ("argmax", "argmin") else _Plain
    return kind(stage, code)


@final
class Together:
    """Several reductions over the same points, which do not depend on each other."""

    def __init__(self, combiners: Sequence[Combiner]) -> None:
        self._combiners = combiners
        self.sums_floats = any(combine.sums_floats for combine in combiners)
        # The number of values that each carries.
        self._counts = [len(combine.start(0)) for combine in combiners]

    def start(self, lanes: int) -> tuple[Value, ...]:
        return tuple(value for combine in self._combiners for value in combine.start(lanes))

    def accumulate(
        self, points: Points[Builder], carried: tuple[Value, ...], at: Rewrite = _HERE
    ) -> tuple[Value, ...]:
        return tuple(
            value
            for combine, part in zip(self._combiners, self.parts(carried), strict=True)
            for value in combine.accumulate(points, part, at)
        )

    def merged(self, left: Sequence[Value], right: Sequence[Value]) -> tuple[Value, ...]:
        parts = zip(self._combiners, self.parts(left), self.parts(right), strict=True)
        return tuple(value for combine, a, b in parts for value in combine.merged(a, b))

    def parts(self, carried: Sequence[Value]) -> list[tuple[Value, ...]]:
        """The carried values of each reduction."""
        ends = list(accumulate(self._counts, initial=0))
        return [tuple(carried[first:end]) for first, end in pairwise(ends)]


@final
class _Plain(Combiner):
    """Sums, products, maxima and minima."""

    def _neutral(self) -> float:
        dtype = self._stage.dtype
        combine = self._stage.combine
        if combine in ("sum", "product"):
            return 0 if combine == "sum" else 1
        if dtype.is_float:
            return -math.inf if combine == "maximum" else math.inf
        return dtype.limits[combine == "minimum"]

    def start(self, lanes: int) -> tuple[Value, ...]:
        return (self._code.constant(self._neutral(), Type(element(self._stage.dtype), lanes)),)

    def accumulate(
        self, points: Points[Builder], carried: tuple[Value, ...], at: Rewrite = _HERE
    ) -> tuple[Value, ...]:
        (total,) = carried
        lanes, value = total.type.lanes, at.scalar(self._stage.value)
        summed = self._stage.combine == "sum" and value.dtype.is_float
        if summed and isinstance(value, Apply) and value.primitive == "multiply":
            left, right = (
                self._code.padded(points.vector(factor), lanes, 0) for factor in value.operands
            )
            return (self._code.multiply_add(left, right, total),)
        added = self._code.padded(points.vector(value), lanes, self._neutral())
        return (self._combined(total, added),)

    def _combined(self, left: Value, right: Value) -> Value:
        words = {"sum": "add", "product": "multiply"}
        name = words.get(self._stage.combine, self._stage.combine)
        return EMITTERS[name](self._code, self._stage.dtype, left, right)

    def merged(self, left: Sequence[Value], right: Sequence[Value]) -> tuple[Value, ...]:
        return (self._combined(left[0], right[0]),)

    def finish(self, carried: tuple[Value, ...]) -> Value:
        (total,) = carried
        lanes = total.type.lanes
        while lanes > 1:
            lanes //= 2
            low = self._code.shuffle(total, None, range(lanes))
            high = self._code.shuffle(total, None, range(lanes, 2 * lanes))
            total = self._combined(low, high)
        return self._code.extract(total, 0)


@final
class _Position(Combiner):
    """The first position of the largest or smallest value; NaN comes before all numbers."""

    def _position_type(self) -> str:
        count = size_of([axis.extent for axis in self._stage.axes])
        return "i32" if count < 1 << _FEW_BITS else "i64"

    def start(self, lanes: int) -> tuple[Value, ...]:
        # A position below zero means that there was no value yet.
        dtype = self._stage.value.dtype
        return (
            self._code.constant(0, Type(element(dtype), lanes)),
            self._code.constant(-1, Type(self._position_type(), lanes)),
        )

    def accumulate(
        self, points: Points[Builder], carried: tuple[Value, ...], at: Rewrite = _HERE
    ) -> tuple[Value, ...]:
        best, position = carried
        lanes = best.type.lanes
        value = points.vector(at.scalar(self._stage.value))
        index = points.vector(Position(at.index(row_major(self._stage.axes)), int64))
        if self._position_type() == "i32":
            index = self._code.convert("trunc", index, "i32")
        if value.type.lanes != lanes:
            # The missing lanes repeat the last value at the same position, which is not better.
            count = value.type.lanes
            value, index = self._repeated(value, lanes), self._repeated(index, lanes)
            present = constants([1 if lane < count else 0 for lane in range(lanes)], "i1")
        else:
            present = None
        better = self._better(value, best) | (position < 0)
        if present is not None:
            better = better & present
        return (self._code.select(better, value, best), self._code.select(better, index, position))

    def result(self, carried: tuple[Value, ...]) -> Value:
        _, position = carried
        wide = position.type.element == "i64"
        return position if wide else self._code.convert("sext", position, "i64")

    def _repeated(self, value: Value, lanes: int) -> Value:
        count = value.type.lanes
        return self._code.shuffle(value, None, [min(lane, count - 1) for lane in range(lanes)])

    def _better(self, value: Value, best: Value) -> Value:
        code = self._code
        dtype = self._stage.value.dtype
        name = "greater" if self._stage.combine == "argmax" else "less"
        better = EMITTERS[name](code, dtype, value, best)
        if not dtype.is_float:
            return better
        return better | (code.compare("uno", value, value) & code.compare("ord", best, best))

    def merged(self, left: Sequence[Value], right: Sequence[Value]) -> tuple[Value, ...]:
        code = self._code
        (best, position), (value, index) = left, right
        filled = index >= 0
        # If neither value is better than the other, the earlier one is taken.
        worse = self._better(best, value)
        earlier = (worse ^ 1) & (index < position)
        chosen = ((self._better(value, best) | earlier) & filled) | (position < 0)
        return code.select(chosen, value, best), code.select(chosen, index, position)

    def finish(self, carried: tuple[Value, ...]) -> Value:
        code = self._code
        values, positions = carried
        best: tuple[Value, ...] = (code.extract(values, 0), code.extract(positions, 0))
        for lane in range(1, values.type.lanes):
            best = self.merged(best, (code.extract(values, lane), code.extract(positions, lane)))
        return self.result(best)
