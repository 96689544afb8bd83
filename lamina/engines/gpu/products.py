"""A contraction as schedules see it: one axis each for batch, m, n and k, and contiguous views."""

from __future__ import annotations

from typing import final

from lamina.base.records import cached_property
from lamina.codegen.axes import stride_along
from lamina.codegen.matrix import exchanged, half_of, multiplied_of, with_single_axes
from lamina.engines.gpu.schedule import HALF_BYTES
from lamina.program.index import Axis, Index, axis_index
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Load, Scalar, loads
from lamina.program.steps import Contraction
from lamina.program.tf32 import unrounded
from lamina.program.windows import loaded

# The elements of float32 in a sector, the smallest piece of memory that is read or written.
SECTOR = 8
# Loads from fewer elements stay in the first cache.
SMALL = 1 << 13
# The longest run of neighbours that is looked for.
_LONGEST_RUN = 32


@final
class Operand:
    """An operand of a product, with its m or n, `outer`, and its k.

    Attributes:
        loaded_bytes: the bytes of an element in memory, as far as costs depend on it: only floats
            of 16 bits count as smaller than the elements that are multiplied.
        half: the floats of 16 bits whose casts to float32 are the elements; None if they are
            anything else.
    """

    def __init__(self, view: Scalar, outer: Axis, k: Axis) -> None:
        self._view, self._outer, self._k = view, outer, k
        load = loaded(view)
        is_half = load is not None and load.dtype.is_half
        self.loaded_bytes = HALF_BYTES if is_half else view.dtype.itemsize
        self.half = half_of(view)

    @cached_property
    def runs(self) -> tuple[int, int]:
        """The contiguous elements along m or n, and along k."""
        return run_along(self._view, self._outer), run_along(self._view, self._k)

    def can_copy(self, along_k: bool, lanes: int) -> bool:
        """Whether vectors along K, or along m or n, can be copied as they are.

        They are floats of 16 bits or stored rounded to TF32, and begin at whole vectors.
        """
        copied = multiplied_of(self._view)
        if not isinstance(copied, Load) or copied is self._view:
            return False
        split, lane = _split_axis(self._k if along_k else self._outer, lanes)
        index = split.index(copied.index)
        others = [step for atom, step in index.terms if atom != lane]
        return all(step % lanes == 0 for step in (*others, index.constant))

    @cached_property
    def distances(self) -> tuple[int, int]:
        """The distance in memory between neighbours along m or n, and along k."""
        return distance_along(self._view, self._outer), distance_along(self._view, self._k)

    @property
    def is_along_k(self) -> bool:
        """Whether vectors are read along K, where runs are longer, or neighbours are nearer."""
        outer, along_k = self.runs
        is_near = 0 < self.distances[1] < self.distances[0]
        return along_k > outer or (along_k == outer and is_near)


@final
class Product:
    """A contraction whose groups of axes are merged."""

    def __init__(self, step: Contraction) -> None:
        self.step = with_single_axes(step, "batch", "m", "n", "k")
        self.batch, self.m, self.n, self.k = self.step.extents
        self.element_bytes = step.dtype.itemsize
        self._scatters = scatters_along_n(step)
        (m,), (n,), (k,) = self.step.m, self.step.n, self.step.k
        self.left, self.right = Operand(self.step.left, m, k), Operand(self.step.right, n, k)

    @property
    def matrix_kind(self) -> str | None:
        """The elements that instructions on matrices multiply; None if there are no such ones.

        Both operands are floats of the same 16 bits, or rounded to TF32. Sums are float32.
        """
        if unrounded(self.step) is not None:
            return "tf32"
        left, right = self.left.half, self.right.half
        is_one_kind = left is not None and right is not None and left.dtype == right.dtype
        return left.dtype.name if is_one_kind and left is not None else None

    @cached_property
    def exchanged(self) -> Product:
        """The product with left and right exchanged."""
        return Product(exchanged(self.step))

    @cached_property
    def stored_runs(self) -> tuple[int, int]:
        """The contiguous elements of all stores along m, and along n."""
        (m,), (n,) = self.step.m, self.step.n
        stored = [store.index for store in self.step.stores]
        return (
            min((index_run(index, m) for index in stored), default=1),
            min((index_run(index, n) for index in stored), default=1),
        )

    @cached_property
    def wasted_bytes(self) -> tuple[float, float]:
        """The bytes that are moved for a result beside those that its stores and loads need.

        They are the rest of sectors: of a kernel that multiplies, and of a loop over the results.
        """
        values = [load for store in self.step.stores for load in loads(store.value)]
        indices = [store.index for store in self.step.stores]
        indices += [load.index for load in values if load.index.bounds[1] >= SMALL]
        runs = [
            max(
                SECTOR if stride_along(index, axis) == 1 else index_run(index, axis)
                for axis in (*self.step.m, *self.step.n)
            )
            for index in indices
        ]

        def wasted(run: int) -> float:
            return self.element_bytes * max(SECTOR / run - 1, 0)

        multiplying = sum(map(wasted, runs))
        # A warp takes a sector of the sums, and four neighbours in memory.
        return multiplying, wasted(4) * len(runs) if self._scatters else multiplying


