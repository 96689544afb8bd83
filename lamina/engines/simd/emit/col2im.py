"""Gradients of convolutions by col2im: each output position adds to its window's elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from lamina.base.shapes import size_of
from lamina.codegen.axes import row_major_strides
from lamina.engines.simd.decide.tiles import MTiles
from lamina.engines.simd.emit.context import WrittenKernel
from lamina.engines.simd.emit.m_tiles import address, offsets, over_tiles
from lamina.engines.simd.emit.tiles import call_tile
from lamina.engines.simd.emit.windows import WindowWriter


@final
class Col2im(WindowWriter):
    """Work items are (batch, outer position); each has an image with the sums of its M."""

    def write(self) -> list[WrittenKernel]:
        lengths = self._windowed.sums
        for kind, panel, _, _ in self._panels.kinds():
            pitches = [stride * panel.width for stride in row_major_strides(lengths)]
            self._write_epilogue(kind, panel, self._step.m[-len(lengths) :], pitches)
        # The worker's memory: sums, and the image of an operand that is not read in its buffer.
        sums = size_of(lengths) * self._panels.width
        image = self._image.size(self._image.positions[0].extent)
        self._context.workspaces.need_thread_memory((sums + image) * self._bytes)
        self._write_item(lengths)
        with self._items(self._name, self._outer.extent) as (code, _, (outer, batch)):
            self._call(code, "item", batch, outer)
        return [self._kernel(self._name)]

    def _write_item(self, lengths: Sequence[int]) -> None:
        points, code, (batch, outer) = self._begin("item", "batch outer")
        scattered = self._windowed.scattered
        sums = self._context.thread_memory(code)
        image = self._image
        block = image.positions[0].extent
        strides, _ = image.layout(block)
        elements = [axis for axis in self._step.k if axis not in image.elements]
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
                self._copy_image(points, block, code.constant(0), left)
            for kind, panel, number, n_start in self._over_panels(points):
                right = self._right(code, number)
                self._fill_with_zeros(code, sums, size_of(lengths) * panel.width, panel.lanes)
                pitches = [stride * panel.width for stride in row_major_strides(lengths)]
                windows = list(zip(scattered, pitches, strict=True))
                steps = [window.stride * pitch for window, pitch in windows]
                taps = {window.element: window.dilation * pitch for window, pitch in windows}
                with code.loop(0, size_of([axis.extent for axis in elements])) as loop:
                    here = code.offset(right, loop.index * (depth * panel.width), self._of_right)
                    # The sums to which the first position adds for this element of the windows.
                    shifted, tap = sums, loop.index
                    for axis in reversed(elements):
                        element, tap = tap % axis.extent, tap // axis.extent
                        shifted = code.offset(shifted, element * taps[axis], self._element)
                    for size, firsts in over_tiles(code, tiles, 0, code.constant(tiles.count)):
                        rows = offsets(size, along), offsets(size, steps)
                        at = address(code, left, zip(firsts, along, strict=True), self._of_left)
                        to = address(code, shifted, zip(firsts, steps, strict=True), self._element)
                        call_tile(code, self._register_tile(panel, *rows, loops), at, here, to)
                margin = sum(-window.offset * pitch for window, pitch in windows)
                start = code.offset(sums, margin, self._element)
                numbers = (*[0] * len(lengths), *(window.extent for window in scattered), n_start)
                self._call_epilogue(code, kind, start, batch, outer, *numbers)
