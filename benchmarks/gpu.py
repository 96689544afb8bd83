"""Lamina on a GPU next to PyTorch, JAX and CuPy on the same one, after a check of its results.

    python benchmarks/gpu.py [--engine cuda:0] [--workload NAME]... [--rounds 7] [--json FILE]
    python benchmarks/gpu.py --engine opencl:0 --dtype mixed
    python benchmarks/gpu.py --machine --tiny

It installs nothing. It prints the machine and the versions; runs a share of the conformance tests;
measures the limits of the device; then measures each workload. A peer that is not installed, or
does not find the GPU, is absent; the others are measured. The JSON file has all workloads that are
done, so a run that is ended loses only the one that it measures. With --budget no workload begins
when that many seconds are spent. It fails at the end if a conformance test failed, or Lamina on a
workload.

With --machine Lamina's kernels run on the machine of the tests, in NumPy, and the peers on the
processor; with --tiny workloads are small. Both try out the command, and measure nothing.
docs/benchmarks.md says what the columns are.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from gpu_clocks import ClockReader, clocks_lines
from harness import (
    DTYPE,
    FOLDER,
    OURS,
    Script,
    Unavailable,
    Worker,
    engine_name,
    kind_of,
    machine,
    print_versions,
    save_json,
    write_data,
)
from run import MIXED_TOLERANCE, TOLERANCE, Workers, measured_round, notes, row, summary

from lamina.engines.discovery import open_engine
from lamina.errors import LaminaError
from lamina.reports import bytes_text, seconds_text, table_text
from lamina.workloads import Workload, samples

sys.path.append(str(FOLDER))
from gpu_device import CPU, DEVICE, PRODUCTS_VARIABLE
from gpu_workloads import MEASURED, named

ENGINES = ("cuda", "opencl")
ROOT = Path(__file__).parents[1]
# The workers of the peers, by the precision of Lamina's models.
LAMINA = Script("lamina_gpu.py")
PEERS = {
    "float32": {
        "pytorch": Script("pytorch_gpu.py", ("eager",)),
        "torch.compile": Script("pytorch_gpu.py", ("compile",)),
        "graph": Script("pytorch_gpu.py", ("graph",)),
        "compile.graph": Script("pytorch_gpu.py", ("compile.graph",)),
        "reduce-overhead": Script("pytorch_gpu.py", ("compile.reduce-overhead",)),
        "max-autotune": Script("pytorch_gpu.py", ("compile.max-autotune",)),
        "max-autotune.graph": Script(
            "pytorch_gpu.py", ("compile.max-autotune-no-cudagraphs.graph",)
        ),
        "jax": Script("jax_gpu.py", ("float32",)),
        "cupy": Script("cupy_peer.py"),
    },
    "mixed-bfloat16": {
        "autocast": Script("pytorch_gpu.py", ("autocast",)),
        "autocast.compile": Script("pytorch_gpu.py", ("autocast.compile",)),
        "autocast.graph": Script("pytorch_gpu.py", ("autocast.graph",)),
        "autocast.compile.graph": Script("pytorch_gpu.py", ("autocast.compile.graph",)),
        "autocast.reduce-overhead": Script("pytorch_gpu.py", ("autocast.compile.reduce-overhead",)),
        "autocast.max-autotune": Script("pytorch_gpu.py", ("autocast.compile.max-autotune",)),
        "autocast.max-autotune.graph": Script(
            "pytorch_gpu.py", ("autocast.compile.max-autotune-no-cudagraphs.graph",)
        ),
        "jax": Script("jax_gpu.py", ("mixed",)),
        "jax.cudnn": Script("jax_gpu.py", ("mixed.cudnn",)),
    },
}
# Seconds for one command of a worker. Tuning and torch.compile may take minutes.
LIMIT_SECONDS = 1800.0
# Rounds, and one in how many conformance tests, unless an option says so. On the machine one round
# runs all code there is.
ROUNDS, ROUNDS_ON_MACHINE = 7, 1
PARTS, PARTS_ON_MACHINE = 16, 128
# Processes of the conformance tests. Each has a context in the memory of the GPU, about 0.5 GiB.
TEST_PROCESSES = 8
# What the conformance tests need besides Lamina's packages.
TEST_PACKAGES = ("pytest", "xdist")
NO_MEASUREMENT = "NO MEASUREMENT: this run only tries out the command"
NVIDIA_SMI = ("nvidia-smi", "--query-gpu=index,name,driver_version,memory.total,clocks.max.sm")

# The machine ------------------------------------------------------------------------------------


def smi_text() -> str:
    """What nvidia-smi says of the GPUs; the reason if it says nothing."""
    if shutil.which(NVIDIA_SMI[0]) is None:
        return "nvidia-smi is absent"
    done = subprocess.run([*NVIDIA_SMI, "--format=csv"], capture_output=True, text=True)
    return (done.stdout if done.returncode == 0 else done.stdout + done.stderr).strip()


def device_of_peers(arguments: argparse.Namespace, ours: dict[str, Any]) -> str:
    """Lamina's GPU, by its number or, on OpenCL, by its description."""
    if arguments.machine:
        return CPU
    return ours["engine"] if ours["engine"].startswith("cuda:") else ours["device"]


