"""The parts of a program: functions for its steps, and what each step calls them with.

Steps of one form share their functions. The table of addresses has a section for each step: the
places of workspaces, then the addresses of its own buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import final

from lamina.codegen.llvm import Module
from lamina.engines.cpu.decide.column_sums import riders_of
from lamina.engines.cpu.decide.matrix import as_matrix
from lamina.engines.cpu.decide.prepacking import Ahead, packed_ahead
from lamina.engines.cpu.decide.split_reductions import split_reductions
from lamina.engines.cpu.emit.context import Context
from lamina.engines.cpu.emit.contractions import emit_contraction, panels_of
from lamina.engines.cpu.emit.forms import Form, Forms
from lamina.engines.cpu.emit.loops import Part, emit_loop
from lamina.engines.cpu.emit.packing import PackedRight
from lamina.engines.cpu.emit.workspaces import SLOTS, Workspaces
from lamina.engines.cpu.processor import Processor
from lamina.program.index import Axis
from lamina.program.program import Buffer, Program
from lamina.program.steps import Contraction, Loop, Step
from lamina.records import frozen_dataclass
from lamina.shapes import float32


@frozen_dataclass
class RepeatedParts:
    """Parts that are run for every turn of an axis.

    Attributes:
        first, last: the first part, and the one behind the last.
        turns: how many there are.
    """

    first: int
    last: int
    turns: int


@dataclass
class Parts:
    """What was written of a program.

    Attributes:
        module: with the functions.
        workspaces: what they need while they run.
        load: the parts that are run once after the parameters were changed.
        parts: those that are run each time.
        steps: for each of them the number of its step.
        loops: which of them are repeated.
        sections: of the table of addresses: the names of the buffers in each, behind the places
            of the workspaces.
        placed: where operands that are packed ahead, and buffers that steps have asked for, begin
            in the memory for those, by name.
    """

    module: Module
    workspaces: Workspaces
    load: list[Part] = field(default_factory=list[Part])
    parts: list[Part] = field(default_factory=list[Part])
    steps: list[int] = field(default_factory=list[int])
    loops: list[RepeatedParts] = field(default_factory=list[RepeatedParts])
    # The first one, without buffers, is for what is no step.
    sections: list[tuple[str, ...]] = field(default_factory=lambda: [()])
    placed: dict[str, int] = field(default_factory=dict[str, int])
    # How long the table is.
    words: int = len(SLOTS)

    def add_section(self, names: tuple[str, ...]) -> None:
        """Puts a section behind the others."""
        self.sections.append(names)
        self.words += len(SLOTS) + len(names)


def write_parts(
    program: Program,
    processor: Processor,
    meet: Callable[[str, str], bool],
    only: int | None = None,
) -> Parts:
    """Writes all steps, or one and what it needs.

    Args:
        program: what to write.
        processor: what it is written for.
        meet: whether two buffers share memory.
        only: the number of the step.
    """
    written = Parts(Module(fused=processor.fused), Workspaces())
    _Writer(program, processor, written).write(meet, only)
    return written


@final
class _Writer:
    """Writes the steps of a program, in order."""

    def __init__(self, program: Program, processor: Processor, written: Parts) -> None:
        self._program = program
        self._processor = processor
        self._written = written
        self._known = Forms(program)
        # What was written for a form: the parts, and the context with the buffers' order.
        self._forms: dict[Form, tuple[list[Part], Context]] = {}

    def write(self, meet: Callable[[str, str], bool], only: int | None) -> None:
        program, written = self._program, self._written
        riders = riders_of(program, meet, self._processor, self._known)
        ahead = packed_ahead(program, self._processor, self._known)
        # The largest first, as smaller ones then fit between them.
        for one in sorted(ahead.values(), key=lambda one: -one.bytes):
            if one.name not in written.placed:
                place = written.workspaces.place(one.name, one.bytes, one.needed)
                written.placed[one.name] = place
        packings: dict[tuple[int, Axis | None], dict[str, Ahead]] = {}
        for one in ahead.values():
            packings.setdefault((one.before, one.turn), {})[one.name] = one
        carried: dict[int, list[int]] = {}
        for rider, (carrier, _) in riders.items():
            carried.setdefault(carrier, []).append(rider)
        if only in riders:
            only = riders[only][0]
        first_part = 0
        for number, step in enumerate(program.steps):
            repeat = program.repeated(number)
            turn = repeat.axis if repeat is not None else None
            wanted = only in (None, number)
            if wanted:
                self._packings(number, packings, None)
            if repeat is not None and repeat.first == number:
                first_part = len(written.parts)
            if wanted and number not in riders:
                if repeat is not None:
                    self._packings(number, packings, turn)
                self._step(number, step, carried.get(number, []), ahead.get(number), turn)
            if repeat is not None and repeat.last == number + 1:
                last = len(written.parts)
                written.loops.append(RepeatedParts(first_part, last, repeat.axis.extent))

    def _packings(
        self,
        number: int,
        packings: Mapping[tuple[int, Axis | None], Mapping[str, Ahead]],
        turn: Axis | None,
    ) -> None:
        """Packs what is packed in front of a step: once, or in each turn of an axis."""
        for one in packings.get((number, turn), {}).values():
            parts = self._placed(number, [one.step], one, partial(_packing, one.name), turn)
            self._add(number, parts, at_load=one.at_load)

    def _step(
        self, number: int, step: Step, riders: Sequence[int], ahead: Ahead | None, turn: Axis | None
    ) -> None:
        """Writes the parts of a step, and of those that are run along with it."""
        names = [f"step{one}" for one in (number, *riders)]
        steps = [step, *(self._program.steps[rider] for rider in riders)]
        self._add(number, self._placed(number, steps, ahead, partial(_parts, names), turn))

    def _add(self, number: int, parts: list[Part], *, at_load: bool = False) -> None:
        written = self._written
        if at_load:
            written.load += parts
            return
        written.parts += parts
        written.steps += [number] * len(parts)

    def _placed(
        self,
        number: int,
        steps: Sequence[Step],
        ahead: Ahead | None,
        write: Callable[[Context, Form], list[Part]],
        turn: Axis | None,
    ) -> list[Part]:
        """The parts of some steps, with a section of their own in the table of addresses.

        Args:
            number: of the step of the program when that happens.
            steps: what is done.
            ahead: the operand that was, or is to be, packed ahead, if there is one.
            write: writes the functions, where no others of the same form were written before.
            turn: the axis that the steps are repeated for.
        """
        written = self._written
        packed = ahead.packed if ahead is not None else None
        form, used = self._known.of(steps, packed=packed, turn=turn)
        if form not in self._forms:
            buffers = {buffer.name: buffer for buffer in form.buffers}
            if ahead is not None:
                buffers[PackedRight.buffer] = _PACKED
            context = Context(
                written.module, buffers, self._processor, written.workspaces, turn=turn
            )
            self._forms[form] = write(context, form), context
        parts, context = self._forms[form]
        section = written.words
        names = [*used, *([ahead.name] if ahead is not None else ())]
        for asked in context.asked:
            names.append(f"{asked} of section {section}")
            needed = range(number, number + 1)
            place = written.workspaces.place(names[-1], context.buffers[asked].bytes, needed)
            written.placed[names[-1]] = place
        written.add_section(tuple(names))
        called = dict(zip(context.buffers, names, strict=True))

        def renamed(buffers: frozenset[str]) -> frozenset[str]:
            return frozenset(called.get(name, name) for name in buffers)

        return [
            replace(part, reads=renamed(part.reads), writes=renamed(part.writes), section=section)
            for part in parts
        ]


# How long it is is written where it is used.
_PACKED = Buffer(PackedRight.buffer, "temporary", (), float32)


def _packing(name: str, context: Context, form: Form) -> list[Part]:
    """Writes the packing of a right operand."""
    (step,) = form.steps
    assert isinstance(step, Contraction)
    assert form.packed is not None
    return [form.packed.write(context, name, as_matrix(step))]


def _parts(names: Sequence[str], context: Context, form: Form) -> list[Part]:
    """Writes a step, and loops that are run along with it; the names are of their functions."""
    step, *riders = form.steps
    if isinstance(step, Loop):
        *before, last = split_reductions(context, names[0], step)
        parts = [emit_loop(context, loop.name, loop) for loop in before]
        return [*parts, emit_loop(context, names[0], last)]
    width = panels_of(step, context.processor).width
    along = [
        emit_loop(context, name, loop, columns=width)
        for name, loop in zip(names[1:], riders, strict=True)
        if isinstance(loop, Loop)
    ]
    return emit_contraction(context, names[0], step, form.packed, along)
