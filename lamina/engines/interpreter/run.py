"""Running steps in NumPy: slow and obvious, the specification of `lamina.program`.

A scalar expression is computed for all points of an iteration space at once: an array with one
axis for each loop axis, of extent 1 where the expression does not depend on it.

In an adversarial order, the points along all axes along which workers may be split
(`lamina.program.parallel`) are assigned at random to a few workers, which run one after the other.
For each worker all stages are computed again from the present contents of memory, and stored only
at the worker's points. So a program in which points depend on each other gives wrong results, and
any other program gives the same bits as in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np
from numpy.lib.stride_tricks import as_strided

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, DType, converted, size_of
from lamina.engines.interpreter.primitives import FUNCTIONS, REDUCTIONS
from lamina.program.index import Axis, Index, Quotient, Remainder
from lamina.program.scalar import (
    Apply,
    Bound,
    Literal,
    Load,
    Local,
    Position,
    Scalar,
    Within,
    postorder,
)
from lamina.program.steps import (
    Chain,
    Contraction,
    Loop,
    Reduce,
    Scan,
    SegmentSum,
    Sort,
    Step,
    Store,
    Write,
)

Flat = Mapping[str, Array]
# The iteration of a repeated step, by the axis of the recurrence.
Iteration = Mapping[Axis, int]

# The number of workers to which the points of a step are assigned, and of chunks to which the inner
# points of a write are assigned.
WORKERS = 3
# Products of more terms are added up in pieces.
LONGEST_K = 4096


@frozen_dataclass
class Adversary:
    """Assigns the points of a step to workers.

    Attributes:
        generator: the source of the worker of each point.
        axes: the axes along which workers may be split: the step's, and inner axes of its writes.
    """

    generator: np.random.Generator
    axes: tuple[Axis, ...]


@frozen_dataclass
class _WorkerPoints:
    """The points of one worker.

    Attributes:
        axes: the axes along which workers are split, the step's own axes first.
        mask: whether each point over these axes is the worker's; of extent 1 if all points are.
        adversary: the adversary that assigned the points; None if points run in order.
    """

    axes: tuple[Axis, ...]
    mask: Array
    adversary: Adversary | None

    def of_stage(self, outer: int, inner: Sequence[Axis]) -> Array:
        """The mask of the worker's points of a stage, over outer axes of the step and inner axes.

        If a stage has one value for all points of other axes, one worker stores it.
        """
        mask = self.mask
        for number in reversed(range(outer, len(self.axes))):
            if self.axes[number] not in inner:
                mask = mask.take(0, number)
        split = [axis for axis in self.axes[outer:] if axis in inner]
        order = [outer + split.index(axis) for axis in inner if axis in split]
        mask = mask.transpose(*range(outer), *order)
        missing = [outer + number for number, axis in enumerate(inner) if axis not in split]
        return np.expand_dims(mask, missing)


def run_step(
    step: Step,
    buffers: Flat,
    iteration: Iteration | None = None,
    adversary: Adversary | None = None,
) -> None:
    """Runs one step, on a flat array for each buffer; an adversary makes the order adversarial."""
    axes = step.axes
    # If points run in order, there is one worker.
    workers = [_WorkerPoints(axes, np.ones((1,) * len(axes), bool), None)]
    if adversary is not None:
        axes = (*axes, *(axis for axis in adversary.axes if axis not in axes and axis.extent))
        workers = [_WorkerPoints(axes, mask, adversary) for mask in _chunks(axes, adversary)]
    with np.errstate(all="ignore"):
        for worker in workers:
            if isinstance(step, Loop):
                _run_loop(step, buffers, iteration or {}, worker)
            elif isinstance(step, Chain):
                _run_chain(step, buffers, iteration or {}, worker.mask)
            else:
                _run_contraction(step, buffers, iteration or {}, worker.mask)


def _chunks(axes: Sequence[Axis], adversary: Adversary | None) -> list[Array]:
    """The masks of the points of each chunk, of extent 1 where all points are in it."""
    extents = [axis.extent for axis in axes]
    if adversary is None or size_of(extents) < 2:
        return [np.ones((1,) * len(extents), bool)]
    owners = adversary.generator.integers(0, WORKERS, extents)
    return [owners == number for number in range(WORKERS)]


def _run_loop(loop: Loop, buffers: Flat, iteration: Iteration, worker: _WorkerPoints) -> None:
    locals_: dict[str, Array] = {}
    outer = len(loop.axes)

    def points_over(*inner: Axis) -> _Points:
        return _Points((*loop.axes, *inner), buffers, locals_, iteration)

    for stage in loop.stages:
        if isinstance(stage, Reduce):
            locals_[stage.local] = _reduced(stage, points_over(*stage.axes), outer)
        elif isinstance(stage, Write):
            mask = worker.of_stage(outer, stage.axes)
            for inner in _chunks(stage.axes, None if stage.sequential else worker.adversary):
                _store(stage.stores, points_over(*stage.axes), mask & inner)
        elif isinstance(stage, SegmentSum):
            locals_[stage.local] = _segment_sum(stage, points_over(stage.axis), points_over())
        else:
            mask = worker.of_stage(outer, (stage.axis,))
            _scan_or_sort(stage, points_over(stage.axis), mask)


def _run_contraction(step: Contraction, buffers: Flat, iteration: Iteration, mask: Array) -> None:
    left_points = _Points((*step.batch, *step.m, *step.k), buffers, {}, iteration)
    right_points = _Points((*step.batch, *step.k, *step.n), buffers, {}, iteration)
    left, right = left_points.everywhere(step.left), right_points.everywhere(step.right)
    result = _product(left, right, (step.batch, step.m, step.n, step.k), step.dtype)
    _store(step.stores, _Points(step.axes, buffers, {step.result: result}, iteration), mask)


def _product(left: Array, right: Array, groups: Sequence[tuple[Axis, ...]], dtype: DType) -> Array:
    """The sums over k of left[b, m, k] * right[b, k, n]; the groups are b, m, n and k."""
    b, m, n, k = (size_of([axis.extent for axis in group]) for group in groups)
    left, right = left.reshape(b, m, k), right.reshape(b, k, n)
    product = np.zeros((b, m, n), np.float64 if dtype.is_float else dtype.numpy)
    for start in range(0, k, LONGEST_K):
        piece = slice(start, start + LONGEST_K)
        product += np.matmul(left[:, :, piece], right[:, piece])
    extents = [axis.extent for group in groups[:3] for axis in group]
    return product.reshape(extents).astype(dtype.numpy)


def _run_chain(step: Chain, buffers: Flat, iteration: Iteration, mask: Array) -> None:
    batch, m, k = step.batch, step.m, step.k
    locals_: dict[str, Array] = {}

    def points_over(*axes: Axis) -> _Points:
        return _Points(axes, buffers, locals_, iteration)

    for product in step.products:
        left = points_over(*step.axes, *product.axes).everywhere(product.left)
        right = points_over(*batch, *product.axes, *k).everywhere(product.right)
        locals_[product.result] = _product(left, right, (batch, m, k, product.axes), product.dtype)
    for stage in step.reductions:
        points = points_over(*step.axes, *stage.axes)
        locals_[stage.local] = _reduced(stage, points, len(step.axes))
    _store(step.stores, points_over(*step.axes), mask)
    for total in step.sums:
        weights = points_over(*step.axes, *k).everywhere(total.weight)
        right = points_over(*batch, *k, *total.n).everywhere(total.right)
        locals_[total.result] = _product(weights, right, (batch, m, total.n, k), total.dtype)
        sum_mask = mask.reshape(mask.shape + (1,) * len(total.n))
        _store(total.stores, points_over(*step.axes, *total.n), sum_mask)


def _reduced(stage: Reduce, points: _Points, outer: int) -> Array:
    """The reduction for every outer point: an array over the first `outer` axes of the points."""
    values = points.everywhere(stage.value)
    if not stage.axes:
        # A later stage may overwrite the buffer that this was loaded from.
        return values.copy()
    kept, inner = values.shape[:outer], values.shape[outer:]
    # NumPy adds contiguous floats in pairs.
    rows = np.ascontiguousarray(values).reshape(*kept, size_of(inner))
    if stage.combine in REDUCTIONS:
        return REDUCTIONS[stage.combine].reduce(rows, axis=-1, dtype=stage.dtype.numpy)
    choose = np.argmax if stage.combine == "argmax" else np.argmin
    return np.asarray(choose(rows, axis=-1), dtype=stage.dtype.numpy)


def _segment_sum(stage: SegmentSum, points: _Points, outer: _Points) -> Array:
    """The sum for every outer point: each rank is added to the point whose index is its key."""
    keys, values = points.everywhere(stage.key), points.everywhere(stage.value)
    indices = outer.everywhere(Position(stage.segment))
    total = np.zeros(indices.shape, stage.dtype.numpy)
    for rank in range(stage.axis.extent):
        total = np.where(keys[..., rank] == indices, total + values[..., rank], total)
    return total


def _scan_or_sort(stage: Scan | Sort, points: _Points, mask: Array) -> None:
    """Stores the running combinations of the values along an axis, or their order."""
    if isinstance(stage, Sort):
        order = np.argsort(points.everywhere(stage.key), axis=-1, kind="stable")
        points.locals["stored"] = order.astype(stage.dtype.numpy)
    else:
        values, dtype = points.everywhere(stage.value), stage.dtype.numpy
        wide = np.float64 if stage.combine == "sum" and stage.dtype.is_float else dtype
        running = REDUCTIONS[stage.combine].accumulate(values, axis=-1, dtype=wide)
        points.locals["stored"] = running.astype(dtype)
    store = Store(stage.buffer, stage.index, Local("stored", stage.dtype))
    _store((store,), points, mask)


def _store(stores: Sequence[Store], points: _Points, mask: Array) -> None:
    """Computes the values of all stores first, then writes them at the points of the mask."""
    if 0 in points.extents:
        return
    written = np.broadcast_to(mask, points.extents)
    values = [np.array(points.everywhere(store.value)) for store in stores]
    for store, value in zip(stores, values, strict=True):
        flat = points.buffers[store.buffer]
        indices = np.broadcast_to(points.index(store.index), points.extents)
        if store.accumulate:
            np.add.at(flat, indices[written], value[written])
        else:
            flat[indices[written]] = value[written]


class _Points:
    """All points of an iteration space, and the values of expressions there."""

    def __init__(
        self,
        axes: Sequence[Axis],
        buffers: Flat,
        locals_: Mapping[str, Array],
        iteration: Iteration,
    ) -> None:
        self._iteration = iteration
        self.extents = tuple(axis.extent for axis in axes)
        self.buffers = buffers
        self.locals = dict(locals_)
        self._number = {axis: number for number, axis in enumerate(axes)}
        self._values: dict[Scalar, Array] = {}

    def everywhere(self, scalar: Scalar) -> Array:
        """The scalar at every point, in the full shape of the space."""
        if 0 in self.extents:
            # Without points, indices read from data must not be computed.
            return np.zeros(self.extents, scalar.dtype.numpy)
        return np.broadcast_to(self.value(scalar), self.extents)

    def value(self, scalar: Scalar) -> Array:
        """The scalar at every point, of extent 1 along axes on which it does not depend."""
        if scalar not in self._values:
            for inner in postorder(scalar, without=self._values):
                self._values[inner] = np.asarray(self._computed(inner))
        return self._values[scalar]

    def _computed(self, scalar: Scalar) -> Array:
        if isinstance(scalar, Literal):
            return np.full((1,) * len(self.extents), scalar.value, scalar.dtype.numpy)
        if isinstance(scalar, Local):
            local = self.locals[scalar.name]
            return local.reshape(local.shape + (1,) * (len(self.extents) - local.ndim))
        if isinstance(scalar, Position):
            return self.index(scalar.index)
        if isinstance(scalar, Within):
            return self._within(scalar.bounds)
        if isinstance(scalar, Load):
            return self._loaded(scalar)
        return self._applied(scalar)

    def _applied(self, scalar: Apply) -> Array:
        operands = [self.value(operand) for operand in scalar.operands]
        dtype = scalar.dtype.numpy
        if scalar.primitive == "cast":
            return converted(operands[0], dtype)
        return np.asarray(FUNCTIONS[scalar.primitive](*operands)).astype(dtype, copy=False)

    def _loaded(self, load: Load) -> Array:
        flat = self.buffers[load.buffer]
        is_affine = all(isinstance(atom, Axis) for atom, _ in load.index.terms)
        if is_affine and not load.bounds and flat.size:
            return self._strided(flat, load.index)
        inside = self._within(load.bounds)
        indices = np.where(inside, self.index(load.index), 0)
        if flat.size == 0:
            return np.zeros(indices.shape, flat.dtype)
        return np.where(inside, flat[indices], flat.dtype.type(0))

    def _strided(self, flat: Array, index: Index) -> Array:
        """An affine load as a view."""
        shape, strides = [1] * len(self.extents), [0] * len(self.extents)
        start = index.constant
        for atom, coefficient in index.terms:
            assert isinstance(atom, Axis)
            if atom in self._iteration:
                start += coefficient * self._iteration[atom]
                continue
            number = self._number[atom]
            shape[number] = atom.extent
            strides[number] = coefficient * flat.itemsize
        if size_of(shape) == 0:
            return np.zeros(shape, flat.dtype)
        return as_strided(flat[start:], shape, strides)

    def _within(self, bounds: Sequence[Bound]) -> Array:
        inside = [
            (values >= bound.low) & (values < bound.high)
            for bound in bounds
            for values in [self.index(bound.index)]
        ]
        everywhere = np.ones((1,) * len(self.extents), bool)
        return reduce(np.logical_and, inside, everywhere)

    def index(self, index: Index) -> Array:
        """The index at every point, as int64."""
        total = np.full((1,) * len(self.extents), index.constant, np.int64)
        for atom, coefficient in index.terms:
            if isinstance(atom, Axis) and atom in self._iteration:
                value = np.asarray(self._iteration[atom])
            elif isinstance(atom, Axis):
                shape = [1] * len(self.extents)
                shape[self._number[atom]] = atom.extent
                value = np.arange(atom.extent).reshape(shape)
            elif isinstance(atom, Quotient):
                value = self.index(atom.index) // atom.divisor
            elif isinstance(atom, Remainder):
                value = self.index(atom.index) % atom.divisor
            else:
                value = self.value(atom.value).astype(np.int64)
            total = total + coefficient * value
        return total
