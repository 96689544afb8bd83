"""The decisions on how a program is run: records that are printed and compared. `emit/` obeys them.

A schedule has a record for each step, which holds its algorithm, vectors and tiles, the order of
its loops, and its relations to other steps. The program holds the computation itself.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar

from lamina.base.records import frozen_dataclass
from lamina.codegen.stages import Style
from lamina.engines.simd.decide.packing import PackedRight, Packing, Panels
from lamina.engines.simd.decide.tiles import AMX_STEPS
from lamina.engines.simd.decide.work import Slices, Work, counted
from lamina.program.index import Axis

# The memory in which a tile reads an operand: the operand's buffer, a copy made by the step, or a
# copy that was made before the step.
DIRECT, PACKED, PREPACKED = "direct", "packed", "prepacked"
# A copy of a left operand that is contiguous along K; otherwise it is packed in tiles.
ALONG_K = "packed along K"
# Tiles in the tile registers of AMX: an algorithm of matrix products.
AMX = "AMX tiles"
# With Winograd's algorithms: the matrices of transformed tiles that the step computes.
TRANSFORMED = "transformed"


# Loop nests ---------------------------------------------------------------------------------------


@frozen_dataclass
class NestSchedule:
    """How a loop nest is run, neighbouring axes merged.

    Attributes:
        order: the parallel axes, outermost first.
        lane: the parallel axis along which vectors run; None if there is none.
        lanes: the lanes of a vector.
        shared: the parallel axis that is split into work items; None if there is none.
        style: the form in which its stages are written.
        cycles: a rough cost.
        together: an axis, neighbouring points of which are computed together, and their number; the
            points of that axis in `order` stand for so many.
    """

    order: tuple[Axis, ...]
    lane: Axis | None
    lanes: int
    shared: Axis | None
    style: Style
    cycles: float
    together: tuple[Axis, int] | None = None

    @property
    def work(self) -> Work:
        """The work of its kernel: a work item for each point, or vector, of the shared axis."""
        if any(axis.extent == 0 for axis in self.order):
            items = 0
        elif self.shared is None:
            items = 1
        else:
            items = -(-self.shared.extent // (self.lanes if self.shared == self.lane else 1))
        return Work(items, self.cycles)

    def __str__(self) -> str:
        axes = ", ".join(f"{axis.name}<{axis.extent}" for axis in self.order)
        texts = [f"loop nest over ({axes})"]
        if self.lane is not None:
            texts.append(f"{counted(self.lanes, 'lane')} along {self.lane.name}")
        if self.style.inner_lanes:
            texts.append(f"up to {self.style.inner_lanes} lanes along the last axes of its stages")
        if self.together is not None:
            axis, count = self.together
            texts.append(f"{count} points of {axis.name} together")
        shared = f" along {self.shared.name}" if self.shared is not None else ""
        return "; ".join([*texts, f"{self.work}{shared}"])


@frozen_dataclass
class LoopSchedule:
    """A step as loop nests, one after the other.

    Attributes:
        nests: the nests of partial results, then the step's own.
        split: the locals whose reductions are split into blocks; each block is a partial result.
        blocks: the number of blocks.
    """

    # A loop has no prepacked operand.
    prepacked: ClassVar[None] = None
    algorithm: ClassVar[str] = "loop"

    nests: tuple[NestSchedule, ...]
    split: tuple[str, ...] = ()
    blocks: int = 0

    @property
    def works(self) -> tuple[Work, ...]:
        return tuple(nest.work for nest in self.nests)

    def __str__(self) -> str:
        lines = [str(nest) for nest in self.nests]
        if self.split:
            lines.insert(0, f"{', '.join(self.split)} in {self.blocks} partial results")
        return "\n".join(lines)


# Contractions -------------------------------------------------------------------------------------


@frozen_dataclass
class _Tiled:
    """A contraction in register tiles.

    Attributes:
        extents: the extents of batch, M, N and K.
        panels: the panels of N.
        wide_epilogue: whether the epilogue computes several registers at once.
        paired: whether pairs of bfloat16 are multiplied.
    """

    extents: tuple[int, int, int, int]
    panels: Panels
    wide_epilogue: bool
    paired: bool

    def _beginning(self, algorithm: str) -> list[str]:
        """The beginning of the text of a schedule: what is computed, and its panels."""
        b, m, n, k = self.extents
        batch = f"{b} x " if b != 1 else ""
        return [f"{algorithm} for {batch}M={m}, N={n}, K={k}", str(self.panels)]


@frozen_dataclass
class GemmChoices:
    """The choices for a matrix product from which the rest of its schedule follows.

    Attributes:
        algorithm: the kind of tiles: `"tiles"`, register tiles of outer products; `"dots"`,
            register tiles of dot products along K; or AMX.
        tile_m, tile_n: the rows and columns of a register tile.
        chunk: the steps along K that all tiles sum up before the next chunk of a panel is read; a
            step is one k, or a pair of them.
        split_m: the work items into which M is split for each panel.
        left: the left operand: DIRECT, or packed by a separate kernel: PACKED in tiles, or ALONG_K.
        right: the right operand: DIRECT for full vectors, PACKED panel by panel, or PREPACKED.
        packing: the order in which the right operand is read for packing; None for the cheapest
            one, and with dots, which do not pack.
        prefetch: the prefetch distance of the left operand, in elements; 0 for no prefetch.
    """

    algorithm: str
    tile_m: int
    tile_n: int
    chunk: int
    split_m: int
    left: str
    right: str
    packing: Packing | None
    prefetch: int


@frozen_dataclass
class GemmSchedule(GemmChoices, _Tiled):
    """A contraction as a matrix product.

    Attributes:
        work: the work of the kernel that multiplies.
        packing_left: the work of the kernel that packs the left operand, if it is packed.
    """

    work: Work
    packing_left: Work | None

    @property
    def k_steps(self) -> int:
        """The number of steps along K; AMX counts steps of zeros too."""
        steps = -(-self.extents[3] // 2) if self.paired else self.extents[3]
        return -(-steps // AMX_STEPS) * AMX_STEPS if self.algorithm == AMX else steps

    @property
    def m_tiles(self) -> int:
        """The number of register tiles along M."""
        return -(-self.extents[1] // self.tile_m)

    @property
    def works(self) -> tuple[Work, ...]:
        return (self.work,) if self.packing_left is None else (self.packing_left, self.work)

    @property
    def prepacked(self) -> PackedRight | None:
        """The layout of the right operand if it is packed before the step."""
        if self.right != PREPACKED or self.packing is None:
            return None
        return PackedRight(self.panels, self.k_steps, self.packing, self.paired)

    def __str__(self) -> str:
        texts = self._beginning(f"{self.algorithm} of {self.tile_m}x{self.tile_n}")
        if self.paired:
            texts.append("pairs of bfloat16")
        if self.chunk < self.k_steps:
            texts.append(f"K in chunks of {self.chunk * (2 if self.paired else 1)}")
        if self.split_m > 1:
            texts.append(f"M split in {self.split_m}")
        prefetched = f", prefetched by {self.prefetch} elements" if self.prefetch else ""
        texts.append(f"left {self.left}{prefetched}")
        packed = f" by panel, {self.packing}" if self.right == PACKED else ""
        texts.append(f"right {self.right}{packed}")
        return "; ".join([*texts, str(self.work)])


@frozen_dataclass
class WindowChoices:
    """The choices for a contraction over windows from which the rest of its schedule follows.

    Attributes:
        tile_m: the most rows of a register tile.
        block: the output positions along the first axis that one image covers; with Winograd's
            algorithms the rows of tiles.
        images: the outer positions of a work item or chunk, if a block is a whole image.
        split_m: the work items into which M is split for each panel.
        partial_sums: the partial sums of each result, which are added up at the end.
        channels: the channels that Winograd's algorithms transform at once; otherwise 0.
        panels_at_once: the panels of a work item of Winograd's weight gradients; otherwise 1.
        amx: whether implicit GEMM multiplies in the tile registers of AMX.
    """

    tile_m: int
    block: int
    images: int
    split_m: int
    partial_sums: int
    channels: int
    panels_at_once: int
    amx: bool


@frozen_dataclass
class WindowSchedule(WindowChoices, _Tiled):
    """A contraction over windows.

    Attributes:
        algorithm: a name in `windows.py`.
        copied: the side along which the left operand's image is copied in vectors; None if tiles
            read the operand in its buffer.
        right: the operand, DIRECT (full vectors), PACKED, TRANSFORMED (by block) or PREPACKED.
        packing: the order in which the right operand is read if it is packed block by block.
        prepacked: the layout of the right operand if it is packed before the step.
        unrolled: the most k for which innermost loops of a register tile are unrolled.
        works: the work of each of its kernels.
        transposed: whether vectors of the image are read along the side `copied` and stored along
            the last one, transposed in registers.
    """

    algorithm: str
    copied: int | None
    right: str
    packing: Packing | None
    prepacked: PackedRight | None
    unrolled: int
    works: tuple[Work, ...]
    transposed: bool

    def __str__(self) -> str:
        texts = self._beginning(self.algorithm)
        texts.append(f"{AMX if self.amx else 'tiles'} of up to {self.tile_m} rows")
        texts.append(f"blocks of {self.block}")
        if self.paired:
            texts.append("pairs of bfloat16")
        if self.images > 1:
            texts.append(f"{self.images} images at once")
        if self.split_m > 1:
            texts.append(f"M split in {self.split_m}")
        if self.partial_sums > 1:
            texts.append(f"{self.partial_sums} partial sums")
        if self.channels:
            texts.append(f"{counted(self.channels, 'channel')} at once")
        if self.panels_at_once > 1:
            texts.append(f"{self.panels_at_once} panels at once")
        left = "direct" if self.copied is None else f"copied, vectors along side {self.copied}"
        left += ", transposed in registers" if self.transposed else ""
        packed = f" by block, {self.packing}" if self.right == PACKED else ""
        texts += [f"left {left}", f"right {self.right}{packed}"]
        return "; ".join([*texts, *map(str, self.works)])


StepSchedule = LoopSchedule | GemmSchedule | WindowSchedule


def choices_of(kind: type, choices: GemmChoices | WindowChoices) -> dict[str, Any]:
    """The fields of a record of choices, which may be a schedule."""
    return {field.name: getattr(choices, field.name) for field in fields(kind)}


@frozen_dataclass
class FusedSum:
    """A loop of column sums that runs after a matrix product, panel by panel, and reads its output.

    Attributes:
        carrier: the number of the matrix product's step.
        nest: the schedule of the loop over the columns of a panel.
    """

    prepacked: ClassVar[None] = None
    algorithm: ClassVar[str] = "fused column sum"

    carrier: int
    nest: NestSchedule

    def __str__(self) -> str:
        return f"fused after step {self.carrier}; {self.nest}"


@frozen_dataclass
class Prepacking:
    """A right operand that is packed before the steps that use it.

    Attributes:
        users: the numbers of these steps.
        packed: the layout.
        bytes: the bytes of the packed operand.
        before: the number of the step before which it is packed.
        needed: the first step during which its memory is reserved, and the step after the last.
        iteration: the axis of a repeat, if it is packed again in each iteration.
        at_load: whether it is packed only after the parameters were changed.
        work: the work of packing.
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
        """The buffer's name among those that kernels read and write."""
        return f"pack{self.users[0]}"

    def __str__(self) -> str:
        when = "when parameters change" if self.at_load else f"before step {self.before}"
        if self.iteration is not None:
            when += ", in each iteration"
        return f"prepacked {when}, {self.packed.packing}, {self.bytes:,} bytes; {self.work}"


