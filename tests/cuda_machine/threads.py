"""A launch, and the threads of some of its blocks that run together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from cuda_machine.faults import Fault, Index
from cuda_machine.memory import Memory
from cuda_machine.shadow import Shadow

# Generic addresses of shared and local memory; those of global memory are below. PTX ISA, Generic
# Addressing: windows within the generic address space, whose addresses nobody may count on.
SHARED_WINDOW: Final = 1 << 44
LOCAL_WINDOW: Final = 1 << 45

Array = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]
Lane = Integers | None
Number = TypeVar("Number", int, Integers)


@dataclass(frozen=True)
class Checks:
    """What is checked besides addresses.

    Attributes:
        shared_races, global_races: accesses that no barrier orders.
        unwritten_global: reads of global memory that nobody wrote since its allocation.
    """

    shared_races: bool = True
    global_races: bool = True
    unwritten_global: bool = False


@dataclass(frozen=True)
class Launch:
    """What all blocks of a launch have in common.

    Attributes:
        lines: the text of each line with an instruction.
        shared_bytes, local_bytes: of a block, and of a thread.
        shared_granule: bytes of the smallest access of shared memory.
        global_shadow: the accesses of global memory in this launch; None if nobody checks.
    """

    kernel: str
    lines: dict[int, str]
    grid: Index
    block: Index
    memory: Memory
    parameters: bytes
    shared_bytes: int
    local_bytes: int
    shared_granule: int
    checks: Checks
    global_shadow: Shadow | None

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]


def index_of(number: Number, extents: Index) -> tuple[Number, Number, Number]:
    """The coordinates of a block or thread, or of several; x is fastest."""
    x, y, _ = extents
    return number % x, number // x % y, number // (x * y)


class Threads:
    """The threads of blocks that run together: the base of `Lanes`.

    Args:
        launch: what all blocks have in common.
        blocks: their linear numbers.

    Attributes:
        count: of lanes. Lane `i` is thread `i % threads` of block `i // threads`.
        live: the threads of each block that have not exited.
        exited: whether a lane has exited.
        exits: how often some lanes have exited.
    """

    def __init__(self, launch: Launch, blocks: Integers) -> None:
        self.launch, self.blocks = launch, blocks
        self.threads = launch.threads
        self.count = len(blocks) * self.threads
        self.live: Integers = np.full(len(blocks), self.threads, np.int64)
        self.exited: npt.NDArray[np.bool_] = np.zeros(self.count, np.bool_)
        self.exits = 0
        self._set_specials()

    def _set_specials(self) -> None:
        launch, blocks = self.launch, self.blocks
        thread = np.tile(np.arange(self.threads, dtype=np.int64), len(blocks))
        self.thread_of_lane = thread
        self.block_of_lane = np.repeat(np.arange(len(blocks), dtype=np.int64), self.threads)
        self.laneid = (thread & 31).astype(np.uint32)
        self.warps = -(-self.threads // 32)
        self.warp_of_lane = self.block_of_lane * self.warps + (thread >> 5)
        self.lanemask_eq = np.uint32(1) << self.laneid
        for name, extents in (("ntid", launch.block), ("nctaid", launch.grid)):
            for axis, extent in zip("xyz", extents, strict=True):
                setattr(self, f"{name}_{axis}", np.uint32(extent))
        block = np.repeat(blocks, self.threads)
        for name, numbers, extents in (
            ("tid", thread, launch.block),
            ("ctaid", block, launch.grid),
        ):
            for axis, value in zip("xyz", index_of(numbers, extents), strict=True):
                setattr(self, f"{name}_{axis}", np.asarray(value).astype(np.uint32))

    def fault(self, what: str, line: int, lane: int | None = None) -> NoReturn:
        """Raises a fault of a lane."""
        launch = self.launch
        block = thread = None
        if lane is not None:
            block = index_of(int(self.blocks[lane // self.threads]), launch.grid)
            thread = index_of(lane % self.threads, launch.block)
        raise Fault(
            what,
            kernel=launch.kernel,
            line=line,
            text=launch.lines.get(line, ""),
            block=block,
            thread=thread,
        )

    def fault_where(self, what: str, line: int, bad: Array, idx: Lane) -> NoReturn:
        """Raises a fault of the first lane of which `bad` is true."""
        number = int(np.argmax(bad))
        self.fault(what, line, number if idx is None else int(idx[number]))

    def bits(self, warps: Integers, own: Array) -> Array:
        """For each warp, the sum of bits of its lanes."""
        count = self.warps * len(self.blocks)
        return np.bincount(warps, weights=own, minlength=count).astype(np.uint32)

    def alive(self) -> Array:
        """For each warp, the lanes that have not exited."""
        here = np.flatnonzero(~self.exited)
        return self.bits(self.warp_of_lane[here], self.lanemask_eq[here])
