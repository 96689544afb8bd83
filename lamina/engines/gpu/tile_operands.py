"""Tiles of a contraction's operands: from buffers to local memory, and on to registers.

Work items copy vectors of a tile. A vector runs along K or along m (n for the right operand).
Floats of 16 bits are converted either when they are copied, or when they are multiplied.
Locations in a tile are index expressions of the work item, so that everything that does not depend
on the stretch of K is computed once.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import final

from lamina.base.records import frozen_dataclass
from lamina.codegen.halves import to_float
from lamina.codegen.matrix import half_of
from lamina.codegen.primitives import element
from lamina.codegen.values import Type, Value, constant
from lamina.engines.gpu.products import run_along
from lamina.engines.gpu.schedule import OperandLoad, TileLoad
from lamina.engines.gpu.work_item import ItemPoints, along_lanes, clamped, clamped_inside
from lamina.program.index import Axis, Index, axis_index
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Scalar

# The float32 in a sector of a GPU's memory.
_SECTOR = 8
# The rows of a matrix that instructions on matrices read together.
ROWS = 8


@frozen_dataclass
class Side:
    """One side of a contraction: m and the left operand, or n and the right one.

    Attributes:
        view: the operand.
        axis: the m or n of the contraction.
        tiles: the axis that counts the tiles along it.
        tile: the extent of a tile along it.
        load: the tile's copy to local memory.
        block: the extent of a work item's block along the axis.
        items: the number of work items along the axis.
        position: the number of the work item along the axis.
        width: the lanes of vectors that are read from local memory; 1 for scalars.
    """

    view: Scalar
    axis: Axis
    tiles: Axis
    tile: int
    load: OperandLoad
    block: int
    items: int
    position: Index
    width: int

    @property
    def row(self) -> int:
        """The distance in local memory between elements that are neighbours along K."""
        return self.tile + self.load.padding

    @property
    def is_ragged(self) -> bool:
        """Whether the last tile reaches beyond the end."""
        return self.axis.extent % self.tile != 0

    def in_tile(self, vector: int) -> Index:
        """The location in the tile of a vector of the work item's block.

        The vectors of neighbouring work items are neighbours, so that local memory is read and
        results are stored without gaps.
        """
        return self.position * self.width + vector * self.items * self.width


@frozen_dataclass
class Batch:
    """The batch axis of a contraction, its tiles, and the number of the item's product in one."""

    axis: Axis
    tiles: Axis
    tile: int
    position: Index

    @property
    def first(self) -> Index:
        """The first product of the tile."""
        return axis_index(self.tiles) * self.tile


@frozen_dataclass
class Tiling:
    """What the tiles of both operands have in common, and the item that copies a share of them.

    The axes of ragged tiles have their values in `bound`.
    """

    points: ItemPoints
    batch: Batch
    k: Axis
    tile_k: int
    item: Axis
    bound: ExitStack


@frozen_dataclass
class _Vector:
    """A vector of a tile that a work item copies.

    It has the operand over the kernel's axes and k, the number of its product within the tile, its
    location in the tile along m or n, and that in the stretch of K, in vectors if they run along K.
    Its number in the tile is known if some work items have none.
    """

    view: Scalar
    batch: Index
    outer: Index
    k: Index
    number: Index | None


