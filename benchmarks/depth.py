"""How long compiling a training step takes for each layer, for networks of rising depth.

    python benchmarks/depth.py [--network linear]... [--layers 100]... [--profile]

Every figure comes from a fresh process without a cache: writing the network down, making the
model, and attaching the training, which is what compiles. Processor time of the whole process is
counted, so that a busy machine does not matter. A layer is a `Linear` with its `ReLU`, or a block
of convolutions with its residual sum.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable

from lamina.reports import seconds_text, table_text

DEPTHS = (100, 400, 1000, 2000)

SCRIPT = """
import json, sys, time
import lamina as lm
from lamina.engines import cpu
from lamina.network import Network

def linear(layers):
    blocks = [x for _ in range(layers) for x in (lm.Linear(32), lm.ReLU())]
    return lm.Sequential(lm.Input(32), *blocks, lm.Linear(10))

def residual(layers):
    x = start = lm.Input(4, 8, 8)
    for _ in range(layers):
        y = lm.ReLU()(lm.BatchNorm()(lm.Conv2d(4, 3, padding=1)(x)))
        x = x + lm.BatchNorm()(lm.Conv2d(4, 3, padding=1)(y))
    return lm.Network(start, lm.Linear(10)(lm.Flatten()(x)))

def chain(layers):
    x = start = lm.Input(32)
    for _ in range(layers):
        x = lm.ops.tanh(x) + start
    return lm.Network(start, lm.Linear(10)(x))

networks = {
    "linear": (linear, lm.SGD(0.01, momentum=0.9)),
    "adam": (linear, lm.Adam(1e-3)),
    "residual": (residual, lm.SGD(0.01, momentum=0.9)),
    "chain": (chain, lm.SGD(0.01)),
}
build, optimizer = networks[sys.argv[1]]
layers = int(sys.argv[2])
# What is made once for each process and each kind of kernel is no part of what depth costs.
warm = lm.Model(build(3)).training(loss=lm.CrossEntropy(), optimizer=optimizer, batch_size=8)
clock = [time.process_time()]
network = build(layers)
clock.append(time.process_time())
model = lm.Model(network)
clock.append(time.process_time())
training = model.training(loss=lm.CrossEntropy(), optimizer=optimizer, batch_size=8)
clock.append(time.process_time())
steps = len(training.explain().program.steps) if hasattr(training, "explain") else 0
print(json.dumps([*(later - one for one, later in zip(clock, clock[1:])), steps]))
"""


def measured(network: str, layers: int) -> tuple[float, float, float, int]:
    """Seconds for the network, the model and compiling, and the number of steps."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, network, str(layers)],
        env=os.environ | {"LAMINA_CACHE": "off"},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def main() -> None:
    print("TODO")


if __name__ == "__main__":
    main()
