"""Loop nests with fewer and longer axes, where neighbours lie side by side in every buffer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import final

from lamina.program.index import (
    Axis,
    Gathered,
    Index,
    Quotient,
    Remainder,
    axis_index,
    gathered_index,
    unflatten,
)
from lamina.program.scalar import (
    Apply,
    Bound,
    Load,
    Local,
    Position,
    Scalar,
    Within,
    indices_of,
    parts,
)
from lamina.program.steps import Loop, Reduce, Scan, Stage, Store, Write
from lamina.shapes import size_of


def merged_axes(loop: Loop) -> Loop:
    """The loop with neighbouring axes made one wherever that is the same."""
    axes, stages = list(loop.axes), list(loop.stages)
    position = 0
    while position + 1 < len(axes):
        pair = (axes[position], axes[position + 1])
        if _mergeable(stages, *pair):
            merged, replacements = flattened(pair, pair[0].name + pair[1].name)
            change = Replacing(replacements)
            stages = [change.stage(stage) for stage in stages]
            axes[position : position + 2] = [merged]
        else:
            position += 1
    return Loop(loop.name, tuple(axes), tuple(_inner_merged(stage) for stage in stages))


def _inner_merged(stage: Stage) -> Stage:
    """The same for the inner axes of a stage."""
    if isinstance(stage, Scan):
        return stage
    axes = list(stage.axes)
    position = 0
    while position + 1 < len(axes):
        pair = (axes[position], axes[position + 1])
        if _mergeable([stage], *pair):
            merged, replacements = flattened(pair, pair[0].name + pair[1].name)
            stage = Replacing(replacements).stage(stage)
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


@final
class Replacing:
    """Puts index expressions in the place of axes, in everything that names them.

    What several scalars share, they share afterwards: one object serves for all parts of a step.

    Args:
        replacements: the index expression for each axis.
        values: what stands in the place of locals, by their names.
    """

    def __init__(
        self, replacements: Mapping[Axis, Index], values: Mapping[str, Scalar] | None = None
    ) -> None:
        self._replacements = replacements
        self._values = values or {}
        self._known: dict[Scalar, Scalar] = {}
        self._indices: dict[Index, Index] = {}

    def stage(self, stage: Stage) -> Stage:
        if isinstance(stage, Write):
            return replace(stage, stores=tuple(self.store(store) for store in stage.stores))
        if isinstance(stage, Reduce):
            return replace(stage, value=self.scalar(stage.value))
        return replace(stage, value=self.scalar(stage.value), index=self.index(stage.index))

    def store(self, store: Store) -> Store:
        return replace(store, index=self.index(store.index), value=self.scalar(store.value))

    def index(self, index: Index) -> Index:
        if index not in self._indices:
            self._indices[index] = self._replaced(index)
        return self._indices[index]

    def _replaced(self, index: Index) -> Index:
        result = Index(index.constant)
        for atom, coefficient in index.terms:
            if isinstance(atom, Axis):
                part = self._replacements.get(atom, Index(0, ((atom, 1),)))
            elif isinstance(atom, Quotient):
                part = self.index(atom.index) // atom.divisor
            elif isinstance(atom, Remainder):
                part = self.index(atom.index) % atom.divisor
            else:
                part = gathered_index(self.scalar(atom.value), atom.extent)
            result = result + part * coefficient
        return result

    def scalar(self, scalar: Scalar) -> Scalar:
        new = self._known
        for part in parts(scalar):
            if part in new:
                continue
            if isinstance(part, Apply):
                operands = tuple(new[operand] for operand in part.operands)
                new[part] = Apply(part.primitive, operands, part.dtype)
            elif isinstance(part, Load):
                bounds = self._bounds(part.bounds)
                new[part] = replace(part, index=self.index(part.index), bounds=bounds)
            elif isinstance(part, Position):
                new[part] = replace(part, index=self.index(part.index))
            elif isinstance(part, Within):
                new[part] = replace(part, bounds=self._bounds(part.bounds))
            elif isinstance(part, Local):
                new[part] = self._values.get(part.name, part)
            else:
                new[part] = part
        return new[scalar]

    def _bounds(self, bounds: Sequence[Bound]) -> tuple[Bound, ...]:
        return tuple(Bound(self.index(b.index), b.low, b.high) for b in bounds)


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
        roots: list[Scalar]
        if isinstance(stage, Write):
            roots = [store.value for store in stage.stores]
            pending += [store.index for store in stage.stores]
        else:
            roots = [stage.value]
            pending += [stage.index] if isinstance(stage, Scan) else []
        pending += [index for part in parts(*roots) for index in indices_of(part)]
    while pending:
        index = pending.pop()
        if index in found:
            continue
        found.add(index)
        for atom, _ in index.terms:
            if isinstance(atom, Quotient | Remainder):
                pending.append(atom.index)
            elif isinstance(atom, Gathered):
                pending += [i for part in parts(atom.value) for i in indices_of(part)]
    return found
