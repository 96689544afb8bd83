"""The limits of a device of Lamina's engines for GPUs: its peaks, and the time of a launch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from lamina.codegen.values import FLOAT
from lamina.engines.discovery import open_engine
from lamina.engines.gpu import peaks, tuning
from lamina.engines.gpu.driver import Driver, Kernel
from lamina.engines.gpu.engine import GpuEngine
from lamina.engines.gpu.kernels import module_for
from lamina.engines.gpu.memory import Block
from lamina.step.precision import precision_of

# The launches of a sequence, and how often each is timed.
LAUNCHES, TIMES = 100, 50
# Of an array that stays in the cache that all compute units share, together with its copy.
CACHED_BYTES = 4 << 20


def small_measurements() -> None:
    """Makes the measuring kernels, and tuning, small enough for a machine without a GPU."""
    global LAUNCHES, TIMES, CACHED_BYTES
    LAUNCHES, TIMES, CACHED_BYTES = 4, 2, 1 << 12
    peaks._ITEMS_PER_COMPUTE_UNIT, peaks._CALLS = 64, 2
    peaks._MOST_BYTES, peaks._LEAST_SECONDS = 1 << 16, 0.0
    # No step of a small workload takes as long as a launch. All are tuned nevertheless, as far as
    # the seconds suffice, so that tuning is tried out.
    tuning.LEAST_SHARE, tuning.LEAST_LAUNCHES = 0.0, 0


def limits(engine_name: str, dtype: str) -> dict[str, Any]:
    """The measured limits of the device.

    Raises:
        TypeError: for an engine that is none for GPUs.
    """
    engine = open_engine(engine_name)
    if not isinstance(engine, GpuEngine):
        raise TypeError(f"{engine_name} has no kernels for GPUs")
    precision = precision_of(dtype, lambda: engine.device)
    rates = engine.peaks(precision.half or precision.dtype)
    return {
        "gflops": rates.operations / 1e9,
        "gigabytes_per_second": rates.bytes / 1e9,
        "cached_gigabytes_per_second": cached_bytes_a_second(engine._driver) / 1e9,
        "how": "multiply-adds of float32 in registers by all work items; a copy in the memory",
    } | launch_seconds(engine._driver)


def cached_bytes_a_second(driver: Driver) -> float:
    """The bytes that copies of a small array move, launches included."""
    type = FLOAT.wide(4)
    items = CACHED_BYTES // 16
    module = module_for(driver.traits, driver.words)
    peaks.write_copy(module, type, items)
    blocks = [Block(driver, CACHED_BYTES) for _ in range(2)]
    buffers = [block.buffer for block in blocks]
    with driver.errors("measuring"):
        built = driver.build(module.text())
        kernel = driver.kernel(built, "copy", buffers, items, numbered=False)
        many = driver.sequence([(kernel, None)] * LAUNCHES)
        seconds = _median(driver, lambda: driver.queue.run(many)) / LAUNCHES
    for block in blocks:
        block.release()
    return 2 * CACHED_BYTES / seconds


def launch_seconds(driver: Driver) -> dict[str, float]:
    """Seconds of launches of a kernel that does nothing, from the host's call on.

    A sequence is a CUDA graph, or what the driver of another language has for repeated launches.
    """
    kernel = empty_kernel(driver)
    queue = driver.queue
    with driver.errors("measuring"):
        single = driver.sequence([(kernel, None)])
        many = driver.sequence([(kernel, None)] * LAUNCHES)
        return {
            "launch_seconds": _median(driver, lambda: queue.launch(kernel)),
            "sequence_seconds": _median(driver, lambda: queue.run(single)),
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
