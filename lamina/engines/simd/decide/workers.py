"""The work of a program's kernels, and the number of workers that pays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lamina.engines.simd.decide.schedule import FusedSum, GemmSchedule, Prepacking, StepSchedule
from lamina.engines.simd.decide.work import Work
from lamina.engines.simd.processor import Processor
from lamina.program.program import Program

# A worker is woken for kernels that give it at least this many cycles. Workers that are awake share
# smaller kernels too.
CYCLES_WORTH_WAKING = 4000.0


def works_of(steps: Sequence[StepSchedule | FusedSum]) -> list[list[Work]]:
    """The work of each step's kernels, in the order in which they run.

    The work of a fused column sum counts for the step that carries it.
    """
    sums: dict[int, list[Work]] = {}
    for step in steps:
        if isinstance(step, FusedSum):
            sums.setdefault(step.carrier, []).append(step.nest.work)
    return [
        [] if isinstance(step, FusedSum) else _works(step, sums.get(number, []))
        for number, step in enumerate(steps)
    ]


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
    for number, own in enumerate(kernels):
        repeat = program.repeated(number)
        works += _repeated(own, repeat.axis.extent if repeat is not None else 1)
    for one in prepackings:
        often = one.iteration.extent if one.iteration is not None else 1
        works += _repeated([] if one.at_load else [one.work], often)
    at_load = (one.work for one in prepackings if one.at_load)
    return _most(works, processor), _most(at_load, processor)


def _works(step: StepSchedule, sums: Sequence[Work]) -> list[Work]:
    """The work of a step's kernels, with that of its fused column sums."""
    works = list(step.works)
    if isinstance(step, GemmSchedule) and step.split_m == 1:
        # The last kernel multiplies, and runs the column sums of its panels.
        works[-1] = Work(works[-1].items, works[-1].cycles + sum(one.cycles for one in sums))
        return works
    return [*works, *sums]


def _repeated(works: Iterable[Work], often: int) -> Iterator[Work]:
    return (Work(one.items, one.cycles * often) for one in works)


def _most(works: Iterable[Work], processor: Processor) -> int:
    """The largest number of workers that pays for one of the kernels."""

    def worth(work: Work) -> int:
        return max(1, min(processor.threads, work.items, int(work.cycles / CYCLES_WORTH_WAKING)))

    return max(map(worth, works), default=1)
