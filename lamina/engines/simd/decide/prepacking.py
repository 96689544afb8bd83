"""The right operands that are packed before the contractions that use them, and when.

- Operands that depend only on parameters that the program does not write are packed after the
  parameters have changed: inference packs its weights once.
- Operands of several contractions, or of all iterations of a repeated one, are packed before the
  first use.
- Contractions over windows require a packed right operand in any case.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

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
    users: dict[tuple[object, PackedRight, object], list[int]] = defaultdict(list)
    # The operand of each step without names, and the numbers of the operand's buffers.
    operands: dict[Step, tuple[object, tuple[int, ...]]] = {}
    for number, packed in requests.items():
        (numbered,), names = signatures.numbered(program.steps[number])
        if numbered not in operands:
            operands[numbered] = _operand_of(numbered, signatures)
        operand, buffers = operands[numbered]
        users[operand, packed, tuple(names[buffer] for buffer in buffers)].append(number)
    writes = Writes(program)
    return tuple(
        packing
        for (_, packed, _), same in users.items()
        for packing in _together(program, same, packed, required, writes)
    )


def _operand_of(step: Step, signatures: Signatures) -> tuple[object, tuple[int, ...]]:
    """The right operand of a step without names, and the numbers of the buffers that it reads."""
    assert isinstance(step, Contraction)
    (operand,), names = signatures.numbered(right_alone(step))
    assert isinstance(operand, Contraction)
    matrix = as_matrix(operand)
    read = (matrix.right, matrix.batch, matrix.n, matrix.k, step.dtype)
    return read, tuple(map(int, names))


def _together(
    program: Program,
    same: Sequence[int],
    packed: PackedRight,
    required: Collection[int],
    writes: Writes,
) -> list[Prepacking]:
    """The packings that users of one operand share, and their times."""
    first = same[0]
    step = program.steps[first]
    assert isinstance(step, Contraction)
    operand = right_alone(step)
    read = loads(operand.right)
    buffers = list({load.buffer: None for load in read})
    batch = operand.extents[0]
    size, work = batch * packed.size * operand.dtype.itemsize, packed.work(batch)

    def packing(
        users: Sequence[int], before: int, iteration: Axis | None = None, *, at_load: bool = False
    ) -> Prepacking:
        needed = 0, len(program.steps)
        if not at_load:
            repeats = [(number, program.repeated(number)) for number in users]
            last = max(number if loop is None else loop.last - 1 for number, loop in repeats)
            # A small operand keeps its memory for one more step. The next step then packs into
            # other memory, and needs no barrier before it.
            needed = before, last + (2 if size < _WORTH_WAITING_BYTES else 1)
        return Prepacking(tuple(users), packed, size, before, needed, iteration, at_load, work)

    axes = set[Axis]().union(*(axes_of(load.index) for load in read))
    repeat = program.repeated(first)
    # An operand that differs in each iteration must be packed in each.
    iteration = repeat.axis if repeat is not None and repeat.axis in axes else None
    lasting = all(program.buffers[name].kind in _LASTING for name in buffers)
    if lasting and iteration is None and not writes.any_between(buffers, 0, len(program.steps)):
        return [packing(same, first, at_load=True)]
    before, hoisted = first, False
    if repeat is not None:
        lasts = not writes.any_between(buffers, repeat.first, repeat.last)
        hoisted = iteration is None and lasts
        before, iteration = (repeat.first, None) if hoisted else (first, repeat.axis)
    shared = not writes.any_between(buffers, before, same[-1]) and (
        hoisted or all(program.repeated(number) == repeat for number in same)
    )
    if shared and (len(same) > 1 or hoisted or first in required):
        return [packing(same, before, iteration)]
    alone = (number for number in same if number in required)
    return [packing([number], number, program.iteration(number)) for number in alone]
