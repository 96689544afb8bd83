"""The command line in mixed precision and in 16 bits."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from cli_cases import DIGITS, TABLE, a_table, fail, namespace, succeed, write

import lamina as lm


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_train_and_predict_in_mixed_precision():
    path = write("digits.py", DIGITS)
    succeed("train", path, "--data", "digits", "--epochs", 1, "--dtype", "mixed-bfloat16")
    names = namespace(DIGITS)
    model = lm.Model(names["net"], dtype="mixed-bfloat16")
    how = {"loss": names["loss"], "optimizer": names["optimizer"], "batch_size": 100}
    model.fit(lm.data.digits(), **how)
    trained = lm.load("digits.safetensors")
    assert "mixed-bfloat16" in repr(trained)
    for name, value in model.parameters().items():
        assert np.array_equal(trained.parameters()[name], value)
    wide = succeed("predict", "digits.safetensors", "--data", "digits", "--dtype", "float32").output
    assert wide != succeed("predict", "digits.safetensors", "--data", "digits").output


def test_the_precision_of_the_file_counts_unless_the_option_overrides_it():
    path = write("digits.py", DIGITS + "dtype = 'mixed-float16'\n")
    net, loss = namespace(DIGITS)["net"], lm.CrossEntropy()
    for options, dtype in (((), "mixed-float16"), (("--dtype", "float32"), "float32")):
        bill = net.plan(100, loss, lm.Adam(1e-2), dtype=dtype)
        assert succeed("plan", path, *options).output == f"{bill}\n"


def test_plan_finds_a_larger_batch_in_mixed_precision():
    text = DIGITS.replace("lm.Linear(16)", "lm.Linear(512)")
    common = ("plan", write("digits.py", text), "--memory", "10 MiB", "--dtype")
    found = [
        int(re.search(r"10 MiB: ([\d,]+)", succeed(*common, dtype).output)[1].replace(",", ""))
        for dtype in ("float32", "mixed-bfloat16")
    ]
    assert found[1] > 1.5 * found[0]


@pytest.mark.parametrize("command", [["explain"], ["profile", "--seconds", "0.01"]])
def test_explain_and_profile_take_a_precision(command):
    path = write("digits.py", DIGITS)
    outputs = [
        succeed(command[0], path, *command[1:], "--dtype", dtype).output
        for dtype in ("float32", "mixed-bfloat16")
    ]
    assert "net/4:ReLU.cast" in outputs[1]
    assert "net/4:ReLU.cast" not in outputs[0]


def test_bench_takes_a_precision():
    options = ("--workload", "tiny-step", "--seconds", "0.01", "--dtype", "mixed-bfloat16")
    output = succeed("bench", *options, "--json", "bench.json").output
    assert output.startswith(f"lamina {lm.__version__} in mixed-bfloat16 on cpu: ")
    assert json.loads(Path("bench.json").read_text())["dtype"] == "mixed-bfloat16"


@pytest.mark.parametrize("command", ["train", "plan", "explain", "profile", "tune"])
def test_an_unknown_precision_is_refused_with_the_right_spelling(command):
    options = ("--data", "digits") if command == "train" else ()
    assert fail(command, write("digits.py", DIGITS), *options, "--dtype", "bf16") == (
        "DTypeError in --dtype: the parameters of a model are floating-point numbers\n"
        "  expected  float32, float64, bfloat16, float16, mixed, mixed-bfloat16, mixed-float16\n"
        "  found     bf16\n"
        "  Write dtype='bfloat16'.\n"
    )


def test_a_wrong_precision_in_the_file_is_refused():
    message = fail("plan", write("digits.py", DIGITS + "dtype = 16\n"))
    assert message.startswith(
        "DTypeError in digits.py, dtype: the parameters of a model are floating-point numbers\n"
    )


def test_mixed_on_a_device_without_instructions_names_the_alternative():
    if any(one.has_bfloat16 or one.has_float16 for one in lm.devices() if one.engine == "cpu"):
        pytest.skip("this processor has instructions for floats of 16 bits")
    message = fail("plan", write("digits.py", DIGITS), "--dtype", "mixed")
    assert "EngineError in cpu: this device does not compute with floats of 16 bits" in message
    assert "dtype='mixed-bfloat16' stores activations" in message


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_outputs_in_16_bits_are_written_with_all_digits(dtype):
    path = write("table.py", TABLE)
    a_table()
    options = ("--dtype", dtype, "--epochs", 1)
    succeed("train", path, "--data", "table.csv", *options)
    expected = lm.load("table.safetensors").predict(
        np.loadtxt("table.csv", delimiter=",")[:, :2].astype("float32")
    )
    for name in ("scores.csv", "scores.npy"):
        told = succeed("predict", "table.safetensors", "--data", "table.csv", "--out", name)
    # NumPy's files do not keep bfloat16.
    written = np.load("scores.npy")
    assert written.dtype == ("float32" if dtype == "bfloat16" else "float16")
    assert np.array_equal(written.astype(expected.dtype), expected)
    assert f"wrote scores.npy: {written.dtype}[" in told.output
    read = np.loadtxt("scores.csv", dtype="float32", delimiter=",", ndmin=2)
    assert np.array_equal(read.reshape(-1, 1).astype(expected.dtype), expected)
