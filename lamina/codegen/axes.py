"""Axes of loop nests: merging of neighbours that are contiguous in every buffer, and strides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from lamina.base.shapes import size_of
from lamina.program.index import Axis, Gathered, Index, Quotient, Remainder, axis_index, unflatten
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import indices_of, postorder
from lamina.program.steps import Loop, Reduce, Stage, Write, stage_stores, stage_values


def merged_axes(loop: Loop) -> Loop:
    """The loop with neighbouring axes merged wherever every index allows it."""
    axes, stages = _merged(loop.axes, loop.stages)
    for number, stage in enumerate(stages):
        if isinstance(stage, Reduce | Write):
            inner, (stage,) = _merged(stage.axes, [stage])
            assert isinstance(stage, Reduce | Write)
            stages[number] = replace(stage, axes=inner)
    return Loop(loop.name, axes, tuple(stages))


def _merged(some: Sequence[Axis], stages: Sequence[Stage]) -> tuple[tuple[Axis, ...], list[Stage]]:
    """The axes, neighbours merged, and the stages over them."""
    axes, stages = list(some), list(stages)
    number = 0
    while number + 1 < len(axes):
        outer, inner = axes[number : number + 2]
        coefficients = [dict(index.terms) for index in _indices(stages)]
        if all(terms.get(outer, 0) == terms.get(inner, 0) * inner.extent for terms in coefficients):
            merged, replacements = flattened((outer, inner), outer.name + inner.name)
            stages = [*Rewrite(replacements).records(stages)]
            axes[number : number + 2] = [merged]
        else:
            number += 1
    return tuple(axes), stages


def flattened(axes: Sequence[Axis], name: str) -> tuple[Axis, dict[Axis, Index]]:
    """One axis over all points of several axes, and the index of each of them in its terms."""
    size = size_of([axis.extent for axis in axes])
    single = Axis(name, size)
    if not size:
        return single, {axis: Index() for axis in axes}
    coordinates = unflatten(axis_index(single), [axis.extent for axis in axes])
    return single, dict(zip(axes, coordinates, strict=True))


def _indices(stages: Iterable[Stage]) -> set[Index]:
    """Every index expression, including those inside others."""
    indices: set[Index] = set()
    pending: list[Index] = []
    for stage in stages:
        pending += [store.index for store in stage_stores(stage)]
        pending += [i for scalar in postorder(*stage_values(stage)) for i in indices_of(scalar)]
    while pending:
        index = pending.pop()
        if index in indices:
            continue
        indices.add(index)
        for atom, _ in index.terms:
            if isinstance(atom, Quotient | Remainder):
                pending.append(atom.index)
            elif isinstance(atom, Gathered):
                pending += [i for scalar in postorder(atom.value) for i in indices_of(scalar)]
    return indices


def row_major_strides(extents: Sequence[int]) -> list[int]:
    """The strides of the axes of an array; the last axis is contiguous."""
    return [size_of(extents[number + 1 :]) for number in range(len(extents))]


def stride_along(index: Index, axis: Axis) -> int | None:
    """The stride of an index along an axis; None if it is not constant."""
    stride = 0
    for atom, coefficient in index.terms:
        if atom == axis:
            stride = coefficient
        elif isinstance(atom, Quotient | Remainder):
            if stride_along(atom.index, axis) != 0:
                return None
        elif not isinstance(atom, Axis):
            within = (i for scalar in postorder(atom.value) for i in indices_of(scalar))
            if any(stride_along(inner, axis) != 0 for inner in within):
                return None
    return stride
