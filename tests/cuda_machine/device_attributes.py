"""What the double's devices are: their descriptions, and the attributes that the driver reports.

Limits of a compute capability are those of "Technical Specifications per Compute Capability" in
the CUDA C++ Programming Guide. Clocks, caches and buses are those of one GPU of the capability.
"""

from __future__ import annotations

from dataclasses import dataclass

from cuda.bindings.driver import CUdevice_attribute

# Static and dynamic shared memory of a block that has not opted in to more.
SHARED_WITHOUT_OPT_IN = 48 * 1024


@dataclass(frozen=True)
class Capability:
    """Limits of a compute capability, and clocks and sizes of a GPU that has it."""

    gpu: str
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    shared_per_multiprocessor: int
    shared_per_block_opt_in: int
    shared_reserved_per_block: int
    clock_kilohertz: int
    memory_clock_kilohertz: int
    memory_bus_bits: int
    l2_bytes: int


CAPABILITIES = {
    (7, 5): Capability(
        "Tesla T4", 1024, 16, 64 << 10, 64 << 10, 0, 1_590_000, 5_001_000, 256, 4 << 20
    ),
    (8, 0): Capability(
        "A100-SXM4", 2048, 32, 164 << 10, 163 << 10, 1024, 1_410_000, 1_215_000, 5120, 40 << 20
    ),
    (8, 6): Capability(
        "A10", 1536, 16, 100 << 10, 99 << 10, 1024, 1_695_000, 6_251_000, 384, 6 << 20
    ),
    (8, 9): Capability(
        "L4", 1536, 24, 100 << 10, 99 << 10, 1024, 2_040_000, 6_251_000, 192, 48 << 20
    ),
    (9, 0): Capability(
        "H100 SXM", 2048, 32, 228 << 10, 227 << 10, 1024, 1_980_000, 2_619_000, 5120, 50 << 20
    ),
}


@dataclass(frozen=True)
class DeviceDescription:
    """A device of the double. `capability` is one of `CAPABILITIES`; `memory` is in bytes."""

    name: str = "Lamina PTX machine"
    capability: tuple[int, int] = (8, 0)
    memory: int = 64 << 20
    multiprocessors: int = 4

    @property
    def limits(self) -> Capability:
        """The limits of its capability."""
        return CAPABILITIES[self.capability]

    def attributes(self, ordinal: int) -> dict[CUdevice_attribute, int]:
        """The attributes that the double has; `ordinal` becomes the number on the bus."""
        limits = self.limits
        major, minor = self.capability
        values = {
            "COMPUTE_CAPABILITY_MAJOR": major,
            "COMPUTE_CAPABILITY_MINOR": minor,
            "MULTIPROCESSOR_COUNT": self.multiprocessors,
            "WARP_SIZE": 32,
            "MAX_THREADS_PER_BLOCK": 1024,
            "MAX_THREADS_PER_MULTIPROCESSOR": limits.threads_per_multiprocessor,
            "MAX_BLOCKS_PER_MULTIPROCESSOR": limits.blocks_per_multiprocessor,
            "MAX_BLOCK_DIM_X": 1024,
            "MAX_BLOCK_DIM_Y": 1024,
            "MAX_BLOCK_DIM_Z": 64,
            "MAX_GRID_DIM_X": 2**31 - 1,
            "MAX_GRID_DIM_Y": 65535,
            "MAX_GRID_DIM_Z": 65535,
            "MAX_SHARED_MEMORY_PER_BLOCK": SHARED_WITHOUT_OPT_IN,
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": limits.shared_per_block_opt_in,
            "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": limits.shared_per_multiprocessor,
            "RESERVED_SHARED_MEMORY_PER_BLOCK": limits.shared_reserved_per_block,
            "MAX_REGISTERS_PER_BLOCK": 65536,
            "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536,
            "TOTAL_CONSTANT_MEMORY": 65536,
            "CLOCK_RATE": limits.clock_kilohertz,
            "MEMORY_CLOCK_RATE": limits.memory_clock_kilohertz,
            "GLOBAL_MEMORY_BUS_WIDTH": limits.memory_bus_bits,
            "L2_CACHE_SIZE": limits.l2_bytes,
            "COMPUTE_MODE": 0,
            "INTEGRATED": 0,
            "UNIFIED_ADDRESSING": 1,
            "MANAGED_MEMORY": 1,
            "CONCURRENT_KERNELS": 1,
            "ASYNC_ENGINE_COUNT": 3,
            "CAN_MAP_HOST_MEMORY": 1,
            "PAGEABLE_MEMORY_ACCESS": 0,
            "KERNEL_EXEC_TIMEOUT": 0,
            "COOPERATIVE_LAUNCH": 1,
            "CLUSTER_LAUNCH": int(major >= 9),
            "STREAM_PRIORITIES_SUPPORTED": 1,
            "PCI_DOMAIN_ID": 0,
            "PCI_BUS_ID": ordinal + 1,
            "PCI_DEVICE_ID": 0,
        }
        return {
            getattr(CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"): value
            for name, value in values.items()
        }
