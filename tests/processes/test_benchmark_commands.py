"""The commands in `benchmarks/`: options, processes, arithmetic."""

import importlib
import json
import stat
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from error_texts import error_text, refused
from fresh_python import run_python
from test_examples import write_idx_folder

import lamina as lm
from lamina.engines.discovery import devices, open_engine
from lamina.engines.gpu.launches import Launch, Launches, RepeatedLaunches
from lamina.workloads import LARGE, PRODUCTS, WORKLOADS, Ready, Stack

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# In the order of their imports.
MODULES = ("peers/gpu_device", "peers/gpu_workloads", "harness", "run", "gpu_clocks", "gpu")
MODULES += ("cold_start",)
# Answers like a worker; it takes very long for the workload mlp, ends for lenet, has a problem with
# vgg, and runs a training step in 0.05 s.
WORKER = """
import json, os, sys, time
print(json.dumps({"versions": {"process": os.getpid()}}), flush=True)
for line in sys.stdin:
    name = json.loads(line).get("prepare", {}).get("name")
    if name == "mlp":
        time.sleep(1000)
    if name == "lenet":
        sys.exit("ValueError: too large")
    found = {"seconds": 0.05, "cpu_seconds": 0.0}
    if name is not None:
        found = {"fingerprint": 1.0, "ready_seconds": 1.0, "process": os.getpid()}
    print(json.dumps({"problem": "an illegal address"} if name == "vgg" else found), flush=True)
"""
# Prints the environment variables that it got.
FAKE_COLD = "import json, os\nprint('a line of a library')\nprint(json.dumps(dict(os.environ)))"


@pytest.fixture(scope="module")
def modules():
    """The modules of `benchmarks/` by name; `harness` is also one of the conformance tests."""
    if not BENCHMARKS.exists():
        pytest.skip("the benchmarks are not in this copy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(BENCHMARKS / "peers")])
        loaded = SimpleNamespace()
        for path in (*MODULES, "accuracy"):
            name = path.rpartition("/")[2]
            specification = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{path}.py")
            module = importlib.util.module_from_spec(specification)
            patch.setitem(sys.modules, name, module)
            specification.loader.exec_module(module)
            setattr(loaded, name, module)
        yield loaded


def command(name, *arguments):
    return run_python(BENCHMARKS / f"{name}.py", *arguments)


def has_gpu():
    return any(one.engine.startswith("cuda") and not one.problem for one in devices())


# Options ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["run", "cold_start"])
def test_an_engine_is_named_as_in_lamina(modules, name):
    options = getattr(modules, name).options()
    assert options.parse_args([]).engine == "cpu"
    assert options.parse_args(["--engine", "opencl:radeon"]).engine == "opencl:radeon"


NOT_MEASURED = "--engine: must be cpu or opencl or opencl:NUMBER or opencl:NAME, not 'interpreter'"


@pytest.mark.cases(
    ("name", "arguments", "expected"),
    ("run", "--engine interpreter", NOT_MEASURED),
    ("cold_start", "--engine interpreter", NOT_MEASURED),
    ("accuracy", "--network resnet-18 --seeds 0 --results r", "--data FOLDER is needed"),
    ("gpu", "--workload huge", "argument --workload: invalid choice: 'huge'"),
    ("gpu", "--engine cpu", "must be cuda or opencl or cuda:NUMBER or cuda:NAME or opencl:"),
    ("gpu", "--tune long", "argument --tune: must be all or a number of seconds, not 'long'"),
    ("gpu", "--machine --engine opencl", "--machine is a CUDA device: --engine cuda:0"),
    ("gpu", "--dtype mixed --precision tf32", "--precision tf32 is for --dtype float32"),
)
def test_wrong_options_are_refused(
    name, arguments, expected, modules, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments.split()])
    monkeypatch.chdir(tmp_path)
    error = refused(SystemExit, getattr(modules, name).main)
    assert expected in (capsys.readouterr().err if error.code == 2 else str(error))


def test_each_kind_of_engine_has_its_peers_and_workloads(modules):
    run = modules.run
    assert set(run.PEERS) == set(run.MEASURED) == set(modules.harness.ENGINES)
    assert list(run.MEASURED["cpu"]) == list(WORKLOADS)
    assert set(run.MEASURED["opencl"]) == {*WORKLOADS, *PRODUCTS}
    assert set(modules.gpu_workloads.MEASURED) == {*WORKLOADS, *PRODUCTS, *LARGE}


# Workers ------------------------------------------------------------------------------------------


