"""Loop nests with fewer and longer axes, where neighbours lie side by side in every buffer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from lamina.program.index import Axis, Gathered, Index, Quotient, Remainder, axis_index, unflatten
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import indices_of, postorder
from lamina.program.steps import Loop, Reduce, Stage, Write, stage_stores, stage_values
from lamina.shapes import size_of


def merged_axes(loop: Loop) -> Loop:
    """The loop with neighbouring axes made one wherever that is the same."""
    axes, stages = list(loop.axes), list(loop.stages)
    position = 0
    while position + 1 < len(axes):
        pair = (axes[position], axes[position + 1])
        if _mergeable(stages, *pair):
            merged, replacements = flattened(pair, pair[0].name + pair[1].name)
            change = Rewrite(replacements)
            stages = [change.stage(stage) for stage in stages]
            axes[position : position + 2] = [merged]
        else:
            position += 1
    return Loop(loop.name, tuple(axes), tuple(_inner_merged(stage) for stage in stages))


def _inner_merged(stage: Stage) -> Stage:
    """The same for the inner axes of a stage."""
    if not isinstance(stage, Reduce | Write):
        return stage
    axes = list(stage.axes)
    position = 0
    while position + 1 < len(axes):
        pair = (axes[position], axes[position + 1])
        if _mergeable([stage], *pair):
            merged, replacements = flattened(pair, pair[0].name + pair[1].name)
            stage = Rewrite(replacements).stage(stage)
            axes[position : position + 2] = [merged]
        else:
            position += 1
    return replace(stage, axes=tuple(axes))


def flattened(axes: Sequence[Axis], name: str) -> tuple[Axis, dict[Axis, Index]]:
    """One axis that runs over all points of several, and what each of them is in its terms."""
    size = size_of([axis.extent for axis in axes])
    single = Axis(name, size)
    if not size:
        return single, {axis: Index() for axis in axes}
    places = unflatten(axis_index(single), [axis.extent for axis in axes])
    return single, dict(zip(axes, places, strict=True))


def _mergeable(stages: Iterable[Stage], outer: Axis, inner: Axis) -> bool:
    """Whether both axes appear only together, as places in one longer row."""
    for index in _indices(stages):
        coefficients = dict(index.terms)
        if coefficients.get(outer, 0) != coefficients.get(inner, 0) * inner.extent:
            return False
    return True


def _indices(stages: Iterable[Stage]) -> set[Index]:
    """Every index expression, those inside others included."""
    found: set[Index] = set()
    pending: list[Index] = []
    for stage in stages:
        pending += [store.index for store in stage_stores(stage)]
        pending += [index for part in postorder(*stage_values(stage)) for index in indices_of(part)]
    while pending:
        index = pending.pop()
        if index in found:
            continue
        found.add(index)
        for atom, _ in index.terms:
            if isinstance(atom, Quotient | Remainder):
                pending.append(atom.index)
            elif isinstance(atom, Gathered):
                pending += [i for part in postorder(atom.value) for i in indices_of(part)]
    return found
