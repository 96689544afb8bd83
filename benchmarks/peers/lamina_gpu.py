"""Lamina's worker of `gpu.py`: tunes, compiles, and measures the limits of the device.

The program cache, with the choices of tuning, is the folder that the harness names.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from gpu_device import takes_tf32
from gpu_limits import limits, small_measurements
from gpu_workloads import named
from lamina_peer import DTYPE, ENGINE, Lamina
from worker import Data, serve

import lamina as lm
from lamina.engines.discovery import open_engine
from lamina.inspect.bill import MemoryBill
from lamina.runtime.compiled import CompiledProgram
from lamina.step.precision import precision_of
from lamina.workloads import SEED, Workload

# Environment variables: small workloads; the machine of the tests instead of a GPU; the seconds of
# tuning a program, "all" to try every candidate.
TINY, MACHINE, TUNING = "BENCHMARK_TINY", "BENCHMARK_MACHINE", "BENCHMARK_TUNING"
# All small workloads fit.
MACHINE_BYTES = 64 << 20
TESTS = Path(__file__).parents[2] / "tests"
PRECISION = "tf32" if takes_tf32() else "float32"


class LaminaOnGpu(Lamina):
    """A workload on the engine. Its programs are tuned before they are compiled."""

    def __init__(self, record: Any, _: Data) -> None:
        workload = named(record.name, bool(os.environ.get(TINY)))
        started = time.perf_counter()
        _tune(workload, os.environ[TUNING])
        self._tuned = time.perf_counter() - started
        super().__init__(workload, ENGINE, DTYPE, PRECISION)

    def resident_seconds(self, steps: int) -> float:
        """Seconds of repeated runs of the program, on the inputs that are on the device."""
        # Other programs of the model may have used the same memory.
        self.run(1)
        programs = self._programs()
        started = time.perf_counter()
        for program in programs:
            program.executable.repeat(steps)
        return time.perf_counter() - started

    def _programs(self) -> list[CompiledProgram]:
        """The programs of a call: one of a training step, one for each batch of a forward pass."""
        count = self.workload.batch
        if self._training is not None:
            return [self._training._program(count)]
        inference = self._model._inference
        size = min(count, inference._largest_batch)
        return [inference.program([self._x[at : at + size]]) for at in range(0, count, size)]

    def notes(self) -> dict[str, Any]:
        """The seconds of tuning, and the bytes of the program."""
        bytes_ = 0
        engine = open_engine(ENGINE)
        for compiled in self._programs():
            planned = MemoryBill(self.workload.batch, compiled.program).peak_bytes
            bytes_ = max(bytes_, planned + (engine.workspace_bytes(compiled.program) or 0))
        return {"tuned_seconds": self._tuned, "bytes": bytes_}


def _tune(workload: Workload, how: str) -> None:
    """Keeps the choices for a workload's program in the cache.

    Args:
        workload: to be tuned.
        how: "all" tries every candidate of the considerable steps; otherwise LAMINA_TUNE has the
            seconds.
    """
    types = {"dtype": DTYPE, "precision": PRECISION}
    model = lm.Model(workload.network(), engine=ENGINE, seed=SEED, **types)
    options = (workload.batch, workload.loss, workload.optimizer)
    if how == "all":
        model.tune(*options)
    else:
        explanation = model.explain(*options)
        explanation.engine._tuner.choices(explanation.program)


def versions() -> dict[str, Any]:
    engine = open_engine(ENGINE)
    device = engine.device
    return {
        "lamina": lm.__version__,
        "engine": device.engine,
        "dtype": precision_of(DTYPE, lambda: engine.device, PRECISION).name,
        "products": PRECISION,
        "numpy": np.__version__,
        "python": sys.version.split()[0],
        "device": device.description,
        "platform": device.platform,
        "driver": device.driver,
        "version": device.version,
        "memory_bytes": device.memory_bytes,
        "compute_units": device.compute_units,
    }


def main() -> None:
    machine = bool(os.environ.get(MACHINE))
    if machine:
        sys.path.append(str(TESTS))
        from cuda_machine.engine import machine_without_gpu

        if machine_without_gpu(MACHINE_BYTES) is None:
            raise SystemExit("there is a GPU: leave --machine out")
        small_measurements()
    serve(LaminaOnGpu, versions(), lambda: limits(ENGINE, DTYPE))


if __name__ == "__main__":
    main()
