"""Host time of training steps on a device that runs kernels, per training step and per launch.

    python benchmarks/launches.py --engine opencl --workload tiny-step

It prints microseconds, medians of several rounds:

- `host`: from the call of `training.step` until it returns. A queue that is full makes it wait, so
  few training steps are called before the device is waited for.
- `whole`: until the device is done, for each of many training steps.
- `driver`: the same for the kernels alone, which are enqueued again and again without inputs.
- `run`: the same for training steps over a data set on the device.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import lamina as lm
from lamina.data import as_dataset
from lamina.engines.gpu.executable import GpuProgram
from lamina.reports import table_text
from lamina.workloads import SEED, SMALL, WORKLOADS

# The device is at most so many training steps late; its queue then takes more without waiting.
FEW, MANY = 8, 100


def microseconds(
    call: Callable[[], Any], wait: Callable[[], Any], count: int
) -> tuple[float, float]:
    """The time until some calls have returned, and until the device is done, for each of them."""
    wait()
    started = time.perf_counter()
    for _ in range(count):
        call()
    returned = time.perf_counter()
    wait()
    done = time.perf_counter()
    return 1e6 * (returned - started) / count, 1e6 * (done - started) / count


def row(name: str, engine: str, rounds: int) -> tuple[str, ...]:
    """The measurements of a workload."""
    workload = (WORKLOADS | SMALL)[name]
    model = lm.Model(workload.network(), engine=engine, seed=SEED)
    x, y = workload.data()
    data, size = as_dataset((x, y)), workload.batch
    assert workload.loss is not None
    assert workload.optimizer is not None
    with (
        model.training(workload.loss, workload.optimizer, size, data=data) as training,
        training.uploaded(data) as resident,
    ):
        program: Any = training._program(size).executable
        if not isinstance(program, GpuProgram):
            raise SystemExit(f"{engine} has no launches")
        queue, launches = program._driver.queue, len(program._order)
        rows = np.tile(np.arange(size), (MANY, 1))
        batch = x[:size], None if y is None else y[:size]

        def step() -> None:
            training.step(*batch)

        def alone() -> None:
            queue.run(program._sequence)

        step()
        training._run_batches(resident, rows[:1])
        found: dict[str, list[float]] = {"host": [], "whole": [], "driver": [], "run": []}
        for _ in range(rounds):
            found["host"].append(microseconds(step, queue.finish, FEW)[0])
            found["whole"].append(microseconds(step, queue.finish, MANY)[1])
            found["driver"].append(microseconds(alone, queue.finish, MANY)[1])
            run = microseconds(lambda: training._run_batches(resident, rows), queue.finish, 1)
            found["run"].append(run[1] / MANY)
    medians = [statistics.median(times) for times in found.values()]
    cells = [f"{one:.0f} ({one / launches:.1f})" for one in medians]
    return name, str(launches), *cells


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", default="opencl")
    parser.add_argument(
        "--workload", action="append", choices=[*WORKLOADS, *SMALL], default=[], metavar="NAME"
    )
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    names = given.workload or ["tiny-step", "control"]
    rows = [row(name, given.engine, given.rounds) for name in names]
    header = ("workload", "launches", "host", "whole", "driver", "run")
    print("microseconds per training step (per launch)\n")
    print(table_text(header, rows, align="lr"))


if __name__ == "__main__":
    main()
