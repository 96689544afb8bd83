"""Sorts: each thread sorts the keys at one point after the other, in its own memory.

Short runs are sorted by exchanges of neighbours, then pairs of runs are merged. All runs have one
length, because the largest key fills up the last one. So a merge needs no check of the ends: it
writes the lower half of its result from the front and the upper half from the back at the same
time, and neither half can use up a run. A choice between two keys is a select, not a jump.

The merge from both ends is that of quadsort (van den Hoven, https://github.com/scandum/quadsort).
"""

from __future__ import annotations

from typing import final

from lamina.codegen.builder import Builder
from lamina.codegen.primitives import element
from lamina.codegen.values import I64, Type, Value, constant
from lamina.engines.simd.decide.loops import runs_of_sort
from lamina.engines.simd.emit.context import Context, Points
from lamina.engines.simd.processor import LINE_BYTES
from lamina.program.steps import Sort, Store


@final
class MergeSort:
    """Writes a sort at the current point.

    Args:
        context: the step that is written.
        points: of a function whose first parameters are the table and the thread.
        sort: the stage.
    """

    def __init__(self, context: Context, points: Points, sort: Sort) -> None:
        self._points, self._code, self._sort = points, points.code, sort
        self._run, self._merges = runs_of_sort(sort.axis.extent)
        self._length = self._run << self._merges
        self._key, self._position = element(sort.key.dtype), element(sort.dtype)
        # Both have two halves; a pass reads one and writes the other.
        copies = 2 if self._merges else 1
        keys = -(-copies * self._length * Type(self._key).bytes // LINE_BYTES) * LINE_BYTES
        context.workspaces.need_own(keys + copies * self._length * Type(self._position).bytes)
        table, thread, *_ = self._code.parameters
        own = context.addresses.own(self._code, table, thread)
        self._keys = self._code.offset(own, 0, "i8")
        self._positions = self._code.offset(own, keys, "i8")

    def write(self) -> None:
        """Writes the sort of the current point."""
        if not self._sort.axis.extent:
            return
        self._read_keys()
        self._sort_runs()
        source = self._merge_runs()
        self._store_positions(source)

    def _read_keys(self) -> None:
        code, points, sort = self._code, self._points, self._sort
        with points.loop(sort.axis) as opened:
            index = opened.index
            code.store(points.value(sort.key), code.offset(self._keys, index, self._key))
            position = index
            if self._position != "i64":
                position = code.convert("trunc", index, self._position)
            code.store(position, code.offset(self._positions, index, self._position))
            code.end_loop(opened)
        if self._length > sort.axis.extent:
            opened = code.begin_loop(sort.axis.extent, self._length)
            type = Type(self._key)
            largest = constant((1 << (type.bits - 1)) - 1, type)
            code.store(largest, code.offset(self._keys, opened.index, self._key))
            none = constant(0, Type(self._position))
            code.store(none, code.offset(self._positions, opened.index, self._position))
            code.end_loop(opened)

    def _sort_runs(self) -> None:
        """Odd-even transposition sort of each run, in registers: it is stable."""
        code, run = self._code, self._run
        opened = code.begin_loop(0, self._length // run)
        first = code.multiply(opened.index, constant(run, I64))
        here = [code.add(first, constant(number, I64)) for number in range(run)]
        pairs = [self._read(at) for at in here]
        for round in range(run):
            for left in range(round % 2, run - 1, 2):
                (a, at), (b, before) = pairs[left], pairs[left + 1]
                swapped = code.compare("slt", b, a)
                lower = code.select(swapped, b, a), code.select(swapped, before, at)
                upper = code.select(swapped, a, b), code.select(swapped, at, before)
                pairs[left : left + 2] = [lower, upper]
        for at, pair in zip(here, pairs, strict=True):
            self._write(at, *pair)
        code.end_loop(opened)

    def _merge_runs(self) -> Value:
        """Merges runs of rising length; returns the start of the half with the result."""
        code = self._code
        start, length = constant(0, I64), constant(self._length, I64)
        if not self._merges:
            return start
        passes = code.begin_loop(0, self._merges, 1, (constant(self._run, I64), start))
        width, source = passes.carried
        target = code.subtract(length, source)
        double = code.add(width, width)
        count = code.binary("udiv", length, double)
        merges = code.begin_loop(constant(0, I64), count, 1, most=self._length // (2 * self._run))
        first = code.multiply(merges.index, double)
        self._merge(code.add(source, first), code.add(target, first), width)
        code.end_loop(merges)
        _, source = code.end_loop(passes, (double, target))
        return source

    def _merge(self, source: Value, target: Value, width: Value) -> None:
        """Merges two runs: `width` elements from the front, and as many from the back."""
        code, one = self._code, constant(1, I64)
        middle = code.add(source, width)
        last = code.subtract(code.add(middle, width), one)
        ends = (source, middle, code.subtract(middle, one), last)
        final = code.subtract(code.add(code.add(target, width), width), one)
        opened = code.begin_loop(constant(0, I64), width, 1, ends, most=self._length // 2)
        left, right, left_end, right_end = opened.carried
        # Of equal keys, that of the left run is the lower one.
        is_right = self._is_right_lower(code, left, right)
        self._move(code.select(is_right, right, left), code.add(target, opened.index))
        is_left = self._is_right_lower(code, left_end, right_end)
        self._move(code.select(is_left, left_end, right_end), code.subtract(final, opened.index))
        step, step_end = (code.convert("zext", taken, "i64") for taken in (is_right, is_left))
        code.end_loop(
            opened,
            (
                code.add(left, code.subtract(one, step)),
                code.add(right, step),
                code.subtract(left_end, step_end),
                code.subtract(right_end, code.subtract(one, step_end)),
            ),
        )

    def _is_right_lower(self, code: Builder, left: Value, right: Value) -> Value:
        type = Type(self._key)
        a = code.load(code.offset(self._keys, left, self._key), type)
        b = code.load(code.offset(self._keys, right, self._key), type)
        return code.compare("slt", b, a)

    def _move(self, source: Value, target: Value) -> None:
        self._write(target, *self._read(source))

    def _read(self, at: Value) -> tuple[Value, Value]:
        """The key and the position of an element."""
        code = self._code
        return (
            code.load(code.offset(self._keys, at, self._key), Type(self._key)),
            code.load(code.offset(self._positions, at, self._position), Type(self._position)),
        )

    def _write(self, at: Value, key: Value, position: Value) -> None:
        code = self._code
        code.store(key, code.offset(self._keys, at, self._key))
        code.store(position, code.offset(self._positions, at, self._position))

    def _store_positions(self, source: Value) -> None:
        code, points, sort = self._code, self._points, self._sort
        store = Store(sort.buffer, sort.index, sort.positions)
        with points.loop(sort.axis) as opened:
            at = code.offset(self._positions, code.add(source, opened.index), self._position)
            points.store(store, code.load(at, Type(self._position)))
            code.end_loop(opened)
