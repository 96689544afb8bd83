"""The OpenCL engine: programs as kernels for any device with a driver for OpenCL 1.2."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from lamina.codegen.words import OPENCL_PROCESSOR
from lamina.engines.gpu.driver import Driver
from lamina.engines.gpu.engine import GpuEngine
from lamina.engines.gpu.family import Family
from lamina.engines.gpu.gpus import GpuFamily
from lamina.engines.opencl.opening import open_device
from lamina.engines.opencl.processors import ProcessorFamily


def opencl_engine(name: str = "opencl") -> GpuEngine:
    """The engine of a device.

    Args:
        name: `"opencl"`, the first usable device, or `"opencl:1"`, or a part of its description,
            as in `"opencl:radeon"`.

    Raises:
        EngineError: if there is none.
    """
    return GpuEngine("opencl", partial(open_device, name), _family_for)


def _family_for(driver: Driver) -> Family:
    # Kernels for processors have long loops.
    if driver.traits.is_processor and driver.traits.most_iterations is None:
        words = replace(OPENCL_PROCESSOR, half=driver.words.half)
        return ProcessorFamily(driver.traits, words, driver.record.engine)
    return GpuFamily(driver.traits, driver.words, driver.record.engine)
