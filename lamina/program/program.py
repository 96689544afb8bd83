"""The program: buffers, steps in order, and the plan of the arena.

A program is complete: an engine needs nothing else to compile and run it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from heapq import heappop, heappush

from lamina.errors import InternalError
from lamina.program.index import Axis, Gathered, Index
from lamina.program.scalar import PRIMITIVES, Apply, Load, indices, parts
from lamina.program.steps import (
    COMBINERS,
    Contraction,
    Loop,
    Reduce,
    Scan,
    Step,
    Store,
    Write,
    loads_of,
    reads_of,
    scalars_of,
    stores_of,
    writes_of,
)
from lamina.program.windows import check_window
from lamina.records import frozen_dataclass
from lamina.shapes import Array, DType, shape_text, size_of

# Where a buffer lives: `temporary` in the arena, all others in memory of their own that outlives
# the program's run.
KINDS = ("input", "parameter", "state", "constant", "temporary")


@frozen_dataclass
class Buffer:
    """A contiguous (row-major) array that steps read and write.

    Attributes:
        name: unique in its program.
        kind: a name in `KINDS`.
        shape: for people; steps address elements by offset.
        dtype: of the elements.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: DType

    @property
    def size(self) -> int:
        """The number of elements."""
        return size_of(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.kind} {self.name} {shape_text(self.shape, self.dtype)}"


@frozen_dataclass
class Allocation:
    """A place in the arena, and the steps during which a buffer needs it.

    Attributes:
        buffer: the name of the buffer.
        offset: bytes from the start of the arena.
        bytes: how many it takes.
        first: the step that writes it first.
        last: the last step that reads it; the number of steps for an output.
        in_place_of: the buffer whose place it takes over in step `first`, or "".
    """

    buffer: str
    offset: int
    bytes: int
    first: int
    last: int
    in_place_of: str = ""


@frozen_dataclass
class Plan:
    """Where every temporary lies in the arena.

    Attributes:
        arena_bytes: the size of the arena.
        largest_live_bytes: the most bytes alive in any one step: no plan can need less.
        allocations: one for each temporary.
    """

    arena_bytes: int
    largest_live_bytes: int
    allocations: tuple[Allocation, ...]


@frozen_dataclass
class Repeat:
    """Steps that are run again and again, all of them for each value of an axis, in order.

    Attributes:
        axis: what the steps' index expressions call the turn.
        first, last: the first of the steps, and the one behind the last.
    """

    axis: Axis
    first: int
    last: int


@frozen_dataclass
class Program:
    """What an engine runs.

    Attributes:
        name: for people.
        buffers: all buffers, by name.
        steps: in the order in which they run.
        repeats: which of them are repeated; these ranges are in order, and do not overlap.
        outputs: (name, buffer) of each result; the buffer holds it after the last step.
        constants: the values of the constant buffers.
        plan: the layout of the arena.
        checksum: of all this, "" as long as it was not asked for (`lamina.program.encoding`).
    """

    name: str
    buffers: Mapping[str, Buffer]
    steps: tuple[Step, ...]
    outputs: tuple[tuple[str, str], ...]
    constants: Mapping[str, Array] = field(repr=False)
    plan: Plan
    repeats: tuple[Repeat, ...] = ()
    checksum: str = field(init=False, default="", compare=False, repr=False)

    def repeated(self, step: int) -> Repeat | None:
        """What a step is repeated by, if it is."""
        position = bisect_right(self.repeats, step, key=lambda repeat: repeat.first) - 1
        repeat = self.repeats[position] if position >= 0 else None
        return repeat if repeat is not None and step < repeat.last else None

    def of_kind(self, kind: str) -> tuple[Buffer, ...]:
        """The buffers of one kind, in order."""
        return tuple(b for b in self.buffers.values() if b.kind == kind)

    def __str__(self) -> str:
        lines = [f"program {self.name}"]
        places = {a.buffer: a for a in self.plan.allocations}
        for buffer in self.buffers.values():
            place = places.get(buffer.name)
            lines.append(f"  {buffer}{f' at {place.offset}' if place else ''}")
        for number, step in enumerate(self.steps):
            repeat = self.repeated(number)
            if repeat is not None and repeat.first == number:
                axis = repeat.axis
                lines.append(f"for {axis.name}<{axis.extent}, steps {number} to {repeat.last - 1}:")
            head, *rest = str(step).splitlines()
            lines += [f"{number}: {head}", *("   " + line for line in rest)]
        lines += [f"return {name} = {buffer}" for name, buffer in self.outputs]
        return "\n".join(lines)


