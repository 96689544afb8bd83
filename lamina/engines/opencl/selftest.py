"""The self-test of a device: kernels with known results, run before the device is first used.

`selftest_kernels.py` has the kernels; each check of them looks for one fault.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from lamina.base.shapes import Array
from lamina.engines.opencl.devices import Found
from lamina.engines.opencl.driver import Buffer, OpenClDriver
from lamina.engines.opencl.selftest_kernels import COUNT, Check, Kernel, halves_for, program_for
from lamina.engines.opencl.verdicts import BINARIES, RECORDED, TIMERS, Fault, Verdict, remember
from lamina.errors import EngineError, InternalError

_ROUNDS = 8
# A launch takes at least this share of the time that the host sees, which includes making a queue.
_LEAST_SHARE = 1e-3
_ORDER = Fault("commands of a queue run in another order")
_PARTS = Fault("a part of a block is at another location of it")


def run_selftest(device: Found) -> Verdict:
    """Tests a device, and remembers the verdict: on disk too, if the driver did not fail."""
    try:
        driver = OpenClDriver(device, Verdict((BINARIES,)))
        verdict, on_disk = Verdict(tuple(_faults_of(driver))), True
    except (EngineError, InternalError) as error:
        # The first message of the driver, or of its compiler, follows.
        names = ("driver reported", "compiler")
        messages = [value for name, value in error.facts if name in names]
        text = ": ".join([error.problem, *messages[:1]])
        # It may be for lack of memory, so later processes try again.
        verdict, on_disk = Verdict((Fault(text),)), False
    # `chosen` returns no device without a handle.
    assert device.handle is not None
    remember(device.handle, verdict, on_disk=on_disk)
    return verdict


def _faults_of(driver: OpenClDriver) -> Iterator[Fault]:
    text, kernels = program_for(driver.traits)
    module = driver.build(text)
    results = [_results(driver, module, kernel) for kernel in kernels]
    for kernel, result in zip(kernels, results, strict=True):
        yield from _failed(kernel.checks, result)
    yield from _faults_of_queue(driver, module)
    if not _records(driver, module):
        yield RECORDED
    if not _has_timers(driver, module, kernels):
        yield TIMERS
    yield from _faults_of_binaries(driver, module, kernels, results)
    yield from _faults_of_halves(driver)


def _results(driver: OpenClDriver, module: cl.Program, kernel: Kernel) -> Array:
    result = np.zeros(kernel.length, kernel.dtype)
    with driver.errors(f"the self-test {kernel.name}"):
        made, buffer = _bound(driver, module, kernel)
        driver.queue.launch(made)
        driver.queue.read(result, buffer)
    return result


def _bound(driver: OpenClDriver, module: cl.Program, kernel: Kernel) -> tuple[Any, Buffer]:
    """The driver's kernel with its inputs, and the buffer of its results."""
    inputs = [driver.allocate(array.nbytes) for array in kernel.inputs]
    for buffer, array in zip(inputs, kernel.inputs, strict=True):
        driver.queue.write(buffer, array)
    results = driver.allocate(kernel.length * kernel.dtype.itemsize)
    made = driver.kernel(
        module, kernel.name, [*inputs, results], COUNT, numbered=False, group=kernel.group
    )
    return made, results


def _failed(checks: Sequence[Check], result: Array) -> Iterator[Fault]:
    """The faults whose checks have other results than expected."""
    start = 0
    for check in checks:
        values = result[start : start + check.expected.size]
        start += check.expected.size
        # The bits of floats of one sign are ordered like the floats.
        distance = np.maximum(values, check.expected) - np.minimum(values, check.expected)
        if (distance > check.tolerance).any():
            yield check.fault


