"""The machine: loads modules of PTX and launches their kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cuda_machine.faults import Fault, Index
from cuda_machine.lanes import Checks, Lanes, Launch
from cuda_machine.memory import Memory
from cuda_machine.program import Program, make_program
from cuda_machine.schedule import Schedule
from cuda_machine.shadow import MOST_BLOCKS, Shadow
from cuda_machine.syntax import Kernel, Module

# About how many threads run together.
_LANES = 1 << 15


@dataclass
class LoadedModule:
    """A module whose variables have a space and an address; its kernels by name."""

    module: Module
    addresses: dict[str, tuple[str, int]]
    kernels: dict[str, LoadedKernel] = field(default_factory=dict)


@dataclass
class LoadedKernel:
    """A kernel of a loaded module; its program is made when it is first launched."""

    kernel: Kernel
    loaded: LoadedModule = field(repr=False)
    _program: Program | None = field(default=None, repr=False)

    @property
    def program(self) -> Program:
        """The kernel as Python code."""
        if self._program is None:
            self._program = make_program(self.kernel, self.loaded.addresses)
        return self._program


class Machine:
    """Runs kernels on a memory.

    Args:
        order: of the blocks of a grid: "ascending", "descending", or the seed of a random order.
        checks: what is checked besides addresses.
    """

    def __init__(
        self, memory: Memory, *, order: str | int = "ascending", checks: Checks | None = None
    ) -> None:
        self.memory, self.order, self.checks = memory, order, checks or Checks()
        # The accesses of global memory in the last launch, by the size of the smallest one.
        self._shadows: dict[int, Shadow] = {}

    def load(self, module: Module) -> LoadedModule:
        """Allocates the module's variables."""
        loaded = LoadedModule(module, {})
        for one in module.variables.values():
            if one.space not in ("global", "const"):
                continue
            if one.extern:
                raise Fault(f"variable {one.name} is not defined in the PTX")
            address = self.memory.allocate(one.size)
            # Without an initialiser, variables are zero (PTX ISA, Initializers).
            self.memory.write(address, one.initial.ljust(one.size, b"\0"))
            loaded.addresses[one.name] = (one.space, address)
        loaded.kernels = {
            name: LoadedKernel(kernel, loaded) for name, kernel in module.kernels.items()
        }
        return loaded

    def unload(self, loaded: LoadedModule) -> None:
        for _, address in loaded.addresses.values():
            self.memory.free(address)
        loaded.addresses.clear()

    def launch(
        self,
        kernel: LoadedKernel,
        grid: Index,
        block: Index,
        parameters: Sequence[bytes],
        *,
        shared_bytes: int = 0,
        is_early: bool = False,
    ) -> None:
        """Runs a kernel to its end; a parameter is its bytes, extents have x first.

        One that `is_early` may be launched before earlier kernels have ended.
        """
        program = kernel.program
        launch = self._launch(program, grid, block, parameters, shared_bytes, is_early)
        blocks = self._ordered(grid[0] * grid[1] * grid[2])
        together = max(1, _LANES // launch.threads)
        # Overflow, and NaN of NaN or of infinities, are results like others.
        with np.errstate(all="ignore"):
            for first in range(0, len(blocks), together):
                # Within a vector, blocks ascend: a lane's number says what it does first.
                lanes = Lanes(launch, blocks[first : first + together])
                Schedule(program, lanes).run()
                lanes.finish(last=first + together >= len(blocks))

    def _ordered(self, count: int) -> np.ndarray:
        blocks = np.arange(count, dtype=np.int64)
        if self.order == "ascending":
            return blocks
        if self.order == "descending":
            return blocks[::-1].copy()
        return np.random.default_rng(int(self.order)).permutation(blocks)

    def _launch(
        self,
        program: Program,
        grid: Index,
        block: Index,
        parameters: Sequence[bytes],
        shared_bytes: int,
        is_early: bool,
    ) -> Launch:
        declared = program.kernel.parameters
        if len(parameters) != len(declared):
            raise ValueError(f"{len(parameters)} parameters, {len(declared)} are expected")
        data = bytearray()
        for one, given in zip(declared, parameters, strict=True):
            if len(given) != one.size:
                raise ValueError(f"parameter {one.name} has {one.size} bytes, not {len(given)}")
            data += bytes(one.offset - len(data)) + given
        total = program.shared_bytes + shared_bytes
        checks = self.checks
        shadow = None
        if checks.global_races:
            if grid[0] * grid[1] * grid[2] > MOST_BLOCKS:
                raise ValueError(f"races are checked for at most {MOST_BLOCKS} blocks")
            shadow = self._cleared_shadow(program.granules["global"])
        return Launch(
            kernel=program.kernel.name,
            lines=program.lines,
            grid=grid,
            block=block,
            memory=self.memory,
            parameters=bytes(data),
            shared_bytes=total,
            local_bytes=program.local_bytes,
            shared_granule=program.granules["shared"],
            by_warpgroups=program.by_warpgroups,
            checks=checks,
            global_shadow=shadow,
            is_early=is_early,
        )

    def _cleared_shadow(self, granule: int) -> Shadow:
        """What no launch has accessed yet."""
        shadow = self._shadows.get(granule)
        if shadow is None:
            shadow = Shadow(len(self.memory.data), granule, across=True)
            self._shadows[granule] = shadow
        shadow.clear()
        return shadow
