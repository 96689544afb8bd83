"""The algorithm of a contraction over windows, its blocks, and how M and sums are split."""

from __future__ import annotations

from dataclasses import replace

from lamina.base.shapes import size_of
from lamina.codegen.axes import stride_along
from lamina.codegen.filtering import FILTERINGS
from lamina.codegen.matrix import Matrix, as_matrix, right_alone, stored
from lamina.engines.simd.decide.amx import amx_cycles, amx_work
from lamina.engines.simd.decide.loops import are_wide
from lamina.engines.simd.decide.packing import (
    PackedRight,
    Panels,
    can_be_read_in_vectors,
    packing_of_all,
    packing_of_some,
)
from lamina.engines.simd.decide.schedule import (
    DIRECT,
    PACKED,
    PREPACKED,
    TRANSFORMED,
    WindowChoices,
    WindowSchedule,
    choices_of,
)
from lamina.engines.simd.decide.tiles import AMX_M, UNROLLED, MTiles, largest_tile_m, merged
from lamina.engines.simd.decide.windows import (
    COL2IM,
    IMPLICIT_GEMM,
    WEIGHT_GRADIENT,
    WINOGRAD,
    Windowed,
    paired_readings,
    readings,
)
from lamina.engines.simd.decide.winograd import (
    divisor_near,
    packed_weights,
    winograd_choices,
    winograd_work,
    winograd_works,
)
from lamina.engines.simd.decide.work import Work
from lamina.engines.simd.processor import Processor
from lamina.program.scalar import Load
from lamina.program.steps import Contraction
from lamina.program.windows import WEIGHT_GRADIENT as OF_WEIGHTS
from lamina.program.windows import loaded

# About so many rows in a work item make loading a panel from a far cache pay.
ITEM_M = 128
# The images of a work item take 1 / this of the L2 cache.
IMAGE_SHARE = 3
# A weight gradient with fewer register tiles is split along K into about so many work items, for
# any number of threads; with pairs of bfloat16 one with fewer panels, whose items copy images.
ITEMS_OF_FEW_TILES, ITEMS_OF_FEW_PANELS = 16, 8
# The fewest k that are summed before sums are stored to memory.
SHORTEST_CHUNK = 256
# Implicit GEMM is taken up to this ratio of its work to col2im's, because col2im loads and stores
# sums more often.
GATHERING_PAYS = 1.25


def schedule_windows(
    step: Contraction, panels: Panels, processor: Processor, *, paired: bool, is_rounded: bool
) -> WindowSchedule | None:
    """The schedule of a contraction over windows; None if no algorithm here computes it.

    With `paired`, algorithms multiply pairs of bfloat16 if they can. If `is_rounded`, an operand
    was rounded to 16 bits, next to which the errors of Winograd's tiles of 4x4 are small.
    """
    if len(step.m) < 2 and len(step.k) < 2:
        return None
    algorithms = readings(step) | (paired_readings(step) if paired else {})
    work = float(size_of(step.extents))
    without = WEIGHT_GRADIENT if k_runs_outermost(step) else IMPLICIT_GEMM
    direct = algorithms.get(without)
    if direct is not None and direct.paired:
        work /= 2
    spread = algorithms.get(COL2IM)
    if spread is not None:
        windows = spread.scattered
        gathered = size_of([window.extent for window in windows])
        added = size_of([axis.extent for axis in spread.image.positions])
        if any(window.stride > 1 for window in windows) or gathered > GATHERING_PAYS * added:
            work = work * added / gathered
        else:
            spread = None
    in_registers = None
    if processor.bfloat16_tiles and without == IMPLICIT_GEMM and direct is not None:
        in_registers = amx_work(direct, panels, work)
    if in_registers is not None:
        work, spread = in_registers, None
    works = {
        algorithm: winograd_work(windowed, panels, work, processor)
        for algorithm, windowed in algorithms.items()
        if windowed.filtering and (is_rounded or windowed.filtering in FILTERINGS.values())
    }
    paying = {algorithm: cost for algorithm, cost in works.items() if cost is not None}
    if paying:
        least = min(paying, key=lambda algorithm: paying[algorithm])
        return schedule_by(algorithms[least], panels, processor)
    if spread is not None:
        return schedule_by(spread, panels, processor)
    if direct is None:
        return None
    return schedule_by(direct, panels, processor, amx=in_registers is not None)


def k_runs_outermost(step: Contraction) -> bool:
    """Whether K runs outermost, with the sums of all M in memory, instead of innermost.

    It does so for gradients of weights: the kind of a sliding window states whether positions are
    summed. If windows do not overlap, the program has no windows, and both algorithms can compute
    the contraction. The one whose blocks are contiguous in memory is taken. Blocks split the
    positions, so the contiguous axis must not be one of them: it is an axis of M in a weight
    gradient, and of K otherwise.
    """
    if step.left_windows:
        return any(window.kind(step.k) == OF_WEIGHTS for window in step.left_windows)
    load = loaded(step.left)
    terms = load.index.terms if load is not None else ()
    return any(stride == 1 and atom in step.m for atom, stride in terms)


