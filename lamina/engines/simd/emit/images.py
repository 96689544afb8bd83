"""Copies of images: the input of a block of output positions, with its padding."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import size_of
from lamina.codegen.primitives import element
from lamina.codegen.values import Value
from lamina.engines.simd.decide.images import Image
from lamina.engines.simd.emit import pairs
from lamina.engines.simd.emit.context import Points
from lamina.engines.simd.emit.packing import transposed


@frozen_dataclass
class ImageCopy:
    """Copies the image of a block of output positions, in a loop nest over its sides.

    The block begins at position `first` along the first axis, and its sides have these lengths.
    Vectors run along the side with the number `along`, in the innermost loop. The points are inside
    the loops over the outer axes.
    """

    points: Points
    image: Image
    lengths: Sequence[int]
    first: Value
    target: Value
    along: int
    lanes: int

    def write(self) -> None:
        self._over([number for number in range(len(self.lengths)) if number != self.along])

    def _over(self, sides: Sequence[int]) -> None:
        """Copies vectors inside loops over some sides."""
        code, offset = self.points.code, self.points.code.constant(0)
        length = self.lengths[self.along]
        vectorized = length - length % self.lanes
        with ExitStack() as stack:
            for number in sides:
                loop = stack.enter_context(code.loop(0, self.lengths[number]))
                value, axis = self._absolute(number, loop.index), self.image.sides[number].axis
                stack.enter_context(self.points.bound(axis, value, before=loop.before))
                offset = offset + loop.index * self._pitch(number)
            if vectorized:
                with self.points.counting(0, vectorized, self.lanes) as start:
                    self._vector(start, self.lanes, offset)
            if vectorized < length:
                self._vector(code.constant(vectorized), length - vectorized, offset)

    def _vector(self, start: Value, width: int, offset: Value) -> None:
        """Copies one vector of `width` lanes."""
        code, kind = self.points.code, element(self.image.view.dtype)
        pitch = self._pitch(self.along)
        coordinate = self._absolute(self.along, start)
        with self.points.along(self.image.sides[self.along].axis, coordinate, width):
            value = self.points.vector(self.image.view)
        address = code.offset(self.target, offset + start * pitch, kind)
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
        return value + self.first * side.windows.stride


# The pairs of a block that is transposed in registers, the largest first.
_PAIRS = (16, 8, 4, 2, 1)


@frozen_dataclass
class TransposedImageCopy(ImageCopy):
    """Copies an image of bfloat16 whose last two sides are exchanged in memory.

    Vectors are read along `along`, the last but one side, and stored along the last one: blocks of
    pairs are transposed in registers.
    """

    def write(self) -> None:
        self._over(range(len(self.lengths) - 2))

    def _vector(self, start: Value, width: int, offset: Value) -> None:
        """Copies all elements along the last side of `width` coordinates of the side before it."""
        code = self.points.code
        target = code.offset(self.target, offset + start * self._pitch(self.along), "i16")
        done, length = 0, self.lengths[-1]
        for count in _PAIRS:
            blocks = (length - done) // (2 * count)
            if blocks > 1:
                first, stop = code.constant(done), done + blocks * 2 * count
                with self.points.counting(first, stop, 2 * count) as here:
                    self._block(here, count, start, width, target)
            elif blocks:
                self._block(code.constant(done), count, start, width, target)
            done += blocks * 2 * count
        if done < length:
            last = code.constant(done)
            numbers = self._read(last, start, width)
            for lane in range(width):
                address = code.offset(target, lane * self._pitch(self.along), "i16")
                code.store(code.extract(numbers, lane), code.offset(address, last, "i16"))

    def _block(self, first: Value, count: int, start: Value, width: int, target: Value) -> None:
        """Copies `count` pairs along the last side."""
        code = self.points.code
        rows: list[Value] = []
        for number in range(count):
            even = first + 2 * number
            pair = (self._read(position, start, width) for position in (even, even + 1))
            rows.append(pairs.zipped(code, *pair))
        for lane in range(0, width, count):
            present = min(count, width - lane)
            picks = [lane + min(number, present - 1) for number in range(count)]
            square = [code.shuffle(row, None, picks) for row in rows]
            for number, values in enumerate(transposed(code, square)[:present]):
                skipped = (lane + number) * self._pitch(self.along)
                address = code.offset(code.offset(target, first, "i16"), skipped, "i16")
                code.store(values, address, align=2)

    def _read(self, position: Value, start: Value, width: int) -> Value:
        """A vector along the side before the last one, as i16."""
        last, across = self.image.sides[-1], self.image.sides[self.along]
        value = self._absolute(len(self.lengths) - 1, position)
        coordinate = self._absolute(self.along, start)
        with self.points.bound(last.axis, value), self.points.along(across.axis, coordinate, width):
            return self.points.vector(self.image.view)
