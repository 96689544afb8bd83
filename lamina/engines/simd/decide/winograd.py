"""Winograd's algorithm for convolutions: when it pays, its chunks, and how weights are packed.

- *Forward* (a convolution, and the gradient of its input): at each element of the transformed tile
  the products, summed over channels, are a matrix product with a row for each tile. A chunk of
  input tiles is copied with its padding, transformed, and multiplied by the weights, which were
  transformed when they were packed. The products are transformed back into sums.
- *Weight gradient*: products of transformed input tiles and transformed tiles of the right operand
  are summed over tiles, and transformed back at the end.
"""

from __future__ import annotations

from math import prod

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import size_of
from lamina.codegen.axes import row_major_strides
from lamina.codegen.filtering import Filtering
from lamina.codegen.matrix import as_matrix, right_alone
from lamina.engines.simd.decide.packing import PackedRight, Panels, packing_of_all
from lamina.engines.simd.decide.schedule import WindowChoices
from lamina.engines.simd.decide.tiles import largest_tile_m
from lamina.engines.simd.decide.windows import WINOGRAD, Windowed, filtering_of
from lamina.engines.simd.decide.work import Work
from lamina.engines.simd.processor import Processor

# Winograd's algorithm is taken if its work is at most this share of the direct algorithm's.
MUST_GAIN = 0.8
# In cycles, for a vector and each element of a tile: to transform inputs, results, and the right
# operand of a weight gradient.
_INPUT_CYCLES, _RESULT_CYCLES, _FACTOR_CYCLES = 3.0, 4.5, 3.0
# The transform of the weights, and of their gradients, costs as much as this many tiles; so many
# more if transformed weights take more than this share of the L3 cache.
_WEIGHTS_TILES, _GRADIENTS_TILES = 6, 8
_FAR_TILES, _FAR_SHARE = 20, 0.25
# Chunks have at least so many tiles if transformed weights take this share of the L3 cache, because
# each chunk reads all of them.
_FAR_CHUNK_TILES, _FAR_CHUNK_SHARE = 32, 0.5
# The shares of the L2 cache that are taken by the transformed tiles of a chunk, of a convolution
# and of a weight gradient, and by the sums of gradients.
_CONVOLUTION_SHARE, _GRADIENT_SHARE, _SUMS_SHARE = 0.5, 1.0, 1.25
# The fewest work items if sums of weight gradients are few: each has some hundred KiB of them.
_ITEMS_OF_FEW_SUMS = 8
# For each weight a word of bits states in which columns it is not zero.
_WORD_BYTES = 4


def winograd_work(
    windowed: Windowed, panels: Panels, direct: float, processor: Processor
) -> float | None:
    """The work of one of Winograd's algorithms, as a number of multiplications.

    It is None if the algorithm is not worth its transforms, or the code for them, compared with the
    work of the direct algorithm.
    """
    filtering, channels, n = filtering_of(windowed), windowed.channels, panels.n
    lanes = processor.vector_bytes // windowed.step.dtype.itemsize
    saved = (1 - filtering.multiplications_left) * direct / lanes
    if saved < processor.winograd_saving * filtering.products:
        return None
    tiles = windowed.outer.extent * size_of(windowed.tiles)
    if windowed.algorithm in WINOGRAD.values():
        once, others = _WEIGHTS_TILES, _INPUT_CYCLES * channels + _RESULT_CYCLES * n
    else:
        once = _GRADIENTS_TILES
        others = _transforms(windowed, _sums_at_once(windowed, panels, processor), panels)
    once += _FAR_TILES * _weights_are_far(windowed, processor, _FAR_SHARE)
    work = (tiles + once) * channels * n + tiles * others
    work *= windowed.step.batch[0].extent * filtering.products
    return work if work < MUST_GAIN * direct else None


def _weights_are_far(windowed: Windowed, processor: Processor, share: float) -> bool:
    """Whether transformed weights, or gradients, take at least a share of the L3 cache.

    False if the size of that cache is unknown.
    """
    weights = windowed.channels * windowed.step.extents[2]
    taken = filtering_of(windowed).products * weights * windowed.step.dtype.itemsize
    return processor.level3_bytes > 0 and taken >= share * processor.level3_bytes


