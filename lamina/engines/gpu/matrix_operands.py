"""Tiles of operands for instructions on matrices: from buffers to local memory, and to registers.

A tile has rows along K, or along m (n for the right operand), as its vectors are read from the
buffer. A warp loads four matrices at once: 8 of m or n, and 16 bytes of K. Matrices of 16 bits are
transposed if rows do not run along K; elements of TF32 are loaded one by one then. So each kind of
tile is stored without exchanging elements.

Warpgroups multiply tiles where they are. `cuda_head.h` describes their panels. Rows of TF32 run
along K: vectors that are read along m or n are written to several rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from lamina.codegen.c import Function
from lamina.codegen.matrix import multiplied_of
from lamina.codegen.primitives import memory_element
from lamina.codegen.values import I1, I32, I64, Value, undefined
from lamina.engines.gpu.schedule import HALF_BYTES, STEP, WARP, MatrixLoad
from lamina.engines.gpu.tile_operands import ROWS, Side, TileVectors, Tiling
from lamina.errors import InternalError
from lamina.program.index import Axis, Index, axis_index
from lamina.program.scalar import Load

# The m or n of a matrix.
EDGE = 8
_ROW_BYTES = 16
# The bytes of a row of a panel.
_PANEL_BYTES = 128


def _copied_apart(row_bytes: int) -> int:
    """The distance of the rows that are copied together, so that they are in different banks.

    Banks have 128 bytes together. Rows of 64 or 32 bytes, without padding, are padded by 16, so
    that eight of them are in different banks 16 bytes each. Then whole rows are if they are 4 or 2
    rows apart.
    """
    vectors = row_bytes // _ROW_BYTES
    return vectors if vectors in (2, 4) else 1


@final
class MatrixOperand:
    """Copies the tiles of one operand, and loads its matrices.

    Its tiles begin at some byte of local memory. The rows of a tile that are the warp's, or the
    warpgroup's, begin at `first`. A tile is `in_panels` for warpgroups. Its rows run `along_k`, or
    along m or n; it has `size` elements. The work item copies `count` vectors of them.
    """

    def __init__(
        self,
        tiling: Tiling,
        side: Side,
        begin: int,
        first: Index,
        *,
        is_left: bool,
        in_panels: bool = False,
    ) -> None:
        self._points, self._code = tiling.points, tiling.points.code
        words = self._code.module.words
        if not words.matrices:
            raise InternalError(f"{words.language} has no instructions on matrices")
        self._is_left = is_left
        view, load = multiplied_of(side.view), side.load
        assert isinstance(load, MatrixLoad)
        self._element, self._bytes = memory_element(view.dtype), view.dtype.itemsize
        # Warpgroups multiply TF32 only in rows along K.
        is_wide = self._bytes > HALF_BYTES
        self.along_k = load.along_k or (in_panels and is_wide)
        # The k of a matrix.
        self._edge = _ROW_BYTES // self._bytes
        # The K of an instruction.
        self.step_k = 2 * self._edge
        row, self._rows = tiling.tile_k, side.tile
        if not self.along_k:
            row, self._rows = self._rows, row
        self._row = row + load.padding
        self.size = self._row * self._rows
        self._array = self._code.launched(self._element, begin)
        # Vectors that are written to several rows: a sector, then the next k, are in all banks.
        self._is_turned = self.along_k and not load.along_k
        near = ROWS // load.lanes if self._is_turned else None
        apart = 1 if self._is_turned else _copied_apart(row * self._bytes)
        self._vectors = TileVectors(tiling, side, view, apart, near)
        self.loaded, self.is_asynchronous = self._vectors.loaded, load.is_asynchronous
        self.count = len(self._vectors.all)
        self._in_panels = in_panels
        if in_panels:
            self._row = _PANEL_BYTES // self._bytes
            address = self._code.offset(self._array, self._location(first, Index()), self._element)
            size = _ROW_BYTES if self.along_k else self._rows * _PANEL_BYTES
            self._descriptor = self._code.call("describe_tile", I64, address, size)
        else:
            # The item loads its own element of each matrix of TF32 whose rows do not run along K.
            self._is_single = is_wide and not self.along_k
            self._start = self._location(*self._matrices(tiling.item, first, is_left))

    def _location(self, outer: Index, k: Index) -> Value:
        """Where an element of a tile is in local memory."""
        points = self._points
        row, at = (outer, k) if self.along_k else (k, outer)
        if not self._in_panels:
            return points.indices(row * self._row + at).start
        # Rows of the panel before come first. Chunks of a row are exchanged.
        row_in_all = at // self._row * self._rows + row
        place, chunk = row_in_all * self._row + at % self._edge, at % self._row // self._edge
        begin, number = points.indices(place).start, points.indices(chunk).start
        return begin + (number ^ points.indices(row % ROWS).start) * self._edge

    def _matrices(self, item: Axis, first: Index, is_left: bool) -> tuple[Index, Index]:
        """The row of a matrix whose address the work item gives: its first m or n, and k.

        The left operand's matrices are in the order (m, k), (m + 8, k), (m, k + 8), (m + 8, k + 8);
        the right one's in the order (n, k), (n, k + 8), (n + 8, k), (n + 8, k + 8).
        """
        lane = axis_index(item) % WARP
        row, number = lane % EDGE, lane // EDGE
        if self._is_single:
            return first + lane // self._edge, lane % self._edge
        early, late = number % 2, number // 2
        outer, k = (early, late) if is_left else (late, early)
        if self.along_k:
            return first + outer * EDGE + row, k * self._edge
        return first + outer * EDGE, k * self._edge + row

    def keep(self, values: Sequence[Value], stage: Value) -> None:
        """Writes the work item's vectors to the tile that begins at an element."""
        code = self._code
        for number, value in enumerate(values):
            with self._vectors.owned(self._vectors.all[number]):
                if self._is_turned and value.type.lanes:
                    for lane in range(value.type.lanes):
                        code.store(code.extract(value, lane), self._address(number, stage, lane))
                    continue
                bits = value.type.lanes * value.type.bytes
                is_aligned = self._row % max(value.type.lanes, 1) == 0
                code.store(value, self._address(number, stage), bits if is_aligned else 0)

    def put(self, value: Value, outer: Index, k: Index) -> None:
        """Writes a vector along K to the first tile."""
        address = self._code.offset(self._array, self._location(outer, k), self._element)
        self._code.store(value, address, value.type.lanes * value.type.bytes)

    def copy(self, stretch: Index, stage: Value, more: Value | None = None) -> None:
        """Begins to copy the work item's vectors to the tile that begins at an element.

        Without `more`, they are zeros.
        """
        code = self._code
        for number, vector in enumerate(self._vectors.all):
            with self._vectors.owned(vector), self._vectors.at(vector, stretch) as (load, inside):
                assert isinstance(load, Load)
                source, within = self._points.address(load)
                conditions = [is_met for is_met in (more, inside, within) if is_met is not None]
                copied = conditions[0] if conditions else code.constant(True, I1)
                for condition in conditions[1:]:
                    copied &= condition
                code.call_void("copy_async", self._address(number, stage), source, copied)

    def _address(self, number: int, stage: Value, row: int = 0) -> Value:
        """The address of a vector of the tile that begins at an element; `row` rows further."""
        vector = self._vectors.all[number]
        location = self._location(vector.outer + row, vector.k * self._vectors.k_lanes)
        return self._code.offset(self._array, stage + location, self._element)

    @property
    def k_distance(self) -> int:
        """The distance in local memory between elements that are neighbours along K."""
        return 1 if self.along_k else self._row

    def matrices(self, stage: Value, number: int, k: int) -> Value:
        """Four matrices: the 16 m or n of a number among the warp's, and 32 bytes of K."""
        code, outer = self._code, number * STEP
        beyond = outer * self._row + k if self.along_k else k * self._row + outer
        address = code.offset(self._array, stage + self._start, self._element)
        address = code.offset(address, beyond, self._element)
        if self._is_single:
            return self._each(address)
        name = f"load_matrices{'' if self.along_k else '_transposed'}"
        return code.call(name, I32.wide(4), address)

    def _each(self, address: Value) -> Value:
        """The item's element of four matrices, from its element of the first one."""
        code = self._code
        beyond_k = self._edge * self._row
        order = (0, EDGE, beyond_k, EDGE + beyond_k)
        if not self._is_left:
            order = (0, beyond_k, EDGE, EDGE + beyond_k)
        elements = undefined(I32.wide(4))
        for lane, beyond in enumerate(order):
            loaded = code.load(code.offset(address, beyond, self._element), I32)
            elements = code.insert(elements, loaded, lane)
        return elements

    def descriptor(self, stage: Value, k: int) -> Value:
        """The descriptor of the tile that begins at an element, from a k on."""
        row = self._row
        beyond = k // row * row * self._rows + k % row if self.along_k else k * row
        units = (stage + beyond) // self._edge
        if units.type != I64:
            units = self._code.convert("zext", units, "i64")
        return self._descriptor + units


def products_of_warps(
    code: Function,
    multiplied: str,
    operands: Sequence[MatrixOperand],
    begins: Sequence[Value],
    counts: tuple[int, int],
    extent: int,
    totals: Sequence[Value],
) -> Sequence[Value]:
    """The sums of a warp's blocks of 16 rows and 8 columns after an extent of K.

    `multiplied` is the instruction's function; `begins` is where each operand begins, `counts` the
    steps of its m or n.
    """
    for k in range(0, extent, operands[0].step_k):
        lefts, rights = (
            [operand.matrices(begin, number, k) for number in range(count)]
            for operand, begin, count in zip(operands, begins, counts, strict=True)
        )
        pairs = [
            (code.extract(right, 2 * half), code.extract(right, 2 * half + 1))
            for right in rights
            for half in range(2)
        ]
        operations = [(left, pair) for left in lefts for pair in pairs]
        totals = [
            code.call(multiplied, total.type, left, *pair, total)
            for total, (left, pair) in zip(totals, operations, strict=True)
        ]
    return totals
