"""Index expressions and bounds as instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from lamina.base.records import frozen_dataclass
from lamina.codegen.builder import Builder
from lamina.codegen.nest import Nest
from lamina.codegen.values import I1, I64, Type, Value, constants
from lamina.program.index import Axis, Gathered, Index, Quotient, Remainder
from lamina.program.scalar import Bound, Scalar
from lamina.program.steps import loads_in_index

# Vectors of indices below this are divided in 32 bits, because processors have vector instructions
# only for these.
_SMALL = 2**31


@frozen_dataclass
class LaneIndices:
    """The value of an index expression in each lane: `start + lane * stride`, or any vector.

    Attributes:
        start: the value in the first lane, a scalar.
        stride: the stride between lanes; 0 if all lanes have one value.
        vector: the vector of values, if they have no stride; start and stride are then unused.
    """

    start: Value
    stride: int
    vector: Value | None = None


@final
@frozen_dataclass
class Positions:
    """Writes index expressions at the current point of a nest.

    Attributes:
        code: the function that is being written.
        nest: the loop nest around the current point.
        value: a function that returns the value of a scalar, for indices that are read from data.
        type: the type of indices, of 32 bits if all of them fit and 64 bits are expensive.
    """

    code: Builder
    nest: Nest
    value: Callable[[Scalar], Value]
    type: Type = I64

    def indices(self, index: Index) -> LaneIndices:
        """The value of an index expression in each lane."""
        nest = self.nest
        values = nest.values(nest.index_depth(index))
        key = ("start", index)
        if key in values:
            strides = (step for atom, step in index.terms if atom == nest.lanes.axis)
            return LaneIndices(values[key], next(strides, 0))
        stride = 0
        uniform: list[tuple[int, Value]] = []
        vectors: list[Value] = []
        for atom, coefficient in index.terms:
            depth = nest.index_depth(Index(0, ((atom, 1),)))
            if isinstance(atom, Axis):
                if atom == nest.lanes.axis:
                    stride += coefficient
                value = nest.value(atom)
            elif isinstance(atom, Gathered):
                value = self._gathered(atom, depth)
            else:
                value = self._divided(atom, depth)
            term = self._product(depth, value, coefficient)
            if value.type.lanes:
                vectors.append(term)
            else:
                uniform.append((depth, term))
        # Neighbouring elements share all but the constant, so that is added last.
        uniform.sort(key=lambda entry: entry[0])
        innermost = uniform[-1][0] if uniform else 0
        start = self.code.constant(0, self.type)
        for depth, term in (*uniform, (innermost, self.code.constant(index.constant, self.type))):
            start = self._sum(depth, start, term)
        if not vectors:
            # A store may change an index that is read from data.
            if not loads_in_index(index):
                values[key] = start
            return LaneIndices(start, stride)
        with nest.at(nest.index_depth(index)):
            lane_indices = self.counted(start, stride)
            for vector in vectors:
                lane_indices = lane_indices + vector
        return LaneIndices(start, 0, lane_indices)

    def _product(self, depth: int, value: Value, factor: int) -> Value:
        """A value of a level of the nest times a number."""
        if isinstance(value.number, int):
            return self.code.constant(value.number * factor, value.type)
        return self._remembered(depth, ("times", value, factor), lambda: value * factor)

    def _sum(self, depth: int, left: Value, right: Value) -> Value:
        """The sum of two values of a level of the nest."""
        if isinstance(left.number, int) and isinstance(right.number, int):
            return self.code.constant(left.number + right.number, left.type)
        return self._remembered(depth, ("plus", left, right), lambda: left + right)

    def _remembered(self, depth: int, key: object, write: Callable[[], Value]) -> Value:
        """The value that `write` writes in a level of the nest, once for each key."""
        values = self.nest.values(depth)
        if key not in values:
            with self.nest.at(depth):
                values[key] = write()
        return values[key]

    def counted(self, start: Value, stride: int) -> Value:
        """The vector start, start + stride, ..."""
        lanes = self.nest.lanes.count
        spread = self.code.splat(start, lanes)
        if not stride:
            return spread
        steps = constants([lane * stride for lane in range(lanes)], self.type.element)
        return spread + steps

    def position(self, index: Index) -> Value:
        """The value of an index expression, a vector if it depends on the lanes."""
        indices = self.indices(index)
        if indices.vector is not None:
            return indices.vector
        lanes = self.nest.lanes.count
        if not lanes or not indices.stride:
            return indices.start
        return self._remembered(
            self.nest.index_depth(index),
            ("counted", indices.start, indices.stride, lanes),
            lambda: self.counted(indices.start, indices.stride),
        )

    def _gathered(self, atom: Gathered, depth: int) -> Value:
        """An index that is read from data."""
        value, element = self.value(atom.value), self.type.element
        if element == value.type.element:
            return value
        return self._remembered(
            depth, ("narrow", value), lambda: self.code.convert("trunc", value, element)
        )

    def _divided(self, atom: Quotient | Remainder, depth: int) -> Value:
        """A quotient or remainder by a constant, rounding down."""
        return self._remembered(
            depth, atom, lambda: self._division(self.position(atom.index), atom)
        )

    def _division(self, dividend: Value, atom: Quotient | Remainder) -> Value:
        code = self.code
        low, high = atom.index.bounds
        # Adding a multiple of the divisor makes the dividend positive. It is subtracted afterwards.
        lift = -(low // atom.divisor) if low < 0 else 0
        if lift:
            dividend = dividend + lift * atom.divisor
        word = "udiv" if isinstance(atom, Quotient) else "urem"
        fits = high + lift * atom.divisor < _SMALL
        if dividend.type.lanes and dividend.type.element == "i64" and fits:
            small = code.convert("trunc", dividend, "i32")
            divided = code.binary(word, small, atom.divisor)
            result = code.convert("zext", divided, "i64")
        else:
            result = code.binary(word, dividend, atom.divisor)
        if lift and isinstance(atom, Quotient):
            result = result - lift
        return result

    def within(self, bounds: Sequence[Bound]) -> Value:
        """Whether all bounds hold; a constant, if all positions are."""
        tests: list[tuple[int, Value]] = []
        for bound in bounds:
            position = self.position(bound.index)
            depth = self.nest.index_depth(bound.index)
            low, high = bound.index.bounds
            if low < bound.low:
                tests.append((depth, self._test(depth, "sge", position, bound.low)))
            if high >= bound.high:
                tests.append((depth, self._test(depth, "slt", position, bound.high)))
        result = self.code.constant(True, I1)
        for depth, test in sorted(tests, key=lambda entry: entry[0]):
            result = test if result.is_integer(True) else self._both(depth, result, test)
        return result

    def _test(self, depth: int, relation: str, position: Value, limit: int) -> Value:
        """Whether a relation between a position and a number holds."""
        if isinstance(position.number, int):
            return self.code.constant(
                position.number < limit if relation == "slt" else position.number >= limit, I1
            )
        key = (relation, position, limit)
        return self._remembered(depth, key, lambda: self.code.compare(relation, position, limit))

    def _both(self, depth: int, left: Value, right: Value) -> Value:
        """Whether two conditions hold."""
        if left.is_integer(False) or right.is_integer(False):
            return self.code.constant(False, I1)
        if right.is_integer(True):
            return left
        code, lanes = self.code, max(left.type.lanes, right.type.lanes)

        def write() -> Value:
            wide = (
                condition if condition.type.lanes == lanes else code.splat(condition, lanes)
                for condition in (left, right)
            )
            return code.binary("and", *wide)

        return self._remembered(depth, ("and", left, right), write)
