"""The command line: what each command prints and writes, and one clear message for each error."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest
from cli_cases import DIGITS, TABLE, a_table, fail, namespace, run, succeed, write

import lamina as lm

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


# The commands -------------------------------------------------------------------------------------


def test_version():
    assert succeed("--version").output == f"lamina {lm.__version__}\n"


@pytest.mark.parametrize(
    "command", [[], ["demo"], ["train"], ["check"], ["plan"], ["verify"], ["predict"], ["devices"]]
)
def test_every_command_explains_itself(command):
    assert "Usage:" in succeed(*command, "--help").output


def test_devices_lists_the_engines_and_marks_the_default():
    lines = succeed("devices").output.splitlines()
    assert lines[0].split() == ["engine", "device", "memory", "state"]
    assert any("(default)" in line for line in lines)
    engines = [line.split()[0] for line in lines if line[:1].isalpha() and "cannot be" not in line]
    assert engines[1:] == [device.engine for device in lm.devices()]


def test_devices_shows_the_details_of_each():
    blocks = succeed("devices", "--details").output.split("\n\n")
    assert [block.split()[0] for block in blocks] == [device.engine for device in lm.devices()]
    assert all("\n  memory " in block and "\n  state " in block for block in blocks)


def test_check_prints_the_table_of_the_network():
    output = succeed("check", write("digits.py", DIGITS)).output
    assert "3:Linear" in output
    assert output.splitlines()[-1].split() == ["total", "1,210", "2,474"]


def test_plan_prints_the_bill_of_a_training_step():
    path = write("digits.py", DIGITS)
    output = succeed("plan", path).output
    assert "inputs and targets, 100 examples" in output
    assert "optimizer and other state" in output
    assert "inputs and targets, 7 examples" in succeed("plan", path, "--batch-size", 7).output


def test_plan_lists_buffers_finds_the_largest_batch_and_draws():
    path = write("digits.py", DIGITS)
    output = succeed("plan", path, "--buffers", "--memory", "1 MiB", "--plot", "plan.png").output
    assert re.search(r"^buffer +shape +bytes +offset +steps$", output, re.MULTILINE)
    net = namespace(DIGITS)["net"]
    largest = net.max_batch_size("1 MiB", lm.CrossEntropy(), lm.Adam(1e-2))
    assert f"largest batch in 1 MiB: {largest:,} examples" in output
    assert Path("plan.png").read_bytes().startswith(PNG)


def test_plan_without_a_loss_prints_the_bill_of_inference():
    path = write("net.py", "import lamina as lm\nnet = lm.Sequential(lm.Input(2), lm.Linear(3))\n")
    bill = namespace(path.read_text())["net"].plan(32)
    assert succeed("plan", path).output == f"{bill}\n"


def test_plan_counts_data_and_plans_for_its_dtypes():
    path = write("digits.py", DIGITS)
    output = succeed("plan", path, "--data", "digits", "--memory", "1 MiB").output
    net, data = namespace(DIGITS)["net"], lm.data.digits()
    how = {"loss": lm.CrossEntropy(), "optimizer": lm.Adam(1e-2), "data": data}
    assert output.startswith(f"{net.plan(100, **how)}\n")
    assert f"largest batch in 1 MiB: {net.max_batch_size('1 MiB', **how):,} examples" in output


def test_options_of_data_without_data_are_refused():
    error = fail("plan", write("digits.py", DIGITS), "--gaps", "mean", status=2)
    assert "--targets, --gaps, --kind and the like are for --data DATA." in error


def test_verify_prints_the_report():
    output = succeed("verify", write("table.py", TABLE)).output
    assert "gradient of 1.weight" in output
    assert output.endswith("all checks passed\n")


def test_verify_takes_examples_from_a_file():
    a_table()
    succeed("verify", write("table.py", TABLE), "--data", "table.csv", "--batch-size", 5)


@pytest.mark.parametrize("command", ["verify", "profile"])
def test_integer_inputs_without_data_are_refused(command):
    text = """
        import lamina as lm

        net = lm.Sequential(
            lm.Input(2, dtype="int64"), lm.Embedding(5, 3), lm.Flatten(), lm.Linear(1)
        )
        loss = lm.MSE()
        """
    message = fail(command, write("net.py", textwrap.dedent(text)))
    assert "random examples cannot be made for an input of integers" in message
    assert message.endswith(f"or lamina {command} FILE.py --data DATA.\n")


def test_verify_fails_where_a_gradient_is_wrong():
    text = """
        import lamina as lm
        from dataclasses import dataclass

        @dataclass(frozen=True)
        class Kink(lm.Layer):
            def forward(self, scope, x):
                w = scope.parameter("w", (), lm.init.Constant(1.0))
                return x * lm.ops.stop_gradient(w * w) + x * w

        net = lm.Sequential(lm.Input(2), lm.Linear(3), Kink(), lm.Linear(1))
        loss = lm.MSE()
    """
    result = run("verify", write("kink.py", re.sub("^        ", "", text, flags=re.MULTILINE)))
    assert result.exit_code == 1
    assert "FAILED" in result.output


def test_train_writes_a_model_that_predict_reads():
    path = write("digits.py", DIGITS)
    output = succeed("train", path, "--data", "digits", "--validation", "0.2").output
    assert "training    1438 examples" in output
    assert "validation  359 examples" in output
    assert "wrote digits.safetensors" in output
    model = lm.load("digits.safetensors")

    images = lm.data.digits().inputs[:30]
    np.save("images.npy", images)
    for name in ("scores.npy", "scores.csv", "scores.npz"):
        succeed("predict", "digits.safetensors", "--data", "images.npy", "--out", name)
    expected = model.predict(images)
    assert np.array_equal(np.load("scores.npy"), expected)
    assert np.array_equal(np.load("scores.npz")["output0"], expected)
    assert np.array_equal(np.loadtxt("scores.csv", "float32", delimiter=","), expected)
    printed = succeed("predict", "digits.safetensors", "--data", "images.npy").output
    assert printed == Path("scores.csv").read_text()


def test_train_gives_the_parameters_of_fit():
    path = write("digits.py", DIGITS)
    succeed(
        "train", path, "--data", "digits", "--epochs", 1, "--batch-size", 64, "--seed", 3,
        "--out", "a.safetensors", "--engine", "interpreter",
    )  # fmt: skip
    names = namespace(DIGITS)
    model = lm.Model(names["net"], engine="interpreter", seed=3)
    model.fit(
        lm.data.digits(),
        epochs=1,
        batch_size=64,
        loss=names["loss"],
        optimizer=names["optimizer"],
        metrics=names["metrics"],
    )
    trained = lm.load("a.safetensors").parameters()
    for name, value in model.parameters().items():
        assert np.array_equal(trained[name], value)


def test_train_prints_a_line_per_epoch_and_draws_the_curves():
    path = write("digits.py", DIGITS)
    result = succeed("train", path, "--data", "digits", "--epochs", 2, "--curves", "curves.png")
    lines = result.stderr.splitlines()
    assert [line.split()[:2] for line in lines] == [["epoch", "1/2"], ["epoch", "2/2"]]
    assert re.search(r"^loss \d\.\d{4}  accuracy 0\.\d{4}$", result.stdout, re.MULTILINE)
    assert Path("curves.png").read_bytes().startswith(PNG)


def test_train_stops_early_and_writes_a_log():
    path = write("digits.py", DIGITS)
    result = succeed(
        "train", path, "--data", "digits", "--validation", 0.2, "--epochs", 3, "--patience", 2,
        "--micro-batch", 20, "--log", "run.jsonl",
    )  # fmt: skip
    rows = [json.loads(line) for line in Path("run.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    best = min(row["validation_loss"] for row in rows)
    model = lm.load("digits.safetensors")
    _, examined = lm.data.digits().split(0.8, seed=0)
    found = model.evaluate(examined, namespace(DIGITS)["loss"])["loss"]
    assert found == pytest.approx(best)
    assert "epoch 3/3" in result.stderr


def test_train_ends_after_some_time():
    path = write("digits.py", DIGITS)
    result = succeed("train", path, "--data", "digits", "--minutes", 1e-9, "--log", "run.csv")
    assert "interrupted after 0 of" in result.stdout


def test_plan_with_micro_batches_prints_their_bill():
    path = write("digits.py", DIGITS)
    output = succeed("plan", path, "--batch-size", 64, "--micro-batch", 8).output
    assert "sums of gradients" in output
    assert "inputs and targets, 8 examples" in output


def test_train_resumes_from_a_checkpoint_to_the_same_bits():
    path = write("digits.py", DIGITS)
    common = ("train", path, "--data", "digits")
    succeed(*common, "--epochs", 2, "--out", "whole.safetensors")
    keep = ("--checkpoint", "state.safetensors", "--resume", "--out", "resumed.safetensors")
    succeed(*common, "--epochs", 1, *keep)
    succeed(*common, "--epochs", 2, *keep)
    whole, resumed = (lm.load(f"{name}.safetensors").parameters() for name in ("whole", "resumed"))
    assert all(np.array_equal(whole[name], resumed[name]) for name in whole)


def test_train_reads_a_table_and_validates_on_another():
    a_table("train.csv")
    a_table("other.csv")
    output = succeed(
        "train", write("table.py", TABLE), "--data", "train.csv", "--validation", "other.csv",
        "--targets", "0",
    ).output  # fmt: skip
    assert "validation  20 examples: x f32[2], y f32[1]" in output


def test_predict_takes_a_table_with_and_without_its_targets():
    values = a_table()
    np.savetxt("inputs.csv", values[:, :2], delimiter=",", fmt="%.4f")
    succeed("train", write("table.py", TABLE), "--data", "table.csv", "--epochs", 1)
    with_targets = succeed("predict", "table.safetensors", "--data", "table.csv").output
    assert succeed("predict", "table.safetensors", "--data", "inputs.csv").output == with_targets
    assert len(with_targets.splitlines()) == 20


def test_predict_finds_the_users_layers_in_their_file():
    text = """
