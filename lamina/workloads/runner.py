"""Runs a workload with Lamina, and measures it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from lamina.engines.discovery import DEFAULT_ENGINE
from lamina.model import Model
from lamina.population import Population
from lamina.runtime.predictor import Predictor
from lamina.training.population import PopulationTraining
from lamina.training.training import Training
from lamina.workloads.definitions import SEED, Workload

# Calls are timed in groups of at least so many seconds, so that reading the clock costs nothing.
SHORTEST_SAMPLE = 0.02
# A run of fixed length is shortened if it would take longer than this multiple of the given time.
LONGEST_RUN = 10.0


class Runner:
    """A workload compiled by Lamina on an engine, with its data in memory.

    Example:
        >>> from lamina.workloads import WORKLOADS
        >>> runner = Runner(WORKLOADS["tiny-step"])
        >>> runner.run(steps=3)
        >>> runner.release()
    """

    def __init__(
        self,
        workload: Workload,
        engine: str = DEFAULT_ENGINE,
        dtype: str = "float32",
        precision: str = "float32",
    ) -> None:
        self.workload = workload
        self._x, self._y = workload.data()
        network, members = workload.network(), workload.members
        self._model: Model | Population
        if members is None:
            self._model = Model(network, engine, SEED, dtype, precision)
        else:
            self._model = Population(network, members, engine, dtype=dtype, precision=precision)
        self._training: Training | PopulationTraining | None = None
        self._predict: Predictor | None = None
        if workload.timed == "predict" and isinstance(self._model, Model):
            self._predict = self._model.predictor(workload.batch)
            self._result = self._predict(self._x)
        if workload.loss is not None and workload.optimizer is not None:
            self._training = self._model.training(
                loss=workload.loss, optimizer=workload.optimizer, batch_size=workload.batch
            )

    def run(self, steps: int) -> None:
        """Runs training steps or forward passes by the public API, and waits for the last."""
        x, y, training = self._x, self._y, self._training
        if self._predict is not None:
            for _ in range(steps):
                self._predict(x, out=self._result)
        elif training is None:
            for _ in range(steps):
                self._model.predict(x)
        elif self.workload.timed == "run":
            training.run((x, y), steps)
        else:
            loss = training.step(x, y)
            for _ in range(steps - 1):
                loss = training.step(x, y)
            float(loss)

    def release(self) -> None:
        """Gives the memory of the training or the predictor back."""
        if self._predict is not None:
            self._predict.release()
        if self._training is not None:
            self._training.release()


def measure(runner: Runner, seconds: float) -> list[float]:
    """Seconds per training step or forward pass, several samples; releases the runner."""

    def timed(steps: int) -> float:
        started = time.perf_counter()
        runner.run(steps)
        return time.perf_counter() - started

    try:
        return samples(timed, seconds, runner.workload.steps)
    finally:
        runner.release()


def samples(run: Callable[[int], float], seconds: float, run_length: int = 0) -> list[float]:
    """The seconds of each run."""
    # The first call may compile or record something.
    run(1)
    steps, taken = 1, run(1)
    shortest = seconds if run_length else SHORTEST_SAMPLE
    most = run_length or sys.maxsize
    while taken < shortest and steps < most:
        # The first calls are slower than later ones, so the guess may grow by a factor of 16 only.
        guess = int(1.2 * shortest / max(taken, 1e-9) * steps)
        steps = min(max(guess, 2 * steps), 16 * steps, most)
        taken = run(steps)
    if run_length and run_length * taken / steps <= LONGEST_RUN * seconds:
        steps = run_length
    measured: list[float] = []
    total = 0.0
    while total < seconds:
        taken = run(steps)
        total += taken
        measured.append(taken / steps)
    return measured
