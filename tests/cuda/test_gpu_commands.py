"""The commands that measure GPUs, in small sizes, on the machine that runs PTX."""

import importlib.util
import json
from pathlib import Path

import pytest
from fresh_python import run_python

from lamina.engines.discovery import devices

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def machine():
    """Skips a test where the command has no compiler, or would measure a GPU."""
    for package in ("cuda.bindings.driver", "cuda.bindings.nvrtc"):
        pytest.importorskip(package, reason="cuda-bindings is not installed")
    if importlib.util.find_spec("nvidia") is None:
        pytest.skip("nvidia-cuda-nvrtc is not installed")
    if any(one.engine.startswith("cuda") and not one.problem for one in devices()):
        pytest.skip("there is a GPU: the machine is not used")


def test_the_command_for_gpus_runs_to_its_end(tmp_path):
    arguments = ["--machine", "--tiny", "--conformance", "0", "--seconds", "0.001"]
    arguments += ["--peers", "cupy", "--workload", "seed-forward", "--workload", "seed-step"]
    done = run_python(BENCHMARKS / "gpu.py", *arguments, "--json", tmp_path / "gpu.json")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == lines[-1] == "NO MEASUREMENT: this run only tries out the command."
    assert "device: Lamina PTX machine (compute capability 8.0" in done.stdout
    assert "conformance: not checked" in lines
    # It prints each workload when it is done, and then calls, resident runs and preparations.
    number = lines.index("... seed-step")
    assert [line.split()[0] for line in lines[number + 1 : number + 3]] == ["calls:", "resident:"]
    blocks = done.stdout.split("\n\n")
    tables = [block.splitlines() for block in blocks if block.startswith("workload ")]
    timed = "workload lamina cupy best peer GFLOP/s of peak"
    before = "workload tuning lamina cupy bytes, lamina bytes, cupy"
    assert [" ".join(table[0].split()) for table in tables] == [timed, timed, before]
    for table in tables:
        assert [line.split()[0] for line in table[2:4]] == ["seed-forward", "seed-step"]
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert report["is_measurement"] is False
    assert report["options"]["rounds"] == "1"
    for kind in ("calls", "resident"):
        results = report["workloads"]["seed-step"][kind]
        assert results["problems"] == {}
        assert results["ratios"]["cupy"] > 0
    assert report["workloads"]["seed-step"]["calls"]["peers"]["lamina"]["bytes"] > 0
    rates = ("gflops", "gigabytes_per_second", "cached_gigabytes_per_second")
    for name in (*rates, "launch_seconds", "sequence_seconds"):
        assert report["limits"]["lamina"][name] > 0
    # CuPy's formulas compute the same.
    assert all(workload["calls"]["differing"] == [] for workload in report["workloads"].values())


def device_check(*arguments):
    return run_python(BENCHMARKS / "device_check.py", "--machine", *arguments)


def test_each_part_of_the_device_check_leaves_its_files(tmp_path):
    earlier = tmp_path / "first.json"
    earlier.write_text("{}")
    done = device_check("--out", tmp_path, "--parts", "first", "host", "ncu-mixed")
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["first"]["status"], summary["host"]["status"]) == (0, 0)
    # The tool is absent, which ends nothing else.
    assert "ncu" in summary["ncu-mixed"]["status"]
    first = json.loads(earlier.read_text())
    assert first["epochs"]["value"][0] == first["epochs"]["value"][1]
    host = json.loads((tmp_path / "host.json").read_text())
    assert host["product-2000"]["value"] > 0
    assert {path.name for path in tmp_path.iterdir()} >= {"first.log", "ncu-mixed.log"}


def test_a_part_that_does_not_exist_is_refused(tmp_path):
    done = device_check("--out", tmp_path / "o", "--parts", "kernel-mixed")
    assert done.returncode == 2
    assert "no part is called kernel-mixed; parts: first, conformance" in done.stderr
    assert not (tmp_path / "o").exists()
