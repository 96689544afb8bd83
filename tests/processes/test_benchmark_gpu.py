"""The command `benchmarks/gpu.py`, tried out without a GPU."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from benchmark_modules import BENCHMARKS, GPU, modules
from error_texts import error_text, refused

from lamina.engines.discovery import devices
from lamina.workloads import PRODUCTS, SEEDS, WORKLOADS, Runner, Stack

COMMAND = BENCHMARKS / "gpu.py"


@pytest.fixture(scope="module")
def loaded() -> Generator[dict[str, ModuleType]]:
    yield from modules(GPU)


@pytest.fixture
def gpu(loaded: dict[str, ModuleType]) -> ModuleType:
    return loaded["gpu"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(COMMAND), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def has_gpu() -> bool:
    return any(one.engine.startswith("cuda") and not one.problem for one in devices())


# On the machine -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """The output of the command and its report, for two small workloads."""
    for package in ("cuda.bindings.driver", "cuda.bindings.nvrtc"):
        pytest.importorskip(package, reason="cuda-bindings is not installed")
    if importlib.util.find_spec("nvidia") is None:
        pytest.skip("nvidia-cuda-nvrtc is not installed")
    if has_gpu():
        pytest.skip("there is a GPU: the machine is not used")
    file = tmp_path_factory.mktemp("gpu") / "gpu.json"
    arguments = ["--machine", "--tiny", "--conformance", "0", "--seconds", "0.001"]
    arguments += ["--peers", "cupy", "--workload", "seed-forward", "--workload", "seed-step"]
    done = run(*arguments, "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads(file.read_text())


def test_it_runs_to_its_end_without_a_gpu(tried: tuple[str, dict[str, Any]]) -> None:
    output, report = tried
    lines = output.splitlines()
    assert lines[0] == lines[-1] == "NO MEASUREMENT: this run only tries out the command."
    assert report["is_measurement"] is False
    assert "device: Lamina PTX machine (compute capability 8.0" in output
    assert "conformance: not checked" in lines
    assert report["options"]["rounds"] == "1"


def test_it_prints_each_workload_when_it_is_done(tried: tuple[str, dict[str, Any]]) -> None:
    lines = tried[0].splitlines()
    number = lines.index("... seed-step")
    assert [line.split()[0] for line in lines[number + 1 : number + 3]] == ["calls:", "resident:"]


def test_it_prints_calls_and_resident_runs_and_preparations(
    tried: tuple[str, dict[str, Any]],
) -> None:
    blocks = tried[0].split("\n\n")
    tables = [block.splitlines() for block in blocks if block.startswith("workload ")]
    heads = [table[0].split() for table in tables]
    timed = ["workload", "lamina", "cupy", "best", "peer", "GFLOP/s", "of", "peak"]
    before = ["workload", "tuning", "lamina", "cupy", "bytes,", "lamina", "bytes,", "cupy"]
    assert heads == [timed, timed, before]
    for table in tables:
        assert [line.split()[0] for line in table[2:4]] == ["seed-forward", "seed-step"]


def test_the_report_has_times_and_limits(tried: tuple[str, dict[str, Any]]) -> None:
    report = tried[1]
    for kind in ("calls", "resident"):
        found = report["workloads"]["seed-step"][kind]
        assert found["problems"] == {}
        assert found["ratios"]["cupy"] > 0
    assert report["workloads"]["seed-step"]["calls"]["peers"]["lamina"]["bytes"] > 0
    limits = report["limits"]["lamina"]
    for name in ("gflops", "gigabytes_per_second", "launch_seconds", "sequence_seconds"):
        assert limits[name] > 0


def test_the_formulas_written_for_cupy_compute_the_same(tried: tuple[str, dict[str, Any]]) -> None:
    for found in tried[1]["workloads"].values():
        assert found["calls"]["differing"] == []


# Peers --------------------------------------------------------------------------------------------


def test_a_peer_that_finds_no_gpu_is_absent(
    loaded: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, harness = loaded["gpu"], loaded["harness"]
    versions = {"dtype": "float32", "engine": "cuda:0", "device": "a GPU"}
    answer = f"import json, sys\nprint(json.dumps({{'versions': {versions!r}}}))\n"
    (tmp_path / "ours.py").write_text(f"{answer}sys.stdout.flush()\nsys.stdin.read()")
    (tmp_path / "theirs.py").write_text("raise SystemExit('absent: PyTorch 9 finds no GPU')")
    monkeypatch.setattr(harness, "FOLDER", tmp_path)
    monkeypatch.setattr(gpu, "LAMINA", harness.Script("ours.py"))
    theirs = {"pytorch": harness.Script("theirs.py")}
    monkeypatch.setattr(gpu, "PEERS", {"float32": theirs})
    monkeypatch.setenv("BENCHMARK_DEVICE", "")
    given = gpu.options().parse_args([])
    with gpu.ExitStack() as stack:
        workers, absent = gpu.start(given, stack)
    assert (list(workers), absent) == (["lamina"], {"pytorch": "PyTorch 9 finds no GPU"})


def test_a_framework_takes_the_gpu_of_lamina(loaded: dict[str, ModuleType]) -> None:
    number = loaded["gpu_device"].device_number
    names = ["NVIDIA A10", "NVIDIA L4"]
    assert number("cuda:1", names) == 1
    assert number("NVIDIA L4 (NVIDIA CUDA, 580.65)", names) == 1
    for wanted in ("cuda:2", "gfx1100 (AMD, 3.6)"):
        with pytest.raises(SystemExit) as caught:
            number(wanted, names)
        expected = f"absent: it does not find the GPU {wanted} (it finds NVIDIA A10, NVIDIA L4)"
        assert str(caught.value) == expected


@pytest.mark.torch
def test_pytorch_on_a_device_computes_what_lamina_computes(
    loaded: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    gpu, harness = loaded["gpu"], loaded["harness"]
    monkeypatch.setenv("BENCHMARK_DEVICE", "cpu")
    monkeypatch.setenv("BENCHMARK_TINY", "1")
    workload = loaded["gpu_workloads"].named("mlp", True)
    harness.write_data(workload, tmp_path / "mlp.npz")
    worker = harness.Worker("pytorch", 1, script=gpu.PEERS["float32"]["pytorch"])
    own = Runner(workload, "interpreter")
    before = own.parameters()
    own.run(workload.compared_steps)
    moved = sum(((own.parameters()[name] - before[name]) ** 2).sum() for name in before) ** 0.5
    found = worker.prepare(workload, tmp_path / "mlp.npz")
    assert found["fingerprint"] == pytest.approx(moved, rel=1e-3)
    assert worker.ask(resident="mlp", steps=2)["seconds"] > 0
    assert worker.ask(release="mlp") == {}
    worker.close()


# Conformance --------------------------------------------------------------------------------------


def test_failing_conformance_tests_end_the_command_with_their_output(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def fails(command: list[str], **_: Any) -> Any:
        commands.append(command)
        return SimpleNamespace(returncode=1, stdout="FAILED test_sum\n", stderr="")

    monkeypatch.setattr(gpu.subprocess, "run", fails)
    text = error_text(SystemExit, lambda: gpu.require_conformance("cuda:0", 16))
    expected = "FAILED test_sum\n\nthe engine does not pass the conformance tests"
    assert text == expected
    expected = ["tests/conformance", "--engine=cuda:0", "-m", "engine", "--part", "0/16"]
    assert commands[0][3:9] == expected
    assert int(commands[0][commands[0].index("--numprocesses") + 1]) <= 8


def test_the_command_fails_if_lamina_fails_on_a_workload(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = SimpleNamespace(versions={"engine": "cuda:0"})
    monkeypatch.setattr(gpu, "start", lambda *_: ({gpu.OURS: worker}, {}))
    for name in ("set_variables", "print_machine", "require_conformance", "print_limits"):
        monkeypatch.setattr(gpu, name, lambda *_: None)
    monkeypatch.setattr(gpu, "limits", lambda *_: {})
    kinds = {kind: {"peers": {}, "problems": {}} for kind in ("calls", "resident")}
    monkeypatch.setattr(gpu, "measured", lambda *_: kinds)
    for name in ("progress", "print_tables"):
        monkeypatch.setattr(gpu, name, lambda *_: "")
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--workload", "mlp", "--workload", "vgg"])
    with pytest.raises(SystemExit, match="lamina failed: mlp, vgg"):
        gpu.main()


def test_a_failure_of_a_peer_does_not_count(gpu: ModuleType) -> None:
    rows = {"mlp": ["lamina", "pytorch"], "vgg": ["pytorch"], "lenet": ["lamina"]}
    found = {name: {"calls": {"peers": {key: {} for key in row}}} for name, row in rows.items()}
    assert gpu.failures(found) == ["vgg"]


def test_conformance_tests_need_packages(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "TEST_PACKAGES", ("pytest", "no_such_package"))
    text = error_text(SystemExit, lambda: gpu.require_conformance("cuda:0", 16))
    expected = "the conformance tests need pytest and pytest-xdist; --conformance 0 leaves them out"
    assert text == expected


# Errors -------------------------------------------------------------------------------------------


def test_without_a_gpu_it_says_what_to_do() -> None:
    if has_gpu():
        pytest.skip("there is a GPU")
    done = run("--conformance", "0")
    assert done.returncode == 1
    assert done.stderr.startswith("cuda:0 cannot be measured: in cuda: ")
    expected = "Without a GPU, --machine --tiny tries out the command.\n"
    assert done.stderr.endswith(expected)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--workload", "huge"], "argument --workload: invalid choice: 'huge'"),
        (
            ["--engine", "cpu"],
            "must be cuda or opencl or cuda:NUMBER or cuda:NAME or opencl:NUMBER",
        ),
        (["--tune", "long"], "argument --tune: must be all or a number of seconds, not 'long'"),
        (["--machine", "--engine", "opencl"], "--machine is a CUDA device: --engine cuda:0"),
        (["--dtype", "mixed", "--precision", "tf32"], "--precision tf32 is for --dtype float32"),
    ],
)
def test_wrong_options_are_refused(
    gpu: ModuleType,
    arguments: list[str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.py", *arguments])
    error = refused(SystemExit, lambda: gpu.main())
    assert error.code == 2
    assert expected in capsys.readouterr().err


# Small workloads ----------------------------------------------------------------------------------


def test_all_workloads_are_measured(loaded: dict[str, ModuleType]) -> None:
    assert set(loaded["gpu_workloads"].MEASURED) == {*WORKLOADS, *PRODUCTS, *SEEDS}


@pytest.mark.parametrize("name", WORKLOADS | PRODUCTS | SEEDS)
def test_a_small_workload_has_the_same_layers_and_less_work(
    loaded: dict[str, ModuleType], name: str
) -> None:
    large = (WORKLOADS | PRODUCTS | SEEDS)[name]
    small = loaded["gpu_workloads"].small(large)
    assert (small.loss, small.optimizer, small.timed) == (large.loss, large.optimizer, large.timed)
    assert small.flops() < large.flops() or name.startswith("tiny")
    if isinstance(large.architecture, Stack):
        kinds = [[type(layer) for layer in one.architecture.layers] for one in (small, large)]
        assert kinds[0] == kinds[1]
    else:
        assert small.architecture.function == large.architecture.function
