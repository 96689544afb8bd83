"""Clocks, power and temperature of GPUs while something is measured, as nvidia-smi tells them."""

from __future__ import annotations

import shutil
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from threading import Lock, Thread

MILLISECONDS = 200
# What nvidia-smi is asked after the number of the GPU, and the names and units of the answers.
ASKED = {
    "clocks.sm": ("sm", "MHz"),
    "clocks.mem": ("memory", "MHz"),
    "power.draw": ("power", "W"),
    "temperature.gpu": ("temperature", "C"),
}
COMMAND = ("nvidia-smi", f"--query-gpu=index,{','.join(ASKED)}", "--format=csv,noheader,nounits")

# Of each GPU by its number, of each name: the least, the median and the most.
Clocks = dict[str, dict[str, dict[str, float]]]


class ClockReader:
    """Reads samples until it is closed; there are none without nvidia-smi."""

    def __init__(self) -> None:
        self._samples: dict[str, dict[str, list[float]]] = {}
        self._lock = Lock()
        self._process: subprocess.Popen[str] | None = None
        self.taken()
        if shutil.which(COMMAND[0]) is None:
            return
        self._process = subprocess.Popen(
            [*COMMAND, f"--loop-ms={MILLISECONDS}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, *values = (value.strip() for value in line.split(","))
            with self._lock:
                for (name, _), value in zip(ASKED.values(), values, strict=False):
                    try:
                        self._samples[number][name].append(float(value))
                    except ValueError:
                        continue  # [N/A]: the GPU does not tell it

    def taken(self) -> Clocks:
        """The samples since the last call."""
        with self._lock:
            samples, self._samples = self._samples, defaultdict(lambda: defaultdict(list))
        return {
            number: {
                name: {
                    "least": min(values),
                    "median": statistics.median(values),
                    "most": max(values),
                }
                for name, values in of_gpu.items()
            }
            for number, of_gpu in samples.items()
        }

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._thread.join()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process.wait()


def clocks_lines(clocks: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[str]:
    """A line for each GPU: medians, and in brackets the least and the most."""
    units = dict(ASKED.values())
    return [
        f"GPU {number}: "
        + ", ".join(
            f"{name} {spread['median']:g} {units[name]} ({spread['least']:g}-{spread['most']:g})"
            for name, spread in of_gpu.items()
        )
        for number, of_gpu in clocks.items()
    ]
