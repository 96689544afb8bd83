"""The host's time per training step and per kernel launch on an OpenCL device.

    python benchmarks/launches.py [--engine opencl] [--workload NAME]... [--rounds 5] [--json FILE]

For each workload it prints the number of kernel launches of the program of a training step (the
gathers of the examples and the copies of the losses come in addition), the time of a training
step in `training.run`, and the processor time of the thread that calls `training.run` or
`training.step`, each divided by the launches too. A call of `training.run` uploads its data once,
which counts. The device is idle before each measured call of `training.step`. Waiting takes no
processor time, and threads of the driver do not count.

Launches of an empty kernel show the driver's own cost. pyopencl enqueues them in the same rounds.
Medians of the rounds are printed.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyopencl as cl
from harness import engine_name, kind_of, machine, time_text, write_json

import lamina as lm
from lamina.engines.discovery import open_engine
from lamina.engines.gpu.engine import GpuEngine
from lamina.engines.opencl.devices import chosen as chosen_device
from lamina.engines.opencl.devices import found_devices
from lamina.reports import table_text
from lamina.workloads import SEED, WORKLOADS, Workload

# The data set of `training.run` has at most so many batches and bytes of inputs, so that the work
# of an epoch is divided by many training steps, and the upload of the data takes little time.
MOST_BATCHES, MOST_BYTES = 1000, 2 << 20
# Launches of the empty kernel in a round.
EMPTY_LAUNCHES = 2000
# Work items of the empty kernel, in one work group.
EMPTY_ITEMS = 64

Figures = dict[str, float]


class Steps:
    """The training step of a workload, by `training.step` and by `training.run`."""

    def __init__(self, workload: Workload, engine: str) -> None:
        assert workload.loss is not None
        assert workload.optimizer is not None
        self._batch = workload.data()
        batches = max(1, min(MOST_BATCHES, MOST_BYTES // self._batch[0].nbytes))
        self._data = dataclasses.replace(workload, examples=batches * workload.batch).data()
        model = lm.Model(workload.network(), engine=engine, seed=SEED)
        self._training = model.training(
            loss=workload.loss, optimizer=workload.optimizer, batch_size=workload.batch
        )
        opened = open_engine(engine)
        assert isinstance(opened, GpuEngine)
        self.launches = opened.launch_count(self._training.bill.program)
        # Drivers compile kernels at their first launch.
        self.step(1)
        self.run(1)

    def step(self, count: int) -> float:
        """Processor seconds of this thread in that many calls of `training.step`."""
        x, y = self._batch
        seconds = 0.0
        for _ in range(count):
            started = time.thread_time()
            loss = self._training.step(x, y)
            seconds += time.thread_time() - started
            float(loss)
        return seconds

    def run(self, count: int) -> tuple[float, float]:
        """Seconds, and processor seconds of this thread, in one call of `training.run`."""
        started, host = time.perf_counter(), time.thread_time()
        self._training.run(self._data, steps=count, seed=SEED)
        return time.perf_counter() - started, time.thread_time() - host

    def measure(self, seconds: float) -> Figures:
        """The seconds of a training step, and those that the host computes."""
        started = time.perf_counter()
        self.step(1)
        count = max(1, int(seconds / 2 / (time.perf_counter() - started)))
        host = self.step(count) / count
        total, host_run = self.run(count)
        return {"seconds": total / count, "host_run": host_run / count, "host_step": host}

    def release(self) -> None:
        self._training.release()


class EmptyLaunches:
    """Launches of a kernel that does nothing, in a context of their own."""

    def __init__(self, engine: str) -> None:
        device = chosen_device(engine, found_devices()).handle
        context = cl.Context([device])
        self._queue = cl.CommandQueue(context)
        program = cl.Program(context, "kernel void empty(void) {}").build(cache_dir=False)
        self._kernel = cl.Kernel(program, "empty")
        self._enqueue(1)
        cl.enqueue_marker(self._queue).wait()

    def _enqueue(self, count: int) -> None:
        for _ in range(count):
            cl.enqueue_nd_range_kernel(self._queue, self._kernel, (EMPTY_ITEMS,), (EMPTY_ITEMS,))
        self._queue.flush()

    def measure(self) -> Figures:
        """Seconds of a launch: those that the host computes, and until the last one is done."""
        started, host = time.perf_counter(), time.thread_time()
        self._enqueue(EMPTY_LAUNCHES)
        host = time.thread_time() - host
        cl.enqueue_marker(self._queue).wait()
        total = time.perf_counter() - started
        return {"host": host / EMPTY_LAUNCHES, "seconds": total / EMPTY_LAUNCHES}


def medians(rounds: list[Figures]) -> Figures:
    return {name: statistics.median(figures[name] for figures in rounds) for name in rounds[0]}


def row(name: str, launches: int, summary: Figures) -> list[str]:
    cells = [name, str(launches)]
    for figure in ("seconds", "host_run", "host_step"):
        cells += [time_text(summary[figure]), time_text(summary[figure] / launches)]
    return cells


def opencl_name(text: str) -> str:
    """The name of an OpenCL engine on the command line.

    Raises:
        argparse.ArgumentTypeError: for another one.
    """
    if kind_of(engine_name(text)) != "opencl":
        raise argparse.ArgumentTypeError(f"must be opencl or one of its devices, not {text!r}")
    return text


def main() -> None:
    # A run of many training steps has the program of one.
    names = [
        name
        for name, workload in WORKLOADS.items()
        if workload.loss is not None and not workload.steps
    ]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--engine", default="opencl", type=opencl_name, help="default: opencl")
    parser.add_argument("--workload", action="append", choices=names, default=[])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each workload in a round")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print(f"{arguments.engine}: {open_engine(arguments.engine).device.description}")
    empty, figures = EmptyLaunches(arguments.engine), defaultdict[str, list[Figures]](list)
    steps: dict[str, Steps] = {}
    for name in arguments.workload or names:
        print(f"... {name}", flush=True)
        steps[name] = Steps(WORKLOADS[name], arguments.engine)
    for _ in range(arguments.rounds):
        figures["empty"].append(empty.measure())
        for name, training in steps.items():
            figures[name].append(training.measure(arguments.seconds))
    summary = {name: medians(rounds) for name, rounds in figures.items()}
    launches = {name: training.launches for name, training in steps.items()}
    for training in steps.values():
        training.release()
    header = ("workload", "launches", "training step", "a launch")
    header += ("host in run", "a launch", "host in step", "a launch")
    rows = [row(name, launches[name], summary[name]) for name in steps]
    print(f"\n{table_text(header, rows, align='lr')}")
    host, total = (time_text(summary["empty"][key]) for key in ("host", "seconds"))
    print(f"\nlaunch of an empty kernel: {total}; the host computes for {host} of it")
    if arguments.json:
        report: dict[str, Any] = {"machine": machine(), "engine": arguments.engine}
        write_json(
            arguments.json, report | {"launches": launches, "rounds": figures, "medians": summary}
        )


if __name__ == "__main__":
    main()
