"""The options of the tests, and the tables of faults that tests must find."""

import importlib
import os
from pathlib import Path

import pytest
from fresh_python import run_python

from lamina.engines.discovery import open_engine

ROOT = Path(__file__).parents[2]


def run_pytest(*options):
    """What a run of tests prints."""
    # In a process of xdist these variables would make it report to that process.
    kept = {name: os.environ[name] for name in os.environ if "XDIST" not in name}
    arguments = ("-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", *options)
    done = run_python(*arguments, folder=ROOT, environment=kept)
    return done.stdout + done.stderr


@pytest.mark.sampled
def test_kernels_of_pocl_are_kept_for_the_next_run(opencl_name, tmp_path):
    if "pthread" not in open_engine(opencl_name).device.description:
        pytest.skip("not PoCL")
    options = (f"--engine={opencl_name}", "-k", "outputs_are_copies", "--pocl-cache", tmp_path)
    compiled = []
    for _ in range(2):
        output = run_pytest("tests/conformance/test_engine.py", *options)
        assert "1 passed" in output, output
        compiled.append({path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.so")})
    assert compiled[0] == compiled[1] != {}


ROUNDING = "tests/conformance/test_rounding.py"


def collected(*options):
    """The tests that the options choose."""
    return [line for line in run_pytest("--collect-only", *options).splitlines() if "::" in line]


def test_each_test_is_in_one_part():
    every = collected(ROUNDING, "--engine=interpreter")
    parts = [collected(ROUNDING, "--engine=interpreter", "--part", f"{k}/3") for k in range(3)]
    assert len(every) == 6
    assert sorted(name for part in parts for name in part) == sorted(every)
    assert all(len(part) < len(every) for part in parts)


def test_an_engine_is_the_interpreter_or_cpu_unless_chosen():
    engines = {name.rpartition("[")[2].partition("-")[0] for name in collected(ROUNDING)}
    assert engines == {"interpreter", "cpu"}


def test_a_part_that_there_is_not_is_refused():
    assert "there are parts 0/3 to 2/3" in run_pytest(ROUNDING, "--part", "3/3")


def test_the_first_case_of_each_test_runs_by_default_and_all_of_a_path():
    path = "tests/unit/ops/test_top_k.py"
    every, by_default = collected(path), collected("-o", f"testpaths={path}")
    first = {name.partition("[")[0]: name for name in reversed(every)}
    assert set(first.values()) <= set(by_default) < set(every)


TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.mark.parametrize(
    "table", sorted((TOOLS / "mutations").glob("*.toml")), ids=lambda p: p.stem
)
def test_every_fault_of_a_table_fits_the_sources(table, monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    faults = importlib.import_module("mutations").faults_of(table)
    assert len(faults) >= 10
    assert {fault.name: fault.problem() for fault in faults if fault.problem()} == {}
    assert len({fault.name for fault in faults}) == len(faults)
