"""Seconds to compile the training step of a workload, with an empty and a warm cache.

    python benchmarks/compile_time.py [--workload mlp]... [--rounds 5]

Each round starts two fresh processes: the first has an empty cache, the second has the cache that
the first one filled. The medians of the rounds are shown. A process times `import lamina`, making
the model (the first model loads llvmlite), and making the training, which compiles its program.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from lamina.reports import seconds_text, table_text
from lamina.workloads import WORKLOADS, chosen

SCRIPT = """
import json, sys, time
clock = [time.perf_counter()]
import lamina as lm
clock.append(time.perf_counter())
from lamina.workloads import WORKLOADS
workload = WORKLOADS[sys.argv[1]]
clock.append(time.perf_counter())
model = lm.Model(workload.network())
clock.append(time.perf_counter())
training = model.training(
    loss=workload.loss, optimizer=workload.optimizer, batch_size=workload.batch
)
clock.append(time.perf_counter())
importing, _, making, compiling = (later - earlier for earlier, later in zip(clock, clock[1:]))
print(json.dumps([importing, making, compiling]))
"""


def timed(workload: str, cache: str) -> list[float]:
    """Seconds for importing, making the model and compiling, in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, workload],
        env=os.environ | {"LAMINA_CACHE": cache},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def main() -> None:
    trained = [name for name, workload in WORKLOADS.items() if workload.loss is not None]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workload", action="append", choices=trained, default=[])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rows: list[tuple[str, ...]] = []
    for workload in chosen(arguments.workload or trained):
        seconds: dict[str, list[list[float]]] = {"empty": [], "warm": []}
        for _ in range(arguments.rounds):
            with tempfile.TemporaryDirectory() as cache:
                for state in seconds:
                    seconds[state].append(timed(workload.name, cache))
        for state, rounds in seconds.items():
            medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
            rows.append((workload.name, state, *(seconds_text(median) for median in medians)))
    header = ("workload", "cache", "import lamina", "model", "compiling the training step")
    print(table_text(header, rows, align="llr"))


if __name__ == "__main__":
    main()
