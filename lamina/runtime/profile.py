"""How long each step of a compiled program takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from lamina.base.shapes import Array
from lamina.inspect.explanation import Explanation, Profile
from lamina.runtime.compiled import CompiledProgram
from lamina.runtime.parameters import Parameters

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
    outputs = sorted(plain.program.outputs, key=lambda output: buffers[output[1]].bytes)

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
