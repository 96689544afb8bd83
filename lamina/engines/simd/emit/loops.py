"""Loop steps, in explicit vectors, as `decide/loops.py` has decided."""

from __future__ import annotations

from dataclasses import replace
from typing import final

from lamina.codegen.axes import merged_axes
from lamina.codegen.primitives import element
from lamina.codegen.stages import Stages, full_run, write_nest
from lamina.codegen.values import Type, Value
from lamina.engines.simd.decide.jam import jammed
from lamina.engines.simd.decide.loops import runs_of_sort
from lamina.engines.simd.decide.schedule import LoopSchedule, NestSchedule
from lamina.engines.simd.decide.split_reductions import split_loop
from lamina.engines.simd.emit.context import ITEM_RANGE_PARAMETERS, Context, Points, WrittenKernel
from lamina.engines.simd.processor import whole_lines
from lamina.program.steps import Loop, Sort, Store, reads_of, writes_of


def emit_loops(
    context: Context, name: str, loop: Loop, schedule: LoopSchedule
) -> list[WrittenKernel]:
    """Writes the functions of a loop step; the last one is called `name`."""
    split = split_loop(merged_axes(loop), schedule.split, schedule.blocks)
    for buffer in split.buffers:
        context.need_buffer(buffer.name, buffer.shape, buffer.dtype)
    names = [*(f"{name}_{part.name}" for part in split.loops[:-1]), name]
    return [
        emit_nest(context, function, part, nest)
        for function, part, nest in zip(names, split.loops, schedule.nests, strict=True)
    ]


def emit_nest(context: Context, name: str, loop: Loop, nest: NestSchedule) -> WrittenKernel:
    """Writes the function of a loop nest, with neighbouring axes merged."""
    reads, writes = reads_of(loop), writes_of(loop)
    points = context.begin(name, ITEM_RANGE_PARAMETERS, reads | writes, calling=True)
    kernel = WrittenKernel(name, reads, writes)
    if any(axis.extent == 0 for axis in loop.axes):
        return kernel
    *_, first, last = points.code.parameters
    if nest.together is not None:
        loop = jammed(loop, *nest.together)
    runs = [full_run(axis, nest.lanes if axis == nest.lane else 0) for axis in nest.order]
    runs = [
        replace(run, start=first, stop=last) if run.axis == nest.shared else run for run in runs
    ]
    if isinstance(loop.stages[0], Sort):
        write_nest(points, runs, MergeSort(context, points, loop.stages[0]).write)
    else:
        stages = Stages(points, nest.style)
        write_nest(points, runs, lambda: stages.write(loop.stages))
    return kernel


