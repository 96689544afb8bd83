"""Seconds from a process's first import to its first finished training step, and its peak memory.

    python benchmarks/cold_start.py [--rounds 5] [--json FILE]

The workload is mlp. Each figure is the median of fresh processes. The frameworks are started
alternately. "empty": each process has its own empty cache folder; "warm": all share a folder that
an earlier, unmeasured process has filled.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import (
    FOLDER,
    Unavailable,
    environment,
    machine,
    reason,
    time_text,
    write_data,
    write_json,
)

from lamina.reports import bytes_text, table_text
from lamina.workloads import WORKLOADS


@dataclass(frozen=True)
class Start:
    """How a process of a framework is started.

    Attributes:
        module, function: module in peers/ and its function that builds the training step.
        cache: the environment variable of the folder of compiled code; "" if there is none.
        settings: further environment variables.
    """

    module: str
    function: str
    cache: str = ""
    settings: tuple[tuple[str, str], ...] = ()


# By default, JAX caches only programs that took a second or more to compile.
_JAX_KEEPS_ALL = (
    ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0"),
    ("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1"),
)
STARTS = {
    "lamina": Start("lamina_peer", "make", "LAMINA_CACHE"),
    "pytorch": Start("pytorch", "make"),
    "torch.compile": Start("pytorch", "make_compiled", "TORCHINDUCTOR_CACHE_DIR"),
    "jax": Start("jax_peer", "make", "JAX_COMPILATION_CACHE_DIR", _JAX_KEEPS_ALL),
}
WORKLOAD = WORKLOADS["mlp"]


def started(start: Start, cache: Path, files: tuple[Path, Path], threads: int) -> dict[str, Any]:
    """The report of one process.

    Raises:
        Unavailable: if it fails.
    """
    variables = environment(threads) | dict(start.settings)
    # Python's own compiled modules are kept, as they are after any installation.
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    if start.cache:
        variables[start.cache] = str(cache)
    done = subprocess.run(
        [sys.executable, str(FOLDER / "cold.py"), start.module, start.function, *map(str, files)],
        capture_output=True,
        text=True,
        env=variables,
    )
    if done.returncode:
        raise Unavailable(reason(done.stderr))
    return json.loads(done.stdout.splitlines()[-1])


def collected(
    rounds: int, threads: int, folder: Path
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """The reports of all processes for each start, and the reasons of starts that fail."""
    files = folder / "workload.json", folder / "data.npz"
    files[0].write_text(json.dumps(WORKLOAD.record()))
    write_data(WORKLOAD, files[1])
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    problems: dict[str, str] = {}
    # Round 0 fills the warm caches, and the system's cache of files; it does not count.
    for number in range(rounds + 1):
        print(f"... round {number} of {rounds}", flush=True)
        for title, start, cache in starts(folder, number):
            if title in problems:
                continue
            try:
                report = started(start, cache, files, threads)
            except Unavailable as problem:
                problems[title] = str(problem)
                continue
            if number:
                found[title].append(report)
    return found, problems


def starts(folder: Path, number: int) -> Iterator[tuple[str, Start, Path]]:
    """The title of each start of a round, and the folder of its cache."""
    for peer, start in STARTS.items():
        if not start.cache:
            yield peer, start, folder
            continue
        yield f"{peer}, empty cache", start, folder / f"{peer}-{number}"
        yield f"{peer}, warm cache", start, folder / f"{peer}-warm"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="of each process")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found, problems = collected(given.rounds, given.threads, Path(folder))
    medians = {
        title: {key: statistics.median(one[key] for one in reports) for key in reports[0]}
        for title, reports in found.items()
    }
    ours = medians.get("lamina, warm cache", {}).get("seconds")
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
        "start",
        "imports",
        "first training step done",
        "ratio to Lamina's, warm",
        "peak memory",
    )
    print(table_text(header, rows, align="lr"))
    for title, why in problems.items():
        print(f"{title} is unavailable: {why}")
    if given.json:
        report = {"machine": machine(), "threads": given.threads, "workload": WORKLOAD.record()}
        write_json(given.json, report | {"starts": found, "medians": medians, "problems": problems})


if __name__ == "__main__":
    main()
