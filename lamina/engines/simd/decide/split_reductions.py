"""Long reductions, split into blocks that the workers share.

A mean over a large batch is one number, so without the split one worker would compute it. Sums of
columns are split too, so that memory is read in its order. The blocks depend on the sizes alone, so
the result does not depend on the number of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

from lamina.base.shapes import size_of
from lamina.codegen.axes import merged_axes, stride_along
from lamina.program.index import Axis, Index, axis_index, row_major
from lamina.program.program import Buffer
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Apply, Load, Local, Scalar, loads, postorder
from lamina.program.steps import COMBINING, Loop, Reduce, Stage, Store, Write, stage_stores

# Loops with more results than the first limit have enough work items for all workers; sums of
# columns are split up to the second limit.
_MOST_RESULTS, _MOST_COLUMNS = 64, 1 << 12
# Reductions of fewer values than this are done before other workers are awake.
_LEAST_VALUES = 1 << 16
BLOCKS = 32
# The fewest values of a column in a block, so that partial results are few in comparison.
_LEAST_ROWS = 64


def long_reductions(loop: Loop) -> tuple[str, ...]:
    """The locals of the reductions worth splitting, of a loop with neighbouring axes merged."""
    reductions = (stage for stage in loop.stages if isinstance(stage, Reduce))
    return tuple(stage.local for stage in reductions if _is_long(stage, loop.axes))


def split_loop(loop: Loop, locals_: Sequence[str], blocks: int) -> Split:
    """A loop with neighbouring axes merged, after loops that compute partial results of reductions.

    The reductions with the given locals are split, into so many blocks each.
    """
    if not locals_:
        return Split(loop.axes, blocks, [loop])
    split = Split(loop.axes, blocks)
    for stage in loop.stages:
        if isinstance(stage, Reduce) and stage.local in locals_:
            split.split(stage)
        else:
            change = Rewrite(locals=split.renamed)
            split.stages.append(change.record(stage) if split.renamed else stage)
    loops = (*split.loops, replace(loop, stages=tuple(split.stages)))
    split.loops = [merged_axes(part) for part in loops]
    return split


@final
@dataclass
class Split:
    """A loop whose long reductions are split; it takes its stages in order.

    Attributes:
        axes, blocks: the axes of the loop, and the blocks of each reduction.
        loops: the loops of partial results, and at the end the loop itself.
        buffers: the buffers of the values that these loops pass on.
        stages: the stages of the loop that follows the loops of partial results.
        renamed: the scalar that replaces a local in the following stages.
    """

    axes: tuple[Axis, ...]
    blocks: int
    loops: list[Loop] = field(default_factory=list[Loop])
    buffers: list[Buffer] = field(default_factory=list[Buffer])
    stages: list[Stage] = field(default_factory=list[Stage])
    renamed: dict[str, Scalar] = field(default_factory=dict[str, Scalar])

    def split(self, stage: Reduce) -> None:
        """Takes a reduction as partial results, and their combination."""
        stage = self._reduce_with_locals(stage)
        has_locals = any(isinstance(scalar, Local) for scalar in postorder(stage.value))
        written = {store.buffer for earlier in self.stages for store in stage_stores(earlier)}
        if has_locals or not written.isdisjoint(load.buffer for load in loads(stage.value)):
            # The stages on which it depends become a separate loop, after which there is a barrier.
            self._finish(f"partial_before_{stage.local}")
            stage = self._reduce_with_locals(stage)
        partial, combining = self._partial(stage)
        if self.loops and self.loops[-1].axes == partial.axes:
            partial = _joined(self.loops.pop(), partial)
        self.loops.append(partial)
        self.stages += combining
        total, *others = [Local(reduction.local, reduction.dtype) for reduction in combining]
        combined: Scalar = total
        for result in others:
            combined = Apply(COMBINING[stage.combine], (combined, result), stage.dtype)
        self.renamed[stage.local] = combined

    def _finish(self, name: str) -> None:
        """Ends a loop with the stages so far: it stores their locals, which are then loaded."""
        shape = tuple(axis.extent for axis in self.axes) or (1,)
        offset = row_major(self.axes)
        stores: list[Store] = []
        loaded: dict[str, Scalar] = {}
        for stage in self.stages:
            if isinstance(stage, Reduce):
                buffer = f"{name}_{stage.local}"
                self.buffers.append(Buffer(buffer, "temporary", shape, stage.dtype))
                stores.append(Store(buffer, offset, Local(stage.local, stage.dtype)))
                loaded[stage.local] = Load(buffer, offset, stage.dtype)
        change = Rewrite(locals=loaded)
        self.renamed = {local: change.scalar(value) for local, value in self.renamed.items()}
        self.renamed = loaded | self.renamed
        self.loops.append(Loop(name, self.axes, (*self.stages, Write((), tuple(stores)))))
        self.stages = []

    def _partial(self, stage: Reduce) -> tuple[Loop, list[Reduce]]:
        """A loop over blocks of the outermost reduced axis, and the stages that combine them."""
        outer, *rest = stage.axes
        length, left = divmod(outer.extent, self.blocks)
        block, inner = Axis("block", self.blocks), Axis(outer.name, length)
        shape = (*(axis.extent for axis in self.axes), self.blocks)
        name = f"partial_{stage.local}"
        self.buffers.append(Buffer(name, "temporary", shape, stage.dtype))
        offset = row_major((*self.axes, block))

        def value_at(position: Index) -> Scalar:
            return Rewrite({outer: position}).scalar(stage.value)

        inside = value_at(axis_index(block) * length + axis_index(inner))
        reduce = replace(stage, axes=(inner, *rest), value=inside)
        store = Store(name, offset, Local(stage.local, stage.dtype))
        partial = Loop(name, (*self.axes, block), (reduce, Write((), (store,))))
        loaded = Load(name, offset, stage.dtype)
        combining = [replace(stage, local=f"{stage.local}_blocks", axes=(block,), value=loaded)]
        if left:
            end = Axis(outer.name, left)
            value = value_at(axis_index(end) + self.blocks * length)
            axes = (end, *rest)
            combining.append(replace(stage, local=f"{stage.local}_rest", axes=axes, value=value))
        return partial, combining

    def _reduce_with_locals(self, stage: Reduce) -> Reduce:
        return replace(stage, value=Rewrite(locals=self.renamed).scalar(stage.value))


def _is_long(stage: Reduce, axes: Sequence[Axis]) -> bool:
    if stage.combine not in COMBINING or not stage.axes:
        return False
    points = size_of([axis.extent for axis in axes])
    terms = size_of([axis.extent for axis in stage.axes])
    has_high_columns = points <= _MOST_COLUMNS and terms >= _LEAST_ROWS * BLOCKS
    if points > _MOST_RESULTS and not (has_high_columns and _is_of_columns(stage, axes[-1])):
        return False
    return points * terms >= _LEAST_VALUES and stage.axes[0].extent >= 2 * BLOCKS


def _is_of_columns(stage: Reduce, column: Axis) -> bool:
    """Whether all loads that are reduced are contiguous along an axis of the results."""
    reduced = [
        load
        for load in loads(stage.value)
        if any(stride_along(load.index, axis) != 0 for axis in stage.axes)
    ]
    return bool(reduced) and all(stride_along(load.index, column) == 1 for load in reduced)


def _joined(first: Loop, second: Loop) -> Loop:
    """Two loops over partial results, joined to one that reads shared operands once."""
    stages = (*first.stages, *second.stages)
    stores = (store for stage in stages if isinstance(stage, Write) for store in stage.stores)
    reduces = (stage for stage in stages if not isinstance(stage, Write))
    return replace(first, stages=(*reduces, Write((), tuple(stores))))