def test_a_worker_that_fails_is_started_again(modules, tmp_path, monkeypatch):
    harness, named = modules.harness, modules.gpu_workloads.named
    (tmp_path / "fake.py").write_text(WORKER)
    monkeypatch.setattr(harness, "FOLDER", tmp_path)
    monkeypatch.setitem(harness.SCRIPTS, "fake", harness.Script("fake.py"))
    worker = harness.Worker("fake", 1)
    for name, limit, expected in (
        ("mlp", 0.2, "not done after 0.2 s"),
        ("lenet", harness.LIMIT_SECONDS, "ended with status 1: ValueError: too large"),
    ):
        before, worker.limit = worker.versions["process"], limit
        text = error_text(harness.Unavailable, worker.prepare, WORKLOADS[name], tmp_path)
        assert text == expected
        worker.limit = harness.LIMIT_SECONDS
        assert worker.prepare(WORKLOADS["softmax"], tmp_path)["fingerprint"] == 1.0
        assert worker.versions["process"] != before
    before = worker.versions["process"]
    parsed = modules.gpu.options().parse_args(["--rounds", "1", "--seconds", "0.01"])
    clocks = modules.gpu_clocks.ClockReader()
    how = ({"lamina": worker}, parsed, tmp_path, clocks)
    broken, sound = (
        modules.gpu.measured(named(name, True), *how)["calls"] for name in ("vgg", "softmax")
    )
    worker.close()
    clocks.close()
    assert broken["problems"] == {"lamina": "an illegal address"}
    assert sound["peers"]["lamina"]["median"] == 0.05
    assert sound["peers"]["lamina"]["process"] != before


