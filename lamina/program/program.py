"""The program: buffers, steps in order, and the plan of the arena.

A program is complete: an engine needs nothing else to compile and run it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from lamina.errors import InternalError
from lamina.program.index import Axis
from lamina.program.scalar import PRIMITIVES, Apply, Load, parts
from lamina.program.steps import (
    COMBINERS,
    Loop,
    Reduce,
    Scan,
    Step,
    Store,
    loads_of,
    reads_of,
    scalars_of,
    stores_of,
    writes_of,
)
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
        repeats: which of them are repeated; these ranges do not overlap.
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
        return next((r for r in self.repeats if r.first <= step < r.last), None)

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
    for buffer in program.buffers.values():
        if buffer.kind not in KINDS:
            raise InternalError(f"there is no kind of buffer {buffer.kind!r}", where=buffer.name)
    written = {b.name for b in program.buffers.values() if b.kind != "temporary"}
    for number, step in enumerate(program.steps):
        where = f"step {number}, {step.name}"
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
    for position, one in enumerate(plan.allocations):
        if one.offset < 0 or one.offset + one.bytes > plan.arena_bytes:
            raise InternalError(f"{one.buffer} lies outside the arena")
        for other in plan.allocations[position + 1 :]:
            taken_over = (one.in_place_of == other.buffer and one.first == other.last) or (
                other.in_place_of == one.buffer and other.first == one.last
            )
            in_time = one.first <= other.last and other.first <= one.last
            in_space = (
                one.offset < other.offset + other.bytes and other.offset < one.offset + one.bytes
            )
            if in_time and in_space and not taken_over:
                raise InternalError(f"{one.buffer} and {other.buffer} share bytes while alive")
