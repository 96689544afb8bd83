"""The schedule of each step on a device that runs kernels. This file makes all decisions.

A schedule is a frozen record that can be printed. Kernels are written from it, and a test may force
another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from lamina.program.index import Axis, Gathered, Index
from lamina.program.program import Program
from lamina.program.scalar import Position, indices
from lamina.program.steps import Contraction, Loop, Sort, Step, inner_axes, scalars_of, stores_of
from lamina.program.target import Target
from lamina.records import frozen_dataclass
from lamina.shapes import size_of

# The largest register tile.
MOST_TILE_M, MOST_TILE_N = 4, 4
# Positions up to this fit into 32 bits, intermediate sums included.
NARROW = 2**30


@frozen_dataclass
class LoopSchedule:
    """A work item computes all stages at one point of a loop.

    Attributes:
        position_bits: the bits in which positions are computed.
    """

    position_bits: int

    def __str__(self) -> str:
        return f"a point for each work item; positions of {self.position_bits} bits"


@frozen_dataclass
class SortSchedule:
    """A work item finds the rank of one element of a sort by counting those before it.

    Attributes:
        position_bits: the bits in which positions are computed.
    """

    position_bits: int

    def __str__(self) -> str:
        return f"sorted by rank, an element for each work item; {self.position_bits} bits"


@frozen_dataclass
class ContractionSchedule:
    """A work item keeps the sums of a tile of a contraction in registers.

    Attributes:
        tile_m, tile_n: the tile's rows and columns.
        position_bits: the bits in which positions are computed.
    """

    tile_m: int
    tile_n: int
    position_bits: int

    def __str__(self) -> str:
        tile = f"a tile of {self.tile_m} x {self.tile_n} for each work item"
        return f"{tile}; positions of {self.position_bits} bits"


StepSchedule = LoopSchedule | SortSchedule | ContractionSchedule


@frozen_dataclass
class Schedule:
    """All decisions about a program.

    Attributes:
        steps: how each of its steps is run.
    """

    steps: tuple[StepSchedule, ...]

    def __str__(self) -> str:
        return "\n".join(f"{number}: {step}" for number, step in enumerate(self.steps))


def decide(program: Program, target: Target) -> Schedule:
    """The schedule of a program that was compiled for a target."""
    return Schedule(tuple(_decided(step, target) for step in program.steps))


def legal_schedules(program: Program, target: Target) -> Iterator[Schedule]:
    """Other correct schedules of a program."""
    chosen = decide(program, target)
    wide = Schedule(tuple(replace(step, position_bits=64) for step in chosen.steps))
    found = [wide]
    for tile_m, tile_n in ((1, 1), (3, 2)):
        steps = (
            replace(step, tile_m=tile_m, tile_n=tile_n)
            if isinstance(step, ContractionSchedule)
            else step
            for step in chosen.steps
        )
        found.append(Schedule(tuple(steps)))
    yield from (one for one in dict.fromkeys(found) if one != chosen)


def _decided(step: Step, target: Target) -> StepSchedule:
    bits = 32 if target.narrow_positions and _is_narrow(step) else 64
    if isinstance(step, Loop):
        is_sort = any(isinstance(stage, Sort) for stage in step.stages)
        return SortSchedule(bits) if is_sort else LoopSchedule(bits)
    m, n = (size_of([one.extent for one in axes]) for axes in (step.m, step.n))
    return ContractionSchedule(max(min(m, MOST_TILE_M), 1), max(min(n, MOST_TILE_N), 1), bits)


def _is_narrow(step: Step) -> bool:
    """Whether all positions of a step fit into 32 bits."""
    axes: Iterable[Axis]
    if isinstance(step, Contraction):
        axes = (*step.batch, *step.m, *step.n, *step.k)
    else:
        axes = (*step.axes, *(axis for stage in step.stages for axis in inner_axes(stage)))
    if size_of([max(axis.extent, 1) for axis in {*axes}]) > NARROW:
        return False
    stored = (Position(store.index) for store in stores_of(step))
    return all(map(_fits, indices(*stored, *scalars_of(step))))


def _fits(index: Index) -> bool:
    if max(map(abs, index.bounds)) > NARROW:
        return False
    inner = (atom for atom, _ in index.terms if not isinstance(atom, Axis | Gathered))
    return all(atom.divisor <= NARROW and _fits(atom.index) for atom in inner)
