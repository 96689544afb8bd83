"""Scalar expressions as instructions, at one point or at a vector of points.

A loop nest is written from the outside in. What an expression depends on decides where it is
computed: in front of the innermost loop that it does not depend on. One axis may run along the
lanes of vectors; what does not depend on it stays scalar until it meets something that does.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import final

from lamina.codegen.llvm import Block, Function, Module, OpenLoop
from lamina.codegen.primitives import (
    COMPARISONS,
    EMITTERS,
    cast,
    element,
    from_memory,
    memory_element,
    random_words,
    to_memory,
)
from lamina.codegen.values import I1, I64, POINTER, Type, Value, constant, constants, undefined
from lamina.errors import InternalError
from lamina.program.index import Axis, Gathered, Index, Quotient, Remainder
from lamina.program.scalar import (
    Apply,
    Bound,
    Literal,
    Load,
    Local,
    Position,
    Scalar,
    Within,
    indices_of,
    loads,
)
from lamina.program.steps import Store, loads_in_index
from lamina.records import frozen_dataclass

# Positions on the lanes are divided as numbers of 32 bits where they fit: only for those have
# processors vector instructions.
_SMALL = 2**31


@dataclass
class _Level:
    """One loop of the nest, or the function around them.

    Attributes:
        axes: the values of the axes that this level binds.
        locals: the values of the locals that are defined here.
        known: what was computed here.
        inner_before: the block in front of the loop that was opened inside this level.
    """

    axes: dict[Axis, Value] = field(default_factory=dict[Axis, Value])
    locals: dict[str, Value] = field(default_factory=dict[str, Value])
    known: dict[object, Value] = field(default_factory=dict[object, Value])
    inner_before: Block | None = None


@frozen_dataclass
class Place:
    """Where a load or store goes: `start + lane * stride`, or a position for each lane.

    Attributes:
        start: the position of the first lane, a scalar.
        stride: between lanes; 0 if all lanes are at one place.
        each: instead of both, a position for each lane.
    """

    start: Value
    stride: int
    each: Value | None = None


@final
class Points:
    """Writes expressions at the current point of a loop nest.

    Args:
        code: the function that is being written.
        bases: the address of each buffer.
        sizes: the number of elements of each buffer.
        calling: whether functions are called for vectors whose elements lie apart, which are many
            lines each: in long functions that are not run for every few numbers.
    """

    def __init__(
        self,
        code: Function,
        bases: Mapping[str, Value],
        sizes: Mapping[str, int],
        *,
        calling: bool = False,
    ) -> None:
        self.code = code
        self._bases = bases
        self._sizes = sizes
        self._calling = calling
        self._levels = [_Level()]
        self._depths: dict[object, int] = {}
        self._loaded: set[str] = set()
        self._lane_axis: Axis | None = None
        self._lanes = 0
        self._multiple = 1

    def fix(self, axis: Axis, value: Value) -> None:
        """The axis has this value in the whole function."""
        self._levels[0].axes[axis] = value

    # The nest

    @contextmanager
    def _level(self, before: Block | None) -> Generator[_Level]:
        self._levels[-1].inner_before = before
        level = _Level()
        self._levels.append(level)
        outer_depths, self._depths = self._depths, dict(self._depths)
        yield level
        self._depths = outer_depths
        self._levels.pop()
        self._levels[-1].inner_before = None

    @contextmanager
    def bound(self, axis: Axis, value: Value, *, before: Block | None = None) -> Generator[None]:
        """The axis has this value inside; `before` is where code in front of it may go."""
        with self._level(before) as level:
            level.axes[axis] = value
            yield

    @contextmanager
    def along(
        self,
        axis: Axis | None,
        first: Value,
        lanes: int,
        *,
        multiple: int = 1,
        before: Block | None = None,
    ) -> Generator[None]:
        """The axis runs along the lanes of vectors inside, from `first` on.

        `multiple` is a number of which `first` is known to be one.
        """
        saved = self._lane_axis, self._lanes, self._multiple
        with self._level(before) as level:
            if axis is not None:
                level.axes[axis] = first
            self._lane_axis, self._lanes, self._multiple = axis, lanes, multiple
            yield
        self._lane_axis, self._lanes, self._multiple = saved

    @contextmanager
    def loop(
        self,
        axis: Axis,
        carried: Sequence[Value] = (),
        start: Value | int = 0,
        stop: Value | int | None = None,
    ) -> Generator[OpenLoop]:
        """A loop over an axis, one point at a time; close it with `code.end_loop` inside."""
        opened = self.code.begin_loop(start, axis.extent if stop is None else stop, 1, carried)
        with self.bound(axis, opened.index, before=opened.before):
            yield opened

    @contextmanager
    def locals(self, values: Mapping[str, Value]) -> Generator[None]:
        """Names for values that were computed at this point."""
        with self._level(None) as level:
            level.locals.update(values)
            yield

    def define(self, name: str, value: Value) -> None:
        """A local of the step, from here on."""
        self._levels[-1].locals[name] = value

    def forget(self, buffers: Iterable[str]) -> None:
        """After a store: what was loaded from these buffers must be loaded again."""
        written = set(buffers) & self._loaded
        if not written:
            return
        for level in self._levels:
            level.known = {
                key: value for key, value in level.known.items() if not _reads(key, written)
            }

    @property
    def lanes(self) -> int:
        return self._lanes

    def base(self, buffer: str) -> Value:
        """The address of a buffer."""
        return self._bases[buffer]

    def axis(self, axis: Axis) -> Value:
        """The value of an axis at the current point."""
        return self._levels[self._axis_level(axis)].axes[axis]

    # Where things are computed

    def _depth(self, scalar: Scalar) -> int:
        """The innermost level that the scalar depends on."""
        depths = self._depths
        pending = [scalar] if scalar not in depths else []
        while pending:
            part = pending[-1]
            operands = part.operands if isinstance(part, Apply) else ()
            missing = [operand for operand in operands if operand not in depths]
            pending += missing
            if not missing:
                depths[part] = self._depth_of(part)
                pending.pop()
        return depths[scalar]

    def _depth_of(self, scalar: Scalar) -> int:
        if isinstance(scalar, Literal):
            return 0
        if isinstance(scalar, Local):
            return self._local_level(scalar.name)
        if isinstance(scalar, Position):
            return self._index_depth(scalar.index)
        if isinstance(scalar, Within):
            return self._bounds_depth(scalar.bounds)
        if isinstance(scalar, Load):
            return max(self._index_depth(scalar.index), self._bounds_depth(scalar.bounds))
        return max(self._depth(operand) for operand in scalar.operands)

    def _bounds_depth(self, bounds: Sequence[Bound]) -> int:
        return max((self._index_depth(bound.index) for bound in bounds), default=0)

    def _index_depth(self, index: Index) -> int:
        if index not in self._depths:
            depth = 0
            for atom, _ in index.terms:
                if isinstance(atom, Axis):
                    depth = max(depth, self._axis_level(atom))
                elif isinstance(atom, Gathered):
                    depth = max(depth, self._depth(atom.value))
                else:
                    depth = max(depth, self._index_depth(atom.index))
            self._depths[index] = depth
        return self._depths[index]

    def _axis_level(self, axis: Axis) -> int:
        for number in range(len(self._levels) - 1, -1, -1):
            if axis in self._levels[number].axes:
                return number
        raise InternalError(f"the axis {axis} has no value here", where=self.code.name)

    def _local_level(self, name: str) -> int:
        for number in range(len(self._levels) - 1, -1, -1):
            if name in self._levels[number].locals:
                return number
        raise InternalError(f"the local {name} has no value here", where=self.code.name)

    @contextmanager
    def _at(self, depth: int) -> Generator[dict[object, Value]]:
        """Instructions go where that level's own do; gives what is known there."""
        level = self._levels[depth]
        block = next(
            (
                outer.inner_before
                for outer in self._levels[depth:]
                if outer.inner_before is not None
            ),
            None,
        )
        if block is None:
            yield level.known
        else:
            with self.code.at(block):
                yield level.known

    # Values

    def value(self, scalar: Scalar) -> Value:
        """The scalar at the current point: a vector if it depends on the lanes' axis."""
        # Operands first, without calling itself: expressions may be deep.
        pending = [scalar] if self._known(scalar) is None else []
        while pending:
            part = pending[-1]
            missing = [one for one in self._operands(part) if self._known(one) is None]
            pending += reversed(missing)
            if not missing:
                depth = self._depth(part)
                with self._at(depth) as known:
                    if part not in known:
                        known[part] = self._computed(part, depth)
                pending.pop()
        return self._levels[self._depth(scalar)].known[scalar]

    def _known(self, scalar: Scalar) -> Value | None:
        """The scalar's value, if it was computed before."""
        return self._levels[self._depth(scalar)].known.get(scalar)

    def _operands(self, scalar: Scalar) -> tuple[Scalar, ...]:
        """The operands of a primitive whose values it needs."""
        if not isinstance(scalar, Apply):
            return ()
        if self._is_random_block(scalar):
            seed, step, _, stream = scalar.operands
            return seed, step, stream
        return scalar.operands

    def vector(self, scalar: Scalar) -> Value:
        """The scalar at the current point, in all lanes (or a scalar if there are none)."""
        return self.spread(self.value(scalar), self._depth(scalar))

    def spread(self, value: Value, depth: int | None = None) -> Value:
        """A value in all lanes."""
        if value.type.lanes == self._lanes:
            return value
        with self._at(len(self._levels) - 1 if depth is None else depth) as known:
            key = ("spread", value, self._lanes)
            if key not in known:
                known[key] = self.code.splat(value, self._lanes)
            return known[key]

    def _computed(self, scalar: Scalar, depth: int) -> Value:
        if isinstance(scalar, Literal):
            return constant(scalar.value, Type(element(scalar.dtype)))
        if isinstance(scalar, Local):
            return self._levels[depth].locals[scalar.name]
        if isinstance(scalar, Position):
            return self._position(scalar.index)
        if isinstance(scalar, Within):
            return self._within(scalar.bounds)
        if isinstance(scalar, Load):
            return self._load(scalar)
        return self._applied(scalar)

    def _applied(self, scalar: Apply) -> Value:
        if self._is_random_block(scalar):
            seed, step, position, stream = scalar.operands
            start = self.place(indices_of(position)[0]).start
            others = [self.value(operand) for operand in (seed, step, stream)]
            return random_words(self.code, start, self._lanes, *others)
        operands = [self.value(operand) for operand in scalar.operands]
        lanes = max(operand.type.lanes for operand in operands)
        spread = tuple(
            operand if operand.type.lanes == lanes else self.code.splat(operand, lanes)
            for operand in operands
        )
        first = scalar.operands[0]
        if scalar.primitive == "cast":
            return cast(self.code, spread[0], first.dtype, scalar.dtype)
        dtype = first.dtype if scalar.primitive in COMPARISONS else scalar.dtype
        return EMITTERS[scalar.primitive](self.code, dtype, spread)

    def _is_random_block(self, scalar: Apply) -> bool:
        """Whether it gives random bits at consecutive positions, the first a multiple of four."""
        if scalar.primitive != "random_bits":
            return False
        position = scalar.operands[2]
        if not isinstance(position, Position) or self._lanes < 4 or self._multiple % 4:
            return False
        index, axis = position.index, self._lane_axis
        others = [(atom, c) for atom, c in index.terms if atom != axis]
        whole = all(isinstance(atom, Axis) and c % 4 == 0 for atom, c in others)
        return (axis, 1) in index.terms and whole and index.constant % 4 == 0

    # Positions

    def place(self, index: Index) -> Place:
        """Where an index expression points, for each lane."""
        known = self._levels[self._index_depth(index)].known
        key = ("start", index)
        if key in known:
            strides = (step for atom, step in index.terms if atom == self._lane_axis)
            return Place(known[key], next(strides, 0))
        stride = 0
        uniform: list[tuple[int, Value, int]] = []
        vectors: list[Value] = []
        for atom, coefficient in index.terms:
            alone = Index(0, ((atom, 1),))
            depth = self._index_depth(alone)
            if isinstance(atom, Axis):
                if atom == self._lane_axis:
                    stride += coefficient
                value = self._levels[depth].axes[atom]
            elif isinstance(atom, Gathered):
                value = self.value(atom.value)
            else:
                value = self._divided(atom, depth)
            with self._at(depth):
                part = self.code.multiply(value, constant(coefficient, value.type))
            if value.type.lanes:
                vectors.append(part)
            else:
                uniform.append((depth, part, coefficient))
        start = constant(index.constant, I64)
        for depth, part, _ in sorted(uniform, key=lambda entry: entry[0]):
            if start.is_integer(0):
                start = part
            else:
                with self._at(depth):
                    start = self.code.add(start, part)
        if not vectors:
            # What is read from data may be another place after a store.
            if not loads_in_index(index):
                known[key] = start
            return Place(start, stride)
        each = self._counted(start, stride)
        for vector in vectors:
            each = self.code.add(each, vector)
        return Place(start, 0, each)

    def _counted(self, start: Value, stride: int) -> Value:
        """The vector start, start + stride, ..."""
        spread = self.code.splat(start, self._lanes)
        if not stride:
            return spread
        steps = constants([lane * stride for lane in range(self._lanes)], "i64")
        return self.code.add(spread, steps)

    def _position(self, index: Index) -> Value:
        place = self.place(index)
        if place.each is not None:
            return place.each
        if self._lanes and place.stride:
            return self._counted(place.start, place.stride)
        return place.start

    def _divided(self, atom: Quotient | Remainder, depth: int) -> Value:
        """A quotient or remainder by a constant, rounding down."""
        known = self._levels[depth].known
        if atom not in known:
            with self._at(depth):
                known[atom] = self._division(self._position(atom.index), atom)
        return known[atom]

    def _division(self, whole: Value, atom: Quotient | Remainder) -> Value:
        code = self.code
        low, high = atom.index.bounds
        # A multiple of the divisor makes the dividend positive, and is taken away again.
        lift = -(low // atom.divisor) if low < 0 else 0
        if lift:
            whole = code.add(whole, constant(lift * atom.divisor, whole.type))
        word = "udiv" if isinstance(atom, Quotient) else "urem"
        if whole.type.lanes and high + lift * atom.divisor < _SMALL:
            small = code.convert("trunc", whole, "i32")
            divided = code.binary(word, small, constant(atom.divisor, small.type))
            result = code.convert("zext", divided, "i64")
        else:
            result = code.binary(word, whole, constant(atom.divisor, whole.type))
        if lift and isinstance(atom, Quotient):
            result = code.subtract(result, constant(lift, result.type))
        return result

    def _within(self, bounds: Sequence[Bound]) -> Value:
        result = constant(True, I1)
        for bound in bounds:
            position = self._position(bound.index)
            low, high = bound.index.bounds
            tests: list[Value] = []
            if low < bound.low:
                limit = constant(bound.low, position.type)
                tests.append(self.code.compare("sge", position, limit))
            if high >= bound.high:
                limit = constant(bound.high, position.type)
                tests.append(self.code.compare("slt", position, limit))
            for test in tests:
                result = test if result.is_integer(True) else self._both(result, test)
        return result

    def _both(self, left: Value, right: Value) -> Value:
        lanes = max(left.type.lanes, right.type.lanes)
        left, right = (
            one if one.type.lanes == lanes else self.code.splat(one, lanes) for one in (left, right)
        )
        return self.code.binary("and", left, right)

    # Memory

    def _load(self, load: Load) -> Value:
        lanes = self._lanes
        self._loaded.add(load.buffer)
        if not self._sizes[load.buffer]:
            return constant(0, Type(element(load.dtype)))
        place = self.place(load.index)
        inside = self._within(load.bounds) if load.bounds else None
        mask_varies = inside is not None and bool(inside.type.lanes)
        if place.each is None and not place.stride and not mask_varies:
            return self._load_one(load, place.start, inside)
        if place.each is None and place.stride in (1, -1):
            return self._run(load, place, inside, lanes)
        if inside is None and place.each is None:
            return self._strided(load, place, lanes)
        return self._gathered(load, place, inside, lanes)

    def _run(self, load: Load, place: Place, inside: Value | None, lanes: int) -> Value:
        """Elements that lie side by side, forwards or backwards."""
        code = self.code
        type = Type(memory_element(load.dtype))
        forwards = place.stride == 1
        backwards = range(lanes - 1, -1, -1)
        start = place.start if forwards else code.subtract(place.start, constant(lanes - 1, I64))
        address = code.offset(self._bases[load.buffer], start, type.element)
        if inside is None:
            loaded = code.load(address, type.wide(lanes))
        else:
            mask = inside if inside.type.lanes else code.splat(inside, lanes)
            mask = mask if forwards else code.shuffle(mask, None, backwards)
            loaded = self._masked_load(address, mask, type.wide(lanes))
        loaded = loaded if forwards else code.shuffle(loaded, None, backwards)
        return from_memory(code, loaded, load.dtype)

    def _load_one(self, load: Load, position: Value, inside: Value | None) -> Value:
        code = self.code
        type = Type(memory_element(load.dtype))
        if inside is not None:
            # The first element is always there.
            position = code.select(inside, position, constant(0, I64))
        address = code.offset(self._bases[load.buffer], position, type.element)
        value = from_memory(code, code.load(address, type), load.dtype)
        if inside is None:
            return value
        return code.select(inside, value, constant(0, value.type))

    def _masked_load(self, address: Value, mask: Value, type: Type) -> Value:
        code = self.code
        # LLVM reads lanes that are masked out if their number is no power of two (22.1, AVX2).
        wide = type.wide(1 << (type.lanes - 1).bit_length())
        mask = code.padded(mask, wide.lanes, False)
        loaded = code.masked_load(address, mask, wide)
        return loaded if wide == type else code.shuffle(loaded, None, range(type.lanes))

    def _strided(self, load: Load, place: Place, lanes: int) -> Value:
        code = self.code
        type = Type(memory_element(load.dtype))
        start = code.offset(self._bases[load.buffer], place.start, type.element)
        result = undefined(type.wide(lanes))
        if self._calling:
            function = _emit_load_apart(code.module, result.type)
            result = code.call(function, result.type, start, constant(place.stride, I64))
        else:
            for lane in range(lanes):
                address = code.offset(start, lane * place.stride, type.element)
                result = code.insert(result, code.load(address, type), lane)
        return from_memory(code, result, load.dtype)

    def _gathered(self, load: Load, place: Place, inside: Value | None, lanes: int) -> Value:
        """One element after the other, from any positions."""
        code = self.code
        type = Type(memory_element(load.dtype))
        each = place.each
        if each is None:
            each = self._counted(place.start, place.stride)
        if inside is not None:
            mask = inside if inside.type.lanes else code.splat(inside, lanes)
            inside = mask
            each = code.select(mask, each, constant(0, each.type))
        result = undefined(type.wide(lanes))
        for lane in range(lanes):
            position = code.extract(each, lane)
            address = code.offset(self._bases[load.buffer], position, type.element)
            result = code.insert(result, code.load(address, type), lane)
        value = from_memory(code, result, load.dtype)
        if inside is None:
            return value
        return code.select(inside, value, constant(0, value.type))

    def store_all(self, stores: Sequence[Store]) -> None:
        """Computes the values of all stores at the current point, then writes them."""
        values = [self.vector(store.value) for store in stores]
        places = [self.place(store.index) for store in stores]
        for store, value, place in zip(stores, values, places, strict=True):
            self.store(store, value, place)
        self.forget(store.buffer for store in stores)

    def store(self, store: Store, value: Value, place: Place) -> None:
        """Writes (or adds) a value, a vector where there are lanes."""
        code = self.code
        dtype = store.value.dtype
        base = self._bases[store.buffer]
        type = Type(memory_element(dtype))
        lanes = value.type.lanes
        if not lanes or (place.each is None and place.stride == 1):
            address = code.offset(base, place.start, type.element)
            if store.accumulate:
                old = from_memory(code, code.load(address, type.wide(lanes)), dtype)
                value = code.add(old, value)
            code.store(to_memory(code, value, dtype), address)
            return
        each = place.each
        stored = to_memory(code, value, dtype)
        start = code.offset(base, place.start, type.element) if each is None else base
        if each is None and self._calling and not store.accumulate:
            function = _emit_store_apart(code.module, stored.type)
            code.call_void(function, stored, start, constant(place.stride, I64))
            return
        for lane in range(lanes):
            offset = lane * place.stride if each is None else code.extract(each, lane)
            address = code.offset(start, offset, type.element)
            part = code.extract(stored, lane)
            if store.accumulate:
                part = code.add(code.load(address, type), part)
            code.store(part, address)


def _emit_load_apart(module: Module, type: Type) -> str:
    """Writes `load_apart(address, stride)`, once in a module; gives its name."""
    name = f"load_apart_{type.suffix}"
    if not module.has(name):
        code = module.function(name, (("address", POINTER), ("stride", I64)), result=type)
        address, stride = code.parameters
        result = undefined(type)
        for lane in range(type.lanes):
            result = code.insert(result, code.load(address, type.scalar), lane)
            if lane + 1 < type.lanes:
                address = code.offset(address, stride, type.element)
        code.finish(result)
    return name


def _emit_store_apart(module: Module, type: Type) -> str:
    """Writes `store_apart(vector, address, stride)`, once in a module; gives its name."""
    name = f"store_apart_{type.suffix}"
    if not module.has(name):
        parameters = (("vector", type), ("address", POINTER), ("stride", I64))
        code = module.function(name, parameters)
        vector, address, stride = code.parameters
        for lane in range(type.lanes):
            code.store(code.extract(vector, lane), address)
            if lane + 1 < type.lanes:
                address = code.offset(address, stride, type.element)
        code.finish()
    return name


def _reads(key: object, buffers: set[str]) -> bool:
    """Whether what is remembered under this key was made from loads of these buffers."""
    if not isinstance(key, Load | Apply | Position | Within):
        return False
    return any(load.buffer in buffers for load in loads(key))
