"""The base class of the writers of contractions over windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

from lamina.codegen.builder import Builder
from lamina.codegen.primitives import element
from lamina.codegen.values import TABLE, Integer, Type, Value
from lamina.engines.simd.decide.packing import Panel
from lamina.engines.simd.decide.schedule import WindowSchedule
from lamina.engines.simd.decide.tiles import AMX_STEPS, merged
from lamina.engines.simd.decide.windows import Windowed
from lamina.engines.simd.decide.winograd import chunks_of
from lamina.engines.simd.emit.context import (
    ITEM_RANGE_PARAMETERS,
    Context,
    Points,
    WrittenKernel,
    parameters,
)
from lamina.engines.simd.emit.epilogues import write_epilogue
from lamina.engines.simd.emit.images import ImageCopy, TransposedImageCopy
from lamina.engines.simd.emit.packing import panel_address
from lamina.engines.simd.emit.tiles import Tile
from lamina.program.index import Axis
from lamina.program.scalar import Load
from lamina.program.steps import reads_of, writes_of


class WindowWriter(ABC):
    """Writes one contraction over windows."""

    def __init__(
        self, context: Context, name: str, windowed: Windowed, schedule: WindowSchedule
    ) -> None:
        self._context = context
        self._name = name
        self._windowed = windowed
        self._schedule = schedule
        self._step, self._image, self._outer = windowed.step, windowed.image, windowed.outer
        self._panels = schedule.panels
        self._chunks = chunks_of(windowed, schedule.block, schedule.images)
        self._batch, self._n = windowed.step.batch[0], windowed.step.n[0]
        # Of sums; of images and views that are read directly; of right operands.
        self._element = element(windowed.step.dtype)
        self._of_left = "i16" if windowed.paired else self._element
        self._of_right = "i32" if windowed.paired else self._element
        self._bytes = windowed.step.dtype.itemsize
        self._left_bytes = windowed.itemsize
        # The k of a step: pairs are multiplied at once, and so are tile registers.
        self._per_step = 2 if windowed.paired else 1
        if schedule.amx:
            self._per_step = 2 * AMX_STEPS

    @abstractmethod
    def write(self) -> list[WrittenKernel]:
        """Writes the functions; gives the kernels."""

    def _begin(
        self, name: str, numbers: str, addresses: str = "", used: frozenset[str] | None = None
    ) -> tuple[Points, Builder, Sequence[Value]]:
        """Begins a function `(table, thread, numbers.., addresses..)`, called by `_call`.

        Gives its code, and its parameters after the thread. It uses the step's buffers by default.
        """
        declared = (("table", TABLE), *parameters("", f"thread {numbers}"), *parameters(addresses))
        if used is None:
            used = reads_of(self._step) | writes_of(self._step)
        points = self._context.begin(f"{self._name}_{name}", declared, used)
        return points, points.code, points.code.parameters[2:]

    def _call(self, code: Builder, name: str, *operands: Integer) -> None:
        """Calls a function of this step, from another function with the table and the thread."""
        code.call_void(f"{self._name}_{name}", *code.parameters[:2], *operands)

    @contextmanager
    def _items(self, name: str, *extents: int) -> Generator[tuple[Builder, Value, list[Value]]]:
        """The loop of a kernel over its work items: gives its code, and the number of an item.

        Also the numbers along each of the item's dimensions, innermost first; `extents` are all but
        the outermost one's.
        """
        code = self._context.module.function(name, ITEM_RANGE_PARAMETERS)
        *_, begin, end = code.parameters
        with code.loop(begin, end) as loop:
            numbers, remaining = list[Value](), loop.index
            for extent in extents:
                numbers.append(remaining % extent)
                remaining = remaining // extent
            yield code, loop.index, [*numbers, remaining]

    def _over_sizes(
        self, code: Builder, number: Value, group: Value
    ) -> Iterator[tuple[str, Value, Value]]:
        """Branches by the size of a chunk; yields (label, first outer position, first row)."""
        chunks = self._chunks
        outer, start = group * chunks.images, number * chunks.block
        for label, _, condition in chunks.sizes():
            with code.when(code.compare(condition, number, chunks.full)):
                yield label, outer, start

    def _kernel(self, name: str) -> WrittenKernel:
        reads = reads_of(self._step)
        if self._schedule.prepacked is not None:
            reads |= {self._schedule.prepacked.buffer}
        return WrittenKernel(name, reads, writes_of(self._step))

    def _over_panels(self, points: Points) -> Iterator[tuple[str, Panel, Value, Value]]:
        """Opens a loop over the panels of each kind; yields (kind, panel, number, first column)."""
        code = points.code
        width = self._panels.width
        for kind, panel, condition, full in self._panels.kinds():
            if condition == "slt":
                with points.counting(0, full) as number:
                    yield kind, panel, number, number * width
            else:
                yield kind, panel, code.constant(full), code.constant(full * width)

    def _right(self, code: Builder, number: Value) -> Value:
        """The address of a panel of the prepacked right operand."""
        packed = self._schedule.prepacked
        assert packed is not None
        panel = code.parameters[2] * self._panels.count + number
        return panel_address(self._context, code, packed, panel, self._of_right)

    def _copy_image(self, points: Points, block: int, first: Value, target: Value) -> None:
        """Copies the image of a block of positions from `first` on, inside the outer axes."""
        along = self._schedule.copied
        assert along is not None
        lengths = self._image.lengths(block)
        copy = TransposedImageCopy if self._schedule.transposed else ImageCopy
        copy(points, self._image, lengths, first, target, along, self._panels.lanes).write()

    def _copy_images(
        self, points: Points, block: int, outer: Value, end: Value, first: Value, target: Value
    ) -> None:
        """Copies the images of a block for outer positions, one after the other."""
        with points.loop(self._outer, start=outer, stop=end) as loop:
            past = (loop.index - outer) * self._image.size(block)
            image = points.code.offset(target, past, self._of_left)
            self._copy_image(points, block, first, image)

    def _fill_with_zeros(self, code: Builder, start: Value, count: int, lanes: int) -> None:
        """Stores zeros from an address on, in vectors."""
        with code.loop(0, count, lanes) as loop:
            zero = code.constant(0, Type(self._element, lanes))
            code.store(zero, code.offset(start, loop.index, self._element))

    def _register_tile(
        self,
        panel: Panel,
        left: tuple[int, ...],
        sums: tuple[int, ...],
        loops: tuple[tuple[int, int], ...],
        right_stride: int | None = None,
        *,
        fresh: bool = False,
    ) -> Tile:
        """A register tile, by the offsets of its rows in the left operand and in the sums."""
        return Tile(
            *(left, sums, *panel.sizes, self._element, loops, right_stride or panel.width),
            self._schedule.unrolled,
            fresh=fresh,
            paired=self._windowed.paired,
        )

    def _loops(self, axes: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        """The loops of a tile over k: (extent, stride), innermost last, of single k."""
        steps = list(axes)
        if self._per_step > 1:
            extent, stride = steps.pop()
            steps.append((extent // self._per_step, stride * self._per_step))
        return merged(steps)

    def _image_start(self, points: Points) -> Value:
        """The address of the first element of a view that is read directly."""
        load = self._image.view
        assert isinstance(load, Load)
        start = points.indices(load.index).start
        return points.code.offset(points.base(load.buffer), start, self._of_left)

    def _write_epilogue(
        self, kind: str, panel: Panel, m_axes: Sequence[Axis], pitches: Sequence[int]
    ) -> None:
        """Writes `epilogue(table, sums, batch, outer, firsts.., counts.., n_start)`.

        `pitches` are the strides of the sums along the axes of M, from the first row on.
        """
        numbers = [f"{word}{n}" for word in ("first", "count") for n in range(len(m_axes))]
        names, around = ("batch", "outer", *numbers, "n_start"), (self._batch, self._outer)
        how = (f"{self._name}_{kind}", names, self._step, around, m_axes, pitches, panel)
        write_epilogue(self._context, *how, wide=self._schedule.wide_epilogue)

    def _call_epilogue(self, code: Builder, kind: str, sums: Value, *numbers: Integer) -> None:
        code.call_void(f"{self._name}_{kind}_epilogue", code.parameters[0], sums, *numbers)
