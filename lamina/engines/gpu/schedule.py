"""The schedules of steps on a device that runs kernels, as frozen records that can be printed.

`decisions.py` makes them, kernels are written from them, and a test may force another one.
"""

from __future__ import annotations

from lamina.base.records import frozen_dataclass
from lamina.engines.gpu.plain_products import Algorithm, MatrixProduct

# Positions up to this fit into 32 bits, intermediate sums included.
NARROW = 2**30
# Vectors have up to 16 bytes, the widest access of GPUs.
VECTOR_BYTES = 16
# The bytes of a float of 16 bits.
HALF_BYTES = 2
# The m or n of the operands that an instruction on matrices multiplies.
STEP = 16
# The work items that run an instruction on matrices together: a warp, or a warpgroup.
WARP, WARPGROUP = 32, 128


class KernelSchedule:
    """How a kernel runs a step.

    Attributes:
        position_bits: the bits in which positions are computed.
    """

    position_bits: int

    @property
    def group(self) -> int:
        """The number of work items of a group; 0 if they are independent of each other."""
        return 0

    @property
    def launched_bytes(self) -> int:
        """The bytes of local memory that launches add for each group."""
        return 0


@frozen_dataclass
class LoopSchedule(KernelSchedule):
    """A work item computes all stages at one point of a loop, or at a vector of points.

    Attributes:
        lanes: the points of a vector along the last axis; 1 for scalars.
    """

    lanes: int
    position_bits: int

    def __str__(self) -> str:
        points = f"{self.lanes} points" if self.lanes > 1 else "a point"
        return f"{points} for each work item; positions of {self.position_bits} bits"


@frozen_dataclass
class RowSchedule(KernelSchedule):
    """The work items of a group share the inner axes of the stages at a point of a loop.

    Each item reduces a share, then the shares are combined in local memory as a tree.

    Attributes:
        items: the number of work items for each point.
        rows: the number of points of a work group; it divides the number of points.
        along_points: whether neighbouring work items are at neighbouring points; otherwise they
            share a point.
    """

    items: int
    rows: int
    along_points: bool
    position_bits: int

    @property
    def group(self) -> int:
        return self.items * self.rows

    def __str__(self) -> str:
        rows = f"{self.rows} points in a group" if self.rows > 1 else "a point for each group"
        neighbours = ", neighbours at neighbouring points" if self.along_points else ""
        shared = f"{rows}, {self.items} work items each{neighbours}"
        return f"{shared}; positions of {self.position_bits} bits"


@frozen_dataclass
class SortSchedule(KernelSchedule):
    """A work item finds the rank of one element of a sort.

    Attributes:
        run: the elements of a run; runs are sorted by themselves.
        merges: whether pairs of sorted runs are merged; otherwise runs are sorted, and each item
            counts the elements before its own.
    """

    run: int
    merges: bool
    position_bits: int

    def __str__(self) -> str:
        runs = (
            f"pairs of runs of {self.run} merged" if self.merges else f"runs of {self.run} sorted"
        )
        return f"{runs} by rank, an element for each work item; {self.position_bits} bits"


@frozen_dataclass
class ScanSchedule(KernelSchedule):
    """The work items of a group scan an axis together, as many elements at a time as there are.

    Attributes:
        items: the number of work items of a group, a power of two.
    """

    items: int
    position_bits: int

    @property
    def group(self) -> int:
        return self.items

    def __str__(self) -> str:
        return f"scanned by a group of {self.items}; positions of {self.position_bits} bits"


@frozen_dataclass
class ContractionSchedule(KernelSchedule):
    """A work item keeps the sums of a tile of a contraction in registers.

    Attributes:
        tile_m, tile_n: the tile's rows and columns.
    """

    tile_m: int
    tile_n: int
    position_bits: int

    def __str__(self) -> str:
        tile = f"a tile of {self.tile_m} x {self.tile_n} for each work item"
        return f"{tile}; positions of {self.position_bits} bits"


