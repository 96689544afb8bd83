"""The windows of a contraction, derived from the slidings met while its operands are pulled."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from lamina.ops.lowering_rules import Sliding
from lamina.program.index import Axis, Index
from lamina.program.scalar import Scalar
from lamina.program.windows import FORWARD, Window, fitted, kind_of


def windows_of(
    operand: str,
    view: Scalar,
    slidings: Iterable[Sliding],
    axes: Collection[Axis],
    k_axes: Collection[Axis],
) -> tuple[Window, ...]:
    """The windows of an operand that slide along single axes of the contraction.

    A window of one element at stride 1 without padding is omitted, because it is a plain axis.

    Args:
        operand: `"left"` or `"right"`.
        view: the operand.
        slidings: the slidings between the view and its buffer.
        axes: all axes of the contraction.
        k_axes: the axes that it sums over.
    """
    found: list[Window] = []
    for sliding in slidings:
        window = _window(operand, sliding)
        if window is None or not window.axes <= set(axes):
            continue
        fitting, kind = fitted(window, view), kind_of(window, k_axes)
        if fitting is None or kind is None or (fitting.is_axis and fitting.stride == 1):
            continue
        found.append(replace(fitting, kind=kind))
    return tuple(found)


def _window(operand: str, sliding: Sliding) -> Window | None:
    """The window of a sliding along at most one axis of positions and one of elements."""
    position, element = _single(sliding.position), _single(sliding.element)
    if position is None or element is None:
        return None
    (position_axis, step, position_start), (element_axis, factor, element_start) = position, element
    moves = step > 0 and sliding.dilation and sliding.extent
    if not moves or position_axis == element_axis:
        return None
    return Window(
        operand,
        FORWARD,
        *(position_axis, element_axis),
        stride=sliding.stride * step,
        dilation=sliding.dilation * factor,
        offset=sliding.offset + sliding.stride * position_start + sliding.dilation * element_start,
        divisor=sliding.divisor,
        extent=sliding.extent,
    )


def _single(index: Index) -> tuple[Axis | None, int, int] | None:
    """(axis, factor, constant) of a coordinate along one axis; no axis for a constant one."""
    if not index.terms:
        return None, 1, index.constant
    (atom, factor), *others = index.terms
    return None if others or not isinstance(atom, Axis) else (atom, factor, index.constant)
