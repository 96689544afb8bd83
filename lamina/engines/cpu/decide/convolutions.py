"""By which algorithm a contraction over windows is computed, and its blocks and cuts."""

from __future__ import annotations

from dataclasses import replace

from lamina.codegen.filtering import RESULTS
from lamina.codegen.matrix import Matrix, as_matrix, right_alone
from lamina.codegen.strides import stride_along
from lamina.engines.cpu.decide.images import copied_along
from lamina.engines.cpu.decide.packing import (
    can_be_read_in_vectors,
    packing_of_all,
    packing_of_some,
)
from lamina.engines.cpu.decide.panels import PackedRight, Panels
from lamina.engines.cpu.decide.row_tiles import RowTiles, merged
from lamina.engines.cpu.decide.schedule import (
    DIRECT,
    PACKED,
    PREPACKED,
    TRANSFORMED,
    WindowSchedule,
)
from lamina.engines.cpu.decide.tiles import UNROLLED, most_rows
from lamina.engines.cpu.decide.vectors import are_short
from lamina.engines.cpu.decide.windows import (
    COL2IM,
    IMPLICIT_GEMM,
    WEIGHT_GRADIENT,
    WINOGRAD,
    Windowed,
    filtering_of,
    readings,
)
from lamina.engines.cpu.decide.winograd import (
    channels_at_once,
    chunks_of,
    is_winograd,
    multiplications_left,
    packed_weights,
    tiles_that_fit,
    winograd_pays,
)
from lamina.engines.cpu.decide.work import Work
from lamina.engines.cpu.processor import Processor
from lamina.program.scalar import Load
from lamina.program.steps import Contraction
from lamina.program.windows import WEIGHT_GRADIENT as OF_WEIGHTS
from lamina.program.windows import loaded
from lamina.shapes import size_of

# A work item has about so many rows, so that a panel that comes from a far cache is worth it.
ROWS_OF_ITEM = 128
# The numbers of an image, or of some images, take so much of the second cache.
IMAGE_SHARE = 3
# So many work items there are at least where there are few tiles, whatever the number of workers.
ITEMS_OF_FEW_TILES = 16
# Sums wait in memory while so many K at least are added.
SHORTEST_CHUNK = 256
# col2im loads and stores sums more often: gathering may do so much more work.
GATHERING_PAYS = 1.25


def schedule_windows(
    step: Contraction, panels: Panels, processor: Processor
) -> WindowSchedule | None:
    """How a contraction over windows is computed; None if it is none."""
    if len(step.m) < 2 and len(step.k) < 2:
        return None
    known = readings(step)
    work = float(size_of(step.extents))
    spread = known.get(COL2IM)
    if spread is not None and not _col2im_pays(spread):
        spread = None
    if spread is not None:
        work *= size_of([one.place.extent for one in spread.spreads])
        work /= size_of([one.row.extent for one in spread.spreads])
    for algorithm, how in known.items():
        if is_winograd(algorithm) and winograd_pays(how, algorithm, panels, work):
            return schedule_by(how, algorithm, panels, processor)
    if spread is not None:
        return schedule_by(spread, COL2IM, panels, processor)
    algorithm = WEIGHT_GRADIENT if _all_sums_wait(step) else IMPLICIT_GEMM
    how = known.get(algorithm)
    return None if how is None else schedule_by(how, algorithm, panels, processor)


def _all_sums_wait(step: Contraction) -> bool:
    """Whether K runs outermost, while the sums of all rows wait, and not within each row.

    It does for gradients of weights: the program says of windows that slide whether positions are
    summed up. Where none slide, as where windows lie side by side, both algorithms compute the
    contraction, and nothing is to be known of windows. The one is taken whose blocks are whole runs
    of memory: blocks are cut out of the positions, so these must not be the axis along which
    numbers lie side by side. That one is among the rows of a gradient, and in K otherwise.
    """
    kinds = {window.kind for window in step.windows_in("left")}
    if kinds:
        return OF_WEIGHTS in kinds
    load = loaded(step.left)
    terms = load.index.terms if load is not None else ()
    return any(stride == 1 and atom in step.m for atom, stride in terms)


def _col2im_pays(how: Windowed) -> bool:
    """Whether spreading is less work than gathering."""
    gathered = size_of([one.row.extent for one in how.spreads])
    spread = size_of([one.place.extent for one in how.spreads])
    return any(one.scale > 1 for one in how.spreads) or gathered > GATHERING_PAYS * spread


