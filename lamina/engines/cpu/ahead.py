"""Which right operands are packed before the contractions that use them.

Those that depend on parameters alone, which the program leaves as they are, are packed when the
parameters were changed: inference packs its weights once. Those that several contractions use, or
all turns of a repeated one, are packed in front of the first use. And contractions over windows
want theirs packed in any case.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lamina.engines.cpu.context import Context
from lamina.engines.cpu.contractions import is_tiled, panels_of, prefers_dots, windows_of
from lamina.engines.cpu.matrix import Matrix, as_matrix
from lamina.engines.cpu.packing import PackedRight
from lamina.engines.cpu.winograd import PLACES, PackedWeights, Taps, taps_of
from lamina.program.index import Axis, axes_of
from lamina.program.program import Program
from lamina.program.scalar import loads
from lamina.program.steps import Contraction, writes_of

# What does not change while a program runs that does not write it.
_LASTING = ("parameter", "state", "constant")


@dataclass(frozen=True)
class Ahead:
    """An operand that is packed ahead.

    Attributes:
        packed: where.
        matrix: the first contraction that uses it.
        before: the number of the step in front of which it is packed.
        turn: the axis of whose turns each packs it anew, if any.
        at_load: whether it is packed only after the parameters were changed.
    """

    packed: PackedRight
    matrix: Matrix
    before: int
    turn: Axis | None
    at_load: bool


@dataclass(frozen=True)
class _User:
    """A contraction that may want its right operand packed.

    Attributes:
        number: of its step.
        matrix: what it is.
        taps: by which weights are found that it wants transformed; None if it wants them as is.
        needs: whether it cannot do without.
    """

    number: int
    matrix: Matrix
    taps: Taps | None
    needs: bool


def packed_ahead(
    program: Program, context: Context, meet: Callable[[str, str], bool]
) -> dict[int, Ahead]:
    """For each contraction whose right operand is packed ahead, by its number: that operand."""
    users: dict[object, list[_User]] = defaultdict(list)
    for number, step in enumerate(program.steps):
        if isinstance(step, Contraction) and is_tiled(step, context.processor):
            matrix = as_matrix(step)
            how = windows_of(step, context.processor)
            if how is not None and not how.packs_ahead:
                continue
            panels = panels_of(step, context.processor)
            if how is None and prefers_dots(matrix, panels, ahead=True):
                continue
            axes = (matrix.batch, matrix.column, matrix.inner)
            taps = taps_of(how) if how is not None and how.way == "minimal places" else None
            user = _User(number, matrix, taps, how is not None)
            users[(matrix.right, *axes, step.dtype, taps)].append(user)
    found: dict[int, Ahead] = {}
    for same in users.values():
        for group, before, at_load in _together(program, same, meet):
            number, matrix = group[0].number, group[0].matrix
            panels = panels_of(matrix.step, context.processor)
            taps = group[0].taps
            inner = matrix.inner.extent if taps is None else PLACES * taps.channels
            elements = matrix.batch.extent * panels.count * panels.width * inner
            offset = context.workspaces.keep(elements * matrix.step.dtype.itemsize)
            packed = PackedRight(f"pack{number}", offset, panels, inner)
            if taps is not None:
                packed = PackedWeights(f"pack{number}", offset, panels, inner, taps)
            repeat = program.repeated(number) if before == number else None
            turn = repeat.axis if repeat is not None and not at_load else None
            ahead = Ahead(packed, matrix, before, turn, at_load)
            found |= {user.number: ahead for user in group}
    return found


def _together(
    program: Program, same: Sequence[_User], meet: Callable[[str, str], bool]
) -> list[tuple[Sequence[_User], int, bool]]:
    """Who uses what is packed at once, in front of which step, and whether that is at load."""
    first, right = same[0].number, same[0].matrix.right
    buffers = {load.buffer for load in loads(right)}
    lasting = all(program.buffers[name].kind in _LASTING for name in buffers)
    if lasting and not _written(program, buffers, range(len(program.steps)), meet):
        return [(same, first, True)]
    repeat = program.repeated(first)
    before, hoisted = first, False
    if repeat is not None:
        steps = range(repeat.first, repeat.last)
        axes = set[Axis]().union(*(axes_of(load.index) for load in loads(right)))
        hoisted = repeat.axis not in axes and not _written(program, buffers, steps, meet)
        before = repeat.first if hoisted else first
    shared = not _written(program, buffers, range(before, same[-1].number), meet) and (
        hoisted or all(program.repeated(user.number) == repeat for user in same)
    )
    if shared and (len(same) > 1 or hoisted or same[0].needs):
        return [(same, before, False)]
    return [([user], user.number, False) for user in same if user.needs]


def _written(
    program: Program,
    buffers: set[str],
    steps: Sequence[int],
    meet: Callable[[str, str], bool],
) -> bool:
    """Whether one of the buffers is written in some of the steps."""
    return any(
        meet(written, name)
        for number in steps
        for written in writes_of(program.steps[number])
        for name in buffers
    )
