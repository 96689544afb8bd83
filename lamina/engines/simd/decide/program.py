"""The schedule of a program; this is the only module that makes one.

Decisions on a step alone are made once for each signature. Decisions that involve other steps
follow: which operands are packed before their use, and which column sums are fused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from lamina.codegen.signatures import Signatures
from lamina.engines.simd.decide.column_sums import fused_column_sums
from lamina.engines.simd.decide.contractions import schedule_contraction
from lamina.engines.simd.decide.loops import nest_of_column_sums, schedule_loop
from lamina.engines.simd.decide.prepacking import prepackings_of
from lamina.engines.simd.decide.schedule import (
    FusedSum,
    GemmSchedule,
    NestSchedule,
    Prepacking,
    ProgramSchedule,
    StepSchedule,
    WindowSchedule,
)
from lamina.engines.simd.decide.work import SLICE_CYCLES, Work, sliced
from lamina.engines.simd.processor import Processor
from lamina.program.program import Program
from lamina.program.scalar import Load, postorder
from lamina.program.steps import Chain, Contraction, Loop, Step


def decide(
    program: Program,
    processor: Processor,
    forced: Mapping[int, StepSchedule] | None = None,
    *,
    signatures: Signatures | None = None,
) -> ProgramSchedule:
    """The schedule of a program for a processor.

    Schedules that are `forced` replace the decisions on steps of these numbers.
    """
    signatures = signatures or Signatures(program)
    return _Deciding(program, processor, forced or {}, signatures).schedule()


@final
@dataclass
class _Deciding:
    program: Program
    processor: Processor
    forced: Mapping[int, StepSchedule]
    signatures: Signatures
    # By steps without names, whether their right operands may be prepacked, and whether an operand
    # is rounded.
    schedules: dict[tuple[Step, bool, bool], StepSchedule] = field(default_factory=dict[Any, Any])

    def schedule(self) -> ProgramSchedule:
        program, steps = self.program, self.program.steps
        drafts = [self._of(number, prepacked=True) for number in range(len(steps))]
        requests = {
            number: draft.prepacked for number, draft in enumerate(drafts) if draft.prepacked
        }
        # The steps that cannot run unless their operands are prepacked.
        required = {
            number
            for number in requests
            if number in self.forced or isinstance(drafts[number], WindowSchedule)
        }
        prepackings = prepackings_of(program, requests, required, self.signatures)
        granted = {number for packing in prepackings for number in packing.users}
        schedules: list[StepSchedule] = [
            self._of(number, prepacked=False)
            if number in requests and number not in granted
            else draft
            for number, draft in enumerate(drafts)
        ]
        step_schedules: list[StepSchedule | FusedSum] = [*schedules]
        nests: dict[tuple[Loop, int], NestSchedule] = {}
        for number, carrier in fused_column_sums(program, schedules, self.signatures).items():
            product = schedules[carrier]
            if number not in self.forced and isinstance(product, GemmSchedule):
                (loop,), _ = self.signatures.numbered(steps[number])
                assert isinstance(loop, Loop)
                key = loop, product.panels.width
                if key not in nests:
                    nests[key] = nest_of_column_sums(*key)
                step_schedules[number] = FusedSum(carrier, nests[key])
        works = works_of(step_schedules)
        workers, load_workers = workers_of(program, works, prepackings, self.processor)
        return ProgramSchedule(
            tuple(step_schedules),
            prepackings,
            workers,
            load_workers,
            tuple(tuple(sliced(work, workers) for work in kernels) for kernels in works),
            tuple(
                sliced(packing.work, load_workers if packing.at_load else workers)
                for packing in prepackings
            ),
            2 * SLICE_CYCLES,
        )

    def _of(self, number: int, *, prepacked: bool) -> StepSchedule:
        """The schedule of a step, without regard to other steps."""
        if number in self.forced:
            return self.forced[number]
        named = self.program.steps[number]
        (step,), _ = self.signatures.numbered(named)
        # Whether an operand was rounded to 16 bits; inputs of 16 bits are exact.
        buffers = self.program.buffers
        is_rounded = isinstance(named, Contraction) and any(
            scalar.dtype.is_half
            and not (isinstance(scalar, Load) and buffers[scalar.buffer].kind == "input")
            for scalar in postorder(named.left, named.right)
        )
        key = step, prepacked, is_rounded
        if key not in self.schedules:
            # The targets of processors form no chains.
            assert not isinstance(step, Chain)
            self.schedules[key] = (
                schedule_contraction(
                    step, self.processor, prepacked=prepacked, is_rounded=is_rounded
                )
                if isinstance(step, Contraction)
                else schedule_loop(step, self.processor)
            )
        return self.schedules[key]


# A worker is woken for kernels that give it at least this many cycles. Workers that are awake share
# smaller kernels too.
CYCLES_WORTH_WAKING = 4000.0


def works_of(steps: Sequence[StepSchedule | FusedSum]) -> list[list[Work]]:
    """The work of each step's kernels, in the order in which they run.

    The work of a fused column sum counts for the step that carries it.
    """
    works = [[] if isinstance(step, FusedSum) else [*step.works] for step in steps]
    for sums in steps:
        if isinstance(sums, FusedSum):
            product, kernels = steps[sums.carrier], works[sums.carrier]
            if isinstance(product, GemmSchedule) and product.split_m == 1:
                # The last kernel multiplies, and runs the column sums of its panels.
                kernels[-1] = Work(kernels[-1].items, kernels[-1].cycles + sums.nest.cycles)
            else:
                kernels.append(sums.nest.work)
    return works


def expected_cycles(program: Program, processor: Processor) -> float:
    """A rough estimate for all kernels of a run."""
    return sum(
        share.work.cycles * (repeat.axis.extent if repeat is not None else 1)
        for number, kernels in enumerate(decide(program, processor).kernels)
        for repeat in (program.repeated(number),)
        for share in kernels
    )


def workers_of(
    program: Program,
    kernels: Iterable[Iterable[Work]],
    prepackings: Sequence[Prepacking],
    processor: Processor,
) -> tuple[int, int]:
    """The number of workers for the program, and for packing after parameters have changed.

    `kernels` has the work of each step's kernels.
    """
    works: list[Work] = []
    for number, step_works in enumerate(kernels):
        repeat = program.repeated(number)
        works += _repeated(step_works, repeat.axis.extent if repeat is not None else 1)
    for packing in prepackings:
        often = packing.iteration.extent if packing.iteration is not None else 1
        works += _repeated([] if packing.at_load else [packing.work], often)
    at_load = (packing.work for packing in prepackings if packing.at_load)
    return _most(works, processor), _most(at_load, processor)


def _repeated(works: Iterable[Work], often: int) -> Iterator[Work]:
    return (Work(work.items, work.cycles * often) for work in works)


def _most(works: Iterable[Work], processor: Processor) -> int:
    """The largest number of workers that pays for one of the kernels."""

    def worth(work: Work) -> int:
        return max(1, min(processor.threads, work.items, int(work.cycles / CYCLES_WORTH_WAKING)))

    return max(map(worth, works), default=1)