def start(arguments: argparse.Namespace, stack: ExitStack) -> tuple[Workers, dict[str, str]]:
    """Starts the workers; returns also the reasons of peers that are absent."""

    def started(name: str, script: Script) -> Worker:
        dtype = arguments.dtype
        worker = Worker(name, arguments.threads, arguments.engine, arguments.limit, dtype, script)
        stack.callback(worker.close)
        return worker

    try:
        workers = {OURS: started(OURS, LAMINA)}
    except Unavailable as problem:
        sys.exit(no_engine(arguments, str(problem)))
    ours = workers[OURS].versions
    os.environ[DEVICE] = device_of_peers(arguments, ours)
    problems: dict[str, str] = {}
    peers = PEERS.get(ours["dtype"], {})

    def tried(name: str) -> Worker | str:
        """The worker, or the reason why there is none."""
        if name not in peers:
            return f"it does not compute in {ours['dtype']}"
        try:
            return started(name, peers[name])
        except Unavailable as problem:
            return str(problem).partition("absent: ")[2] or str(problem)

    names = list(peers if arguments.peers is None else arguments.peers)
    # Imports of frameworks take seconds each.
    with ThreadPoolExecutor() as threads:
        for name, result in zip(names, threads.map(tried, names), strict=True):
            if isinstance(result, Worker):
                workers[name] = result
            else:
                problems[name] = result
    return workers, problems


def no_engine(arguments: argparse.Namespace, problem: str) -> str:
    """Why Lamina's worker did not start, and what to do."""
    if not arguments.machine:
        try:
            open_engine(arguments.engine)
        except LaminaError as error:
            problem = str(error)
    advice = (
        "`lamina devices` lists the devices. Without a GPU, --machine --tiny tries out the command."
    )
    if arguments.machine:
        advice = "The machine of the tests needs: pip install '.[test,cuda-compiler]'."
    return f"{arguments.engine} cannot be measured: {problem}\n{advice}"


def print_machine(workers: Workers, absent: dict[str, str]) -> None:
    ours = workers[OURS].versions
    for key, value in machine().items():
        print(f"{key}: {value}")
    memory = "unknown" if ours["memory_bytes"] is None else bytes_text(ours["memory_bytes"])
    print(f"device: {ours['device']}, {memory}, {ours['compute_units']} compute units")
    print(f"driver: {ours['platform']}, {ours['driver']}, {ours['version']}")
    print(f"{smi_text()}\n")
    shown = ("lamina", "engine", "dtype", "products", "numpy", "python")
    versions = {name: worker.versions for name, worker in workers.items()}
    versions[OURS] = {key: ours[key] for key in shown}
    print_versions(versions)
    for name, why in absent.items():
        print(f"{name} is absent: {why}")


# Conformance ------------------------------------------------------------------------------------


def conformance(engine: str, parts: int) -> str:
    """Runs one in `parts` of the conformance tests on the engine; returns why they do not pass.

    Args:
        engine: its name with the number of the device.
        parts: 0 for no tests.
    """
    if parts == 0:
        print("\nconformance: not checked")
        return ""
    if any(find_spec(package) is None for package in TEST_PACKAGES):
        return "the conformance tests need pytest and pytest-xdist; --conformance 0 leaves them out"
    command = [sys.executable, "-m", "pytest", "tests/conformance", f"--engine={engine}"]
    command += ["-m", "engine", "--part", f"0/{parts}", "-q", "-p", "no:cacheprovider"]
    # pytest-benchmark, if it is there, warns of several processes, and warnings are errors.
    command += ["-p", "no:benchmark"]
    command += ["--numprocesses", str(min(TEST_PROCESSES, os.cpu_count() or 1))]
    print(f"\nconformance: {' '.join(command[1:])}", flush=True)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=variables)
    if done.returncode:
        return f"{done.stdout}{done.stderr}\nthe engine does not pass the conformance tests"
    print(f"conformance: {done.stdout.strip().splitlines()[-1]}")
    return ""


