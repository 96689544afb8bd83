"""Winograd's algorithm for convolutions: F(2x2, 3x3) and F(2x2, 5x5)."""

from __future__ import annotations

from typing import final

from lamina.codegen.builder import Builder
from lamina.codegen.filtering import RESULTS
from lamina.codegen.values import I32, I64, POINTER, Type, Value, constant
from lamina.engines.simd.decide.panels import Panel
from lamina.engines.simd.decide.winograd import PackedWeights
from lamina.engines.simd.emit.context import ITEM_RANGE_PARAMETERS, WrittenKernel
from lamina.engines.simd.emit.m_tiles import address
from lamina.engines.simd.emit.transforms import StoredSquare, along_both
from lamina.engines.simd.emit.winograd import Chunk, Matrices, TransformedTiles, divided
from lamina.engines.simd.emit.zeros import cleared, nonzero_n


@final
class WinogradForward(TransformedTiles):
    """Work items are (batch, chunk of tiles)."""

    def write(self) -> list[WrittenKernel]:
        chunks, m_axes = self._chunks, self._step.m[-2:]
        for kind, panel, _, _ in self._panels.kinds():
            pitches = [RESULTS * self._wide * panel.width, panel.width]
            self._write_epilogue(f"{self._name}_{kind}", panel, m_axes, pitches)
        for label, block, _ in chunks.sizes():
            self._write_chunk(label, block, chunks.images)
        code = self._context.module.function(self._name, ITEM_RANGE_PARAMETERS)
        table, thread, begin, end = code.parameters
        loop = code.begin_loop(begin, end)
        count = self._outer.extent // chunks.images * chunks.each
        chunk, batch = divided(code, loop.index, count)

        for label, outer, start in self._over_chunk(code, chunk):
            code.call_void(f"{self._name}_{label}", table, thread, batch, outer, start)
        code.end_loop(loop)
        code.finish()
        return [self._kernel(self._name)]

    def _write_chunk(self, label: str, block: int, images: int) -> None:
        """Writes `chunk(table, thread, batch, outer, start)`: the results of some rows of tiles."""
        width, tiles = self._panels.width, images * block * self._wide
        inputs_stride, products_stride = (
            self._matrix_stride(tiles * size) for size in (self._channels, width)
        )
        image = images * self._image.size(RESULTS * block)
        sizes = (
            image,
            self._products * inputs_stride,
            self._products * products_stride,
        )
        *offsets, _ = self._own_offsets((*sizes, RESULTS**2 * self._wide * width))
        points = self._begin(f"{self._name}_{label}", ("thread", "batch", "outer", "start"))
        code = points.code
        table, _, batch, outer, start = code.parameters
        own = self._own(code)
        copied, inputs, products, out = (code.offset(own, at, self._element) for at in offsets)
        left = Matrices(inputs, inputs_stride)
        with points.bound(self._batch, batch):
            self._transform_chunk(points, Chunk(outer, start, images, block), copied, left)
        strides, _ = self._image.layout(RESULTS * block)
        down, right = (strides[axis] for axis in self._image.positions)
        for kind, panel, _, _ in self._panels.kinds():
            self._write_zeros(f"{self._name}_{kind}_{label}_zeros", panel, (down, right))
        image_size = self._image.size(RESULTS * block)

        for kind, panel, number, n_start in self._over_panels(points):
            packed = self._packed_weights
            right = Matrices(self._right(code, number), self._channels * panel.width)
            flag = code.offset(right.start, packed.has_zeros * panel.width, self._element)
            has_zeros = code.compare("ne", code.load(flag, I32), constant(0, I32))
            words = code.offset(flag, panel.width, self._element)
            sums = Matrices(products, products_stride)
            m_loop, k_loop = (tiles, self._channels), (self._channels, 1)
            self._multiply(code, panel, (left, right, sums), m_loop, k_loop, fresh=True)
            outers = code.begin_loop(0, images)
            loop = code.begin_loop(0, block)
            row = code.add(code.multiply(outers.index, constant(block, I64)), loop.index)
            source = address(code, products, [(row, self._wide * panel.width)], self._element)
            self._transform_back(code, panel, Matrices(source, products_stride), out)
            with code.when(has_zeros):
                moves = [(outers.index, image_size), (loop.index, RESULTS * down)]
                source = address(code, copied, moves, self._element)
                code.call_void(f"{self._name}_{kind}_{label}_zeros", source, words, out)
            first = code.multiply(code.add(start, loop.index), constant(RESULTS, I64))
            high, wide = (constant(axis.extent, I64) for axis in self._step.m[-2:])
            present = code.minimum(code.subtract(high, first), constant(RESULTS, I64))
            code.call_void(
                f"{self._name}_{kind}_epilogue",
                *(table, out, batch, code.add(outer, outers.index)),
                *(first, constant(0, I64), present, wide, n_start),
            )
            code.end_loop(loop)
            code.end_loop(outers)
        code.finish()

    @property
    def _packed_weights(self) -> PackedWeights:
        packed = self._schedule.prepacked
        assert isinstance(packed, PackedWeights)
        return packed

    def _write_zeros(self, name: str, panel: Panel, steps: tuple[int, int]) -> None:
        """Writes `zeros(numbers, words, results)`: exact zeros in the results of a row of tiles.

        The function is called only if some weight is zero: the terms then cancel, and rounding
        errors of the transform can leave a small number. Without zero weights a result depends on
        no input outside its window, so results whose terms are all zero are already exactly zero.

        Args:
            name: of the function.
            panel: the vectors of the panel.
            steps: the elements between the inputs of two positions, down and to the right.
        """
        parameters = (("numbers", POINTER), ("words", POINTER), ("results", POINTER))
        code = self._context.module.function(name, parameters)
        numbers, words, results = code.parameters
        row = code.begin_loop(0, RESULTS)
        column = code.begin_loop(0, RESULTS * self._wide)
        position = code.multiply(row.index, constant(RESULTS * self._wide, I64))
        position = code.add(position, column.index)
        result = address(code, results, [(position, panel.width)], self._element)
        sums = self._vectors(code, panel, result)
        word = nonzero_n(code, panel, sums)
        with code.when(code.compare("ne", word, constant(0, I32))):
            moves = [(row.index, steps[0]), (column.index, steps[1])]
            window = address(code, numbers, moves, self._element)
            word = self._zeros_of_window(code, word, window, words, steps)
            with code.when(code.compare("ne", word, constant(0, I32))):
                for number, value in enumerate(sums):
                    target = code.offset(result, number * panel.lanes, self._element)
                    code.store(cleared(code, panel, number, value, word), target)
        code.end_loop(column)
        code.end_loop(row)
        code.finish()

    def _zeros_of_window(
        self, code: Builder, word: Value, numbers: Value, words: Value, steps: tuple[int, int]
    ) -> Value:
        """The bits of a word that belong to results whose terms all have a zero factor."""
        lanes, channels = self._panels.lanes, self._channels
        whole = channels - channels % lanes
        down = code.begin_loop(0, self._window, 1, [code.splat(word, lanes)])
        right = code.begin_loop(0, self._window, 1, down.carried)
        moves = [(down.index, steps[0]), (right.index, steps[1])]
        start = address(code, numbers, moves, self._element)
        moves = [(down.index, self._window * channels), (right.index, channels)]
        factors = address(code, words, moves, "i32")
        (zeros,) = right.carried
        if whole:
            loop = code.begin_loop(0, whole, lanes, [zeros])
            here = code.offset(start, loop.index, self._element)
            there = code.offset(factors, loop.index, "i32")
            (zeros,) = code.end_loop(
                loop, [self._zeros_of(code, loop.carried[0], here, there, lanes)]
            )
        if whole < channels:
            here = code.offset(start, whole, self._element)
            there = code.offset(factors, whole, "i32")
            zeros = self._zeros_of(code, zeros, here, there, channels - whole)
        for loop in (right, down):
            going = code.compare("ne", code.all_bits(zeros), constant(0, I32))
            (zeros,) = code.end_loop(loop, [zeros], going)
        return code.all_bits(zeros)

    def _zeros_of(
        self, code: Builder, zeros: Value, start: Value, factors: Value, present: int
    ) -> Value:
        """The bits that belong to results whose terms of some channels all have a zero factor.

        Args:
            code: of the function.
            zeros: the bits for each lane.
            start: the address of the inputs.
            factors: a word for each input, with a bit for each column whose weight is not zero.
            present: the number of channels.
        """
        number = code.load(start, Type(self._element, present))
        weights = code.load(factors, Type("i32", present))
        is_set = code.compare("une", number, constant(0, number.type))
        weights = code.select(is_set, weights, constant(0, weights.type))
        others = code.binary("xor", weights, constant(-1, weights.type))
        return code.binary("and", zeros, code.padded(others, self._panels.lanes, -1))

    def _transform_back(
        self, code: Builder, panel: Panel, products: Matrices, results: Value
    ) -> None:
        """Transforms the products of a row of tiles to two rows of sums."""
        columns = code.begin_loop(0, self._wide)
        source = address(code, products.start, [(columns.index, panel.width)], self._element)
        target = address(code, results, [(columns.index, RESULTS * panel.width)], self._element)
        for number in range(panel.vectors):
            last = number == panel.vectors - 1
            vector = Type(self._element, panel.last_lanes if last else panel.lanes)
            skipped = number * panel.lanes
            down = self._filtering.input_tile * products.stride
            square = StoredSquare(code, source, skipped, down, products.stride, vector)
            for row, values in enumerate(
                along_both(code, self._filtering.output_transform, square)
            ):
                for column, value in enumerate(values):
                    offset = (row * RESULTS * self._wide + column) * panel.width + skipped
                    code.store(value, code.offset(target, offset, self._element))
        code.end_loop(columns)
