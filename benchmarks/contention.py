"""The mean time of a training step on a busy machine, with Lamina and its peers.

    python benchmarks/contention.py [--workload NAME]... [--rounds 5] [--peers pytorch jax]

Each workload is timed

- quiet: nothing else runs;
- alone: quiet, with one thread;
- busy: one busy process runs for each thread; the fair share of all of them is half of the machine;
- mixed: before each training step PyTorch computes a matrix product in the same process; its
  OpenMP threads spin for a while after it. Only the training step is timed. "mixed alone" is the
  same with one thread.

Means are reported, not medians: users notice if one training step in a thousand takes a thousand
times as long. Times under "busy" are compared with the lesser of "quiet" and "alone", times under
"mixed" with "mixed alone".
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from harness import (
    FOLDER,
    OURS,
    Unavailable,
    Worker,
    machine,
    print_versions,
    time_text,
    write_data,
    write_json,
)

from lamina.reports import table_text
from lamina.workloads import WORKLOADS, Workload

sys.path.append(str(FOLDER))
from small_workloads import SMALL

MEASURED = {name: (WORKLOADS | SMALL)[name] for name in ("tiny-step", *SMALL, "softmax", "mlp")}
PEERS = ("pytorch", "jax")
# In this time waiting threads of the last round go to sleep, and busy processes start.
PAUSE_SECONDS = 0.2
# The first training steps of a round are not timed: the processor's caches still hold other data.
_WARM_UP = 20


@contextmanager
def busy_processes(count: int) -> Generator[None]:
    """Runs this many processes that loop without end."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(PAUSE_SECONDS)
        yield
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


def mean_seconds(worker: Worker, name: str, seconds: float, *, mixed: bool) -> float:
    """The mean time of a training step, measured for about `seconds`."""
    time.sleep(PAUSE_SECONDS)
    worker.ask(reset=name)
    command = "mixed" if mixed else "run"
    steps, passed, done = _WARM_UP, 0.0, 0
    worker.ask(**{command: name, "steps": steps})
    end = time.perf_counter() + seconds
    while (started := time.perf_counter()) < end:
        answer = worker.ask(**{command: name, "steps": steps})
        passed, done = passed + answer["seconds"], done + steps
        # In the mixed condition the answer does not include the time of the matrix products.
        each = (time.perf_counter() - started) / steps
        steps = max(1, min(int((end - time.perf_counter()) / each), 2 * steps))
    return passed / done


def measured(
    workload: Workload,
    workers: dict[str, dict[int, Worker]],
    arguments: argparse.Namespace,
    folder: Path,
) -> dict[str, dict[str, list[float]]]:
    """The mean time of a training step for each peer, condition and round."""
    data = folder / f"{workload.name}.npz"
    write_data(workload, data)
    means: dict[str, dict[str, list[float]]] = {}
    for name, by_threads in workers.items():
        for worker in by_threads.values():
            worker.prepare(workload, data)
        means[name] = {}
    for _ in range(arguments.rounds):
        for name, by_threads in workers.items():
            single, several = by_threads[1], by_threads[arguments.threads]
            mixed = name != "jax"
            conditions = [("quiet", several, 0, False), ("alone", single, 0, False)]
            conditions.append(("busy", several, arguments.threads, False))
            if mixed:
                conditions += [("mixed", several, 0, True), ("mixed alone", single, 0, True)]
            for condition, worker, busy, between in conditions:
                with busy_processes(busy):
                    mean = mean_seconds(worker, workload.name, arguments.seconds, mixed=between)
                means[name].setdefault(condition, []).append(mean)
    return means


def row(workload: str, peer: str, means: dict[str, list[float]]) -> list[str]:
    middle = {condition: statistics.median(rounds) for condition, rounds in means.items()}
    best = min(middle["quiet"], middle["alone"])
    cells = [time_text(middle["quiet"]), time_text(middle["alone"])]
    cells.append(f"{time_text(middle['busy'], middle['busy'] / best)} {_span(means['busy'], best)}")
    if "mixed" in middle:
        alone = middle["mixed alone"]
        cells.append(time_text(alone))
        text = time_text(middle["mixed"], middle["mixed"] / alone)
        cells.append(f"{text} {_span(means['mixed'], alone)}")
    return [workload, peer, *cells, *[""] * (5 - len(cells))]


def _span(means: Sequence[float], unit: float) -> str:
    return f"({min(means) / unit:.2f}-{max(means) / unit:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workload", action="append", choices=list(MEASURED), default=[])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each mean")
    parser.add_argument("--threads", type=int, default=2, help="of each peer; and busy processes")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    report: dict[str, Any] = {"machine": machine(), "threads": arguments.threads, "workloads": {}}
    workers: dict[str, dict[int, Worker]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name in (OURS, *arguments.peers):
            try:
                workers[name] = {}
                for threads in (arguments.threads, 1):
                    workers[name][threads] = Worker(name, threads)
                    stack.callback(workers[name][threads].close)
            except Unavailable as problem:
                del workers[name]
                print(f"{name} is unavailable: {problem}")
        report["peers"] = {name: by_threads[1].versions for name, by_threads in workers.items()}
        print_versions(report["peers"])
        rows: list[list[str]] = []
        for name in arguments.workload or MEASURED:
            print(f"... {name}", flush=True)
            means = measured(MEASURED[name], workers, arguments, folder)
            report["workloads"][name] = means
            rows += [row(name, peer, means[peer]) for peer in workers]
    header = ("workload", "peer", "quiet", "alone", "busy", "mixed alone", "mixed")
    print("\nMean time of a training step: median of the rounds, and the span of their ratios.\n")
    print(table_text(header, rows, align="ll"))
    if arguments.json:
        write_json(arguments.json, report)


if __name__ == "__main__":
    main()
