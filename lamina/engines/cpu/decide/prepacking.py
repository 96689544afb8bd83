"""Which right operands are packed before the contractions that use them.

Those that depend on parameters alone, which the program leaves as they are, are packed when the
parameters were changed: inference packs its weights once. Those that several contractions use, or
all turns of a repeated one, are packed in front of the first use. And contractions over windows
want theirs packed in any case.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from lamina.engines.cpu.decide.matrix import as_matrix
from lamina.engines.cpu.decide.overlap import Writes
from lamina.engines.cpu.emit.contractions import is_tiled, panels_of, prefers_dots, windows_of
from lamina.engines.cpu.emit.forms import Forms
from lamina.engines.cpu.emit.packing import PackedRight
from lamina.engines.cpu.emit.winograd import packed_weights
from lamina.engines.cpu.processor import Processor
from lamina.program.index import Axis, axes_of
from lamina.program.program import Program
from lamina.program.scalar import Literal, loads
from lamina.program.steps import Contraction
from lamina.records import frozen_dataclass

# Threads may wait for each other where that spares the memory of operands as large as this.
WORTH_WAITING_BYTES = 1 << 20
# What does not change while a program runs that does not write it.
_LASTING = ("parameter", "state", "constant")


@frozen_dataclass
class Ahead:
    """An operand that is packed ahead.

    Attributes:
        name: under which parts say that they use it.
        bytes: how much memory it takes.
        packed: how it is packed.
        step: a contraction of which all is left out but this operand.
        before: the number of the step in front of which it is packed.
        needed: the numbers of the steps during which it keeps its place.
        turn: the axis of whose turns each packs it anew, if any.
        at_load: whether it is packed only after the parameters were changed.
    """

    name: str
    bytes: int
    packed: PackedRight
    step: Contraction
    before: int
    needed: range
    turn: Axis | None
    at_load: bool


@frozen_dataclass
class _Wish:
    """How a contraction without names wants its right operand packed.

    Attributes:
        packed: how.
        needs: whether it cannot do without.
        what: what is packed, without names.
        used: the numbers of the buffers that it is read from.
    """

    packed: PackedRight
    needs: bool
    what: tuple[object, ...]
    used: tuple[int, ...]


@frozen_dataclass
class _User:
    """A contraction that may want its right operand packed.

    Attributes:
        number: of its step.
        operand: a contraction of which all is left out but the right operand.
        packed: how it wants it.
        needs: whether it cannot do without.
    """

    number: int
    operand: Contraction
    packed: PackedRight
    needs: bool


@frozen_dataclass
class _Group:
    """Contractions that use an operand that is packed once for all of them.

    Attributes:
        users: in order.
        before: the number of the step in front of which it is packed.
        turn: the axis of whose turns each packs it anew, if any.
        at_load: whether it is packed only after the parameters were changed.
    """

    users: Sequence[_User]
    before: int
    turn: Axis | None
    at_load: bool


def packed_ahead(program: Program, processor: Processor, forms: Forms) -> dict[int, Ahead]:
    """For each contraction whose right operand is packed ahead, by its number: that operand."""
    users: dict[object, list[_User]] = defaultdict(list)
    # Equal steps want the same.
    wishes: dict[Contraction, _Wish | None] = {}
    for number, step in enumerate(program.steps):
        if isinstance(step, Contraction) and is_tiled(step, processor):
            without_names, names = forms.contraction(step)
            if without_names not in wishes:
                wishes[without_names] = _wish(without_names, processor, forms)
            wish = wishes[without_names]
            if wish is not None:
                used = tuple(names[one] for one in wish.used)
                users[(*wish.what, used)].append(
                    _User(number, _right_alone(step), wish.packed, wish.needs)
                )
    found: dict[int, Ahead] = {}
    writes = Writes(program)
    for same in users.values():
        for group in _together(program, same, writes):
            user = group.users[0]
            size = user.operand.extents[0] * user.packed.size * user.operand.dtype.itemsize
            ahead = Ahead(
                f"pack{user.number}",
                size,
                user.packed,
                user.operand,
                group.before,
                _needed(program, group, size),
                group.turn,
                group.at_load,
            )
            found |= {user.number: ahead for user in group.users}
    return found


def _wish(step: Contraction, processor: Processor, forms: Forms) -> _Wish | None:
    """How a contraction without names wants its right operand packed ahead, if it does."""
    how = windows_of(step, processor)
    if how is not None and not how.packs_ahead:
        return None
    panels = panels_of(step, processor)
    if how is None and prefers_dots(as_matrix(step), panels, ahead=True):
        return None
    packed = PackedRight(panels, step.extents[3])
    if how is not None and how.way == "minimal places":
        packed = packed_weights(how, panels)
    operand, used = forms.contraction(_right_alone(step))
    matrix = as_matrix(operand)
    what = (matrix.right, matrix.batch, matrix.column, matrix.inner, step.dtype, packed)
    return _Wish(packed, how is not None, what, tuple(map(int, used)))


def _right_alone(step: Contraction) -> Contraction:
    left, windows = Literal(0, step.dtype), step.windows_in("right")
    return replace(step, rows=(), left=left, stores=(), windows=windows)


def _needed(program: Program, group: _Group, size: int) -> range:
    """The steps during which an operand of so many bytes needs its place.

    A small one keeps it for one step more: what the next one packs lies elsewhere, so that threads
    which are done need not wait for the others before they pack it.
    """
    if group.at_load:
        return range(len(program.steps))
    last = max(
        user.number if (repeat := program.repeated(user.number)) is None else repeat.last - 1
        for user in group.users
    )
    return range(group.before, last + (2 if size < WORTH_WAITING_BYTES else 1))


def _together(program: Program, same: Sequence[_User], writes: Writes) -> list[_Group]:
    """Who uses what is packed at once, and when that is; `same` use the same operand."""
    first, right = same[0].number, same[0].operand.right
    read = loads(right)
    buffers = list({load.buffer: None for load in read})
    axes = set[Axis]().union(*(axes_of(load.index) for load in read))
    repeat = program.repeated(first)
    # What each turn has its own of must be packed in it.
    turn = repeat.axis if repeat is not None and repeat.axis in axes else None
    lasting = all(program.buffers[name].kind in _LASTING for name in buffers)
    if lasting and turn is None and not writes.any_between(buffers, 0, len(program.steps)):
        return [_Group(same, first, None, True)]
    before, hoisted = first, False
    if repeat is not None:
        lasts = not writes.any_between(buffers, repeat.first, repeat.last)
        hoisted = turn is None and lasts
        before, turn = (repeat.first, None) if hoisted else (first, repeat.axis)
    shared = not writes.any_between(buffers, before, same[-1].number) and (
        hoisted or all(program.repeated(user.number) == repeat for user in same)
    )
    if shared and (len(same) > 1 or hoisted or same[0].needs):
        return [_Group(same, before, turn, False)]
    alone: list[_Group] = []
    for user in same:
        own = program.repeated(user.number)
        if user.needs:
            alone.append(_Group([user], user.number, own.axis if own else None, False))
    return alone
