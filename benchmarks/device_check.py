"""A check of the engines for GPUs on real hardware, in a few minutes: the most valuable first.

    python benchmarks/device_check.py --out FOLDER [--seconds 330] [--parts NAME...]
    python benchmarks/device_check.py --out FOLDER --machine

Each part is a command of its own, with a limit of seconds and a log; a part that fails or takes too
long ends no other, except that nothing else is run if the engine cannot be opened. Parts that need
no quiet device run side by side. A part's files have its name: NAME.log, and NAME.json with what it
noted, or NAME.txt with the outcomes of tests. `summary.json` is written again after each part. With
`--machine` kernels run on the machine of the tests, in NumPy, and workloads are small: it tries the
check out. docs/cuda.md says what each part finds.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from device_parts import FILES, OPENED, PRODUCT, WORKLOADS

ROOT = Path(__file__).parents[1]
# Where drivers put Nvidia's OpenCL.
DRIVERS = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/x86_64-linux-gnu")
OPENCL = "libnvidia-opencl.so*"
# The precisions of Lamina's models, as options.
PRECISIONS = {"float32": (), "tf32": ("--precision=tf32",), "mixed": ("--dtype=mixed",)}
# A part that is interrupted has so many seconds to write what it knows.
GRACE = 4.0
# The machine of the tests is slow: a part may take so many times as long.
PATIENCE = 6
ENDINGS = (".log", ".json", ".txt", ".cl")


@dataclass(frozen=True)
class Part:
    """A command, and the seconds that it may take.

    Attributes:
        command: with its arguments.
        seconds: it is interrupted after them.
        variables: of its environment, in addition.
        beside: parts with the same text run side by side; alone if it is empty.
    """

    command: tuple[str, ...]
    seconds: float
    variables: dict[str, str] = field(default_factory=dict)
    beside: str = ""


def parts(engine: str, out: Path, *, machine: bool) -> dict[str, Part]:
    """The parts, in order."""
    python = sys.executable
    tried = ("--machine",) if machine else ()

    def ours(part: str, *more: str) -> tuple[str, ...]:
        return (python, "benchmarks/device_parts.py", part, f"--engine={engine}", *tried, *more)

    def tests(name: str, share: int, processes: int) -> tuple[str, ...]:
        command = (python, "-m", "pytest", "tests/conformance", f"--engine={name}", "-q")
        count = 64 * share if machine else share
        # pytest-benchmark warns of processes, and warnings are errors.
        more = ("--tb=short", "-p", "device_parts", "-p", "no:benchmark", "--maxfail=60")
        return (*command, f"--part=0/{count}", f"--numprocesses={processes}", *more)

    def bench(precision: str, seconds: float, *peers: str) -> Part:
        command = (python, "benchmarks/gpu.py", f"--engine={engine}", "--conformance=0", "--tune=1")
        command += ("--rounds=2", "--seconds=0.1", "--limit=40", *PRECISIONS[precision])
        command += tuple(f"--workload={name}" for name in WORKLOADS)
        command += ("--machine", "--tiny") if machine else ()
        if kept := os.environ.get("LAMINA_CACHE"):
            command += (f"--cache={kept}",)
        command += (
            f"--json={out}/bench-{precision}.json",
            f"--budget={seconds}",
            "--peers",
            *peers,
        )
        return Part(command, seconds + 15)

    on_opencl = {"OCL_ICD_VENDORS": opencl_driver()} if opencl_driver() else {}
    tool = ("compute-sanitizer", "--error-exitcode=9", "--print-limit=20", "--tool")
    still = {"LAMINA_TUNE": "0"}
    in_order = {
        "first": Part(ours("first"), 45, still),
        "conformance": Part(tests(engine, 3, 8), 110, beside="tests"),
        "opencl": Part(tests("opencl:0", 12, 3), 100, on_opencl, "tests"),
        "first-opencl": Part((*ours("first"), "--engine=opencl:0"), 60, on_opencl, "tests"),
    }
    for number in range(2):
        slice_ = f"--slice={number}/2"
        in_order |= {
            f"{checker or 'schedules'}-{number}": Part(
                (*((*tool, checker) if checker else ()), *ours("schedules", slice_)),
                130,
                still,
                "tests",
            )
            for checker in ("", "memcheck", "racecheck", "initcheck")
        }
    in_order |= {
        f"compile-{name}": Part(ours("compile", *options), 110, still, "tests")
        for name, options in PRECISIONS.items()
    }
    in_order["host"] = Part(ours("host"), 25, still)
    in_order |= {
        f"kernels-{name}": Part(ours("kernels", *options), 45, still)
        for name, options in PRECISIONS.items()
    }
    in_order |= {
        f"steps-{name}": Part(ours("steps", *options), 45, still)
        for name, options in PRECISIONS.items()
    }
    in_order |= {
        f"tuned-{name}": Part(ours("tuned", *options), 60, still)
        for name, options in PRECISIONS.items()
    }
    in_order["bench-float32"] = bench("float32", 60, "graph")
    in_order["bench-mixed"] = bench("mixed", 45, "autocast.graph")
    in_order["bench-tf32"] = bench("tf32", 30, "graph")
    sections = ("SpeedOfLight", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis", "Occupancy")
    sections += ("WarpStateStats", "LaunchStats")
    counters = ("ncu", "--clock-control=none", "--cache-control=none", "--launch-count=60")
    counters += tuple(f"--section={section}" for section in sections)
    for name, options in PRECISIONS.items():
        few = ("--workload=product-2000", "--workload=vgg", "--plain")
        in_order[f"ncu-{name}"] = Part((*counters, *ours("kernels", *options, *few)), 40, still)
    return in_order


def opencl_driver() -> str:
    """The library of Nvidia's OpenCL; "" if there is none."""
    return next((str(path) for at in DRIVERS for path in sorted(Path(at).glob(OPENCL))), "")


