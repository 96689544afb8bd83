"""Contractions over windows: convolutions and their gradients, read where the numbers lie.

Which of the ways is taken, and three of them, each without a copy of the windows:

- *places*: rows are the places of windows, k their elements, and the right operand is packed
  once, for all (a convolution, and its gradient where hardly any window lies in the padding);
- *elements*: rows are the elements of windows, and k runs over the places, image by image, while
  the sums of all rows wait (the gradient of a weight);
- *scattered*: each place adds its share to the sums of the elements that it sees, in an image of
  sums (the gradient with strides, or where gathering would mostly read padding).

Windows of 3x3 that lie side by side have a way with fewer multiplications, in `winograd.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

from lamina.codegen.axes import flattened
from lamina.codegen.llvm import Function
from lamina.codegen.values import I64, POINTER, Type, Value, constant
from lamina.engines.cpu.decide.matrix import as_matrix, as_plain
from lamina.engines.cpu.decide.panels import PackedRight, Panel, Panels
from lamina.engines.cpu.decide.strides import stride_along
from lamina.engines.cpu.decide.work import Work
from lamina.engines.cpu.emit.context import PART_PARAMETERS, Context, Part
from lamina.engines.cpu.emit.image import image_of, pack_image
from lamina.engines.cpu.emit.packing import pack_panel
from lamina.engines.cpu.emit.tiles import Tile, emit_tile
from lamina.engines.cpu.emit.windows import (
    RowTiles,
    Spread,
    Way,
    Windowed,
    address,
    divisor_near,
    merged,
    offsets,
    start_of_part,
)
from lamina.engines.cpu.emit.winograd import minimal
from lamina.engines.cpu.emit.winograd_kernels import MinimalElements, MinimalPlaces
from lamina.program.index import Axis, axes_of, axis_index
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Load
from lamina.program.steps import Contraction, reads_of, writes_of
from lamina.program.windows import DATA_GRADIENT, WEIGHT_GRADIENT, loaded
from lamina.shapes import size_of

# A unit has about so many rows, so that a panel that comes from a far cache is worth it.
ROWS_OF_UNIT = 128
# The numbers of an image, or of some images, take so much of the second cache.
IMAGE_SHARE = 3
# So many units there are at least where there are few tiles.
UNITS_OF_FEW_TILES = 16
# Sums wait in memory while so many k at least are added.
SHORTEST_CHUNK = 256
# Scattering loads and stores sums more often: gathering may do so much more work.
GATHERING_PAYS = 1.25


def windowed(step: Contraction, panels: Panels) -> Windowed | None:
    """The contraction, its columns cut into panels, as one over windows; None if it is none."""
    if len(step.rows) < 2 and len(step.inner) < 2:
        return None
    step = _with_single_axes(step)
    scattered = _scattered(step)
    work = float(size_of(step.extents))
    if scattered is not None:
        work *= size_of([one.place.extent for one in scattered.spreads])
        work /= size_of([one.row.extent for one in scattered.spreads])
    filtered = minimal(step, panels, work)
    if filtered is not None or scattered is not None:
        return filtered or scattered
    way, places, elements = "places", step.rows, step.inner
    if _sums_over_places(step):
        way, places, elements = "elements", elements, places
    windows, outer = step.windows_in("left"), len(places) - 2
    image = image_of(step.left, windows, places, elements, direct_outer=outer)
    return None if image is None else Windowed(step, image, way)


def _sums_over_places(step: Contraction) -> bool:
    """Whether k runs over the places of windows, as in the gradient of a weight.

    Windows that lie side by side are no more than axes. Their channels tell, which lie side by
    side, too: those of a gradient are rows.
    """
    kinds = {window.kind for window in step.windows_in("left")}
    if kinds:
        return WEIGHT_GRADIENT in kinds
    load = loaded(step.left)
    terms = load.index.terms if load is not None else ()
    return any(stride == 1 and atom in step.rows for atom, stride in terms)


def _with_single_axes(step: Contraction) -> Contraction:
    batch, of_batch = flattened(step.batch, "b")
    column, of_columns = flattened(step.columns, "n")
    changed = Rewrite(of_batch | of_columns).contraction(step)
    return replace(changed, batch=(batch,), columns=(column,))


def _scattered(step: Contraction) -> Windowed | None:
    """The contraction with its left operand spread over the rows, where that is less work."""
    load = step.left
    if not isinstance(load, Load):
        return None
    spreads: dict[Axis, Spread] = {}
    for window in step.windows_in("left"):
        row, element_ = window.place, window.element
        if window.kind != DATA_GRADIENT or row is None or window.stride != 1:
            return None
        slope = -window.dilation if element_ is not None else 1
        if slope < 1:
            return None
        place = Axis(f"{row.name}_place", window.extent)
        spreads[row] = Spread(row, place, element_, window.divisor, slope, window.offset)
    ordered = tuple(spreads[axis] for axis in step.rows if axis in spreads)
    outer = step.rows[: len(step.rows) - len(ordered)]
    elements = [one.element for one in ordered if one.element is not None]
    if not ordered or any(axis in spreads for axis in outer) or any(s.offset < 0 for s in ordered):
        return None
    if set(elements) != set(step.inner[: len(elements)]):
        return None
    gathered = size_of([one.row.extent for one in ordered])
    spread = size_of([one.place.extent for one in ordered])
    strided = any(one.scale > 1 for one in ordered)
    if not strided and gathered <= GATHERING_PAYS * spread:
        return None
    replacements = {
        one.row: axis_index(one.place) * one.scale
        + (axis_index(one.element) * one.slope if one.element else 0)
        - one.offset
        for one in ordered
    }
    left = Rewrite(replacements).scalar(load)
    if not isinstance(left, Load) or not all(bound.always for bound in left.bounds):
        return None
    if axes_of(left.index) & set(elements):
        return None
    places = tuple(one.place for one in ordered)
    channels = step.inner[len(elements) :]
    direct = image_of(
        replace(left, bounds=()), (), (*outer, *places), channels, direct_outer=len(outer)
    )
    return Windowed(step, direct, "scattered", ordered) if direct is not None else None


def emit_windowed(
    context: Context, name: str, how: Windowed, packed: PackedRight | None, panels: Panels
) -> list[Part]:
    """Writes the functions of a contraction over windows."""
    kinds = {
        "places": _Places,
        "elements": _Elements,
        "scattered": _Scattered,
        "minimal places": MinimalPlaces,
        "minimal elements": MinimalElements,
    }
    return kinds[how.way](context, name, how, packed, panels).write()


# Rows are places ----------------------------------------------------------------------------------


@final
class _Places(Way):
    """Units are (batch, some outer places, a block along the first of the others)."""

    def write(self) -> list[Part]:
        image = self._image
        block, slots = self._blocks()
        first = image.places[0]
        whole, rest = divmod(first.extent, block)
        outer_blocks = self._outer.extent // slots
        each = whole + bool(rest)
        sizes = {"whole": block} | ({"rest": rest} if rest else {})
        images = slots * max(image.size(size) for size in sizes.values()) * self._bytes
        self._sums = -(-images // 64) * 64
        tile = self._most * self._panels.width * self._bytes
        self._context.workspaces.need_own(self._sums + tile)
        for kind, panel, _, _ in self._panels.kinds():
            self._write_tile_epilogue(kind, panel)
        for label, size in sizes.items():
            self._write_block(label, size, slots)
        code = self._context.module.function(self._name, PART_PARAMETERS)
        table, thread, begin, end = code.parameters
        loop = code.begin_loop(begin, end)
        number = code.binary("urem", loop.index, constant(each, I64))
        remaining = code.binary("udiv", loop.index, constant(each, I64))
        outer = code.binary("urem", remaining, constant(outer_blocks, I64))
        batch = code.binary("udiv", remaining, constant(outer_blocks, I64))
        outer = code.multiply(outer, constant(slots, I64))
        start = code.multiply(number, constant(block, I64))
        for label, condition in (("whole", "slt"), ("rest", "eq")):
            if label in sizes:
                with code.when(code.compare(condition, number, constant(whole, I64))):
                    operands = (table, thread, batch, outer, start)
                    code.call_void(f"{self._name}_{label}", *operands)
        code.end_loop(loop)
        code.finish()
        return [self._part(self._batch.extent * outer_blocks * each)]

    def _blocks(self) -> tuple[int, int]:
        """How many places along the first axis are a block, and how many outer places a unit."""
        image, processor = self._image, self._context.processor
        first = image.places[0].extent
        rows = size_of([axis.extent for axis in image.places[1:]])
        room = processor.level2_bytes // IMAGE_SHARE // self._bytes
        units = self._batch.extent * self._outer.extent
        block = first
        while block > 1 and (
            image.size(block) > room
            or (
                block * rows >= 2 * ROWS_OF_UNIT
                and units * -(-first // block) < 4 * processor.threads
            )
        ):
            block = -(-block // 2)
        if block < first:
            return block, 1
        fitting = ROWS_OF_UNIT // (first * rows)
        if image.size(block):
            fitting = min(fitting, room // image.size(block))
        fitting = min(fitting, units // (2 * processor.threads))
        return block, divisor_near(self._outer.extent, fitting)

    def _write_tile_epilogue(self, kind: str, panel: Panel) -> None:
        places, width = self._image.places, panel.width
        pitches = [0] * (len(places) - 1) + [width]
        if len(places) > 1:
            pitches[-2] = places[-1].extent * width
        self._write_epilogue(f"{self._name}_{kind}", panel, places, pitches)

    def _write_block(self, label: str, block: int, slots: int) -> None:
        image = self._image
        points = self._begin(f"{self._name}_{label}", ("thread", "batch", "outer", "start"))
        code = points.code
        table, _, batch, outer, start = code.parameters
        own = self._own(code)
        sums = code.offset(own, self._sums, "i8")
        end = code.add(outer, constant(slots, I64))
        size = image.size(block)
        with points.bound(self._batch, batch):
            if not image.is_direct:
                with points.loop(self._outer, (), outer, end) as loop:
                    past = code.subtract(loop.index, outer)
                    target = address(code, own, [(past, size)], self._element)
                    pack_image(points, image, block, start, target, self._panels.lanes)
                    code.end_loop(loop)
            strides, skipped = image.moves(block)
            along = [strides[axis] for axis in image.places]
            loops = merged([(axis.extent, strides[axis]) for axis in self._step.inner])
            extents = (block, *(axis.extent for axis in image.places[1:]))
            tiles = RowTiles(extents, self._most)

            def over_panel(kind: str, panel: Panel, number: Value, column: Value) -> None:
                right = self._right(code, number)
                with points.loop(self._outer, (), outer, end) as loop:
                    if image.is_direct:
                        left = address(
                            code, self._image_start(points), [(start, along[0])], self._element
                        )
                    else:
                        past = code.subtract(loop.index, outer)
                        left = address(code, own, [(past, size)], self._element)
                        left = code.offset(left, skipped, self._element)

                    def one_tile(size: tuple[int, int], firsts: list[Value]) -> None:
                        at = address(
                            code, left, list(zip(firsts, along, strict=True)), self._element
                        )
                        rows = offsets(size, along)
                        tile = Tile(
                            rows,
                            tuple(number * panel.width for number in range(len(rows))),
                            panel.vectors,
                            panel.lanes,
                            panel.last_lanes,
                            self._element,
                            loops,
                            panel.width,
                            fresh=True,
                        )
                        kernel = emit_tile(self._context.module, tile)
                        code.call_void(kernel, at, right, sums)
                        counts = [constant(1, I64)] * (len(firsts) - 2)
                        counts += [constant(size[0], I64)] * (len(firsts) > 1)
                        counts.append(constant(size[1], I64))
                        absolute = [code.add(firsts[0], start), *firsts[1:]]
                        code.call_void(
                            f"{self._name}_{kind}_epilogue",
                            *(table, sums, batch, loop.index, *absolute, *counts, column),
                        )

                    tiles.emit(code, constant(0, I64), constant(tiles.count, I64), one_tile)
                    code.end_loop(loop)

            self._for_panels(points, over_panel)
        code.finish()


# Rows are elements --------------------------------------------------------------------------------


@final
class _Elements(Way):
    """Units are (batch, panel of columns, cut of the rows, block of the outer places).

    Where there are few tiles there are several blocks, each with sums of its own, which are added
    up at the end.
    """

    def write(self) -> list[Part]:
        step, image = self._step, self._image
        row, of_rows = flattened(step.rows, "m")
        change = Rewrite(of_rows)
        self._step = replace(step, stores=tuple(change.store(store) for store in step.stores))
        self._matrix = as_matrix(replace(step, inner=(*image.outer, *image.places)))
        self._row = row
        block, slots = self._blocks()
        self._block, self._slots = block, slots
        first = image.places[0]
        whole, rest = divmod(first.extent, block)
        self._sizes = {"whole": (block, whole)} | ({"rest": (rest, 1)} if rest else {})
        images = slots * max(image.size(size) for size, _ in self._sizes.values()) * self._bytes
        self._rights = -(-images // 64) * 64
        self._places_of_run = size_of([axis.extent for axis in image.places[1:]])
        chunk = slots * block * self._places_of_run
        panel_bytes = chunk * self._panels.width * self._bytes
        self._sums = self._rights + -(-panel_bytes // 64) * 64
        strides, _ = image.moves(block)
        runs = merged([(axis.extent, strides[axis]) for axis in step.rows])
        self._tiles = RowTiles(tuple(extent for extent, _ in runs), self._most)
        rows_bytes = row.extent * self._panels.width * self._bytes
        self._context.workspaces.need_own(self._sums + rows_bytes)
        matrices = self._batch.extent * self._panels.count
        cuts, self._sums_of = self._cuts(matrices)
        if self._sums_of > 1:
            self._context.need_shared(self._sums_of * matrices * rows_bytes)
        for kind, panel, _, _ in self._panels.kinds():
            self._write_epilogue(f"{self._name}_{kind}", panel, [row], [panel.width])
            for label, (size, _) in self._sizes.items():
                self._write_chunk(f"{self._name}_{kind}_{label}", panel, size)
            self._write_panel(kind, panel)
        part = self._over_units(self._name, "sums", cuts, self._sums_of)
        if self._sums_of == 1:
            return [part]
        for kind, panel, _, _ in self._panels.kinds():
            self._write_total(kind, panel)
        shared = frozenset([self._context.SHARED])
        total = self._over_units(f"{self._name}_total", "total", 1, 1)
        cycles = float(self._sums_of * matrices * row.extent * self._panels.vectors)
        return [
            replace(part, writes=shared),
            replace(total, work=Work(total.work.items, cycles), reads=total.reads | shared),
        ]

    def _over_units(self, name: str, what: str, cuts: int, blocks: int) -> Part:
        """A part that calls `what(table, thread, batch, panel, low, high, block)` for all units."""
        code = self._context.module.function(name, PART_PARAMETERS)
        table, thread, begin, end = code.parameters
        loop = code.begin_loop(begin, end)
        remaining = loop.index
        numbers: list[Value] = []
        for extent in (blocks, cuts, self._panels.count):
            numbers.append(code.binary("urem", remaining, constant(extent, I64)))
            remaining = code.binary("udiv", remaining, constant(extent, I64))
        block, cut, panel = numbers
        low = start_of_part(code, cut, self._tiles.count, cuts)
        high = start_of_part(code, code.add(cut, constant(1, I64)), self._tiles.count, cuts)
        for kind, _, condition, limit in self._panels.kinds():
            with code.when(code.compare(condition, panel, constant(limit, I64))):
                operands = (table, thread, remaining, panel, low, high, block)
                code.call_void(f"{self._name}_{kind}_{what}", *operands)
        code.end_loop(loop)
        code.finish()
        units = self._batch.extent * self._panels.count * cuts * blocks
        return replace(self._part(units), function=name)

    def _blocks(self) -> tuple[int, int]:
        """How many places along the first axis are a chunk, and how many outer ones at once."""
        image = self._image
        first = image.places[0].extent
        run = size_of([axis.extent for axis in image.places[1:]])
        room = self._context.processor.level2_bytes // IMAGE_SHARE // self._bytes

        def taken(block: int) -> int:
            return image.size(block) + block * run * self._panels.width

        block = first
        while block > 1 and taken(block) > room and block * run > SHORTEST_CHUNK:
            block = -(-block // 2)
        if block < first or (image.is_direct and self._outer_stride() is None):
            return block, 1
        fitting = min(SHORTEST_CHUNK // (first * run), room // taken(block))
        return block, divisor_near(self._outer.extent, fitting)

    def _cuts(self, matrices: int) -> tuple[int, int]:
        """In how many pieces rows are cut, and outer places, so that threads have as much to do.

        Each piece makes an image of its own, where numbers are not read directly. Into how many
        sums a result is cut depends on the sizes alone, and not on the number of threads.
        """
        direct, tiles = self._image.is_direct, self._tiles.count
        if matrices * tiles < UNITS_OF_FEW_TILES:
            cuts = tiles if direct else 1
            blocks = -(-UNITS_OF_FEW_TILES // (matrices * cuts))
            blocks = min(blocks, self._outer.extent // self._slots)
            if blocks > 1:
                return cuts, blocks
        threads = self._context.processor.threads
        wanted = 4 * threads if direct else 2 * threads
        are_equal = matrices % threads == 0 and self._panels.columns % self._panels.width == 0
        if matrices >= 4 * threads or are_equal:
            return 1, 1
        return min(tiles, -(-wanted // matrices)), 1

    def _write_panel(self, kind: str, panel: Panel) -> None:
        """`sums(table, thread, batch, panel, low, high, block)`: all chunks, then the rows."""
        name = f"{self._name}_{kind}"
        points = self._begin(f"{name}_sums", _UNIT)
        code = points.code
        table, thread, batch, number, low, high, block = code.parameters
        column = code.multiply(number, constant(self._panels.width, I64))
        first, end = self._row_range(code, low, high)
        if self._sums_of == 1:
            sums = code.offset(self._own(code), self._sums, "i8")
        else:
            sums = self._waiting(code, batch, number, block)
        zero = constant(0, Type(self._element, panel.lanes))
        loop = code.begin_loop(first, end)
        here = address(code, sums, [(loop.index, panel.width)], self._element)
        for vector in range(panel.vectors):
            code.store(zero, code.offset(here, vector * panel.lanes, self._element))
        code.end_loop(loop)
        groups = self._outer.extent // self._slots
        following = code.add(block, constant(1, I64))
        loop = code.begin_loop(
            start_of_part(code, block, groups, self._sums_of),
            start_of_part(code, following, groups, self._sums_of),
        )
        outer = code.multiply(loop.index, constant(self._slots, I64))
        for label, (_, count) in self._sizes.items():
            chunk = f"{name}_{label}"
            operands = (table, thread, batch, outer)
            if label == "whole":
                inside = code.begin_loop(0, count)
                start = code.multiply(inside.index, constant(self._block, I64))
                code.call_void(chunk, *operands, start, column, low, high, sums)
                code.end_loop(inside)
            else:
                start = constant(self._sizes["whole"][1] * self._block, I64)
                code.call_void(chunk, *operands, start, column, low, high, sums)
        code.end_loop(loop)
        if self._sums_of == 1:
            self._finish_rows(code, name, panel, sums, first, end)
        code.finish()

    def _finish_rows(
        self, code: Function, name: str, panel: Panel, sums: Value, first: Value, end: Value
    ) -> None:
        """The epilogue of some rows."""
        table, _, batch, number, *_ = code.parameters
        column = code.multiply(number, constant(self._panels.width, I64))
        start = address(code, sums, [(first, panel.width)], self._element)
        numbers = (batch, constant(0, I64), first, code.subtract(end, first), column)
        code.call_void(f"{name}_epilogue", table, start, *numbers)

    def _waiting(self, code: Function, batch: Value, panel: Value, block: Value) -> Value:
        """Where the sums of a block wait."""
        number = code.add(code.multiply(batch, constant(self._panels.count, I64)), panel)
        number = code.add(code.multiply(number, constant(self._sums_of, I64)), block)
        shared = self._context.address(code, self._context.SHARED)
        size = self._row.extent * self._panels.width
        return address(code, shared, [(number, size)], self._element)

    def _write_total(self, kind: str, panel: Panel) -> None:
        """`total(table, thread, batch, panel, low, high, block)`: adds up the blocks' sums."""
        name = f"{self._name}_{kind}"
        code = self._begin(f"{name}_total", _UNIT).code
        _, _, batch, number, low, high, zero = code.parameters
        blocks = self._waiting(code, batch, number, zero)
        totals = code.offset(self._own(code), self._sums, "i8")
        first, end = self._row_range(code, low, high)
        rows = code.begin_loop(first, end)
        vector = Type(self._element, panel.lanes)
        source = address(code, blocks, [(rows.index, panel.width)], self._element)
        target = address(code, totals, [(rows.index, panel.width)], self._element)
        size = self._row.extent * self._panels.width
        for skipped in range(0, panel.vectors * panel.lanes, panel.lanes):
            total = constant(0, vector)
            for block in range(self._sums_of):
                place = code.offset(source, block * size + skipped, self._element)
                total = code.add(total, code.load(place, vector))
            code.store(total, code.offset(target, skipped, self._element))
        code.end_loop(rows)
        self._finish_rows(code, name, panel, totals, first, end)
        code.finish()

    def _row_range(self, code: Function, low: Value, high: Value) -> tuple[Value, Value]:
        """The rows of some tiles."""
        return self._tiles.row_of(code, low), self._tiles.row_of(code, high)

    def _write_chunk(self, name: str, panel: Panel, block: int) -> None:
        """`chunk(table, thread, batch, outer, start, column, low, high, sums)`: adds places."""
        image = self._image
        numbers = ("thread", "batch", "outer", "start", "column", "low", "high")
        parameters = (("table", POINTER), *((number, I64) for number in numbers))
        used = reads_of(self._step) | writes_of(self._step)
        points = self._context.begin(name, (*parameters, ("sums", POINTER)), used)
        code = points.code
        _, _, batch, outer, start, column, low, high, sums = code.parameters
        own = self._own(code)
        size, run = image.size(block), self._places_of_run
        strides, skipped = image.moves(block)
        end = code.add(outer, constant(self._slots, I64))
        whole_run = constant(image.places[0].extent * run, I64)
        first = code.add(code.multiply(outer, whole_run), code.multiply(start, constant(run, I64)))
        with points.bound(self._batch, batch):
            if image.is_direct:
                with points.bound(self._outer, outer):
                    left = self._image_start(points)
                left = address(code, left, [(start, strides[image.places[0]])], self._element)
                slot = self._outer_stride() or 0
            else:
                with points.loop(self._outer, (), outer, end) as loop:
                    past = code.subtract(loop.index, outer)
                    target = address(code, own, [(past, size)], self._element)
                    pack_image(points, image, block, start, target, panel.lanes)
                    code.end_loop(loop)
                left, slot = code.offset(own, skipped, self._element), size
            plain = as_plain(self._matrix.right, self._matrix.column, self._matrix)
            if plain is not None and plain.stride == 1 and panel.last == panel.lanes:
                place = points.place(plain.start).start
                right = code.offset(points.base(plain.buffer), place, self._element)
                right = address(
                    code, right, [(first, plain.inner_stride), (column, 1)], self._element
                )
                right_stride = plain.inner_stride
            else:
                right, right_stride = code.offset(own, self._rights, "i8"), panel.width
                count = self._slots * block * run
                pack_panel(points, self._matrix, panel, right, column, first, count)
        loops = merged(
            [
                (self._slots, slot),
                (block, strides[image.places[0]]),
                *((axis.extent, strides[axis]) for axis in image.places[1:]),
            ]
        )
        runs = merged([(axis.extent, strides[axis]) for axis in self._elements()])
        along = [stride for _, stride in runs]
        pitches = self._tiles.pitches(panel.width)

        def one_tile(size: tuple[int, int], firsts: list[Value]) -> None:
            tile = Tile(
                offsets(size, along),
                offsets(size, pitches),
                panel.vectors,
                panel.lanes,
                panel.last_lanes,
                self._element,
                loops,
                right_stride,
            )
            at = address(code, left, list(zip(firsts, along, strict=True)), self._element)
            to = address(code, sums, list(zip(firsts, pitches, strict=True)), self._element)
            code.call_void(emit_tile(self._context.module, tile), at, right, to)

        self._tiles.emit(code, low, high, one_tile)
        code.finish()

    def _elements(self) -> Sequence[Axis]:
        return self._image.elements

    def _outer_stride(self) -> int | None:
        """Between two outer places of a view that is read directly, if it is always the same."""
        load = self._image.view
        assert isinstance(load, Load)
        return stride_along(load.index, self._outer)


