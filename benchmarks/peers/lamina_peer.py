"""Lamina's worker."""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import Any

import numpy as np
from small_workloads import SMALL
from worker import Data, Workload, serve

import lamina as lm
from lamina.engines.discovery import open_engine
from lamina.step.precision import precision_of
from lamina.workloads import LARGE, LATENCIES, POPULATIONS, PRODUCTS, SEED, WORKLOADS, Runner

ENGINE = os.environ.get("BENCHMARK_ENGINE", "cpu")
DTYPE = os.environ.get("BENCHMARK_DTYPE", "float32")
# Descriptions of `Engine.peaks`.
PEAKS = {
    "cpu": "Lamina's multiply-add kernel in registers; STREAM's triad for the memory",
    "opencl": "multiply-adds in registers by all work items; a copy of an array in the memory",
}


class Lamina(Runner):
    """A runner that begins again, and whose results are compared with other peers' results."""

    def __init__(self, *workload_and_types: Any) -> None:
        super().__init__(*workload_and_types)
        self._first = self._model.parameters()
        self._first_state = None if self._training is None else self._training.state()

    def reset(self) -> None:
        """Restores the initial parameters and the initial state of the training."""
        self._model.set_parameters(self._first)
        if self._training is not None:
            self._training.restore(self._first_state)

    def result(self) -> list[np.ndarray]:
        """The parameters of a training; otherwise the outputs for the inputs of the workload."""
        if self._training is not None:
            return list(self._model.parameters().values())
        return [self._model.predict(self._x) if self._predict is None else self._result]


def make(workload: Workload, _: Data) -> Lamina:
    # Lamina has the record, the data and the initial parameters itself.
    known = WORKLOADS | PRODUCTS | LARGE | LATENCIES | POPULATIONS | SMALL
    return Lamina(dataclasses.replace(known[workload.name], batch=workload.batch), ENGINE, DTYPE)


class Alone:
    """The members of a population one after the other, each as a model of its own.

    A run of all is timed as one long run of the first, which favours it: no member has to come from
    the memory, and there is one call.
    """

    def __init__(self, workload: Workload, _: Data) -> None:
        self._workload = POPULATIONS[workload.name]
        self._data, self._members = self._workload.data(), workload.members
        self._model = lm.Model(self._workload.network(), engine=ENGINE, seed=SEED)
        how = {name: getattr(self._workload, name) for name in ("loss", "optimizer")}
        self._training = self._model.training(**how, batch_size=self._workload.batch, seed=SEED)
        self._first = self._model.parameters(), self._training.state()
        self._done = 0

    def run(self, steps: int) -> None:
        self._training.run(self._data, steps * self._members)
        self._done += steps

    def reset(self) -> None:
        parameters, state = self._first
        self._training.restore(state, parameters)
        self._done = 0

    def result(self) -> list[np.ndarray]:
        """The parameters of all members after as many training steps."""
        each: list[dict[str, np.ndarray]] = []
        for seed in range(self._members):
            first = lm.Model(self._workload.network(), engine="interpreter", seed=seed).parameters()
            self._training.restore(self._first[1] | {"seed": np.asarray(seed)}, first)
            self._training.run(self._data, self._done, seed=seed)
            each.append(self._model.parameters())
        return [np.stack([one[name] for one in each]) for name in each[0]]

    def release(self) -> None:
        self._training.release()


def versions() -> dict[str, Any]:
    from importlib.metadata import version  # a cold start does not need it

    return {
        "lamina": lm.__version__,
        "engine": ENGINE,
        "dtype": DTYPE,
        "llvmlite": version("llvmlite"),
        "numpy": np.__version__,
        "python": sys.version.split()[0],
        "device": open_engine(ENGINE).device.description,
        "blas": "none",
        "LAMINA_THREADS": os.environ.get("LAMINA_THREADS"),
    }


def measured_peak() -> dict[str, Any]:
    """The measured peaks of the device, with all threads that are allowed."""
    engine = open_engine(ENGINE)
    precision = precision_of(DTYPE, lambda: engine.device)
    peaks = engine.peaks(precision.half or precision.dtype)
    if peaks is None:
        return {"problem": "the engine measures no peak"}
    return {
        "gflops": peaks.operations / 1e9,
        "gigabytes_per_second": peaks.bytes / 1e9,
        "how": PEAKS[ENGINE.partition(":")[0]],
    }


if __name__ == "__main__":
    serve(Alone if sys.argv[1:] else make, versions(), measured_peak)
