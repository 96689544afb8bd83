"""The base class of the writers of contractions over windows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from lamina.codegen.builder import Builder
from lamina.codegen.primitives import element
from lamina.codegen.values import I64, TABLE, Value, constant
from lamina.engines.simd.decide.m_tiles import merged
from lamina.engines.simd.decide.panels import Panel
from lamina.engines.simd.decide.schedule import WindowSchedule
from lamina.engines.simd.decide.tiles import AMX_STEPS
from lamina.engines.simd.decide.windows import Windowed
from lamina.engines.simd.emit.context import Context, Points, WrittenKernel
from lamina.engines.simd.emit.epilogues import Epilogue, write_epilogue
from lamina.engines.simd.emit.images import ImageCopy, TransposedImageCopy
from lamina.engines.simd.emit.packing import TILE, panel_address
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

    def _begin(self, name: str, numbers: Sequence[str]) -> Points:
        step = self._step
        parameters = (("table", TABLE), *((number, I64) for number in numbers))
        return self._context.begin(name, parameters, reads_of(step) | writes_of(step))

    def _kernel(self, name: str) -> WrittenKernel:
        reads = reads_of(self._step)
        if self._schedule.prepacked is not None:
            reads |= {self._schedule.prepacked.buffer}
        return WrittenKernel(name, reads, writes_of(self._step))

    def _own(self, code: Builder) -> Value:
        """The address of the thread's memory; the function's second parameter is the thread."""
        table, thread, *_ = code.parameters
        return self._context.addresses.own(code, table, thread)

    def _over_panels(self, points: Points) -> Iterator[tuple[str, Panel, Value, Value]]:
        """Opens a loop over the panels of each kind; yields (kind, panel, number, first column)."""
        code = points.code
        full = self._panels.n // self._panels.width
        width = constant(self._panels.width, I64)
        for kind, panel, condition, _ in self._panels.kinds():
            if condition == "slt":
                loop = code.begin_loop(0, full)
                with points.bound(TILE, loop.index, before=loop.before):
                    yield kind, panel, loop.index, code.multiply(loop.index, width)
                    code.end_loop(loop)
            else:
                number = constant(full, I64)
                yield kind, panel, number, constant(full * self._panels.width, I64)

    def _right(self, code: Builder, number: Value) -> Value:
        """The address of a panel of the prepacked right operand."""
        packed = self._schedule.prepacked
        assert packed is not None
        batch = code.parameters[2]
        before = code.multiply(batch, constant(self._panels.count, I64))
        return panel_address(self._context, code, packed, code.add(before, number), self._of_right)

    def _copy_image(self, points: Points, block: int, first: Value, target: Value) -> None:
        """Copies the image of a block of positions from `first` on, inside the outer axes."""
        along = self._schedule.copied
        assert along is not None
        lengths = self._image.lengths(block)
        copy = TransposedImageCopy if self._schedule.transposed else ImageCopy
        copy(points, self._image, lengths, first, target, along, self._panels.lanes).write()

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
        return points.code.offset(
            points.base(load.buffer), points.indices(load.index).start, self._of_left
        )

    def _write_epilogue(
        self, name: str, panel: Panel, m_axes: Sequence[Axis], pitches: Sequence[int]
    ) -> None:
        """Writes `epilogue(table, sums, batch, outer, firsts.., counts.., n_start)`.

        `pitches` are the strides of the sums along the axes of M, from the first row on.
        """
        numbers = [f"{word}{n}" for word in ("first", "count") for n in range(len(m_axes))]
        around, wide = (self._batch, self._outer), self._schedule.wide_epilogue
        epilogue = Epilogue(self._step, around, tuple(m_axes), tuple(pitches), panel, wide)
        write_epilogue(self._context, name, epilogue, ("batch", "outer", *numbers, "n_start"))
