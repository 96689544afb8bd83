"""Windows as columns of a matrix (im2col), and back (col2im)."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.base.shapes import size_of, static
from lamina.checks import checked_as_given as checked
from lamina.errors import ShapeError
from lamina.graph import Tensor, TensorLike, described
from lamina.graph.attributes import whole
from lamina.ops.arguments import as_tensor, each_of
from lamina.ops.conversion import numeric
from lamina.ops.movement import reshape, transpose
from lamina.ops.windows import Window, windows, windows_of
from lamina.ops.windows import fold as add_windows

__all__ = ["fold", "unfold"]


@checked
def unfold(x: TensorLike, along: Sequence[Window]) -> Tensor:
    """The elements of all windows along the last axes; padding is zero (im2col).

    Args:
        x: [batch, channels, ...].
        along: the windows along each axis after the channels, see `lamina.ops.Window`.

    Returns:
        [batch, channels * elements of a window, windows].
    """
    x = as_tensor(x)
    listed = windows_of(x.rank, along)
    if x.rank != len(listed) + 2:
        raise ShapeError(
            "unfold: there must be a window for each axis after the channels",
            facts=(("found", described(x)), ("windows", f"along {len(listed)} axes")),
            advice="The tensor is [batch, channels, ...].",
        )
    axes = range(2, x.rank)
    windowed = windows(x, axes, listed)
    elements = range(x.rank, windowed.rank)
    shape = static(windowed.shape[1:])
    channels, positions = shape[0], size_of(shape[1 : x.rank - 1])
    kept = transpose(windowed, [0, 1, *elements, *axes])
    return reshape(
        kept, (x.shape[0], channels * size_of([window.size for window in listed]), positions)
    )


# The most axes of windows; arrays of NumPy have at most 64.
_MOST_AXES = 30


@checked
def fold(y: TensorLike, along: Sequence[Window], extents: int | Sequence[int]) -> Tensor:
    """Windows, added up where they overlap (col2im): the transpose of `unfold` as a linear map.

    Args:
        y: [batch, channels * elements of a window, windows], as `unfold` returns it.
        along: the windows along each axis of the result after the channels.
        extents: the extents of these axes.

    Returns:
        [batch, channels, *extents].
    """
    y = numeric(y)
    listed = windows_of(_MOST_AXES, along)
    shape = each_of("extents", extents, len(listed), whole(1))
    counts = [window.count(extent) for window, extent in zip(listed, shape, strict=True)]
    sizes = [window.size for window in listed]
    rows = y.shape[1] if y.rank == 3 else 0
    fits = isinstance(rows, int) and rows and rows % size_of(sizes) == 0 and min(counts) > 0
    if not fits or not isinstance(rows, int) or y.shape[2] != size_of(counts):
        raise ShapeError(
            "fold: the tensor does not have the elements of these windows",
            facts=(
                ("found", described(y)),
                ("expected", f"[batch, channels * {size_of(sizes)}, {size_of(counts)}]"),
            ),
            advice="The windows and extents must be those of the unfold.",
        )
    apart = reshape(y, (y.shape[0], rows // size_of(sizes), *sizes, *counts))
    count = len(listed)
    first = [0, 1, *range(2 + count, 2 + 2 * count), *range(2, 2 + count)]
    return add_windows(transpose(apart, first), range(2, 2 + count), listed, shape)
