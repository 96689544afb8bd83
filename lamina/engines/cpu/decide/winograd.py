"""Winograd's algorithm for convolutions: when it pays, its chunks, and how weights are packed.

- *Forward* (a convolution, and the gradient of what goes into it): the products at one of the
  places of a tile, summed up over channels, are a product of matrices, whose rows are tiles. Some
  tiles at a time are copied with their padding around them, transformed, multiplied by the weights,
  which were transformed when they were packed, and what comes out is transformed back into sums.
- *Weight gradient*: products with transformed tiles of the right operand are summed up over tiles,
  and transformed back at the end.
"""

from __future__ import annotations

from lamina.codegen.filtering import FILTERINGS, RESULTS
from lamina.codegen.matrix import as_matrix, right_alone
from lamina.engines.cpu.decide.packing import packing_of_all
from lamina.engines.cpu.decide.panels import PackedRight, Panels
from lamina.engines.cpu.decide.windows import (
    WINOGRAD,
    WINOGRAD_WEIGHT_GRADIENT,
    Windowed,
    filtering_of,
)
from lamina.engines.cpu.processor import Processor
from lamina.records import frozen_dataclass
from lamina.shapes import size_of

# The share of the direct algorithm's work that Winograd's may have at most to be taken.
MUST_GAIN = 0.8
# In cycles, for a vector and each place of a tile: to transform numbers, results, and the right
# operand.
_NUMBERS_CYCLES, _RESULTS_CYCLES, _FACTORS_CYCLES = 3.0, 4.5, 3.0
# What is done once, for weights and for gradients of them, takes as long as so many tiles.
_WEIGHTS_TILES, _GRADIENTS_TILES = 6, 8
# What is transformed of some tiles takes such a share of the second cache, and sums of gradients
# that wait such a one.
_CACHE_SHARE, _SUMS_SHARE = 2, 8
# Which weights are zero is said by a word for each.
_WORD_BYTES = 4


def winograd_pays(how: Windowed, algorithm: str, panels: Panels, direct: float) -> bool:
    """Whether Winograd's algorithm is worth its transforms.

    Args:
        how: what it reads.
        algorithm: which of them.
        panels: how the columns are cut.
        direct: how many multiplications it takes otherwise.
    """
    image = how.image
    channels, columns = image.sides[-1].axis.extent, panels.columns
    tiles = how.outer.extent * size_of([axis.extent // RESULTS for axis in image.places])
    if algorithm in WINOGRAD.values():
        once, others = _WEIGHTS_TILES, _NUMBERS_CYCLES * channels + _RESULTS_CYCLES * columns
    else:
        once = _GRADIENTS_TILES
        others = _NUMBERS_CYCLES * channels * panels.count + _FACTORS_CYCLES * columns
    work = (tiles + once) * channels * columns + tiles * others
    work *= filtering_of(image).products
    return how.step.batch[0].extent * work < MUST_GAIN * direct


def is_winograd(algorithm: str) -> bool:
    """Whether the name is that of one of Winograd's algorithms."""
    return algorithm in (*WINOGRAD.values(), *WINOGRAD_WEIGHT_GRADIENT.values())


def multiplications_left(how: Windowed) -> float:
    """The share of the direct algorithm's multiplications that are left."""
    filtering = filtering_of(how.image)
    return filtering.products / (RESULTS * filtering.window) ** 2


def tiles_that_fit(
    how: Windowed, channels: int, panels: Panels, rows: int, processor: Processor
) -> int:
    """How many tiles fit the cache, with what is made of them; at least a register tile of them."""
    room = processor.level2_bytes // _CACHE_SHARE // how.step.dtype.itemsize
    return max(room // (filtering_of(how.image).products * (channels + panels.width)), rows)


def channels_at_once(how: Windowed, panels: Panels, processor: Processor) -> int:
    """How many channels have sums at once: whole vectors, so many as fit their share."""
    lanes, channels = panels.lanes, how.image.sides[-1].axis.extent
    most = processor.level2_bytes // _SUMS_SHARE // how.step.dtype.itemsize
    most //= filtering_of(how.image).products * panels.width
    sizes = [size for size in range(lanes, channels + 1, lanes) if channels % size == 0]
    return max((size for size in sizes if size <= most), default=min([*sizes, channels]))


@frozen_dataclass
class Chunks:
    """How tiles are cut into chunks.

    Attributes:
        block: so many rows of tiles of an outer position are a chunk.
        images: or all rows of so many outer positions.
        whole: how many whole blocks the rows are.
        rest: the rows that are left.
    """

    block: int
    images: int
    whole: int
    rest: int

    @property
    def each(self) -> int:
        """The blocks of an outer position."""
        return self.whole + bool(self.rest)

    def sizes(self) -> list[tuple[str, int, str]]:
        """The chunks that differ: a name, the rows, and how their number compares to `whole`."""
        sizes = [("whole", self.block, "slt"), ("rest", self.rest, "eq")]
        return [one for one in sizes if one[1]]


def chunks_of(how: Windowed, block: int, images: int) -> Chunks:
    """Chunks of so many rows of tiles, or of all rows of so many outer positions."""
    high = how.image.places[0].extent // RESULTS
    return Chunks(block, images, *divmod(high, block))


# Weights ------------------------------------------------------------------------------------------


@frozen_dataclass
class Taps:
    """Which k belong to the elements of windows.

    Attributes:
        window: how many elements there are along an axis.
        first: for each element, row by row as the image has them, that of the first channel.
        pitch: from channel to channel.
        channels: how many there are.
    """

    window: int
    first: tuple[int, ...]
    pitch: int
    channels: int


def _taps_of(how: Windowed) -> Taps:
    """The taps of a convolution by Winograd's algorithm."""
    inner = how.step.k
    pitches = {
        axis: size_of([later.extent for later in inner[number + 1 :]])
        for number, axis in enumerate(inner)
    }
    *plane, channels = how.image.sides
    window = filtering_of(how.image).window
    # Where windows are mirrored, weights are.
    along = [
        [pitches[side.element] * element_ for element_ in range(window)][:: side.slope]
        for side in plane
        if side.element is not None
    ]
    first = tuple(row + column for row in along[0] for column in along[1])
    return Taps(window, first, pitches[channels.axis], channels.axis.extent)


@frozen_dataclass
class PackedWeights(PackedRight):
    """Transformed weights: for each place of a tile a panel of all channels.

    Behind them is said which weights are not zero, by a word for each (`zeros.py`): first a number
    that is not 0 if there are zeros among the weights, and only then, in the next row, the words,
    by elements and channels.

    Attributes:
        taps: the k that they are made of.
    """

    taps: Taps

    @property
    def unpacked(self) -> int:
        """How many k the weights have before they are transformed."""
        return len(self.taps.first) * self.taps.channels

    @property
    def has_zeros(self) -> int:
        """Where it is said whether a panel has zeros, in rows."""
        return FILTERINGS[self.taps.window].products * self.taps.channels


def packed_weights(how: Windowed, panels: Panels) -> PackedWeights:
    """The transformed weights of a convolution."""
    taps = _taps_of(how)
    words = len(taps.first) * taps.channels * _WORD_BYTES
    words = -(-words // (panels.width * how.step.dtype.itemsize))
    inner = FILTERINGS[taps.window].products * taps.channels + 1 + words
    packing = packing_of_all(as_matrix(right_alone(how.step)), panels.lanes)
    return PackedWeights(panels, inner, packing, taps)
