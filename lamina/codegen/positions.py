"""Index expressions and bounds as instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from lamina.codegen.builder import Builder
from lamina.codegen.nest import Nest
from lamina.codegen.values import I1, I64, Type, Value, constant, constants
from lamina.program.index import Axis, Gathered, Index, Quotient, Remainder
from lamina.program.scalar import Bound, Scalar
from lamina.program.steps import loads_in_index
from lamina.records import frozen_dataclass

# Vectors of indices below this are divided in 32 bits, because processors have vector instructions
# only for these.
_SMALL = 2**31


@frozen_dataclass
class LaneIndices:
    """The value of an index expression in each lane: `start + lane * stride`, or any vector.

    Attributes:
        start: the value in the first lane, a scalar.
        stride: between lanes; 0 if all lanes have one value.
        each: the vector of values, if they have no stride; start and stride are then unused.
    """

    start: Value
    stride: int
    each: Value | None = None


@final
class Positions:
    """Writes index expressions at the current point of a nest.

    Args:
        code: the function that is being written.
        nest: the loop nest around the current point.
        value: returns the value of a scalar, for indices that are read from data.
        type: of indices: of 32 bits if all of them fit and 64 bits are expensive.
    """

    def __init__(
        self, code: Builder, nest: Nest, value: Callable[[Scalar], Value], type: Type = I64
    ) -> None:
        self._code = code
        self._nest = nest
        self._value = value
        self.type = type

    def indices(self, index: Index) -> LaneIndices:
        """The value of an index expression in each lane."""
        nest, code = self._nest, self._code
        known = nest.known(nest.index_depth(index))
        key = ("start", index)
        if key in known:
            strides = (step for atom, step in index.terms if atom == nest.lanes.axis)
            return LaneIndices(known[key], next(strides, 0))
        stride = 0
        uniform: list[tuple[int, Value]] = []
        vectors: list[Value] = []
        for atom, coefficient in index.terms:
            depth = nest.index_depth(Index(0, ((atom, 1),)))
            if isinstance(atom, Axis):
                if atom == nest.lanes.axis:
                    stride += coefficient
                value = nest.axis(atom)
            elif isinstance(atom, Gathered):
                value = self._gathered(atom, depth)
            else:
                value = self._divided(atom, depth)
            with nest.at(depth):
                term = code.multiply(value, constant(coefficient, value.type))
            if value.type.lanes:
                vectors.append(term)
            else:
                uniform.append((depth, term))
        start = constant(index.constant, self.type)
        for depth, term in sorted(uniform, key=lambda entry: entry[0]):
            if start.is_integer(0):
                start = term
            else:
                with nest.at(depth):
                    start = code.add(start, term)
        if not vectors:
            # A store may change an index that is read from data.
            if not loads_in_index(index):
                known[key] = start
            return LaneIndices(start, stride)
        each = self.counted(start, stride)
        for vector in vectors:
            each = code.add(each, vector)
        return LaneIndices(start, 0, each)

    def counted(self, start: Value, stride: int) -> Value:
        """The vector start, start + stride, ..."""
        lanes = self._nest.lanes.count
        spread = self._code.splat(start, lanes)
        if not stride:
            return spread
        steps = constants([lane * stride for lane in range(lanes)], self.type.element)
        return self._code.add(spread, steps)

    def position(self, index: Index) -> Value:
        """The value of an index expression, a vector if it depends on the lanes."""
        found = self.indices(index)
        if found.each is not None:
            return found.each
        if self._nest.lanes.count and found.stride:
            return self.counted(found.start, found.stride)
        return found.start

    def _gathered(self, atom: Gathered, depth: int) -> Value:
        """An index that is read from data."""
        value = self._value(atom.value)
        if self.type.element == value.type.element:
            return value
        known = self._nest.known(depth)
        key = ("narrow", value)
        if key not in known:
            with self._nest.at(depth):
                known[key] = self._code.convert("trunc", value, self.type.element)
        return known[key]

    def _divided(self, atom: Quotient | Remainder, depth: int) -> Value:
        """A quotient or remainder by a constant, rounding down."""
        known = self._nest.known(depth)
        if atom not in known:
            with self._nest.at(depth):
                known[atom] = self._division(self.position(atom.index), atom)
        return known[atom]

    def _division(self, whole: Value, atom: Quotient | Remainder) -> Value:
        code = self._code
        low, high = atom.index.bounds
        # Adding a multiple of the divisor makes the dividend positive. It is subtracted afterwards.
        lift = -(low // atom.divisor) if low < 0 else 0
        if lift:
            whole = code.add(whole, constant(lift * atom.divisor, whole.type))
        word = "udiv" if isinstance(atom, Quotient) else "urem"
        fits = high + lift * atom.divisor < _SMALL
        if whole.type.lanes and whole.type.element == "i64" and fits:
            small = code.convert("trunc", whole, "i32")
            divided = code.binary(word, small, constant(atom.divisor, small.type))
            result = code.convert("zext", divided, "i64")
        else:
            result = code.binary(word, whole, constant(atom.divisor, whole.type))
        if lift and isinstance(atom, Quotient):
            result = code.subtract(result, constant(lift, result.type))
        return result

    def within(self, bounds: Sequence[Bound]) -> Value:
        """Whether all bounds hold."""
        result = constant(True, I1)
        for bound in bounds:
            position = self.position(bound.index)
            low, high = bound.index.bounds
            tests: list[Value] = []
            if low < bound.low:
                limit = constant(bound.low, position.type)
                tests.append(self._code.compare("sge", position, limit))
            if high >= bound.high:
                limit = constant(bound.high, position.type)
                tests.append(self._code.compare("slt", position, limit))
            for test in tests:
                result = test if result.is_integer(True) else self._both(result, test)
        return result

    def _both(self, left: Value, right: Value) -> Value:
        lanes = max(left.type.lanes, right.type.lanes)
        left, right = (
            one if one.type.lanes == lanes else self._code.splat(one, lanes)
            for one in (left, right)
        )
        return self._code.binary("and", left, right)