def test_no_openblas_setting_reaches_a_worker(modules, monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    variables = modules.harness.environment(3)
    assert not [name for name in variables if name.startswith("OPENBLAS_")]
    assert variables["LAMINA_THREADS"] == variables["OMP_NUM_THREADS"] == "3"


def test_opencl_on_a_processor_has_as_many_threads_as_the_other_peers(modules, opencl_name):
    if not open_engine(opencl_name).device.description.startswith("pthread"):
        pytest.skip("not PoCL")
    code = (
        "import pyopencl as cl\n"
        "devices = [d for p in cl.get_platforms() for d in p.get_devices()]\n"
        "print(*{d.max_compute_units for d in devices if d.name.startswith('pthread')})"
    )
    done = run_python("-c", code, environment=modules.harness.environment(1))
    assert done.stdout.split() == ["1"]


def test_tinygrad_on_another_device_is_refused(modules):
    harness, ours = modules.harness, {"device": "Radeon RX 6800 (AMD, 3.6)"}
    harness.require_same_device(ours, {"device": "Radeon  RX 6800", "driver": "3.6"})
    other = {"device": "pthread-haswell", "driver": "3.1"}
    assert error_text(harness.Unavailable, harness.require_same_device, ours, other) == (
        "it runs on pthread-haswell (3.1), Lamina on Radeon RX 6800 (AMD, 3.6); "
        "OCL_ICD_VENDORS hides all drivers but one"
    )


@pytest.mark.sampled
def test_lamina_on_opencl_is_measured_next_to_lamina_on_cpu(opencl_name, tmp_path):
    done = command("run", "--engine", "opencl:no such device")
    assert done.returncode == 1
    assert "no OpenCL device is named 'no such device'" in done.stderr
    file = tmp_path / "run.json"
    arguments = ["--workload", "tiny-step", "--rounds", "1", "--seconds", "0.02"]
    arguments += ["--engine", opencl_name, "--peers", "lamina-cpu", "--json", str(file)]
    done = command("run", *arguments)
    assert done.returncode == 0, done.stderr
    report = json.loads(file.read_text())
    engines = {name: versions["engine"] for name, versions in report["peers"].items()}
    assert engines == {"lamina": opencl_name, "lamina-cpu": "cpu"}
    result = report["workloads"]["tiny-step"]
    assert (result["problems"], result["differing"]) == ({}, [])
    assert list(result["ratios"]) == ["lamina-cpu"]
    assert report["peak"]["how"].startswith("multiply-adds in registers by all work items")


@pytest.mark.parametrize("name", ["tiny-step", "tiny-run"])
@pytest.mark.usefixtures("modules")
def test_a_reset_runner_repeats_its_training(name):
    runner, states = importlib.import_module("lamina_peer").Lamina(WORKLOADS[name]), []
    for work in (lambda: None, lambda: runner.run(7), runner.reset, lambda: runner.run(7)):
        work()
        states.append([value.tobytes() for value in runner.result()])
    runner.release()
    assert states[0] == states[2] != states[1] == states[3]


# Cold starts --------------------------------------------------------------------------------------


def test_each_process_with_an_empty_cache_has_its_own(modules):
    starts_for, starts = modules.cold_start.starts_for, modules.cold_start.starts
    first, second = (
        {title: cache for title, _, cache in starts(starts_for("opencl"), Path("caches"), number)}
        for number in (1, 2)
    )
    peers = ("lamina", "lamina-cpu", "tinygrad")
    assert [*first] == [f"{peer}, {state} cache" for peer in peers for state in ("empty", "warm")]
    for title in first:
        assert (first[title] == second[title]) == title.endswith("warm cache")
    assert len(set(first.values())) == len(first)


def test_only_the_wanted_peers_are_started(modules, tmp_path, monkeypatch):
    monkeypatch.setattr(modules.cold_start, "started", lambda *_: {"seconds": 1.0})
    for peers, started, problems in (
        ([], {"lamina", "lamina-cpu", "tinygrad"}, {}),
        (["--peers"], {"lamina"}, {}),
        (["--peers", "tinygrad"], {"lamina", "tinygrad"}, {}),
        (["--peers", "jax"], {"lamina"}, {"jax": "no peer on opencl"}),
    ):
        arguments = ["--engine", "opencl", "--rounds", "1", *peers]
        parsed = modules.cold_start.options().parse_args(arguments)
        reports, absent = modules.cold_start.collected(WORKLOADS["mlp"], parsed, tmp_path)
        assert ({title.partition(",")[0] for title in reports}, absent) == (started, problems)


def test_a_cold_start_has_the_caches_of_the_driver_too(modules, tmp_path, monkeypatch):
    (tmp_path / "cold.py").write_text(FAKE_COLD)
    monkeypatch.setattr(modules.cold_start, "FOLDER", tmp_path)
    files = (tmp_path / "workload.json", tmp_path / "data.npz")
    drivers = ("POCL_CACHE_DIR", "CUDA_CACHE_PATH")
    for peer, cache_variable in (("lamina", "LAMINA_CACHE"), ("tinygrad", "XDG_CACHE_HOME")):
        start, cache = modules.cold_start.starts_for("opencl:1")[peer], tmp_path / peer
        variables = modules.cold_start.started(start, cache, files, 2)
        for variable in (cache_variable, *drivers):
            assert variables[variable] == str(cache / variable)
            assert (cache / variable).is_dir()
        chosen = {"BENCHMARK_ENGINE": "opencl:1"} if peer == "lamina" else {"DEV": "CL"}
        assert chosen.items() <= variables.items()
    (tmp_path / "cold.py").write_text("raise ValueError('no such network')")
    start = modules.cold_start.starts_for("cpu")["pytorch"]
    arguments = (start, tmp_path, files, 1)
    text = error_text(modules.harness.Unavailable, modules.cold_start.started, *arguments)
    assert text == "ValueError: no such network"


# Launches -----------------------------------------------------------------------------------------


def test_launches_of_repeated_kernels_count_each_time():
    launches = tuple(Launch("kernel", (), 1, step) for step in range(5))
    repeats = (RepeatedLaunches(0, 1, 10), RepeatedLaunches(2, 4, 3))
    # The first is launched 10 times, the third and the fourth 3 times each, the others once.
    assert Launches("", launches, repeats, None).launch_count == 10 + 1 + 3 + 3 + 1
    assert Launches("", launches, (), None).launch_count == 5


@pytest.mark.sampled
def test_host_time_is_measured_for_training_steps_and_launches_on_opencl(opencl_name, tmp_path):
    refused = command("launches", "--engine", "cpu")
    assert refused.returncode == 2
    expected = "argument --engine: must be opencl or one of its devices, not 'cpu'"
    assert expected in refused.stderr
    file = tmp_path / "launches.json"
    arguments = ["--engine", opencl_name, "--workload", "tiny-step", "--rounds", "1"]
    done = command("launches", *arguments, "--seconds", "0.02", "--json", file)
    assert done.returncode == 0, done.stderr
    assert "launch of an empty kernel" in done.stdout
    report = json.loads(file.read_text())
    assert report["launches"]["tiny-step"] >= 1
    for name, figures in {"empty": ("host",), "tiny-step": ("host_run", "host_step")}.items():
        for figure in (*figures, "seconds"):
            assert report["medians"][name][figure] > 0


# Accuracy -----------------------------------------------------------------------------------------


@pytest.fixture
def trains(modules, tmp_path, monkeypatch, capsys):
    """Runs the command on one batch of the embedded digits; returns what it printed."""
    write_idx_folder(tmp_path, scale=3)

    def run_command(*arguments):
        fixed = ["--data", str(tmp_path), "--results", str(tmp_path / "results"), "--epochs", "1"]
        monkeypatch.setattr(sys, "argv", ["accuracy.py", *fixed, "--limit", "100", *arguments])
        modules.accuracy.main()
        return capsys.readouterr().out

    return run_command


def test_networks_are_trained_in_both_precisions(trains, tmp_path):
    picture = tmp_path / "curves.png"
    output = trains("--network", "lenet", "--seeds", "0", "1", "--picture", str(picture))
    lines = [line.split() for line in output.split("\n\n")[1].splitlines()]
    assert [line[:2] for line in lines[2:]] == [["lenet", "float32"], ["lenet", "mixed-bfloat16"]]
    names = {path.name for path in (tmp_path / "results").iterdir()}
    dtypes = ("float32", "mixed-bfloat16")
    assert names == {f"lenet.{dtype}.{seed}.json" for dtype in dtypes for seed in (0, 1)}
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_only_missing_trainings_of_the_same_settings_are_run(trains):
    arguments = ["--network", "sorting", "--dtype", "float32", "--seeds"]
    first, second = trains(*arguments, "0"), trains(*arguments, "0", "1")
    assert first.startswith("sorting, float32, seed 0: ")
    assert second.startswith("sorting, float32, seed 1: ")
    # The table has both.
    share = first.split()[4]
    assert f"{share}, " in second
    text = error_text(SystemExit, lambda: trains(*arguments, "0", "--limit", "50"))
    assert "sorting.float32.0.json has other settings: " in text
    assert text.endswith("Choose another folder for --results.")


@pytest.mark.parametrize("network", ["lenet", "resnet-18", "sorting"])
def test_learning_rates_fall_to_zero(modules, network):
    rate = modules.accuracy.TASKS[network].optimizer(200).rate
    rates = [rate.at(step) for step in (0, 40, 120, 200)]
    assert rates[1] > rates[2] > rates[3] == pytest.approx(0, abs=1e-9)


# Arithmetic ---------------------------------------------------------------------------------------


def test_a_mean_outside_float32s_spread_is_told(modules):
    row, reference = modules.accuracy.row, {0: 0.90, 1: 0.92}
    within = row("lenet", "mixed-bfloat16", {0: 0.89, 1: 0.93}, reference)
    assert within[2:] == ("89.00, 93.00", "91.00 %", "89.00 %", "93.00 %", "+0.00 ± 1.00", "yes")
    below = row("lenet", "mixed-bfloat16", {0: 0.88, 1: 0.91}, reference)
    assert below[-2:] == ("-1.50 ± 0.50", "BELOW")
    assert row("lenet", "mixed-bfloat16", {0: 0.93, 1: 0.93}, reference)[-1] == "above"


def test_times_are_compared_with_those_of_lamina(modules):
    harness, medians = modules.harness, {"lamina": 2.0, "pytorch": 6.0, "jax": 1.0}
    assert harness.ratios(medians) == {"pytorch": 3.0, "jax": 0.5}
    assert harness.best_of(medians) == "jax"
    assert harness.best_of({"lamina": 2.0}) is None
    # Rounds are weighed equally.
    assert harness.middle([[1.0], [2.0, 2.0, 9.0], [5.0] * 9]) == 2.0
    prints = {"lamina": 1.0, "pytorch": 1.0001, "jax": 1.01, "other": float("nan")}
    assert harness.differing(prints, 1e-3) == ["jax", "other"]


def test_the_reason_of_a_failure_is_its_error_not_the_advice_below(modules):
    log = "Traceback\n  File 1\ntorch.exc.InductorError: no compiler\n\nSet VERBOSE=1 for more\n"
    assert modules.harness.reason(log) == "torch.exc.InductorError: no compiler"
    assert modules.harness.reason("killed\n\n") == "killed"


# The command for GPUs -----------------------------------------------------------------------------


def test_without_a_gpu_it_says_what_to_do():
    if has_gpu():
        pytest.skip("there is a GPU")
    done = command("gpu", "--conformance", "0")
    assert done.returncode == 1
    assert done.stderr.startswith("cuda:0 cannot be measured: in cuda: ")
    assert done.stderr.endswith("Without a GPU, --machine --tiny tries out the command.\n")


def test_a_peer_that_finds_no_gpu_is_absent(modules, tmp_path, monkeypatch):
    gpu, harness = modules.gpu, modules.harness
    versions = {"dtype": "float32", "engine": "cuda:0", "device": "a GPU"}
    answer = f"import json, sys\nprint(json.dumps({{'versions': {versions!r}}}))\n"
    (tmp_path / "ours.py").write_text(f"{answer}sys.stdout.flush()\nsys.stdin.read()")
    (tmp_path / "theirs.py").write_text("raise SystemExit('absent: PyTorch 9 finds no GPU')")
    monkeypatch.setattr(harness, "FOLDER", tmp_path)
    monkeypatch.setattr(gpu, "LAMINA", harness.Script("ours.py"))
    monkeypatch.setattr(gpu, "PEERS", {"float32": {"pytorch": harness.Script("theirs.py")}})
    monkeypatch.setenv("BENCHMARK_DEVICE", "")
    with gpu.ExitStack() as stack:
        workers, absent = gpu.start(gpu.options().parse_args([]), stack)
    assert (list(workers), absent) == (["lamina"], {"pytorch": "PyTorch 9 finds no GPU"})


def test_a_framework_takes_the_gpu_of_lamina(modules):
    number, names = modules.gpu_device.device_number, ["NVIDIA A10", "NVIDIA L4"]
    assert number("cuda:1", names) == 1
    assert number("NVIDIA L4 (NVIDIA CUDA, 580.65)", names) == 1
    for device in ("cuda:2", "gfx1100 (AMD, 3.6)"):
        expected = f"absent: it does not find the GPU {device} (it finds NVIDIA A10, NVIDIA L4)"
        assert error_text(SystemExit, number, device, names) == expected


def test_the_output_of_failing_conformance_tests_is_returned(modules, monkeypatch):
    gpu, commands = modules.gpu, []

    def fails(command, **_):
        commands.append(command)
        return SimpleNamespace(returncode=1, stdout="FAILED test_sum\n", stderr="")

    monkeypatch.setattr(gpu.subprocess, "run", fails)
    text = gpu.conformance("cuda:0", 16)
    assert text == "FAILED test_sum\n\nthe engine does not pass the conformance tests"
    expected = ["tests/conformance", "--engine=cuda:0", "-m", "engine", "--part", "0/16"]
    assert commands[0][3:9] == expected
    assert int(commands[0][commands[0].index("--numprocesses") + 1]) <= 8
    monkeypatch.setattr(gpu, "TEST_PACKAGES", ("pytest", "no_such_package"))
    expected = "the conformance tests need pytest and pytest-xdist; --conformance 0 leaves them out"
    assert gpu.conformance("cuda:0", 16) == expected


@pytest.fixture
def doubled(modules, monkeypatch):
    """The command, whose device and peers are doubles."""
    gpu, worker = modules.gpu, SimpleNamespace(versions={"engine": "cuda:0"})
    monkeypatch.setattr(gpu, "start", lambda *_: ({gpu.OURS: worker}, {}))
    names = ("set_variables", "print_machine", "conformance", "print_limits")
    for name in (*names, "print_tables", "progress"):
        monkeypatch.setattr(gpu, name, lambda *_: "")
    monkeypatch.setattr(gpu, "limits", lambda *_: {})

    def run_main(*options):
        monkeypatch.setattr(sys, "argv", ["gpu.py", *map(str, options)])
        gpu.main()

    monkeypatch.setattr(gpu, "run_main", run_main, raising=False)
    return gpu


# What a workload gives if no peer ran it.
NOTHING = {kind: {"peers": {}, "problems": {}} for kind in ("calls", "resident")}


def test_the_command_fails_at_its_end_if_lamina_failed(doubled, monkeypatch):
    monkeypatch.setattr(doubled, "measured", lambda *_: NOTHING)
    monkeypatch.setattr(doubled, "conformance", lambda *_: "FAILED test_sum\nthe tests failed")
    expected = "\nthe tests failed\nlamina failed: mlp\nlamina failed: vgg"
    options = ("--workload", "mlp", "--workload", "vgg")
    assert error_text(SystemExit, doubled.run_main, *options) == expected
    # A failure of a peer does not count.
    rows = {"mlp": ["lamina", "pytorch"], "vgg": ["pytorch"], "lenet": ["lamina"]}
    results = {name: {"calls": {"peers": {key: {} for key in row}}} for name, row in rows.items()}
    assert doubled.failures(results) == ["vgg"]


def test_the_report_has_all_workloads_that_were_done(doubled, tmp_path, monkeypatch):
    peers = {"peers": {}, "problems": {}, "best": None}

    def ends(workload, *_):
        if workload.name == "mlp":
            raise KeyboardInterrupt
        return {"calls": peers, "resident": peers}

    monkeypatch.setattr(doubled, "measured", ends)
    file = tmp_path / "gpu.json"
    with pytest.raises(KeyboardInterrupt):
        doubled.run_main("--workload", "softmax", "--workload", "mlp", "--json", file)
    report = json.loads(file.read_text())
    assert (list(report["workloads"]), report["left"]) == (["softmax"], ["mlp"])


def test_no_workload_begins_when_the_budget_is_spent(doubled, tmp_path, monkeypatch, capsys):
    clock = iter([0.0, 3.0, 11.0])
    monkeypatch.setattr(doubled, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(doubled, "measured", lambda *_: NOTHING)
    monkeypatch.setattr(doubled, "failures", lambda _: [])
    options = ("--workload", "softmax", "--workload", "mlp", "--budget", 10)
    doubled.run_main(*options, "--json", tmp_path / "gpu.json")
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert (list(report["workloads"]), report["left"]) == (["softmax"], ["mlp"])
    assert "not measured, because the budget of 10 s is spent: mlp" in capsys.readouterr().out


def test_programs_are_kept_in_the_given_folder(doubled, tmp_path, monkeypatch):
    folders = []
    monkeypatch.setattr(doubled, "set_variables", lambda _, folder: folders.append(folder))
    monkeypatch.chdir(tmp_path)
    for options in ([], ["--cache", "kept"]):
        doubled.run_main("--budget", 0, *options)
    assert folders[1] == tmp_path / "kept"
    # Without the option, the folder goes with the run.
    assert folders[0].is_absolute()
    assert not folders[0].parent.exists()


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Puts a script in place of nvidia-smi, which prints lines and ends with a status."""
    if sys.platform == "win32":
        pytest.skip("a script of a shell")

    def write(*lines, status=0):
        script, told = tmp_path / "nvidia-smi", "\n".join(f"echo '{line}'" for line in lines)
        script.write_text(f"#!/bin/sh\necho $* >{tmp_path}/arguments\n{told}\nexit {status}\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    return write


@pytest.mark.parametrize(("status", "expected"), [(0, "0, NVIDIA L4"), (9, "no driver")])
def test_it_prints_what_nvidia_smi_says(modules, status, expected, smi):
    smi(expected, status=status)
    assert modules.gpu.smi_text() == expected


def test_clocks_and_power_are_sampled_while_it_measures(modules, tmp_path, smi):
    smi("0, 1980, 2619, 120.50, 34", "0, 1200, 2619, 690.00, [N/A]", "1, 345, 2619, 73.14, 30")
    reader = modules.gpu_clocks.ClockReader()
    reader._thread.join()
    clocks = reader.taken()
    assert clocks["0"]["sm"] == {"least": 1200, "median": 1590, "most": 1980}
    assert clocks["0"]["power"] == {"least": 120.5, "median": 405.25, "most": 690}
    # What the GPU does not tell is left out.
    assert clocks["0"]["temperature"] == {"least": 34, "median": 34, "most": 34}
    lines = modules.gpu_clocks.clocks_lines(clocks)
    assert [line.partition(", memory")[0] for line in lines] == [
        "GPU 0: sm 1590 MHz (1200-1980)",
        "GPU 1: sm 345 MHz (345-345)",
    ]
    assert lines[0].endswith("power 405.25 W (120.5-690), temperature 34 C (34-34)")
    assert reader.taken() == {}
    reader.close()
    asked = (tmp_path / "arguments").read_text()
    assert "--query-gpu=index,clocks.sm,clocks.mem,power.draw,temperature.gpu" in asked


def test_without_nvidia_smi_there_are_no_clocks(modules, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    reader = modules.gpu_clocks.ClockReader()
    assert modules.gpu_clocks.clocks_lines(reader.taken()) == []
    reader.close()


@pytest.mark.parametrize("name", WORKLOADS | PRODUCTS | LARGE)
def test_a_small_workload_has_the_same_layers_and_less_work(modules, name):
    large = (WORKLOADS | PRODUCTS | LARGE)[name]
    small = modules.gpu_workloads.small(large)
    assert (small.loss, small.optimizer, small.timed) == (large.loss, large.optimizer, large.timed)
    assert small.flops() < large.flops() or name.startswith("tiny")
    if isinstance(large.architecture, Stack):
        assert [*map(type, small.architecture.layers)] == [*map(type, large.architecture.layers)]
    else:
        assert small.architecture.function == large.architecture.function


# Peers on GPUs ------------------------------------------------------------------------------------


def given(modules, name, folder):
    """The record and the data of a small workload, as its worker gets them."""
    worker, file = importlib.import_module("worker"), folder / "data.npz"
    workload = modules.gpu_workloads.named(name, True)
    modules.harness.write_data(workload, file)
    return worker.read_workload(json.dumps(workload.record())), worker.read_data(str(file))


def check_peer(modules, peer, name, folder, dtype="float32", rel=1e-3):
    """A peer's fingerprint of a small workload is the interpreter's in float32."""
    workload = modules.gpu_workloads.named(name, True)
    modules.harness.write_data(workload, folder / "data.npz")
    worker = modules.harness.Worker(peer, 1, script=modules.gpu.PEERS[dtype][peer])
    assert peer != "cupy" or worker.versions["device"] == "NVIDIA 1"
    reference = importlib.import_module("lamina_peer").Lamina(workload, "interpreter")
    expected = importlib.import_module("worker").fingerprint(workload, reference)
    prepared = worker.prepare(workload, folder / "data.npz")
    assert prepared["fingerprint"] == pytest.approx(expected, rel=rel)
    assert worker.ask(resident=name, steps=2)["seconds"] > 0
    assert worker.ask(release=name) == {}
    worker.close()


# A double of CuPy: arrays of NumPy in a class of their own, which refuse to be mixed with NumPy's
# arrays, as CuPy does.
CUPY = """
import numpy
from numpy import exp, maximum, ndarray, sqrt, tanh, zeros_like
from unittest.mock import MagicMock

class Array(ndarray):
    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **named):
        if not all(isinstance(one, Array) for one in inputs if isinstance(one, ndarray)):
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        plain = [one.view(ndarray) if isinstance(one, Array) else one for one in inputs]
        if out is not None:
            named["out"] = tuple(one.view(ndarray) for one in out)
        found = getattr(ufunc, method)(*plain, **named)
        return out[0] if out is not None else numpy.asarray(found).view(Array)

    def __getitem__(self, index):
        for one in index if isinstance(index, tuple) else (index,):
            assert isinstance(one, Array) or not isinstance(one, ndarray), "indices of NumPy"
        return ndarray.__getitem__(self, index)

asarray = lambda value: numpy.array(value).view(Array)
arange = lambda count: numpy.arange(count).view(Array)

def asnumpy(array):
    assert isinstance(array, Array), type(array)
    return array.view(ndarray).copy()

__version__, cuda = "0", MagicMock()
cuda.runtime.getDeviceCount.return_value = 2
cuda.runtime.getDeviceProperties = lambda number: {"name": b"NVIDIA %d" % number}
cuda.runtime.runtimeGetVersion.return_value = 13000

def get_default_memory_pool():
    cuda.Device.assert_called_once_with(1)
    cuda.Device.return_value.use.assert_called_once_with()
    return MagicMock()
"""


@pytest.mark.parametrize("name", ["seed-forward", "seed-step", "tiny-run", "softmax"])
def test_the_formulas_run_on_arrays_of_a_device(modules, name, tmp_path, monkeypatch):
    (tmp_path / "cupy.py").write_text(CUPY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("BENCHMARK_DEVICE", "cuda:1")
    check_peer(modules, "cupy", name, tmp_path)


@pytest.mark.usefixtures("torch")
def test_pytorch_on_a_device_computes_what_lamina_computes(modules, tmp_path, monkeypatch):
    monkeypatch.setenv("BENCHMARK_DEVICE", "cpu")
    monkeypatch.setenv("BENCHMARK_TINY", "1")
    check_peer(modules, "pytorch", "mlp", tmp_path)


@pytest.fixture
def on_device(modules, monkeypatch, torch):
    """PyTorch's worker, imported in this process."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return importlib.import_module("pytorch_gpu")


def test_bytes_of_pytorch_are_those_of_the_workload(on_device, monkeypatch):
    cuda, freed = on_device.torch.cuda, []
    monkeypatch.setattr(cuda, "max_memory_allocated", lambda device: 1000)
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "empty_cache", lambda: freed.append(True))
    peer = on_device.PyTorchOnDevice.__new__(on_device.PyTorchOnDevice)
    peer._device, peer._before = on_device.torch.device("cuda:1"), 300
    assert peer.notes() == {"bytes": 700}
    peer.release()
    assert freed == [True]


