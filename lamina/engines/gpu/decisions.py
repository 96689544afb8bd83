"""The schedule of each step on a device that runs kernels.

All decisions are made here, in `contraction_schedules.py` and in `loop_schedules.py`, from the
program, the target and the traits of the device only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lamina.base.shapes import size_of
from lamina.codegen.matrix import with_single_axes
from lamina.codegen.signatures import Signatures
from lamina.engines.gpu.chain_rows import single_chain
from lamina.engines.gpu.chain_schedules import chain_schedules
from lamina.engines.gpu.contraction_schedules import contraction_schedules
from lamina.engines.gpu.launches import Traits
from lamina.engines.gpu.loop_schedules import loop_schedules
from lamina.engines.gpu.schedule import (
    NARROW,
    PACKED,
    ChainSchedule,
    MatrixSchedule,
    PassesSchedule,
    ProgramSchedule,
    StepSchedule,
    StepsSchedule,
    TiledSchedule,
    TreeSchedule,
    WrittenSchedule,
)
from lamina.program.index import Axis, Gathered, Index
from lamina.program.program import Program
from lamina.program.scalar import Position, indices
from lamina.program.steps import Chain, Contraction, Step, inner_axes, scalars_of, stores_of
from lamina.program.target import Target

# Of a step: the schedules that are expected to be the fastest, and the most that are tried if the
# best ones of other kinds are added.
FASTEST, MOST_PROMISING = 3, 7


def decide(
    program: Program,
    target: Target,
    traits: Traits,
    forced: Mapping[int, StepSchedule] | None = None,
) -> ProgramSchedule:
    """A program's schedule for a target and a device; `forced` has some steps' schedules."""
    signatures = Signatures(program)
    forced = forced or {}
    # Equal steps are decided once.
    decided: dict[Step, StepSchedule] = {}
    schedules: list[StepSchedule] = []
    for number, step in enumerate(program.steps):
        if number in forced:
            schedules.append(forced[number])
            continue
        (canonical,), _ = signatures.numbered(step)
        if canonical not in decided:
            decided[canonical] = next(candidates(canonical, target, traits))
        schedules.append(decided[canonical])
    return ProgramSchedule(tuple(schedules))


def candidates(step: Step, target: Target, traits: Traits) -> Iterator[WrittenSchedule]:
    """Schedules of a step, the one that is expected to be the fastest first."""
    bits = position_bits(step, target)
    if isinstance(step, Contraction):
        return contraction_schedules(step, bits, traits)
    if isinstance(step, Chain):
        return chain_schedules(
            step, bits, traits, lambda part: next(candidates(part, target, traits))
        )
    return loop_schedules(step, bits, traits)


def promising(step: Step, target: Target, traits: Traits) -> Sequence[StepSchedule]:
    """A few schedules of a step: those expected to be the fastest, and the best of other kinds.

    Costs of one kind are comparable, so the model's order is trusted most among those.
    """
    ranked = tuple(dict.fromkeys(candidates(step, target, traits)))
    schedules = list(ranked[:FASTEST])
    for property_ in (_halves, _kind):
        seen = set(map(property_, schedules))
        for schedule in ranked[FASTEST:]:
            if len(schedules) < MOST_PROMISING and property_(schedule) not in seen:
                seen.add(property_(schedule))
                schedules.append(schedule)
    return schedules


def _halves(decided: StepSchedule) -> tuple[bool, bool]:
    if isinstance(decided, PassesSchedule):
        return _halves(decided.passes[0].kernels[0])
    if isinstance(decided, StepsSchedule) and decided.way in PACKED.values():
        return _halves(decided.steps[-1])
    if isinstance(decided, TiledSchedule):
        return decided.left.is_half, decided.right.is_half
    return False, False


def _kind(decided: StepSchedule) -> tuple[object, ...]:
    """What schedules of one kind have in common: the kernels, their tiles, whether K is split."""
    if isinstance(decided, PassesSchedule):
        return ("passes", len(decided.passes), *_kind(decided.passes[0].kernels[0]))
    if isinstance(decided, StepsSchedule):
        return (decided.way in PACKED.values(), *_kind(decided.steps[-1]))
    if isinstance(decided, TiledSchedule):
        return ("tiles", decided.tile_m, decided.tile_n)
    if isinstance(decided, MatrixSchedule):
        return ("matrices", decided.by_warpgroups, decided.tile_m, decided.tile_n)
    if isinstance(decided, TreeSchedule):
        return ("tree", decided.along_k)
    if isinstance(decided, ChainSchedule):
        return ("chain", decided.kind or (decided.tile_m, decided.tile_k))
    return (type(decided).__name__,)


def position_bits(step: Step, target: Target) -> int:
    """The bits in which the positions of a step are computed."""
    return 32 if target.narrow_positions and _is_narrow(step) else 64


def _is_narrow(step: Step) -> bool:
    counted: list[tuple[Axis, ...]]
    if isinstance(step, Contraction):
        # Kernels count its results and its K, and read its operands over single axes.
        step = with_single_axes(step, "batch", "m", "n", "k")
        counted = [(*step.batch, *step.m, *step.n), step.k]
    elif isinstance(step, Chain):
        step = single_chain(step)
        counted = [(*step.axes, *total.n) for total in step.sums]
        counted += [step.k, *(product.axes for product in step.products)]
    else:
        counted = [(*step.axes, *inner_axes(stage)) for stage in step.stages]
    points = (size_of([max(axis.extent, 1) for axis in {*axes}]) for axes in counted)
    stored = (Position(store.index) for store in stores_of(step))
    return max(points) <= NARROW and all(map(_fits, indices(*stored, *scalars_of(step))))


def _fits(index: Index) -> bool:
    if max(map(abs, index.bounds)) > NARROW:
        return False
    inner = (atom for atom, _ in index.terms if not isinstance(atom, Axis | Gathered))
    return all(atom.divisor <= NARROW and _fits(atom.index) for atom in inner)
