"""Processor time for each layer to compile a training step, for networks of increasing depth.

    python benchmarks/depth.py [--network linear]... [--layers 100]...

Each figure comes from a fresh process without a cache. It times defining the network, making the
model, and making the training, which compiles its program. Processor time is counted, so other
processes matter little. A network of three layers is compiled first, so that loading modules does
not count. A layer is a `Linear` and a `ReLU`; or a `Conv2d`, a `BatchNorm`, and alternately a
`ReLU` or a residual sum.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

from lamina.reports import seconds_text, table_text

DEPTHS = (100, 400, 1000, 2000)

SCRIPT = """
import json, sys, time
import lamina as lm

def linear(layers):
    blocks = [x for _ in range(layers) for x in (lm.Linear(32), lm.ReLU())]
    return lm.Sequential(lm.Input(32), *blocks, lm.Linear(10))

def residual(layers):
    x = start = lm.Input(4, 8, 8)
    for _ in range(layers // 2):
        y = lm.ReLU()(lm.BatchNorm()(lm.Conv2d(4, 3, padding=1)(x)))
        x = x + lm.BatchNorm()(lm.Conv2d(4, 3, padding=1)(y))
    return lm.Network(start, lm.Linear(10)(lm.Flatten()(x)))

networks = {
    "linear": (linear, lm.SGD(0.01, momentum=0.9)),
    "adam": (linear, lm.Adam(1e-3)),
    "residual": (residual, lm.SGD(0.01, momentum=0.9)),
}
build, optimizer = networks[sys.argv[1]]

def training(model):
    return model.training(loss=lm.CrossEntropy(), optimizer=optimizer, batch_size=8)

training(lm.Model(build(3)))
clock = [time.process_time()]
network = build(int(sys.argv[2]))
clock.append(time.process_time())
model = lm.Model(network)
clock.append(time.process_time())
attached = training(model)
clock.append(time.process_time())
times = [later - earlier for earlier, later in zip(clock, clock[1:])]
print(json.dumps([*times, len(attached.bill.program.steps)]))
"""


def measured(network: str, layers: int) -> tuple[float, float, float, int]:
    """Seconds for the network, the model and compiling, and the number of the program's steps."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, network, str(layers)],
        env=os.environ | {"LAMINA_CACHE": "off"},
        capture_output=True,
        text=True,
        check=True,
    )
    defining, making, compiling, steps = json.loads(done.stdout)
    return defining, making, compiling, steps


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    names = ("linear", "adam", "residual")
    parser.add_argument("--network", action="append", choices=names, default=[])
    parser.add_argument("--layers", action="append", type=int, default=[])
    arguments = parser.parse_args()
    header = ("network", "layers", "steps", "network", "model", "compiling", "in all, a layer")
    rows: list[tuple[str, ...]] = []
    for network in arguments.network or names:
        for layers in arguments.layers or DEPTHS:
            *times, steps = measured(network, layers)
            row = (*map(seconds_text, times), seconds_text(sum(times) / layers))
            rows.append((network, f"{layers:,}", f"{steps:,}", *row))
    print(table_text(header, rows, align="lrrrrrr"))


if __name__ == "__main__":
    main()
