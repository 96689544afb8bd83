"""The parts of the check of a device that are no other command: each runs in a process of its own.

    python benchmarks/device_parts.py PART --engine NAME [--machine]

`device_check.py` runs them, and names the files that they write. As a plugin of pytest this module
writes the outcome of each test to a file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).parents[1]
PEERS = ROOT / "benchmarks" / "peers"
TESTS = tuple(str(ROOT / folder) for folder in ("tests", "tests/conformance", "tests/shared"))
# In the order of what they tell.
WORKLOADS = (
    *("product-2000", "seed-step", "vgg", "transformer", "resnet-18", "lstm", "mlp", "tiny-step"),
    *("mobilenet-v2", "lenet", "softmax", "large-step"),
)
# The environment variable with the files of a part, without their endings.
FILES = "DEVICE_CHECK_FILES"
# Without these nothing else is tried.
OPENED, PRODUCT = "opened", "product float32, products float32"


# One test's outcome in a line, at once: a run that is ended has told what it found.
def pytest_runtest_logreport(report: Any) -> None:
    files = os.environ.get(FILES)
    if files is None or "PYTEST_XDIST_WORKER" in os.environ:
        return
    if report.when == "call" or report.outcome != "passed":
        text = "" if report.passed else f"\n{report.longreprtext}\n"
        with Path(f"{files}.txt").open("a") as file:
            file.write(f"{report.outcome} {report.duration:.2f} {report.nodeid}{text}\n")


class Notes:
    """The values and failures of a part, by name; the file is written after each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.all: dict[str, Any] = {}

    def tried(self, name: str, act: Callable[[], Any]) -> bool:
        """Notes what `act` returns, or its failure; returns whether it succeeded."""
        started = time.perf_counter()
        try:
            note = {"value": act()}
        except Exception as error:
            note = {"failed": f"{type(error).__name__}: {error}"[:3000]}
        note["seconds"] = round(time.perf_counter() - started, 3)
        self.all[name] = note
        print(name, json.dumps(note, default=str)[:600], flush=True)
        self._path.write_text(json.dumps(self.all, indent=1, default=str))
        return "value" in note


def first(arguments: argparse.Namespace, notes: Notes) -> None:
    """Opens the engine; products against float64; training against the interpreter; limits."""
    import numpy as np
    from gpu_limits import limits

    import lamina as lm
    from lamina.engines.discovery import open_engine

    engine, small = arguments.engine, arguments.machine
    notes.tried(
        "devices",
        lambda: [(device.engine, device.problem or device.description) for device in lm.devices()],
    )
    if not notes.tried(OPENED, lambda: str(open_engine(engine).device)):
        return
    driver = open_engine(engine)._driver
    notes.tried("traits", lambda: str(driver.traits))
    rows, width, wide = (48, 64, 40) if small else (2000, 2048, 1000)

    def product(dtype: str, precision: str) -> float:
        """The error of a product against float64."""
        net = lm.Sequential(lm.Input(width), lm.Linear(wide))
        model = lm.Model(net, engine=engine, seed=1, dtype=dtype, precision=precision)
        x = np.random.default_rng(0).standard_normal((rows, width), np.float32)
        y, again = model.predict(x), model.predict(x)
        if y.tobytes() != again.tobytes():
            raise AssertionError("two runs differ in their bits")
        weight, bias = (parameter.astype(np.float64) for parameter in model.parameters().values())
        right = x.astype(np.float64) @ (weight if len(weight) == width else weight.T) + bias
        return float(np.linalg.norm(y - right) / np.linalg.norm(right))

    def kernels_text() -> str:
        """The kernels of the training, kept in a file for a driver that cannot compile them."""
        model = lm.Model(trained(), engine=engine)
        text = model.explain(16, lm.CrossEntropy(), lm.SGD(0.05)).listing(None, "opencl")
        path = Path(f"{arguments.files}.cl")
        path.write_text(text)
        return str(path)

    def trained() -> Any:
        layers = (lm.Conv2d(8, 3, padding=1), lm.BatchNorm(), lm.ReLU(), lm.MaxPool2d(2))
        return lm.Sequential(lm.Input(3, 8, 8), *layers, lm.Flatten(), lm.Linear(10))

    def training(dtype: str, precision: str) -> float:
        """The largest difference to the interpreter after three training steps."""
        net, random = trained(), np.random.default_rng(2)
        x = random.standard_normal((16, 3, 8, 8), np.float32)
        y = random.integers(0, 10, 16)
        results: list[list[Any]] = []
        for name in (engine, "interpreter"):
            model = lm.Model(net, engine=name, seed=3, dtype=dtype, precision=precision)
            options = {"loss": lm.CrossEntropy(), "optimizer": lm.SGD(0.05)}
            steps = model.training(**options, batch_size=16)
            losses = [float(steps.step(x, y)) for _ in range(3)]
            results.append([*losses, *model.parameters().values()])
        return max(float(np.abs(a - b).max()) for a, b in zip(*results, strict=True))

    def epochs() -> list[float]:
        """The losses of two trainings over the digits, which must be equal."""
        digits = lm.data.digits()
        if small:
            digits, _ = digits.split(0.1, seed=0)
        layers = (lm.Flatten(), lm.Linear(64), lm.ReLU(), lm.Linear(10))
        options = {"loss": lm.CrossEntropy(), "optimizer": lm.Adam(1e-3), "epochs": 2}
        seen: list[float] = []
        for _ in range(2):
            model = lm.Model(lm.Sequential(lm.Input(1, 8, 8), *layers), engine=engine, seed=5)
            history = model.fit(digits, **options, batch_size=64, progress=False)
            seen.append(float(history["loss"][-1]))
        if seen[0] != seen[1]:
            raise AssertionError(f"two trainings differ: {seen}")
        return seen

    options = (("float32", "float32"), ("float32", "tf32"), ("mixed", "float32"))
    if engine.startswith("opencl"):
        notes.tried("kernels of the training", kernels_text)
    for dtype, precision in options:
        name = f"{dtype}, products {precision}"
        notes.tried(f"product {name}", lambda d=dtype, p=precision: product(d, p))
        notes.tried(f"training {name}", lambda d=dtype, p=precision: training(d, p))
    notes.tried("epochs", epochs)
    for dtype in ("float32", "mixed"):
        notes.tried(f"limits {dtype}", lambda dtype=dtype: limits(engine, dtype))