# Limits -----------------------------------------------------------------------------------------


def limits(workers: Workers) -> dict[str, dict[str, Any]]:
    """The limits that Lamina's kernels reach, and the first PyTorch's rate of a large product."""
    by_peer: dict[str, dict[str, Any]] = {}
    for name, worker in workers.items():
        if name == OURS or (worker.versions.get("torch") and not by_peer.keys() - {OURS}):
            try:
                by_peer[name] = worker.ask(peak=True)
            except Unavailable as problem:
                print(f"limits of {name}: unavailable: {problem}")
    return by_peer


def print_limits(by_peer: dict[str, dict[str, Any]]) -> None:
    print("\nLimits of the device")
    for name, figures in by_peer.items():
        if name != OURS:
            width = figures["width"]
            print(
                f"  product of matrices {width} x {width}, {name}: {figures['gflops']:.4g} GFLOP/s"
            )
            continue
        print(f"  {figures['gflops']:.4g} GFLOP/s, {figures['gigabytes_per_second']:.4g} GB/s")
        print(
            f"  {figures['cached_gigabytes_per_second']:.4g} GB/s: copies of 4 MiB, with launches"
        )
        print(f"  ({figures['how']})")
        for key, text in (
            ("launch_seconds", "an empty kernel, launched alone, until it is done"),
            ("sequence_seconds", "a launch sequence (graph) of an empty kernel, until it is done"),
            ("launch_in_sequence_seconds", "each of many empty kernels in one launch sequence"),
        ):
            print(f"  {seconds_text(figures[key])}: {text}")


def peak_of(by_peer: dict[str, dict[str, Any]], precise: bool) -> float | None:
    """The GFLOP/s with which workloads are compared.

    In float32 these are multiply-adds in registers. Products of other types run on tensor cores,
    for which PyTorch's large product counts; None without PyTorch.
    """
    names = [OURS] if precise else [name for name in by_peer if name != OURS]
    return max((by_peer[name]["gflops"] for name in names if name in by_peer), default=None)


# Workloads --------------------------------------------------------------------------------------


def resident_round(worker: Worker, workload: Workload, seconds: float) -> list[float]:
    """Seconds of repeated training steps or forward passes on inputs on the device."""
    worker.ask(reset=workload.name)

    def run(steps: int) -> float:
        return worker.ask(resident=workload.name, steps=steps)["seconds"]

    return samples(run, seconds)


def measured(
    workload: Workload,
    workers: Workers,
    arguments: argparse.Namespace,
    folder: Path,
    clocks: ClockReader,
) -> dict[str, dict[str, Any]]:
    """The results of one workload: `calls`, whole calls, and `resident`, repeated runs."""
    data = folder / f"{workload.name}.npz"
    write_data(workload, data)
    peers: dict[str, dict[str, Any]] = {}
    problems: dict[str, str] = {}

    def leave_out(name: str, problem: Unavailable) -> None:
        """Ends the process: after an error of a kernel it cannot use the GPU any more."""
        problems[name] = str(problem)
        peers.pop(name, None)
        workers[name].close()

    for name, worker in workers.items():
        try:
            peers[name] = worker.prepare(workload, data)
            peers[name] |= {"calls": [], "resident": [], "others": []}
        except Unavailable as problem:
            leave_out(name, problem)
    clocks.taken()
    for number in range(arguments.rounds):
        # Every second round is reversed, so that no peer always follows the same other peer.
        for name in list(peers)[:: -1 if number % 2 else 1]:
            try:
                calls, others = measured_round(workers[name], workload, arguments.seconds)
                resident = resident_round(workers[name], workload, arguments.seconds)
            except Unavailable as problem:
                leave_out(name, problem)
                continue
            peers[name]["calls"].append(calls)
            peers[name]["resident"].append(resident)
            peers[name]["others"].append(others)
    during = {"clocks": clocks.taken()}
    for name in list(peers):
        with suppress(Unavailable):  # its times count all the same
            workers[name].ask(release=workload.name)
    data.unlink()
    exact = arguments.dtype == "float32" and arguments.precision == "float32"
    tolerance = TOLERANCE if exact else MIXED_TOLERANCE
    return {
        kind: summary(
            workload,
            {name: peer | {"rounds": peer[kind]} for name, peer in peers.items()},
            problems,
            tolerance,
        )
        | during
        for kind in ("calls", "resident")
    }


