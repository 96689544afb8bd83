"""Speed and memory of training on a stream, against a data set in memory.

    python benchmarks/streaming.py [--gigabytes 4] [--dtype uint8] [--engine cpu] [--rounds 5]

The workload `mlp`: 784-256-128-10, batches of 128, cross-entropy, Adam. The source makes batches of
1,024 examples. Each is a copy of a stretch of a block of random numbers, beginning at another
example: a generator that is cheaper than any that reads a file. Its own speed is printed, because
it is the limit of the stream.

The ratio is measured in one process that alternates between training steps on a data set in memory
and as many on the stream. The resident sizes are read from /proc/self/status in fresh processes:
a process that trains an epoch on the whole stream, and one that imports, compiles and trains a
few steps on it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import lamina as lm
from lamina.reports import bytes_text, table_text
from lamina.workloads import WORKLOADS, Workload

INPUTS, CLASSES, BATCH, SOURCE_BATCH = 784, 10, 128, 1024
# The examples of the block from which batches are copied, and of the data set in memory.
BLOCK = 16_384


def block(dtype: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Random inputs and labels."""
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (BLOCK, INPUTS), dtype="uint8")
    return (x if dtype == "uint8" else (x / 255).astype(dtype)), random.integers(0, CLASSES, BLOCK)


def source(dtype: str, examples: int) -> Callable[[int], Iterator[Any]]:
    """A generator function of so many examples."""
    x, y = block(dtype)

    def batches(epoch: int) -> Iterator[Any]:
        for number in range(examples // SOURCE_BATCH):
            start = (epoch + 997 * number) % (BLOCK - SOURCE_BATCH)
            rows = slice(start, start + SOURCE_BATCH)
            yield x[rows].copy(), y[rows].copy()

    return batches


def model(engine: str) -> lm.Model:
    return lm.Model(workload().network(), engine=engine)


def workload() -> Workload:
    return WORKLOADS["mlp"]


def training(engine: str, dtype: str) -> Any:
    task = workload()
    sample = lm.data.Dataset(*(array[:BATCH] for array in block(dtype)))
    return model(engine).training(task.loss, task.optimizer, BATCH, data=sample)


def resident_bytes() -> dict[str, int]:
    """The present and the largest resident size of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[name].split()[0]) << 10 for name in ("VmRSS", "VmHWM")}


def train_once(engine: str, dtype: str, examples: int) -> None:
    """One epoch of a stream; prints the largest resident size and the examples per second."""
    task = workload()
    started = time.perf_counter()
    model(engine).fit(
        lm.data.Stream(source(dtype, examples)),
        loss=task.loss,
        optimizer=task.optimizer,
        batch_size=BATCH,
        progress=False,
    )
    seconds = time.perf_counter() - started
    print(resident_bytes()["VmHWM"], examples / seconds)


def measured(engine: str, dtype: str, examples: int) -> tuple[int, float]:
    """The largest resident size of a fresh process, and its examples per second."""
    command = [sys.executable, __file__, "--once", str(examples)]
    command += ["--engine", engine, "--dtype", dtype]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return int(found[0]), float(found[1])


def alternated(engine: str, dtype: str, rounds: int, steps: int) -> tuple[list[float], list[float]]:
    """Examples per second in memory and from the stream, in each round."""
    x, y = block(dtype)
    in_memory, streamed = [], []
    stream = lm.data.Stream(source(dtype, BATCH * steps))
    with training(engine, dtype) as model_training:
        model_training.run((x, y), steps)
        for _ in range(rounds):
            for data, rates in (((x, y), in_memory), (iter(stream.source(0)), streamed)):
                started = time.perf_counter()
                count = len(model_training.run(data, steps))
                rates.append(count * BATCH / (time.perf_counter() - started))
    return in_memory, streamed


def generator_rate(dtype: str) -> float:
    """The examples per second that the source makes, without a training."""
    started, count = time.perf_counter(), 0
    for x, _ in source(dtype, 200 * SOURCE_BATCH)(0):
        count += len(x)
    return count / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--dtype", default="uint8", choices=["uint8", "float32"])
    parser.add_argument("--engine", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--once", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    engine, dtype = arguments.engine, arguments.dtype
    if arguments.once is not None:
        train_once(engine, dtype, arguments.once)
        return
    each = INPUTS * np.dtype(dtype).itemsize
    examples = int(arguments.gigabytes * 1e9) // each
    small, _ = measured(engine, dtype, 8 * SOURCE_BATCH)
    large, rate = measured(engine, dtype, examples)
    in_memory, streamed = alternated(engine, dtype, arguments.rounds, arguments.steps)
    ratios = sorted(b / a for a, b in zip(in_memory, streamed, strict=True))
    rows = [
        ("examples of the stream", f"{examples:,}, {bytes_text(examples * each)} of {dtype}"),
        ("largest resident size, whole stream", bytes_text(large)),
        ("largest resident size, 8,192 examples", bytes_text(small)),
        ("whole stream", f"{rate:,.0f} examples/s, compilation included"),
        ("source alone", f"{generator_rate(dtype):,.0f} examples/s"),
        ("in memory", f"{median(in_memory):,.0f} examples/s"),
        ("stream", f"{median(streamed):,.0f} examples/s"),
        ("stream / memory", f"{median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"),
    ]
    print(table_text(("", engine), rows))


if __name__ == "__main__":
    main()
