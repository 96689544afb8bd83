"""Ops that put elements in another order or shape: reshape, transpose, flip.

Like slices, pads and joins, they compute nothing. Each becomes index arithmetic in the loads of the
ops that read its result.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lamina.base.shapes import Dim, Shape, divide_counts, element_count, shape_text, static
from lamina.checks.kinds import Extent
from lamina.errors import ShapeError
from lamina.graph import OPS, Sample, Tensor, described, operator
from lamina.graph.attributes import Axes, Many, Permutation
from lamina.ops.arguments import as_tensor, axes_of, axis_of, listed_axes, shape_of
from lamina.ops.lowering_rules import Coordinates, Movement, Pull
from lamina.ops.records import Given, Typed, as_op
from lamina.program.index import Index, flatten, unflatten
from lamina.program.scalar import Scalar

__all__ = ["expand_dims", "flip", "reshape", "squeeze", "transpose"]


def _infer_reshape(x: Tensor, shape: Shape) -> Typed:
    if element_count(x.shape) != element_count(shape):
        raise ShapeError(
            "reshape: the shapes hold different numbers of elements",
            facts=(("tensor", described(x)), ("new shape", shape_text(shape))),
            advice="Their products must be equal; -1 stands for one dimension that is inferred.",
        )
    return shape, x.dtype


def _reshape_scalar(node: Tensor, coordinates: Coordinates, pull: Pull) -> Scalar:
    new, old = static(node.shape), static(node.operands[0].shape)
    if 0 in new:
        return pull(0, unflatten(flatten(coordinates, new), old))
    pulled = [Index()] * len(old)
    for before, after in reshaped_blocks(old, new):
        offset = flatten([coordinates[axis] for axis in after], [new[axis] for axis in after])
        for axis, index in zip(
            before, unflatten(offset, [old[axis] for axis in before]), strict=True
        ):
            pulled[axis] = index
    return pull(0, tuple(pulled))


def reshaped_blocks(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The smallest runs of axes of two shapes that hold the same elements, in order."""
    blocks: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        if i < len(old) and old[i] == 1 and not (j < len(new) and new[j] == 1):
            blocks.append(([i], []))
            i += 1
        elif j < len(new) and new[j] == 1 and not (i < len(old) and old[i] == 1):
            blocks.append(([], [j]))
            j += 1
        else:
            before, after = [i], [j]
            sizes = old[i], new[j]
            i, j = i + 1, j + 1
            while sizes[0] != sizes[1]:
                if sizes[0] < sizes[1]:
                    before.append(i)
                    sizes = sizes[0] * old[i], sizes[1]
                    i += 1
                else:
                    after.append(j)
                    sizes = sizes[0], sizes[1] * new[j]
                    j += 1
            blocks.append((before, after))
    return blocks


@as_op(
    _infer_reshape,
    lambda x, y, g, shape: (reshape(g, x.shape),),
    lambda x, shape: x.reshape(shape),
    Movement(_reshape_scalar),
    (
        Sample(((2, 6),), {"shape": (3, 4)}),
        Sample(((2, 3, 5),), {"shape": (5, 1, 6)}),
        Sample(((1,),), {"shape": ()}),
        Sample(((0, 3),), {"shape": (3, 0, 2)}),
    ),
    attributes={"shape": Many(Extent())},
    selects=True,
)
def reshape(x: Tensor, shape: int | Sequence[Dim]) -> Given:
    """The same elements, in the same order, with another shape.

    Args:
        x: any tensor.
        shape: the new dimensions; one may be -1 and is inferred from the others.
    """
    x = as_tensor(x)
    new = shape_of(shape, inferred=True)
    if -1 in new:
        new = _with_inferred_dimension(x, new)
    return x if new == x.shape else (x, new)


def _with_inferred_dimension(x: Tensor, shape: Shape) -> Shape:
    axis = shape.index(-1)
    others = (*shape[:axis], *shape[axis + 1 :])
    missing = None
    if -1 not in others:
        missing = divide_counts(element_count(x.shape), element_count(others))
    if missing is None:
        raise ShapeError(
            "reshape: the dimension -1 cannot be inferred",
            facts=(("tensor", described(x)), ("new shape", shape_text(shape))),
            advice="Write -1 once, and let the others divide the number of elements.",
        )
    return (*shape[:axis], missing, *shape[axis + 1 :])


