"""The limits of a device of Lamina's engines for GPUs: its peaks, and the time of a launch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from lamina.engines.discovery import open_engine
from lamina.engines.gpu import peaks, tuning
from lamina.engines.gpu.driver import Driver, Kernel
from lamina.engines.gpu.engine import GpuEngine
from lamina.engines.gpu.kernels import module_for
from lamina.step.precision import precision_of

# The launches of a sequence, and how often each is timed.
LAUNCHES, TIMES = 100, 50


def small_measurements() -> None:
    """Makes the measuring kernels, and tuning, small enough for a machine without a GPU."""
    global LAUNCHES, TIMES
    LAUNCHES, TIMES = 4, 2
    peaks._ITEMS_PER_COMPUTE_UNIT, peaks._CALLS = 64, 2
    peaks._MOST_BYTES, peaks._LEAST_SECONDS = 1 << 16, 0.0
    # No step of a small workload takes as long as some launches. Those that take a tenth of the
    # time are tuned nevertheless, so that tuning is tried out.
    tuning.LEAST_SHARE, tuning.LEAST_LAUNCHES = 0.1, 0


def limits(engine_name: str, dtype: str) -> dict[str, Any]:
    """The measured limits of the device.

    Raises:
        TypeError: for an engine that is none for GPUs.
    """
    engine = open_engine(engine_name)
    if not isinstance(engine, GpuEngine):
        raise TypeError(f"{engine_name} has no kernels for GPUs")
    precision = precision_of(dtype, lambda: engine.device)
    found = engine.peaks(precision.half or precision.dtype)
    return {
        "gflops": found.operations / 1e9,
        "gigabytes_per_second": found.bytes / 1e9,
        "how": "multiply-adds of float32 in registers by all work items; a copy in the memory",
    } | launch_seconds(engine._driver)


def launch_seconds(driver: Driver) -> dict[str, float]:
    """Seconds of launches of a kernel that does nothing, from the host's call on.

    A sequence is a CUDA graph, or what the driver of another language has for repeated launches.
    """
    kernel = empty_kernel(driver)
    queue = driver.queue
    with driver.errors("measuring"):
        one = driver.sequence([(kernel, None)])
        many = driver.sequence([(kernel, None)] * LAUNCHES)
        return {
            "launch_seconds": _median(driver, lambda: queue.launch(kernel)),
            "sequence_seconds": _median(driver, lambda: queue.run(one)),
            "launch_in_sequence_seconds": _median(driver, lambda: queue.run(many)) / LAUNCHES,
        }


def empty_kernel(driver: Driver) -> Kernel:
    """A kernel of one work item without arguments that it uses."""
    module = module_for(driver.traits, driver.words)
    module.kernel("empty", [], [])
    return driver.kernel(driver.build(module.text()), "empty", [], 1, numbered=False)


def _median(driver: Driver, enqueue: Callable[[], None]) -> float:
    """Seconds from the call until the device is done; the device is idle before."""

    def seconds() -> float:
        driver.queue.finish()
        started = time.perf_counter()
        enqueue()
        driver.queue.flush()
        driver.queue.finish()
        return time.perf_counter() - started

    seconds()
    return statistics.median(seconds() for _ in range(TIMES))