@final
class TileVectors:
    """The vectors of a tile of one operand that a work item reads from a buffer.

    Args:
        tiling: the tiles of both operands.
        side: the side of the contraction.
        view: the operand, as it is kept in local memory.
        apart: the distance of the rows that work items copy one after the other, among eight rows;
            it divides 8, and the rows are a multiple of 8 unless it is 1.
        near: the number of a row's vectors that work items copy one after the other, before the
            next row; it divides the vectors of a row. None for all of them.

    Attributes:
        all: the vectors; all tiles have them at the same locations.
        count: the number of vectors of a tile.
        k_lanes: the lanes of a vector along K.
    """

    def __init__(
        self, tiling: Tiling, side: Side, view: Scalar, apart: int = 1, near: int | None = None
    ) -> None:
        self._tiling, self._side = tiling, side
        self._points, self._code = tiling.points, tiling.points.code
        self._lane = Axis("lane", side.load.lanes)
        lanes, along_k = side.load.lanes, side.load.along_k
        batch, stretch, group = tiling.batch, tiling.tile_k, tiling.item.extent
        self.k_lanes = lanes if along_k else 1
        fast = (stretch if along_k else side.tile) // lanes
        slow = side.tile if along_k else stretch
        self.count = batch.tile * fast * slow
        self.all: list[_Vector] = []
        for number in range(-(-self.count // group)):
            at = axis_index(tiling.item) + number * group
            together = near or fast
            first = at // (together * slow) % (fast // together) * together + at % together
            second = _spread(at // together % slow, apart)
            product = at // (fast * slow) % batch.tile
            at_k, outer = (first, second) if along_k else (second, first)
            replaced = {batch.axis: batch.first + product, side.axis: self._outer(number, outer)}
            is_full = (number + 1) * group <= self.count
            self.all.append(
                _Vector(
                    Rewrite(replaced).scalar(view),
                    product,
                    outer * (lanes // self.k_lanes),
                    at_k,
                    None if is_full else at,
                )
            )

    def _outer(self, number: int, outer: Index) -> Index:
        """The m or n of a vector; of the last vector for those beyond the end."""
        side = self._side
        lanes = side.load.lanes // self.k_lanes
        location = axis_index(side.tiles) * (side.tile // lanes) + outer
        if side.is_ragged:
            vectors = Axis(f"{side.axis.name}{number}", side.axis.extent // lanes)
            location = clamped(self._points, vectors, location, self._tiling.bound)
        return location * lanes + (axis_index(self._lane) if lanes > 1 else 0)

    @contextmanager
    def at(self, vector: _Vector, stretch: Index) -> Generator[tuple[Scalar, Value | None]]:
        """Inside, the points are a vector of the tile at a stretch of K.

        Yields its elements, and whether it is inside of K; None if all are.
        """
        points, tile_k = self._points, self._tiling.tile_k
        location = stretch * (tile_k // self.k_lanes) + vector.k
        inside: Value | None = None
        with ExitStack() as bound:
            if self._tiling.k.extent % tile_k:
                vectors = Axis("k_inside", self._tiling.k.extent // self.k_lanes)
                inside, location = clamped_inside(points, vectors, location, bound)
            lane = bound.enter_context(along_lanes(points, self._lane))
            k = location * self.k_lanes + (lane if self.k_lanes > 1 else 0)
            yield Rewrite({self._tiling.k: k}).scalar(vector.view), inside

    def loaded(self, stretch: Index) -> Sequence[Value]:
        """The work item's vectors of the tile at a stretch of K; zero beyond the end of K."""
        values: list[Value] = []
        for vector in self.all:
            with self.at(vector, stretch) as (elements, inside):
                value = self._points.vector(elements)
            if inside is not None:
                value = self._code.select(inside, value, constant(0, value.type))
            values.append(value)
        return values

    @contextmanager
    def owned(self, vector: _Vector) -> Generator[None]:
        """The code inside is run by the work items that have the vector."""
        if vector.number is None:
            yield
            return
        number = self._points.indices(vector.number).start
        with self._code.when(number < self.count) as before, self._points.inside(before):
            yield


def _spread(row: Index, apart: int) -> Index:
    """The row of each number: among eight rows, neighbouring numbers have rows that are apart."""
    if apart == 1:
        return row
    together = ROWS // apart
    return row // ROWS * ROWS + row % together * apart + row % ROWS // together


def _near(side: Side, k: Axis, stretch: int) -> int | None:
    """How many vectors along K are copied one after the other: None for all of a row.

    Their elements are written to several rows, padded so that elements of one sector are in
    different banks. If runs of neighbours have whole sectors, no sector is read twice for that.
    """
    lanes = side.load.lanes
    is_fit = lanes > 1 and (stretch // lanes) % max(_SECTOR // lanes, 1) == 0
    if not side.load.along_k or not is_fit or run_along(side.view, k) < _SECTOR:
        return None
    return max(_SECTOR // lanes, 1)


@final
class TileOperand:
    """The tiles of one operand in local memory: for each k a row along m or n.

    By default it has an array of its own for some tiles. `is_copied` says that work items copy its
    elements from a buffer. A tile has `size` elements.
    """

    def __init__(
        self,
        tiling: Tiling,
        side: Side,
        type: Type,
        buffers: int = 1,
        array: Value | None = None,
        *,
        is_copied: bool = True,
    ) -> None:
        self._points, self._code = tiling.points, tiling.points.code
        self._side, self._tile_k = side, tiling.tile_k
        is_half = isinstance(side.load, TileLoad) and side.load.is_half
        # Elements that are converted when they are multiplied.
        half = half_of(side.view) if is_half else None
        self._half = None if half is None else half.dtype
        self._type = type if half is None else Type(element(half.dtype))
        self.size = tiling.batch.tile * tiling.tile_k * side.row
        if array is None:
            array = self._code.local(self._type.element, buffers * self.size)
        self._array = array
        if is_copied:
            near = _near(side, tiling.k, tiling.tile_k)
            self._vectors = TileVectors(tiling, side, half or side.view, near=near)
            self.loaded = self._vectors.loaded

    # To local memory

    def keep(self, values: Sequence[Value], start: Value) -> None:
        """Writes the work item's vectors to local memory, `start` elements after its begin."""
        vectors, side, code, type = self._vectors, self._side, self._code, self._type
        for vector, value in zip(vectors.all, values, strict=True):
            row = vector.batch * self._tile_k + vector.k * vectors.k_lanes
            location = self._points.indices(row * side.row + vector.outer).start
            with vectors.owned(vector):
                address = code.offset(self._array, start + location, type.element)
                lanes = value.type.lanes
                if vectors.k_lanes == 1 or not lanes:
                    is_aligned = side.row % max(lanes, 1) == 0
                    code.store(value, address, lanes * type.bytes if is_aligned else 0)
                    continue
                for lane in range(lanes):
                    below = code.offset(address, lane * side.row, type.element)
                    code.store(code.extract(value, lane), below)

    def put(self, value: Value, outer: Index, k: Index) -> None:
        """Writes a value of an m or n, or a vector along K to several rows."""
        code, row, element_ = self._code, self._side.row, self._type.element
        start = self._points.indices(k * row + outer).start
        address = code.offset(self._array, start, element_)
        for lane in range(value.type.lanes or 1):
            scalar = code.extract(value, lane) if value.type.lanes else value
            code.store(scalar, code.offset(address, lane * row, element_))

    # To registers

    def start(self, position: Index, begin: Value) -> Value:
        """Where the work item's block begins in local memory, in the tile that begins there."""
        location = position * (self._tile_k * self._side.row) + self._side.in_tile(0)
        return begin + self._points.indices(location).start

    def vectors(self, start: Value, k: Value, following: int) -> list[Value]:
        """The work item's block at one k, `following` locations after another one, in vectors."""
        code, side, type = self._code, self._side, self._type
        begin = start + k * side.row
        lanes = side.width if side.width > 1 else 0
        align = lanes * type.bytes if side.row % side.width == 0 else 0
        values: list[Value] = []
        for number in range(side.block // side.width):
            beyond = following * side.row + number * side.items * side.width
            address = code.offset(self._array, begin, type.element)
            address = code.offset(address, beyond, type.element)
            loaded = code.load(address, type.wide(lanes), align)
            values.append(loaded if self._half is None else to_float(code, loaded, self._half))
        return values
