"""Loops that are fused behind a contraction: sums over the rows that it has just stored.

The gradient of a bias is the sum of the gradient that goes on to the layer before, over the
examples. Such a loop runs as soon as a panel of columns is done, by the worker that made it, while
the panel is still in its cache.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import final

from lamina.codegen.axes import merged_axes
from lamina.codegen.matrix import as_matrix
from lamina.codegen.signatures import Signatures
from lamina.engines.cpu.decide.overlap import Extents, LastTouched, extents_of
from lamina.engines.cpu.decide.schedule import GemmSchedule, StepSchedule
from lamina.program.index import Axis, Index, axis_index
from lamina.program.program import Program
from lamina.program.steps import Contraction, Loop, Scan, loads_of, reads_of, writes_of


def fused_column_sums(
    program: Program, schedules: Sequence[StepSchedule], signatures: Signatures
) -> dict[int, int]:
    """Of each loop that can be fused, by its number: the number of the contraction.

    Args:
        program: whose loops they are.
        schedules: how its steps are run; only products of matrices have sums fused behind them.
        signatures: of the program's steps.
    """
    found: dict[int, int] = {}
    extents = extents_of(program)
    carriers = _Carriers(extents, signatures)
    read, written = LastTouched(extents), LastTouched(extents)
    for number, step in enumerate(program.steps):
        reads, writes = reads_of(step), writes_of(step)
        if isinstance(step, Loop) and program.repeated(number) is None:
            # Nothing that the loop writes may be in use, and what it reads must be there.
            made = written.last(reads)
            carrier = program.steps[made]
            if (
                made > max(written.last(writes), read.last(writes))
                and program.repeated(made) is None
                and isinstance(carrier, Contraction)
                and isinstance(schedules[made], GemmSchedule)
                and carriers.carries(carrier, step)
            ):
                found[number] = made
        read.touch(reads, number)
        written.touch(writes, number)
    return found


@final
class _Carriers:
    """Says which contractions can have which loops behind them; found once for equal ones.

    Args:
        extents: where the buffers of a program lie.
        signatures: of its steps.
    """

    def __init__(self, extents: Extents, signatures: Signatures) -> None:
        self._extents = extents
        self._signatures = signatures
        self._known: dict[object, bool] = {}

    def carries(self, step: Contraction, loop: Loop) -> bool:
        """Whether each point of the loop needs only one column of what the contraction stores."""
        (one, other), names = self._signatures.numbered(step, loop)
        assert isinstance(one, Contraction)
        assert isinstance(other, Loop)
        meeting = frozenset(
            (str(n), str(m))
            for n, name in enumerate(names)
            for m, another in enumerate(names)
            if self._meet(name, another)
        )
        key = (one, other, meeting)
        if key not in self._known:
            self._known[key] = _carries(one, other, meeting)
        return self._known[key]

    def _meet(self, one: str, other: str) -> bool:
        """Whether two buffers share memory."""
        (start, end), (first, last) = self._extents[one], self._extents[other]
        return start < last and first < end


def _carries(step: Contraction, loop: Loop, meeting: Collection[tuple[str, str]]) -> bool:
    """The same for steps whose buffers are called by numbers; `meeting` are those that share."""
    if step.extents[0] != 1:
        return False
    loop = merged_axes(loop)
    if len(loop.axes) != 1 or any(isinstance(stage, Scan) for stage in loop.stages):
        return False
    (axis,) = loop.axes
    matrix = as_matrix(step)
    stores = {store.buffer: store for store in matrix.step.stores}
    for load in loads_of(loop):
        if any((load.buffer, name) in meeting for name in stores):
            store = stores.get(load.buffer)
            if store is None or store.accumulate or axis.extent != matrix.n.extent:
                return False
            if not (_is_in(store.index, matrix.n) and _is_in(load.index, axis)):
                return False
    return True


def _is_in(index: Index, column: Axis) -> bool:
    """Whether the position lies in this column of rows that are as long as there are columns."""
    return index % column.extent == axis_index(column)
