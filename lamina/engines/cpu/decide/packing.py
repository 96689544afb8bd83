"""In which order the numbers of a right operand are read where it is packed.

What is packed has the columns of a panel side by side for each k. To read it that way costs least
where columns lie side by side in memory. Where k does, squares of numbers are read along it and
turned in registers.
"""

from __future__ import annotations

from lamina.codegen.matrix import Matrix, as_plain
from lamina.codegen.strides import stride_along
from lamina.program.index import Axis
from lamina.program.scalar import Load
from lamina.records import frozen_dataclass


@frozen_dataclass
class Packing:
    """How the numbers of a panel are brought together.

    Attributes:
        turned: whether whole vectors are read along each column, and squares of them turned in
            registers; otherwise the columns of one k are read at once.
        as_it_lies: whether k runs in the order in which the operand lies in memory; otherwise it
            runs in its own.
    """

    turned: bool
    as_it_lies: bool

    def __str__(self) -> str:
        said = ["in the order of memory"] if self.as_it_lies else []
        said += ["turned in registers"] if self.turned else []
        return ", ".join(said) or "k by k"


def packing_of_some(matrix: Matrix) -> Packing:
    """How some k of a panel are packed, one after the other."""
    return Packing(can_be_turned(matrix), as_it_lies=False)


def packing_of_all(matrix: Matrix, lanes: int) -> Packing:
    """How all k of a panel, whose vectors have so many lanes, are packed.

    Weights of convolutions have the window's elements side by side, and k its channels: in the
    order of k every line of the cache would be fetched once for each element.
    """
    if tuple(axis for axis, _ in as_it_lies(matrix)) == matrix.k_axes:
        return packing_of_some(matrix)
    return Packing(can_be_turned_as_it_lies(matrix, lanes), as_it_lies=True)


def can_be_read_in_vectors(matrix: Matrix) -> bool:
    """Whether the columns of the right operand lie side by side."""
    plain = as_plain(matrix.right, matrix.n, matrix)
    return plain is not None and plain.stride == 1


def can_be_turned(matrix: Matrix) -> bool:
    """Whether k lies side by side, and columns do not."""
    plain = as_plain(matrix.right, matrix.n, matrix)
    return plain is not None and plain.k_stride == 1 and plain.stride != 1


def can_be_turned_as_it_lies(matrix: Matrix, lanes: int) -> bool:
    """Whether all k of a column are one run of whole vectors in memory, and columns lie apart."""
    load = matrix.right_by_axes
    if not isinstance(load, Load) or load.bounds:
        return False
    ordered, pitch = as_it_lies(matrix), 1
    for axis, step in reversed(ordered):
        if step != pitch:
            return False
        pitch *= axis.extent
    return pitch % lanes == 0 and stride_along(load.index, matrix.n) not in (1, None)


def as_it_lies(matrix: Matrix) -> list[tuple[Axis, int]]:
    """The inner axes as they lie in the right operand, the widest strides first, with these."""
    load = matrix.right_by_axes
    steps = dict(load.index.terms) if isinstance(load, Load) else {}
    pairs = [(axis, steps.get(axis, 0)) for axis in matrix.k_axes]
    return sorted(pairs, key=lambda pair: -abs(pair[1]))
