"""Long reductions, cut into blocks that the threads share.

A mean over a large batch is one number: without this, one thread would compute it. Sums of columns
are cut as well: what lies in memory one after the other is then read in that order. The blocks
depend on the sizes alone, so that the result does not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lamina.codegen.axes import merged_axes
from lamina.engines.cpu.emit.context import Context
from lamina.engines.cpu.emit.loops import stride_along
from lamina.program.index import Axis, Index, axis_index, flatten
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Apply, Load, Local, Scalar, parts
from lamina.program.steps import Loop, Reduce, Stage, Store, Write
from lamina.shapes import size_of

# Loops with more results than this have enough for all threads; sums of columns are cut still.
_MOST_RESULTS, _MOST_COLUMNS = 64, 1 << 12
# Reductions of fewer values than this are done before other threads are awake.
_LEAST_VALUES = 1 << 16
_BLOCKS = 32
# So many values of a column, at least, are a block: partial results must be few beside them.
_LEAST_ROWS = 64

# How two partial results of a reduction are combined.
_PRIMITIVES = {"sum": "add", "product": "multiply", "maximum": "maximum", "minimum": "minimum"}


def split_reductions(context: Context, name: str, loop: Loop) -> list[Loop]:
    """The loop, after others that compute partial results of its long reductions."""
    loop = merged_axes(loop)
    before: list[Loop] = []
    stages: list[Stage] = []
    renamed: dict[str, Scalar] = {}
    for stage in loop.stages:
        stage = _with_locals(stage, renamed)
        if isinstance(stage, Reduce) and _is_long(stage, loop.axes):
            if any(isinstance(part, Local) for part in parts(stage.value)):
                # What it depends on is finished first: threads meet before it is read.
                label = f"{name}_before_{stage.local}"
                before.append(_finished(context, label, loop.axes, stages, renamed))
                stages = []
                stage = replace(stage, value=Rewrite(locals=renamed).scalar(stage.value))
            partial, combining = _cut(context, f"{name}_{stage.local}", loop.axes, stage)
            if before and before[-1].axes == partial.axes:
                partial = _joined(before.pop(), partial)
            before.append(partial)
            stages += combining
            results: list[Scalar] = [Local(part.local, part.dtype) for part in combining]
            total = results[0]
            for result in results[1:]:
                total = Apply(_PRIMITIVES[stage.combine], (total, result), stage.dtype)
            renamed[stage.local] = total
        else:
            stages.append(stage)
    return [*before, replace(loop, stages=tuple(stages))] if before else [loop]


def _finished(
    context: Context,
    name: str,
    axes: Sequence[Axis],
    stages: Sequence[Stage],
    renamed: dict[str, Scalar],
) -> Loop:
    """A loop of the stages so far, which stores all that is reduced; it is loaded from then on."""
    shape = [axis.extent for axis in axes]
    place = flatten([axis_index(axis) for axis in axes], shape)
    stores: list[Store] = []
    loaded: dict[str, Scalar] = {}
    for stage in stages:
        if isinstance(stage, Reduce):
            buffer = f"{name}_{stage.local}"
            context.need_buffer(buffer, shape or [1], stage.dtype)
            stores.append(Store(buffer, place, Local(stage.local, stage.dtype)))
            loaded[stage.local] = Load(buffer, place, stage.dtype)
    change = Rewrite(locals=loaded)
    renamed.update((local, change.scalar(value)) for local, value in list(renamed.items()))
    renamed.update((local, value) for local, value in loaded.items() if local not in renamed)
    return Loop(name, tuple(axes), (*stages, Write((), tuple(stores))))


def _is_long(stage: Reduce, axes: Sequence[Axis]) -> bool:
    if stage.combine not in _PRIMITIVES or not stage.axes:
        return False
    points = size_of([axis.extent for axis in axes])
    each = size_of([axis.extent for axis in stage.axes])
    if points > _MOST_RESULTS and not (
        points <= _MOST_COLUMNS
        and each >= _LEAST_ROWS * _BLOCKS
        and _is_of_columns(stage, axes[-1])
    ):
        return False
    return points * each >= _LEAST_VALUES and stage.axes[0].extent >= 2 * _BLOCKS


def _is_of_columns(stage: Reduce, column: Axis) -> bool:
    """Whether all that is reduced lies side by side along an axis of the results."""
    loads = [part for part in parts(stage.value) if isinstance(part, Load)]
    reduced = [one for one in loads if any(stride_along(one.index, x) != 0 for x in stage.axes)]
    return bool(reduced) and all(stride_along(one.index, column) == 1 for one in reduced)


def _joined(one: Loop, other: Loop) -> Loop:
    """Two loops over partial results as one: what both read is then read once."""
    reduces: list[Stage] = []
    stores: list[Store] = []
    for stage in (*one.stages, *other.stages):
        if isinstance(stage, Write):
            stores += stage.stores
        else:
            reduces.append(stage)
    return replace(one, stages=(*reduces, Write((), tuple(stores))))


def _cut(
    context: Context, name: str, axes: Sequence[Axis], stage: Reduce
) -> tuple[Loop, list[Reduce]]:
    """A loop over blocks of the outermost reduced axis, and what combines its results."""
    outer, *rest = stage.axes
    length, left = divmod(outer.extent, _BLOCKS)
    block, inner = Axis("block", _BLOCKS), Axis(outer.name, length)
    shape = [*(axis.extent for axis in axes), _BLOCKS]
    context.need_buffer(name, shape, stage.dtype)
    place = flatten([axis_index(axis) for axis in (*axes, block)], shape)

    def value_at(position: Index) -> Scalar:
        return Rewrite({outer: position}).scalar(stage.value)

    inside = value_at(axis_index(block) * length + axis_index(inner))
    reduce = replace(stage, axes=(inner, *rest), value=inside)
    store = Store(name, place, Local(stage.local, stage.dtype))
    partial = Loop(name, (*axes, block), (reduce, Write((), (store,))))
    loaded = Load(name, place, stage.dtype)
    combining = [replace(stage, local=f"{stage.local}_blocks", axes=(block,), value=loaded)]
    if left:
        end = Axis(outer.name, left)
        value = value_at(axis_index(end) + _BLOCKS * length)
        axes_left = (end, *rest)
        combining.append(replace(stage, local=f"{stage.local}_rest", axes=axes_left, value=value))
    return partial, combining


def _with_locals(stage: Stage, renamed: dict[str, Scalar]) -> Stage:
    """The stage with other values for some locals."""
    if not renamed:
        return stage
    change = Rewrite(locals=renamed)
    return change.stage(stage)