@operator
def expand_dims(x: Tensor, axes: int | Sequence[int]) -> Tensor:
    """New axes of extent 1; `axes` are their numbers in the result."""
    x = as_tensor(x)
    listed = listed_axes(axes, x)
    rank = x.rank + len(listed)
    new = {axis % rank for axis in listed if -rank <= axis < rank}
    if len(new) != len(listed):
        raise ShapeError(
            "expand_dims: the new axes do not fit",
            facts=(("tensor", described(x)), ("axes", str(axes))),
            advice=f"Name each once, from {-rank} to {rank - 1}.",
        )
    old = iter(x.shape)
    return reshape(x, [1 if axis in new else next(old) for axis in range(rank)])


@operator
def squeeze(x: Tensor, axes: int | Sequence[int] | None = None) -> Tensor:
    """Without axes of extent 1: the named ones, or all of them."""
    x = as_tensor(x)
    named = axes_of(x, axes)
    wrong = [axis for axis in named if x.shape[axis] != 1]
    if axes is not None and wrong:
        raise ShapeError(
            f"squeeze: axis {wrong[0]} does not have extent 1",
            facts=(("tensor", described(x)), ("axes", str(axes))),
            advice="Only axes of extent 1 can be dropped; use reshape or a reduction.",
        )
    dropped = set(named) - set(wrong)
    return reshape(x, [dim for axis, dim in enumerate(x.shape) if axis not in dropped])


def _inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axes.index(axis) for axis in range(len(axes)))


@as_op(
    lambda x, axes: (tuple(map(x.shape.__getitem__, axes)), x.dtype),
    lambda x, y, g, axes: (transpose(g, _inverse(axes)),),
    np.transpose,
    Movement(
        lambda node, coordinates, pull: pull(
            0, tuple(coordinates[axis] for axis in _inverse(node.attributes["axes"]))
        )
    ),
    (
        Sample(((2, 3),), {"axes": (1, 0)}),
        Sample(((2, 1, 3, 5),), {"axes": (2, 0, 3, 1)}),
        Sample(((0, 3),), {"axes": (1, 0)}),
    ),
    attributes={"axes": Permutation()},
    selects=True,
)
def transpose(x: Tensor, axes: int | Sequence[int] | None = None) -> Given:
    """The axes in another order: axis i of the result is axis `axes[i]` of x; None: in reverse."""
    x = as_tensor(x)
    order = tuple(reversed(range(x.rank)))
    if axes is not None:
        order = tuple(axis_of(x, axis) for axis in listed_axes(axes, x))
    if sorted(order) != list(range(x.rank)):
        raise ShapeError(
            "transpose: the axes are not a permutation",
            facts=(("tensor", described(x)), ("axes", str(axes))),
            advice=f"Name each axis from 0 to {x.rank - 1} once.",
        )
    return x if order == tuple(range(x.rank)) else (x, order)


def _flip_scalar(node: Tensor, coordinates: Coordinates, pull: Pull) -> Scalar:
    axes = node.attributes["axes"]
    extents = static(node.shape)
    moved = (
        Index(extents[axis] - 1) - index if axis in axes else index
        for axis, index in enumerate(coordinates)
    )
    return pull(0, tuple(moved))


@as_op(
    lambda x, axes: (x.shape, x.dtype),
    lambda x, y, g, axes: (flip(g, axes),),
    lambda x, axes: np.flip(x, axes),
    Movement(_flip_scalar),
    (Sample(((3, 4),), {"axes": (1,)}), Sample(((2, 1, 5),), {"axes": (0, 1, 2)})),
    attributes={"axes": Axes()},
)
def flip(x: Tensor, axes: int | Sequence[int] | None = None) -> Given:
    """The elements in reverse order along the axes; None means all axes."""
    x = as_tensor(x)
    named = axes_of(x, axes)
    return (x, named) if named else x


FLIP, RESHAPE, TRANSPOSE = OPS["flip"], OPS["reshape"], OPS["transpose"]