def test_autocast_does_not_see_binary_cross_entropy(on_device, modules, tmp_path, monkeypatch):
    torch = on_device.torch
    seen = []
    computed = torch.nn.functional.binary_cross_entropy

    def noted(outputs, *arguments, **named):
        seen.append((torch.is_autocast_enabled("cpu"), outputs.dtype))
        return computed(outputs, *arguments, **named)

    monkeypatch.setattr(torch.nn.functional, "binary_cross_entropy", noted)
    how = {"compiled": False, "mixed": True, "device": "cpu"}
    peer = on_device.PyTorchOnDevice(*given(modules, "tiny-step", tmp_path), **how)
    peer.run(1)
    assert seen == [(False, torch.float32)]


@pytest.mark.parametrize("name", ["resnet-18", "mobilenet-v2", "transformer"])
@pytest.mark.parametrize("tiny", [False, True])
def test_pytorch_has_the_parameters_of_ready_networks(on_device, modules, name, tiny):
    workload = modules.gpu_workloads.named(name, tiny)
    assert isinstance(workload.architecture, Ready)
    ready = importlib.import_module("pytorch_networks").READY
    module = ready[workload.architecture.function](**workload.architecture.options)
    in_order = getattr(module, "in_order", module.parameters)
    parameters = lm.Model(workload.network(), engine="interpreter").parameters()
    shapes = [parameter.shape for parameter in parameters.values()]
    assert [tuple(parameter.shape) for parameter in in_order()] == shapes


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("name", ["seed-forward", "tiny-run", "vgg", "lstm", "transformer"])
def test_calls_as_graphs_compute_what_calls_compute(
    on_device, modules, name, mixed, tmp_path, monkeypatch
):
    # oneDNN has no LSTM of bfloat16 for processors without AVX-512.
    monkeypatch.setattr(on_device.torch.backends.mkldnn, "enabled", False)
    worker, (record, data) = importlib.import_module("worker"), given(modules, name, tmp_path)
    how = {"compiled": False, "mixed": mixed, "device": "cpu"}
    expected = worker.fingerprint(record, on_device.PyTorchOnDevice(record, data, **how))
    peer = on_device.GraphedOnDevice(record, data, **how)
    # Its parameters and its optimizer are as in the beginning after the capture and each reset.
    for _ in range(3):
        assert worker.fingerprint(record, peer) == pytest.approx(expected, rel=1e-5)
        assert peer.resident_seconds(2) > 0
        peer.reset()