def _sums_at_once(windowed: Windowed, panels: Panels, processor: Processor) -> tuple[int, int]:
    """The channels and the panels whose sums a work item of a weight gradient has.

    Of those that fit the cache share, they take the fewest transforms. The channels are whole
    vectors, or all of them.
    """
    lanes, channels = panels.lanes, windowed.channels
    room = int(processor.level2_bytes * _SUMS_SHARE) // windowed.step.dtype.itemsize
    room //= filtering_of(windowed).products * panels.width
    sizes = [size for size in range(lanes, channels + 1, lanes) if channels % size == 0]
    candidates = [(size, min(max(room // size, 1), panels.count)) for size in sizes or [channels]]
    fitting = [sums for sums in candidates if prod(sums) <= room] or candidates[:1]
    return min(fitting, key=lambda sums: _transforms(windowed, sums, panels))


def _pieces(windowed: Windowed, sums: tuple[int, int], panels: Panels) -> tuple[int, int]:
    """The number of pieces of the channels, and of groups of panels."""
    channels, at_once = sums
    return windowed.channels // channels, -(-panels.count // at_once)


def _transforms(windowed: Windowed, sums: tuple[int, int], panels: Panels) -> float:
    """The cycles of the transforms of a weight gradient, times lanes, for an element of a tile.

    Data are transformed again for each group of panels, and output gradients for each piece of the
    channels.
    """
    pieces, groups = _pieces(windowed, sums, panels)
    return _INPUT_CYCLES * windowed.channels * groups + _FACTOR_CYCLES * panels.n * pieces


@frozen_dataclass
class Chunks:
    """How the rows of tiles are split into chunks.

    A chunk is a block of rows of tiles of one outer position, or all rows of several.

    Attributes:
        block: the rows of tiles of a chunk.
        images: the outer positions of a chunk.
        full: the number of full blocks of an outer position.
        rest: the rows of its last, shorter block; 0 if there is none.
    """

    block: int
    images: int
    full: int
    rest: int

    @property
    def each(self) -> int:
        """The number of blocks of an outer position."""
        return self.full + bool(self.rest)

    def sizes(self) -> list[tuple[str, int, str]]:
        """The sizes of chunks: (name, rows, comparison of the block's number with `full`)."""
        sizes = [("whole", self.block, "slt"), ("rest", self.rest, "eq")]
        return [size for size in sizes if size[1]]


def chunks_of(windowed: Windowed, block: int, images: int) -> Chunks:
    """Chunks of `block` rows of tiles, or of all rows of `images` outer positions."""
    return Chunks(block, images, *divmod(windowed.tiles[0], block))


def winograd_choices(windowed: Windowed, panels: Panels, processor: Processor) -> WindowChoices:
    """Chunks of tiles, and sums, that fit the caches and suit the workers.

    The chunks of a convolution leave work for all. Each reads all weights: if these are far away,
    chunks are large and few.
    """
    is_forward, threads = windowed.algorithm in WINOGRAD.values(), processor.threads
    tile_m, (high, wide) = largest_tile_m(processor, panels.vectors), windowed.tiles
    outer, batch = windowed.outer.extent, windowed.step.batch[0].extent
    sums = (windowed.channels, 1) if is_forward else _sums_at_once(windowed, panels, processor)
    share = _CONVOLUTION_SHARE if is_forward else _GRADIENT_SHARE
    room = int(processor.level2_bytes * share) // windowed.step.dtype.itemsize
    # Tiles are next to their products. A register tile is the least.
    fitting = max(room // (filtering_of(windowed).products * (sums[0] + panels.width)), tile_m)
    are_far = is_forward and _weights_are_far(windowed, processor, _FAR_CHUNK_SHARE)
    if are_far:
        fitting = max(fitting, _FAR_CHUNK_TILES)
    block, images = min(high, max(fitting // wide, 1)), fitting // (high * wide)
    if is_forward:
        while block > 1 and batch * outer * -(-high // block) < 4 * threads:
            block = -(-block // 2)
        images = min(images, batch * outer // (threads if are_far else 2 * threads))
    # Chunks are about equally large.
    if block < high:
        block, images = -(-high // -(-high // block)), 1
    else:
        images = divisor_near(outer, images)
    partial_sums = 1
    if not is_forward:
        chunks = outer // images * chunks_of(windowed, block, images).each
        items = batch * prod(_pieces(windowed, sums, panels))
        partial_sums = min(chunks, -(-_ITEMS_OF_FEW_SUMS // items))
    return WindowChoices(tile_m, block, images, 1, partial_sums, *sums, amx=False)


def divisor_near(number: int, target: int) -> int:
    """The largest divisor of `number` that is at most `target`, or 1."""
    return max(divisor for divisor in range(1, max(target, 1) + 1) if number % divisor == 0)


def winograd_works(
    windowed: Windowed, panels: Panels, choices: WindowChoices, direct: float
) -> tuple[Work, ...]:
    """The work of the kernels; the direct algorithm would take so many cycles."""
    b, filtering = windowed.step.extents[0], filtering_of(windowed)
    cycles = direct * filtering.multiplications_left
    if windowed.algorithm in WINOGRAD.values():
        chunks = chunks_of(windowed, choices.block, choices.images).each
        return (Work(b * (windowed.outer.extent // choices.images) * chunks, cycles),)
    pieces = _pieces(windowed, (choices.channels, choices.panels_at_once), panels)
    items = b * prod(pieces) * choices.partial_sums
    if choices.partial_sums == 1:
        return (Work(items, cycles),)
    matrices = b * panels.count
    finishing = matrices * windowed.channels * panels.vectors
    finishing *= filtering.products * (choices.partial_sums + filtering.window)
    groups = -(-windowed.channels // panels.lanes)
    return Work(items, cycles), Work(matrices * groups, float(finishing))


@frozen_dataclass
class PackedWeights(PackedRight):
    """Transformed weights: for each element of the transformed tile a panel with all channels as K.

    After them, a row has a flag, which is not 0 if some weight is zero. Only then do further rows
    hold a word for each weight, by window elements and channels. A word has a bit for each column
    in which the weight is not zero (`zeros.py`).

    Attributes:
        filtering: the transforms.
        taps: the k of the first channel of each element of a window, row by row in the image.
        pitch: the k between neighbouring channels.
        channels: the number of channels.
    """

    filtering: Filtering
    taps: tuple[int, ...]
    pitch: int
    channels: int

    @property
    def unpacked(self) -> int:
        """The k of the weights before they are transformed."""
        return len(self.taps) * self.channels

    @property
    def has_zeros(self) -> int:
        """The row of the flag that states whether a panel has zeros."""
        return self.filtering.products * self.channels


def packed_weights(windowed: Windowed, panels: Panels) -> PackedWeights:
    """The transformed weights of a convolution."""
    k_axes, filtering = windowed.step.k, filtering_of(windowed)
    extents = row_major_strides([axis.extent for axis in k_axes])
    pitches = dict(zip(k_axes, extents, strict=True))
    *plane, channel_side = windowed.image.sides
    channels, elements = channel_side.axis.extent, range(filtering.window)
    # If windows are mirrored, weights are mirrored too.
    down, right = (
        [pitches[side.element] * number for number in elements][:: side.windows.dilation]
        for side in plane
        if side.element is not None
    )
    taps = tuple(row + column for row in down for column in right)
    words = len(taps) * channels * _WORD_BYTES
    words = -(-words // (panels.width * windowed.step.dtype.itemsize))
    k = filtering.products * channels + 1 + words
    packing = packing_of_all(as_matrix(right_alone(windowed.step)), panels.lanes)
    numbers = (filtering, taps, pitches[channel_side.axis], channels)
    return PackedWeights(panels, k, packing, False, *numbers)
