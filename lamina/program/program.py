"""The program: buffers, steps in order, and the plan of the arena.

A program is complete: an engine needs nothing else to compile and run it. `check.verify` checks
the rules on which engines rely.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import accumulate

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, DType, shape_text, size_of
from lamina.program.index import Axis
from lamina.program.steps import Step

# The kinds of buffers. Temporaries are in the arena. All others are in their own memory, which
# outlives the run of the program.
KINDS = ("input", "parameter", "state", "constant", "temporary")


@frozen_dataclass
class Buffer:
    """A contiguous (row-major) array that steps read and write.

    Attributes:
        name: the name, unique in its program.
        kind: a name in `KINDS`.
        shape: the shape, for people; steps address elements by offset.
        dtype: the dtype of the elements.
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
    """The memory of a buffer in the arena, and the steps during which the buffer needs it.

    Attributes:
        buffer: the name of the buffer.
        offset: the bytes from the start of its block.
        bytes: the size in bytes.
        first: the step that writes it first.
        last: the last step that reads it; the number of steps for an output.
        in_place_of: the buffer whose memory it takes over in step `first`, or "".
        block: the number of its block of the arena.
    """

    buffer: str
    offset: int
    bytes: int
    first: int
    last: int
    in_place_of: str = ""
    block: int = 0


@frozen_dataclass
class Plan:
    """The memory of every temporary in the arena.

    Attributes:
        blocks: the bytes of each block of the arena. Usually there is one; there are several where
            a device limits the size of one allocation. All but the last are multiples of 64.
        largest_live_bytes: the most bytes alive in any one step: no plan can need less.
        allocations: one for each temporary.
    """

    blocks: tuple[int, ...]
    largest_live_bytes: int
    allocations: tuple[Allocation, ...]

    @property
    def arena_bytes(self) -> int:
        """The size of the arena, all blocks together."""
        return sum(self.blocks)

    def positions(self) -> dict[str, int]:
        """The byte offset of each temporary in an arena whose blocks are contiguous."""
        starts = tuple(accumulate(self.blocks, initial=0))
        return {place.buffer: starts[place.block] + place.offset for place in self.allocations}


@frozen_dataclass
class Repeat:
    """Steps that are repeated: all of them, in order, for each value of an axis.

    Attributes:
        axis: the axis of iterations, as the steps' index expressions name it.
        first, last: the number of the first of the steps, and of the step after the last.
    """

    axis: Axis
    first: int
    last: int


def replaced_steps(
    replacements: Iterable[Sequence[Step]], repeats: Sequence[Repeat]
) -> tuple[list[Step], list[Repeat]]:
    """The steps that replace each step of a program, and the repeats of the new ones."""
    groups = list(replacements)
    starts = list(accumulate(map(len, groups), initial=0))
    moved = [Repeat(repeat.axis, starts[repeat.first], starts[repeat.last]) for repeat in repeats]
    return [step for group in groups for step in group], moved


@frozen_dataclass
class Program:
    """Steps over planned buffers: all that an engine needs to compile and run.

    Attributes:
        name: the name, for people.
        buffers: all buffers, by name.
        steps: the steps, in the order in which they run.
        repeats: the ranges of repeated steps, in order, not overlapping.
        outputs: the (name, buffer) of each result; the buffer holds it after the last step.
        constants: the values of the constant buffers.
        plan: the layout of the arena.
        prepared: the number of first steps that make rounded copies of parameters and states, in
            temporaries. The other steps keep the copies equal to them. So a run may omit these
            steps if parameters, states and temporaries are as the run before has left them.
        checksum: the checksum of the encoded program (`lamina.program.encoding`); "" at first.
    """

    name: str
    buffers: Mapping[str, Buffer]
    steps: tuple[Step, ...]
    outputs: tuple[tuple[str, str], ...]
    constants: Mapping[str, Array] = field(repr=False)
    plan: Plan
    repeats: tuple[Repeat, ...] = ()
    prepared: int = 0
    checksum: str = field(init=False, default="", compare=False, repr=False)

    def repeated(self, step: int) -> Repeat | None:
        """The repeat that contains a step; None if there is none."""
        position = bisect_right(self.repeats, step, key=lambda repeat: repeat.first) - 1
        repeat = self.repeats[position] if position >= 0 else None
        return repeat if repeat is not None and step < repeat.last else None

    def iteration(self, step: int) -> Axis | None:
        """The axis along which a step is repeated; None if it is not."""
        repeat = self.repeated(step)
        return None if repeat is None else repeat.axis

    def of_kind(self, kind: str) -> tuple[Buffer, ...]:
        """The buffers of one kind, in order."""
        return tuple(b for b in self.buffers.values() if b.kind == kind)

    def __str__(self) -> str:
        lines = [f"program {self.name}"]
        allocations = {a.buffer: a for a in self.plan.allocations}
        several = len(self.plan.blocks) > 1
        for buffer in self.buffers.values():
            allocation = allocations.get(buffer.name)
            at = "" if allocation is None else f" at {allocation.offset}"
            block = f" of block {allocation.block}" if several and allocation is not None else ""
            lines.append(f"  {buffer}{at}{block}")
        for number, step in enumerate(self.steps):
            repeat = self.repeated(number)
            if repeat is not None and repeat.first == number:
                axis = repeat.axis
                lines.append(f"for {axis.name}<{axis.extent}, steps {number} to {repeat.last - 1}:")
            head, *rest = str(step).splitlines()
            lines += [f"{number}: {head}", *("   " + line for line in rest)]
        lines += [f"return {name} = {buffer}" for name, buffer in self.outputs]
        return "\n".join(lines)
