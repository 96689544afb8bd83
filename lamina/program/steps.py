"""The steps of a program: loop nests, contractions, and chains of contractions.

A step states the values at each point of an iteration space and the elements in which they are
stored. The engine chooses order, vectors and threads. Engines may rely on these rules:

- The points of a loop's own axes, of a contraction's batch, m and n axes, and of a chain's batch
  and m axes, are independent: they may be computed in any order and at the same time.
- Different points store in different elements. No element is stored twice, except by additions in
  order at one point.
- The stages of one point run one after the other. The positions that a `Sort` stores, and the sums
  of a `SegmentSum`, do not depend on how the work on one point is divided.
- The inner axes of a `Write` that is not sequential are parallel among themselves, once all
  earlier stages of that point are done.
- A step may overwrite elements that it reads: elements of a parameter, or of an operand whose
  memory the result takes over. Such an element is loaded only at the index that stores it, by the
  same stage or by an earlier stage of the same point. A contraction's operands are never
  overwritten.

So if an earlier stage of a point reads an element that a later stage overwrites, the point must
not be split over workers that each repeat the earlier stage. `lamina.program.parallel` returns the
axes along which the workers of a step may be split without a barrier. `lamina.program.check`
refuses a program if it finds a point that breaks these rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import cast

from lamina.base.records import cached_property, frozen_dataclass
from lamina.base.shapes import DType, int32, int64, size_of
from lamina.program.index import Axis, Index, axes_of, axis_index
from lamina.program.scalar import Apply, Load, Position, Scalar, loads, named, text
from lamina.program.windows import Sliding

# How a reduction combines values, and its result over no values; None if it needs at least one.
COMBINERS: dict[str, float | None] = {
    "sum": 0,
    "product": 1,
    "maximum": None,  # NaN if any value is NaN
    "minimum": None,  # NaN if any value is NaN
    "argmax": None,  # the first position of the maximum, NaN counting as larger than any number
    "argmin": None,  # the first position of the minimum, NaN counting as smaller than any number
}

# The primitives that combine two partial results. Combiners of positions have none.
COMBINING = {"sum": "add", "product": "multiply", "maximum": "maximum", "minimum": "minimum"}

# The combiners whose result is a position. A `Scan` cannot use them.
POSITIONAL = ("argmax", "argmin")


@frozen_dataclass
class Store:
    """Writes a value to an element of a buffer; with accumulate, adds it to the element.

    The index is different for every point of the iteration space, and for every store of a stage.
    Only accumulating stores may share an element: stores of a sequential `Write` at one point of
    the loop, and two stores at one point of any stage. A later stage may overwrite an element that
    an earlier stage of the same point stored.
    """

    buffer: str
    index: Index
    value: Scalar
    accumulate: bool = False

    def text(self, names: Mapping[Scalar, str]) -> str:
        """The store in one line; subexpressions that have a name are written as their name."""
        sign = "+=" if self.accumulate else "="
        return f"{self.buffer}[{self.index}] {sign} {text(self.value, names)}"


@frozen_dataclass
class Reduce:
    """Combines a value over some axes into a local of the step.

    Attributes:
        local: the name under which later stages use the result.
        combine: a name in `COMBINERS`.
        axes: the axes that are combined, outermost first; without axes, the local is the value.
        value: the value to combine.
        dtype: the dtype of the result: the value's, int64 for argmax and argmin.
    """

    local: str
    combine: str
    axes: tuple[Axis, ...]
    value: Scalar
    dtype: DType

    def __str__(self) -> str:
        combined = f"{self.combine}({_over(self.axes)}) " if self.axes else ""
        return f"{self.local} = {combined}{self.value}"


@frozen_dataclass
class Write:
    """Stores values at every point of some further axes.

    All values of one point are computed before any of them is stored.

    Attributes:
        axes: the further axes inside the step's own; empty for one point.
        stores: the outputs; several stores share their common subexpressions.
        sequential: whether the axes must be run in order, because several points may accumulate in
            one element. The element then adds up in this order on every engine.
    """

    axes: tuple[Axis, ...]
    stores: tuple[Store, ...]
    sequential: bool = False

    def __str__(self) -> str:
        lines = _store_lines(self.stores)
        if not self.axes:
            return "\n".join(lines)
        order = "in order " if self.sequential else ""
        return "\n".join([f"{order}for {_over(self.axes)}:", *("  " + line for line in lines)])


@frozen_dataclass
class Scan:
    """Stores the running combination of a value along one axis, in order.

    Attributes:
        axis: the axis along which values are accumulated.
        combine: the name `"sum"` or another in `COMBINERS` that is not positional.
        value: the value to accumulate.
        buffer: the buffer of the running results.
        index: the element of the running result, for each point of the axis.
        dtype: the dtype of the running result.
    """

    axis: Axis
    combine: str
    value: Scalar
    buffer: str
    index: Index
    dtype: DType

    def __str__(self) -> str:
        over = _over((self.axis,))
        return f"{self.buffer}[{self.index}] = running {self.combine}({over}) {self.value}"


@frozen_dataclass
class Sort:
    """Stores the order of an integer key along one axis; it is the only stage of its loop.

    The first rank gets the position of the smallest key, the second rank the position of the next
    key, and so on. The sort is stable. All keys of a point are read before any rank is stored.

    Attributes:
        axis: the axis that iterates positions in the key, and ranks in the index.
        key: an integer.
        buffer: the buffer of the sorted positions.
        index: the element of each rank.
        dtype: the dtype of the positions: `position_dtype(axis)`, int32 if the extent fits.
    """

    axis: Axis
    key: Scalar
    buffer: str
    index: Index
    dtype: DType

    @property
    def positions(self) -> Scalar:
        """The position before sorting, in the dtype of the stored positions."""
        position = Position(axis_index(self.axis))
        return position if self.dtype == int64 else Apply("cast", (position,), self.dtype)

    def __str__(self) -> str:
        return f"{self.buffer}[{self.index}] = order({_over((self.axis,))}) {self.key}"


def position_dtype(axis: Axis) -> DType:
    """The dtype in which positions along an axis are stored."""
    return int32 if axis.extent <= 2**31 else int64


@frozen_dataclass
class SegmentSum:
    """Adds up a value over the ranks of one segment, into a local of the step.

    The segment is the ranks whose key equals `segment`. Keys are ascending along the ranks, so
    these ranks are contiguous, and binary search finds them. Values are added in the order of the
    ranks, beginning with zero.

    Attributes:
        local: the name under which later stages use the sum.
        axis: the ranks.
        key: an integer for each rank.
        segment: the key of the ranks that are added up; depends on the loop's axes alone.
        value: the value to add up.
        dtype: the dtype of the sum: the value's.
    """

    local: str
    axis: Axis
    key: Scalar
    segment: Index
    value: Scalar
    dtype: DType

    def __str__(self) -> str:
        over = _over((self.axis,))
        return f"{self.local} = sum({over} where {self.key} == {self.segment}) {self.value}"


Stage = Reduce | Write | Scan | Sort | SegmentSum


def inner_axes(stage: Stage) -> tuple[Axis, ...]:
    """The axes that a stage iterates inside the axes of its loop."""
    return stage.axes if isinstance(stage, Reduce | Write) else (stage.axis,)


def stage_values(stage: Stage) -> tuple[Scalar, ...]:
    """The values that a stage computes at each of its points."""
    if isinstance(stage, Write):
        return tuple(store.value for store in stage.stores)
    if isinstance(stage, Sort):
        return (stage.key,)
    if isinstance(stage, SegmentSum):
        return (stage.key, Position(stage.segment), stage.value)
    return (stage.value,)


def stage_stores(stage: Stage) -> tuple[Store, ...]:
    """The stores of a stage: a scan stores its running value, a sort its positions."""
    if isinstance(stage, Write):
        return stage.stores
    if isinstance(stage, Scan):
        return (Store(stage.buffer, stage.index, stage.value),)
    if isinstance(stage, Sort):
        return (Store(stage.buffer, stage.index, stage.positions),)
    return ()


@frozen_dataclass
class Nest:
    """A loop nest of a step: what is computed and stored at each point of some axes.

    Attributes:
        axes: the axes, outermost first.
        values: the computed values, those that are stored included.
        stores: the stores at each point.
        combining: the operations that combine a value, or a product, with others.
        in_order: whether points are run in order, except along the step's own axes.
        once: the axes along which each value counts once, as it is added to one segment only.
    """

    axes: tuple[Axis, ...]
    values: tuple[Scalar, ...] = ()
    stores: tuple[Store, ...] = ()
    combining: int = 0
    in_order: bool = False
    once: frozenset[Axis] = frozenset()


def _storing(axes: tuple[Axis, ...], stores: tuple[Store, ...]) -> Nest:
    return Nest(axes, tuple(store.value for store in stores), stores)


class _Cached:
    """Loads and hash of a step, computed once."""

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """Every distinct load, including those inside the indices of stores."""
        step = cast(Step, self)
        return loads(*scalars_of(step), *gathering_positions(stores_of(step)))

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(self.__getstate__().values()))

    def __getstate__(self) -> dict[str, object]:
        # Hashes of strings differ from process to process.
        return {field.name: getattr(self, field.name) for field in fields(cast(Step, self))}


@frozen_dataclass
class Loop(_Cached):
    """A loop nest: for every point of the axes, the stages one after the other.

    Attributes:
        name: the name, for people; unique in its program.
        axes: the parallel axes, outermost first.
        stages: the stages of each point, in order.
    """

    name: str
    axes: tuple[Axis, ...]
    stages: tuple[Stage, ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def nests(self) -> tuple[Nest, ...]:
        """A nest for each stage."""
        nests: list[Nest] = []
        for stage in self.stages:
            inner, values = inner_axes(stage), stage_values(stage)
            combines = isinstance(stage, Reduce | Scan | SegmentSum) and bool(inner)
            segment = stage.segment if isinstance(stage, SegmentSum) else Index()
            nests.append(
                Nest(
                    *((*self.axes, *inner), values, stage_stores(stage)),
                    combining=int(combines and values[-1].dtype.is_float),
                    in_order=isinstance(stage, Write) and stage.sequential,
                    once=frozenset(axes_of(segment)),
                )
            )
        return tuple(nests)

    def __str__(self) -> str:
        lines = [f"loop {self.name} over ({_over(self.axes)})"]
        for stage in self.stages:
            lines += ["  " + line for line in str(stage).splitlines()]
        return "\n".join(lines)


@frozen_dataclass
class Contraction(_Cached):
    """C[b, m, n] = epilogue(sum over k of left[b, m, k] * right[b, k, n]).

    The operands are views: loads through an index expression with bounds, possibly cast or rounded
    to TF32. So transposes, windows, gathers and padding are read without a copy.

    Attributes:
        name: the name, for people; unique in its program.
        batch, m, n, k: the axes; each of the four may be several or none.
        left: the left operand, which depends on the batch, m and k axes only.
        right: the right operand, which depends on the batch, k and n axes only.
        result: the name of the local that holds the sum in the epilogue.
        dtype: the dtype of the sum.
        stores: the epilogue: the stores at each (b, m, n).
        left_windows, right_windows: the windows that slide along dimensions of the operands, as in
            their views.
    """

    name: str
    batch: tuple[Axis, ...]
    m: tuple[Axis, ...]
    n: tuple[Axis, ...]
    k: tuple[Axis, ...]
    left: Scalar
    right: Scalar
    result: str
    dtype: DType
    stores: tuple[Store, ...]
    left_windows: tuple[Sliding, ...] = ()
    right_windows: tuple[Sliding, ...] = ()

    def __hash__(self) -> int:
        return self._hash

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes over which the sums are stored: batch, m and n."""
        return (*self.batch, *self.m, *self.n)

    @cached_property
    def nests(self) -> tuple[Nest, ...]:
        """The sums of products, both operands, and the epilogue."""
        return (
            Nest((*self.axes, *self.k), combining=2),
            Nest((*self.batch, *self.m, *self.k), (self.left,)),
            Nest((*self.batch, *self.k, *self.n), (self.right,)),
            _storing(self.axes, self.stores),
        )

    @property
    def extents(self) -> tuple[int, int, int, int]:
        """The sizes (b, m, n, k)."""
        groups = (self.batch, self.m, self.n, self.k)
        b, m, n, k = (size_of([axis.extent for axis in group]) for group in groups)
        return b, m, n, k

    def __str__(self) -> str:
        space = "; ".join(_over(group) for group in (self.batch, self.m, self.n) if group)
        k = self.k
        lines = [
            f"contraction {self.name} over ({space})",
            f"  {self.result} = sum({_over(k)}) {self.left} * {self.right}",
            *(f"  {window.kind(k)}, windows of left: {window}" for window in self.left_windows),
            *(f"  {window.kind(k)}, windows of right: {window}" for window in self.right_windows),
        ]
        return "\n".join(lines + [f"  {line}" for line in _store_lines(self.stores)])