def schedule_by(
    windowed: Windowed, panels: Panels, processor: Processor, *, amx: bool = False
) -> WindowSchedule:
    """The schedule of an algorithm: blocks and splits that fit the caches and suit the workers."""
    if windowed.filtering:
        choices = winograd_choices(windowed, panels, processor)
        return window_schedule(windowed, panels, processor, choices)
    tile_m = AMX_M if amx else largest_tile_m(processor, panels.vectors)
    block, images = windowed.image.positions[0].extent, 1
    splits = 1, 1
    if windowed.algorithm == IMPLICIT_GEMM:
        block, images = _blocks(windowed, processor)
    elif windowed.algorithm == WEIGHT_GRADIENT:
        block, images = _chunks(windowed, panels, processor)
        splits = _splits(windowed, panels, tile_m, (block, images), processor)
    choices = WindowChoices(tile_m, block, images, *splits, channels=0, panels_at_once=1, amx=amx)
    return window_schedule(windowed, panels, processor, choices)


def window_schedule(
    windowed: Windowed, panels: Panels, processor: Processor, choices: WindowChoices
) -> WindowSchedule:
    """The schedule with these choices, and the work that follows from them."""
    step, algorithm = windowed.step, windowed.algorithm
    packing, packed = None, None
    if algorithm in WINOGRAD.values():
        right, packed = PREPACKED, packed_weights(windowed, panels)
    elif algorithm in (IMPLICIT_GEMM, COL2IM):
        in_order = packing_of_all(as_matrix(right_alone(step)), panels.lanes)
        steps = step.extents[3] // (2 if windowed.paired else 1)
        right, packed = PREPACKED, PackedRight(panels, steps, in_order, windowed.paired)
    elif algorithm == WEIGHT_GRADIENT:
        matrix = matrix_of_positions(windowed)
        right = DIRECT if can_be_read_in_vectors(matrix) else PACKED
        packing = packing_of_some(matrix)
    else:
        right = TRANSFORMED
    transposed = windowed.paired and algorithm == WEIGHT_GRADIENT and _can_transpose(windowed)
    copied = _copied(windowed, choices, panels)
    return WindowSchedule(
        **choices_of(WindowChoices, choices),
        algorithm=algorithm,
        extents=step.extents,
        panels=panels,
        copied=len(windowed.image.sides) - 2 if transposed else copied,
        right=right,
        packing=packing,
        prepacked=packed,
        unrolled=UNROLLED,
        wide_epilogue=are_wide((store.value for store in step.stores), processor),
        works=_works(windowed, panels, processor, choices),
        paired=windowed.paired,
        transposed=transposed,
    )


def _can_transpose(windowed: Windowed) -> bool:
    """Whether the operand is contiguous along the last but one side of the image."""
    view, sides = stored(windowed.image.view), windowed.image.sides
    if view is None or len(sides) < 2:
        return False
    return stride_along(view.load.index, sides[-2].axis) == 1


def _copied(windowed: Windowed, choices: WindowChoices, panels: Panels) -> int | None:
    """The side along which the image of a block is copied in vectors; None without an image.

    It is the last side, which is contiguous. If that one is short, it is the longest side.
    """
    if windowed.image.is_direct:
        return None
    lengths = windowed.image.lengths(choices.block * windowed.tile)
    if windowed.filtering:
        lengths[-1] = choices.channels
    if lengths[-1] * 2 >= panels.lanes:
        return len(lengths) - 1
    return max(range(len(lengths)), key=lengths.__getitem__)


def matrix_of_positions(windowed: Windowed) -> Matrix:
    """The right operand of a weight gradient; its K is the positions of the image."""
    k = (*windowed.image.outer, *windowed.image.positions)
    return as_matrix(replace(right_alone(windowed.step), k=k), paired=windowed.paired)


# Blocks and splits --------------------------------------------------------------------------------


