"""The parts of a program: functions for its steps, and what each step calls them with.

Steps of one signature share their functions. The table of addresses has a section for each step:
the places of workspaces, then the addresses of its own buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import final

from lamina.codegen.axes import merged_axes
from lamina.codegen.llvm import Module
from lamina.codegen.matrix import as_matrix, right_alone
from lamina.codegen.signatures import Signature, Signatures
from lamina.engines.cpu.decide.panels import PackedRight
from lamina.engines.cpu.decide.program import decide
from lamina.engines.cpu.decide.schedule import (
    FusedSum,
    LoopSchedule,
    Nest,
    Prepacking,
    Schedule,
    StepSchedule,
)
from lamina.engines.cpu.decide.work import Slices
from lamina.engines.cpu.emit.context import Context, WrittenKernel
from lamina.engines.cpu.emit.contractions import emit_contraction
from lamina.engines.cpu.emit.loops import emit_loops, emit_nest
from lamina.engines.cpu.emit.prepacking import emit_prepacking
from lamina.engines.cpu.emit.workspaces import SLOTS, Workspaces
from lamina.engines.cpu.processor import Processor
from lamina.program.index import Axis
from lamina.program.program import Buffer, Program
from lamina.program.steps import Contraction, Loop
from lamina.records import frozen_dataclass
from lamina.shapes import float32

# Of steps with how each is run; or with how a right operand is packed, if that is all.
StepSignature = Signature[tuple[StepSchedule, ...] | PackedRight]


@frozen_dataclass
class RepeatedCalls:
    """WrittenProgram that are run for every turn of an axis.

    Attributes:
        first, last: the first part, and the one behind the last.
        turns: how many there are.
    """

    first: int
    last: int
    turns: int


@frozen_dataclass
class KernelCall:
    """A part, as one step calls it.

    Attributes:
        function: its name.
        section: where the addresses of the step begin in the table, in words.
        reads, writes: the buffers it uses.
        slices: how threads share its work items.
    """

    function: str
    section: int
    reads: frozenset[str]
    writes: frozenset[str]
    slices: Slices


@dataclass
class WrittenProgram:
    """What was written of a program.

    Attributes:
        schedule: how its steps are run.
        module: with the functions.
        workspaces: what they need while they run.
        load: the parts that are run once after the parameters were changed.
        parts: those that are run each time.
        steps: for each of them the number of its step.
        loops: which of them are repeated.
        sections: of the table of addresses: the names of the buffers in each, behind the places
            of the workspaces.
        placed: where operands that are prepacked, and buffers that steps have asked for, begin
            in the memory for those, by name.
    """

    schedule: Schedule
    module: Module
    workspaces: Workspaces
    load: list[KernelCall] = field(default_factory=list[KernelCall])
    parts: list[KernelCall] = field(default_factory=list[KernelCall])
    steps: list[int] = field(default_factory=list[int])
    loops: list[RepeatedCalls] = field(default_factory=list[RepeatedCalls])
    # The first one, without buffers, is for what is no step.
    sections: list[tuple[str, ...]] = field(default_factory=lambda: [()])
    placed: dict[str, int] = field(default_factory=dict[str, int])
    # How long the table is.
    words: int = len(SLOTS)

    def add_section(self, names: tuple[str, ...]) -> None:
        """Puts a section behind the others."""
        self.sections.append(names)
        self.words += len(SLOTS) + len(names)


def write_kernels(
    program: Program,
    processor: Processor,
    schedule: Schedule | None = None,
    only: int | None = None,
) -> WrittenProgram:
    """Writes all steps, or one and what it needs.

    Args:
        program: what to write.
        processor: what it is written for.
        schedule: how each step is run; by default that is decided.
        only: the number of the step.
    """
    signatures = Signatures(program)
    schedule = schedule or decide(program, processor, signatures=signatures)
    written = WrittenProgram(schedule, Module(fused=processor.fused), Workspaces())
    _Writer(program, processor, signatures, written).write(only)
    return written


@final
class _Writer:
    """Writes the steps of a program, in order."""

    def __init__(
        self,
        program: Program,
        processor: Processor,
        signatures: Signatures,
        written: WrittenProgram,
    ) -> None:
        self._program = program
        self._processor = processor
        self._schedule = written.schedule
        self._written = written
        self._signatures = signatures
        # What was written for a signature: the parts, and the context with the buffers' order.
        self._known: dict[StepSignature, tuple[list[WrittenKernel], Context]] = {}
        self._prepacked = {
            number: one for one in written.schedule.prepackings for number in one.users
        }
        schedule = written.schedule
        self._packing_kernels = dict(
            zip(schedule.prepackings, schedule.packing_kernels, strict=True)
        )
        self._column_sums = written.schedule.column_sums()

    def write(self, only: int | None) -> None:
        program, written = self._program, self._written
        # The largest first, as smaller ones then fit between them.
        for one in sorted(self._schedule.prepackings, key=lambda one: -one.bytes):
            place = written.workspaces.place(one.name, one.bytes, range(*one.needed))
            written.placed[one.name] = place
        if only is not None:
            scheduled = self._schedule.steps[only]
            only = scheduled.carrier if isinstance(scheduled, FusedSum) else only
        prepackings: dict[int, list[Prepacking]] = {}
        for one in self._schedule.prepackings:
            prepackings.setdefault(one.before, []).append(one)
        first_part = 0
        for number in range(len(program.steps)):
            repeat = program.repeated(number)
            before = prepackings.get(number, []) if only in (None, number) else []
            for one in before:
                if one.iteration is None:
                    self._prepacking(number, one)
            if repeat is not None and repeat.first == number:
                first_part = len(written.parts)
            for one in before:
                if one.iteration is not None:
                    self._prepacking(number, one)
            if only in (None, number):
                self._step(number, repeat.axis if repeat is not None else None)
            if repeat is not None and repeat.last == number + 1:
                last = len(written.parts)
                written.loops.append(RepeatedCalls(first_part, last, repeat.axis.extent))

    def _prepacking(self, number: int, one: Prepacking) -> None:
        """Packs an operand in front of a step."""
        step = self._program.steps[one.users[0]]
        assert isinstance(step, Contraction)
        operand = right_alone(step)
        signature, used = self._signatures.of([operand], one.packed, one.iteration)
        write = partial(_prepacking, one.name, one.packed)
        kernels = [self._packing_kernels[one]]
        parts = self._placed(number, signature, used, kernels, one, write)
        if one.at_load:
            self._written.load += parts
        else:
            self._add(number, parts)

    def _step(self, number: int, iteration: Axis | None) -> None:
        """Writes the parts of a step, and of those that are fused behind it."""
        schedule = self._schedule.steps[number]
        if isinstance(schedule, FusedSum):
            return
        fused = self._column_sums.get(number, [])
        sums = (self._schedule.steps[one] for one in fused)
        nests = [one.nest for one in sums if isinstance(one, FusedSum)]
        names = [f"step{one}" for one in (number, *fused)]
        steps = [self._program.steps[one] for one in (number, *fused)]
        schedules = (schedule, *(LoopSchedule((nest,)) for nest in nests))
        signature, used = self._signatures.of(steps, schedules, iteration)
        write = partial(_parts, names, schedule, nests)
        prepacked = self._prepacked.get(number)
        kernels = self._schedule.kernels[number]
        self._add(number, self._placed(number, signature, used, kernels, prepacked, write))

    def _add(self, number: int, parts: list[KernelCall]) -> None:
        self._written.parts += parts
        self._written.steps += [number] * len(parts)

    def _placed(
        self,
        number: int,
        signature: StepSignature,
        used: Sequence[str],
        kernels: Sequence[Slices],
        prepacked: Prepacking | None,
        write: Callable[[Context, StepSignature], list[WrittenKernel]],
    ) -> list[KernelCall]:
        """The parts of some steps, with a section of their own in the table of addresses.

        Args:
            number: of the step of the program when that happens.
            signature: of what is done.
            used: the buffers that it names by numbers.
            kernels: how threads share the parts.
            prepacked: the operand that was, or is to be, packed before it is used, if there is one.
            write: writes the functions, where no others of the same signature were written before.
        """
        written = self._written
        if signature not in self._known:
            buffers = {buffer.name: buffer for buffer in signature.buffers}
            if prepacked is not None:
                buffers[PackedRight.buffer] = _PACKED
            context = Context(
                written.module,
                buffers,
                self._processor,
                written.workspaces,
                iteration=signature.iteration,
            )
            self._known[signature] = write(context, signature), context
        parts, context = self._known[signature]
        section = written.words
        names = [*used, *([prepacked.name] if prepacked is not None else ())]
        for asked in context.asked:
            names.append(f"{asked} of section {section}")
            needed = range(number, number + 1)
            place = written.workspaces.place(names[-1], context.buffers[asked].bytes, needed)
            written.placed[names[-1]] = place
        written.add_section(tuple(names))
        called = dict(zip(context.buffers, names, strict=True))
        return [
            KernelCall(
                part.function,
                section,
                _renamed(part.reads, called),
                _renamed(part.writes, called),
                slices,
            )
            for part, slices in zip(parts, kernels, strict=True)
        ]


def _renamed(buffers: frozenset[str], called: Mapping[str, str]) -> frozenset[str]:
    return frozenset(called.get(name, name) for name in buffers)


# How long it is is written where it is used.
_PACKED = Buffer(PackedRight.buffer, "temporary", (), float32)


def _prepacking(
    name: str, packed: PackedRight, context: Context, signature: StepSignature
) -> list[WrittenKernel]:
    """Writes the packing of a right operand."""
    (step,) = signature.steps
    assert isinstance(step, Contraction)
    return [emit_prepacking(context, name, packed, as_matrix(step))]


def _parts(
    names: Sequence[str],
    schedule: StepSchedule,
    nests: Sequence[Nest],
    context: Context,
    signature: StepSignature,
) -> list[WrittenKernel]:
    """Writes a step, and column sums behind it; the names are of their functions."""
    step, *sums = signature.steps
    name, *others = names
    if isinstance(step, Loop):
        assert isinstance(schedule, LoopSchedule)
        return emit_loops(context, name, step, schedule)
    column_sums = [
        emit_nest(context, other, merged_axes(loop), nest)
        for other, loop, nest in zip(others, sums, nests, strict=True)
        if isinstance(loop, Loop)
    ]
    return emit_contraction(context, name, step, schedule, column_sums)
