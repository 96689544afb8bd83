"""The left operand of a contraction over windows, as tiles read it: addresses and strides.

A view whose elements lie at `scale * place + slope * element` along some axes of a buffer shows
most numbers many times. Where it has no bounds, tiles read the buffer itself. Where it has (that is
padding), the numbers behind a block of places are copied once, with zeros around them, into a small
image in the thread's own memory; how much is copied has nothing to do with the size of a window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lamina.program.index import Axis, Index, axes_of, axis_index
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Bound, Load, Scalar
from lamina.program.windows import Window, loaded
from lamina.records import frozen_dataclass
from lamina.shapes import size_of


@frozen_dataclass
class Side:
    """One side of an image.

    Attributes:
        axis: runs along it.
        place, element: the axes of the view that move along it, if there are such.
        scale, slope: by how much they do.
        shift: where along it the first element of the first place is.
    """

    axis: Axis
    place: Axis | None
    element: Axis | None
    scale: int = 1
    slope: int = 1
    shift: int = 0

    def length(self, places: int) -> int:
        """How long it is for so many places."""
        elements = self.element.extent if self.element else 1
        return self.scale * (places - 1) + abs(self.slope) * (elements - 1) + 1


@frozen_dataclass
class Image:
    """A view as addresses and strides.

    Attributes:
        view: over the axes of the sides; where it is read directly, over the outer axes alone.
        outer: the places that have images of their own.
        places: the other ones; blocks of the first of them have images of their own.
        elements: the axes of a window's elements.
        sides: of an image, channels among them; none where the view is read directly.
        strides: of places and elements where the view is read directly.
    """

    view: Scalar
    outer: tuple[Axis, ...]
    places: tuple[Axis, ...]
    elements: tuple[Axis, ...]
    sides: tuple[Side, ...]
    strides: Mapping[Axis, int]

    @property
    def is_direct(self) -> bool:
        return not self.sides

    def lengths(self, block: int) -> list[int]:
        """The lengths of the sides for a block of places."""
        first = self.places[0] if self.places else None
        return [
            side.length(block if side.place == first else side.place.extent)
            if side.place is not None
            else side.length(1)
            for side in self.sides
        ]

    def size(self, block: int) -> int:
        """How many elements the image of a block has."""
        return 0 if self.is_direct else size_of(self.lengths(block))

    def moves(self, block: int) -> tuple[dict[Axis, int], int]:
        """How far apart places, and elements, lie; and where the first ones are."""
        if self.is_direct:
            return dict(self.strides), 0
        strides: dict[Axis, int] = {}
        start, pitch = 0, 1
        for side, length in zip(reversed(self.sides), reversed(self.lengths(block)), strict=True):
            if side.place is not None:
                strides[side.place] = side.scale * pitch
            if side.element is not None:
                strides[side.element] = side.slope * pitch
            start += side.shift * pitch
            pitch *= length
        return strides, start


def image_of(
    view: Scalar,
    windows: Sequence[Window],
    places: Sequence[Axis],
    elements: Sequence[Axis],
    *,
    direct_outer: int,
) -> Image | None:
    """The view as an image; None if it is none.

    Args:
        view: a load, possibly cast.
        windows: of the view.
        places, elements: its axes, apart from those of a batch.
        direct_outer: how many of the places count as outer ones where it is read directly.
    """
    load = loaded(view)
    if load is None:
        return None
    indices = (load.index, *(bound.index for bound in load.bounds))
    if not all(isinstance(atom, Axis) for index in indices for atom, _ in index.terms):
        return None
    steps = {atom: step for atom, step in load.index.terms if isinstance(atom, Axis)}
    if load is view and not load.bounds:
        outer = tuple(places[:direct_outer])
        rest = tuple(places[direct_outer:])
        strides = {axis: steps.get(axis, 0) for axis in (*rest, *elements)}
        terms = tuple(term for term in load.index.terms if term[0] not in strides)
        there = Load(load.buffer, Index(load.index.constant, terms), load.dtype)
        return Image(there, outer, rest, tuple(elements), (), strides)
    windows = [window for window in windows if not window.is_axis]
    paired: dict[Axis, Side] = {}
    for number, window in enumerate(windows):
        known = window.position in (None, *places) and window.element in (None, *elements)
        if not known or window.divisor > 1:
            return None
        paired |= dict.fromkeys(window.axes, _side(number, window))
    own = {*places, *elements}
    for bound in load.bounds:
        moved = axes_of(bound.index)
        if moved.isdisjoint(paired) and not (len(moved) == 1 and moved <= own):
            return None
    lead = 0
    while lead < len(places) and places[lead] not in paired:
        lead += 1
    if lead == len(places):
        lead = max(len(places) - 1, 0)
    sides = [paired.get(axis) or Side(axis, axis, None) for axis in places[lead:]]
    alone = [axis for axis in elements if axis not in paired or paired[axis].place is None]
    # The numbers that lie side by side in the buffer do so in the image.
    alone.sort(key=lambda axis: -abs(steps.get(axis, 0)))
    sides += [paired.get(axis) or Side(axis, None, axis) for axis in alone]
    return Image(
        _over_sides(view, load, sides),
        tuple(places[:lead]),
        tuple(places[lead:]),
        tuple(elements),
        tuple(sides),
        {},
    )


def copied_along(lengths: Sequence[int], lanes: int) -> int:
    """The side along which vectors of so many lanes are copied, of an image of such lengths.

    Numbers lie side by side along the last one; where it is short, the longest one is taken.
    """
    last = len(lengths) - 1
    return last if lengths[last] * 2 >= lanes else max(range(last + 1), key=lengths.__getitem__)


def _side(number: int, window: Window) -> Side:
    """The side along which windows slide."""
    numbers = (window.position, window.element, window.stride, window.dilation)
    elements = window.element.extent if window.element else 1
    shift = -min(window.dilation * (elements - 1), 0)
    side = Side(Axis(f"side{number}", 0), *numbers, shift)
    length = side.length(window.position.extent if window.position else 1)
    return replace(side, axis=Axis(f"side{number}", length))


def _over_sides(view: Scalar, load: Load, sides: Sequence[Side]) -> Scalar:
    """The view at the points of an image."""
    replacements: dict[Axis, Index] = {}
    for side in sides:
        # Only for bounds and indices in which both move along: an element stays where it is.
        along = axis_index(side.axis) - side.shift
        if side.element is not None:
            replacements[side.element] = along if side.place is None else Index()
        if side.place is not None:
            replacements[side.place] = along
    scaled = {axis: side.scale for side in sides for axis in [side.place] if axis is not None}
    scaled |= {
        axis: side.slope
        for side in sides
        for axis in [side.element]
        if axis is not None and side.place is None
    }
    change = Rewrite(replacements)

    def moved(index: Index) -> Index:
        terms = tuple(
            (atom, step // scaled[atom] if isinstance(atom, Axis) and atom in scaled else step)
            for atom, step in index.terms
        )
        return change.index(Index(index.constant, terms))

    bounds = tuple(Bound(moved(b.index), b.low, b.high) for b in load.bounds)
    at = replace(load, index=moved(load.index), bounds=tuple(b for b in bounds if not b.always))
    return Rewrite(load=lambda _: at).scalar(view)