class Running:
    """A part that runs, with the processes that it starts."""

    def __init__(self, name: str, part: Part, out: Path) -> None:
        self._part = part
        self._started = time.monotonic()
        files = out / name
        for ending in ENDINGS:
            # A part that writes nothing must not leave the figures of an earlier check.
            Path(f"{files}{ending}").unlink(missing_ok=True)
        paths = [str(ROOT), str(ROOT / "benchmarks")]
        paths += filter(None, [os.environ.get("PYTHONPATH")])
        variables = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
        variables[FILES] = str(files)
        # A driver that crashes shows which call it was.
        variables["PYTHONFAULTHANDLER"] = "1"
        self.process: subprocess.Popen[bytes] | None = None
        self.problem = ""
        with Path(f"{files}.log").open("wb") as log:
            log.write(f"{' '.join(part.command)}\n".encode())
            log.flush()
            try:
                self.process = subprocess.Popen(
                    part.command,
                    cwd=ROOT,
                    env=os.environ | variables | part.variables,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                self.problem = str(error)

    def is_over(self, end: float) -> bool:
        """Whether it is done, or has reached its limit or the `end` of the check."""
        latest = min(end, self._started + self._part.seconds)
        return self.process is None or self.process.poll() is not None or time.monotonic() >= latest

    def finish(self) -> dict[str, Any]:
        """Interrupts it if it is not done; its status and seconds."""
        status: Any = self.problem
        if self.process is not None:
            status = self.process.poll()
            if status is None:
                with suppress(ProcessLookupError):
                    self.process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(GRACE)
                status = "late"
            # Its workers too: they would disturb the next part.
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        return {"status": status, "seconds": round(time.monotonic() - self._started, 1)}


def check(arguments: argparse.Namespace, chosen: dict[str, Part]) -> None:
    end = time.monotonic() + arguments.seconds
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    summary: dict[str, Any] = {"opencl driver": opencl_driver()}
    running: dict[str, Running] = {}

    def note(name: str, value: Any) -> None:
        summary[name] = value
        print(name, value, flush=True)
        (out / "summary.json").write_text(json.dumps(summary, indent=1))

    def settle() -> None:
        while running:
            for name in [name for name, part in running.items() if part.is_over(end)]:
                note(name, running.pop(name).finish())
            time.sleep(0.05)

    beside = ""
    for name, part in chosen.items():
        if not part.beside or part.beside != beside:
            settle()
        beside = part.beside
        if end - time.monotonic() < GRACE:
            note(name, {"status": "left out: the time is over"})
            continue
        patience = PATIENCE if arguments.machine else 1
        limited = replace(part, seconds=min(patience * part.seconds, arguments.limit))
        running[name] = Running(name, limited, out)
        if not part.beside:
            settle()
        if name == "first":
            report = read_json(out / "first.json")
            print((out / "first.log").read_text()[-6000:])
            if not all("value" in report.get(key, {}) for key in (OPENED, PRODUCT)):
                sys.exit("the engine computes nothing, so nothing else was run")
    settle()


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path(), help="the folder of the logs and figures")
    add("--engine", default="cuda:0")
    add("--seconds", type=float, default=330.0, help="of all parts together")
    add("--limit", type=float, default=600.0, help="the most seconds of a part")
    add("--parts", nargs="*", help="default: all")
    add("--machine", action="store_true", help="without a GPU, in NumPy; NO MEASUREMENT")
    arguments = parser.parse_args()
    arguments.out = arguments.out.resolve()
    every = parts(arguments.engine, arguments.out, machine=arguments.machine)
    chosen = every if arguments.parts is None else arguments.parts
    if unknown := [name for name in chosen if name not in every]:
        parser.error(f"no part is called {', '.join(unknown)}; parts: {', '.join(every)}")
    check(arguments, {name: part for name, part in every.items() if name in chosen})


if __name__ == "__main__":
    main()
