"""Kernels of contractions with few sums: the work items of a group share K.

For products of a matrix and a vector, and for small results with a long K. Each item sums up its
share of K in registers, reading the operands through their views. A tree in local memory combines
the shares, always in the same order, and each result is stored by one item.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from typing import final

from lamina.base.shapes import size_of
from lamina.codegen.blocks import Bound, Carried, blocks_of, write_sums
from lamina.codegen.c import Function
from lamina.codegen.matrix import with_single_axes
from lamina.codegen.primitives import element
from lamina.codegen.signatures import Signature
from lamina.codegen.values import Type, Value, constant
from lamina.engines.gpu.schedule import TreeSchedule
from lamina.engines.gpu.tree import Tree
from lamina.engines.gpu.work_item import (
    Body,
    ItemPoints,
    along_lanes,
    clamped,
    clamped_inside,
    inside,
    item_of,
    step_of,
    with_products,
)
from lamina.program.index import Axis, Index, axis_index, unflatten
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Scalar
from lamina.program.steps import Contraction


def tree_kernel(signature: Signature[TreeSchedule]) -> Body:
    """The items of a group share K of some blocks of sums."""
    tree = signature.decided
    step = with_single_axes(step_of(signature, Contraction), "batch", "m", "n", "k")
    batch, m, n, _ = step.extents
    shape = (batch, -(-m // tree.item_m), -(-n // tree.item_n))
    groups = Axis("group", -(-size_of(shape) // tree.results))
    return [groups], lambda points: _Tree(points, step, tree, shape, groups).write()


@final
class _Tree:
    """Writes the kernel of a contraction over single axes."""

    def __init__(
        self,
        points: ItemPoints,
        step: Contraction,
        tree: TreeSchedule,
        shape: tuple[int, int, int],
        groups: Axis,
    ) -> None:
        self._points, self._code = points, points.code
        self._step, self._tree, self._shape = step, tree, shape
        self._groups, self._item = axis_index(groups), axis_index(item_of(tree))
        self._is_ragged = size_of(shape) % tree.results != 0
        (self._batch,), (self._m,), (self._n,), (self._k,) = step.batch, step.m, step.n, step.k
        self._type = Type(element(step.dtype))
        at, results = self._item, tree.results
        self._share = at % tree.items if tree.along_k else at // results
        self._result = at // tree.items if tree.along_k else at % results

    def write(self) -> None:
        tree, block = self._tree, self._tree.item_m * self._tree.item_n
        zero = constant(0, self._type.wide(tree.lanes if tree.lanes > 1 else 0))
        totals: Sequence[Value] = [zero] * block
        if self._k.extent:
            with ExitStack() as bound:
                totals = self._summed(totals, bound)
        near = 1 if tree.along_k else tree.results
        combined = Tree(*(self._points, self._share, self._result, tree.items, tree.results, near))
        # One value of all items after the other, so that neighbours access neighbouring banks; and
        # an element more, so that the values of one item are in different banks.
        apart, count = combined.size + 1, tree.results * block
        array = self._code.local(self._type.element, block * apart)
        arrays = [
            self._code.offset(array, number * apart, self._type.element) for number in range(block)
        ]
        combined.write(arrays, totals)
        for number in range(-(-count // tree.group)):
            at = self._item + number * tree.group
            end = count if (number + 1) * tree.group > count else None
            self._store(combined, array, apart, at, end)

    def _summed(self, totals: Sequence[Value], bound: ExitStack) -> Sequence[Value]:
        code, points, tree = self._code, self._points, self._tree
        batch, m, n = unflatten(self._block(bound), self._shape)
        ms = self._clamped(self._m, m * tree.item_m, tree.item_m, bound)
        ns = self._clamped(self._n, n * tree.item_n, tree.item_n, bound)
        views = [
            [Rewrite({self._batch: batch, axis: at}).scalar(view) for at in locations]
            for view, axis, locations in (
                (self._step.left, self._m, ms),
                (self._step.right, self._n, ns),
            )
        ]
        vectors = Axis("k_inside", self._k.extent // tree.lanes)
        rounds = Axis("k_share", -(-vectors.extent // tree.items))

        def loop(start: Bound, stop: Bound, most: int, received: Carried) -> Carried:
            with points.loop(rounds, received, start, stop, most) as opened, ExitStack() as inner:
                location = axis_index(rounds) * tree.items + self._share
                is_inside: Value | None = None
                if vectors.extent % tree.items:
                    is_inside, location = clamped_inside(points, vectors, location, inner)
                added = self._multiplied(views, location, is_inside, opened.carried)
                inner.close()
                return code.end_loop(opened, added)

        blocks = blocks_of(rounds.extent) if self._step.dtype.is_float else []
        totals = write_sums(points, blocks, rounds.extent, totals, loop)
        return [_across(total, code) for total in totals]

    def _block(self, bound: ExitStack) -> Index:
        """The number of the work item's block; of the last block for items beyond it."""
        location = self._groups * self._tree.results + self._result
        if not self._is_ragged:
            return location
        return clamped(self._points, Axis("block", size_of(self._shape)), location, bound)

    def _clamped(self, axis: Axis, first: Index, count: int, bound: ExitStack) -> list[Index]:
        """The locations of a block along m or n; the last valid one for those beyond the end."""
        locations = [first + number for number in range(count)]
        if axis.extent % count == 0:
            return locations
        return [
            clamped(self._points, Axis(f"{axis.name}{number}", axis.extent), location, bound)
            for number, location in enumerate(locations)
        ]

    def _multiplied(
        self,
        views: Sequence[Sequence[Scalar]],
        location: Index,
        is_inside: Value | None,
        totals: Sequence[Value],
    ) -> Sequence[Value]:
        """The sums after the k, or vector of k, at a location."""
        code, points, lanes = self._code, self._points, self._tree.lanes
        with along_lanes(points, Axis("lane", lanes)) as lane:
            at = Rewrite({self._k: location * lanes + lane})
            left, right = ([points.vector(at.scalar(view)) for view in side] for side in views)
        if is_inside is not None:
            left, right = (
                [code.select(is_inside, vector, constant(0, vector.type)) for vector in side]
                for side in (left, right)
            )
        return with_products(code, totals, product(left, right))

    def _store(self, combined: Tree, array: Value, apart: int, at: Index, end: int | None) -> None:
        """Stores the result of a number within the group; only those below the end exist."""
        points, step, tree = self._points, self._step, self._tree
        with ExitStack() as guards:
            if end is not None:
                # Only items that store a result may read what it replaces.
                at = guards.enter_context(inside(points, "result", at, end))
            result, row, column = unflatten(at, (tree.results, tree.item_m, tree.item_n))
            block = self._groups * tree.results + result
            if self._is_ragged:
                block = guards.enter_context(inside(points, "block", block, size_of(self._shape)))
            batch, m, n = unflatten(block, self._shape)
            m, n = m * tree.item_m + row, n * tree.item_n + column
            if self._m.extent % tree.item_m:
                m = guards.enter_context(inside(points, "m_inside", m, self._m.extent))
            if self._n.extent % tree.item_n:
                n = guards.enter_context(inside(points, "n_inside", n, self._n.extent))
            location = (row * tree.item_n + column) * apart + result
            first = points.indices(location).start
            (total,) = combined.result([array], first, [self._type])
            with points.inside(None):
                points.define(step.result, total)
                axes = {self._batch: batch, self._m: m, self._n: n}
                points.store_all(Rewrite(axes).records(step.stores))


def _across(total: Value, code: Function) -> Value:
    """The sum of all lanes."""
    lanes = total.type.lanes
    while lanes > 1:
        lanes //= 2
        low, high = (
            code.shuffle(total, None, range(first, first + lanes))
            if lanes > 1
            else code.extract(total, first)
            for first in (0, lanes)
        )
        total = low + high
    return total
