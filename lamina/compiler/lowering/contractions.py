"""Contractions: products summed over labels, read through views, with an epilogue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lamina.compiler.lowering.pull import (
    Location,
    NotOneStep,
    Puller,
    Row,
    axis_indices,
    buffer_and_index,
    iterating,
    numbered_axes,
)
from lamina.compiler.lowering.sliding import windows_of
from lamina.graph import Tensor
from lamina.ops.lowering import Reduction, Sliding
from lamina.program.index import Axis, Gathered, Index, Quotient
from lamina.program.scalar import Apply, Load, Local, Scalar
from lamina.program.steps import Contraction, Store
from lamina.shapes import size_of, static

# A tensor, and the label of each of its axes.
_Labelled = tuple[Tensor, tuple[str, ...]]


def lower_contraction(
    members: Sequence[Tensor],
    contractions: Sequence[Tensor],
    stored: Mapping[Tensor, str | Row],
    locations: Mapping[Tensor, Location],
    name: str,
) -> Contraction:
    """The contraction of a group, the rest of which is its epilogue.

    Args:
        members, stored, locations, name: as for `lower_group`.
        contractions: those among the members.
    """
    node = contractions[0]
    if len(contractions) > 1 or any(isinstance(m.op.lowering, Reduction) for m in members):
        raise NotOneStep
    (left, left_names), (right, right_names) = _labelled_operands(node)
    output_names: tuple[str, ...] = node.attributes["output"]
    extents = dict(zip(left_names, static(left.shape), strict=True))
    extents |= dict(zip(right_names, static(right.shape), strict=True))
    axes = {label: Axis(f"i{n}", extents[label]) for n, label in enumerate(output_names)}
    inner_names = [label for label in left_names if label not in axes]
    axes |= {label: Axis(f"k{n}", extents[label]) for n, label in enumerate(inner_names)}
    result = Local("sum", node.dtype)
    output_axes = [axes[label] for label in output_names]
    stores = _epilogue(members, node, result, output_axes, stored, locations)

    def group(wanted: Iterable[str]) -> tuple[Axis, ...]:
        return iterating(axes[label] for label in wanted)

    def view(operand: Tensor, names: tuple[str, ...]) -> tuple[Scalar, Iterable[Sliding]]:
        puller = Puller(locations)
        scalar = puller.pull(operand, axis_indices(axes[label] for label in names))
        load_of_view(scalar)
        return scalar, puller.slidings

    left_view, left_slidings = view(left, left_names)
    right_view, right_slidings = view(right, right_names)
    strides = _strides(load_of_view(left_view).index)
    # Sums run through the left operand as it lies.
    inner = sorted(group(inner_names), key=lambda axis: -abs(strides.get(axis, 0)))
    return Contraction(
        name=name,
        batch=group(n for n in output_names if n in left_names and n in right_names),
        m=group(n for n in output_names if n not in right_names),
        n=group(n for n in output_names if n not in left_names),
        k=tuple(inner),
        left=left_view,
        right=right_view,
        result=result.name,
        dtype=node.dtype,
        stores=stores,
        windows=(
            *windows_of("left", left_view, left_slidings, axes.values(), inner),
            *windows_of("right", right_view, right_slidings, axes.values(), inner),
        ),
    )


def _labelled_operands(node: Tensor) -> tuple[_Labelled, _Labelled]:
    """The operands with the labels of their axes; columns lie side by side in the result."""
    left, right = node.operands
    left_names: tuple[str, ...] = node.attributes["left"]
    right_names: tuple[str, ...] = node.attributes["right"]
    output: tuple[str, ...] = node.attributes["output"]
    one, other = (left, left_names), (right, right_names)
    return (other, one) if output and output[-1] not in right_names else (one, other)


def _epilogue(
    members: Sequence[Tensor],
    node: Tensor,
    result: Local,
    axes: Sequence[Axis],
    stored: Mapping[Tensor, str | Row],
    locations: Mapping[Tensor, Location],
) -> tuple[Store, ...]:
    """What is stored at each point of the axes, made of the sum of the contraction `node`."""
    size = size_of([axis.extent for axis in axes])
    puller = Puller(locations)
    for member in members:
        if size_of(static(member.shape)) != size:
            raise NotOneStep
        if member is node:
            puller.computed_at[node], puller.locals[node] = axis_indices(axes), result
        else:
            puller.choose_coordinates(member, axes)
    return tuple(
        Store(
            *buffer_and_index(stored[member], puller.computed_at[member], static(member.shape)),
            puller.pull(member, puller.computed_at[member]),
        )
        for member in members
        if member in stored
    )


def is_view(node: Tensor, locations: Mapping[Tensor, Location]) -> bool:
    """Whether a contraction can read the tensor where its source lies."""
    place = axis_indices(numbered_axes("i", static(node.shape)))
    try:
        load_of_view(Puller(locations).pull(node, place))
    except NotOneStep:
        return False
    return True


def load_of_view(scalar: Scalar) -> Load:
    """The load behind a view.

    Raises:
        NotOneStep: if the scalar is more than a load with casts, or goes through it unevenly.
    """
    while isinstance(scalar, Apply) and scalar.primitive == "cast":
        scalar = scalar.operands[0]
    if not isinstance(scalar, Load) or not _is_even(scalar):
        raise NotOneStep
    return scalar


def _is_even(load: Load) -> bool:
    """Whether all axes go through the buffer in equal strides, apart from where it is not read.

    Reshapes that cut other axes than those of the buffer do not; a copy is read faster then.
    """
    atoms = [atom for atom, _ in load.index.terms]
    if not load.bounds:
        return all(isinstance(atom, Axis | Gathered) for atom in atoms)
    # With gaps between elements, quotients are whole where a bound says so.
    return all(isinstance(atom, Axis | Gathered | Quotient) for atom in atoms)


def _strides(index: Index) -> dict[Axis, float]:
    """How far apart the places of each axis lie; through quotients, where they are whole."""
    found: dict[Axis, float] = {}
    for atom, step in index.terms:
        if isinstance(atom, Axis):
            found[atom] = found.get(atom, 0) + step
        elif isinstance(atom, Quotient):
            for axis, inner in _strides(atom.index).items():
                found[axis] = found.get(axis, 0) + step * inner / atom.divisor
    return found
