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
        needs: whether it cannot do without.
    """

    number: int
    matrix: Matrix
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
            user = _User(number, matrix, how is not None)
            users[(matrix.right, *axes, step.dtype)].append(user)
    groups = [group for same in users.values() for group in _together(program, same, meet)]
    found: dict[int, Ahead] = {}
    # The largest first, as smaller ones then fit between them.
    for group, before, at_load in sorted(groups, key=lambda group: -_bytes(group[0], context)):
        number, matrix = group[0].number, group[0].matrix
        panels = panels_of(matrix.step, context.processor)
        every = range(len(program.steps))
        steps = every if at_load else _needed(program, group, before)
        offset = context.workspaces.keep(f"pack{number}", _bytes(group, context), steps)
        packed = PackedRight(f"pack{number}", offset, panels, matrix.inner.extent)
        repeat = program.repeated(number) if before == number else None
        turn = repeat.axis if repeat is not None and not at_load else None
        ahead = Ahead(packed, matrix, before, turn, at_load)
        found |= {user.number: ahead for user in group}
    return found


def _bytes(group: Sequence[_User], context: Context) -> int:
    """What the operand takes that the users have in common."""
    matrix = group[0].matrix
    panels = panels_of(matrix.step, context.processor)
    elements = matrix.batch.extent * panels.count * panels.width * matrix.inner.extent
    return elements * matrix.step.dtype.itemsize


def _needed(program: Program, group: Sequence[_User], before: int) -> range:
    """The steps during which an operand needs its place.

    One step more than it is used in: what the next one packs lies elsewhere, so that threads which
    are done need not wait for the others before they pack it.
    """
    last = max(
        user.number if (repeat := program.repeated(user.number)) is None else repeat.last - 1
        for user in group
    )
    return range(before, last + 2)


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
