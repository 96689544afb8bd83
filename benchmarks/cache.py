"""Time to compile a new program with few and with many cached ones, and time of a look-up.

    python benchmarks/cache.py --entries 0 1000 20000

The cache is first filled with entries of 12 KiB each (20,000 of them are near the limit). Then a
fresh process compiles 20 new programs of tiny networks and reads each of them again. It prints the
medians of the rounds, in milliseconds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILL = """
import sys
from lamina.base import cache
trim, cache._trim = cache._trim, lambda *_: None
for number in range(int(sys.argv[1])):
    cache.keep(cache.key_of((str(number),)), bytes(12 << 10))
"""
COMPILE = """
import time
import lamina as lm
from lamina.base import cache
times = {"write": [], "read": [], "look up": []}
lm.Model(lm.Sequential(lm.Input(3), lm.Linear(2))).training(
    loss=lm.MSE(), optimizer=lm.SGD(0.1), batch_size=2
)
for width in range(3, 23):
    model = lm.Model(lm.Sequential(lm.Input(3), lm.Linear(width)))
    for kind in ("write", "read"):
        started = time.perf_counter()
        model.training(loss=lm.MSE(), optimizer=lm.SGD(0.1), batch_size=2).release()
        times[kind].append(time.perf_counter() - started)
    started = time.perf_counter()
    cache.find(cache.key_of(("not there", str(width))))
    times["look up"].append(time.perf_counter() - started)
print(*(1e3 * sorted(found)[len(found) // 2] for found in times.values()))
print(1e3 * max(times["write"]))
"""


def run(script: str, folder: str, *arguments: str) -> str:
    paths = os.environ | {"LAMINA_CACHE": folder, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script, *arguments]
    found = subprocess.run(command, cwd=ROOT, env=paths, check=True, capture_output=True, text=True)
    return found.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, nargs="+", default=[0, 1000, 20000])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print("entries  new program, median  longest  read again  look-up    (ms)")
    for entries in arguments.entries:
        with tempfile.TemporaryDirectory() as folder:
            run(FILL, folder, str(entries))
            rows: list[list[float]] = []
            for _ in range(arguments.rounds):
                with tempfile.TemporaryDirectory() as copy:
                    subprocess.run(["cp", "-a", f"{folder}/.", copy], check=True)
                    rows.append([float(value) for value in run(COMPILE, copy).split()])
        write, read, look_up, longest = (statistics.median(c) for c in zip(*rows, strict=True))
        print(f"{entries:>7}  {write:>19.2f}  {longest:>7.2f}  {read:>10.2f}  {look_up:>7.3f}")


if __name__ == "__main__":
    main()
