"""The windows of a contraction: what slides along the dimensions of its operands.

A convolution reads its data through a view: at each output position it sees the elements of a
window. Where they lie is in the view's index and bounds, too; a `Window` says it in so many words,
so that engines need not find it out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property

from lamina.errors import InternalError
from lamina.program.index import Axis, Index, axes_of, axis_index
from lamina.program.scalar import Apply, Bound, Load, Scalar, indices
from lamina.records import frozen_dataclass

# What a contraction does with the windows of an operand: it sums their elements up, once as they
# come and once as a gradient sees them, mirrored or with gaps; or it sums up all positions.
FORWARD, DATA_GRADIENT, WEIGHT_GRADIENT = "forward", "data gradient", "weight gradient"
OPERANDS = ("left", "right")


@frozen_dataclass
class Window:
    """The windows along one dimension of an operand, of `extent` numbers.

    At the output position `place` a window's element `element` is number
    `(stride * place + dilation * element + offset) / divisor`, if that is whole and there is such
    a number; elsewhere the operand is zero.

    Attributes:
        operand: `"left"` or `"right"`.
        kind: `FORWARD` or `DATA_GRADIENT` if elements are summed up (a gradient's dilation is
            negative, or its divisor above 1), `WEIGHT_GRADIENT` if positions are.
        place: the axis of the output positions; None if there is one.
        element: the axis of the elements of a window; None if there is one.
        stride: between windows, at least 1.
        dilation: between elements, not 0.
        offset: where the first element of the first window lies, times the divisor.
        divisor: at least 1; above it, only every so many elements meet a number.
        extent: how many numbers there are.
    """

    operand: str
    kind: str
    position: Axis | None
    element: Axis | None
    stride: int
    dilation: int
    offset: int
    divisor: int
    extent: int

    @cached_property
    def axes(self) -> frozenset[Axis]:
        """The axes that move along the dimension."""
        return frozenset(axis for axis in (self.position, self.element) if axis is not None)

    @cached_property
    def scaled_index(self) -> Index:
        """Which number it is, times the divisor."""
        index = Index(self.offset)
        for axis, step in ((self.position, self.stride), (self.element, self.dilation)):
            index = index if axis is None else index + axis_index(axis) * step
        return index

    @cached_property
    def index(self) -> Index:
        """Which number it is, where it is one."""
        return self.scaled_index // self.divisor

    @cached_property
    def bounds(self) -> tuple[Bound, ...]:
        """When there is a number; none of them where there always is."""
        position = self.scaled_index
        within = Bound(position, 0, (self.extent - 1) * self.divisor + 1)
        whole = Bound(position % self.divisor, 0, 1)
        return tuple(bound for bound in (within, whole) if not bound.always)

    @property
    def is_axis(self) -> bool:
        """Whether there is one number at each place, always: it moves as other axes do."""
        return self.element is None and not self.bounds

    def __str__(self) -> str:
        number = str(self.scaled_index)
        if self.divisor > 1:
            number = f"({number}) / {self.divisor}"
        return f"{self.kind}, windows of {self.operand}: {number} of {self.extent}"


def kind_of(window: Window, inner: Collection[Axis]) -> str | None:
    """What a contraction over the inner axes does with windows; None if neither is summed up."""
    place, element = window.position in inner, window.element in inner
    if window.position is not None and window.element is not None and place == element:
        return None
    if place or (window.position is None and not element):
        return WEIGHT_GRADIENT
    return DATA_GRADIENT if window.dilation < 0 or window.divisor > 1 else FORWARD


def fitted(window: Window, view: Scalar) -> Window | None:
    """The window, narrowed to those numbers that a view shows; None if it shows no such window.

    Between the sliding and the buffer there may be padding, which the window then has no number
    for, and other movements.
    """
    load = loaded(view)
    if load is None or not _moves_with(window, load.index):
        return None
    low, high = window.scaled_index.bounds
    reached = (-(-low // window.divisor), high // window.divisor)
    claimed = (max(reached[0], 0), min(reached[1], window.extent - 1))
    shown = _shown(window, load.bounds, reached)
    if shown is None or shown[0] < claimed[0] or shown[1] > claimed[1] or shown[1] < shown[0]:
        return None
    first = 0 if shown[0] == claimed[0] else shown[0]
    end = window.extent if shown[1] == claimed[1] else shown[1] + 1
    return replace(window, offset=window.offset - first * window.divisor, extent=end - first)


def loaded(view: Scalar) -> Load | None:
    """The load behind the casts of a view; None if it is more than that."""
    while isinstance(view, Apply) and view.primitive == "cast":
        view = view.operands[0]
    return view if isinstance(view, Load) else None


def check_window(
    window: Window, view: Scalar, axes: Collection[Axis], inner: Collection[Axis], where: str
) -> None:
    """Checks that a window is what its operand's view shows.

    Args:
        window: of a contraction.
        view: that operand.
        axes: that the operand may depend on.
        inner: those that the contraction sums over.
        where: what errors name.

    Raises:
        InternalError: if it is not.
    """
    numbers = (window.stride, window.dilation, window.offset, window.divisor, window.extent)
    plain = all(type(number) is int for number in numbers) and window.operand in OPERANDS
    if not plain or min(window.stride, window.divisor, window.extent) < 1 or not window.dilation:
        raise InternalError(f"there are no such windows: {window!r}", where=where)
    if not window.axes or not window.axes <= set(axes):
        raise InternalError(f"nothing iterates {window}", where=where)
    if window.kind != kind_of(window, inner):
        raise InternalError(f"sums up something else: {window}", where=where)
    if fitted(window, view) != window:
        raise InternalError(f"its operand does not show {window}", where=where)


def _shown(
    window: Window, bounds: Sequence[Bound], reached: tuple[int, int]
) -> tuple[int, int] | None:
    """The first and the last of the numbers reached that bounds let through.

    None if its axes are bounded in another way.
    """
    first, last = reached
    rest = window.scaled_index % window.divisor
    whole = rest == Index()
    for bound in bounds:
        index = bound.index
        if window.axes.isdisjoint(axes_of(index)):
            continue
        if index == rest and (bound.low, bound.high) == (0, 1):
            whole = True
            continue
        for own, scale in ((window.scaled_index, window.divisor), (window.index, 1)):
            if index.terms == own.terms:
                shift = index.constant - own.constant
                first = max(first, -(-(bound.low - shift) // scale))
                last = min(last, (bound.high - 1 - shift) // scale)
                break
        else:
            return None
    return (first, last) if whole else None


def _moves_with(window: Window, index: Index) -> bool:
    """Whether the place in the buffer grows with the window's number, and in no other way."""
    terms = window.index.terms
    if terms:
        atom, step = terms[0]
        pitch, rest = divmod(dict(index.terms).get(atom, 0), step)
        if rest:
            return False
        index = index - window.index * pitch
    gathered = map(axes_of, indices(*index.values))
    return window.axes.isdisjoint(axes_of(index).union(*gathered))
