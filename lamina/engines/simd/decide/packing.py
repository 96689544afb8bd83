"""How N is split into panels, and how a right operand is packed in them.

A packed panel is contiguous along N: for each k its columns are adjacent. Reading in that order is
cheapest if the operand is contiguous along N. If it is contiguous along K, square blocks are read
along K and transposed in registers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from lamina.base.records import frozen_dataclass
from lamina.codegen.axes import stride_along
from lamina.codegen.matrix import Matrix, as_plain, stored
from lamina.engines.simd.decide.work import Work, counted
from lamina.program.index import Axis


@frozen_dataclass
class Panels:
    """How the N axis of a contraction is split into panels.

    Attributes:
        lanes: the lanes of a vector.
        vectors: the vectors of a panel; the last panel may have fewer.
        n: the extent of N.
    """

    lanes: int
    vectors: int
    n: int

    @property
    def width(self) -> int:
        """The columns of a full panel."""
        return self.vectors * self.lanes

    @property
    def count(self) -> int:
        return -(-self.n // self.width)

    def kinds(self) -> Iterator[tuple[str, Panel, str, int]]:
        """The full panels and the last, partial one, as (name, panel, comparison, limit).

        A panel is of a kind if the comparison of its number with the limit holds.
        """
        full, rest = divmod(self.n, self.width)
        if full:
            yield "full", Panel(self.lanes, self.vectors, self.lanes), "slt", full
        if rest:
            vectors = -(-rest // self.lanes)
            last = rest - (vectors - 1) * self.lanes
            yield "rest", Panel(self.lanes, vectors, last), "eq", full

    def __str__(self) -> str:
        return f"{counted(self.count, 'panel')} of {self.vectors} x {self.lanes} lanes"


@frozen_dataclass
class Panel:
    """The vectors of one panel.

    Attributes:
        lanes: the lanes of a vector.
        vectors: the number of vectors.
        last: the lanes of the last vector that hold columns; the others are padding.
    """

    lanes: int
    vectors: int
    last: int

    @property
    def width(self) -> int:
        return self.vectors * self.lanes

    @property
    def n(self) -> int:
        """The columns of the panel, without padding."""
        return (self.vectors - 1) * self.lanes + self.last

    @property
    def last_lanes(self) -> int:
        """The lanes of the last vector: a power of two, at least a quarter of a full vector."""
        lanes = self.lanes
        while lanes // 2 >= self.last and lanes * 4 > self.lanes:
            lanes //= 2
        return lanes

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The vectors, the lanes of each, and the lanes of the last one."""
        return self.vectors, self.lanes, self.last_lanes

    @property
    def label(self) -> str:
        """For names of functions."""
        return f"{self.vectors}x{self.lanes}_{self.last_lanes}"

    def lanes_of(self, number: int) -> int:
        return self.last_lanes if number == self.vectors - 1 else self.lanes

    def runs(self, *, wide: bool) -> list[tuple[int, int]]:
        """(first column, lanes) of each vector; one vector of the whole panel if `wide`."""
        if wide and self.last == self.lanes:
            return [(0, self.width)]
        return [(number * self.lanes, self.present(number)) for number in range(self.vectors)]

    def present(self, number: int) -> int:
        """The columns in vector `number`, without padding."""
        return self.last if number == self.vectors - 1 else self.lanes


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


@frozen_dataclass
class PackedRight:
    """The layout of a right operand that is packed as a whole, before the contractions that use it.

    Attributes:
        panels: the panels of N.
        k: the number of steps along K: pairs if they are paired.
        packing: the order in which the operand is read.
        paired: whether it consists of pairs of bfloat16 along K.
    """

    panels: Panels
    k: int
    packing: Packing
    paired: bool
    # The name of the packed buffer in the steps that write or read it.
    buffer: ClassVar[str] = "packed"

    @property
    def size(self) -> int:
        """The number of elements, padding included, for each matrix of the batch."""
        return self.panels.count * self.panel_size

    @property
    def panel_size(self) -> int:
        """The number of elements of a panel; a pair is one."""
        return self.k * self.panels.width

    def work(self, batch: int) -> Work:
        """The work of packing: a work item for each panel of each matrix of the batch."""
        items = batch * self.panels.count
        return Work(items, 1.5 * items * self.k * self.panels.vectors)


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
