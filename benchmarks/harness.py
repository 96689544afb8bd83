"""Code that the benchmarks share: processes of the peers, their data, arithmetic on times."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
# Lamina on the cpu engine, if another engine is measured.
OURS_ON_CPU = "lamina-cpu"
# Lamina in float32, if mixed precision is measured.
OURS_IN_FLOAT32 = "lamina-float32"
# Lamina, the members of a population one after the other.
ALONE = "lamina-alone"
# The kinds of engines on which Lamina is measured.
ENGINES = ("cpu", "opencl")
# What may follow the name of an engine that has several devices.
NAMES = ("NUMBER", "NAME")
# The environment variable that names the engine of Lamina's worker.
ENGINE = "BENCHMARK_ENGINE"
# The environment variable with the precision of Lamina's models.
DTYPE = "BENCHMARK_DTYPE"
# tinygrad's settings: OpenCL, and optimizers may run.
TINYGRAD = (("DEV", "CL"), ("TRAINING", "1"))
# The seconds that a peer may take for one command, such as compiling a workload.
LIMIT_SECONDS = 600.0


@dataclass(frozen=True)
class Script:
    """How the worker of a peer is started.

    Attributes:
        file: in peers/.
        arguments: of the command.
        settings: further environment variables.
    """

    file: str
    arguments: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()


SCRIPTS = {
    OURS: Script("lamina_peer.py"),
    OURS_ON_CPU: Script("lamina_peer.py", settings=((ENGINE, "cpu"),)),
    ALONE: Script("lamina_peer.py", ("alone",)),
    OURS_IN_FLOAT32: Script("lamina_peer.py", settings=((DTYPE, "float32"),)),
    "pytorch": Script("pytorch.py", ("eager",)),
    "torch.compile": Script("pytorch.py", ("compile",)),
    "autocast": Script("pytorch.py", ("autocast",)),
    "autocast.compile": Script("pytorch.py", ("autocast.compile",)),
    "torch.vmap": Script("pytorch_vmap.py"),
    "jax": Script("jax_peer.py"),
    "onnxruntime": Script("onnxruntime_peer.py", ("run",)),
    "onnxruntime.bound": Script("onnxruntime_peer.py", ("bound",)),
    "tinygrad": Script("tinygrad_peer.py", settings=TINYGRAD),
}


class Unavailable(Exception):
    """A peer cannot run a command; the text gives the reason."""


class Worker:
    """A peer in its own process, which sleeps until it gets a command.

    Args:
        name: of the peer.
        threads: that it may use.
        engine: on which Lamina runs.
        dtype: the precision of Lamina's models.
        limit: the seconds that it may take for a command, or to start; then it is ended.
        script: how it is started; by default the script of this name in `SCRIPTS`.

    Raises:
        Unavailable: if it cannot be started.
    """

    def __init__(
        self,
        name: str,
        threads: int,
        engine: str = "cpu",
        limit: float = LIMIT_SECONDS,
        dtype: str = "float32",
        script: Script | None = None,
    ) -> None:
        script = script or SCRIPTS[name]
        self._command = [sys.executable, str(FOLDER / script.file), *script.arguments]
        self._variables = environment(threads) | {ENGINE: engine, DTYPE: dtype}
        self._variables |= dict(script.settings)
        self.limit = limit
        self._start()

    def _start(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the worker)
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=self._variables,
        )
        try:
            self.versions: dict[str, Any] = self._answer()["versions"]
        except Unavailable:
            self.close()
            raise

    def prepare(self, workload: Workload, data: Path) -> dict[str, Any]:
        """Builds and compiles a workload; a worker that has ended is started again.

        Raises:
            Unavailable: if the peer cannot run it.
        """
        if self._process.poll() is not None:
            self.close()
            self._start()
        return self.ask(prepare=workload.record(), data=str(data))

    def ask(self, **command: Any) -> dict[str, Any]:
        """Sends a command and returns the worker's answer.

        Raises:
            Unavailable: if the worker has ended, takes too long, or answers with a problem.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the log of a dead worker has the reason
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            self._process.kill()

        # The line of a worker that has ended is empty.
        timer = threading.Timer(self.limit, end)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            status = self._process.wait()
            if late.is_set():
                raise Unavailable(f"not done after {self.limit:g} s")
            raise Unavailable(f"ended with status {status}: {self._last_words()}")
        answer = json.loads(line)
        if "problem" in answer:
            raise Unavailable(first_line(answer["problem"]))
        return answer

    def _last_words(self) -> str:
        self._log.seek(0)
        return reason(self._log.read().decode(errors="replace"))

    def close(self) -> None:
        """Ends the process: a worker stops when its standard input is closed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if self._process.stdin.closed:
            return
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()


def kind_of(engine: str) -> str:
    """The kind of an engine: `"opencl"` of `"opencl:1"`."""
    return engine.partition(":")[0]


def engine_name(text: str, kinds: Sequence[str] = ENGINES) -> str:
    """The name of an engine on the command line, of one of the kinds.

    Raises:
        argparse.ArgumentTypeError: for an engine that the benchmarks do not measure.
    """
    if kind_of(text) not in kinds:
        devices = [f"{kind}:{what}" for kind in kinds if kind != "cpu" for what in NAMES]
        expected = " or ".join((*kinds, *devices))
        raise argparse.ArgumentTypeError(f"must be {expected}, not {text!r}")
    return text


def environment(threads: int) -> dict[str, str]:
    """Environment variables of each process: the number of threads, and no OPENBLAS_*."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}
    # XLA takes its number of threads from NPROC, PoCL from one of the last two.
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NPROC", "LAMINA_THREADS")
    names += ("POCL_MAX_PTHREAD_COUNT", "POCL_CPU_MAX_CU_COUNT")
    return kept | {name: str(threads) for name in names}


