"""Kernels that sort: each work item finds the rank of one element among others.

A long axis is sorted in passes. The first one sorts runs, in which each item counts the elements
before its own. The others merge pairs of sorted runs: an item finds the rank of its element in
the other run by binary search. Equal keys keep their order.
"""

from __future__ import annotations

from typing import final

from lamina.codegen.primitives import EMITTERS
from lamina.codegen.signatures import Signature
from lamina.codegen.values import Value
from lamina.engines.gpu.schedule import SortSchedule
from lamina.engines.gpu.work_item import Body, ItemPoints
from lamina.program.index import Axis, axis_index
from lamina.program.rewrite import Rewrite
from lamina.program.steps import Loop, Sort, Store, stores_of


def sort_kernel(signature: Signature[SortSchedule]) -> Body:
    """A work item finds the rank of an element.

    The first step has the sort. If there is a second one, its only store is what is moved: the
    value at the position of an element, and the index at its rank.
    """
    loop, *moving = signature.steps
    assert isinstance(loop, Loop)
    (sort,) = loop.stages
    assert isinstance(sort, Sort)
    axis, moved = Axis("element", sort.axis.extent), Store(sort.buffer, sort.index, sort.positions)
    if moving:
        (moved,) = stores_of(moving[0])
    decided = signature.decided
    return (*loop.axes, axis), lambda points: _Ranks(points, sort, axis, decided).write(moved)


@final
class _Ranks:
    """Writes the kernel of one pass."""

    def __init__(self, points: ItemPoints, sort: Sort, axis: Axis, decided: SortSchedule) -> None:
        self._points, self._code = points, points.code
        self._sort, self._axis, self._run = sort, axis, decided.run
        self._merges = decided.merges
        self._key = points.value(Rewrite({sort.axis: axis_index(axis)}).scalar(sort.key))

    def write(self, moved: Store) -> None:
        points, sort = self._points, self._sort
        rank = self._merged_rank() if self._merges else self._counted_rank()
        value = Rewrite({sort.axis: axis_index(self._axis)}).scalar(moved.value)
        with points.bound(sort.axis, rank):
            points.store_all([Store(moved.buffer, moved.index, value)])

    def _counted_rank(self) -> Value:
        """The rank within the run: the begin of the run, and the number of elements before."""
        points, code, sort = self._points, self._code, self._sort
        begin, end = self._ends_of(points.indices(axis_index(self._axis) // self._run).start)
        with points.loop(sort.axis, (begin,), begin, end) as opened:
            before = self._is_before(opened.index, opened.index < points.axis(self._axis))
            (rank,) = opened.carried
            (rank,) = code.end_loop(opened, (code.select(before, rank + 1, rank),))
        return rank

    def _merged_rank(self) -> Value:
        """The rank in both runs together: the position, moved by the rank in the other run."""
        number = self._points.indices(axis_index(self._axis) // self._run).start
        is_right = (number & 1).differs(0)
        begin, end = self._ends_of(number ^ 1)
        place = self._first_not_before(begin, end, is_right)
        # Elements of the left run move by those that come before from the right one.
        at = self._points.axis(self._axis)
        left = at + (place - begin)
        right = at - self._run + (place - begin)
        return self._code.select(is_right, right, left)

    def _first_not_before(self, begin: Value, end: Value, is_right: Value) -> Value:
        """The first element of the other run that does not come before the own one."""
        points, code = self._points, self._code
        halvings, last = Axis("halving", self._run.bit_length()), self._sort.axis.extent - 1
        with points.loop(halvings, (begin, end)) as opened:
            low, high = opened.carried
            middle = (low + high) >> 1
            # If no element is left, one is read without effect.
            before = self._is_before(code.minimum(middle, last), is_right) & (low < high)
            low, high = code.select(before, middle + 1, low), code.select(before, high, middle)
            low, _ = code.end_loop(opened, (low, high))
        return low

    def _is_before(self, index: Value, earlier: Value) -> Value:
        """Whether an element comes before the own one; if keys are equal, the earlier one does."""
        points, code, sort = self._points, self._code, self._sort
        with points.bound(sort.axis, index):
            pair = (points.value(sort.key), self._key)
            before = EMITTERS["less"](code, sort.key.dtype, *pair)
            equal = EMITTERS["equal"](code, sort.key.dtype, *pair)
        return before | (equal & earlier)

    def _ends_of(self, number: Value) -> tuple[Value, Value]:
        """The begin and the end of a run, both at most the end of the axis."""
        begin, end = number * self._run, self._sort.axis.extent
        return self._code.minimum(begin, end), self._code.minimum(begin + self._run, end)