@frozen_dataclass
class OperandLoad:
    """How a tile of an operand is copied to local memory.

    Attributes:
        along_k: whether neighbouring work items, and vectors, read neighbours along K; otherwise
            along m or n.
        lanes: the lanes of the vectors that are read; 1 for scalars.
        padding: unused elements after each row in local memory; with them, elements that are
            accessed together are in different banks.
    """

    along_k: bool
    lanes: int
    padding: int

    def size(self, outer: int, k: int) -> int:
        """The elements in local memory of a tile of an extent along m or n, and along K."""
        return k * (outer + self.padding)

    def _text(self, copied: str = "") -> str:
        vectors = f"vectors of {self.lanes}" if self.lanes > 1 else "elements"
        padded = f", padded by {self.padding}" if self.padding else ""
        return f"{vectors} along {'k' if self.along_k else 'the result'}{copied}{padded}"


@frozen_dataclass
class TileLoad(OperandLoad):
    """A tile that work items multiply by themselves: its rows in local memory run along m or n.

    Vectors along K are written to several rows.

    Attributes:
        is_half: whether the tile keeps the floats of 16 bits whose casts are its elements. They are
            converted when they are multiplied, and not when they are copied.
    """

    is_half: bool = False

    def __str__(self) -> str:
        return self._text() + (", kept in 16 bits" if self.is_half else "")


@frozen_dataclass
class TileSchedule(KernelSchedule):
    """A work group computes a tile of a contraction from tiles of its operands in local memory.

    Attributes:
        swapped: whether left and right are exchanged, so that results are stored without gaps
            along n.
        tile_b: the products of a batch in one group; it divides the batch.
        tile_m, tile_n: the tile of each product.
        tile_k: the stretch of K in local memory.
    """

    swapped: bool
    tile_b: int
    tile_m: int
    tile_n: int
    tile_k: int

    @property
    def _tile(self) -> str:
        tile = f"{self.tile_m} x {self.tile_n} x {self.tile_k}"
        batch = f"{self.tile_b} of " if self.tile_b > 1 else ""
        exchanged = ", operands exchanged" if self.swapped else ""
        return f"a tile of {batch}{tile} for each group of {self.group}{exchanged}"


