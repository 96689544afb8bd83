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