def _faults_of_queue(driver: OpenClDriver, module: cl.Program) -> Iterator[Fault]:
    """Faults of commands that follow each other, and of parts of blocks."""
    size, offset = 4 * COUNT, driver.traits.alignment_bytes
    start = np.arange(COUNT, dtype="uint32")
    with driver.errors("the self-test of commands"):
        first, second = (driver.allocate(size) for _ in range(2))
        queue, expected, read_back = driver.queue, start, np.zeros_like(start)
        queue.write(first, start)
        update = driver.kernel(module, "update", [first, second], COUNT, numbered=True)
        for number in range(_ROUNDS):
            queue.launch(update, number)
            queue.copy(first, 0, second, size)
            expected = expected * 3 + number
        queue.read(read_back, first)
        if (read_back != expected).any():
            yield _ORDER
        # A kernel reads one part and writes the next, and a copy of that follows.
        content = np.zeros(2 * offset + 3 * size, "uint8")
        block = driver.allocate(content.nbytes)
        parts = [driver.part(block, offset + number * size) for number in range(3)]
        queue.write(parts[0], start)
        queue.launch(driver.kernel(module, "update", parts[:2], COUNT, numbered=True), 1)
        queue.copy(parts[2], 0, parts[1], size)
        queue.read(content, block)
    around, written = np.zeros(offset, "uint8"), (start * 3 + 1).view("uint8")
    if (content != np.concatenate([around, start.view("uint8"), written, written, around])).any():
        yield _PARTS


def _faults_of_halves(driver: OpenClDriver) -> Iterator[Fault]:
    """Whether float16 is converted wrongly by functions, or by the type of `cl_khr_fp16`."""
    for native in (False, True) if driver.traits.has_float16 else (False,):
        text, (kernel,) = halves_for(driver.traits, native=native)
        try:
            failed = [*_failed(kernel.checks, _results(driver, driver.build(text), kernel))]
        except (EngineError, InternalError):
            failed = [check.fault for check in kernel.checks]
        yield from failed[:1]


def _records(driver: OpenClDriver, module: cl.Program) -> bool:
    """Whether recorded launches compute what they should, each with its own number."""
    start = np.arange(COUNT, dtype="uint32")
    read_back, expected = np.zeros_like(start), start
    try:
        with driver.errors("the self-test of recorded launches"):
            first, second = (driver.allocate(start.nbytes) for _ in range(2))
            driver.queue.write(first, start)
            there = driver.kernel(module, "update", [first, second], COUNT, numbered=True)
            back = driver.kernel(module, "update", [second, first], COUNT, numbered=True)
            launches = [(kernel, number) for number in range(_ROUNDS) for kernel in (there, back)]
            sequence = driver.sequence(launches)
            for _ in range(2):
                driver.queue.run(sequence)
                for _, number in launches:
                    expected = expected * 3 + number
            driver.queue.read(read_back, first)
    except EngineError:
        return False
    return bool((read_back == expected).all())


def _has_timers(driver: OpenClDriver, module: cl.Program, kernels: Sequence[Kernel]) -> bool:
    """Whether the driver's times of a launch are possible by the host's clock."""
    (slowest,) = (kernel for kernel in kernels if kernel.name == "loops")
    with driver.errors("the self-test of times"):
        made, _ = _bound(driver, module, slowest)

    def is_possible() -> bool:
        with driver.errors("the self-test of times"):
            timed = driver.timed([(made, None)])
            started = time.perf_counter()
            device_seconds = timed()
            host_seconds = time.perf_counter() - started
        return _LEAST_SHARE * host_seconds <= device_seconds <= host_seconds

    try:
        # The host may be interrupted while it waits.
        return any(is_possible() for _ in range(_ROUNDS))
    except EngineError:
        return False


def _faults_of_binaries(
    driver: OpenClDriver, module: cl.Program, kernels: Sequence[Kernel], results: Sequence[Array]
) -> Iterator[Fault]:
    """Whether a program made of a binary computes something else than the program itself."""
    try:
        again = driver.loaded_again(module)
        if again is None:
            return
        reloaded = [_results(driver, again, kernel) for kernel in kernels]
    except EngineError:
        yield BINARIES
        return
    if any((after != before).any() for after, before in zip(reloaded, results, strict=True)):
        yield BINARIES