@pytest.mark.parametrize("fails", [False, True])
def test_a_capture_follows_warm_ups_on_its_own_stream_and_tells_its_first_error(
    on_device, monkeypatch, fails
):
    cuda, warm_ups = MagicMock(), on_device.WARM_UPS
    side, graph = cuda.Stream.return_value, cuda.CUDAGraph.return_value
    if fails:
        cuda.call.side_effect = [None] * warm_ups + [RuntimeError("the reason")]
        # The end of a capture that failed raises an error too.
        cuda.graph.return_value.__exit__.side_effect = RuntimeError("not ended")
    monkeypatch.setattr(on_device.torch, "cuda", cuda)
    device = on_device.torch.device("cuda:0")

    def capture():
        on_device.captured(cuda.call, cuda.begin, device)()

    if fails:
        assert error_text(RuntimeError, capture) == "the reason"
    else:
        capture()
    cuda.stream.assert_called_once_with(side)
    cuda.graph.assert_called_once_with(graph, stream=side)
    assert [name for name, *_ in cuda.mock_calls] == [
        *("Stream", "CUDAGraph", "current_stream", "Stream().wait_stream"),
        *("stream", "stream().__enter__", *["call"] * warm_ups, "stream().__exit__"),
        *("current_stream", "current_stream().wait_stream", "begin"),
        *("graph", "graph().__enter__", "call", "graph().__exit__"),
        *["CUDAGraph().replay"] * (not fails),
    ]


