"""What the double's devices are: their descriptions, and the attributes that the driver reports.

Limits of a compute capability are those of "Technical Specifications per Compute Capability" in
the CUDA C++ Programming Guide.
"""

from __future__ import annotations

from dataclasses import dataclass

from cuda.bindings.driver import CUdevice_attribute

# Static and dynamic shared memory of a block that has not opted in to more.
SHARED_WITHOUT_OPT_IN = 48 * 1024


# By compute capability, the bytes of shared memory of a multiprocessor, and the most of a block.
SHARED_BYTES = {
    (7, 5): (64 << 10, 64 << 10),
    (8, 0): (164 << 10, 163 << 10),
    (8, 6): (100 << 10, 99 << 10),
    (8, 9): (100 << 10, 99 << 10),
    (9, 0): (228 << 10, 227 << 10),
}


@dataclass(frozen=True)
class DeviceDescription:
    """A device of the double. `capability` is one of `SHARED_BYTES`; `memory` is in bytes."""

    name: str = "Lamina PTX machine"
    capability: tuple[int, int] = (8, 0)
    memory: int = 64 << 20
    multiprocessors: int = 4

    @property
    def most_shared(self) -> int:
        """The shared memory of a block that has opted in to all of it."""
        return SHARED_BYTES[self.capability][1]

    def attributes(self) -> dict[CUdevice_attribute, int]:
        values = {
            "COMPUTE_CAPABILITY_MAJOR": self.capability[0],
            "COMPUTE_CAPABILITY_MINOR": self.capability[1],
            "MULTIPROCESSOR_COUNT": self.multiprocessors,
            "MAX_THREADS_PER_BLOCK": 1024,
            "MAX_SHARED_MEMORY_PER_BLOCK": SHARED_WITHOUT_OPT_IN,
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": self.most_shared,
            "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": SHARED_BYTES[self.capability][0],
            "COMPUTE_MODE": 0,
            "INTEGRATED": 0,
        }
        return {
            getattr(CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"): value
            for name, value in values.items()
        }