def print_tables(
    results: dict[str, dict[str, dict[str, Any]]], names: list[str], peak: float | None
) -> None:
    titles = {
        "calls": "Whole calls, with the copies of batches and of outputs",
        "resident": "Repeated on inputs that stay on the device",
    }
    header = ("workload", *names, "best peer", "GFLOP/s", "of peak")
    for kind, title in titles.items():
        rows = [row(name, by_kind[kind], names, peak) for name, by_kind in results.items()]
        print(f"\n{title}: time, its ratio to Lamina's; Lamina's GFLOP/s.\n")
        print(table_text(header, rows, align="lr"))
    print("\nBefore the first call: tuning, building and compiling, the first training steps.")
    print("Bytes: Lamina's plan and workspaces; the most that PyTorch's tensors took.\n")
    header = ("workload", "tuning", *names, *(f"bytes, {name}" for name in names))
    rows = [before_row(name, by_kind["calls"], names) for name, by_kind in results.items()]
    print(table_text(header, rows, align="lr"))
    for line in notes({name: by_kind["calls"] for name, by_kind in results.items()}):
        print(line)


def failures(results: dict[str, dict[str, Any]]) -> list[str]:
    """The workloads on which Lamina failed. A peer's failure does not count."""
    return [name for name, by_kind in results.items() if OURS not in by_kind["calls"]["peers"]]


def progress(name: str, by_kind: dict[str, dict[str, Any]]) -> str:
    """What is known of a workload that is done: its times, and its notes."""
    lines: list[str] = []
    for kind, result in by_kind.items():
        times = [f"{peer} {seconds_text(each['median'])}" for peer, each in result["peers"].items()]
        lines.append(f"    {kind}: {', '.join(times) or 'none'}")
    more = [*clocks_lines(by_kind["calls"]["clocks"]), *notes({name: by_kind["calls"]})]
    return "\n".join([*lines, *(f"    {line}" for line in more)])


def before_row(name: str, result: dict[str, Any], names: list[str]) -> list[str]:
    """The seconds before the first call, and the bytes."""
    peers = result["peers"]
    tuned = peers.get(OURS, {}).get("tuned_seconds")
    cells = [name, "" if tuned is None else seconds_text(tuned)]
    for peer in names:
        seconds = peers.get(peer, {}).get("ready_seconds")
        tuning = tuned if peer == OURS and tuned else 0.0
        cells.append("unavailable" if seconds is None else seconds_text(seconds - tuning))
    taken = [peers.get(peer, {}).get("bytes") for peer in names]
    return [*cells, *("" if size is None else bytes_text(size) for size in taken)]


# The command ------------------------------------------------------------------------------------


def gpu_engine_name(text: str) -> str:
    return engine_name(text, ENGINES)


