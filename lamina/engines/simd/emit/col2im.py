"""Gradients of convolutions by col2im: each output position adds to its window's elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from lamina.base.shapes import size_of
from lamina.codegen.builder import Builder
from lamina.codegen.values import I64, Type, Value, constant
from lamina.engines.simd.decide.m_tiles import MTiles
from lamina.engines.simd.emit.context import ITEM_RANGE_PARAMETERS, WrittenKernel
from lamina.engines.simd.emit.m_tiles import address, offsets, over_tiles
from lamina.engines.simd.emit.tiles import Tile, call_tile
from lamina.engines.simd.emit.windows import WindowWriter
from lamina.program.index import Axis


@final
class Col2im(WindowWriter):
    """Work items are (batch, outer position); each has an image with the sums of its M."""

    def write(self) -> list[WrittenKernel]:
        lengths = self._windowed.sums
        for kind, panel, _, _ in self._panels.kinds():
            pitches = [size_of(lengths[n + 1 :]) * panel.width for n in range(len(lengths))]
            m_axes = self._step.m[-len(lengths) :]
            self._write_epilogue(f"{self._name}_{kind}", panel, m_axes, pitches)
        # The worker's memory: sums, and the image of an operand that is not read in its buffer.
        sums = size_of(lengths) * self._panels.width
        image = self._image.size(self._image.positions[0].extent)
        self._context.workspaces.need_own((sums + image) * self._bytes)
        self._write_item(lengths)
        code = self._context.module.function(self._name, ITEM_RANGE_PARAMETERS)
        table, thread, begin, end = code.parameters
        loop = code.begin_loop(begin, end)
        count = constant(self._outer.extent, I64)
        outer = code.binary("urem", loop.index, count)
        batch = code.binary("udiv", loop.index, count)
        code.call_void(f"{self._name}_item", table, thread, batch, outer)
        code.end_loop(loop)
        code.finish()
        return [self._kernel(self._name)]

    def _write_item(self, lengths: Sequence[int]) -> None:
        points = self._begin(f"{self._name}_item", ("thread", "batch", "outer"))
        code = points.code
        table, _, batch, outer = code.parameters
        scattered = self._windowed.scattered
        sums = self._own(code)
        image = self._image
        block = image.positions[0].extent
        strides, _ = image.layout(block)
        elements = [one for one in self._step.k if one not in image.elements]
        channels = [axis for axis in self._step.k if axis in image.elements]
        loops = self._loops([(axis.extent, strides[axis]) for axis in channels])
        depth = size_of([axis.extent for axis in channels]) // self._per_step
        along = [strides[axis] for axis in image.positions]
        tiles = MTiles(tuple(axis.extent for axis in image.positions), self._schedule.tile_m)
        with points.bound(self._batch, batch), points.bound(self._outer, outer):
            if image.is_direct:
                left = self._image_start(points)
            else:
                size = size_of(lengths) * self._panels.width
                left = code.offset(sums, size, self._element)
                self._copy_image(points, block, constant(0, I64), left)

            for kind, panel, number, n_start in self._over_panels(points):
                right = self._right(code, number)
                vector = Type(self._element, panel.lanes)
                fill = code.begin_loop(0, size_of(lengths) * panel.width, panel.lanes)
                code.store(constant(0, vector), code.offset(sums, fill.index, self._element))
                code.end_loop(fill)
                pitches = [size_of(lengths[n + 1 :]) * panel.width for n in range(len(lengths))]
                steps = [one.stride * pitch for one, pitch in zip(scattered, pitches, strict=True)]
                taps = code.begin_loop(0, size_of([axis.extent for axis in elements]))
                here = address(code, right, [(taps.index, depth * panel.width)], self._of_right)
                shifted = self._shifted(code, sums, taps.index, elements, pitches)

                none, all_ = constant(0, I64), constant(tiles.count, I64)
                for size, firsts in over_tiles(code, tiles, none, all_):
                    tile = Tile(
                        offsets(size, along),
                        offsets(size, steps),
                        panel.vectors,
                        panel.lanes,
                        panel.last_lanes,
                        self._element,
                        loops,
                        panel.width,
                        self._schedule.unrolled,
                        paired=self._windowed.paired,
                    )
                    at = address(code, left, list(zip(firsts, along, strict=True)), self._of_left)
                    to = address(
                        code, shifted, list(zip(firsts, steps, strict=True)), self._element
                    )
                    call_tile(code, tile, at, here, to)
                code.end_loop(taps)
                zeros = [constant(0, I64) for _ in lengths]
                counts = [constant(one.extent, I64) for one in scattered]
                margin = sum(
                    -one.offset * pitch for one, pitch in zip(scattered, pitches, strict=True)
                )
                code.call_void(
                    f"{self._name}_{kind}_epilogue",
                    *(table, code.offset(sums, margin, self._element), batch, outer),
                    *(*zeros, *counts, n_start),
                )
        code.finish()

    def _shifted(
        self,
        code: Builder,
        sums: Value,
        tap: Value,
        elements: Sequence[Axis],
        pitches: Sequence[int],
    ) -> Value:
        """The address of the sums to which the first position adds for one element of windows."""
        steps = {
            one.element: one.dilation * pitch
            for one, pitch in zip(self._windowed.scattered, pitches, strict=True)
        }
        for axis in reversed(elements):
            extent = constant(axis.extent, I64)
            number = code.binary("urem", tap, extent)
            tap = code.binary("udiv", tap, extent)
            sums = address(code, sums, [(number, steps[axis])], self._element)
        return sums