@pytest.mark.parametrize("mode", [None, "reduce-overhead", "max-autotune-no-cudagraphs"])
def test_calls_of_cuda_graphs_are_told_apart_by_marks(on_device, monkeypatch, mode):
    pytorch, done = importlib.import_module("pytorch"), []
    monkeypatch.setattr(
        pytorch.torch, "compile", lambda function, mode: lambda x: done.append(f"{mode} {x}")
    )
    mark = lambda: done.append("mark")  # noqa: E731
    monkeypatch.setattr(pytorch.torch.compiler, "cudagraph_mark_step_begin", mark)
    compiled = pytorch.compiled_of(print, mode)
    compiled(1)
    compiled(2)
    marks = ["mark"] if mode == "reduce-overhead" else []
    assert done == [*marks, f"{mode} 1", *marks, f"{mode} 2"]


def test_words_that_name_peers_are_known(on_device, modules):
    known = {"eager", "compile", "autocast", "graph", *on_device.MODES}
    for peers in modules.gpu.PEERS.values():
        for script in peers.values():
            if script.file == "pytorch_gpu.py":
                assert {word for one in script.arguments for word in one.split(".")} <= known


def equations(jaxpr):
    """The equations of a program of JAX and of the programs in it."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for part in value if isinstance(value, tuple) else (value,):
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


# Not the transformer: the attention in it is JAX's own.
@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet-18", "lstm"])
def test_products_of_jax_have_the_type_of_the_weights(modules, name, tmp_path):
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    peer, (record, data) = importlib.import_module("jax_peer"), given(modules, name, tmp_path)
    parameters = peer.initial_parameters(record, data)
    state = peer.initial_state(record, parameters)
    for mixed, expected in ((False, "float32"), (True, "bfloat16")):
        step = partial(peer.step, record, partial(peer.forward, record, mixed=mixed))
        program = jax.make_jaxpr(step)(parameters, state, data.x, data.y).jaxpr
        types = [
            str(operand.aval.dtype)
            for equation in equations(program)
            if equation.primitive.name in ("dot_general", "conv_general_dilated")
            for operand in equation.invars
        ]
        # Forward, and backward for weights; each product has two operands.
        assert len(types) >= 4 * sum(parameter.ndim > 1 for parameter in parameters)
        assert set(types) == {expected}
