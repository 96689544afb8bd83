"""What the compute units of Nvidia's GPUs do in a clock, by CUDA and by OpenCL."""

from __future__ import annotations

from lamina.engines.gpu.launches import Rates

# The multiply-adds of float32 by compute capability; all others have 128 (CUDA Programming Guide,
# "Throughput of Native Arithmetic Instructions").
_LANES = dict.fromkeys([(6, 0), (7, 0), (7, 2), (7, 5), (8, 0)], 64)
# A multiprocessor reads at most 64 bytes of the L2 cache in a clock. The cache does not serve all
# of them at that rate: half of it is assumed.
_CACHE_BYTES = 32


def rates_of_nvidia(capability: tuple[int, int], clock: float) -> Rates:
    """The rates of Nvidia's GPUs of a compute capability; `clock` as in `Rates`."""
    return Rates(lanes=_LANES.get(capability, 128), cache_bytes=_CACHE_BYTES, clock=clock)
