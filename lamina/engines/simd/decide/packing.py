"""The order in which packing reads a right operand.

A packed panel is contiguous along N: for each k its columns are adjacent. Reading in that order is
cheapest if the operand is contiguous along N. If it is contiguous along K, square blocks are read
along K and transposed in registers.
"""

from __future__ import annotations

from lamina.base.records import frozen_dataclass
from lamina.codegen.axes import stride_along
from lamina.codegen.matrix import Matrix, as_plain, stored
from lamina.program.index import Axis


@frozen_dataclass
class Packing:
    """How a panel is read while it is packed.

    Attributes:
        transposed: whether vectors are read along K and square blocks of them transposed in
            registers; otherwise vectors are read along N, one k at a time.
        in_memory_order: whether the loops over the axes of K follow the operand's layout in
            memory; otherwise they follow the order of the axes of K.
    """

    transposed: bool
    in_memory_order: bool

    def __str__(self) -> str:
        texts = ["in the order of memory"] if self.in_memory_order else []
        texts += ["transposed in registers"] if self.transposed else []
        return ", ".join(texts) or "k by k"


def packing_of_some(matrix: Matrix) -> Packing:
    """How a range of k of a panel is packed, in the order of K."""
    return Packing(can_be_transposed(matrix), in_memory_order=False)


def packing_of_all(matrix: Matrix, lanes: int) -> Packing:
    """How all k of a panel with vectors of `lanes` lanes are packed.

    Weights of convolutions are contiguous along the elements of a window, but the innermost axis
    of K is the channels. In the order of K, each cache line would be fetched once for each element.
    """
    if tuple(axis for axis, _ in k_axes_in_memory_order(matrix)) == matrix.k_axes:
        return packing_of_some(matrix)
    return Packing(can_be_transposed_in_memory_order(matrix, lanes), in_memory_order=True)


def can_be_read_in_vectors(matrix: Matrix) -> bool:
    """Whether tiles can read the right operand in its buffer: it is contiguous along N.

    Pairs are not, because they run along K.
    """
    plain = as_plain(matrix.right, matrix.n, matrix)
    return plain is not None and plain.stride == 1 and not matrix.paired


def can_be_transposed(matrix: Matrix) -> bool:
    """Whether the right operand is contiguous along K and not along N."""
    plain = as_plain(matrix.right, matrix.n, matrix, below_conversions=True)
    return plain is not None and plain.k_stride == 1 and plain.stride != 1


def can_be_transposed_in_memory_order(matrix: Matrix, lanes: int) -> bool:
    """Whether each column of B is one run of whole vectors in memory, and N is not contiguous."""
    view = stored(matrix.right_by_axes)
    if view is None or view.load.bounds:
        return False
    load = view.load
    ordered, pitch = k_axes_in_memory_order(matrix), 1
    for axis, step in reversed(ordered):
        if step != pitch:
            return False
        pitch *= axis.extent
    return pitch % lanes == 0 and stride_along(load.index, matrix.n) not in (1, None)


def k_axes_in_memory_order(matrix: Matrix) -> list[tuple[Axis, int]]:
    """The axes of K with their strides in the right operand, largest stride first."""
    view = stored(matrix.right_by_axes)
    steps = dict(view.load.index.terms) if view is not None else {}
    pairs = [(axis, steps.get(axis, 0)) for axis in matrix.k_axes]
    return sorted(pairs, key=lambda pair: -abs(pair[1]))
