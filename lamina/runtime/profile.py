"""How long each step of a compiled program takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from lamina.explanation import Explanation, Profile
from lamina.runtime.compiled import CompiledProgram
from lamina.runtime.parameters import Parameters
from lamina.shapes import Array

# Runs before clocks count: caches fill, threads wake, the processor speeds up.
_WARM_UP_SHARE = 0.2
_LEAST_RUNS = 3


def profiled(
    make: Callable[[bool], CompiledProgram],
    arrays: Sequence[Array],
    parameters: Parameters,
    seconds: float,
) -> Profile:
    """Runs the same step many times, without and with clocks.

    Args:
        make: compiles the step, to be timed or not.
        arrays: its inputs and targets.
        parameters: of the model.
        seconds: about how long each of the two is run.
    """
    with parameters.lock.mutex:
        plain, timed = make(False), make(True)
        try:
            return _profiled(plain, timed, arrays, parameters, seconds)
        finally:
            plain.executable.release()
            timed.executable.release()


def _profiled(
    plain: CompiledProgram,
    timed: CompiledProgram,
    arrays: Sequence[Array],
    parameters: Parameters,
    seconds: float,
) -> Profile:
    _repeat(lambda: plain.run(arrays), seconds * _WARM_UP_SHARE)
    taken = _repeat(lambda: plain.run(arrays), seconds)
    _repeat(lambda: timed.run(arrays), seconds * _WARM_UP_SHARE)
    timed.executable.step_seconds()
    runs = len(_repeat(lambda: timed.run(arrays), seconds))
    steps = timed.executable.step_seconds() / runs
    engine = parameters.engine
    explanation = Explanation(len(arrays[0]), plain.program, engine)
    peaks = engine.peaks(parameters.dtype)
    return Profile(explanation, runs, tuple(steps.tolist()), float(np.median(taken)), peaks)


def _repeat(call: Callable[[], None], seconds: float) -> list[float]:
    """The seconds of each call, until so many have passed."""
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < _LEAST_RUNS or time.perf_counter() < end:
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return taken
