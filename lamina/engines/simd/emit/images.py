"""Copies of images: the input of a block of output positions, with its padding."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import size_of
from lamina.codegen.primitives import element
from lamina.codegen.values import I64, Value, constant
from lamina.engines.simd.decide.images import Image
from lamina.engines.simd.emit import pairs
from lamina.engines.simd.emit.context import Points
from lamina.engines.simd.emit.packing import TILE, transposed


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
        return code.add(value, code.multiply(self.first, constant(side.windows.stride, I64)))


# The pairs of a block that is transposed in registers, the largest first.
_PAIRS = (16, 8, 4, 2, 1)


@frozen_dataclass
class TransposedImageCopy(ImageCopy):
    """Copies an image of bfloat16 whose last two sides are exchanged in memory.

    Vectors are read along `along`, the last but one side, and stored along the last one: blocks of
    pairs are transposed in registers.
    """

    def write(self) -> None:
        """Writes the loops."""
        self._over(range(len(self.lengths) - 2), constant(0, I64))

    def _vector(self, start: Value, width: int, offset: Value) -> None:
        """Copies all elements along the last side of `width` coordinates of the side before it."""
        code = self.points.code
        pitch = constant(self._pitch(self.along), I64)
        target = code.offset(self.target, code.add(offset, code.multiply(start, pitch)), "i16")
        done, length = 0, self.lengths[-1]
        for count in _PAIRS:
            blocks = (length - done) // (2 * count)
            if blocks > 1:
                loop = code.begin_loop(constant(done, I64), done + blocks * 2 * count, 2 * count)
                with self.points.bound(TILE, loop.index, before=loop.before):
                    self._block(loop.index, count, start, width, target)
                    code.end_loop(loop)
            elif blocks:
                self._block(constant(done, I64), count, start, width, target)
            done += blocks * 2 * count
        if done < length:
            last = constant(done, I64)
            self._store_lanes(self._read(last, start, width), last, target)

    def _block(self, first: Value, count: int, start: Value, width: int, target: Value) -> None:
        """Copies `count` pairs along the last side."""
        code = self.points.code
        found: list[Value] = []
        for number in range(count):
            position = code.add(first, constant(2 * number, I64))
            following = code.add(position, constant(1, I64))
            both = (self._read(one, start, width) for one in (position, following))
            found.append(pairs.zipped(code, *both))
        for lane in range(0, width, count):
            present = min(count, width - lane)
            picks = [lane + min(number, present - 1) for number in range(count)]
            square = [code.shuffle(one, None, picks) for one in found]
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

    def _store_lanes(self, numbers: Value, position: Value, target: Value) -> None:
        code = self.points.code
        for lane in range(numbers.type.lanes):
            address = code.offset(target, lane * self._pitch(self.along), "i16")
            code.store(code.extract(numbers, lane), code.offset(address, position, "i16"))