import lamina as lm
from dataclasses import dataclass

@dataclass(frozen=True)
class Double(lm.Layer):
    def forward(self, scope, x):
        return x * FACTOR

FACTOR = 2.0
net = lm.Sequential(lm.Input(2), lm.Linear(1), Double())
loss = lm.MSE()
"""
    a_table()
    path = write("own.py", text)
    succeed("train", path, "--data", "table.csv", "--epochs", 1)
    message = fail("predict", "own.safetensors", "--data", "table.csv")
    assert "Double, which is not a layer of Lamina" in message
    succeed("predict", "own.safetensors", "--data", "table.csv", "--layers", path)


def test_a_file_may_import_modules_of_its_folder():
    folder = Path("project")
    folder.mkdir()
    write("project/sizes.py", "FEATURES = 5\n")
    path = write(
        "project/net.py",
        "import lamina as lm\nfrom sizes import FEATURES\n"
        "net = lm.Sequential(lm.Input(2), lm.Linear(FEATURES))\n",
    )
    assert "f32[batch, 5]" in succeed("check", path).output


def test_the_main_block_of_a_file_is_not_run():
    path = write("table.py", TABLE + "if __name__ == '__main__':\n    raise SystemExit(9)\n")
    succeed("check", path)


# Errors -------------------------------------------------------------------------------------------


def test_a_shape_error_names_layer_and_line():
    path = write(
        "wrong.py",
        "import lamina as lm\n\nx = lm.Input(4)\n"
        "net = lm.Network(inputs=[x], outputs=lm.Linear(3)(x) + lm.Linear(2)(x))\n",
    )
    message = fail("check", path)
    assert message.startswith("ShapeError in ")
    assert "wrong.py:4" in message


def test_check_finds_a_loss_that_does_not_fit():
    path = write("wrong.py", TABLE.replace("lm.MSE()", "lm.CrossEntropy(class_weights=[1, 2, 3])"))
    assert fail("check", path).startswith("ShapeError in ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1\n", "DefinitionError in wrong.py: the file defines no network"),
        ("net = 3\n", "found     net = 3"),
        (
            "import lamina as lm\nmodel = lm.Sequential(lm.Input(2), lm.Linear(1))\n",
            "model: name the network net.",
        ),
        (TABLE + "loss = lm.MSE\n", "loss = lm.MSE(...)"),
        (TABLE + "optimizer = 0.1\n", "optimizer has a wrong value"),
        (TABLE + "metrics = lm.Accuracy()\n", "metrics = [lm.Accuracy()]"),
        (TABLE + "batch_size = 0\n", "batch_size has a wrong value"),
        (TABLE + "epochs = 2.5\n", "found     2.5"),
        (TABLE + "epochs = 2.5\n", "Write for example: epochs = 32"),
        (TABLE + "batch_size = '5'\n", "Write batch_size = 5, without quotes."),
    ],
)
def test_a_file_with_wrong_definitions_is_refused(text, expected):
    assert expected in fail("check", write("wrong.py", text))


@pytest.mark.parametrize("command", [["train", "--data", "digits"], ["verify"]])
def test_a_file_without_the_required_loss_is_refused(command):
    path = write("net.py", "import lamina as lm\nnet = lm.Sequential(lm.Input(2), lm.Linear(3))\n")
    message = fail(command[0], path, *command[1:])
    assert message.startswith("DefinitionError in net.py: the file defines no loss\n")


def test_an_exception_in_the_users_file_is_shown_with_its_line():
    path = write("wrong.py", "import lamina\n\nnet = {}['size']\n")
    assert fail("check", path) == (
        "KeyError in wrong.py:3: 'size'\n"
        "    net = {}['size']\n"
        "  lamina --debug ... shows the traceback.\n"
    )


def test_an_exception_in_a_layer_of_the_users_is_shown_with_its_line():
    text = TABLE + "def loss(prediction, target):\n    return prediction.nothing\n"
    message = fail("plan", write("wrong.py", text))
    assert message.startswith("AttributeError in wrong.py:7: ")


def test_a_syntax_error_in_the_users_file_is_shown_with_its_line():
    message = fail("check", write("wrong.py", "a = 1\nnet = = 2\n"))
    assert message.startswith("SyntaxError in wrong.py:2: invalid syntax\n    net = = 2\n")


def test_a_file_that_is_not_text_is_refused():
    message = fail("check", write("net.safetensors", "a\0b"))
    assert message.startswith("SyntaxError in net.safetensors: this is not a Python file: ")


def test_debug_shows_the_traceback():
    path = write("wrong.py", "net = {}['size']\n")
    result = run("--debug", "check", path)
    assert result.exit_code == 1
    assert isinstance(result.exception, KeyError)


def test_an_error_of_lamina_itself_is_not_hidden(monkeypatch):
    def broken() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(lm, "devices", broken)
    assert isinstance(run("devices").exception, ZeroDivisionError)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--data", "missing.npz"], "DataError in missing.npz: there is no such file"),
        (["--data", "digits", "--engine", "abacus"], "EngineError: there is no engine 'abacus'"),
        (["--data", "digits", "--out", "no/a.safetensors"], "DataError in no/a.safetensors: "),
        (["--data", "digits", "--curves", "no/a.png"], "DataError in no/a.png: the file could"),
    ],
)
def test_train_refuses_wrong_arguments_before_it_trains(arguments, expected):
    message = fail("train", write("digits.py", DIGITS), *arguments)
    assert message.startswith(expected)
    assert not Path("digits.safetensors").exists()


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder without files")
@pytest.mark.parametrize("option", ["--out", "--curves", "--checkpoint", "--log"])
def test_train_refuses_a_folder_that_cannot_be_written_to_before_it_trains(option):
    result = run(
        "train", write("digits.py", DIGITS), "--data", "digits", option, "/proc/self/a.png"
    )
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("DataError in /proc/self/a.png: the file could not be written")
    assert "Check that the folder may be written to" in result.stderr


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder without files")
def test_demo_refuses_a_folder_that_cannot_be_written_to_before_it_trains():
    result = run("demo", "--out", "/proc/self")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "DataError in /proc/self/digits.safetensors" in result.stderr


def test_data_of_another_shape_than_the_network_is_refused():
    a_table(columns=5)
    message = fail("train", write("table.py", TABLE), "--data", "table.csv")
    assert message.startswith("ShapeError in input 0: ")


def test_curves_without_matplotlib_are_refused_at_once(monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    path = write("digits.py", DIGITS)
    message = fail("train", path, "--data", "digits", "--curves", "curves.png")
    assert message.startswith("MissingExtraError: --curves needs the package matplotlib")


def test_a_file_that_is_no_model_is_refused():
    write("text.safetensors", "not a model")
    message = fail("predict", "text.safetensors", "--data", "digits")
    assert message.startswith("FileFormatError in text.safetensors: ")


def test_an_os_error_is_one_line(monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "plan.png")

    monkeypatch.setattr("lamina.inspect.bill.MemoryBill.plot", full)
    message = fail("plan", write("table.py", TABLE), "--plot", "plan.png")
    assert message == "OSError: plan.png: No space left on device\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "missing.py", "--data", "digits"], "'missing.py' does not exist"),
        (["train", "digits.py"], "Missing option '--data'"),
        (["train", "digits.py", "--data", "digits", "--epochs", "0"], "0 is not in the range"),
        (["train", "digits.py", "--data", "digits", "--resume"], "--resume needs --checkpoint"),
        (["train", "digits.py", "--data", "digits", "--validation", "2"], "between 0 and 1"),
        (["predict", "digits.py", "--data", "digits", "--out", "a.txt"], "not '.txt'"),
        (["dance"], "No such command 'dance'"),
    ],
)
def test_wrong_usage_is_refused_with_status_2(arguments, expected):
    write("digits.py", DIGITS)
    assert expected in fail(*arguments, status=2)


def test_several_outputs_do_not_fit_into_one_array():
    path = write(
        "two.py",
        "import lamina as lm\nx = lm.Input(2)\n"
        "net = lm.Network(inputs=x, outputs=[lm.Linear(1)(x), lm.Linear(2)(x)])\n",
    )
    lm.Model(namespace(path.read_text())["net"]).save("two.safetensors")
    a_table()
    common = ("predict", "two.safetensors", "--data", "table.csv", "--out")
    assert "ends in .npz" in fail(*common, "scores.npy")
    succeed(*common, "scores.npz")
    assert sorted(np.load("scores.npz").files) == ["output0", "output1"]


# As a process of its own --------------------------------------------------------------------------


def process(*arguments: str) -> subprocess.CompletedProcess[str]:
    root = Path(lm.__file__).parents[1]
    command = f"import sys; sys.path.insert(0, {str(root)!r}); from lamina.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", command, *arguments], capture_output=True, text=True, timeout=300
    )


def test_a_process_ends_with_one_message_and_status_1():
    write("wrong.py", "import lamina as lm\nnet = lm.Sequential(lm.Input(2), lm.Linear(0))\n")
    done = process("check", "wrong.py")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("DefinitionError in Linear (wrong.py:2): ")
    assert "Traceback" not in done.stderr


def test_a_process_with_debug_shows_the_traceback():
    write("wrong.py", "import lamina as lm\nnet = lm.Sequential(lm.Input(2), lm.Linear(0))\n")
    done = process("--debug", "check", "wrong.py")
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr


def test_a_process_with_wrong_usage_ends_with_status_2():
    assert process("train").returncode == 2


# The demo -----------------------------------------------------------------------------------------


def test_demo_writes_model_and_curves_and_ends_with_the_accuracy():
    result = succeed("demo", "--epochs", 2, "--out", "here")
    assert sorted(path.name for path in Path("here").iterdir()) == [
        "curves.png",
        "digits.safetensors",
    ]
    assert Path("here/curves.png").read_bytes().startswith(PNG)
    *_, last = result.stdout.splitlines()
    found = re.fullmatch(r"accuracy on held-out digits: ([\d.]+)% \((\d+) of (\d+)\)", last)
    assert found is not None, last

    _, held_out = lm.data.digits().split(0.8, seed=0)
    predicted = lm.load("here/digits.safetensors").predict(held_out.inputs).argmax(axis=1)
    assert int(found[2]) == (predicted == held_out.targets).sum()
    assert int(found[3]) == len(held_out)


def test_demo_is_quiet_where_there_is_no_terminal():
    done = process("demo", "--epochs", "2")
    assert done.returncode == 0, done.stderr
    assert [line.split()[:2] for line in done.stderr.splitlines()] == [
        ["epoch", "1/2"],
        ["epoch", "2/2"],
    ]
    assert "\x1b" not in done.stdout + done.stderr
    assert "\r" not in done.stdout + done.stderr


def test_demo_without_matplotlib_prints_why_there_is_no_picture(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    output = succeed("demo", "--epochs", 1).stdout
    assert "no picture of the curves: " in output
    assert 'pip install "lamina[plot]"' in output
    assert not Path("lamina-demo/curves.png").exists()
    assert output.splitlines()[-1].startswith("accuracy on held-out digits: ")


def test_demo_refuses_an_unknown_engine_before_any_output():
    failed = run("demo", "--engine", "cpux")
    assert failed.exit_code == 1
    assert not failed.stdout
    assert "there is no engine 'cpux'" in failed.stderr
    assert not Path("lamina-demo").exists()


def test_demo_names_a_folder_that_cannot_be_made():
    write("file", "")
    assert fail("demo", "--out", "file/folder").startswith("DataError in file/folder: ")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_demo_reads_98_of_100_digits(seed):
    last = succeed("demo", "--seed", seed).stdout.splitlines()[-1]
    found = re.search(r"([\d.]+)%", last)
    assert found is not None
    assert float(found[1]) >= 98.0


def test_float64_files_are_used_as_float32_with_a_warning():
    rng = np.random.default_rng(0)
    np.savez("points.npz", x=rng.normal(size=(20, 2)), y=rng.normal(size=(20, 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        result = succeed("train", write("net.py", TABLE), "--data", "points.npz", "--epochs", 1)
    lines = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
    assert [line.partition(". ")[0] for line in lines] == [
        "warning: input 0 is converted from float64 to float32",
        "warning: target 0 is converted from float64 to float32",
    ]
    options = "--data", "points.npz", "--epochs", 1, "--dtype", "float64"
    assert "warning" not in succeed("train", "net.py", *options).stderr


@pytest.mark.parametrize(("command", "option"), [("train", "--curves"), ("plan", "--plot")])
def test_a_picture_with_an_unknown_ending_is_refused_before_the_work(command, option):
    a_table("table.csv", 3)
    data = ("--data", "table.csv") if command == "train" else ()
    result = run(command, write("net.py", TABLE), *data, option, "x.foo")
    assert result.exit_code == 1
    assert "pictures cannot be written as .foo" in result.stderr
    assert "epoch" not in result.stdout
    assert not Path("net.safetensors").exists()


def test_predict_uses_no_named_targets_as_features():
    net = write("net.py", TABLE.replace("lm.Input(2)", "lm.Input(3)"))
    a_table("table.csv", 4)
    succeed("train", net, "--data", "table.csv", "--epochs", 1, "--out", "net.safetensors")
    np.savez("points.npz", x=np.zeros((5, 2), "float32"), y=np.zeros((5, 1), "float32"))
    assert "input 0 has another shape" in fail("predict", "net.safetensors", "--data", "points.npz")