@frozen_dataclass
class TiledSchedule(TileSchedule):
    """Work items multiply by themselves.

    Attributes:
        item_m, item_n: a work item's block of sums; they divide the tile.
        left, right: the copies of the operands, after the exchange.
        buffers: the tiles of each operand: 2 if the next ones are read during products, else 1.
        unrolled: the number of multiplications along a stretch that are written out; it divides
            the stretch.
        width: the most lanes of vectors in local memory and registers; 1 for scalars.
    """

    item_m: int
    item_n: int
    left: TileLoad
    right: TileLoad
    buffers: int
    unrolled: int
    width: int
    position_bits: int

    @property
    def group(self) -> int:
        return self.tile_b * (self.tile_m // self.item_m) * (self.tile_n // self.item_n)

    def local_bytes(self, element_bytes: int) -> int:
        """The bytes in local memory, for elements of some bytes unless they are kept in 16 bits."""
        tiles = sum(
            load.size(tile, self.tile_k) * (HALF_BYTES if load.is_half else element_bytes)
            for tile, load in ((self.tile_m, self.left), (self.tile_n, self.right))
        )
        return self.buffers * self.tile_b * tiles

    def __str__(self) -> str:
        lines = (
            self._tile,
            f"a block of {self.item_m} x {self.item_n} for each work item",
            f"left {self.left}",
            f"right {self.right}",
            f"{self.buffers} tiles in local memory, {self.unrolled} of k written out",
            f"vectors of {self.width}; positions of {self.position_bits} bits",
        )
        return "; ".join(lines)


@frozen_dataclass
class TreeSchedule(KernelSchedule):
    """The work items of a group share K of a few sums, then combine them as a tree.

    Attributes:
        items: the number of work items that share a sum, a power of two.
        results: the number of blocks of sums in a group.
        item_m, item_n: a work item's block of sums.
        lanes: the lanes of vectors along K; 1 for scalars.
        along_k: whether neighbouring work items read neighbours along K; otherwise the same K of
            neighbouring blocks.
    """

    items: int
    results: int
    item_m: int
    item_n: int
    lanes: int
    along_k: bool
    position_bits: int

    @property
    def group(self) -> int:
        return self.items * self.results

    def __str__(self) -> str:
        block = f"blocks of {self.item_m} x {self.item_n}"
        shared = f"{self.results} {block} in a group, {self.items} work items share k of each"
        vectors = f"vectors of {self.lanes} along k, " if self.lanes > 1 else ""
        neighbours = f"{vectors}neighbours along {'k' if self.along_k else 'the result'}"
        return f"{shared}; {neighbours}; positions of {self.position_bits} bits"


@frozen_dataclass
class MatrixLoad(OperandLoad):
    """A tile for instructions on matrices: its rows in local memory run along K if vectors do.

    Warpgroups multiply TF32 only in rows along K, and exchange chunks of rows in place of padding.

    Attributes:
        is_asynchronous: whether the device copies vectors of 16 bytes without registers.
    """

    is_asynchronous: bool

    def size(self, outer: int, k: int) -> int:
        rows, row = (outer, k) if self.along_k else (k, outer)
        return rows * (row + self.padding)

    def __str__(self) -> str:
        return self._text(", copied asynchronously" if self.is_asynchronous else ", copied")


def whole_steps(extent: int, step: int) -> int:
    """The least multiple of a step that is not smaller than an extent."""
    return -(-extent // step) * step


def element_bytes_of(kind: str | None) -> int:
    """The bytes in local memory of an element that instructions on matrices multiply."""
    return 4 if kind == "tf32" else HALF_BYTES


@frozen_dataclass
class MatrixSchedule(TileSchedule):
    """The warps of a work group multiply by instructions on matrices.

    Attributes:
        kind: the elements of the operands, `"bfloat16"`, `"float16"` or `"tf32"`. Sums are float32.
        warps_m, warps_n: the warps along the tile's m and n; they divide the tile into multiples
            of 16.
        by_warpgroups: whether four warps multiply together, and read both operands from local
            memory. Then each warp has 16 of m, and all n.
        left, right: the copies of the operands, after the exchange.
        stages: the tiles in local memory, at least 2, or 3 for warpgroups. While one is multiplied,
            the others are copied; warpgroups also multiply the one before it.
    """

    kind: str
    warps_m: int
    warps_n: int
    by_warpgroups: bool
    left: MatrixLoad
    right: MatrixLoad
    stages: int
    position_bits: int

    @property
    def group(self) -> int:
        return WARP * self.warps_m * self.warps_n

    @property
    def ahead(self) -> int:
        """How many tiles are copied before they are multiplied."""
        return self.stages - 1 - self.by_warpgroups

    @property
    def element_bytes(self) -> int:
        """The bytes of an element in local memory."""
        return element_bytes_of(self.kind)

    @property
    def local_bytes(self) -> int:
        """The bytes in local memory."""
        left = self.left.size(self.tile_m, self.tile_k)
        return self.stages * self.element_bytes * (left + self.right.size(self.tile_n, self.tile_k))

    @property
    def launched_bytes(self) -> int:
        return self.local_bytes

    def __str__(self) -> str:
        lines = (
            f"matrices of {self.kind}",
            self._tile,
            f"{self.warps_m} x {self.warps_n} warps" + (", by fours" if self.by_warpgroups else ""),
            f"left {self.left}",
            f"right {self.right}",
            f"{self.stages} tiles in local memory; positions of {self.position_bits} bits",
        )
        return "; ".join(lines)


@frozen_dataclass
class ChainSchedule(KernelSchedule):
    """A work group computes the sums of a tile of rows of a chain, over tiles of columns.

    Work items keep blocks of the products at a tile of rows and columns in registers, and blocks of
    the sums in the same rows. Weights pass through local memory.

    Attributes:
        kind: the elements of all operands if warps multiply by instructions on matrices, as of a
            `MatrixSchedule`; otherwise "".
        tile_m, tile_k: the rows and columns of a tile.
        item_m: the rows of a work item's block.
        items_k: the work items that share a row.
        width: the most lanes of vectors of columns; 1 for scalars.
        lengths, tiles: the extents in local memory of the axes of products, and of n of the sums.
        lefts, rights: the copies of the products' operands to local memory.
        sums: the copies of the right operands of the sums.
        weights: the layout of weights in local memory.
        local_bytes: bytes of local memory.
        is_launched: whether launches add the local memory; otherwise kernels declare it.
    """

    kind: str
    tile_m: int
    tile_k: int
    item_m: int
    items_k: int
    width: int
    lengths: tuple[int, ...]
    tiles: tuple[int, ...]
    lefts: tuple[OperandLoad, ...]
    rights: tuple[OperandLoad, ...]
    sums: tuple[OperandLoad, ...]
    weights: OperandLoad
    local_bytes: int
    is_launched: bool
    position_bits: int

    @property
    def group(self) -> int:
        return (self.tile_m // self.item_m) * self.items_k

    @property
    def copied(self) -> int:
        """The elements that are copied to local memory for the columns of a tile."""
        return self.tile_k * (sum(self.lengths) + sum(self.tiles))

    @property
    def launched_bytes(self) -> int:
        return self.local_bytes if self.is_launched else 0

    def __str__(self) -> str:
        block = f"a block of {self.item_m} x {self.tile_k // self.items_k} for each work item"
        lines = (
            f"matrices of {self.kind}" if self.kind else "",
            f"tiles of {self.tile_m} x {self.tile_k} for each group of {self.group}",
            "" if self.kind else block,
            *(f"left {load}" for load in self.lefts),
            *(f"right {load}" for load in self.rights),
            *(f"summed {load}" for load in self.sums),
            f"{self.local_bytes} bytes of local memory",
            "" if self.kind else f"vectors of {self.width}",
            f"positions of {self.position_bits} bits",
        )
        return "; ".join(filter(None, lines))


@frozen_dataclass
class Pass:
    """Some stages of a loop, or a contraction, run by their own kernels.

    Attributes:
        stages: the number of stages.
        splits: the shares into which the sums are split; 1 if they are not. A first kernel computes
            the shares in a workspace, the second one combines them, always in the same order.
        kernels: the schedules of these kernels.
    """

    stages: int
    splits: int
    kernels: tuple[KernelSchedule, ...]

    def __str__(self) -> str:
        split = f"split into {self.splits}: " if self.splits > 1 else ""
        return split + ", then ".join(map(str, self.kernels))


@frozen_dataclass
class PassesSchedule:
    """A step is run in passes, which keep reduced values in workspaces.

    Attributes:
        passes: the passes in order.
    """

    passes: tuple[Pass, ...]

    def __str__(self) -> str:
        return "\n   ".join(map(str, self.passes))


# The ways to run a step as several steps: a convolution by Winograd's algorithm, as the loops that
# transform weights and data, the contraction over channels, and the loop that transforms its
# results, with the epilogue; a chain as the contraction of each product, the loop that reduces the
# rows and stores the weights, and the contraction of each sum; a contraction as the loop that packs
# an operand in runs of neighbours, and the contraction that reads it packed.
WINOGRAD, STORED = "Winograd F(2x2, 3x3)", "products and weights stored"
PACKED = {"left": "left packed", "right": "right packed"}


@frozen_dataclass
class StepsSchedule:
    """A step is run as several steps, which keep values in workspaces.

    Attributes:
        way: the name of the steps' algorithm, `WINOGRAD` for example.
        steps: the schedule of each.
    """

    way: str
    steps: tuple[WrittenSchedule, ...]

    def __str__(self) -> str:
        return f"{self.way}: {', then '.join(map(str, self.steps))}"


# Schedules of steps whose kernels are all written by us.
WrittenSchedule = KernelSchedule | PassesSchedule | StepsSchedule


@frozen_dataclass
class LibrarySchedule:
    """A library of the device computes a contraction, a plain product of matrices.

    Attributes:
        product: the matrices, and what is added to their product.
        algorithm: the library's algorithm.
        epilogue: the schedule of the kernel with the step's stores, if the library stores only the
            sums, in a workspace; None if it does the stores itself.
    """

    product: MatrixProduct
    algorithm: Algorithm
    epilogue: LoopSchedule | None

    def __str__(self) -> str:
        size, place = self.algorithm.workspace_bytes, self.algorithm.number
        choice = f"; its choice {place + 1}" if place else ""
        workspace = f"; a workspace of {size} bytes" if size else ""
        then = "" if self.epilogue is None else f", then {self.epilogue}"
        return f"the library's product {self.product}{choice}{workspace}{then}"


StepSchedule = WrittenSchedule | LibrarySchedule


@frozen_dataclass
class ProgramSchedule:
    """All decisions about a program.

    Attributes:
        steps: the schedules of its steps.
    """

    steps: tuple[StepSchedule, ...]

    def __str__(self) -> str:
        return "\n".join(f"{number}: {step}" for number, step in enumerate(self.steps))
