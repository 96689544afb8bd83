"""Time per training step or forward pass of the workloads, with Lamina and its peers alternately.

    python benchmarks/run.py [--workload NAME]... [--rounds 7] [--peers pytorch jax] [--json FILE]
    python benchmarks/run.py --engine opencl
    python benchmarks/run.py --dtype mixed
    python benchmarks/run.py --workload tiny-predict --workload mlp-predict \\
        --workload lenet-predict --peers onnxruntime onnxruntime.bound pytorch

On an OpenCL engine the peers are Lamina on the cpu engine, and tinygrad on the same device. In
mixed precision they are Lamina in float32, and PyTorch's autocast to bfloat16. Of populations they
are Lamina's members one after the other, `torch.func.vmap` with torch.compile, and `jax.vmap`.
docs/benchmarks.md describes the workloads and how they are measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from harness import (
    ALONE,
    LIMIT_SECONDS,
    OURS,
    OURS_IN_FLOAT32,
    OURS_ON_CPU,
    SCRIPTS,
    Unavailable,
    Worker,
    best_of,
    busy_seconds,
    differing,
    engine_name,
    kind_of,
    machine,
    middle,
    print_versions,
    ratios,
    require_same_device,
    time_text,
    write_data,
    write_json,
)

from lamina.reports import table_text
from lamina.step.precision import MIXED
from lamina.workloads import NAMES, POPULATIONS, PRODUCTS, WORKLOADS, Workload, chosen, samples

# The peers and the workloads of each kind of engine, unless others are chosen.
PEERS = {"cpu": ("pytorch", "torch.compile", "jax"), "opencl": (OURS_ON_CPU, "tinygrad")}
POPULATION_PEERS = (ALONE, "torch.vmap", "jax")
MIXED_PEERS = (OURS_IN_FLOAT32, "autocast", "autocast.compile")
# The largest difference of the peers' results, as a share; in mixed precision it is larger.
TOLERANCE, MIXED_TOLERANCE = 1e-3, 3e-2
MEASURED = {"cpu": WORKLOADS, "opencl": PRODUCTS | WORKLOADS}

Workers = dict[str, Worker]
# Between two peers: the threads of the first one stop spinning and go to sleep.
PAUSE_SECONDS = 0.05
# If other processes use more cores than this, they disturb the measurement: threads that wait for
# one another may take many times as long if one of them has to share its core.
DISTURBING_CORES = 0.2


def measured_round(
    worker: Worker, workload: Workload, seconds: float
) -> tuple[list[float], float | None]:
    """Seconds per training step or forward pass, and the cores that other processes used."""
    time.sleep(PAUSE_SECONDS)
    worker.ask(reset=workload.name)
    started, busy, cpu_seconds = time.perf_counter(), busy_seconds(), -time.process_time()

    def run(steps: int) -> float:
        nonlocal cpu_seconds
        answer = worker.ask(run=workload.name, steps=steps)
        cpu_seconds += answer["cpu_seconds"]
        return answer["seconds"]

    times = samples(run, seconds, workload.steps)
    cpu_seconds += time.process_time()
    elapsed, after = time.perf_counter() - started, busy_seconds()
    if busy is None or after is None:
        return times, None
    return times, max(after - busy - cpu_seconds, 0.0) / elapsed


def measured(
    workload: Workload,
    workers: Workers,
    rounds: int,
    seconds: float,
    folder: Path,
    tolerance: float,
) -> dict[str, Any]:
    """The results of one workload, as the JSON file holds them."""
    data = folder / f"{workload.name}.npz"
    write_data(workload, data)
    peers: dict[str, dict[str, Any]] = {}
    problems: dict[str, str] = {}
    for name, worker in workers.items():
        try:
            peers[name] = worker.prepare(workload, data)
            peers[name] |= {"rounds": [], "others": []}
        except Unavailable as problem:
            problems[name] = str(problem)
    for number in range(rounds):
        # Every second round is reversed, so that no peer always follows the same other peer.
        for name in list(peers)[:: -1 if number % 2 else 1]:
            try:
                times, others = measured_round(workers[name], workload, seconds)
                peers[name]["rounds"].append(times)
                peers[name]["others"].append(others)
            except Unavailable as problem:
                problems[name] = str(problem)
                del peers[name]
    return summary(workload, peers, problems, tolerance)


def summary(
    workload: Workload, peers: dict[str, dict[str, Any]], problems: dict[str, str], tolerance: float
) -> dict[str, Any]:
    """The results of one workload from the samples of its peers, `rounds`."""
    for peer in peers.values():
        peer["median"] = middle(peer["rounds"])
    medians = {name: peer["median"] for name, peer in peers.items()}
    flops = workload.flops()
    report = {"workload": workload.record(), "flops": flops, "peers": peers}
    report |= {"problems": problems, "best": best_of(medians)}
    if OURS in medians:
        report["ratios"] = ratios(medians)
        report["gflops"] = flops / medians[OURS] / 1e9
        fingerprints = {name: peer["fingerprint"] for name, peer in peers.items()}
        report["differing"] = differing(fingerprints, tolerance)
    return report


def row(name: str, result: dict[str, Any], names: list[str], peak: float | None) -> list[str]:
    ratio: dict[str, float] = result.get("ratios", {})
    cells = [
        time_text(result["peers"].get(peer, {}).get("median"), ratio.get(peer)) for peer in names
    ]
    best = f"{ratio[result['best']]:.2f}x" if result["best"] and ratio else ""
    gflops = result.get("gflops")
    if gflops is None:
        return [name, *cells, best, "", ""]
    return [name, *cells, best, f"{gflops:.3g}", f"{gflops / peak:.0%}" if peak else ""]


def notes(results: dict[str, dict[str, Any]]) -> list[str]:
    """Lines under the table: unavailable peers, deviations, disturbed workloads."""
    lines: list[str] = []
    for name, result in results.items():
        lines += [
            f"{name}: {peer} is unavailable: {why}" for peer, why in result["problems"].items()
        ]
        for peer in result.get("differing", ()):
            ours, other = (result["peers"][who]["fingerprint"] for who in (OURS, peer))
            lines.append(f"{name}: {peer} COMPUTES SOMETHING ELSE: {other:.6g}, Lamina {ours:.6g}")
        others = [used for peer in result["peers"].values() for used in peer["others"] if used]
        disturbed = [used for used in others if used > DISTURBING_CORES]
        if disturbed:
            rounds = sum(len(peer["rounds"]) for peer in result["peers"].values())
            lines.append(
                f"{name}: DISTURBED in {len(disturbed)} of {rounds} rounds: other processes used "
                f"up to {max(disturbed):.1f} cores"
            )
    return lines


def print_table(report: dict[str, Any], names: list[str]) -> None:
    peak, results = report["peak"], report["workloads"]
    header = ("workload", *names, "best peer", "GFLOP/s", "of peak")
    rows = [row(name, result, names, peak and peak["gflops"]) for name, result in results.items()]
    print("\nTime per training step or forward pass, its ratio to Lamina's; Lamina's GFLOP/s.\n")
    print(table_text(header, rows, align="lr"))
    if peak:
        print(f"\npeak: {peak['gflops']:.0f} GFLOP/s, {peak['gigabytes_per_second']:.1f} GB/s")
        print(f"      ({peak['how']})")
    for line in notes(results):
        print(line)


def start(arguments: argparse.Namespace, stack: ExitStack) -> tuple[Workers, dict[str, str]]:
    """Starts the workers of the peers; returns also the reasons of those that cannot be started."""
    workers: Workers = {}
    problems: dict[str, str] = {}
    kind = kind_of(arguments.engine)
    usual = PEERS[kind] if arguments.dtype == "float32" else MIXED_PEERS
    if arguments.workload and POPULATIONS.keys() >= set(arguments.workload):
        usual = POPULATION_PEERS
    for name in (OURS, *(usual if arguments.peers is None else arguments.peers)):
        try:
            worker = Worker(
                name, arguments.threads, arguments.engine, arguments.limit, arguments.dtype
            )
            stack.callback(worker.close)
            if name == "tinygrad" and kind == "opencl" and OURS in workers:
                require_same_device(workers[OURS].versions, worker.versions)
            workers[name] = worker
        except Unavailable as problem:
            problems[name] = str(problem)
    return workers, problems


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    names, others = list(NAMES), [name for name in SCRIPTS if name != OURS]
    parser.add_argument("--engine", default="cpu", type=engine_name, help="default: cpu")
    parser.add_argument(
        "--dtype",
        default="float32",
        choices=["float32", *MIXED],
        help="the precision of Lamina's models (default: float32)",
    )
    parser.add_argument("--workload", action="append", choices=names, default=[])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each peer in each round")
    parser.add_argument("--threads", type=int, default=2, help="of each peer")
    parser.add_argument("--peers", nargs="*", choices=others, help="default: the engine's peers")
    parser.add_argument(
        "--limit",
        type=float,
        default=LIMIT_SECONDS,
        help="seconds in which a peer has compiled a workload (default: %(default)g)",
    )
    parser.add_argument("--json", type=Path)
    return parser


def main() -> None:
    arguments = options().parse_args()
    report: dict[str, Any] = {"machine": machine(), "threads": arguments.threads}
    report |= {
        "engine": arguments.engine,
        "dtype": arguments.dtype,
        "peers": {},
        "problems": {},
        "workloads": {},
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workers, report["problems"] = start(arguments, stack)
        report["peers"] = {name: worker.versions for name, worker in workers.items()}
        if OURS in report["problems"]:
            sys.exit(f"{OURS} is unavailable: {report['problems'][OURS]}")
        print_versions(report["peers"])
        for name, why in report["problems"].items():
            print(f"{name} is unavailable: {why}")
        peaks: list[dict[str, Any]] = []
        for workload in chosen(arguments.workload or list(MEASURED[kind_of(arguments.engine)])):
            print(f"... {workload.name}", flush=True)
            with suppress(Unavailable, KeyError):  # the table can do without a peak
                peaks.append(workers[OURS].ask(peak=True))
            tolerance = TOLERANCE if arguments.dtype == "float32" else MIXED_TOLERANCE
            result = measured(
                workload, workers, arguments.rounds, arguments.seconds, folder, tolerance
            )
            report["workloads"][workload.name] = result
    # Other processes may use the machine as well, so the largest measured peak counts.
    report["peak"] = max(peaks, key=lambda peak: peak["gflops"], default=None)
    print_table(report, list(workers))
    if arguments.json:
        write_json(arguments.json, report)


if __name__ == "__main__":
    main()