@frozen_dataclass
class InnerProduct:
    """A sum of products at each point of a chain: sum over its axes of left * right.

    Attributes:
        result: the name of the local that holds the sum.
        axes: the axes that are summed over.
        left: the left operand, which depends on the batch axes, m and these axes.
        right: the right operand, which depends on the batch axes, k and these axes.
        dtype: the dtype of the sum.
    """

    result: str
    axes: tuple[Axis, ...]
    left: Scalar
    right: Scalar
    dtype: DType


@frozen_dataclass
class WeightedSum:
    """A sum over the k axes of a chain: sum over k of weight[b, m, k] * right[b, k, n].

    Attributes:
        result: the name of the local that holds the sum in the stores.
        n: the axes along which each point of the batch and m has sums.
        weight: the weight, computed from the inner products and the reductions.
        right: the right operand, which depends on the batch, k and n axes.
        dtype: the dtype of the sum.
        stores: the stores at each (b, m, n), of the sum and the reductions.
    """

    result: str
    n: tuple[Axis, ...]
    weight: Scalar
    right: Scalar
    dtype: DType
    stores: tuple[Store, ...]


@frozen_dataclass
class Chain(_Cached):
    """Sums weighted by functions of products, at each (b, m): attention and its gradients.

    The products, and the weights that are computed from them, are values at (b, m, k). They are
    not stored as a whole.

    Attributes:
        name: the name, for people; unique in its program.
        batch, m, k: the axes; each of the three may be several or none.
        products: the inner products at each (b, m, k).
        reductions: the reductions over the k axes, or without axes, in order. The value of each at
            (b, m, k) is computed from the products and from earlier reductions.
        stores: the stores at each (b, m), of the reductions.
        sums: the sums over the k axes.
    """

    name: str
    batch: tuple[Axis, ...]
    m: tuple[Axis, ...]
    k: tuple[Axis, ...]
    products: tuple[InnerProduct, ...]
    reductions: tuple[Reduce, ...]
    stores: tuple[Store, ...]
    sums: tuple[WeightedSum, ...]

    def __hash__(self) -> int:
        return self._hash

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes of the points that are independent: batch and m."""
        return (*self.batch, *self.m)

    @cached_property
    def nests(self) -> tuple[Nest, ...]:
        """Products and their operands, reductions, weighted sums and their operands, stores."""
        nests: list[Nest] = []
        for product in self.products:
            nests += [
                Nest((*self.axes, *self.k, *product.axes), combining=2),
                Nest((*self.axes, *product.axes), (product.left,)),
                Nest((*self.batch, *self.k, *product.axes), (product.right,)),
            ]
        for stage in self.reductions:
            axes = (*self.axes, *stage.axes)
            nests.append(Nest(axes, (stage.value,), combining=bool(stage.axes)))
        nests.append(Nest((*self.axes, *self.k), tuple(total.weight for total in self.sums)))
        for total in self.sums:
            nests.append(Nest((*self.axes, *self.k, *total.n), combining=2))
            nests.append(Nest((*self.batch, *self.k, *total.n), (total.right,)))
        nests.append(_storing(self.axes, self.stores))
        nests += [_storing((*self.axes, *total.n), total.stores) for total in self.sums]
        return tuple(nests)

    @property
    def extents(self) -> tuple[int, int, int]:
        """The sizes (b, m, k)."""
        b, m, k = (size_of([axis.extent for axis in axes]) for axes in (self.batch, self.m, self.k))
        return b, m, k

    def __str__(self) -> str:
        space = "; ".join(_over(group) for group in (self.batch, self.m) if group)
        lines = [f"chain {self.name} over ({space}), {_over(self.k)}"]
        lines += [
            f"  {product.result} = sum({_over(product.axes)}) {product.left} * {product.right}"
            for product in self.products
        ]
        lines += [f"  {line}" for line in (*self.reductions, *_store_lines(self.stores))]
        for total in self.sums:
            over = f"for {_over(total.n)}: " if total.n else ""
            term = f"{total.weight} * {total.right}"
            lines.append(f"  {over}{total.result} = sum({_over(self.k)}) {term}")
            lines += [f"    {line}" for line in _store_lines(total.stores)]
        return "\n".join(lines)


Step = Loop | Contraction | Chain


def _store_lines(stores: tuple[Store, ...]) -> list[str]:
    """The stores as text; shared subexpressions are named first."""
    names, lines = named(*(store.value for store in stores))
    return lines + [store.text(names) for store in stores]


def _over(axes: tuple[Axis, ...]) -> str:
    return ", ".join(f"{axis.name}<{axis.extent}" for axis in axes)


def stores_of(step: Step) -> tuple[Store, ...]:
    """Every store of a step; scans count as stores of their running value."""
    return tuple(store for nest in step.nests for store in nest.stores)


def scalars_of(step: Step) -> Iterator[Scalar]:
    """The values that a step computes, views of a contraction included."""
    return (value for nest in step.nests for value in nest.values)


def gathering_positions(stores: Iterable[Store]) -> Iterator[Position]:
    """The indices of stores that contain loads, as scalars."""
    return (Position(store.index) for store in stores if store.index.values)


def loads_in_index(index: Index) -> tuple[Load, ...]:
    """The loads inside the gathered values of an index."""
    return loads(Position(index))


def reads_of(step: Step) -> frozenset[str]:
    """The names of the buffers that a step reads, including buffers of accumulating stores."""
    accumulated = {store.buffer for store in stores_of(step) if store.accumulate}
    return frozenset({load.buffer for load in step.loads} | accumulated)


def writes_of(step: Step) -> frozenset[str]:
    """The names of the buffers that a step writes."""
    return frozenset(store.buffer for store in stores_of(step))
