"""How long each step of a compiled program takes, and random examples on which it is run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from lamina.base.shapes import Array, DType, bind, size_of
from lamina.data import Dataset
from lamina.errors import DataError
from lamina.inspect.explanation import Explanation, Profile
from lamina.learning.protocols import Loss
from lamina.network import Network
from lamina.program.philox import VERIFICATION_STREAM, random_bits
from lamina.runtime.compiled import CompiledProgram
from lamina.runtime.parameters import Parameters
from lamina.step.derive import targets_of_terms

# Warm-up before the measurement, as a fraction of its time: caches fill, threads start, the
# processor reaches its clock rate.
_WARM_UP_SHARE = 0.2
_LEAST_RUNS = 3


def profiled(
    make: Callable[[bool], CompiledProgram],
    arrays: Sequence[Array],
    parameters: Parameters,
    seconds: float,
) -> Profile:
    """Runs the same program many times, untimed and then with a timer around each step."""
    with parameters.lock.mutex:
        plain, timed = make(False), make(True)
        try:
            alone = _seconds_alone(plain, arrays, seconds)
            _repeat(lambda: timed.run(arrays), seconds * _WARM_UP_SHARE)
            timed.executable.step_seconds()
            runs = len(_repeat(lambda: timed.run(arrays), seconds))
            steps = timed.executable.step_seconds() / runs
            engine, precision = parameters.engine, parameters.precision
            explanation = Explanation(len(arrays[0]), plain.program, engine)
            peaks = engine.peaks(precision.half or precision.dtype, tf32=precision.tf32)
            return Profile(explanation, runs, tuple(steps.tolist()), alone, peaks)
        finally:
            plain.executable.release()
            timed.executable.release()


def _seconds_alone(plain: CompiledProgram, arrays: Sequence[Array], seconds: float) -> float:
    """The time of a run without clocks: the median, or the mean if runs overlap on a device."""
    executable, buffers = plain.executable, plain.program.buffers
    outputs = sorted(plain.program.outputs, key=lambda one: buffers[one[1]].bytes)

    def wait() -> None:
        # Reading an output waits for the runs before.
        if not executable.synchronous and outputs:
            executable.output(outputs[0][0])

    _repeat(lambda: plain.run(arrays), seconds * _WARM_UP_SHARE)
    wait()
    started = time.perf_counter()
    taken = _repeat(lambda: plain.run(arrays), seconds)
    wait()
    elapsed = time.perf_counter() - started
    return float(np.median(taken)) if executable.synchronous else elapsed / len(taken)


def _repeat(call: Callable[[], None], seconds: float) -> list[float]:
    """Calls for `seconds`; the duration of each call in seconds."""
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < _LEAST_RUNS or time.perf_counter() < end:
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return taken


def random_normal(shape: tuple[int, ...], seed: int, number: int) -> Array:
    """Bounded random numbers of mean 0 and standard deviation 1: sums of uniform numbers."""
    size = size_of(shape)
    words = random_bits(seed, number, np.arange(4 * size, dtype=np.int64), VERIFICATION_STREAM)
    uniform = words.astype(np.float64).reshape(4, size) * 2.0**-32
    return ((uniform.sum(axis=0) - 2.0) * np.sqrt(3.0)).reshape(shape)


def random_examples(
    network: Network, loss: Loss | None, batch: int, seed: int, dtype: DType, *, where: str
) -> Dataset:
    """`batch` random examples, with targets that the loss accepts, if there is a loss."""
    inputs: list[Array] = []
    for number, tensor in enumerate(network.inputs):
        if not tensor.dtype.is_float:
            raise DataError(
                "random examples cannot be made for an input of integers",
                facts=(("input", repr(tensor)),),
                where=where,
                advice=f"Give some: {where}(..., data=(x, y)), "
                f"or lamina {where} FILE.py --data DATA.",
            )
        noise = random_normal(bind(tensor.shape, batch), seed, number)
        inputs.append(noise.astype(dtype.numpy))
    targets: list[Array] = []
    for term, specs in [] if loss is None else targets_of_terms(network, loss, dtype):
        # Lamina's losses make their own targets; a plain function gets the noise itself.
        suited = getattr(term.loss, "example_targets", None)
        compared = network.outputs[term.output or 0]
        for shape, kind in specs:
            noise = random_normal(bind(shape, batch), seed, 1000 + len(targets))
            if suited is not None:
                noise = suited(noise, bind(compared.shape, batch))
            targets.append(noise.astype(kind.numpy))
    return Dataset(tuple(inputs), tuple(targets) or None)