@final
class MergeSort:
    """Writes a sort: each thread sorts the keys at one point after the other, in its own memory.

    Short runs are sorted by exchanges of neighbours, then pairs of runs are merged. All runs have
    one length, because the largest key fills up the last one. So a merge needs no check of the
    ends: it writes the lower half of its result from the front and the upper half from the back at
    the same time, and neither half can use up a run. A choice between two keys is a select, not a
    jump.

    The merge from both ends comes from quadsort (van den Hoven,
    https://github.com/scandum/quadsort).
    """

    def __init__(self, context: Context, points: Points, sort: Sort) -> None:
        self._points, self._code, self._sort = points, points.code, sort
        self._run, self._merges = runs_of_sort(sort.axis.extent)
        self._length = self._run << self._merges
        self._key, self._position = element(sort.key.dtype), element(sort.dtype)
        # Both have two halves; a pass reads one and writes the other.
        count = self._length * (2 if self._merges else 1)
        keys = whole_lines(count * Type(self._key).bytes)
        context.workspaces.need_thread_memory(keys + count * Type(self._position).bytes)
        memory = context.thread_memory(self._code)
        self._keys = self._code.offset(memory, 0, "i8")
        self._positions = self._code.offset(memory, keys, "i8")

    def write(self) -> None:
        if not self._sort.axis.extent:
            return
        self._read_keys()
        self._sort_runs()
        source, code = self._merge_runs(), self._code
        store = Store(self._sort.buffer, self._sort.index, self._sort.positions)
        with self._points.loop(self._sort.axis) as loop:
            at = code.offset(self._positions, source + loop.index, self._position)
            self._points.store(store, code.load(at, Type(self._position)))

    def _read_keys(self) -> None:
        code, points, sort = self._code, self._points, self._sort
        with points.loop(sort.axis) as loop:
            index = loop.index
            code.store(points.value(sort.key), code.offset(self._keys, index, self._key))
            position = index
            if self._position != "i64":
                position = code.convert("trunc", index, self._position)
            code.store(position, code.offset(self._positions, index, self._position))
        if self._length > sort.axis.extent:
            with code.loop(sort.axis.extent, self._length) as loop:
                type = Type(self._key)
                largest = code.constant((1 << (type.bits - 1)) - 1, type)
                self._write(loop.index, largest, code.constant(0, Type(self._position)))

    def _sort_runs(self) -> None:
        """Odd-even transposition sort of each run, in registers: it is stable."""
        code, run = self._code, self._run
        with code.loop(0, self._length // run) as loop:
            first = loop.index * run
            here = [first + number for number in range(run)]
            pairs = [self._read(at) for at in here]
            for round in range(run):
                for left in range(round % 2, run - 1, 2):
                    (a, at), (b, before) = pairs[left], pairs[left + 1]
                    swapped = b < a
                    lower = code.select(swapped, b, a), code.select(swapped, before, at)
                    upper = code.select(swapped, a, b), code.select(swapped, at, before)
                    pairs[left : left + 2] = [lower, upper]
            for at, pair in zip(here, pairs, strict=True):
                self._write(at, *pair)

    def _merge_runs(self) -> Value:
        """Merges runs of rising length; returns the start of the half with the result."""
        code = self._code
        start = code.constant(0)
        if not self._merges:
            return start
        passes = code.begin_loop(0, self._merges, 1, (code.constant(self._run), start))
        width, source = passes.carried
        target = self._length - source
        double = width + width
        count = self._length // double
        with code.loop(0, count, most=self._length // (2 * self._run)) as merges:
            first = merges.index * double
            self._merge(source + first, target + first, width)
        _, source = code.end_loop(passes, (double, target))
        return source

    def _merge(self, source: Value, target: Value, width: Value) -> None:
        """Merges two runs: `width` elements from the front, and as many from the back."""
        code = self._code
        middle = source + width
        last = middle + width - 1
        ends = (source, middle, middle - 1, last)
        final = target + width + width - 1
        opened = code.begin_loop(0, width, 1, ends, most=self._length // 2)
        left, right, left_end, right_end = opened.carried
        # Of equal keys, the key of the left run is the lower one.
        is_right = self._is_right_lower(left, right)
        source = code.select(is_right, right, left)
        self._write(target + opened.index, *self._read(source))
        is_left = self._is_right_lower(left_end, right_end)
        source = code.select(is_left, left_end, right_end)
        self._write(final - opened.index, *self._read(source))
        step, step_end = (code.convert("zext", taken, "i64") for taken in (is_right, is_left))
        code.end_loop(
            opened,
            (left + (1 - step), right + step, left_end - step_end, right_end - (1 - step_end)),
        )

    def _is_right_lower(self, left: Value, right: Value) -> Value:
        a, b = self._key_of(left), self._key_of(right)
        return b < a

    def _key_of(self, at: Value) -> Value:
        return self._code.load(self._code.offset(self._keys, at, self._key), Type(self._key))

    def _read(self, at: Value) -> tuple[Value, Value]:
        """The key and the position at index `at` of the work area."""
        key, start = self._key_of(at), self._code.offset(self._positions, at, self._position)
        return key, self._code.load(start, Type(self._position))

    def _write(self, at: Value, key: Value, position: Value) -> None:
        code = self._code
        code.store(key, code.offset(self._keys, at, self._key))
        code.store(position, code.offset(self._positions, at, self._position))
