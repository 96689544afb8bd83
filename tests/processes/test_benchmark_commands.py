"""The commands in `benchmarks/`: their options, their processes, their arithmetic."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from types import ModuleType

import pytest
from benchmark_modules import BENCHMARKS, modules
from test_examples import write_idx_folder

from lamina.engines.discovery import open_engine
from lamina.engines.gpu.launches import Launch, Launches, RepeatedLaunches
from lamina.workloads import LATENCIES, PRODUCTS, WORKLOADS

# Answers like a worker; it takes very long for the workload mlp, and fails for lenet.
FAKE = """
import json, os, sys, time
print(json.dumps({"versions": {"process": os.getpid()}}), flush=True)
for line in sys.stdin:
    name = json.loads(line)["prepare"]["name"]
    if name == "mlp":
        time.sleep(1000)
    if name == "lenet":
        sys.exit("ValueError: too large")
    print(json.dumps({"fingerprint": 1.0}), flush=True)
"""
# Prints the environment variables that it got.
FAKE_COLD = "import json, os\nprint('a line of a library')\nprint(json.dumps(dict(os.environ)))"


@pytest.fixture(scope="module")
def loaded() -> Generator[dict[str, ModuleType]]:
    yield from modules(("harness", "run", "cold_start", "accuracy"))


@pytest.fixture
def harness(loaded: dict[str, ModuleType]) -> ModuleType:
    return loaded["harness"]


@pytest.fixture
def run(loaded: dict[str, ModuleType]) -> ModuleType:
    return loaded["run"]


@pytest.fixture
def accuracy(loaded: dict[str, ModuleType]) -> ModuleType:
    return loaded["accuracy"]


@pytest.fixture
def cold_start(loaded: dict[str, ModuleType]) -> ModuleType:
    return loaded["cold_start"]


# Options ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["run", "cold_start"])
def test_an_engine_is_named_as_in_lamina(loaded: dict[str, ModuleType], command: str) -> None:
    options = loaded[command].options()
    assert options.parse_args([]).engine == "cpu"
    assert options.parse_args(["--engine", "opencl:radeon"]).engine == "opencl:radeon"


@pytest.mark.parametrize("command", ["run", "cold_start"])
def test_an_engine_that_is_not_measured_is_refused(
    loaded: dict[str, ModuleType], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        loaded[command].options().parse_args(["--engine", "interpreter"])
    assert caught.value.code == 2
    expected = "must be cpu or opencl or opencl:NUMBER or opencl:NAME, not 'interpreter'"
    assert f"argument --engine: {expected}" in capsys.readouterr().err


def test_each_kind_of_engine_has_its_peers_and_workloads(
    harness: ModuleType, run: ModuleType
) -> None:
    assert run.PEERS["cpu"] == ("pytorch", "torch.compile", "jax")
    assert run.PEERS["opencl"] == ("lamina-cpu", "tinygrad")
    assert set(run.PEERS) == set(run.MEASURED) == set(harness.ENGINES)
    assert list(run.MEASURED["cpu"]) == list(WORKLOADS)
    assert set(run.MEASURED["opencl"]) == {*WORKLOADS, *PRODUCTS}


def test_a_device_that_does_not_exist_ends_the_command(opencl_name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "run.py"), "--engine", "opencl:no such device"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "no OpenCL device is named 'no such device'" in done.stderr


# Workers ------------------------------------------------------------------------------------------


@pytest.fixture
def fake(harness: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a peer whose worker is a fake."""
    (tmp_path / "fake.py").write_text(FAKE)
    monkeypatch.setattr(harness, "FOLDER", tmp_path)
    monkeypatch.setitem(harness.SCRIPTS, "fake", harness.Script("fake.py"))
    return "fake"


def test_a_worker_that_takes_too_long_is_ended_and_started_again(
    harness: ModuleType, fake: str, tmp_path: Path
) -> None:
    worker = harness.Worker(fake, 1)
    first, worker.limit = worker.versions["process"], 0.2
    with pytest.raises(harness.Unavailable) as caught:
        worker.prepare(WORKLOADS["mlp"], tmp_path)
    assert str(caught.value) == "not done after 0.2 s"
    # The next workload has a new process.
    worker.limit = harness.LIMIT_SECONDS
    assert worker.prepare(WORKLOADS["softmax"], tmp_path) == {"fingerprint": 1.0}
    assert worker.versions["process"] != first
    worker.close()


