"""Which right operands are packed before the contractions that use them.

Those that depend on parameters alone, which the program leaves as they are, are packed when the
parameters were changed: inference packs its weights once. Those that several contractions use are
packed in front of the first one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lamina.engines.cpu.context import Context
from lamina.engines.cpu.contractions import is_tiled, panels_of, prefers_dots, windows_of
from lamina.engines.cpu.matrix import Matrix, as_matrix
from lamina.engines.cpu.packing import PackedRight
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
        first: the number of its step.
        at_load: whether it is packed only after the parameters were changed.
    """

    packed: PackedRight
    matrix: Matrix
    first: int
    at_load: bool


def packed_ahead(
    program: Program, context: Context, meet: Callable[[str, str], bool]
) -> dict[int, Ahead]:
    """For each contraction whose right operand is packed ahead, by its number: that operand."""
    needed: set[int] = set()
    users: dict[object, list[tuple[int, Matrix]]] = defaultdict(list)
    for number, step in enumerate(program.steps):
        if isinstance(step, Contraction) and is_tiled(step, context.processor):
            matrix = as_matrix(step)
            how = windows_of(step, context.processor)
            if how is None:
                if prefers_dots(matrix, panels_of(step, context.processor), ahead=True):
                    continue
            elif not how.packs_ahead:
                continue
            else:
                needed.add(number)
            axes = (matrix.batch, matrix.column, matrix.inner)
            users[(matrix.right, *axes, step.dtype)].append((number, matrix))
    found: dict[int, Ahead] = {}
    for same in users.values():
        numbers = [number for number, _ in same]
        first, matrix = same[0]
        buffers = {load.buffer for load in loads(matrix.right)}
        at_load = all(program.buffers[name].kind in _LASTING for name in buffers)
        at_load = at_load and not _written(program, buffers, range(len(program.steps)), meet)
        between = range(first, numbers[-1])
        alone = len(same) == 1 and first in needed
        if at_load or alone or (len(same) > 1 and not _written(program, buffers, between, meet)):
            panels = panels_of(matrix.step, context.processor)
            elements = matrix.batch.extent * panels.count * panels.width * matrix.inner.extent
            offset = context.workspaces.keep(elements * matrix.step.dtype.itemsize)
            packed = PackedRight(f"pack{first}", offset, panels, matrix.inner.extent)
            found |= {number: Ahead(packed, matrix, first, at_load) for number in numbers}
    return found


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
