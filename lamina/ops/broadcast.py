"""Broadcasting and summing: each is the other's gradient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lamina.base.shapes import Dim, Shape, broadcast, shape_text
from lamina.checks import checked_as_given as checked
from lamina.checks.kinds import Extent
from lamina.errors import DTypeError, LaminaError, ShapeError
from lamina.graph import Sample, Tensor, apply, described
from lamina.graph.attributes import Axes, Many
from lamina.ops.arguments import as_tensor, shape_of
from lamina.ops.lowering_rules import Coordinates, Movement, Pull, Reduction
from lamina.ops.movement import reshape
from lamina.ops.records import Typed, make_op
from lamina.program.index import Index
from lamina.program.scalar import Scalar

__all__ = ["broadcast_to", "sum_to"]


def _can_be_repeated(shape: Shape, to: Shape) -> bool:
    try:
        return broadcast(shape, to) == to
    except LaminaError:
        return False


def _infer_broadcast(x: Tensor, shape: Shape) -> Typed:
    if not _can_be_repeated(x.shape, shape):
        raise ShapeError(
            "broadcast_to: the tensor cannot be repeated to this shape",
            facts=(("tensor", described(x)), ("new shape", shape_text(shape))),
            advice="Counted from the last, dimensions must be equal or 1 in the tensor.",
        )
    return shape, x.dtype


def _broadcast_scalar(node: Tensor, coordinates: Coordinates, pull: Pull) -> Scalar:
    own = node.operands[0].shape
    last = coordinates[len(coordinates) - len(own) :]
    rows = zip(last, own, strict=True)
    return pull(0, tuple(Index(0) if dim == 1 else index for index, dim in rows))


BROADCAST_TO = make_op(
    "broadcast_to",
    _infer_broadcast,
    lambda x, y, g, shape: (sum_to(g, x.shape),),
    np.broadcast_to,
    Movement(_broadcast_scalar),
    (
        Sample(((3, 1),), {"shape": (2, 3, 4)}),
        Sample(((),), {"shape": (3,)}),
        Sample(((1, 5),), {"shape": (0, 5)}),
        Sample(((1, 1),), {"shape": (1, 1, 1)}),
    ),
    attributes={"shape": Many(Extent())},
)


@checked
def broadcast_to(x: Tensor, shape: int | Sequence[Dim]) -> Tensor:
    """The tensor repeated along new axes and along axes of extent 1."""
    x = as_tensor(x)
    wanted = shape_of(shape)
    return x if wanted == x.shape else apply(BROADCAST_TO, x, shape=wanted)


def infer_reduction(x: Tensor, axes: tuple[int, ...]) -> Typed:
    """The shape rule of reductions: the attribute `axes` (sorted) are dropped."""
    return tuple(dim for axis, dim in enumerate(x.shape) if axis not in axes), x.dtype


def infer_sum(x: Tensor, axes: tuple[int, ...]) -> Typed:
    """The shape rule of sums and products along axes."""
    require_numbers(x)
    return infer_reduction(x, axes)


def require_numbers(x: Tensor) -> None:
    """Raises DTypeError for bool, whose sums and products are not bool."""
    if x.dtype.kind == "bool":
        raise DTypeError(
            "expected a tensor of numbers",
            facts=(("found", described(x)),),
            advice="Convert with ops.cast(x, 'int64').",
        )


def with_ones(y: Tensor, like: Tensor, axes: tuple[int, ...]) -> Tensor:
    """A reduced tensor with the reduced axes put back as axes of extent 1."""
    return reshape(y, [1 if axis in axes else dim for axis, dim in enumerate(like.shape)])


def spread(y: Tensor, like: Tensor, axes: tuple[int, ...]) -> Tensor:
    """A reduced tensor repeated along the reduced axes."""
    return broadcast_to(with_ones(y, like, axes), like.shape)


SUM = make_op(
    "sum",
    infer_sum,
    lambda x, y, g, axes: (spread(g, x, axes),),
    lambda x, axes: np.sum(x, axis=axes, dtype=x.dtype),
    Reduction("sum"),
    (
        Sample(((3, 5),), {"axes": (0,)}),
        Sample(((2, 3, 4),), {"axes": (0, 2)}),
        Sample(((7,),), {"axes": (0,)}),
        Sample(((3, 0, 2),), {"axes": (1,)}),
        Sample(((2, 1),), {"axes": (1,)}),
        Sample(((4, 3),), {"axes": (0, 1)}, dtypes=("int64",), differentiable=False),
    ),
    attributes={"axes": Axes()},
)


def sum_axes(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The sum over axes counted from the front, in rising order; the dtype stays."""
    return apply(SUM, x, axes=axes) if axes else x


@checked
def sum_to(x: Tensor, shape: Shape) -> Tensor:
    """Reverses broadcasting: sums over the axes along which `shape` was repeated to x's shape."""
    x, shape = as_tensor(x), shape_of(shape)
    if x.shape == shape:
        return x
    if not _can_be_repeated(shape, x.shape):
        raise ShapeError(
            "sum_to: a tensor of this shape cannot be repeated to the tensor's shape",
            facts=(("tensor", described(x)), ("shape", shape_text(shape))),
            advice="Counted from the last, its dimensions must be equal or 1.",
        )
    new = x.rank - len(shape)
    axes = tuple(range(new)) + tuple(
        axis + new for axis, dim in enumerate(shape) if dim == 1 and x.shape[axis + new] != 1
    )
    return reshape(sum_axes(x, axes), shape)
