"""From what slides where an operand is pulled to the windows of a contraction."""

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
    inner: Collection[Axis],
) -> tuple[Window, ...]:
    """The windows of an operand, of those that slide along single axes of the contraction.

    One that has nothing but the number at its own place is none.

    Args:
        operand: `"left"` or `"right"`.
        view: the operand.
        slidings: what was come across on the way from it to its buffer.
        axes: of the contraction.
        inner: those that it sums over.
    """
    found: list[Window] = []
    for sliding in slidings:
        window = _window(operand, sliding)
        if window is None or not window.axes <= set(axes):
            continue
        fitting, kind = fitted(window, view), kind_of(window, inner)
        if fitting is None or kind is None or (fitting.is_axis and fitting.stride == 1):
            continue
        found.append(replace(fitting, kind=kind))
    return tuple(found)


def _window(operand: str, sliding: Sliding) -> Window | None:
    """The window of a sliding along one axis, or along one of places and one of elements."""
    place, element = _single(sliding.place), _single(sliding.element)
    if place is None or element is None:
        return None
    (of_places, times, first), (of_elements, factor, start) = place, element
    moves = times > 0 and sliding.dilation and sliding.extent
    if not moves or of_places == of_elements:
        return None
    return Window(
        operand,
        FORWARD,
        *(of_places, of_elements),
        stride=sliding.stride * times,
        dilation=sliding.dilation * factor,
        offset=sliding.offset + sliding.stride * first + sliding.dilation * start,
        divisor=sliding.divisor,
        extent=sliding.extent,
    )


def _single(index: Index) -> tuple[Axis | None, int, int] | None:
    """(axis, factor, constant) of a coordinate along one axis; no axis where it is one place."""
    if not index.terms:
        return None, 1, index.constant
    (atom, factor), *others = index.terms
    return None if others or not isinstance(atom, Axis) else (atom, factor, index.constant)
