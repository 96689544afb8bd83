"""The right operands that are packed before the contractions that use them, and the times.

- Operands that depend only on parameters that the program does not write are packed after the
  parameters have changed: inference packs its weights once.
- Operands of several contractions, or of all iterations of a repeated one, are packed before the
  first use.
- Contractions over windows require a packed right operand in any case.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from lamina.base.records import frozen_dataclass
from lamina.codegen.matrix import as_matrix, right_alone
from lamina.codegen.signatures import Signatures
from lamina.engines.simd.decide.overlap import Writes
from lamina.engines.simd.decide.packing import PackedRight
from lamina.engines.simd.decide.schedule import Prepacking
from lamina.program.index import Axis, axes_of
from lamina.program.program import Program
from lamina.program.scalar import loads
from lamina.program.steps import Contraction, Step

# For operands of at least this size a barrier is added, so that their memory is free one step
# earlier.
_WORTH_WAITING_BYTES = 1 << 20
# Kinds of buffers that do not change during a run, unless the program writes them.
_LASTING = ("parameter", "state", "constant")


@frozen_dataclass
class _User:
    """A contraction that may have its right operand packed before it.

    Attributes:
        number: of its step.
        operand: a contraction with the right operand alone.
        packed: the layout of the packed operand.
        required: whether the contraction cannot run otherwise.
    """

    number: int
    operand: Contraction
    packed: PackedRight
    required: bool


def prepackings_of(
    program: Program,
    requests: Mapping[int, PackedRight],
    required: Collection[int],
    signatures: Signatures,
) -> tuple[Prepacking, ...]:
    """The operands that are packed before they are used.

    The requests are layouts for right operands, by the numbers of steps, in order. Some are not
    granted, unless they are required.
    """
    users: dict[object, list[_User]] = defaultdict(list)
    # The operand of each step without names, and the numbers of the operand's buffers.
    known: dict[Step, tuple[object, tuple[int, ...]]] = {}
    for number, packed in requests.items():
        step = program.steps[number]
        assert isinstance(step, Contraction)
        (numbered,), names = signatures.numbered(step)
        if numbered not in known:
            known[numbered] = _operand_of(numbered, signatures)
        operand, buffers = known[numbered]
        key = (operand, packed, tuple(names[buffer] for buffer in buffers))
        users[key].append(_User(number, right_alone(step), packed, number in required))
    writes = Writes(program)
    return tuple(one for same in users.values() for one in _together(program, same, writes))


def _operand_of(step: Step, signatures: Signatures) -> tuple[object, tuple[int, ...]]:
    """The right operand of a step without names, and the numbers of the buffers that it reads."""
    assert isinstance(step, Contraction)
    (operand,), names = signatures.numbered(right_alone(step))
    assert isinstance(operand, Contraction)
    matrix = as_matrix(operand)
    read = (matrix.right, matrix.batch, matrix.n, matrix.k, step.dtype)
    return read, tuple(map(int, names))


def _prepacking(
    program: Program,
    users: Sequence[_User],
    before: int,
    iteration: Axis | None = None,
    *,
    at_load: bool = False,
) -> Prepacking:
    """The packing of an operand that some contractions share."""
    user = users[0]
    batch = user.operand.extents[0]
    size = batch * user.packed.size * user.operand.dtype.itemsize
    needed = 0, len(program.steps)
    if not at_load:
        last = max(
            one.number if (repeat := program.repeated(one.number)) is None else repeat.last - 1
            for one in users
        )
        # A small operand keeps its memory for one more step. The next step then packs into other
        # memory, and needs no barrier before it.
        needed = before, last + (2 if size < _WORTH_WAITING_BYTES else 1)
    numbers, work = tuple(one.number for one in users), user.packed.work(batch)
    return Prepacking(numbers, user.packed, size, before, needed, iteration, at_load, work)


def _together(program: Program, same: Sequence[_User], writes: Writes) -> list[Prepacking]:
    """The packings that users of one operand share, and their times."""
    first, right = same[0].number, same[0].operand.right
    read = loads(right)
    buffers = list({load.buffer: None for load in read})
    axes = set[Axis]().union(*(axes_of(load.index) for load in read))
    repeat = program.repeated(first)
    # An operand that differs in each iteration must be packed in each.
    iteration = repeat.axis if repeat is not None and repeat.axis in axes else None
    lasting = all(program.buffers[name].kind in _LASTING for name in buffers)
    if lasting and iteration is None and not writes.any_between(buffers, 0, len(program.steps)):
        return [_prepacking(program, same, first, at_load=True)]
    before, hoisted = first, False
    if repeat is not None:
        lasts = not writes.any_between(buffers, repeat.first, repeat.last)
        hoisted = iteration is None and lasts
        before, iteration = (repeat.first, None) if hoisted else (first, repeat.axis)
    shared = not writes.any_between(buffers, before, same[-1].number) and (
        hoisted or all(program.repeated(user.number) == repeat for user in same)
    )
    if shared and (len(same) > 1 or hoisted or same[0].required):
        return [_prepacking(program, same, before, iteration)]
    alone: list[Prepacking] = []
    for user in same:
        own = program.repeated(user.number)
        if user.required:
            alone.append(_prepacking(program, [user], user.number, own.axis if own else None))
    return alone
