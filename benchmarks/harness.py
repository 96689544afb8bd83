"""Code that the benchmarks share: processes of the peers, their data, arithmetic on times."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import lamina as lm
from lamina.data import Dataset
from lamina.reports import seconds_text, table_text
from lamina.workloads import SEED, Workload

FOLDER = Path(__file__).parent / "peers"
# The first peer; the others are compared with it.
OURS = "lamina"
SCRIPTS = {
    OURS: ("lamina_peer.py",),
    "pytorch": ("pytorch.py", "eager"),
    "torch.compile": ("pytorch.py", "compile"),
    "jax": ("jax_peer.py",),
}


class Unavailable(Exception):
    """A peer cannot run a command; the text gives the reason."""


class Worker:
    """A peer in its own process, which sleeps until it gets a command."""

    def __init__(self, name: str, threads: int) -> None:
        script, *arguments = SCRIPTS[name]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the worker)
        self._process = subprocess.Popen(
            [sys.executable, str(FOLDER / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment(threads),
        )
        try:
            self.versions: dict[str, Any] = self._answer()["versions"]
        except Unavailable:
            self.close()
            raise

    def ask(self, **command: Any) -> dict[str, Any]:
        """Sends a command and returns the worker's answer.

        Raises:
            Unavailable: if the worker has ended, or answers with a problem.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the log of a dead worker has the reason
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Unavailable(f"ended with status {self._process.wait()}: {self._last_words()}")
        found = json.loads(line)
        if "problem" in found:
            raise Unavailable(first_line(found["problem"]))
        return found

    def _last_words(self) -> str:
        self._log.seek(0)
        return reason(self._log.read().decode(errors="replace"))

    def close(self) -> None:
        """Ends the process: a worker stops when its standard input is closed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()


def environment(threads: int) -> dict[str, str]:
    """Environment variables of each process: the number of threads, and no OPENBLAS_*."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}
    # XLA takes its number of threads from NPROC.
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NPROC", "LAMINA_THREADS")
    return kept | {name: str(threads) for name in names}


def write_data(workload: Workload, path: Path) -> None:
    """Writes data, initial parameters and the order of a run's examples, the same for all peers."""
    x, y = workload.data()
    arrays: dict[str, Any] = {"x": x}
    if y is not None:
        arrays["y"] = y
    if workload.steps:
        # The order in which Lamina takes the examples. Lamina draws it again while it is timed.
        dataset, each = Dataset(x, y), len(x) // workload.batch
        epochs = range(-(-workload.steps // each))
        order = [dataset.order(SEED, epoch)[: each * workload.batch] for epoch in epochs]
        rows = np.concatenate(order).reshape(-1, workload.batch)
        arrays["rows"] = rows[: workload.steps]
    parameters = lm.Model(workload.network(), engine="interpreter", seed=SEED).parameters()
    np.savez(path, **arrays, **{f"parameter {name}": p for name, p in parameters.items()})


def machine() -> dict[str, Any]:
    """The machine that runs the benchmark."""
    return {
        "system": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def busy_seconds() -> float | None:
    """Busy time of all cores since the machine started; None where the system reports none."""
    try:
        fields = Path("/proc/stat").read_text().split()
    except OSError:
        return None
    # user, nice, system, idle, iowait, irq, softirq, steal (man 5 proc)
    user, nice, system, _, _, *interrupts = (int(field) for field in fields[1:9])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


# Arithmetic ---------------------------------------------------------------------------------------


def middle(rounds: Sequence[Sequence[float]]) -> float:
    """The median over the rounds of each round's median: all rounds count alike."""
    return statistics.median(statistics.median(samples) for samples in rounds)


def ratios(medians: Mapping[str, float]) -> dict[str, float]:
    """Each peer's time divided by Lamina's: above 1, Lamina is faster."""
    ours = medians[OURS]
    return {name: median / ours for name, median in medians.items() if name != OURS}


def best_of(medians: Mapping[str, float]) -> str | None:
    """The fastest of the other peers; None if there are none."""
    others = {name: median for name, median in medians.items() if name != OURS}
    return min(others, key=others.__getitem__, default=None)


def differing(fingerprints: Mapping[str, float], tolerance: float = 1e-3) -> list[str]:
    """The peers with another fingerprint than Lamina's: they compute something else."""
    ours = fingerprints.get(OURS, 0.0)
    # The negated comparison makes NaN differ.
    return [
        name for name, value in fingerprints.items() if not abs(value - ours) <= tolerance * ours
    ]


# Text ---------------------------------------------------------------------------------------------


def first_line(text: str, longest: int = 160) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= longest else line[: longest - 3] + "..."


def reason(log: str) -> str:
    """The reason why a process failed: the last line that names an error, else the last line."""
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return first_line((errors or lines or ["it said nothing"])[-1])


def time_text(seconds: float | None, ratio: float | None = None) -> str:
    """A time, and its ratio to Lamina's time."""
    if seconds is None:
        return "unavailable"
    return seconds_text(seconds) + ("" if ratio is None else f"  {ratio:.2f}x")


def print_versions(versions: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints one line for each peer, without lists, which only the JSON file has."""
    rows = [
        (name, ", ".join(f"{key} {value}" for key, value in parts.items() if _is_short(value)))
        for name, parts in versions.items()
    ]
    print(table_text(("peer", "versions"), rows))


def _is_short(value: Any) -> bool:
    return value is not None and not isinstance(value, list)


def write_json(path: Path, report: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"\nwrote {path}")
