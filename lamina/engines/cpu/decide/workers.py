"""What the kernels of a program take, and how many workers it is worth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lamina.engines.cpu.decide.schedule import FusedSum, GemmSchedule, Prepacking, StepSchedule
from lamina.engines.cpu.decide.work import Work
from lamina.engines.cpu.processor import Processor
from lamina.program.program import Program

# Workers are worth waking for kernels of so many cycles each; once they are awake, they take their
# share of smaller kernels as well.
CYCLES_WORTH_WAKING = 4000.0


def works_of(steps: Sequence[StepSchedule | FusedSum]) -> list[list[Work]]:
    """That of the kernels of each step, in the order in which they run.

    A sum that is fused has none of its own: its work is that of the step that carries it.
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
    """How many workers run the program, and how many pack what is packed at load.

    Args:
        program: which one.
        kernels: those of its steps.
        prepackings: the operands that are packed before they are used.
        processor: that has the workers.
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
    """That of the kernels of a step, and of the sums that are fused behind it."""
    works = list(step.works)
    if isinstance(step, GemmSchedule) and step.row_cuts == 1:
        # The kernel that multiplies, the last one, makes the sums of its columns.
        works[-1] = Work(works[-1].items, works[-1].cycles + sum(one.cycles for one in sums))
        return works
    return [*works, *sums]


def _repeated(works: Iterable[Work], often: int) -> Iterator[Work]:
    return (Work(one.items, one.cycles * often) for one in works)


def _most(works: Iterable[Work], processor: Processor) -> int:
    """The most workers that a kernel is worth."""

    def worth(work: Work) -> int:
        return max(1, min(processor.threads, work.items, int(work.cycles / CYCLES_WORTH_WAKING)))

    return max(map(worth, works), default=1)
