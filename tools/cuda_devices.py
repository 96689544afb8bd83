"""Nvidia's GPUs, one for each architecture, as their drivers describe them; and occupancy.

Limits of multiprocessors: CUDA Programming Guide, section Compute Capabilities, the tables
Streaming Multiprocessor Information and Memory Information. The granularities of allocation, and
the rules of occupancy: `cuda_occupancy.h`, a header of the CUDA toolkit. Nothing here is measured.
"""

from __future__ import annotations

from lamina.base.records import frozen_dataclass
from lamina.engines.cuda.driver import traits_of
from lamina.engines.gpu.launches import Traits

WARP = 32
# Registers are allocated to warps, in multiples of this many, in each of four sub-partitions.
_REGISTERS, _SUB_PARTITIONS = 256, 4
_MOST_REGISTERS_OF_A_WORK_ITEM = 255


@frozen_dataclass
class Architecture:
    """An architecture, and a GPU of it.

    Attributes:
        name: `"sm_80"`.
        product: the GPU.
        multiprocessors: of the GPU.
        memory_gigabytes: of the GPU, 10^9 bytes each.
        source: where Nvidia states them.
        clock_megahertz, memory_megahertz: the highest clocks.
        bus_bits: the width of the interface of its memory.
        warps, groups: the most that are resident on a multiprocessor.
        shared_kilobytes: shared memory of a multiprocessor, 1024 bytes each.
        reserved_bytes: shared memory of each work group that the driver uses.
        shared_unit: the granularity of allocations of shared memory, in bytes.
        registers: of a multiprocessor, 32 bits each; also the most of a work group.
    """

    name: str
    product: str
    multiprocessors: int
    memory_gigabytes: int
    source: str
    clock_megahertz: int
    memory_megahertz: int
    bus_bits: int
    warps: int
    groups: int
    shared_kilobytes: int
    reserved_bytes: int = 1024
    shared_unit: int = 128
    registers: int = 1 << 16

    @property
    def capability(self) -> int:
        """Its compute capability, 80 for 8.0."""
        return int(self.name.removeprefix("sm_"))

    def attribute(self, name: str) -> int:
        """An attribute of the GPU, by its name in CUDA without `CU_DEVICE_ATTRIBUTE_`.

        Raises:
            KeyError: if the name is not in this table.
        """
        shared = self.shared_kilobytes << 10
        return {
            "COMPUTE_CAPABILITY_MAJOR": self.capability // 10,
            "COMPUTE_CAPABILITY_MINOR": self.capability % 10,
            "MULTIPROCESSOR_COUNT": self.multiprocessors,
            "WARP_SIZE": WARP,
            "MAX_THREADS_PER_BLOCK": 1024,
            "MAX_THREADS_PER_MULTIPROCESSOR": self.warps * WARP,
            "MAX_BLOCKS_PER_MULTIPROCESSOR": self.groups,
            "MAX_REGISTERS_PER_BLOCK": self.registers,
            "MAX_REGISTERS_PER_MULTIPROCESSOR": self.registers,
            # Without asking for more, as arrays of a fixed size.
            "MAX_SHARED_MEMORY_PER_BLOCK": 48 << 10,
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": shared - self.reserved_bytes,
            "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": shared,
            "RESERVED_SHARED_MEMORY_PER_BLOCK": self.reserved_bytes,
            "CLOCK_RATE": self.clock_megahertz * 1000,
            "MEMORY_CLOCK_RATE": self.memory_megahertz * 1000,
            "GLOBAL_MEMORY_BUS_WIDTH": self.bus_bits,
        }[name]

    @property
    def traits(self) -> Traits:
        """The properties of the GPU for which kernels are written."""
        return traits_of(self.attribute, self.memory_gigabytes * 10**9)


_ADA = "Nvidia Ada GPU architecture white paper"
_BLACKWELL = "Nvidia RTX Blackwell GPU architecture white paper"
ARCHITECTURES = {
    architecture.name: architecture
    for architecture in (
        Architecture(
            *("sm_75", "T4", 40, 16, "Nvidia T4 data sheet: 2560 cores, 64 in a multiprocessor"),
            *(1590, 5001, 256),
            *(32, 16, 64, 0, 256),
        ),
        Architecture(
            *("sm_80", "A100", 108, 40, "Nvidia A100 Tensor Core GPU architecture white paper"),
            *(1410, 1215, 5120),
            *(64, 32, 164),
        ),
        Architecture(
            *("sm_86", "RTX 3090", 82, 24, "Nvidia Ampere GA102 GPU architecture white paper"),
            *(1695, 9751, 384),
            *(48, 16, 100),
        ),
        Architecture("sm_89", "RTX 4090", 128, 24, _ADA, 2520, 10501, 384, 48, 24, 100),
        Architecture(
            *("sm_90", "H100 SXM5", 132, 80, "Nvidia H100 GPU architecture white paper"),
            *(1980, 2619, 5120),
            *(64, 32, 228),
        ),
        # Nvidia publishes no number of multiprocessors; drivers report it.
        Architecture(
            *("sm_100", "B200", 148, 180, "Nvidia HGX B200 data sheet"),
            *(1965, 3996, 8192),
            *(64, 32, 228),
        ),
        Architecture("sm_120", "RTX 5090", 170, 32, _BLACKWELL, 2407, 14001, 512, 48, 24, 100),
    )
}


@frozen_dataclass
class Occupancy:
    """The work groups of a kernel that are resident on a multiprocessor, by the rules.

    Attributes:
        groups: their number.
        warps: of all of them.
        limits: what keeps more groups out: "warps", "groups", "registers", "shared memory".
    """

    groups: int
    warps: int
    limits: tuple[str, ...]


def occupancy_of(
    architecture: Architecture, group: int, registers: int, shared_bytes: int
) -> Occupancy:
    """The occupancy of a kernel, if shared memory has all that the architecture lets it have.

    Args:
        architecture: of the GPU.
        group: the work items of a group.
        registers: of a work item.
        shared_bytes: that a group declares.
    """
    warps = _divided(group, WARP)
    of_warp = _rounded(registers * WARP, _REGISTERS)
    shared = _rounded(shared_bytes + architecture.reserved_bytes, architecture.shared_unit)
    groups_by_limit = {"warps": architecture.warps // warps, "groups": architecture.groups}
    if of_warp:
        in_partition = architecture.registers // _SUB_PARTITIONS // of_warp
        groups_by_limit["registers"] = in_partition * _SUB_PARTITIONS // warps
        # A launch is refused if its registers would not fit with its warps in all sub-partitions.
        assumed = of_warp * _rounded(warps, _SUB_PARTITIONS)
        if assumed > architecture.registers or registers > _MOST_REGISTERS_OF_A_WORK_ITEM:
            groups_by_limit["registers"] = 0
    if shared:
        groups_by_limit["shared memory"] = (architecture.shared_kilobytes << 10) // shared
    groups = min(groups_by_limit.values())
    limits = tuple(name for name, most in groups_by_limit.items() if most == groups)
    return Occupancy(groups, groups * warps, limits)


def _divided(number: int, by: int) -> int:
    """The quotient, rounded up."""
    return -(-number // by)


def _rounded(number: int, multiple: int) -> int:
    """The next multiple."""
    return _divided(number, multiple) * multiple