def scatters_along_n(step: Contraction) -> bool:
    """Whether the stores have neighbours along n apart, but those along another axis together."""
    others = [axis for axis in (*step.batch, *step.m, *step.n[:-1]) if axis.extent > 1]
    indices = {store.index for store in step.stores}
    if len(indices) != 1 or not others or not step.n or step.n[-1].extent % SECTOR:
        return False
    (index,) = indices
    strides = [stride_along(index, axis) for axis in (*others, step.n[-1])]
    return None not in strides and strides[-1] != 1 and 1 in strides


def run_along(view: Scalar, axis: Axis) -> int:
    """The number of contiguous elements in aligned runs along an axis, a power of two.

    At most 32; 1 if the view is anything but a load and casts, or its neighbours are elsewhere.
    """
    load = loaded(view)
    if load is None:
        return 1
    run = index_run(load.index, axis)
    while run > 1:
        split, lane = _split_axis(axis, run)
        bounds = [split.index(bound.index) for bound in load.bounds]
        if all(stride_along(bound, lane) == 0 for bound in bounds):
            break
        run //= 2
    return run


def distance_along(view: Scalar, axis: Axis) -> int:
    """The largest distance in memory between two neighbours along an axis that make a pair.

    0 if the view does not depend on the axis; the size of the buffer's indices if it is unknown.
    """
    split, lane = _split_axis(axis, 2)
    distances = [0]
    for load in loads(split.scalar(view)):
        stride = stride_along(load.index, lane)
        distances.append(load.index.bounds[1] if stride is None else abs(stride))
    return max(distances)


def index_run(index: Index, axis: Axis) -> int:
    """The number of neighbours in aligned runs of an index along an axis, a power of two."""
    run = _LONGEST_RUN
    while run > 1:
        if axis.extent and axis.extent % run == 0:
            split, lane = _split_axis(axis, run)
            if stride_along(split.index(index), lane) == 1:
                return run
        run //= 2
    return 1


def _split_axis(axis: Axis, run: int) -> tuple[Rewrite, Axis]:
    """Replaces an axis by runs and the location in a run, which is the second result."""
    runs, lane = Axis("run", -(-axis.extent // run)), Axis("lane", run)
    return Rewrite({axis: axis_index(runs) * run + axis_index(lane)}), lane


def contiguous(scalar: Scalar, axis: Axis, run: int, small: int = 0) -> bool:
    """Whether every load within a scalar has runs of contiguous, or equal, elements.

    If a run does not divide the axis, neighbours must be contiguous along the whole axis. Loads
    from fewer than `small` elements may have any distance; they stay in a cache.
    """
    lane = axis
    if axis.extent % run == 0 and run > 1:
        split, lane = _split_axis(axis, run)
        scalar = split.scalar(scalar)
    for load in loads(scalar):
        is_small = load.index.bounds[1] < small
        if stride_along(load.index, lane) not in (0, 1) and not is_small:
            return False
        if any(stride_along(bound.index, lane) != 0 for bound in load.bounds):
            return False
    return True
