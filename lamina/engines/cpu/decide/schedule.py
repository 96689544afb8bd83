"""What is decided about a program, as records that are printed, compared, and obeyed.

A schedule has a record for each step. It says how the step is run: by which algorithm, with which
vectors and tiles, in what order, and what other steps have to do with it. It says nothing of what
the step computes: that is the program.
"""

from __future__ import annotations

from lamina.codegen.stages import Style
from lamina.engines.cpu.decide.packing import Packing
from lamina.engines.cpu.decide.panels import PackedRight, Panels
from lamina.engines.cpu.decide.work import Slices, Work, counted
from lamina.program.index import Axis
from lamina.records import frozen_dataclass

# Where a tile reads an operand: in its buffer, in a copy that the step makes, or in a copy that was
# made before the step.
DIRECT, PACKED, PREPACKED = "direct", "packed", "prepacked"
# Or in matrices that the step makes of it, with Winograd's algorithms.
TRANSFORMED = "transformed"


# Loop nests ---------------------------------------------------------------------------------------


@frozen_dataclass
class Nest:
    """How a loop nest is run, neighbouring axes merged.

    Attributes:
        order: the parallel axes, outermost first.
        lane: the one whose points are the lanes of vectors, if one is.
        lanes: how many a vector has.
        shared: the one that is cut into work items, if there is any.
        style: how its stages are written.
        cycles: what it costs, roughly.
    """

    order: tuple[Axis, ...]
    lane: Axis | None
    lanes: int
    shared: Axis | None
    style: Style
    cycles: float

    @property
    def work(self) -> Work:
        """A work item is a point of the shared axis, or a vector of its points."""
        if any(axis.extent == 0 for axis in self.order):
            items = 0
        elif self.shared is None:
            items = 1
        else:
            items = -(-self.shared.extent // (self.lanes if self.shared == self.lane else 1))
        return Work(items, self.cycles)

    def __str__(self) -> str:
        axes = ", ".join(f"{axis.name}<{axis.extent}" for axis in self.order)
        said = [f"loop nest over ({axes})"]
        if self.lane is not None:
            said.append(f"{counted(self.lanes, 'lane')} along {self.lane.name}")
        if self.style.inner_lanes:
            said.append(f"up to {self.style.inner_lanes} lanes along the last axes of its stages")
        shared = f" along {self.shared.name}" if self.shared is not None else ""
        return "; ".join([*said, f"{self.work}{shared}"])


@frozen_dataclass
class LoopSchedule:
    """A step as loop nests, one after the other.

    Attributes:
        nests: those of partial results first.
        cut: the locals whose reductions are cut into blocks, each of which is a partial result.
        blocks: how many.
    """

    nests: tuple[Nest, ...]
    cut: tuple[str, ...] = ()
    blocks: int = 0

    @property
    def algorithm(self) -> str:
        return "loop"

    @property
    def works(self) -> tuple[Work, ...]:
        """That of its kernels."""
        return tuple(nest.work for nest in self.nests)

    @property
    def prepacked(self) -> PackedRight | None:
        """How an operand is packed before the step: here none is."""
        return None

    def __str__(self) -> str:
        lines = [str(nest) for nest in self.nests]
        if self.cut:
            lines.insert(0, f"{', '.join(self.cut)} in {self.blocks} partial results")
        return "\n".join(lines)


# Products of matrices -----------------------------------------------------------------------------


@frozen_dataclass
class GemmSchedule:
    """A contraction as a product of matrices.

    Attributes:
        algorithm: `"tiles"`, register tiles of outer products, or `"dots"`, register tiles of dot
            products along K.
        extents: of batch, M, N and K.
        panels: how N is cut into panels.
        rows, columns: of a register tile.
        chunk: how many K are summed up before the next panel is used.
        row_cuts: into how many work items the rows of a panel are cut.
        left: DIRECT, or PACKED as a whole before.
        right: DIRECT where vectors are full, PACKED panel by panel, or PREPACKED.
        packing: in which order the right operand is read where it is packed; None with dots, which
            have nothing packed.
        prefetch: how many elements ahead the left operand is fetched into the caches; 0 if nothing.
        wide_epilogue: whether the epilogue computes several registers at once.
        work: of the kernel that multiplies.
        packing_left: of the kernel that packs the left operand, if it is packed.
    """

    algorithm: str
    extents: tuple[int, int, int, int]
    panels: Panels
    rows: int
    columns: int
    chunk: int
    row_cuts: int
    left: str
    right: str
    packing: Packing | None
    prefetch: int
    wide_epilogue: bool
    work: Work
    packing_left: Work | None

    @property
    def row_tiles(self) -> int:
        """How many tiles the rows are."""
        return -(-self.extents[1] // self.rows)

    @property
    def works(self) -> tuple[Work, ...]:
        """That of its kernels."""
        return (self.work,) if self.packing_left is None else (self.packing_left, self.work)

    @property
    def prepacked(self) -> PackedRight | None:
        """How the right operand is packed before the step, if it is."""
        if self.right != PREPACKED or self.packing is None:
            return None
        return PackedRight(self.panels, self.extents[3], self.packing)

    def __str__(self) -> str:
        b, m, n, k = self.extents
        batch = f"{b} x " if b != 1 else ""
        said = [
            f"{self.algorithm} of {self.rows}x{self.columns} for {batch}M={m}, N={n}, K={k}",
            str(self.panels),
        ]
        if self.chunk < k:
            said.append(f"K in chunks of {self.chunk}")
        if self.row_cuts > 1:
            said.append(f"rows in {self.row_cuts} cuts")
        fetched = f", fetched {self.prefetch} elements ahead" if self.prefetch else ""
        said.append(f"left {self.left}{fetched}")
        packed = f" by panel, {self.packing}" if self.right == PACKED else ""
        said.append(f"right {self.right}{packed}")
        return "; ".join([*said, str(self.work)])


# Contractions over windows ------------------------------------------------------------------------


@frozen_dataclass
class WindowSchedule:
    """A contraction over windows.

    Attributes:
        algorithm: a name of `windows.py`.
        extents: of batch, M, N and K.
        panels: how N is cut into panels.
        rows: the most that a register tile has.
        block: how many output positions along the first axis are computed from one image, or with
            Winograd's algorithms how many rows of tiles.
        images: how many outer positions are taken at once, where a block is a whole image.
        row_cuts: into how many work items the rows of a panel are cut.
        partial_sums: how many sums are made of each result, to be added up at last.
        channels: how many are transformed at once with Winograd's algorithms; otherwise 0.
        copied: the side of the left operand's image along which vectors of it are copied; None
            where tiles read the operand in its buffer.
        right: DIRECT where vectors are full, PACKED or TRANSFORMED block by block, or PREPACKED.
        packing: in which order the right operand is read where it is packed block by block.
        prepacked: how it is packed before the step, if it is.
        unrolled: innermost loops of a register tile over so few K are written out.
        wide_epilogue: whether the epilogue computes several registers at once.
        works: that of its kernels.
    """

    algorithm: str
    extents: tuple[int, int, int, int]
    panels: Panels
    rows: int
    block: int
    images: int
    row_cuts: int
    partial_sums: int
    channels: int
    copied: int | None
    right: str
    packing: Packing | None
    prepacked: PackedRight | None
    unrolled: int
    wide_epilogue: bool
    works: tuple[Work, ...]

    def __str__(self) -> str:
        b, m, n, k = self.extents
        batch = f"{b} x " if b != 1 else ""
        said = [
            f"{self.algorithm} for {batch}M={m}, N={n}, K={k}",
            str(self.panels),
            f"tiles of up to {self.rows} rows",
            f"blocks of {self.block}",
        ]
        if self.images > 1:
            said.append(f"{self.images} images at once")
        if self.row_cuts > 1:
            said.append(f"rows in {self.row_cuts} cuts")
        if self.partial_sums > 1:
            said.append(f"{self.partial_sums} partial sums")
        if self.channels:
            said.append(f"{counted(self.channels, 'channel')} at once")
        left = "direct" if self.copied is None else f"copied, vectors along side {self.copied}"
        packed = f" by block, {self.packing}" if self.right == PACKED else ""
        said += [f"left {left}", f"right {self.right}{packed}"]
        return "; ".join([*said, *map(str, self.works)])


StepSchedule = LoopSchedule | GemmSchedule | WindowSchedule


@frozen_dataclass
class FusedSum:
    """A loop that runs behind a product of matrices, panel by panel, where it reads its columns.

    Attributes:
        carrier: the number of that step.
        nest: how it runs over the columns of a panel.
    """

    carrier: int
    nest: Nest

    @property
    def algorithm(self) -> str:
        return "fused column sum"

    @property
    def prepacked(self) -> PackedRight | None:
        """How an operand is packed before the step: here none is."""
        return None

    def __str__(self) -> str:
        return f"fused behind step {self.carrier}; {self.nest}"


@frozen_dataclass
class Prepacking:
    """A right operand that is packed before the steps that use it.

    Attributes:
        users: their numbers.
        packed: how it is packed.
        bytes: how much memory it takes.
        before: the number of the step in front of which it is packed.
        needed: from which step to which, the last not included, it keeps its place.
        iteration: the axis for each of whose points it is packed anew, if any.
        at_load: whether it is packed only after the parameters were changed.
        work: what packing takes.
    """

    users: tuple[int, ...]
    packed: PackedRight
    bytes: int
    before: int
    needed: tuple[int, int]
    iteration: Axis | None
    at_load: bool
    work: Work

    @property
    def name(self) -> str:
        """Under which parts say that they use it."""
        return f"pack{self.users[0]}"

    def __str__(self) -> str:
        when = "when parameters change" if self.at_load else f"before step {self.before}"
        if self.iteration is not None:
            when += ", in each iteration"
        return f"prepacked {when}, {self.packed.packing}, {self.bytes:,} bytes; {self.work}"


@frozen_dataclass
class Schedule:
    """What is decided about a program.

    Attributes:
        steps: how each of its steps is run.
        prepackings: which right operands are packed before they are used.
        workers: how many run the program.
        load_workers: how many pack what is packed when parameters change.
        kernels: how workers share those of each step, in the order in which they run; those of a
            fused sum are among its carrier's.
        packing_kernels: the same of each prepacking.
        least_shared_cycles: kernels that run at the same time are shared if they take so many
            cycles together; otherwise one worker runs them.
    """

    steps: tuple[StepSchedule | FusedSum, ...]
    prepackings: tuple[Prepacking, ...]
    workers: int
    load_workers: int
    kernels: tuple[tuple[Slices, ...], ...]
    packing_kernels: tuple[Slices, ...]
    least_shared_cycles: float

    def column_sums(self) -> dict[int, list[int]]:
        """The numbers of the loops that are fused behind steps, by the steps' numbers."""
        found: dict[int, list[int]] = {}
        for number, step in enumerate(self.steps):
            if isinstance(step, FusedSum):
                found.setdefault(step.carrier, []).append(number)
        return found

    def text(self, number: int) -> str:
        """What is decided about one step."""
        lines = [str(self.steps[number])]
        if any(kernel.count > 1 for kernel in self.kernels[number]):
            lines.append(f"shared in {'; '.join(map(str, self.kernels[number]))}")
        lines += [f"right operand {one}" for one in self.prepackings if number in one.users]
        fused = self.column_sums().get(number, [])
        lines += [f"column sums of step {one} fused behind it" for one in fused]
        return "\n".join(lines)

    def __str__(self) -> str:
        texts = (self.text(number).replace("\n", "\n  ") for number in range(len(self.steps)))
        return "\n".join(f"{number}: {text}" for number, text in enumerate(texts))
