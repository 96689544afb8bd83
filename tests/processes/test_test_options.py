"""The options of the tests themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lamina.engines.discovery import open_engine

ROOT = Path(__file__).parents[2]


def run_conformance(engine: str, folder: Path) -> dict[Path, int]:
    """Runs one conformance test; returns the files in a folder, and when each was written."""
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider"]
    command += [
        "tests/conformance/test_engine.py",
        f"--engine={engine}",
        "-k",
        "outputs_are_copies",
    ]
    command += ["--pocl-cache", str(folder)]
    # In a process of xdist these variables would make it report to that process.
    variables = {name: os.environ[name] for name in os.environ if "XDIST" not in name}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.so")}


@pytest.mark.sampled
def test_kernels_of_pocl_are_kept_for_the_next_run(opencl_name: str, tmp_path: Path) -> None:
    if "pthread" not in open_engine(opencl_name).device.description:
        pytest.skip("not PoCL")
    compiled = run_conformance(opencl_name, tmp_path)
    assert compiled
    assert run_conformance(opencl_name, tmp_path) == compiled


def collected(
    *options: str, paths: tuple[str, ...] = ("tests/conformance/test_rounding.py",)
) -> tuple[list[str], str]:
    """The tests that the options choose, and what was printed."""
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider"]
    command += [*paths, "--collect-only", *options]
    variables = {name: os.environ[name] for name in os.environ if "XDIST" not in name}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    return [line for line in lines if "::" in line], done.stdout + done.stderr


def test_each_test_is_in_one_part() -> None:
    every, _ = collected("--engine=interpreter")
    parts = [collected("--engine=interpreter", "--part", f"{k}/3")[0] for k in range(3)]
    assert len(every) == 6
    assert sorted(name for part in parts for name in part) == sorted(every)
    assert all(len(part) < len(every) for part in parts)


def test_an_engine_is_the_interpreter_or_cpu_unless_chosen() -> None:
    engines = {name.rpartition("[")[2].partition("-")[0] for name in collected()[0]}
    assert engines == {"interpreter", "cpu"}


def test_a_part_that_there_is_not_is_refused() -> None:
    assert "there are parts 0/3 to 2/3" in collected("--part", "3/3")[1]


def test_the_first_case_of_each_test_runs_by_default_and_all_of_a_path() -> None:
    path = "tests/unit/ops/test_top_k.py"
    every, _ = collected(paths=(path,))
    by_default, _ = collected("-o", f"testpaths={path}", paths=())
    first = {name.partition("[")[0]: name for name in reversed(every)}
    assert set(first.values()) <= set(by_default) < set(every)