def verify(program: Program) -> None:
    """Checks that the program means something: what is read was written, and lies in its buffer.

    Raises:
        InternalError: naming the step and the rule it breaks.
    """
    for name, buffer in program.buffers.items():
        if buffer.kind not in KINDS:
            raise InternalError(f"there is no kind of buffer {buffer.kind!r}", where=buffer.name)
        if buffer.name != name:
            raise InternalError(f"goes by the name {name}", where=buffer.name)
        for extent in buffer.shape:
            _check_number("an extent", extent, 0, buffer.name)
    _check_repeats(program)
    written = {b.name for b in program.buffers.values() if b.kind != "temporary"}
    for number, step in enumerate(program.steps):
        where = f"step {number}, {step.name}"
        _check_axes(step, program.repeated(number), where)
        for store in stores_of(step):
            _check_access(program, store, where)
        for load in loads_of(step):
            _check_access(program, load, where)
        _check_words(step, where)
        own = writes_of(step)
        missing = reads_of(step) - written - own
        if missing:
            raise InternalError(f"reads {sorted(missing)} before it is written", where=where)
        for name in own:
            if program.buffers[name].kind in ("input", "constant"):
                raise InternalError(f"writes the {program.buffers[name].kind} {name}", where=where)
        written |= own
    for name, buffer in program.outputs:
        if buffer not in written:
            raise InternalError(f"the output {name} is never written")
    _check_plan(program.plan)
    places = {one.buffer: one.bytes for one in program.plan.allocations}
    for buffer in program.of_kind("temporary"):
        if buffer.bytes > places.get(buffer.name, 0):
            raise InternalError(f"there is no room in the arena for {buffer}")


# Numbers in steps and places that they reach fit 64 bits.
_LARGEST = 2**63 - 1


def _check_number(what: str, value: object, least: int, where: str) -> None:
    if type(value) is not int or not least <= value <= _LARGEST:
        raise InternalError(f"{what} cannot be {value!r}", where=where)


def _check_repeats(program: Program) -> None:
    end = 0
    for repeat in program.repeats:
        _check_number("an extent", repeat.axis.extent, 0, repeat.axis.name)
        if not end <= repeat.first < repeat.last <= len(program.steps):
            raise InternalError(
                f"steps {repeat.first} to {repeat.last} cannot be repeated", where=repeat.axis.name
            )
        end = repeat.last


def _check_axes(step: Step, repeat: Repeat | None, where: str) -> None:
    """Each axis is iterated once, and places follow from those that are."""
    around = [] if repeat is None else [repeat.axis]
    if isinstance(step, Contraction):
        batch, rows, columns, inner = step.batch, step.rows, step.columns, step.inner
        _check_nest((*around, *batch, *rows, *columns, *inner), (), where)
        _check_nest((*around, *batch, *rows, *inner), indices(step.left), where)
        _check_nest((*around, *batch, *inner, *columns), indices(step.right), where)
        stored = [store.index for store in step.stores]
        values = indices(*(store.value for store in step.stores))
        _check_nest((*around, *batch, *rows, *columns), (*stored, *values), where)
        for window in step.windows:
            on_left = window.operand == "left"
            view, own = (step.left, rows) if on_left else (step.right, columns)
            check_window(window, view, (*batch, *own, *inner), inner, where)
        return
    for stage in step.stages:
        if isinstance(stage, Write):
            inside, stored = stage.axes, [store.index for store in stage.stores]
            values = indices(*(store.value for store in stage.stores))
        elif isinstance(stage, Scan):
            inside, stored, values = (stage.axis,), [stage.index], indices(stage.value)
        else:
            inside, stored, values = stage.axes, [], indices(stage.value)
        _check_nest((*around, *step.axes, *inside), (*stored, *values), where)