@frozen_dataclass
class ProgramSchedule:
    """All decisions on how a program is run.

    Attributes:
        steps: the schedule of each step.
        prepackings: the right operands that are packed before they are used.
        workers: the number of workers that run the program.
        load_workers: the number of workers that pack operands after parameters have changed.
        kernels: the workers' shares of the kernels of each step, in the order in which these run;
            the kernels of a fused sum are listed with its carrier.
        packing_kernels: the workers' shares of the kernel of each prepacking.
        least_shared_cycles: the fewest cycles of a phase's kernels together for which workers share
            the phase; below them one worker runs it.
    """

    steps: tuple[StepSchedule | FusedSum, ...]
    prepackings: tuple[Prepacking, ...]
    workers: int
    load_workers: int
    kernels: tuple[tuple[Slices, ...], ...]
    packing_kernels: tuple[Slices, ...]
    least_shared_cycles: float

    def column_sums(self) -> dict[int, list[int]]:
        """The numbers of steps with fused column sums, each with the numbers of their loops."""
        loops: dict[int, list[int]] = {}
        for number, step in enumerate(self.steps):
            if isinstance(step, FusedSum):
                loops.setdefault(step.carrier, []).append(number)
        return loops

    def text(self, number: int) -> str:
        """The decisions on one step, one a line."""
        lines = [str(self.steps[number])]
        if any(kernel.count > 1 for kernel in self.kernels[number]):
            lines.append(f"shared in {'; '.join(map(str, self.kernels[number]))}")
        prepackings = (packing for packing in self.prepackings if number in packing.users)
        lines += [f"right operand {packing}" for packing in prepackings]
        fused = self.column_sums().get(number, [])
        lines += [f"column sums of step {index} fused after it" for index in fused]
        return "\n".join(lines)

    def __str__(self) -> str:
        texts = (self.text(number).replace("\n", "\n  ") for number in range(len(self.steps)))
        return "\n".join(f"{number}: {text}" for number, text in enumerate(texts))
