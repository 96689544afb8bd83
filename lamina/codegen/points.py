"""Scalar expressions as instructions, at one point of a loop nest or at a vector of points.

A value that does not depend on the lanes' axis stays scalar until it is combined with a vector.
Computed values are reused until a store may have changed them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar, final

from lamina.codegen.access import Access
from lamina.codegen.builder import BasicBlock, Builder, OpenLoop
from lamina.codegen.halves import half_operation
from lamina.codegen.nest import Lanes, Nest
from lamina.codegen.positions import Positions
from lamina.codegen.primitives import COMPARISONS, EMITTERS, cast, literal, random_words
from lamina.codegen.values import I64, Integer, Type, Value
from lamina.program.index import Axis
from lamina.program.scalar import Apply, Literal, Load, Local, Position, Scalar, Within, indices_of
from lamina.program.steps import Store

Code = TypeVar("Code", bound=Builder, covariant=True)


@final
class Points(Generic[Code]):
    """Writes expressions at the current point of a loop nest.

    Args:
        code: the function that is being written.
        bases: the address of each buffer.
        sizes: the number of elements of each buffer.
        calling: whether strided vectors are loaded and stored by calls; see `Access`.
        whole_vectors: whether buffers are aligned to vectors; see `Access`.
        position: the integer type of indices.

    Attributes:
        fix, axis, define, inside, reading: `fix`, `value`, `bind`, `level` and `reading` of `Nest`.
        indices: `indices` of `Positions`.
        address: `address` of `Access`.
    """

    def __init__(
        self,
        code: Code,
        bases: Mapping[str, Value],
        sizes: Mapping[str, int],
        *,
        calling: bool = False,
        whole_vectors: bool = False,
        position: Type = I64,
    ) -> None:
        self.code = code
        self._nest = Nest(code)
        self._positions = Positions(code, self._nest, self.value, position)
        self._access = Access(
            *(code, self._nest, self._positions, bases, sizes, calling, whole_vectors)
        )
        self.fix, self.axis, self.define = self._nest.fix, self._nest.value, self._nest.bind
        self.inside, self.reading = self._nest.level, self._nest.reading
        self.indices, self.address = self._positions.indices, self._access.address

    @contextmanager
    def bound(
        self, axis: Axis, value: Value, *, before: BasicBlock | None = None
    ) -> Generator[None]:
        """Inside, the axis has this value; code of the outer level goes to the block `before`."""
        with self._nest.level(before):
            self._nest.bind(axis, value)
            yield

    @contextmanager
    def counting(self, start: Integer, stop: Integer, step: int = 1) -> Generator[Value]:
        """A loop over numbers on which no expression depends."""
        with self.code.loop(start, stop, step) as loop, self.inside(loop.before):
            yield loop.index

    @contextmanager
    def along(
        self,
        axis: Axis | None,
        first: Value,
        lanes: int,
        *,
        multiple: int = 1,
        before: BasicBlock | None = None,
    ) -> Generator[None]:
        """Inside, the axis runs along the lanes of vectors, from `first` on.

        `first` is a multiple of `multiple`.
        """
        with self._nest.level(before), self._nest.along(Lanes(axis, lanes, multiple)):
            if axis is not None:
                self._nest.bind(axis, first)
            yield

    @contextmanager
    def loop(
        self,
        axis: Axis,
        carried: Sequence[Value] | None = None,
        start: Integer = 0,
        stop: Integer | None = None,
        most: int | None = None,
        *,
        lanes: int = 0,
    ) -> Generator[OpenLoop]:
        """A loop over an axis, one point at a time, or over its full vectors of some lanes.

        With loop-carried values, `code.end_loop` ends it inside. `most` is the largest number of
        iterations, by default of the whole axis. With lanes, `start` and `stop` count vectors.
        """
        iterations = axis.extent // (lanes or 1)
        bounds = self.loop_bound(start), self.loop_bound(iterations if stop is None else stop)
        opened = self.code.begin_loop(*bounds, 1, carried or (), most=most or iterations)
        if lanes:
            first = opened.index * self.position(lanes)
            inside = self.along(axis, first, lanes, multiple=lanes, before=opened.before)
        else:
            inside = self.bound(axis, opened.index, before=opened.before)
        with inside:
            yield opened
            if carried is None:
                self.code.end_loop(opened)

    def loop_bound(self, number: Integer) -> Integer:
        """A bound of a loop, in the type of indices."""
        wide = self._positions.type == I64
        return number if isinstance(number, Value) or wide else self.position(number)

    @property
    def lanes(self) -> int:
        return self._nest.lanes.count

    def base(self, buffer: str) -> Value:
        """The address of a buffer."""
        return self._access.bases[buffer]

    def position(self, number: int) -> Value:
        """A constant of the type of indices."""
        return self.code.constant(number, self._positions.type)

    def value(self, scalar: Scalar) -> Value:
        """The scalar at the current point: a vector if it depends on the lanes' axis."""
        nest = self._nest
        # Operands come first, without recursion, because expressions may be deep.
        pending = [scalar] if self._kept_value(scalar) is None else []
        while pending:
            top = pending[-1]
            missing = [child for child in self._operands(top) if self._kept_value(child) is None]
            pending += reversed(missing)
            if not missing:
                with nest.at(nest.depth(top)) as values:
                    if top not in values:
                        values[top] = self._computed(top)
                pending.pop()
        return nest.values(nest.depth(scalar))[scalar]

    def _kept_value(self, scalar: Scalar) -> Value | None:
        """The scalar's value, if it was computed before."""
        return self._nest.values(self._nest.depth(scalar)).get(scalar)

    def _operands(self, scalar: Scalar) -> tuple[Scalar, ...]:
        """The operands of a primitive that must be computed before it."""
        if not isinstance(scalar, Apply):
            return ()
        if (inner := self._in_halves(scalar)) is not None:
            return inner[1]
        if self._is_random_block(scalar):
            seed, step, _, stream = scalar.operands
            return seed, step, stream
        return scalar.operands

    def vector(self, scalar: Scalar) -> Value:
        """The scalar at the current point, in all lanes (or a scalar if there are none)."""
        return self.spread(self.value(scalar), self._nest.depth(scalar))

    def spread(self, value: Value, depth: int | None = None) -> Value:
        """A value in all lanes."""
        if value.type.lanes == self.lanes:
            return value
        with self._nest.at(self._nest.innermost if depth is None else depth) as values:
            key = ("spread", value, self.lanes)
            if key not in values:
                values[key] = self.code.splat(value, self.lanes)
            return values[key]

    def _computed(self, scalar: Scalar) -> Value:
        if isinstance(scalar, Literal):
            return literal(self.code, scalar)
        if isinstance(scalar, Local):
            return self._nest.value(scalar.name)
        if isinstance(scalar, Position):
            return self._as_integer(self._positions.position(scalar.index))
        if isinstance(scalar, Within):
            return self._positions.within(scalar.bounds)
        if isinstance(scalar, Load):
            return self._access.load(scalar)
        return self._applied(scalar)

    def _as_integer(self, position: Value) -> Value:
        """An index as a value of int64."""
        wide = position.type.element == "i64"
        return position if wide else self.code.convert("sext", position, "i64")

    def _applied(self, scalar: Apply) -> Value:
        if self._is_random_block(scalar):
            seed, step, position, stream = scalar.operands
            start = self._as_integer(self.indices(indices_of(position)[0]).start)
            others = [self.value(operand) for operand in (seed, step, stream)]
            return random_words(self.code, start, self.lanes, *others)
        inner = self._in_halves(scalar)
        if inner is not None:
            operation, operands = inner
            return self.code.half_binary(operation, *self._spread(operands))
        spread = self._spread(scalar.operands)
        first = scalar.operands[0]
        if scalar.primitive == "cast":
            return cast(self.code, spread[0], first.dtype, scalar.dtype)
        dtype = first.dtype if scalar.primitive in COMPARISONS else scalar.dtype
        return EMITTERS[scalar.primitive](self.code, dtype, *spread)

    def _spread(self, operands: Sequence[Scalar]) -> list[Value]:
        """The values of a primitive's operands; all are vectors if one of them is."""
        values = [self.value(operand) for operand in operands]
        lanes = max(value.type.lanes for value in values)
        return [
            value if value.type.lanes == lanes else self.code.splat(value, lanes)
            for value in values
        ]

    def _in_halves(self, scalar: Apply) -> tuple[str, tuple[Scalar, ...]] | None:
        """The operation on float16 whose result the scalar is, if the device has it."""
        return half_operation(scalar) if self.code.module.half_arithmetic else None

    def _is_random_block(self, scalar: Apply) -> bool:
        """Whether it is random bits at consecutive positions, the first a multiple of four."""
        if scalar.primitive != "random_bits":
            return False
        position, lanes = scalar.operands[2], self._nest.lanes
        if not isinstance(position, Position) or lanes.count < 4 or lanes.multiple % 4:
            return False
        index = position.index
        others = [(atom, c) for atom, c in index.terms if atom != lanes.axis]
        aligned = all(isinstance(atom, Axis) and c % 4 == 0 for atom, c in others)
        return (lanes.axis, 1) in index.terms and aligned and index.constant % 4 == 0

    def store_all(self, stores: Sequence[Store]) -> None:
        """Computes the values of all stores at the current point, then writes them."""
        values = [self.vector(store.value) for store in stores]
        indices = [self.indices(store.index) for store in stores]
        for store, value, lane_indices in zip(stores, values, indices, strict=True):
            self._access.store(store, value, lane_indices)
        self.forget(store.buffer for store in stores)

    def store(self, store: Store, value: Value) -> None:
        """Writes (or adds) another value than the store's own."""
        self._access.store(store, value, self.indices(store.index))
        self.forget([store.buffer])

    def forget(self, buffers: Iterable[str]) -> None:
        """After a store: values loaded from these buffers must be loaded again."""
        written = set(buffers) & self._access.loaded
        if written:
            self._nest.forget(written)