def _check_nest(axes: Sequence[Axis], within: Iterable[Index], where: str) -> None:
    """Checks the axes around some places, and the places."""
    names: set[str] = set()
    for axis in axes:
        _check_number(f"the extent of axis {axis.name}", axis.extent, 0, where)
        if axis.name in names:
            raise InternalError(f"iterates axis {axis.name} twice", where=where)
        names.add(axis.name)
    _check_places(within, set(axes), where)


def _check_places(places: Iterable[Index], known: set[Axis], where: str) -> None:
    for index in places:
        for atom, coefficient in index.terms:
            _check_number("a coefficient", coefficient, -_LARGEST, where)
            if isinstance(atom, Axis):
                if atom not in known:
                    raise InternalError(f"nothing iterates axis {atom.name}", where=where)
            elif isinstance(atom, Gathered):
                _check_number("an extent", atom.extent, 0, where)
            else:
                _check_number("a divisor", atom.divisor, 1, where)
                _check_places((atom.index,), known, where)
        if max(map(abs, index.bounds)) > _LARGEST:
            raise InternalError(f"reaches beyond 64 bits: {index}", where=where)


def _check_words(step: Step, where: str) -> None:
    """Engines know the words of `scalar.PRIMITIVES` and `steps.COMBINERS`, and no others."""
    for scalar in parts(*scalars_of(step)):
        if isinstance(scalar, Apply):
            operands = PRIMITIVES.get(scalar.primitive)
            if operands != len(scalar.operands):
                raise InternalError(f"there is no primitive like {scalar}", where=where)
    for stage in step.stages if isinstance(step, Loop) else ():
        if isinstance(stage, Reduce | Scan) and stage.combine not in COMBINERS:
            raise InternalError(f"there is no way to combine by {stage.combine!r}", where=where)


def _check_access(program: Program, access: Load | Store, where: str) -> None:
    buffer = program.buffers.get(access.buffer)
    if buffer is None:
        raise InternalError(f"uses the unknown buffer {access.buffer}", where=where)
    dtype = access.dtype if isinstance(access, Load) else access.value.dtype
    if dtype != buffer.dtype:
        raise InternalError(f"accesses {buffer} as {dtype}", where=where)
    guarded = isinstance(access, Load) and access.bounds
    low, high = access.index.bounds
    if buffer.size and not guarded and (low < 0 or high >= buffer.size):
        raise InternalError(f"reaches outside {buffer}: {access.index}", where=where)


def _check_plan(plan: Plan) -> None:
    """Goes through time with what is alive, in the order of the offsets."""
    alive: list[tuple[int, int, int]] = []
    ending: list[tuple[int, tuple[int, int, int]]] = []
    places = plan.allocations
    numbers = {place.buffer: number for number, place in enumerate(places)}

    def extent(number: int) -> tuple[int, int, int]:
        return places[number].offset, places[number].offset + places[number].bytes, number

    def end(own: tuple[int, int, int]) -> None:
        position = bisect_left(alive, own)
        if alive[position : position + 1] == [own]:
            del alive[position]

    # Those that take over a place come after the others that begin in the same step.
    order = sorted(range(len(places)), key=lambda n: (places[n].first, bool(places[n].in_place_of)))
    for number in order:
        one, own = places[number], extent(number)
        if one.offset < 0 or one.bytes < 0 or own[1] > plan.arena_bytes or one.last < one.first:
            raise InternalError(f"{one.buffer} lies outside the arena")
        while ending and ending[0][0] < one.first:
            end(heappop(ending)[1])
        before = numbers.get(one.in_place_of, number)
        if places[before].last == one.first and extent(before)[:2] == own[:2]:
            end(extent(before))
        if not one.bytes:
            continue
        position = bisect_left(alive, own)
        for start, stop, other in alive[max(position - 1, 0) : position + 1]:
            if start < own[1] and own[0] < stop:
                first, second = sorted((number, other))
                names = f"{places[first].buffer} and {places[second].buffer}"
                raise InternalError(f"{names} share bytes while alive")
        alive.insert(position, own)
        heappush(ending, (one.last, own))
