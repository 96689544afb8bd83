"""Ops that join and split tensors: concat, stack, split, unstack."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from lamina.base.shapes import Array, Dim, add_dims, as_whole, divide_counts, element_count, static
from lamina.checks import checked_as_given as checked
from lamina.errors import DTypeError, ShapeError
from lamina.graph import OPS, Sample, Tensor, described
from lamina.graph.attributes import Axis
from lamina.ops.arguments import as_tensor, axis_of, shape_of, tensors_of
from lamina.ops.lowering_rules import Coordinates, Movement, Pull, guarded, select_within
from lamina.ops.movement import expand_dims, squeeze
from lamina.ops.records import Given, Gradients, Typed, as_op
from lamina.ops.slicing import slice_axis
from lamina.program.scalar import Bound, Literal, Scalar

__all__ = ["concat", "split", "stack", "unstack"]


def _offsets(extents: Sequence[Dim]) -> list[Dim]:
    """The offset of each part, and the end of the last one."""
    offsets: list[Dim] = [0]
    for extent in extents:
        offsets.append(add_dims(offsets[-1], extent))
    return offsets


def _infer_concat(*operands: Tensor, axis: int) -> Typed:
    first = operands[0]
    if any(x.rank != first.rank for x in operands):
        raise ShapeError(
            "concat: the tensors differ in their number of axes",
            facts=tuple((f"tensor {number}", described(x)) for number, x in enumerate(operands)),
            advice="Add axes with ops.expand_dims, or use ops.stack for a new axis.",
        )
    for number, x in enumerate(operands):
        facts = (("tensor 0", described(first)), (f"tensor {number}", described(x)))
        if x.dtype != first.dtype:
            raise DTypeError(
                "concat: the tensors differ in dtype",
                facts=facts,
                advice="Bring them to one dtype with ops.cast.",
            )
        for other, (a, b) in enumerate(zip(first.shape, x.shape, strict=True)):
            if a != b and other != axis:
                raise ShapeError(
                    f"concat: the tensors differ in an axis other than {axis}",
                    facts=facts,
                    advice=f"Axis {other} differs, {a} against {b}: only axis {axis} may differ.",
                )
    total = _offsets([x.shape[axis] for x in operands])[-1]
    return (*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype


def _concat_gradient(*given: Tensor, axis: int) -> Gradients:
    *operands, _, upstream = given
    return split(upstream, [x.shape[axis] for x in operands], axis)


def _concat_reference(*parts: Array, axis: int) -> Array:
    return np.concatenate(parts, axis)


def _concat_scalar(node: Tensor, coordinates: Coordinates, pull: Pull) -> Scalar:
    axis: int = node.attributes["axis"]
    extents = static(tuple(x.shape[axis] for x in node.operands))
    offsets = static(tuple(_offsets(extents)))
    result: Scalar | None = None
    for number, extent in reversed(list(enumerate(extents))):
        if extent:
            index = coordinates[axis] - offsets[number]
            within = (Bound(index, 0, extent),)
            inside = pull(number, (*coordinates[:axis], index, *coordinates[axis + 1 :]))
            # Elements that are in no other part are in the last one, so it needs no condition.
            if result is None:
                result = guarded(inside, within)
            else:
                result = select_within(within, inside, result)
    return Literal(0, node.dtype) if result is None else result


@as_op(
    _infer_concat,
    _concat_gradient,
    _concat_reference,
    Movement(_concat_scalar),
    (
        Sample(((2, 3), (2, 1), (2, 4)), {"axis": 1}),
        Sample(((1, 3), (0, 3), (2, 3)), {"axis": 0}),
        Sample(((3,),), {"axis": 0}),
    ),
    operands=(1, None),
    attributes={"axis": Axis()},
)
def concat(tensors: Sequence[Tensor], axis: int) -> Given:
    """Tensors joined one after the other along an axis."""
    listed = tensors_of("concat: tensors", tensors)
    if not listed:
        raise ShapeError("concat: there are no tensors", advice="Give at least one.")
    axis = axis_of(listed[0], axis)
    return listed[0] if len(listed) == 1 else (*listed, axis)


CONCAT = OPS["concat"]


def _infer_stack(*operands: Tensor, axis: int) -> Typed:
    first = operands[0]
    for number, x in enumerate(operands):
        if (x.shape, x.dtype) != (first.shape, first.dtype):
            error = ShapeError if x.shape != first.shape else DTypeError
            raise error(
                "stack: the tensors differ",
                facts=(("tensor 0", described(first)), (f"tensor {number}", described(x))),
                advice="All must have one shape and one dtype.",
            )
    return (*first.shape[:axis], len(operands), *first.shape[axis:]), first.dtype


def _stack_reference(*parts: Array, axis: int) -> Array:
    return np.stack(parts, axis)


def _stack_build(*operands: Tensor, axis: int) -> Tensor:
    return concat([expand_dims(x, axis) for x in operands], axis)


def _stack_gradient(*given: Tensor, axis: int) -> Gradients:
    return unstack(given[-1], axis)


@as_op(
    _infer_stack,
    _stack_gradient,
    _stack_reference,
    _stack_build,
    (
        Sample(((2, 3), (2, 3)), {"axis": 0}),
        Sample(((2, 3), (2, 3), (2, 3)), {"axis": 2}),
        Sample(((1,),), {"axis": 1}),
    ),
    operands=(1, None),
    attributes={"axis": Axis(between=True)},
)
def stack(tensors: Sequence[Tensor], axis: int = 0) -> Given:
    """Tensors of one shape joined along a new axis."""
    listed = tensors_of("stack: tensors", tensors)
    if not listed:
        raise ShapeError("stack: there are no tensors", advice="Give at least one.")
    return *listed, axis_of(listed[0], axis, listed[0].rank + 1)


@checked
def split(x: Tensor, sizes: int | Sequence[Dim], axis: int) -> tuple[Tensor, ...]:
    """A tensor split along an axis.

    Args:
        x: any tensor.
        sizes: the extents of the parts, or the number of equal parts.
        axis: the axis that is split.
    """
    x = as_tensor(x)
    axis = axis_of(x, axis)
    dim = x.shape[axis]
    count = as_whole(sizes)
    if count is None:
        extents: Sequence[Dim] = shape_of(sizes, "sizes")
    else:
        part = divide_counts(element_count((dim,)), (count,)) if count > 0 else None
        extents = [] if part is None or (part == 0 and dim != 0) else [part] * count
    offsets = _offsets(extents)
    if offsets[-1] != dim or not extents:
        raise ShapeError(
            f"split: axis {axis} of extent {dim} cannot be split into these sizes",
            facts=(("tensor", described(x)), ("sizes", str(sizes))),
            advice="Sizes must add up to the extent; a number of equal parts must divide it.",
        )
    return tuple(slice_axis(x, axis, start, stop) for start, stop in itertools.pairwise(offsets))


@checked
def unstack(x: Tensor, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices along an axis, without that axis."""
    x = as_tensor(x)
    axis = axis_of(x, axis)
    dim = x.shape[axis]
    if not isinstance(dim, int):
        raise ShapeError(
            f"unstack: the extent of axis {axis} depends on the batch",
            facts=(("tensor", described(x)),),
            advice="Choose an axis of fixed extent.",
        )
    return tuple(squeeze(slice_axis(x, axis, i, i + 1), axis) for i in range(dim))