def test_a_worker_that_fails_is_started_again(
    harness: ModuleType, fake: str, tmp_path: Path
) -> None:
    worker = harness.Worker(fake, 1)
    with pytest.raises(harness.Unavailable) as caught:
        worker.prepare(WORKLOADS["lenet"], tmp_path)
    assert str(caught.value) == "ended with status 1: ValueError: too large"
    assert worker.prepare(WORKLOADS["softmax"], tmp_path) == {"fingerprint": 1.0}
    worker.close()


def test_no_openblas_setting_reaches_a_worker(
    harness: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    variables = harness.environment(3)
    assert not [name for name in variables if name.startswith("OPENBLAS_")]
    assert variables["LAMINA_THREADS"] == variables["OMP_NUM_THREADS"] == "3"


def test_opencl_on_a_processor_has_as_many_threads_as_the_other_peers(
    harness: ModuleType, opencl_name: str
) -> None:
    engine = open_engine(opencl_name)
    if not engine.device.description.startswith("pthread"):
        pytest.skip("not PoCL")
    code = (
        "import pyopencl as cl\n"
        "devices = [d for p in cl.get_platforms() for d in p.get_devices()]\n"
        "print(*{d.max_compute_units for d in devices if d.name.startswith('pthread')})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=harness.environment(1),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["1"]


def test_tinygrad_on_another_device_is_refused(harness: ModuleType) -> None:
    ours = {"device": "Radeon RX 6800 (AMD, 3.6)"}
    harness.require_same_device(ours, {"device": "Radeon  RX 6800", "driver": "3.6"})
    with pytest.raises(harness.Unavailable) as caught:
        harness.require_same_device(ours, {"device": "pthread-haswell", "driver": "3.1"})
    assert str(caught.value) == (
        "it runs on pthread-haswell (3.1), Lamina on Radeon RX 6800 (AMD, 3.6); "
        "OCL_ICD_VENDORS hides all drivers but one"
    )


@pytest.mark.sampled
def test_lamina_on_opencl_is_measured_next_to_lamina_on_cpu(
    opencl_name: str, tmp_path: Path
) -> None:
    file = tmp_path / "run.json"
    arguments = ["--workload", "tiny-step", "--rounds", "1", "--seconds", "0.02"]
    arguments += ["--engine", opencl_name, "--peers", "lamina-cpu", "--json", str(file)]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "run.py"), *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(file.read_text())
    engines = {name: versions["engine"] for name, versions in report["peers"].items()}
    assert engines == {"lamina": opencl_name, "lamina-cpu": "cpu"}
    found = report["workloads"]["tiny-step"]
    assert (found["problems"], found["differing"]) == ({}, [])
    assert list(found["ratios"]) == ["lamina-cpu"]
    assert report["peak"]["how"].startswith("multiply-adds in registers by all work items")


@pytest.mark.sampled
def test_tinygrad_computes_the_same_as_lamina(
    harness: ModuleType, opencl_name: str, tmp_path: Path
) -> None:
    pytest.importorskip("tinygrad", reason="tinygrad is not installed")
    workload, data = WORKLOADS["softmax"], tmp_path / "data.npz"
    harness.write_data(workload, data)
    prints: dict[str, float] = {}
    for name in ("lamina", "tinygrad"):
        worker = harness.Worker(name, 2, opencl_name)
        prints[name] = worker.prepare(workload, data)["fingerprint"]
        # TinyJit replays kernels now; a reset training repeats itself.
        assert worker.ask(reset="softmax") == {}
        assert worker.ask(run="softmax", steps=2)["seconds"] > 0
        worker.close()
    assert harness.differing(prints, 1e-3) == []


@pytest.mark.sampled
@pytest.mark.parametrize("name", LATENCIES)
def test_onnxruntime_computes_the_same_as_lamina(
    harness: ModuleType, tmp_path: Path, name: str
) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnx", reason="onnx is not installed")
    workload, data = LATENCIES[name], tmp_path / "data.npz"
    harness.write_data(workload, data)
    prints: dict[str, float] = {}
    for peer in ("lamina", "onnxruntime", "onnxruntime.bound"):
        worker = harness.Worker(peer, 2)
        prints[peer] = worker.prepare(workload, data)["fingerprint"]
        assert worker.ask(run=name, steps=2)["seconds"] > 0
        worker.close()
    assert harness.differing(prints, 1e-3) == []


# Cold starts --------------------------------------------------------------------------------------


def test_each_process_with_an_empty_cache_has_its_own(cold_start: ModuleType) -> None:
    known, folders = cold_start.starts_for("opencl"), Path("caches")
    rounds = [list(cold_start.starts(known, folders, number)) for number in (1, 2)]
    titles = [title for title, _, _ in rounds[0]]
    peers = ("lamina", "lamina-cpu", "tinygrad")
    assert titles == [f"{peer}, {state} cache" for peer in peers for state in ("empty", "warm")]
    found = [{title: cache for title, _, cache in starts} for starts in rounds]
    for title in titles:
        assert (found[0][title] == found[1][title]) == title.endswith("warm cache")
    assert len(set(found[0].values())) == len(titles)


def test_only_the_wanted_peers_are_started(
    cold_start: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_start, "started", lambda *_: {"seconds": 1.0})

    def found(*peers: str) -> tuple[set[str], dict[str, str]]:
        arguments = ["--engine", "opencl", "--rounds", "1", *peers]
        given = cold_start.options().parse_args(arguments)
        reports, problems = cold_start.collected(WORKLOADS["mlp"], given, tmp_path)
        return {title.partition(",")[0] for title in reports}, problems

    assert found() == ({"lamina", "lamina-cpu", "tinygrad"}, {})
    assert found("--peers") == ({"lamina"}, {})
    assert found("--peers", "tinygrad") == ({"lamina", "tinygrad"}, {})
    assert found("--peers", "jax") == ({"lamina"}, {"jax": "no peer on opencl"})


def test_a_cold_start_has_the_caches_of_the_driver_too(
    cold_start: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cold.py").write_text(FAKE_COLD)
    monkeypatch.setattr(cold_start, "FOLDER", tmp_path)
    files = (tmp_path / "workload.json", tmp_path / "data.npz")
    drivers = ("POCL_CACHE_DIR", "CUDA_CACHE_PATH")
    for peer, own in (("lamina", "LAMINA_CACHE"), ("tinygrad", "XDG_CACHE_HOME")):
        start, cache = cold_start.starts_for("opencl:1")[peer], tmp_path / peer
        variables = cold_start.started(start, cache, files, 2)
        for variable in (own, *drivers):
            assert variables[variable] == str(cache / variable)
            assert (cache / variable).is_dir()
        chosen = {"BENCHMARK_ENGINE": "opencl:1"} if peer == "lamina" else {"DEV": "CL"}
        assert chosen.items() <= variables.items()


def test_a_cold_start_that_fails_gives_the_reason(
    cold_start: ModuleType, harness: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cold.py").write_text("raise ValueError('no such network')")
    monkeypatch.setattr(cold_start, "FOLDER", tmp_path)
    with pytest.raises(harness.Unavailable) as caught:
        cold_start.started(cold_start.starts_for("cpu")["pytorch"], tmp_path, (tmp_path,) * 2, 1)
    assert str(caught.value) == "ValueError: no such network"


# Launches -----------------------------------------------------------------------------------------


def test_launches_of_repeated_kernels_count_each_time() -> None:
    launches = tuple(Launch("kernel", (), 1, step) for step in range(5))
    repeats = (RepeatedLaunches(0, 1, 10), RepeatedLaunches(2, 4, 3))
    # The first is launched 10 times, the third and the fourth 3 times each, the others once.
    assert Launches("", launches, repeats, ()).launch_count == 10 + 1 + 3 + 3 + 1
    assert Launches("", launches, (), ()).launch_count == 5


@pytest.mark.sampled
def test_host_time_is_measured_for_training_steps_and_launches(
    opencl_name: str, tmp_path: Path
) -> None:
    file = tmp_path / "launches.json"
    arguments = ["--engine", opencl_name, "--workload", "tiny-step", "--rounds", "1"]
    arguments += ["--seconds", "0.02", "--json", str(file)]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "launches.py"), *arguments],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "launch of an empty kernel" in done.stdout
    report = json.loads(file.read_text())
    assert report["launches"]["tiny-step"] >= 1
    for name, figures in {"empty": ("host",), "tiny-step": ("host_run", "host_step")}.items():
        for figure in (*figures, "seconds"):
            assert report["medians"][name][figure] > 0


def test_launches_are_measured_on_opencl_only(opencl_name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "launches.py"), "--engine", "cpu"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    expected = "argument --engine: must be opencl or one of its devices, not 'cpu'"
    assert expected in done.stderr


# Accuracy -----------------------------------------------------------------------------------------


@pytest.fixture
def trains(
    accuracy: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., str]:
    """Runs the command on one batch of the embedded digits; returns what it printed."""
    write_idx_folder(tmp_path, scale=3)

    def run_command(*arguments: str) -> str:
        fixed = ["--data", str(tmp_path), "--results", str(tmp_path / "results"), "--epochs", "1"]
        monkeypatch.setattr(sys, "argv", ["accuracy.py", *fixed, "--limit", "100", *arguments])
        accuracy.main()
        return capsys.readouterr().out

    return run_command


def test_networks_are_trained_in_both_precisions(
    trains: Callable[..., str], tmp_path: Path
) -> None:
    picture = tmp_path / "curves.png"
    output = trains("--network", "lenet", "--seeds", "0", "1", "--picture", str(picture))
    lines = [line.split() for line in output.split("\n\n")[1].splitlines()]
    assert [line[:2] for line in lines[2:]] == [["lenet", "float32"], ["lenet", "mixed-bfloat16"]]
    names = {path.name for path in (tmp_path / "results").iterdir()}
    dtypes = ("float32", "mixed-bfloat16")
    assert names == {f"lenet.{dtype}.{seed}.json" for dtype in dtypes for seed in (0, 1)}
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_only_missing_trainings_are_run(trains: Callable[..., str]) -> None:
    arguments = ["--network", "sorting", "--dtype", "float32", "--seeds"]
    first, second = trains(*arguments, "0"), trains(*arguments, "0", "1")
    assert first.startswith("sorting, float32, seed 0: ")
    assert second.startswith("sorting, float32, seed 1: ")
    # The table has both.
    share = first.split()[4]
    assert f"{share}, " in second


def test_trainings_with_other_settings_are_not_mixed(trains: Callable[..., str]) -> None:
    arguments = ["--network", "sorting", "--dtype", "float32", "--seeds", "0"]
    trains(*arguments)
    with pytest.raises(SystemExit) as caught:
        trains(*arguments, "--limit", "50")
    assert "sorting.float32.0.json has other settings: " in str(caught.value)
    assert str(caught.value).endswith("Choose another folder for --results.")


def test_images_need_a_folder(accuracy: ModuleType) -> None:
    with pytest.raises(SystemExit) as caught:
        accuracy.TASKS["resnet-18"].data(None)
    assert "--data FOLDER is needed" in str(caught.value)


@pytest.mark.parametrize("network", ["lenet", "resnet-18", "sorting"])
def test_learning_rates_fall_to_zero(accuracy: ModuleType, network: str) -> None:
    rate = accuracy.TASKS[network].optimizer(200).rate
    rates = [rate.at(step) for step in (0, 40, 120, 200)]
    assert rates[1] > rates[2] > rates[3] == pytest.approx(0, abs=1e-9)


def test_a_mean_outside_float32s_spread_is_told(accuracy: ModuleType) -> None:
    reference = {0: 0.90, 1: 0.92}
    within = accuracy.row("lenet", "mixed-bfloat16", {0: 0.89, 1: 0.93}, reference)
    assert within[2:] == ("89.00, 93.00", "91.00 %", "89.00 %", "93.00 %", "+0.00 ± 1.00", "yes")
    below = accuracy.row("lenet", "mixed-bfloat16", {0: 0.88, 1: 0.91}, reference)
    assert below[-2:] == ("-1.50 ± 0.50", "BELOW")
    assert accuracy.row("lenet", "mixed-bfloat16", {0: 0.93, 1: 0.93}, reference)[-1] == "above"


# Arithmetic ---------------------------------------------------------------------------------------


def test_the_middle_weighs_rounds_equally(harness: ModuleType) -> None:
    assert harness.middle([[1.0], [2.0, 2.0, 9.0], [5.0] * 9]) == 2.0


def test_ratios_are_relative_to_the_time_of_lamina(harness: ModuleType) -> None:
    medians = {"lamina": 2.0, "pytorch": 6.0, "jax": 1.0}
    assert harness.ratios(medians) == {"pytorch": 3.0, "jax": 0.5}
    assert harness.best_of(medians) == "jax"
    assert harness.best_of({"lamina": 2.0}) is None


def test_peers_that_compute_something_else_are_named(harness: ModuleType) -> None:
    prints = {"lamina": 1.0, "pytorch": 1.0001, "jax": 1.01, "other": float("nan")}
    assert harness.differing(prints, 1e-3) == ["jax", "other"]


def test_the_reason_of_a_failure_is_its_error_not_the_advice_below(harness: ModuleType) -> None:
    log = "Traceback\n  File 1\ntorch.exc.InductorError: no compiler\n\nSet VERBOSE=1 for more\n"
    assert harness.reason(log) == "torch.exc.InductorError: no compiler"
    assert harness.reason("killed\n\n") == "killed"
