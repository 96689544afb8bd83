"""Seconds from a process's first import to its first finished training step, and its peak memory.

    python benchmarks/cold_start.py [--workload mlp] [--peers jax] [--rounds 5] [--json FILE]
    python benchmarks/cold_start.py --engine opencl --workload lenet --peers lamina-cpu

Each figure is the median of fresh processes. The frameworks are started alternately. "empty": each
process has its own empty cache folders; "warm": all share folders that an earlier, unmeasured
process has filled. On OpenCL the caches of PoCL and Nvidia's driver are among them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import (
    ENGINE,
    FOLDER,
    LIMIT_SECONDS,
    OURS,
    OURS_ON_CPU,
    TINYGRAD,
    Unavailable,
    engine_name,
    environment,
    machine,
    reason,
    time_text,
    write_data,
    write_json,
)

from lamina.reports import bytes_text, table_text
from lamina.workloads import WORKLOADS, Workload


@dataclass(frozen=True)
class Start:
    """How a process of a framework is started.

    Attributes:
        module, function: module in peers/ and its function that builds the training step.
        caches: the environment variables of the folders of compiled code.
        settings: further environment variables.
    """

    module: str
    function: str
    caches: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()


# By default, JAX caches only programs that took a second or more to compile.
_JAX_KEEPS_ALL = (
    ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0"),
    ("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1"),
)
# The caches of OpenCL's drivers.
_DRIVERS = ("POCL_CACHE_DIR", "CUDA_CACHE_PATH")


def starts_for(engine: str) -> dict[str, Start]:
    """The starts of Lamina on an engine, and of the peers."""
    lamina, cache = ("lamina_peer", "make"), ("LAMINA_CACHE",)
    if engine == "cpu":
        return {
            OURS: Start(*lamina, cache),
            "pytorch": Start("pytorch", "make"),
            "torch.compile": Start("pytorch", "make_compiled", ("TORCHINDUCTOR_CACHE_DIR",)),
            "jax": Start("jax_peer", "make", ("JAX_COMPILATION_CACHE_DIR",), _JAX_KEEPS_ALL),
        }
    # tinygrad's cache is a file in the user's cache folder.
    caches = ("XDG_CACHE_HOME", *_DRIVERS)
    return {
        OURS: Start(*lamina, (*cache, *_DRIVERS), ((ENGINE, engine),)),
        OURS_ON_CPU: Start(*lamina, cache),
        "tinygrad": Start("tinygrad_peer", "make", caches, TINYGRAD),
    }


def started(start: Start, cache: Path, files: tuple[Path, Path], threads: int) -> dict[str, Any]:
    """The report of one process.

    Raises:
        Unavailable: if it fails, or takes too long.
    """
    variables = environment(threads) | dict(start.settings)
    # Python's own compiled modules are kept, as they are after any installation.
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    for variable in start.caches:
        folder = cache / variable
        folder.mkdir(parents=True, exist_ok=True)
        variables[variable] = str(folder)
    try:
        done = subprocess.run(
            [
                sys.executable,
                str(FOLDER / "cold.py"),
                start.module,
                start.function,
                *map(str, files),
            ],
            capture_output=True,
            text=True,
            env=variables,
            timeout=LIMIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"not done after {LIMIT_SECONDS:g} s") from None
    if done.returncode:
        raise Unavailable(reason(done.stderr))
    return json.loads(done.stdout.splitlines()[-1])


def collected(
    workload: Workload, arguments: argparse.Namespace, folder: Path
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """The reports of all processes for each start, and the reasons of starts that fail."""
    files = folder / "workload.json", folder / "data.npz"
    files[0].write_text(json.dumps(workload.record()))
    write_data(workload, files[1])
    reports: dict[str, list[dict[str, Any]]] = defaultdict(list)
    problems: dict[str, str] = {}
    available = starts_for(arguments.engine)
    selected = available
    if arguments.peers is not None:
        selected = {name: available[name] for name in (OURS, *arguments.peers) if name in available}
        problems = {
            name: f"no peer on {arguments.engine}"
            for name in arguments.peers
            if name not in available
        }
    # Round 0 fills the warm caches, and the system's cache of files; it does not count.
    for number in range(arguments.rounds + 1):
        print(f"... round {number} of {arguments.rounds}", flush=True)
        for title, start, cache in starts(selected, folder, number):
            # In round 0 an empty cache would measure the same as the warm one that is filled.
            if title in problems or (number == 0 and title.endswith("empty cache")):
                continue
            try:
                report = started(start, cache, files, arguments.threads)
            except Unavailable as problem:
                problems[title] = str(problem)
                continue
            if number:
                reports[title].append(report)
    return reports, problems


def starts(
    by_peer: Mapping[str, Start], folder: Path, number: int
) -> Iterator[tuple[str, Start, Path]]:
    """The title of each start of a round, and the folder of its caches."""
    for peer, start in by_peer.items():
        if not start.caches:
            yield peer, start, folder
            continue
        yield f"{peer}, empty cache", start, folder / f"{peer}-{number}"
        yield f"{peer}, warm cache", start, folder / f"{peer}-warm"


def options() -> argparse.ArgumentParser:
    trained = [name for name, workload in WORKLOADS.items() if workload.loss is not None]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--engine", default="cpu", type=engine_name, help="default: cpu")
    parser.add_argument("--workload", choices=trained, default="mlp")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="of each process")
    peers = sorted({name for engine in ("cpu", "opencl") for name in starts_for(engine)} - {OURS})
    parser.add_argument("--peers", nargs="*", choices=peers, help="default: the engine's peers")
    parser.add_argument("--json", type=Path)
    return parser


def main() -> None:
    arguments = options().parse_args()
    workload = WORKLOADS[arguments.workload]
    with tempfile.TemporaryDirectory() as folder:
        reports, problems = collected(workload, arguments, Path(folder))
    medians = {
        title: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for title, runs in reports.items()
    }
    ours = medians.get(f"{OURS}, warm cache", {}).get("seconds")
    rows = [
        (
            title,
            time_text(median["import_seconds"]),
            time_text(median["seconds"]),
            f"{median['seconds'] / ours:.1f}x" if ours else "",
            bytes_text(round(median["peak_bytes"])),
        )
        for title, median in medians.items()
    ]
    print()
    header = (
        workload.name,
        "imports",
        "first training step done",
        "ratio to Lamina's, warm",
        "peak memory",
    )
    print(table_text(header, rows, align="lr"))
    for title, why in problems.items():
        print(f"{title} is unavailable: {why}")
    if arguments.json:
        report = {"machine": machine(), "threads": arguments.threads, "engine": arguments.engine}
        report |= {"workload": workload.record(), "starts": reports, "medians": medians}
        write_json(arguments.json, report | {"problems": problems})


if __name__ == "__main__":
    main()
