"""Kernels under oclgrind: no data race, and no access outside of buffers or to unwritten memory."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_cases import CASES

pytestmark = pytest.mark.sampled

HERE = Path(__file__).parent


def under_oclgrind(names):
    oclgrind = shutil.which("oclgrind")
    if oclgrind is None:
        pytest.skip("oclgrind is not installed")
    folders = (HERE.parent / "shared", HERE.parent / "conformance", HERE.parents[1])
    return subprocess.run(
        [
            *(oclgrind, "--data-races", "--uninitialized"),
            sys.executable,
            HERE / "oclgrind_kernels.py",
            *names,
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_oclgrind_finds_no_fault_with_any_schedule(name):
    done = under_oclgrind([name])
    assert not done.returncode, done.stderr
    assert "Kernel:" not in done.stderr, done.stderr
    assert "is right" in done.stdout


def test_oclgrind_finds_races_without_barriers():
    assert "data race" in under_oclgrind(["softmax", "without-barriers"]).stderr


def test_oclgrind_finds_no_fault_with_schedules_for_processors():
    done = under_oclgrind([*(one.name for one in CASES), "processor"])
    assert not done.returncode, done.stderr
    assert "Kernel:" not in done.stderr, done.stderr
    for one in CASES:
        assert f"{one.name} 1 is right" in done.stdout


def test_oclgrind_finds_races_between_calls_that_depend_on_each_other():
    done = under_oclgrind(["normalized", "processor", "all-at-once"])
    assert "data race" in done.stderr
