"""Images of views, copied: the numbers behind a block of output positions, with their padding."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.codegen.primitives import element
from lamina.codegen.values import I64, Value, constant
from lamina.engines.cpu.decide.images import Image
from lamina.engines.cpu.emit.context import Points
from lamina.engines.cpu.emit.packing import TILE
from lamina.records import frozen_dataclass
from lamina.shapes import size_of


@frozen_dataclass
class ImageCopy:
    """The copying of the image of a block of places: a loop nest over its sides.

    Attributes:
        points: inside the outer axes.
        image: which one; not read directly.
        lengths: of its sides, for the block.
        first: the first place of the block, along the first axis of places.
        target: where the image lies.
        along: the side along which vectors run, in the innermost loop.
        lanes: of a vector.
    """

    points: Points
    image: Image
    lengths: Sequence[int]
    first: Value
    target: Value
    along: int
    lanes: int

    def write(self) -> None:
        """Writes the loops."""
        others = [number for number in range(len(self.lengths)) if number != self.along]
        self._over(others, constant(0, I64))

    def _over(self, sides: Sequence[int], place: Value) -> None:
        """Loops over some sides; what is copied inside begins at a place of the image."""
        if not sides:
            self._vectors(place)
            return
        number, *rest = sides
        code = self.points.code
        opened = code.begin_loop(0, self.lengths[number])
        value = self._absolute(number, opened.index)
        axis = self.image.sides[number].axis
        with self.points.bound(axis, value, before=opened.before):
            skipped = code.multiply(opened.index, constant(self._pitch(number), I64))
            self._over(rest, code.add(place, skipped))
            code.end_loop(opened)

    def _vectors(self, place: Value) -> None:
        """All along the side of the vectors."""
        code, length = self.points.code, self.lengths[self.along]
        whole = length - length % self.lanes
        if whole:
            opened = code.begin_loop(0, whole, self.lanes)
            with self.points.bound(TILE, opened.index, before=opened.before):
                self._vector(opened.index, self.lanes, place)
                code.end_loop(opened)
        if whole < length:
            self._vector(constant(whole, I64), length - whole, place)

    def _vector(self, start: Value, width: int, place: Value) -> None:
        """One vector."""
        code, kind = self.points.code, element(self.image.view.dtype)
        pitch = self._pitch(self.along)
        position = self._absolute(self.along, start)
        with self.points.along(self.image.sides[self.along].axis, position, width):
            value = self.points.vector(self.image.view)
        at = code.add(place, code.multiply(start, constant(pitch, I64)))
        address = code.offset(self.target, at, kind)
        if pitch == 1:
            code.store(value, address)
            return
        for lane in range(width):
            code.store(code.extract(value, lane), code.offset(address, lane * pitch, kind))

    def _pitch(self, number: int) -> int:
        """How far apart neighbours along a side lie in the image."""
        return size_of(self.lengths[number + 1 :])

    def _absolute(self, number: int, value: Value) -> Value:
        """A position along a side, counted from the first place of all."""
        side = self.image.sides[number]
        if not self.image.positions or side.position != self.image.positions[0]:
            return value
        code = self.points.code
        return code.add(value, code.multiply(self.first, constant(side.scale, I64)))
