"""Opening a GPU of Nvidia by its name, as an engine."""

from __future__ import annotations

from functools import cache, partial

from lamina.engines.cuda.calls import cuda
from lamina.engines.cuda.devices import chosen, found_devices, own_process
from lamina.engines.cuda.driver import CudaDriver
from lamina.engines.cuda.family import CudaFamily
from lamina.engines.gpu.driver import Driver
from lamina.engines.gpu.engine import GpuEngine


def cuda_engine(name: str = "cuda") -> GpuEngine:
    """The engine of a device; for its name and errors, see `open_device`."""
    return GpuEngine("cuda", partial(open_device, name), _family_for)


def open_device(name: str) -> CudaDriver:
    """The driver of a device: `"cuda"` (the first usable one), `"cuda:1"`, `"cuda:a100"`.

    In place of `a100` there may be any part of the device's name. The device is opened once, and
    stays open until the process ends.

    Raises:
        EngineError: if there is none, or it cannot be used.
    """
    with own_process.opening():
        device = chosen(name, found_devices())
        return _opened(cuda(), device)


_opened = cache(CudaDriver)


def _family_for(driver: Driver) -> CudaFamily:
    assert isinstance(driver, CudaDriver)
    return CudaFamily(driver)
