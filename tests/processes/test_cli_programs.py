"""The commands that show, plan, time and tune programs."""

import json

import numpy as np
import pytest
from cli_cases import succeed
from targets import RECOMPUTING
from test_target import TRAINING, interpreter_for, network

import lamina as lm
from lamina.engines.gpu.tuning import Tuner

pytestmark = pytest.mark.each_case


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(
        "import lamina as lm\n"
        "net = lm.Sequential(lm.Input(6), lm.Linear(5), lm.Tanh(), lm.Linear(3))\n"
        "loss = lm.CrossEntropy()\n"
        "batch_size = 4\n"
    )
    return str(path)


def test_the_command_explain_shows_the_training_step_or_inference_or_parts(file):
    shown = succeed("explain", file).output
    assert shown.startswith("training step, 4 examples, on cpu (")
    shown = succeed("explain", file, "--inference", "--engine", "interpreter").output
    assert shown.startswith("inference, 4 examples, on interpreter (")
    assert "cast" in succeed("explain", file, "--dtype", "mixed-bfloat16").output
    assert "step1" in succeed("explain", file, "--step", "1", "--as", "assembly").output
    lines = succeed("explain", file, "--as", "schedule").output.splitlines()
    assert lines[0].startswith("0: loop nest over (")
    assert all("work item" in line for line in lines)


@pytest.mark.sampled
def test_the_command_profile_shows_a_table_and_takes_data(file, tmp_path):
    lines = succeed("profile", file, "--seconds", "0.02").output.splitlines()
    assert lines[2].split() == ["step", "name", "over", "time", "share", "GFLOP/s", "GB/s"]
    data = tmp_path / "data.npz"
    np.savez(data, x=np.zeros((9, 6), "float32"), y=np.zeros(9, "int64"))
    written = tmp_path / "profile.json"
    options = ("--data", data, "--seconds", "0.02", "--json", written)
    shown = succeed("profile", file, *options).output
    assert shown.startswith("training step, 4 examples")
    report = json.loads(written.read_text(encoding="utf-8"))
    assert report["seconds"] == pytest.approx(sum(step["seconds"] for step in report["steps"]))
    assert sum(step["share"] for step in report["steps"]) == pytest.approx(1)
    assert report["program"] == shown.splitlines()[0]
    first = max(report["steps"], key=lambda step: step["seconds"])
    row = shown.splitlines()[4].split()
    assert row[:2] == [str(first["step"]), first["name"]]
    assert f"{first['bytes'] / first['seconds'] / 1e9:.1f}" == row[-1]


def test_the_command_plan_plans_for_an_engine(tmp_path, monkeypatch):
    interpreter_for(RECOMPUTING, monkeypatch)
    file = tmp_path / "net.py"
    layers = (
        "lm.Input(4, 6, 6), lm.Conv2d(4, 3), lm.ReLU(), lm.Conv2d(3, 2), lm.ReLU(), "
        "lm.Flatten(), lm.Linear(5), lm.Tanh(), lm.Linear(3)"
    )
    how = "loss = lm.CrossEntropy()\noptimizer = lm.SGD(0.1)\nbatch_size = 2\n"
    file.write_text(f"import lamina as lm\nnet = lm.Sequential({layers})\n{how}")
    shown = [
        succeed("plan", file, *options).output
        for options in ([], ["--engine", "cpu"], ["--engine", "interpreter"])
    ]
    assert shown[0] == shown[1] != shown[2]
    assert shown[2] == f"{network().plan(2, **TRAINING, engine='interpreter')}\n"


def test_the_command_tunes_the_program_that_training_runs(opencl_name, tmp_path, monkeypatch):
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "net.py"
    file.write_text(
        "import lamina as lm\n"
        "net = lm.Sequential(lm.Input(256), lm.Linear(256))\n"
        "loss, optimizer, batch_size = lm.MSE(), lm.SGD(0.1), 128\n"
    )
    written = tmp_path / "tuned.json"
    output = succeed("tune", file, "--engine", opencl_name, "--json", written).output
    lines = output.splitlines()
    assert lines[0].startswith(f"training step, 128 examples, on {opencl_name} (")
    assert lines[2].split() == ["step", "over", "time", "expected", "choice", "schedule"]
    assert sum("chosen" in line for line in lines) >= 1
    report = json.loads(written.read_text(encoding="utf-8"))
    assert report["program"] == lines[0]
    tried = [each for step in report["steps"] for each in step["candidates"]]
    assert sum(each["schedule"].split()[0] in output for each in tried) == len(tried) > 1
    monkeypatch.setenv("LAMINA_TUNE", "1000")
    monkeypatch.setattr(Tuner, "tune", None)
    model = lm.Model(lm.Sequential(lm.Input(256), lm.Linear(256)), engine=opencl_name)
    with model.training(lm.MSE(), lm.SGD(0.1), 128):
        pass
