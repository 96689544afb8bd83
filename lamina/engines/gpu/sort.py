"""Kernels that sort: each work item finds the rank of one element among others.

A long axis is sorted in passes. The first one sorts runs, in which each item counts the elements
before its own. The others merge pairs of sorted runs: an item finds the rank of its element in
the other run by binary search. Equal keys keep their order.
"""

from __future__ import annotations

from typing import final

from lamina.base.shapes import size_of
from lamina.codegen.c import Module
from lamina.codegen.primitives import EMITTERS
from lamina.codegen.signatures import Signature
from lamina.codegen.values import Value
from lamina.engines.gpu.schedule import SortSchedule
from lamina.engines.gpu.work_item import ItemPoints, work_item
from lamina.program.index import Axis, axis_index
from lamina.program.rewrite import Rewrite
from lamina.program.steps import Loop, Sort, Store, stores_of


def write_sort(module: Module, name: str, signature: Signature[SortSchedule]) -> int:
    """Writes the kernel; returns the number of its work items.

    The first step has the sort. If there is a second one, its only store is what is moved: the
    value at the position of an element, and the index at its rank.
    """
    loop, *moving = signature.steps
    assert isinstance(loop, Loop)
    (sort,) = loop.stages
    assert isinstance(sort, Sort)
    own = Axis("element", sort.axis.extent)
    axes = (*loop.axes, own)
    items = size_of([axis.extent for axis in axes])
    if items:
        moved = Store(sort.buffer, sort.index, sort.positions)
        if moving:
            (moved,) = stores_of(moving[0])
        with work_item(module, name, signature, axes) as points:
            _Ranks(points, sort, own, signature.decided).write(moved)
    return items


@final
class _Ranks:
    """Writes the kernel of one pass."""

    def __init__(self, points: ItemPoints, sort: Sort, own: Axis, decided: SortSchedule) -> None:
        self._points, self._code = points, points.code
        self._sort, self._own, self._run = sort, own, decided.run
        self._merges = decided.merges
        self._key = points.value(Rewrite({sort.axis: axis_index(own)}).scalar(sort.key))

    def write(self, moved: Store) -> None:
        points, sort = self._points, self._sort
        rank = self._merged_rank() if self._merges else self._counted_rank()
        value = Rewrite({sort.axis: axis_index(self._own)}).scalar(moved.value)
        with points.bound(sort.axis, rank):
            points.store_all([Store(moved.buffer, moved.index, value)])

    def _counted_rank(self) -> Value:
        """The rank within the run: the begin of the run, and the number of elements before."""
        points, code, sort = self._points, self._code, self._sort
        begin, end = self._ends_of(points.indices(axis_index(self._own) // self._run).start)
        with points.loop(sort.axis, (begin,), begin, end) as opened:
            earlier = code.compare("slt", opened.index, points.axis(self._own))
            before = self._is_before(opened.index, earlier)
            (rank,) = opened.carried
            following = code.add(rank, points.position(1))
            (rank,) = code.end_loop(opened, (code.select(before, following, rank),))
        return rank

    def _merged_rank(self) -> Value:
        """The rank in both runs together: the position, moved by the rank in the other run."""
        points, code = self._points, self._code
        own, run = axis_index(self._own), self._run
        number = points.indices(own // run).start
        is_right = code.binary("and", number, points.position(1))
        is_right = code.compare("ne", is_right, points.position(0))
        begin, end = self._ends_of(code.binary("xor", number, points.position(1)))
        found = self._first_not_before(begin, end, is_right)
        # Elements of the left run move by those that come before from the right one.
        at = points.axis(self._own)
        left = code.add(at, code.subtract(found, begin))
        right = code.add(code.subtract(at, points.position(run)), code.subtract(found, begin))
        return code.select(is_right, right, left)

    def _first_not_before(self, begin: Value, end: Value, is_right: Value) -> Value:
        """The first element of the other run that does not come before the own one."""
        points, code = self._points, self._code
        halvings = Axis("halving", self._run.bit_length())
        last = points.position(self._sort.axis.extent - 1)
        with points.loop(halvings, (begin, end)) as opened:
            low, high = opened.carried
            middle = code.binary("lshr", code.add(low, high), points.position(1))
            # If no element is left, one is read without effect.
            before = self._is_before(code.minimum(middle, last), is_right)
            before = code.binary("and", before, code.compare("slt", low, high))
            following = code.add(middle, points.position(1))
            received = (code.select(before, following, low), code.select(before, high, middle))
            low, _ = code.end_loop(opened, received)
        return low

    def _is_before(self, index: Value, earlier: Value) -> Value:
        """Whether an element comes before the own one; if keys are equal, the earlier one does."""
        points, code, sort = self._points, self._code, self._sort
        with points.bound(sort.axis, index):
            other = points.value(sort.key)
            pair = (other, self._key)
            before = EMITTERS["less"](code, sort.key.dtype, *pair)
            equal = EMITTERS["equal"](code, sort.key.dtype, *pair)
        return code.binary("or", before, code.binary("and", equal, earlier))

    def _ends_of(self, number: Value) -> tuple[Value, Value]:
        """The begin and the end of a run, both at most the end of the axis."""
        points, code = self._points, self._code
        begin = code.multiply(number, points.position(self._run))
        end = points.position(self._sort.axis.extent)
        return code.minimum(begin, end), code.minimum(
            code.add(begin, points.position(self._run)), end
        )