def require_same_device(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Refuses a peer on another OpenCL device than Lamina's, by the versions of both.

    Raises:
        Unavailable: with both devices.
    """
    device, driver = (" ".join(theirs[key].split()) for key in ("device", "driver"))
    if device not in ours["device"] or driver not in ours["device"]:
        raise Unavailable(
            f"it runs on {device} ({driver}), Lamina on {ours['device']}; "
            "OCL_ICD_VENDORS hides all drivers but one"
        )


def write_data(workload: Workload, path: Path) -> None:
    """Writes data, initial parameters and the order of a run's examples, the same for all peers."""
    x, y = workload.data()
    arrays: dict[str, Any] = {"x": x}
    if y is not None:
        arrays["y"] = y
    if workload.steps:
        # The orders in which Lamina takes the examples. Lamina draws them again while it is timed.
        dataset, each = Dataset(x, y), len(x) // workload.batch
        epochs, seeds = (
            range(-(-workload.steps // each)),
            range(SEED, SEED + (workload.members or 1)),
        )
        orders = [
            np.concatenate([dataset.order(seed, n)[: each * workload.batch] for n in epochs])
            for seed in seeds
        ]
        rows = np.stack(orders).reshape(len(seeds), -1, workload.batch)[:, : workload.steps]
        arrays["rows"] = rows[0] if workload.members is None else rows
    made = (
        lm.Model(workload.network(), engine="interpreter", seed=SEED)
        if workload.members is None
        else lm.Population(workload.network(), workload.members, engine="interpreter")
    )
    parameters = made.parameters()
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


def differing(fingerprints: Mapping[str, float], tolerance: float) -> list[str]:
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
    save_json(path, report)
    print(f"\nwrote {path}")


def save_json(path: Path, report: Mapping[str, Any]) -> None:
    """Replaces the file as a whole: a run that is ended leaves the one before, or this one."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(report, indent=1) + "\n")
    new.replace(path)
