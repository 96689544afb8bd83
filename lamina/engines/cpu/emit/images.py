"""Images of views, copied: the numbers behind a block of output positions, with their padding."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.codegen.primitives import element
from lamina.codegen.values import I64, Value, constant
from lamina.engines.cpu.decide.images import Image
from lamina.engines.cpu.emit.context import Points
from lamina.engines.cpu.emit.packing import TILE
from lamina.shapes import size_of


def pack_image(
    points: Points, image: Image, block: int, first: Value, target: Value, lanes: int
) -> None:
    """Writes the copying of the image of a block of places.

    Args:
        points: inside the outer axes.
        image: which one; not read directly.
        block: how many places along the first of them.
        first: the first one.
        target: where the image lies.
        lanes: of a vector.
    """
    code, kind = points.code, element(image.view.dtype)
    lengths = image.lengths(block)
    pitches = [size_of(lengths[number + 1 :]) for number in range(len(lengths))]
    # Vectors run along the side that has most neighbours in the buffer: the last or a long one.
    last = len(lengths) - 1
    along = last if lengths[last] * 2 >= lanes else max(range(last + 1), key=lengths.__getitem__)
    order = [number for number in range(len(lengths)) if number != along]

    def fill(remaining: Sequence[int], place: Value) -> None:
        if remaining:
            number, *rest = remaining
            opened = code.begin_loop(0, lengths[number])
            value = _absolute(points, image, number, opened.index, first)
            with points.bound(image.sides[number].axis, value, before=opened.before):
                skipped = code.multiply(opened.index, constant(pitches[number], I64))
                fill(rest, code.add(place, skipped))
                code.end_loop(opened)
            return
        length, pitch = lengths[along], pitches[along]
        whole = length - length % lanes
        if whole:
            opened = code.begin_loop(0, whole, lanes)
            with points.bound(TILE, opened.index, before=opened.before):
                _copy(points, image, along, first, opened.index, lanes, place, pitch, target, kind)
                code.end_loop(opened)
        if whole < length:
            start = constant(whole, I64)
            width = length - whole
            _copy(points, image, along, first, start, width, place, pitch, target, kind)

    fill(order, constant(0, I64))


def _absolute(points: Points, image: Image, number: int, value: Value, first: Value) -> Value:
    """A position along a side, counted from the first place of all."""
    side = image.sides[number]
    if not image.places or side.place != image.places[0]:
        return value
    code = points.code
    return code.add(value, code.multiply(first, constant(side.scale, I64)))


def _copy(
    points: Points,
    image: Image,
    along: int,
    first: Value,
    start: Value,
    width: int,
    place: Value,
    pitch: int,
    target: Value,
    kind: str,
) -> None:
    """One vector of the image."""
    code = points.code
    position = _absolute(points, image, along, start, first)
    with points.along(image.sides[along].axis, position, width):
        value = points.vector(image.view)
    at = code.add(place, code.multiply(start, constant(pitch, I64)))
    address = code.offset(target, at, kind)
    if pitch == 1:
        code.store(value, address)
        return
    for lane in range(width):
        code.store(code.extract(value, lane), code.offset(address, lane * pitch, kind))
