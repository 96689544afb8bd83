"""Lamina's worker."""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import Any

import numpy as np
from worker import Data, Workload, serve

import lamina as lm
from lamina.engines.discovery import open_engine
from lamina.step.precision import precision_of
from lamina.workloads import LARGE, LATENCIES, PRODUCTS, SMALL, WORKLOADS, Runner

ENGINE = os.environ.get("BENCHMARK_ENGINE", "cpu")
DTYPE = os.environ.get("BENCHMARK_DTYPE", "float32")
# Descriptions of `Engine.peaks`.
PEAKS = {
    "cpu": "Lamina's multiply-add kernel in registers; STREAM's triad for the memory",
    "opencl": "multiply-adds in registers by all work items; a copy of an array in the memory",
}


class Lamina:
    def __init__(self, workload: Workload, _: Data) -> None:
        # Lamina has the record, the data and the initial parameters itself.
        known = WORKLOADS | PRODUCTS | LARGE | SMALL | LATENCIES
        own = dataclasses.replace(known[workload.name], batch=workload.batch)
        self._runner = Runner(own, ENGINE, DTYPE)
        self._trains = workload.loss is not None
        self.run = self._runner.run
        self.reset = self._runner.reset

    def result(self) -> list[np.ndarray]:
        if self._trains:
            return list(self._runner.parameters().values())
        return [self._runner.outputs()]


make = Lamina


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