def _blocks(windowed: Windowed, processor: Processor) -> tuple[int, int]:
    """The positions of a block along the first axis, and the outer positions of a work item."""
    image = windowed.image
    first = image.positions[0].extent
    run = size_of([axis.extent for axis in image.positions[1:]])
    room = processor.level2_bytes // IMAGE_SHARE // windowed.itemsize
    items = windowed.step.batch[0].extent * windowed.outer.extent
    block = first
    while block > 1 and (
        image.size(block) > room
        or (block * run >= 2 * ITEM_M and items * -(-first // block) < 4 * processor.threads)
    ):
        block = -(-block // 2)
    if block < first:
        return block, 1
    fitting = ITEM_M // (first * run)
    if image.size(block):
        fitting = min(fitting, room // image.size(block))
    fitting = min(fitting, items // (2 * processor.threads))
    return block, divisor_near(windowed.outer.extent, fitting)


def _chunks(windowed: Windowed, panels: Panels, processor: Processor) -> tuple[int, int]:
    """The output positions of a chunk along the first axis, and its images (outer positions)."""
    image = windowed.image
    first = image.positions[0].extent
    run = size_of([axis.extent for axis in image.positions[1:]])
    room = processor.level2_bytes // IMAGE_SHARE // windowed.itemsize

    def taken(block: int) -> int:
        return image.size(block) + block * run * panels.width

    block = first
    while block > 1 and taken(block) > room and block * run > SHORTEST_CHUNK:
        block = -(-block // 2)
    if block < first or not can_have_images(windowed):
        return block, 1
    fitting = min(SHORTEST_CHUNK // (first * run), room // taken(block))
    return block, divisor_near(windowed.outer.extent, fitting)


def can_have_images(windowed: Windowed) -> bool:
    """Whether a chunk can have several outer positions."""
    return not windowed.image.is_direct or outer_stride(windowed) is not None


def outer_stride(windowed: Windowed) -> int | None:
    """The stride between outer positions of a view that is read directly; None if it varies."""
    load = windowed.image.view
    return stride_along(load.index, windowed.outer) if isinstance(load, Load) else None


def m_tiles_of(windowed: Windowed, block: int, tile_m: int) -> MTiles:
    """The register tiles of M of a weight gradient."""
    runs, split = m_runs_of(windowed, block)
    extents = tuple(extent for extent, _ in runs)
    # The offsets of split elements repeat after a whole stride.
    multiple = windowed.image.sides[-1].windows.stride if split == len(runs) - 2 else 1
    return MTiles(extents, tile_m, multiple=multiple)


def m_runs_of(windowed: Windowed, block: int) -> tuple[tuple[tuple[int, int], ...], int | None]:
    """(extent, stride) of the axes of M of a weight gradient, where neighbours are merged.

    Also the number of the one that has the image's split element, and no stride. It is never the
    last one.
    """
    image, axes = windowed.image, windowed.step.m
    strides, _ = image.layout(block)
    if image.split_element is None:
        return merged([(axis.extent, strides[axis]) for axis in axes]), None
    at = axes.index(image.split_element)
    before, after = (
        merged([(axis.extent, strides[axis]) for axis in some])
        for some in (axes[:at], axes[at + 1 :])
    )
    return (*before, (axes[at].extent, 0), *after), len(before)


def _splits(
    windowed: Windowed, panels: Panels, tile_m: int, chunk: tuple[int, int], processor: Processor
) -> tuple[int, int]:
    """The work items into which M is split for each panel, and the partial sums of each result.

    Each work item copies its own images, and packs its own right operand, unless both are read
    directly. The number of partial sums depends on the sizes, vectors and caches, not on the number
    of workers.
    """
    block, images = chunk
    matrices = windowed.step.batch[0].extent * panels.count
    tiles = m_tiles_of(windowed, block, tile_m).count
    direct = windowed.image.is_direct and can_be_read_in_vectors(matrix_of_positions(windowed))
    if windowed.paired and matrices < ITEMS_OF_FEW_PANELS:
        # A piece of M would copy the same images again.
        sums = min(-(-ITEMS_OF_FEW_PANELS // matrices), windowed.outer.extent // images)
        if sums > 1:
            return 1, sums
    if matrices * tiles < ITEMS_OF_FEW_TILES:
        split_m = tiles if direct else 1
        sums = min(-(-ITEMS_OF_FEW_TILES // (matrices * split_m)), windowed.outer.extent // images)
        if sums > 1:
            return split_m, sums
    threads = processor.threads
    items = 4 * threads if direct else 2 * threads
    are_equal = matrices % threads == 0 and panels.n % panels.width == 0
    if matrices >= 4 * threads or are_equal:
        return 1, 1
    return min(tiles, -(-items // matrices)), 1


# Work ---------------------------------------------------------------------------------------------


def _works(
    windowed: Windowed, panels: Panels, processor: Processor, choices: WindowChoices
) -> tuple[Work, ...]:
    """The work of the kernels of a contraction over windows."""
    b, m, n, k = windowed.step.extents
    matrices, vectors = b * panels.count, -(-n // panels.lanes)
    cycles = float(vectors * b * m * k) * (1.0 if processor.fused else 2.0)
    cycles /= 2 if windowed.paired else 1
    cycles = amx_cycles(windowed, panels) if choices.amx else cycles
    outer = windowed.outer.extent // choices.images
    blocks = -(-windowed.image.positions[0].extent // choices.block)
    if windowed.algorithm == IMPLICIT_GEMM:
        return (Work(b * outer * blocks, cycles),)
    if windowed.algorithm == COL2IM:
        return (Work(b * outer, cycles),)
    if windowed.algorithm == WEIGHT_GRADIENT:
        sums = Work(matrices * choices.split_m * choices.partial_sums, cycles)
        total = Work(matrices, float(choices.partial_sums * matrices * m * panels.vectors))
        return (sums,) if choices.partial_sums == 1 else (sums, total)
    return winograd_works(windowed, panels, choices, cycles)
