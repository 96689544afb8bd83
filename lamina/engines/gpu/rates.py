"""What the compute units of a device do in a clock, by its properties and by tables."""

from __future__ import annotations

from dataclasses import replace

from lamina.base.records import frozen_dataclass


@frozen_dataclass
class Rates:
    """What a compute unit does in a clock, for the cost model; by default that of a typical GPU.

    Attributes:
        lanes: the multiply-adds of float32.
        local_bytes: from local memory.
        cache_bytes: from the cache that all compute units share, if all of them read.
        memory_bytes: from the device's memory, if all of them read.
        resident_items: the most work items at the same time, as far as registers suffice.
        launch: the clocks of a launch after another one.
        clock: the clocks in a second; 0 if unknown.
    """

    lanes: int = 64
    local_bytes: float = 128
    cache_bytes: float = 64
    memory_bytes: float = 10
    resident_items: int = 2048
    launch: float = 6000
    clock: float = 0.0

    def with_memory(self, bytes_in_a_second: float, compute_units: int) -> Rates:
        """The rates of a device whose memory moves so many bytes; the same if that is unknown."""
        if not bytes_in_a_second or not self.clock:
            return self
        return replace(self, memory_bytes=bytes_in_a_second / (self.clock * compute_units))


# The multiply-adds of float32 by compute capability; all others have 128 (CUDA Programming Guide,
# "Throughput of Native Arithmetic Instructions").
_LANES = dict.fromkeys([(6, 0), (7, 0), (7, 2), (7, 5), (8, 0)], 64)
# A multiprocessor reads at most 64 bytes of the L2 cache in a clock. The cache does not serve all
# of them at that rate: half of it is assumed.
_CACHE_BYTES = 32


def rates_of_nvidia(capability: tuple[int, int], clock: float) -> Rates:
    """The rates of Nvidia's GPUs of a compute capability; `clock` as in `Rates`."""
    return Rates(lanes=_LANES.get(capability, 128), cache_bytes=_CACHE_BYTES, clock=clock)