# What functions of units are called with, beside the table.
_UNIT = ("thread", "batch", "panel", "low", "high", "block")


# Scattered ----------------------------------------------------------------------------------------


@final
class _Scattered(Way):
    """Units are (batch, outer place); each has the sums of all its rows in an image."""

    def write(self) -> list[Part]:
        lengths = [one.length for one in self._spreads]
        for kind, panel, _, _ in self._panels.kinds():
            pitches = [size_of(lengths[n + 1 :]) * panel.width for n in range(len(lengths))]
            rows = [one.row for one in self._spreads]
            self._write_epilogue(f"{self._name}_{kind}", panel, rows, pitches)
        bytes_ = size_of(lengths) * self._panels.width * self._bytes
        self._context.workspaces.need_own(bytes_)
        self._write_unit(lengths)
        code = self._context.module.function(self._name, PART_PARAMETERS)
        table, thread, begin, end = code.parameters
        loop = code.begin_loop(begin, end)
        count = constant(self._outer.extent, I64)
        outer = code.binary("urem", loop.index, count)
        batch = code.binary("udiv", loop.index, count)
        code.call_void(f"{self._name}_unit", table, thread, batch, outer)
        code.end_loop(loop)
        code.finish()
        return [self._part(self._batch.extent * self._outer.extent)]

    def _write_unit(self, lengths: Sequence[int]) -> None:
        points = self._begin(f"{self._name}_unit", ("thread", "batch", "outer"))
        code = points.code
        table, _, batch, outer = code.parameters
        sums = self._own(code)
        image = self._image
        strides, _ = image.moves(image.places[0].extent)
        elements = [one for one in self._step.inner if one not in image.elements]
        channels = [axis for axis in self._step.inner if axis in image.elements]
        loops = merged([(axis.extent, strides[axis]) for axis in channels])
        depth = size_of([axis.extent for axis in channels])
        along = [strides[axis] for axis in image.places]
        tiles = RowTiles(tuple(axis.extent for axis in image.places), self._most)
        with points.bound(self._batch, batch), points.bound(self._outer, outer):
            left = self._image_start(points)

            def over_panel(kind: str, panel: Panel, number: Value, column: Value) -> None:
                right = self._right(code, number)
                vector = Type(self._element, panel.lanes)
                fill = code.begin_loop(0, size_of(lengths) * panel.width, panel.lanes)
                code.store(constant(0, vector), code.offset(sums, fill.index, self._element))
                code.end_loop(fill)
                pitches = [size_of(lengths[n + 1 :]) * panel.width for n in range(len(lengths))]
                steps = [
                    one.scale * pitch for one, pitch in zip(self._spreads, pitches, strict=True)
                ]
                taps = code.begin_loop(0, size_of([axis.extent for axis in elements]))
                here = address(code, right, [(taps.index, depth * panel.width)], self._element)
                shifted = self._shifted(code, sums, taps.index, elements, pitches)

                def one_tile(size: tuple[int, int], firsts: list[Value]) -> None:
                    tile = Tile(
                        offsets(size, along),
                        offsets(size, steps),
                        panel.vectors,
                        panel.lanes,
                        panel.last_lanes,
                        self._element,
                        loops,
                        panel.width,
                    )
                    at = address(code, left, list(zip(firsts, along, strict=True)), self._element)
                    to = address(
                        code, shifted, list(zip(firsts, steps, strict=True)), self._element
                    )
                    code.call_void(emit_tile(self._context.module, tile), at, here, to)

                tiles.emit(code, constant(0, I64), constant(tiles.count, I64), one_tile)
                code.end_loop(taps)
                zeros = [constant(0, I64) for _ in lengths]
                counts = [constant(one.row.extent, I64) for one in self._spreads]
                margin = sum(
                    one.offset * pitch for one, pitch in zip(self._spreads, pitches, strict=True)
                )
                code.call_void(
                    f"{self._name}_{kind}_epilogue",
                    *(table, code.offset(sums, margin, self._element), batch, outer),
                    *(*zeros, *counts, column),
                )

            self._for_panels(points, over_panel)
        code.finish()

    def _shifted(
        self,
        code: Function,
        sums: Value,
        tap: Value,
        elements: Sequence[Axis],
        pitches: Sequence[int],
    ) -> Value:
        """Where the sums of the first place begin for one element of the windows."""
        slopes = {
            one.element: one.slope * pitch
            for one, pitch in zip(self._spreads, pitches, strict=True)
        }
        for axis in reversed(elements):
            extent = constant(axis.extent, I64)
            position = code.binary("urem", tap, extent)
            tap = code.binary("udiv", tap, extent)
            sums = address(code, sums, [(position, slopes[axis])], self._element)
        return sums
