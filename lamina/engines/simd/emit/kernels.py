"""The kernels of a program: functions for its steps, and the arguments of each step's calls.

Steps of one signature share their functions. The table of addresses has a section for each step:
the addresses of workspaces, then of the step's buffers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, final

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import float32
from lamina.codegen.axes import merged_axes
from lamina.codegen.builder import Module
from lamina.codegen.matrix import right_alone
from lamina.codegen.signatures import Signature, Signatures
from lamina.engines.simd.decide.overlap import Extents, LastTouched
from lamina.engines.simd.decide.packing import PackedRight
from lamina.engines.simd.decide.program import decide
from lamina.engines.simd.decide.schedule import (
    FusedSum,
    LoopSchedule,
    Prepacking,
    ProgramSchedule,
    StepSchedule,
)
from lamina.engines.simd.decide.work import Slices
from lamina.engines.simd.emit.addresses import Addresses, Workspaces
from lamina.engines.simd.emit.context import Context, WrittenKernel
from lamina.engines.simd.emit.contractions import emit_contraction
from lamina.engines.simd.emit.loops import emit_loops, emit_nest
from lamina.engines.simd.emit.prepacking import emit_prepacking
from lamina.engines.simd.processor import LINE_BYTES, Processor
from lamina.program.index import Axis
from lamina.program.program import Buffer, Program
from lamina.program.steps import Contraction, Loop, Step

# Of steps and their schedules; or of a right operand and the layout in which it is packed.
StepSignature = Signature[tuple[StepSchedule, ...] | PackedRight]


@frozen_dataclass
class RepeatedCalls:
    """Calls that are repeated in each iteration of an axis.

    Attributes:
        first, last: the number of the first call, and of the call after the last.
        iterations: the number of iterations.
    """

    first: int
    last: int
    iterations: int


@frozen_dataclass
class KernelCall:
    """A kernel, as one step calls it.

    Attributes:
        function: the name of the function.
        section: the number of its section in the table of addresses.
        reads, writes: the buffers that it uses.
        slices: the threads' shares of its work items.
        step: the number of the step, or of the step before which it packs an operand.
    """

    function: str
    section: int
    reads: frozenset[str]
    writes: frozenset[str]
    slices: Slices
    step: int


# The type of a module in the language of the kernels.
Written = TypeVar("Written", bound=Module)


@dataclass
class WrittenProgram(Generic[Written]):
    """The kernels of a program, and their calls.

    The language determines the type of the module.

    Attributes:
        schedule: the decisions on how the steps are run.
        module: the module with the functions.
        workspaces: the memory that the functions need while they run.
        load: the calls that run once after the parameters were changed.
        calls: the calls of each run of the program.
        loops: the repeated ranges of `calls`.
        sections: the names of the buffers in each section of the table of addresses.
        workspace_offsets: the offset of each prepacked operand, and of each buffer that a step
            requested, in the shared workspaces, by name.
        kept: the bytes of operands that are packed at load and are in memory of their own.
    """

    schedule: ProgramSchedule
    module: Written
    workspaces: Workspaces
    load: list[KernelCall] = field(default_factory=list[KernelCall])
    calls: list[KernelCall] = field(default_factory=list[KernelCall])
    loops: list[RepeatedCalls] = field(default_factory=list[RepeatedCalls])
    sections: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    workspace_offsets: dict[str, int] = field(default_factory=dict[str, int])
    kept: dict[str, int] = field(default_factory=dict[str, int])


def write_kernels(
    program: Program,
    processor: Processor,
    module: Written,
    addresses: Addresses,
    schedule: ProgramSchedule | None = None,
    *,
    only: int | None = None,
    alignment: int = LINE_BYTES,
    block_bytes: int | None = None,
    keeps_apart: bool = False,
    whole_vectors: bool = False,
) -> WrittenProgram[Written]:
    """Writes all steps, or one with the packing of its operand.

    Args:
        program: the program.
        processor: the processor for which it is written.
        module: the module that receives the functions.
        addresses: the addresses of buffers and workspaces, in the module's language.
        schedule: the decisions on how each step is run; by default `decide` makes them.
        only: the number of the one step, if not all are written.
        alignment: the alignment of workspaces, in bytes.
        block_bytes: a size whose multiples no workspace crosses; None if they may.
        keeps_apart: whether operands that are packed at load are in memory of their own.
        whole_vectors: the field of `Context`.
    """
    signatures = Signatures(program)
    schedule = schedule or decide(program, processor, signatures=signatures)
    written = WrittenProgram(schedule, module, Workspaces(alignment, block_bytes))
    if keeps_apart:
        at_load = (packing for packing in schedule.prepackings if packing.at_load)
        written.kept = {packing.name: packing.bytes for packing in at_load}
    _Writer(program, processor, signatures, written, addresses, whole_vectors).write(only)
    return written


@final
@frozen_dataclass
class _Writer:
    """Writes the steps of a program, in order."""

    program: Program
    processor: Processor
    signatures: Signatures
    written: WrittenProgram[Any]
    addresses: Addresses
    whole_vectors: bool
    # By signature the kernels that were written, and the context with the order of buffers.
    kernels: dict[StepSignature, tuple[list[WrittenKernel], Context]] = field(
        default_factory=dict[Any, Any]
    )

    def write(self, only: int | None) -> None:
        program, written, schedule = self.program, self.written, self.written.schedule
        # The largest come first, because smaller ones then fit between them.
        for packing in sorted(schedule.prepackings, key=lambda packing: -packing.bytes):
            if packing.name not in written.kept:
                needed = range(*packing.needed)
                offset = written.workspaces.allocate(packing.name, packing.bytes, needed)
                written.workspace_offsets[packing.name] = offset
        if only is not None:
            scheduled = schedule.steps[only]
            only = scheduled.carrier if isinstance(scheduled, FusedSum) else only
        packings = defaultdict[int, list[tuple[Prepacking, Slices]]](list)
        for pair in zip(schedule.prepackings, schedule.packing_kernels, strict=True):
            packings[pair[0].before].append(pair)
        prepacked = {user: packing for packing in schedule.prepackings for user in packing.users}
        column_sums = schedule.column_sums()
        first_call = 0
        for number, step in enumerate(schedule.steps):
            repeat = program.repeated(number)
            is_written = only in (None, number)
            before = packings[number] if is_written else []
            for packing, shares in before:
                if packing.iteration is None:
                    self._prepacking(number, packing, shares)
            if repeat is not None and repeat.first == number:
                first_call = len(written.calls)
            for packing, shares in before:
                if packing.iteration is not None:
                    self._prepacking(number, packing, shares)
            if is_written and not isinstance(step, FusedSum):
                axis = repeat.axis if repeat is not None else None
                self._step(number, step, column_sums.get(number, []), axis, prepacked.get(number))
            if repeat is not None and repeat.last == number + 1:
                last = len(written.calls)
                written.loops.append(RepeatedCalls(first_call, last, repeat.axis.extent))

    def _prepacking(self, number: int, packing: Prepacking, shares: Slices) -> None:
        """Packs an operand before a step."""
        step = self.program.steps[packing.users[0]]
        assert isinstance(step, Contraction)
        signature, used = self.signatures.of([right_alone(step)], packing.packed, packing.iteration)

        def write(context: Context, steps: Sequence[Step]) -> list[WrittenKernel]:
            (numbered,) = steps
            assert isinstance(numbered, Contraction)
            return [emit_prepacking(context, packing.name, packing.packed, numbered)]

        calls = self._calls(number, signature, used, [shares], packing, write)
        if packing.at_load:
            self.written.load += calls
        else:
            self.written.calls += calls

    def _step(
        self,
        number: int,
        schedule: StepSchedule,
        fused: Sequence[int],
        iteration: Axis | None,
        prepacked: Prepacking | None,
    ) -> None:
        """Writes the kernels of a step, and of the column sums that are fused after it."""
        sums = (self.written.schedule.steps[index] for index in fused)
        nests = [fused_sum.nest for fused_sum in sums if isinstance(fused_sum, FusedSum)]
        steps = [self.program.steps[index] for index in (number, *fused)]
        schedules = (schedule, *(LoopSchedule((nest,)) for nest in nests))
        signature, used = self.signatures.of(steps, schedules, iteration)

        def write(context: Context, steps: Sequence[Step]) -> list[WrittenKernel]:
            step, *sums = steps
            name, *others = (f"step{index}" for index in (number, *fused))
            if isinstance(step, Loop):
                assert isinstance(schedule, LoopSchedule)
                return emit_loops(context, name, step, schedule)
            assert isinstance(step, Contraction)
            column_sums = [
                emit_nest(context, other, merged_axes(loop), nest)
                for other, loop, nest in zip(others, sums, nests, strict=True)
                if isinstance(loop, Loop)
            ]
            return emit_contraction(context, name, step, schedule, column_sums)

        shares = self.written.schedule.kernels[number]
        self.written.calls += self._calls(number, signature, used, shares, prepacked, write)

    def _calls(
        self,
        number: int,
        signature: StepSignature,
        used: Sequence[str],
        shares: Sequence[Slices],
        prepacked: Prepacking | None,
        write: Callable[[Context, Sequence[Step]], list[WrittenKernel]],
    ) -> list[KernelCall]:
        """The calls of a signature's kernels, with a new section of the address table.

        `number` is the step, or the step before which an operand is packed. The signature names the
        used buffers by numbers. The kernels pack the prepacked operand, or use it packed. `write`
        writes the kernels of a new signature's steps.
        """
        written = self.written
        if signature not in self.kernels:
            buffers = {buffer.name: buffer for buffer in signature.buffers}
            if prepacked is not None:
                buffers[PackedRight.buffer] = _PACKED
            context = Context(
                *(written.module, buffers, self.processor, written.workspaces, self.addresses),
                iteration=signature.iteration,
                whole_vectors=self.whole_vectors,
            )
            self.kernels[signature] = write(context, signature.steps), context
        kernels, context = self.kernels[signature]
        section = len(written.sections)
        names = [*used, *([prepacked.name] if prepacked is not None else ())]
        for requested in context.requested:
            names.append(f"{requested} of section {section}")
            size = context.buffers[requested].bytes
            offset = written.workspaces.allocate(names[-1], size, range(number, number + 1))
            written.workspace_offsets[names[-1]] = offset
        written.sections.append(tuple(names))
        called = dict(zip(context.buffers, names, strict=True))
        calls: list[KernelCall] = []
        for kernel, slices in zip(kernels, shares, strict=True):
            reads, writes = (
                frozenset(called.get(name, name) for name in some)
                for some in (kernel.reads, kernel.writes)
            )
            calls.append(KernelCall(kernel.function, section, reads, writes, slices, number))
        return calls


# Its size is not used: the functions that read it contain the size.
_PACKED = Buffer(PackedRight.buffer, "temporary", (), float32)


def phase_starts(
    extents: Extents, calls: Sequence[KernelCall], loops: Sequence[RepeatedCalls]
) -> list[bool]:
    """Whether a phase begins with each call, because it depends on a call of the last phase."""
    # A phase also begins with each iteration, and after the last one.
    edges = {edge for loop in loops for edge in (loop.first, loop.last)}
    read, written = LastTouched(extents), LastTouched(extents)
    result: list[bool] = []
    phase = 0
    for number, call in enumerate(calls):
        used = max(written.last(call.reads), written.last(call.writes), read.last(call.writes))
        begins = number == 0 or number in edges or used >= phase
        phase = number if begins else phase
        read.touch(call.reads, number)
        written.touch(call.writes, number)
        result.append(begins)
    return result
