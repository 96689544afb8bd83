"""Resident memory of a training after training steps of many batch sizes.

    python benchmarks/batch_sizes.py --sizes 100

It prints how much the process has grown since its first training step: after training steps of 16
batch sizes, after training steps of all batch sizes, and after the training is released.
"""

from __future__ import annotations

import argparse
import gc
import os
from pathlib import Path

import numpy as np

import lamina as lm


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, default=100)
    arguments = parser.parse_args()
    layers = (lm.Linear(64), lm.ReLU(), lm.Linear(64), lm.ReLU(), lm.Linear(4))
    model = lm.Model(lm.Sequential(lm.Input(8), *layers))
    most = arguments.sizes
    x = np.random.default_rng(0).normal(size=(most, 8)).astype("float32")
    y = np.arange(most) % 4
    loss, optimizer = lm.CrossEntropy(), lm.Adam(1e-3)
    with model.training(loss=loss, optimizer=optimizer, batch_size=most) as training:
        training.step(x, y)
        before = resident_bytes()
        for size in range(most, 0, -1):
            training.step(x[:size], y[:size])
            if size in (most - 15, 1):
                grown = (resident_bytes() - before) / 2**20
                print(f"{most + 1 - size:>4} batch sizes: {grown:.1f} MiB more than one")
    print(f"released: {(resident_bytes() - before) / 2**20:.1f} MiB more than one")


if __name__ == "__main__":
    main()