def tuning_seconds(text: str) -> str:
    """`all`, or a number of seconds.

    Raises:
        argparse.ArgumentTypeError: for another text.
    """
    try:
        valid = text == "all" or float(text) >= 0
    except ValueError:
        valid = False
    if not valid:
        raise argparse.ArgumentTypeError(f"must be all or a number of seconds, not {text!r}")
    return text


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--engine", default="cuda:0", type=gpu_engine_name, help="default: cuda:0")
    add("--workload", action="append", choices=list(MEASURED), default=[], help="default: all")
    add("--rounds", type=int, help=f"default: {ROUNDS}; with --machine {ROUNDS_ON_MACHINE}")
    add("--seconds", type=float, default=0.3, help="of each peer in each round and column")
    add("--dtype", default="float32", choices=["float32", "mixed", "mixed-bfloat16"])
    add("--precision", default="float32", choices=["float32", "tf32"], help="products of float32")
    of_tests = f"one test in N; 0: none (default: {PARTS}; with --machine {PARTS_ON_MACHINE})"
    add("--conformance", type=int, metavar="N", help=of_tests)
    add("--tune", type=tuning_seconds, help="seconds for each program (default: all candidates)")
    names = list(dict.fromkeys(chain(*PEERS.values())))
    add("--peers", nargs="*", choices=names, help="default: of the precision")
    add("--cache", type=Path, help="folder of Lamina's programs (default: one for this run)")
    add("--budget", type=float, default=math.inf, help="seconds, after which no workload begins")
    add("--threads", type=int, default=os.cpu_count() or 1, help="of each peer on the processor")
    add("--limit", type=float, default=LIMIT_SECONDS, help="seconds for one command of a peer")
    add("--tiny", action="store_true", help="small workloads; NO MEASUREMENT")
    add("--machine", action="store_true", help="without a GPU, in NumPy; NO MEASUREMENT")
    add("--json", type=Path)
    return parser


def set_variables(arguments: argparse.Namespace, cache: Path) -> None:
    """The environment variables that the workers read."""
    how = arguments.tune or "all"
    os.environ |= {PRODUCTS_VARIABLE: arguments.precision, "LAMINA_CACHE": str(cache)}
    os.environ |= {"BENCHMARK_TUNING": how, DTYPE: arguments.dtype}
    # After a whole tuning, the choices are on disk: programs are not tuned again.
    os.environ.pop("LAMINA_TUNE", None)
    if how != "all":
        os.environ["LAMINA_TUNE"] = how
    for name, enabled in (("TINY", arguments.tiny), ("MACHINE", arguments.machine)):
        os.environ[f"BENCHMARK_{name}"] = "1" if enabled else ""


def main() -> None:
    started = time.monotonic()
    parser = options()
    arguments = parser.parse_args()
    if arguments.rounds is None:
        arguments.rounds = ROUNDS_ON_MACHINE if arguments.machine else ROUNDS
    if arguments.conformance is None:
        arguments.conformance = PARTS_ON_MACHINE if arguments.machine else PARTS
    if arguments.precision == "tf32" and arguments.dtype != "float32":
        parser.error("--precision tf32 is for --dtype float32")
    if arguments.machine and kind_of(arguments.engine) != "cuda":
        parser.error("--machine is a CUDA device: --engine cuda:0")
    tried = arguments.tiny or arguments.machine
    if tried:
        print(f"{NO_MEASUREMENT}.\n")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        set_variables(arguments, (arguments.cache or folder / "cache").absolute())
        workers, absent = start(arguments, stack)
        clocks = ClockReader()
        stack.callback(clocks.close)
        print_machine(workers, absent)
        problem = conformance(workers[OURS].versions["engine"], arguments.conformance)
        if problem:
            print(problem)
        device = limits(workers)
        print_limits(device)
        results: dict[str, Any] = {}
        left = list(arguments.workload or MEASURED)
        report = {"machine": machine(), "smi": smi_text(), "absent": absent, "limits": device}
        report |= {"peers": {name: worker.versions for name, worker in workers.items()}}
        report |= {"options": {key: str(value) for key, value in vars(arguments).items()}}
        report |= {"is_measurement": not tried, "conformance": problem}
        report |= {"workloads": results, "left": left}
        print(flush=True)
        while left and time.monotonic() - started < arguments.budget:
            name = left[0]
            print(f"... {name}", flush=True)
            results[name] = measured(
                named(name, arguments.tiny), workers, arguments, folder, clocks
            )
            del left[0]
            print(progress(name, results[name]), flush=True)
            if arguments.json:
                save_json(arguments.json, report)
        exact = arguments.dtype == "float32" and arguments.precision == "float32"
        print_tables(results, list(workers), peak_of(device, exact))
    if left:
        print(
            f"\nnot measured, because the budget of {arguments.budget:g} s is spent: "
            f"{', '.join(left)}"
        )
    if arguments.json:
        save_json(arguments.json, report)
        print(f"\nwrote {arguments.json}")
    if tried:
        print(f"\n{NO_MEASUREMENT}.")
    failed = [*problem.splitlines()[-1:], *(f"{OURS} failed: {name}" for name in failures(results))]
    if failed:
        sys.exit("\n" + "\n".join(failed))


if __name__ == "__main__":
    main()
