"""Which right operands are packed before the contractions that use them, and when.

Those that depend on parameters alone, which the program leaves as they are, are packed when the
parameters were changed: inference packs its weights once. Those that several contractions use, or
all iterations of a repeated one, are packed in front of the first use. And contractions over
windows want theirs packed in any case.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from lamina.codegen.matrix import as_matrix, right_alone
from lamina.codegen.signatures import Signatures
from lamina.engines.cpu.decide.overlap import Writes
from lamina.engines.cpu.decide.panels import PackedRight
from lamina.engines.cpu.decide.schedule import Prepacking
from lamina.program.index import Axis, axes_of
from lamina.program.program import Program
from lamina.program.scalar import loads
from lamina.program.steps import Contraction, Step
from lamina.records import frozen_dataclass

# Workers may wait for each other where that spares the memory of operands as large as this.
_WORTH_WAITING_BYTES = 1 << 20
# What does not change while a program runs that does not write it.
_LASTING = ("parameter", "state", "constant")


@frozen_dataclass
class Wish:
    """How a contraction wants its right operand packed before it.

    Attributes:
        packed: how.
        needs: whether it cannot do without.
    """

    packed: PackedRight
    needs: bool


@frozen_dataclass
class _User:
    """A contraction that may have its right operand packed before it.

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
        iteration: the axis for each of whose points it is packed anew, if any.
        at_load: whether it is packed only after the parameters were changed.
    """

    users: Sequence[_User]
    before: int
    iteration: Axis | None
    at_load: bool


def prepackings_of(
    program: Program, wishes: Mapping[int, Wish], signatures: Signatures
) -> tuple[Prepacking, ...]:
    """The operands that are packed before they are used.

    Args:
        program: whose operands they are.
        wishes: of its contractions, by their numbers in order; not all of them are granted.
        signatures: of its steps.
    """
    users: dict[object, list[_User]] = defaultdict(list)
    # Equal steps have equal operands: what they are, and the numbers of the buffers they lie in.
    known: dict[Step, tuple[object, tuple[int, ...]]] = {}
    for number, wish in wishes.items():
        step = program.steps[number]
        assert isinstance(step, Contraction)
        (numbered,), names = signatures.numbered(step)
        if numbered not in known:
            known[numbered] = _operand_of(numbered, signatures)
        operand, places = known[numbered]
        key = (operand, wish.packed, tuple(names[place] for place in places))
        users[key].append(_User(number, right_alone(step), wish.packed, wish.needs))
    found: list[Prepacking] = []
    writes = Writes(program)
    for same in users.values():
        found += (_prepacking(program, group) for group in _together(program, same, writes))
    return tuple(found)


def _operand_of(step: Step, signatures: Signatures) -> tuple[object, tuple[int, ...]]:
    """What the right operand of a step without names is, and the buffers that it names."""
    assert isinstance(step, Contraction)
    (operand,), names = signatures.numbered(right_alone(step))
    assert isinstance(operand, Contraction)
    matrix = as_matrix(operand)
    read = (matrix.right, matrix.batch, matrix.n, matrix.k, step.dtype)
    return read, tuple(map(int, names))


def _prepacking(program: Program, group: _Group) -> Prepacking:
    user = group.users[0]
    size = user.operand.extents[0] * user.packed.size * user.operand.dtype.itemsize
    needed = _needed(program, group, size)
    return Prepacking(
        tuple(one.number for one in group.users),
        user.packed,
        size,
        group.before,
        (needed.start, needed.stop),
        group.iteration,
        group.at_load,
        user.packed.work(user.operand.extents[0]),
    )


def _needed(program: Program, group: _Group, size: int) -> range:
    """The steps during which an operand of so many bytes needs its place.

    A small one keeps it for one step more: what the next one packs lies elsewhere, so that workers
    which are done need not wait for the others before they pack it.
    """
    if group.at_load:
        return range(len(program.steps))
    last = max(
        user.number if (repeat := program.repeated(user.number)) is None else repeat.last - 1
        for user in group.users
    )
    return range(group.before, last + (2 if size < _WORTH_WAITING_BYTES else 1))


def _together(program: Program, same: Sequence[_User], writes: Writes) -> list[_Group]:
    """Who uses what is packed at once, and when that is; `same` use the same operand."""
    first, right = same[0].number, same[0].operand.right
    read = loads(right)
    buffers = list({load.buffer: None for load in read})
    axes = set[Axis]().union(*(axes_of(load.index) for load in read))
    repeat = program.repeated(first)
    # What each iteration has its own of must be packed in it.
    iteration = repeat.axis if repeat is not None and repeat.axis in axes else None
    lasting = all(program.buffers[name].kind in _LASTING for name in buffers)
    if lasting and iteration is None and not writes.any_between(buffers, 0, len(program.steps)):
        return [_Group(same, first, None, True)]
    before, hoisted = first, False
    if repeat is not None:
        lasts = not writes.any_between(buffers, repeat.first, repeat.last)
        hoisted = iteration is None and lasts
        before, iteration = (repeat.first, None) if hoisted else (first, repeat.axis)
    shared = not writes.any_between(buffers, before, same[-1].number) and (
        hoisted or all(program.repeated(user.number) == repeat for user in same)
    )
    if shared and (len(same) > 1 or hoisted or same[0].needs):
        return [_Group(same, before, iteration, False)]
    alone: list[_Group] = []
    for user in same:
        own = program.repeated(user.number)
        if user.needs:
            alone.append(_Group([user], user.number, own.axis if own else None, False))
    return alone
