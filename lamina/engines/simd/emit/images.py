"""Copies of images: the input of a block of output positions, with its padding."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.codegen.primitives import element
from lamina.codegen.values import I64, Value, constant
from lamina.engines.simd.decide.images import Image
from lamina.engines.simd.emit.context import Points
from lamina.engines.simd.emit.packing import TILE
from lamina.records import frozen_dataclass
from lamina.shapes import size_of


@frozen_dataclass
class ImageCopy:
    """Copies the image of a block of output positions, in a loop nest over its sides.

    Attributes:
        points: of the function, inside the loops over the outer axes.
        image: the image, which is not read directly.
        lengths: of its sides, for the block.
        first: the first position of the block, along the first axis of positions.
        target: the address of the copy.
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

    def _over(self, sides: Sequence[int], offset: Value) -> None:
        """Copies inside loops over some sides, to an offset of the image."""
        if not sides:
            self._vectors(offset)
            return
        number, *rest = sides
        code = self.points.code
        opened = code.begin_loop(0, self.lengths[number])
        value = self._absolute(number, opened.index)
        axis = self.image.sides[number].axis
        with self.points.bound(axis, value, before=opened.before):
            skipped = code.multiply(opened.index, constant(self._pitch(number), I64))
            self._over(rest, code.add(offset, skipped))
            code.end_loop(opened)

    def _vectors(self, offset: Value) -> None:
        """Copies all elements along the side of the vectors."""
        code, length = self.points.code, self.lengths[self.along]
        whole = length - length % self.lanes
        if whole:
            opened = code.begin_loop(0, whole, self.lanes)
            with self.points.bound(TILE, opened.index, before=opened.before):
                self._vector(opened.index, self.lanes, offset)
                code.end_loop(opened)
        if whole < length:
            self._vector(constant(whole, I64), length - whole, offset)

    def _vector(self, start: Value, width: int, offset: Value) -> None:
        """Copies one vector of `width` lanes."""
        code, kind = self.points.code, element(self.image.view.dtype)
        pitch = self._pitch(self.along)
        coordinate = self._absolute(self.along, start)
        with self.points.along(self.image.sides[self.along].axis, coordinate, width):
            value = self.points.vector(self.image.view)
        offset = code.add(offset, code.multiply(start, constant(pitch, I64)))
        address = code.offset(self.target, offset, kind)
        if pitch == 1:
            code.store(value, address)
            return
        for lane in range(width):
            code.store(code.extract(value, lane), code.offset(address, lane * pitch, kind))

    def _pitch(self, number: int) -> int:
        """The stride of a side in the image."""
        return size_of(self.lengths[number + 1 :])

    def _absolute(self, number: int, value: Value) -> Value:
        """A coordinate along a side, counted from the first position of all blocks."""
        side = self.image.sides[number]
        if not self.image.positions or side.position != self.image.positions[0]:
            return value
        code = self.points.code
        return code.add(value, code.multiply(self.first, constant(side.stride, I64)))