def schedules(arguments: argparse.Namespace, notes: Notes) -> None:
    """Each case of the tests with its own schedule and with all others, against the interpreter."""
    from alternatives import schedules_of
    from gpu_cases import CASES, PANELS, assert_close, compiled
    from harness import run_program

    from lamina.engines.discovery import open_engine
    from lamina.engines.interpreter.engine import InterpreterEngine

    engine = open_engine(arguments.engine)

    def check(case: Any) -> int:
        program, feeds = compiled(case, engine.target), case.feeds()
        expected, _ = run_program(program, InterpreterEngine(), feeds)
        every = (None, *schedules_of(engine, program))
        for schedule in every[:3] if arguments.machine else every:
            got, _ = run_program(program, engine, feeds, schedule=schedule)
            for name, value in expected.items():
                assert_close(got[name], value, 2e-5, f"{name}\n{schedule}")
        return len(every)

    number, count = map(int, arguments.slice.split("/"))
    for case in CASES[:6] if arguments.machine else (*PANELS, *CASES)[number::count]:
        notes.tried(case.name, lambda case=case: check(case))


def programs_of(arguments: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The names of the workloads, and functions that compile them as Lamina's peer."""
    os.environ |= {
        "BENCHMARK_ENGINE": arguments.engine,
        "BENCHMARK_DTYPE": arguments.dtype,
        "BENCHMARK_PRODUCTS": arguments.precision,
        "BENCHMARK_TUNING": "0",
        "BENCHMARK_TINY": "1" if arguments.machine else "",
    }
    from lamina_gpu import LaminaOnGpu

    for name in arguments.workload or WORKLOADS[:-1]:
        yield name, lambda name=name: LaminaOnGpu(SimpleNamespace(name=name), None)


def compile_all(arguments: argparse.Namespace, notes: Notes) -> None:
    """Fills the cache of programs; notes the seconds of each workload's first training step."""

    def compiled(make: Callable[[], Any]) -> float:
        started = time.perf_counter()
        peer = make()
        peer.run(1)
        peer.release()
        return time.perf_counter() - started

    for name, make in programs_of(arguments):
        notes.tried(name, lambda make=make: compiled(make))


def kernels(arguments: argparse.Namespace, notes: Notes) -> None:
    """Seconds of a training step on resident data, and of its kernels, by CUPTI in PyTorch."""

    from lamina.engines.discovery import open_engine

    engine = open_engine(arguments.engine)

    def measured(peer: Any) -> dict[str, Any]:
        peer.run(2)
        runs = 1
        while (taken := peer.resident_seconds(runs)) < 0.1 and not arguments.machine:
            runs *= 3
        listings = [engine.listing(each.program, None, "schedule") for each in peer._programs()]
        return {"us": 1e6 * taken / runs, "notes": peer.notes(), "schedule": listings}

    def alone(peer: Any) -> list[dict[str, Any]]:
        runs = 10
        return timeline(lambda: peer.resident_seconds(runs), runs)

    for name, make in programs_of(arguments):
        peers: list[Any] = []
        notes.tried(f"{name}, compiled", lambda make=make, peers=peers: peers.append(make()))
        for peer in peers:
            is_measured = notes.tried(name, lambda peer=peer: measured(peer))
            if is_measured and not (arguments.machine or arguments.plain):
                notes.tried(f"{name}, kernels", lambda peer=peer: alone(peer))
            peer.release()


def steps(arguments: argparse.Namespace, notes: Notes) -> None:
    """Seconds of each step of a program alone, by events of the device around it."""

    def measured(make: Callable[[], Any]) -> dict[str, Any]:
        peer = make()
        batch = peer.workload.batch
        if peer._training is None:
            profile = peer._model.profile(batch, data=peer._x[:batch], seconds=0.1)
        else:
            profile = peer._training.profile(peer._x[:batch], peer._y[:batch], 0.1)
        peer.release()
        print(profile)
        return profile.record()

    for name, make in programs_of(arguments):
        notes.tried(name, lambda make=make: measured(make))


def timeline(run: Callable[[], Any], runs: int) -> list[dict[str, Any]]:
    """The kernels of a run: name, launches, microseconds alone, gaps before them, registers.

    Kernels begin before the one before them has ended, and wait for it: this is not their time.
    """
    import tempfile

    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.init()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    ran = sorted(
        (event for event in events if event.get("cat") in kinds), key=lambda event: event["ts"]
    )
    by_name: dict[str, dict[str, Any]] = defaultdict(lambda: {"count": 0, "us": 0.0, "gap": 0.0})
    end = None
    for event in ran:
        totals = by_name[event["name"][:120]]
        totals["count"] += 1
        start, stop = event["ts"], event["ts"] + event["dur"]
        totals["us"] += stop - max(start, min(end or start, stop))
        totals["gap"] += max(0.0, start - (end or start))
        end = max(end or stop, stop)
        more = event.get("args", {})
        for key in ("grid", "block", "registers per thread", "shared memory"):
            totals[key] = more.get(key)
    return [
        {"name": name, **totals, "count": totals["count"] / runs, "us": totals["us"] / runs}
        | {"gap": totals["gap"] / runs}
        for name, totals in by_name.items()
    ]


def host(arguments: argparse.Namespace, notes: Notes) -> None:
    """Microseconds of whole calls, and where Python spends them."""
    import cProfile
    import io
    import pstats

    def measured(make: Callable[[], Any]) -> float:
        peer, runs = make(), 3 if arguments.machine else 200
        peer.run(runs)
        started = time.perf_counter()
        peer.run(runs)
        taken = time.perf_counter() - started
        profiler = cProfile.Profile()
        profiler.runcall(peer.run, runs)
        text = io.StringIO()
        pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(25)
        print(text.getvalue())
        peer.release()
        return 1e6 * taken / runs

    arguments.workload = arguments.workload or ["tiny-step", "mlp", "seed-step", "product-2000"]
    for name, make in programs_of(arguments):
        notes.tried(name, lambda make=make: measured(make))


def tuned(arguments: argparse.Namespace, notes: Notes) -> None:
    """The times of the schedules of the steps that take longest, for some seconds a workload.

    Each is with the time that the cost model expects.
    """
    from lamina.engines.discovery import open_engine

    tuner = open_engine(arguments.engine)._tuner

    def measured(make: Callable[[], Any]) -> list[dict[str, Any]]:
        peer = make()
        rows: list[dict[str, Any]] = []
        for program in peer._programs():
            for trial in tuner._tried(program.program, 6.0 if arguments.machine else 20.0):
                times = [(each.seconds, each.expected, each.schedule) for each in trial.candidates]
                rows.append({"steps": trial.steps, "chosen": trial.chosen, "candidates": times})
        peer.release()
        return rows

    arguments.workload = arguments.workload or ["vgg", "resnet-18"]
    for name, make in programs_of(arguments):
        notes.tried(name, lambda make=make: measured(make))


PARTS = {
    "first": first,
    "tuned": tuned,
    "schedules": schedules,
    "compile": compile_all,
    "kernels": kernels,
    "steps": steps,
    "host": host,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("part", choices=PARTS)
    add("--engine", default="cuda:0")
    add("--machine", action="store_true", help="without a GPU, in NumPy; NO MEASUREMENT")
    add("--dtype", default="float32")
    add("--precision", default="float32")
    add("--workload", action="append", default=[])
    add("--slice", default="0/1", help="one in so many cases of the schedules")
    add("--plain", action="store_true", help="without a timeline of kernels")
    arguments = parser.parse_args()
    sys.path.append(str(PEERS))
    # The tests and the benchmarks both have a `harness`.
    sys.path[:0] = TESTS if arguments.part == "schedules" else ()
    if arguments.machine:
        sys.path.append(TESTS[0])
        from gpu_limits import small_measurements

        from cuda_machine.engine import machine_without_gpu

        machine_without_gpu()
        small_measurements()
    arguments.files = os.environ.get(FILES, arguments.part)
    notes = Notes(Path(f"{arguments.files}.json"))
    PARTS[arguments.part](arguments, notes)
    sys.exit(any("failed" in note for note in notes.all.values()))


if __name__ == "__main__":
    main()
