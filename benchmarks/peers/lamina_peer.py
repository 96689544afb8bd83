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
from lamina.workloads import LARGE, LATENCIES, PRODUCTS, WORKLOADS, Runner

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
    known = WORKLOADS | PRODUCTS | LARGE | LATENCIES | SMALL
    return Lamina(dataclasses.replace(known[workload.name], batch=workload.batch), ENGINE, DTYPE)


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
    serve(make, versions(), measured_peak)
