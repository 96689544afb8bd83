"""Fused column sums: loops over the output of a contraction, run panel by panel.

The gradient of a bias is a column sum, over the examples, of the gradient that the previous layer
receives. Its loop runs as soon as a panel of the contraction is stored, on the same worker, while
the panel is in that core's cache.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lamina.codegen.axes import merged_axes
from lamina.codegen.matrix import as_matrix
from lamina.codegen.signatures import Signatures
from lamina.engines.simd.decide.overlap import LastTouched, extents_of
from lamina.engines.simd.decide.schedule import GemmSchedule, StepSchedule
from lamina.program.index import Axis, Index, axis_index
from lamina.program.program import Program
from lamina.program.steps import Contraction, Loop, Scan, reads_of, writes_of


def fused_column_sums(
    program: Program, schedules: Sequence[StepSchedule], signatures: Signatures
) -> dict[int, int]:
    """The numbers of loops that can be fused, each with the number of its contraction.

    Column sums are fused with matrix products only.
    """
    carriers: dict[int, int] = {}
    extents = extents_of(program)
    # By steps without names, and the pairs of their buffers that share memory.
    cached: dict[object, bool] = {}

    def carries(step: Contraction, loop: Loop) -> bool:
        (product, sums), names = signatures.numbered(step, loop)
        assert isinstance(product, Contraction)
        assert isinstance(sums, Loop)
        ranges = [extents[name] for name in names]
        overlapping = frozenset(
            (str(first), str(second))
            for first, (start, end) in enumerate(ranges)
            for second, (begin, stop) in enumerate(ranges)
            if start < stop and begin < end
        )
        key = (product, sums, overlapping)
        if key not in cached:
            cached[key] = _carries(product, sums, overlapping)
        return cached[key]

    read, written = LastTouched(extents), LastTouched(extents)
    for number, step in enumerate(program.steps):
        reads, writes = reads_of(step), writes_of(step)
        if isinstance(step, Loop) and program.repeated(number) is None:
            # The contraction is the last step that writes the loop's operands, and no later step
            # uses the memory of its outputs.
            producer = written.last(reads)
            carrier = program.steps[producer]
            if (
                producer > max(written.last(writes), read.last(writes))
                and program.repeated(producer) is None
                and isinstance(carrier, Contraction)
                and isinstance(schedules[producer], GemmSchedule)
                and carries(carrier, step)
            ):
                carriers[number] = producer
        read.touch(reads, number)
        written.touch(writes, number)
    return carriers


def _carries(step: Contraction, loop: Loop, overlapping: Collection[tuple[str, str]]) -> bool:
    """Whether each point of the loop reads only one column of the contraction's output.

    Buffers are numbered; `overlapping` pairs share memory.
    """
    if step.extents[0] != 1:
        return False
    loop = merged_axes(loop)
    if len(loop.axes) != 1 or any(isinstance(stage, Scan) for stage in loop.stages):
        return False
    (axis,) = loop.axes
    matrix = as_matrix(step)
    stores = {store.buffer: store for store in matrix.step.stores}
    for load in loop.loads:
        if any((load.buffer, name) in overlapping for name in stores):
            store = stores.get(load.buffer)
            if store is None or store.accumulate or axis.extent != matrix.n.extent:
                return False
            if not (_is_in(store.index, matrix.n) and _is_in(load.index, axis)):
                return False
    return True


def _is_in(index: Index, column: Axis) -> bool:
    """Whether the index is in this column of a row-major matrix with `column.extent` columns."""
    return index % column.extent == axis_index(column)
