"""Padding with elements of the tensor itself: reflected, replicated, or circular.

Padding and its gradients are composed of slices, flips and joins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from lamina.base.shapes import static
from lamina.checks import checked_as_given as checked
from lamina.checks.kinds import Word
from lamina.errors import ShapeError
from lamina.graph import Tensor, TensorLike, described
from lamina.ops.arguments import as_tensor, pairs_of, read
from lamina.ops.broadcast import broadcast_to
from lamina.ops.joining import concat
from lamina.ops.movement import flip
from lamina.ops.slicing import pad, slice_axis

__all__ = ["pad_with"]

PadMode = Literal["constant", "reflect", "replicate", "circular"]
PAD_MODES = ("constant", "reflect", "replicate", "circular")


@checked
def pad_with(
    x: TensorLike,
    widths: int | Sequence[int | tuple[int, int]],
    mode: PadMode = "constant",
    value: float = 0.0,
) -> Tensor:
    """Elements added before and after the tensor's, by one of four rules.

    Args:
        x: any tensor.
        widths: the numbers of elements before and after each axis, or one number for both; one
            number alone is for all axes.
        mode: `"constant"`: `value`; `"reflect"`: the elements mirrored at the first and the last
            one, which are not repeated; `"replicate"`: the first and the last one;
            `"circular"`: the elements at the other end.
        value: the value of the new elements in mode `"constant"`.
    """
    x = as_tensor(x)
    if read("mode", Word(PAD_MODES), mode) == "constant":
        return pad(x, widths, value)
    pairs = pairs_of("widths", widths, x.rank)
    for axis, (before, after) in enumerate(pairs):
        if before or after:
            x = _pad_axis(x, axis, before, after, mode)
    return x


def _pad_axis(x: Tensor, axis: int, before: int, after: int, mode: PadMode) -> Tensor:
    (extent,) = static((x.shape[axis],))
    most = extent - 1 if mode == "reflect" else extent
    if mode != "replicate" and max(before, after) > most:
        raise ShapeError(
            f"axis {axis} has too few elements for this padding",
            facts=(
                ("tensor", described(x)),
                ("expected", f"at most {most} on each side for mode {mode!r}"),
                ("found", f"{before} before, {after} after"),
            ),
            advice="Pad less, or in another mode.",
        )

    def part(start: int, stop: int) -> Tensor:
        return slice_axis(x, axis, start, stop)

    def repeated(index: int, times: int) -> Tensor:
        shape = (*x.shape[:axis], times, *x.shape[axis + 1 :])
        return broadcast_to(part(index, index + 1), shape)

    if mode == "reflect":
        first = flip(part(1, before + 1), axis)
        last = flip(part(extent - after - 1, extent - 1), axis)
    elif mode == "replicate":
        first, last = repeated(0, before), repeated(extent - 1, after)
    else:
        first, last = part(extent - before, extent), part(0, after)
    parts = ((first, before), (x, extent), (last, after))
    return concat([tensor for tensor, width in parts if width], axis)
