"""The windows of a contraction, which slide along the dimensions of its operands.

A convolution reads its data through a view: at each output position it reads the elements under
the kernel. The view's index and bounds contain that already; a `Sliding` states stride, dilation
and offset explicitly, so that engines need not derive them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from lamina.base.records import cached_property, frozen_dataclass
from lamina.errors import InternalError
from lamina.program.index import Axis, Index, axes_of, axis_index
from lamina.program.scalar import Bound, Load, Scalar, indices, unconverted

# How a contraction uses the windows of an operand. A convolution sums over kernel elements. The
# gradient of its data does so too, with the kernel mirrored (the dilation is negative) or with gaps
# between elements (the divisor is above 1). The gradient of its weights sums over output positions.
FORWARD, DATA_GRADIENT, WEIGHT_GRADIENT = "forward", "data gradient", "weight gradient"


@frozen_dataclass
class Sliding:
    """The windows along one dimension of an operand; the dimension has `extent` elements.

    At the output position `position` and the kernel element `element`, the operand's index along
    the dimension is `(stride * position + dilation * element + offset) / divisor`. The operand is
    zero where that is not an integer in 0 .. extent - 1.

    Attributes:
        position: the axis of the output positions; None if there is one position.
        element: the axis of the kernel elements; None if there is one element.
        stride: the distance between positions, at least 1.
        dilation: the distance between kernel elements, not 0.
        offset: the index of the first kernel element at the first position, times the divisor.
        divisor: the divisor, at least 1; a transposed convolution's stride.
        extent: the number of the operand's elements along the dimension.
    """

    position: Axis | None
    element: Axis | None
    stride: int
    dilation: int
    offset: int
    divisor: int
    extent: int

    @cached_property
    def axes(self) -> frozenset[Axis]:
        """The axes of positions and kernel elements."""
        return frozenset(axis for axis in (self.position, self.element) if axis is not None)

    @cached_property
    def scaled_index(self) -> Index:
        """The index along the dimension, times the divisor."""
        index = Index(self.offset)
        for axis, stride in ((self.position, self.stride), (self.element, self.dilation)):
            index = index if axis is None else index + axis_index(axis) * stride
        return index

    @cached_property
    def index(self) -> Index:
        """The index along the dimension, where the bounds hold."""
        return self.scaled_index // self.divisor

    @cached_property
    def bounds(self) -> tuple[Bound, ...]:
        """The bounds of the operand's elements; those that always hold are omitted."""
        index = self.scaled_index
        within = Bound(index, 0, (self.extent - 1) * self.divisor + 1)
        multiple = Bound(index % self.divisor, 0, 1)
        return tuple(bound for bound in (within, multiple) if not bound.always)

    @property
    def is_axis(self) -> bool:
        """Whether the windows are an ordinary strided axis: one kernel element and no bounds."""
        return self.element is None and not self.bounds

    @property
    def elements(self) -> int:
        """The number of kernel elements."""
        return self.element.extent if self.element else 1

    def reach(self, positions: int) -> int:
        """The number of elements from the first to the last that so many positions read."""
        return self.stride * (positions - 1) + abs(self.dilation) * (self.elements - 1) + 1

    def kind(self, k_axes: Collection[Axis]) -> str | None:
        """How a contraction over `k_axes` uses the windows.

        None if it sums over both positions and kernel elements, or over neither.
        """
        position, element = self.position in k_axes, self.element in k_axes
        if self.position is not None and self.element is not None and position == element:
            return None
        if position or (self.position is None and not element):
            return WEIGHT_GRADIENT
        return DATA_GRADIENT if self.dilation < 0 or self.divisor > 1 else FORWARD

    def __str__(self) -> str:
        index = str(self.scaled_index)
        if self.divisor > 1:
            index = f"({index}) / {self.divisor}"
        return f"{index} of {self.extent}"


def sliding_at(
    position: Index, element: Index, numbers: Sequence[int], extent: int
) -> Sliding | None:
    """Windows at coordinates of positions and elements; each coordinate moves along one axis.

    `numbers` are stride, dilation, offset and divisor. None if a coordinate moves along several
    axes or another expression, both along the same axis, or positions backwards.
    """
    stride, dilation, offset, divisor = numbers
    position_axis, step = _moving(position)
    element_axis, factor = _moving(element)
    if step <= 0 or not factor or not dilation or not extent or position_axis == element_axis:
        return None
    offset += stride * position.constant + dilation * element.constant
    numbers = (stride * step, dilation * factor, offset, divisor, extent)
    return Sliding(position_axis, element_axis, *numbers)


def _moving(index: Index) -> tuple[Axis | None, int]:
    """The axis of a coordinate, and its factor: 1 if it is constant, 0 along several axes."""
    if not index.terms:
        return None, 1
    (atom, factor), *others = index.terms
    return (atom, factor) if isinstance(atom, Axis) and not others else (None, 0)


def fitted(window: Sliding, view: Scalar) -> Sliding | None:
    """The window, narrowed to the elements that a view reads; None if the view has no such window.

    Between the window and the buffer there may be padding and other movements. Padding is outside
    the narrowed window.
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
    """The load inside the conversions of a view; None if the view contains anything else."""
    view = unconverted(view)
    return view if isinstance(view, Load) else None


def check_window(
    window: Sliding, view: Scalar, axes: Collection[Axis], k_axes: Collection[Axis], where: str
) -> None:
    """Raises InternalError if a window does not agree with its operand's view.

    The operand may depend on `axes`; the contraction, step `where`, sums over `k_axes`.
    """
    numbers = (window.stride, window.dilation, window.offset, window.divisor, window.extent)
    is_plain = all(type(number) is int for number in numbers)
    if not is_plain or min(window.stride, window.divisor, window.extent) < 1 or not window.dilation:
        raise InternalError(f"a window has invalid numbers: {window!r}", where=where)
    if not window.axes or not window.axes <= set(axes):
        raise InternalError(f"nothing iterates the axes of a window: {window}", where=where)
    if window.kind(k_axes) is None:
        raise InternalError(
            f"a window is summed over both of its axes or none: {window}", where=where
        )
    if fitted(window, view) != window:
        raise InternalError(f"a window differs from its operand's view: {window}", where=where)


def _shown(
    window: Sliding, bounds: Sequence[Bound], reached: tuple[int, int]
) -> tuple[int, int] | None:
    """The ends of the reached indices at which the bounds hold; None if the axes have others."""
    first, last = reached
    rest = window.scaled_index % window.divisor
    exact = rest == Index()
    for bound in bounds:
        index = bound.index
        if window.axes.isdisjoint(axes_of(index)):
            continue
        if index == rest and (bound.low, bound.high) == (0, 1):
            exact = True
            continue
        for coordinate, scale in ((window.scaled_index, window.divisor), (window.index, 1)):
            if index.terms == coordinate.terms:
                shift = index.constant - coordinate.constant
                first = max(first, -(-(bound.low - shift) // scale))
                last = min(last, (bound.high - 1 - shift) // scale)
                break
        else:
            return None
    return (first, last) if exact else None


def _moves_with(window: Sliding, index: Index) -> bool:
    """Whether the buffer index depends on the window's axes through the window's index alone."""
    terms = window.index.terms
    if terms:
        atom, coefficient = terms[0]
        stride, rest = divmod(dict(index.terms).get(atom, 0), coefficient)
        if rest:
            return False
        index = index - window.index * stride
    gathered = map(axes_of, indices(*index.values))
    return window.axes.isdisjoint(axes_of(index).union(*gathered))
