"""Contractions: sums of products of operands that are read through views, with an epilogue."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from lamina.base.shapes import size_of, static
from lamina.compiler.lowering.pull import (
    Location,
    NotOneStep,
    Puller,
    axis_indices,
    iterating,
    numbered_axes,
)
from lamina.graph import Tensor
from lamina.ops.lowering_rules import Reduction
from lamina.program.index import Axis, Gathered, Index, Quotient, flatten
from lamina.program.scalar import Load, Local, Scalar, unconverted
from lamina.program.steps import Contraction, Store
from lamina.program.windows import Sliding, fitted


def lower_contraction(
    members: Sequence[Tensor],
    contractions: Sequence[Tensor],
    stored: Mapping[Tensor, str],
    locations: Mapping[Tensor, Location],
) -> Contraction:
    """The contraction step of a group, whose other members form the epilogue.

    Refuses a second contraction or a reduction, and an operand that is not a view.
    """
    node = contractions[0]
    if len(contractions) > 1 or any(isinstance(m.op.lowering, Reduction) for m in members):
        raise NotOneStep
    output_labels: tuple[str, ...] = node.attributes["output"]
    labels = (node.attributes[name] for name in ("left", "right"))
    operands: list[tuple[Tensor, tuple[str, ...]]] = list(zip(node.operands, labels, strict=True))
    if output_labels and output_labels[-1] not in operands[1][1]:
        # The right operand has the last label, so that elements along N are adjacent in the result.
        operands.reverse()
    (left, left_labels), (right, right_labels) = operands
    extents = dict(zip(left_labels, static(left.shape), strict=True))
    extents |= dict(zip(right_labels, static(right.shape), strict=True))
    axes = {label: Axis(f"i{n}", extents[label]) for n, label in enumerate(output_labels)}
    k_labels = [label for label in left_labels if label not in axes]
    axes |= {label: Axis(f"k{n}", extents[label]) for n, label in enumerate(k_labels)}
    result = Local("sum", node.dtype)
    output_axes = [axes[label] for label in output_labels]
    stores = _epilogue(members, node, result, output_axes, stored, locations)

    def axes_of_labels(labels: Iterable[str]) -> tuple[Axis, ...]:
        return iterating(axes[label] for label in labels)

    def view(operand: Tensor, labels: tuple[str, ...]) -> tuple[Scalar, Iterable[Sliding]]:
        puller = Puller(locations)
        scalar = puller.pull(operand, axis_indices(axes[label] for label in labels))
        load_of_view(scalar)
        return scalar, puller.windows

    left_view, left_windows = view(left, left_labels)
    right_view, right_windows = view(right, right_labels)
    strides = _strides(load_of_view(left_view).index)
    # The axes of K are in the order of memory of the left operand.
    k_axes = sorted(axes_of_labels(k_labels), key=lambda axis: -abs(strides.get(axis, 0)))
    return Contraction(
        name="",
        batch=axes_of_labels(
            label for label in output_labels if label in left_labels and label in right_labels
        ),
        m=axes_of_labels(label for label in output_labels if label not in right_labels),
        n=axes_of_labels(label for label in output_labels if label not in left_labels),
        k=tuple(k_axes),
        left=left_view,
        right=right_view,
        result=result.name,
        dtype=node.dtype,
        stores=stores,
        left_windows=_fitted(left_windows, left_view, axes.values(), k_axes),
        right_windows=_fitted(right_windows, right_view, axes.values(), k_axes),
    )


def _fitted(
    windows: Iterable[Sliding], view: Scalar, axes: Collection[Axis], k_axes: Collection[Axis]
) -> tuple[Sliding, ...]:
    """The windows between a view and its buffer, narrowed to the elements that it reads."""
    narrowed = (fitted(window, view) for window in windows if window.axes <= set(axes))
    used = [window for window in narrowed if window is not None and window.kind(k_axes) is not None]
    # A window of one element at stride 1 without padding is a plain axis.
    return tuple(window for window in used if not (window.is_axis and window.stride == 1))


def _epilogue(
    members: Sequence[Tensor],
    node: Tensor,
    result: Local,
    axes: Sequence[Axis],
    stored: Mapping[Tensor, str],
    locations: Mapping[Tensor, Location],
) -> tuple[Store, ...]:
    """The stores at each point of the result's axes, from the local that holds its sum."""
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
            stored[member],
            flatten(puller.computed_at[member], static(member.shape)),
            puller.pull(member, puller.computed_at[member]),
        )
        for member in members
        if member in stored
    )


# Quotients and remainders may be nested so deep in a view. Each reshape could double an index.
_MOST_NESTED = 8


def is_view(node: Tensor, locations: Mapping[Tensor, Location]) -> bool:
    """Whether a contraction can read the tensor as a view of one stored tensor."""
    point = axis_indices(numbered_axes("i", static(node.shape)))
    try:
        load_of_view(Puller(locations, _MOST_NESTED).pull(node, point))
    except NotOneStep:
        return False
    return True


def load_of_view(scalar: Scalar) -> Load:
    """The load of a view, without conversions; refuses an axis without a constant stride."""
    load = unconverted(scalar)
    if not isinstance(load, Load):
        raise NotOneStep
    # Axes of a reshape that do not match the buffer's axes have no constant stride. A contraction
    # then reads a copy faster. With gaps between elements, bounds restrict the load to points where
    # quotients are exact.
    regular = Axis | Gathered | Quotient if load.bounds else Axis | Gathered
    if not all(isinstance(atom, regular) for atom, _ in load.index.terms):
        raise NotOneStep
    return load


def _strides(index: Index) -> dict[Axis, float]:
    """The stride of each axis in an index, in elements; quotients count as exact."""
    strides: dict[Axis, float] = {}
    for atom, coefficient in index.terms:
        if isinstance(atom, Axis):
            strides[atom] = strides.get(atom, 0) + coefficient
        elif isinstance(atom, Quotient):
            for axis, stride in _strides(atom.index).items():
                strides[axis] = strides.get(axis, 0) + coefficient * stride / atom.divisor
    return strides