def schedule_by(
    how: Windowed, algorithm: str, panels: Panels, processor: Processor
) -> WindowSchedule:
    """How an algorithm computes it: blocks and cuts that fit the caches and leave work for all."""
    rows, channels = most_rows(processor, panels.vectors), 0
    row_cuts = partial_sums = 1
    if algorithm == IMPLICIT_GEMM:
        block, images = _blocks(how, processor)
    elif algorithm == WEIGHT_GRADIENT:
        block, images = _chunks(how, panels, processor)
        row_cuts, partial_sums = _cuts(how, panels, rows, (block, images), processor)
    elif algorithm == COL2IM:
        block, images = how.image.places[0].extent, 1
    elif algorithm in WINOGRAD.values():
        channels = how.image.sides[-1].axis.extent
        block, images = _tile_chunks(how, channels, panels, rows, processor)
    else:
        channels = channels_at_once(how, panels, processor)
        fitting = tiles_that_fit(how, channels, panels, rows, processor)
        high, wide = (axis.extent // RESULTS for axis in how.image.places)
        block, images = _even(how, min(high, max(fitting // wide, 1)), fitting // (high * wide))
        partial_sums = _partial_sums(how, panels, channels, (block, images))
    return window_schedule(
        how,
        algorithm,
        panels,
        processor,
        rows=rows,
        block=block,
        images=images,
        row_cuts=row_cuts,
        partial_sums=partial_sums,
        channels=channels,
    )


def window_schedule(
    how: Windowed,
    algorithm: str,
    panels: Panels,
    processor: Processor,
    *,
    rows: int,
    block: int,
    images: int,
    row_cuts: int = 1,
    partial_sums: int = 1,
    channels: int = 0,
) -> WindowSchedule:
    """A schedule of what was decided, with the work that follows from it."""
    step = how.step
    packing, packed = None, None
    if algorithm in WINOGRAD.values():
        right, packed = PREPACKED, packed_weights(how, panels)
    elif algorithm in (IMPLICIT_GEMM, COL2IM):
        in_order = packing_of_all(as_matrix(right_alone(step)), panels.lanes)
        right, packed = PREPACKED, PackedRight(panels, step.extents[3], in_order)
    elif algorithm == WEIGHT_GRADIENT:
        matrix = matrix_of_positions(how)
        right = DIRECT if can_be_read_in_vectors(matrix) else PACKED
        packing = packing_of_some(matrix)
    else:
        right = TRANSFORMED
    schedule = WindowSchedule(
        algorithm,
        step.extents,
        panels,
        rows,
        block,
        images,
        row_cuts,
        partial_sums,
        channels,
        _copied(how, algorithm, block, channels, panels),
        right,
        packing,
        packed,
        UNROLLED,
        are_short(store.value for store in step.stores),
        (),
    )
    return replace(schedule, works=_works(how, schedule, processor))


def _copied(how: Windowed, algorithm: str, block: int, channels: int, panels: Panels) -> int | None:
    """The side of the image of a block along which vectors are copied, if one is made."""
    if how.image.is_direct:
        return None
    lengths = how.image.lengths(block * RESULTS if is_winograd(algorithm) else block)
    if is_winograd(algorithm):
        lengths[-1] = channels
    return copied_along(lengths, panels.lanes)


def matrix_of_positions(how: Windowed) -> Matrix:
    """The right operand of a weight gradient, K running over the positions of the image."""
    inner = (*how.image.outer, *how.image.places)
    return as_matrix(replace(right_alone(how.step), k=inner))


# Blocks and cuts ----------------------------------------------------------------------------------


def _blocks(how: Windowed, processor: Processor) -> tuple[int, int]:
    """How many positions along the first axis are a block, and how many outer ones an item."""
    image = how.image
    first = image.places[0].extent
    rows = size_of([axis.extent for axis in image.places[1:]])
    room = processor.level2_bytes // IMAGE_SHARE // how.step.dtype.itemsize
    items = how.step.batch[0].extent * how.outer.extent
    block = first
    while block > 1 and (
        image.size(block) > room
        or (block * rows >= 2 * ROWS_OF_ITEM and items * -(-first // block) < 4 * processor.threads)
    ):
        block = -(-block // 2)
    if block < first:
        return block, 1
    fitting = ROWS_OF_ITEM // (first * rows)
    if image.size(block):
        fitting = min(fitting, room // image.size(block))
    fitting = min(fitting, items // (2 * processor.threads))
    return block, divisor_near(how.outer.extent, fitting)


def _chunks(how: Windowed, panels: Panels, processor: Processor) -> tuple[int, int]:
    """How many positions along the first axis are a chunk, and how many outer ones at once."""
    image = how.image
    first = image.places[0].extent
    run = size_of([axis.extent for axis in image.places[1:]])
    room = processor.level2_bytes // IMAGE_SHARE // how.step.dtype.itemsize

    def taken(block: int) -> int:
        return image.size(block) + block * run * panels.width

    block = first
    while block > 1 and taken(block) > room and block * run > SHORTEST_CHUNK:
        block = -(-block // 2)
    if block < first or not can_have_images(how):
        return block, 1
    fitting = min(SHORTEST_CHUNK // (first * run), room // taken(block))
    return block, divisor_near(how.outer.extent, fitting)


def can_have_images(how: Windowed) -> bool:
    """Whether several outer positions can be read at once."""
    return not how.image.is_direct or outer_stride(how) is not None


def outer_stride(how: Windowed) -> int | None:
    """Between two outer positions of a view that is read directly, if it is always the same."""
    load = how.image.view
    return stride_along(load.index, how.outer) if isinstance(load, Load) else None


def row_tiles_of(how: Windowed, block: int, rows: int) -> RowTiles:
    """The tiles of the rows of a weight gradient."""
    strides, _ = how.image.moves(block)
    runs = merged([(axis.extent, strides[axis]) for axis in how.step.m])
    return RowTiles(tuple(extent for extent, _ in runs), rows)


def _cuts(
    how: Windowed, panels: Panels, rows: int, chunk: tuple[int, int], processor: Processor
) -> tuple[int, int]:
    """Into how many items the rows of a panel are cut, and into how many partial sums a result.

    Each item makes an image of its own, where numbers are not read directly. How many partial sums
    there are depends on the sizes alone, and not on the number of workers.
    """
    block, images = chunk
    matrices = how.step.batch[0].extent * panels.count
    direct, tiles = how.image.is_direct, row_tiles_of(how, block, rows).count
    if matrices * tiles < ITEMS_OF_FEW_TILES:
        cuts = tiles if direct else 1
        sums = min(-(-ITEMS_OF_FEW_TILES // (matrices * cuts)), how.outer.extent // images)
        if sums > 1:
            return cuts, sums
    threads = processor.threads
    wanted = 4 * threads if direct else 2 * threads
    are_equal = matrices % threads == 0 and panels.columns % panels.width == 0
    if matrices >= 4 * threads or are_equal:
        return 1, 1
    return min(tiles, -(-wanted // matrices)), 1


def _tile_chunks(
    how: Windowed, channels: int, panels: Panels, rows: int, processor: Processor
) -> tuple[int, int]:
    """So many tiles of a convolution as fit the cache, if there are some for all workers."""
    threads = processor.threads
    fitting = tiles_that_fit(how, channels, panels, rows, processor)
    high, wide = (axis.extent // RESULTS for axis in how.image.places)
    items = how.step.batch[0].extent * how.outer.extent
    block = min(high, max(fitting // wide, 1))
    while block > 1 and items * -(-high // block) < 4 * threads:
        block = -(-block // 2)
    return _even(how, block, min(fitting // (high * wide), items // (2 * threads)))


def _even(how: Windowed, block: int, images: int) -> tuple[int, int]:
    """Chunks of about so many rows of tiles, or of at most so many outer positions."""
    high = how.image.places[0].extent // RESULTS
    if block < high:
        return -(-high // -(-high // block)), 1
    return high, divisor_near(how.outer.extent, images)


def _partial_sums(how: Windowed, panels: Panels, channels: int, chunk: tuple[int, int]) -> int:
    """Into how many partial sums the gradients of Winograd's weights are cut."""
    chunks = how.outer.extent // chunk[1] * chunks_of(how, *chunk).each
    pieces = how.image.sides[-1].axis.extent // channels
    items = how.step.batch[0].extent * panels.count * pieces
    return min(chunks, -(-ITEMS_OF_FEW_TILES // items))


def divisor_near(number: int, wanted: int) -> int:
    """The largest divisor of a number that is not above the wanted one."""
    return max(one for one in range(1, max(wanted, 1) + 1) if number % one == 0)


# Work ---------------------------------------------------------------------------------------------


def _works(how: Windowed, schedule: WindowSchedule, processor: Processor) -> tuple[Work, ...]:
    """What the kernels of a contraction over windows take."""
    b, m, n, k = how.step.extents
    panels, algorithm = schedule.panels, schedule.algorithm
    matrices, vectors = b * panels.count, -(-n // panels.lanes)
    cycles = float(vectors * b * m * k) * (1.0 if processor.fused else 2.0)
    outer = how.outer.extent // schedule.images
    blocks = -(-how.image.places[0].extent // schedule.block)
    if algorithm == IMPLICIT_GEMM:
        return (Work(b * outer * blocks, cycles),)
    if algorithm == COL2IM:
        return (Work(b * outer, cycles),)
    if algorithm == WEIGHT_GRADIENT:
        sums = Work(matrices * schedule.row_cuts * schedule.partial_sums, cycles)
        total = Work(matrices, float(schedule.partial_sums * matrices * m * panels.vectors))
        return (sums,) if schedule.partial_sums == 1 else (sums, total)
    cycles *= multiplications_left(how)
    if algorithm in WINOGRAD.values():
        return (Work(b * outer * chunks_of(how, schedule.block, schedule.images).each, cycles),)
    channels, filtering = how.image.sides[-1].axis.extent, filtering_of(how.image)
    items = matrices * (channels // schedule.channels) * schedule.partial_sums
    finishing = matrices * channels * panels.vectors
    finishing *= filtering.products * (schedule.partial_sums + filtering.window)
    groups = -(-channels // panels.lanes)
    return Work(items, cycles), Work(matrices * groups, float(finishing))
