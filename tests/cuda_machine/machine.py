"""The machine: loads modules of PTX and launches their kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from cuda_machine.faults import Fault
from cuda_machine.lanes import Lanes, Launch
from cuda_machine.program import make_program
from cuda_machine.schedule import Schedule
from cuda_machine.shadow import MOST_BLOCKS, Shadow
from cuda_machine.syntax import Kernel

# About how many threads run together.
_LANES = 1 << 15


@dataclass
class LoadedModule:
    """The space and the address of each variable of a module; its kernels by name."""

    addresses: dict[str, tuple[str, int]]
    kernels: dict[str, LoadedKernel] = field(default_factory=dict)


@dataclass
class LoadedKernel:
    """A kernel of a loaded module."""

    kernel: Kernel
    loaded: LoadedModule = field(repr=False)

    @cached_property
    def program(self):
        """The kernel as Python code, made when it is first launched."""
        return make_program(self.kernel, self.loaded.addresses)


class Machine:
    """Runs kernels on a memory.

    Args:
        order: of the blocks of a grid: "ascending", "descending", or the seed of a random order.
    """

    def __init__(self, memory, order="ascending"):
        self.memory, self.order = memory, order
        # The accesses of global memory in the last launch, by the size of the smallest one.
        self._shadows = {}

    def load(self, module):
        """Allocates the module's variables."""
        loaded = LoadedModule({})
        for variable in module.variables.values():
            if variable.space not in ("global", "const"):
                continue
            if variable.extern:
                raise Fault(f"variable {variable.name} is not defined in the PTX")
            address = self.memory.allocate(variable.size)
            # Without an initialiser, variables are zero (PTX ISA, Initializers).
            self.memory.write(address, variable.initial.ljust(variable.size, b"\0"))
            loaded.addresses[variable.name] = (variable.space, address)
        loaded.kernels = {
            name: LoadedKernel(kernel, loaded) for name, kernel in module.kernels.items()
        }
        return loaded

    def unload(self, loaded):
        for _, address in loaded.addresses.values():
            self.memory.free(address)
        loaded.addresses.clear()

    def launch(self, kernel, grid, block, parameters, *, shared_bytes=0, is_early=False):
        """Runs a kernel to its end; a parameter is its bytes, extents have x first.

        One that `is_early` may be launched before earlier kernels have ended.
        """
        program, count = kernel.program, math.prod(grid)
        if count > MOST_BLOCKS:
            raise ValueError(f"races are checked for at most {MOST_BLOCKS} blocks")
        granule = program.granules["global"]
        if granule not in self._shadows:
            self._shadows[granule] = Shadow(len(self.memory.data), granule, across=True)
        shadow = self._shadows[granule]
        shadow.clear()
        data = bytearray()
        for parameter, value in zip(kernel.kernel.parameters, parameters, strict=True):
            assert len(value) == parameter.size, parameter.name
            data += bytes(parameter.offset - len(data)) + value
        total = program.shared_bytes + shared_bytes
        launched = program, grid, block, self.memory, bytes(data), total, shadow, is_early
        launch = Launch(*launched)
        blocks = self._ordered(count)
        together = max(1, _LANES // launch.threads)
        # Overflow, and NaN of NaN or of infinities, are results like others.
        with np.errstate(all="ignore"):
            for first in range(0, len(blocks), together):
                # Within a vector, blocks ascend: a lane's number says what it does first.
                lanes = Lanes(launch, blocks[first : first + together])
                Schedule(lanes).run()
                lanes.finish(last=first + together >= len(blocks))

    def _ordered(self, count):
        blocks = np.arange(count, dtype=np.int64)
        if self.order == "ascending":
            return blocks
        if self.order == "descending":
            return blocks[::-1].copy()
        return np.random.default_rng(int(self.order)).permutation(blocks)
