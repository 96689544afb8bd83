"""The left operand of a contraction over windows, as tiles read it: an address and strides.

Along some axes of a buffer the view reads coordinate `stride * position + dilation * element`
(`lamina.program.windows`), so it reads most elements of the buffer many times. Without bounds,
tiles read the buffer itself. With bounds (padding), the input of a block of output positions is
copied once, with zeros around it, into a small image in the thread's memory. An input element is
copied once for any size of windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import size_of
from lamina.program.index import Axis, Index, axes_of, axis_index
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Bound, Load, Scalar
from lamina.program.windows import Sliding, loaded


@frozen_dataclass
class ImageSide:
    """One dimension of an image.

    Attributes:
        axis: the axis that iterates its coordinates.
        windows: the windows of the view that slide along it. They have no position or no element
            along a plain axis. The offset is above 0 if the dilation is negative.
        residue: the axis of another side, or None: the coordinate is `stride * axis + residue`.
            Coordinates of one residue are neighbours, and so are neighbouring positions.
    """

    axis: Axis
    windows: Sliding
    residue: Axis | None = None

    @property
    def position(self) -> Axis | None:
        return self.windows.position

    @property
    def element(self) -> Axis | None:
        return self.windows.element

    def length(self, positions: int) -> int:
        """Its length for a number of positions."""
        reach = self.windows.reach(positions)
        return -(-reach // self.windows.stride) if self.residue else reach


@frozen_dataclass
class Image:
    """A view as an address and strides.

    Attributes:
        view: the view over the axes of the sides; over the outer axes alone if it is read directly.
        outer: the axes of positions outside an image: each of their points has its own images.
        positions: the axes of positions inside an image; it covers a block along the first.
        elements: the axes of a window's elements.
        sides: the sides of an image, channels among them; empty if the view is read directly.
        strides: the strides of positions and elements, if the view is read directly.
    """

    view: Scalar
    outer: tuple[Axis, ...]
    positions: tuple[Axis, ...]
    elements: tuple[Axis, ...]
    sides: tuple[ImageSide, ...]
    strides: Mapping[Axis, int]

    @property
    def is_direct(self) -> bool:
        return not self.sides

    def lengths(self, block: int) -> list[int]:
        """The lengths of the sides for a block of positions."""
        first = self.positions[0] if self.positions else None
        return [
            side.length(block if side.position == first else side.position.extent)
            if side.position is not None
            else side.axis.extent
            for side in self.sides
        ]

    def size(self, block: int) -> int:
        """The number of elements of the image of a block; 0 if there is no image."""
        return 0 if self.is_direct else size_of(self.lengths(block))

    def layout(self, block: int) -> tuple[dict[Axis, int], int]:
        """The strides of positions and elements, and the offset of the first element.

        Both are without the elements of a side that is split by residues.
        """
        if self.is_direct:
            return dict(self.strides), 0
        strides: dict[Axis, int] = {}
        start, pitch = 0, 1
        for side, length in zip(reversed(self.sides), reversed(self.lengths(block)), strict=True):
            if side.position is not None:
                strides[side.position] = pitch if side.residue else side.windows.stride * pitch
            if side.residue is None:
                if side.element is not None:
                    strides[side.element] = side.windows.dilation * pitch
                start += side.windows.offset * pitch
            pitch *= length
        return strides, start

    @property
    def split_element(self) -> Axis | None:
        """The element of the side that is split by residues, which is the last one."""
        return self.sides[-1].element if self.sides and self.sides[-1].residue else None

    def split_offsets(self, block: int) -> list[int]:
        """The offset of each split element; the side of the residues is the first one."""
        side, element = self.sides[-1], self.split_element
        assert element is not None
        windows, stride = side.windows, side.windows.stride
        pitch = self.size(block) // stride
        coordinates = (windows.offset + windows.dilation * i for i in range(element.extent))
        return [coordinate % stride * pitch + coordinate // stride for coordinate in coordinates]


def image_of(
    view: Scalar,
    windows: Sequence[Sliding],
    positions: Sequence[Axis],
    elements: Sequence[Axis],
    *,
    outer: int,
    across: bool = False,
    all_positions: bool = False,
) -> Image | None:
    """The view as an image; None if that is impossible.

    Args:
        view: a load, possibly cast.
        windows: the windows of the view.
        positions, elements: the axes of the view without its batch axes.
        outer: the number of outer axes among the positions, if the view is read directly.
        across: whether it is always copied, with all positions of windows inside, the last ones
            contiguous.
        all_positions: whether a copy has the positions without windows too, except outer ones.
    """
    load = loaded(view)
    if load is None:
        return None
    indices = (load.index, *(bound.index for bound in load.bounds))
    if not all(isinstance(atom, Axis) for index in indices for atom, _ in index.terms):
        return None
    steps = {atom: step for atom, step in load.index.terms if isinstance(atom, Axis)}
    if load is view and not load.bounds and not across:
        around, rest = tuple(positions[:outer]), tuple(positions[outer:])
        strides = {axis: steps.get(axis, 0) for axis in (*rest, *elements)}
        terms = tuple(term for term in load.index.terms if term[0] not in strides)
        there = Load(load.buffer, Index(load.index.constant, terms), load.dtype)
        return Image(there, around, rest, tuple(elements), (), strides)
    inside = {window.position for window in windows if across or not window.is_axis}
    # Such a copy has no coordinates between the positions of windows of one element.
    windows = [window for window in windows if not window.is_axis]
    windows = [window for window in windows if not across or window.element is not None]
    paired: dict[Axis, ImageSide] = {}
    for number, window in enumerate(windows):
        fits = window.position in (None, *positions) and window.element in (None, *elements)
        if not fits or window.divisor > 1:
            return None
        paired |= dict.fromkeys(window.axes, _side(number, window))
    view_axes = {*positions, *elements}
    for bound in load.bounds:
        moved = axes_of(bound.index)
        if moved.isdisjoint(paired) and not (len(moved) == 1 and moved <= view_axes):
            return None
    lead = outer if all_positions else 0
    while not all_positions and lead < len(positions) and positions[lead] not in inside:
        lead += 1
    if lead == len(positions):
        lead = max(len(positions) - 1, 0)
    sides = [paired.get(axis) or _plain(axis, axis, None) for axis in positions[lead:]]
    alone = [axis for axis in elements if axis not in paired or paired[axis].position is None]
    # The axis that is contiguous in the buffer is contiguous in the image.
    alone.sort(key=lambda axis: -abs(steps.get(axis, 0)))
    sides += [paired.get(axis) or _plain(axis, None, axis) for axis in alone]
    if across:
        sides = _across(sides, positions[-1])
    return Image(
        _over_sides(view, load, sides),
        tuple(positions[:lead]),
        tuple(positions[lead:]),
        tuple(elements),
        tuple(sides),
        {},
    )


def _side(number: int, window: Sliding) -> ImageSide:
    """The side along which windows slide."""
    length = window.reach(window.position.extent if window.position else 1)
    start = -min(window.dilation * (window.elements - 1), 0)
    return ImageSide(Axis(f"side{number}", length), replace(window, offset=start, extent=length))


def _plain(axis: Axis, position: Axis | None, element: Axis | None) -> ImageSide:
    """The side of an axis along which no windows slide."""
    return ImageSide(axis, Sliding(position, element, 1, 1, 0, 1, axis.extent))


def _across(sides: Sequence[ImageSide], position: Axis) -> list[ImageSide]:
    """The sides, the side of a position last, and split by residues if it has a stride."""
    others = [side for side in sides if side.position != position]
    (last,) = [side for side in sides if side.position == position]
    if last.windows.stride == 1:
        return [*others, last]
    residue = Axis(f"{last.axis.name}_residue", last.windows.stride)
    last = replace(last, residue=residue)
    last = replace(last, axis=Axis(last.axis.name, last.length(position.extent)))
    return [_plain(residue, None, None), *others, last]


def _over_sides(view: Scalar, load: Load, sides: Sequence[ImageSide]) -> Scalar:
    """The view at the points of an image."""
    replacements: dict[Axis, Index] = {}
    scaled: dict[Axis, int] = {}
    reached: list[Bound] = []
    for side in sides:
        # Bounds and indices of a side with both axes depend on both: the position alone moves
        # along the side, and the element is 0.
        along = axis_index(side.axis)
        if side.residue is not None and side.position is not None:
            # The last stride may end after the last coordinate.
            along = along * side.windows.stride + axis_index(side.residue)
            reached.append(Bound(along, 0, side.windows.reach(side.position.extent)))
        along -= side.windows.offset
        if side.position is not None:
            replacements[side.position], scaled[side.position] = along, side.windows.stride
            if side.element is not None:
                replacements[side.element] = Index()
        elif side.element is not None:
            replacements[side.element], scaled[side.element] = along, side.windows.dilation
    change = Rewrite(replacements)

    def moved(index: Index) -> Index:
        terms = tuple(
            (atom, step // scaled[atom] if isinstance(atom, Axis) and atom in scaled else step)
            for atom, step in index.terms
        )
        return change.index(Index(index.constant, terms))

    bounds = (*(Bound(moved(b.index), b.low, b.high) for b in load.bounds), *reached)
    at = replace(load, index=moved(load.index), bounds=tuple(b for b in bounds if not b.always))
    return Rewrite(load=lambda _: at).scalar(view)
