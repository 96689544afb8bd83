"""Gradients of convolutions by col2im: each output position adds to its window's elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from lamina.base.shapes import size_of
from lamina.codegen.axes import row_major_strides
from lamina.codegen.builder import Builder
from lamina.codegen.values import Value
from lamina.engines.simd.decide.m_tiles import MTiles
from lamina.engines.simd.emit.context import WrittenKernel
from lamina.engines.simd.emit.m_tiles import address, offsets, over_tiles
from lamina.engines.simd.emit.tiles import call_tile
from lamina.engines.simd.emit.windows import WindowWriter
from lamina.program.index import Axis


@final
class Col2im(WindowWriter):
    """Work items are (batch, outer position); each has an image with the sums of its M."""

    def write(self) -> list[WrittenKernel]:
        lengths = self._windowed.sums
        for kind, panel, _, _ in self._panels.kinds():
            pitches = [stride * panel.width for stride in row_major_strides(lengths)]
            m_axes = self._step.m[-len(lengths) :]
            self._write_epilogue(f"{self._name}_{kind}", panel, m_axes, pitches)
        # The worker's memory: sums, and the image of an operand that is not read in its buffer.
        sums = size_of(lengths) * self._panels.width
        image = self._image.size(self._image.positions[0].extent)
        self._context.workspaces.need_own((sums + image) * self._bytes)
        self._write_item(lengths)
        with self._items(self._name, self._outer.extent) as (code, _, (outer, batch)):
            table, thread, *_ = code.parameters
            code.call_void(f"{self._name}_item", table, thread, batch, outer)
        return [self._kernel(self._name)]

    def _write_item(self, lengths: Sequence[int]) -> None:
        points = self._begin(f"{self._name}_item", "thread batch outer")
        code = points.code
        table, _, batch, outer = code.parameters
        scattered = self._windowed.scattered
        sums = self._context.own(code)
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
                self._copy_image(points, block, code.constant(0), left)
            for kind, panel, number, n_start in self._over_panels(points):
                right = self._right(code, number)
                self._fill_with_zeros(code, sums, size_of(lengths) * panel.width, panel.lanes)
                pitches = [stride * panel.width for stride in row_major_strides(lengths)]
                steps = [one.stride * pitch for one, pitch in zip(scattered, pitches, strict=True)]
                with code.loop(0, size_of([axis.extent for axis in elements])) as taps:
                    skipped = taps.index * (depth * panel.width)
                    here = code.offset(right, skipped, self._of_right)
                    shifted = self._shifted(code, sums, taps.index, elements, pitches)
                    for size, firsts in over_tiles(code, tiles, 0, code.constant(tiles.count)):
                        rows = offsets(size, along), offsets(size, steps)
                        at = address(code, left, zip(firsts, along, strict=True), self._of_left)
                        to = address(code, shifted, zip(firsts, steps, strict=True), self._element)
                        call_tile(code, self._register_tile(panel, *rows, loops), at, here, to)
                margins = (
                    -one.offset * pitch for one, pitch in zip(scattered, pitches, strict=True)
                )
                start = code.offset(sums, sum(margins), self._element)
                counts = (one.extent for one in scattered)
                operands = (table, start, batch, outer, *[0] * len(lengths), *counts, n_start)
                code.call_void(f"{self._name}_{kind}_epilogue", *operands)

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
            number, tap = tap % axis.extent, tap // axis.extent
            sums = code.offset(sums, number * steps[axis], self._element)
        return sums
