"""The OpenCL engine: programs as kernels for any device with a driver for OpenCL 1.2.

Each device is opened once in a process, by its name, and only after its self-test.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

from lamina.codegen.words import OPENCL_PROCESSOR
from lamina.engines.gpu.driver import Driver
from lamina.engines.gpu.engine import GpuEngine
from lamina.engines.gpu.family import Family
from lamina.engines.gpu.gpus import GpuFamily
from lamina.engines.opencl.devices import chosen, found_devices, own_process
from lamina.engines.opencl.driver import OpenClDriver
from lamina.engines.opencl.processors import ProcessorFamily
from lamina.engines.opencl.verdicts import verdict_of


def opencl_engine(name: str = "opencl") -> GpuEngine:
    """The engine of a device; for its name and errors, see `open_device`."""
    return GpuEngine("opencl", partial(open_device, name), _family_for)


def open_device(name: str) -> OpenClDriver:
    """The driver of a device: `"opencl"` (the first usable one), `"opencl:1"`, `"opencl:radeon"`.

    In place of `radeon` there may be any part of the device's description. The device is opened
    once, and stays open until the process ends. Before its first use the self-test is run, unless
    its verdict is on disk.

    Raises:
        EngineError: if there is none, or it cannot be used.
    """
    with own_process.opening():
        while True:
            device = chosen(name, found_devices())
            assert device.handle is not None
            verdict = verdict_of(device.handle)
            if verdict is not None:
                return _opened(device, verdict)
            # Imported only here: later processes find the verdict on disk.
            from lamina.engines.opencl.selftest import run_selftest

            # A device that fails is not chosen again.
            run_selftest(device)


_opened = cache(OpenClDriver)


def _family_for(driver: Driver) -> Family:
    # Kernels for processors have long loops.
    if driver.traits.is_processor and driver.traits.most_iterations is None:
        words = replace(OPENCL_PROCESSOR, half=driver.words.half)
        return ProcessorFamily(driver.traits, words, driver.record.engine)
    return GpuFamily(driver.traits, driver.words, driver.record.engine)
