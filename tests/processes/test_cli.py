"""The command line: what each command prints and writes, and one clear message for each error."""

import importlib.util
import json
import re
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from cli_cases import DIGITS, TABLE, a_table, fail, namespace, run, succeed, write
from fresh_python import run_python

import lamina as lm
from lamina.cli.commands import main as command_line

ROOT = str(Path(lm.__file__).parents[1])
needs_proc = pytest.mark.skipif(
    not Path("/proc/self").is_dir(), reason="needs a folder without files"
)
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def _in_a_folder_with_two_files_and_a_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    write("digits.py", DIGITS)
    write("table.py", TABLE)
    a_table()


# The commands -------------------------------------------------------------------------------------


def test_version():
    assert succeed("--version").output == f"lamina {lm.__version__}\n"


@pytest.mark.parametrize("command", [[], *([name] for name in command_line.commands)])
def test_every_command_explains_itself(command):
    assert "Usage:" in succeed(*command, "--help").output


def test_devices_lists_the_engines_marks_the_default_and_shows_details():
    lines = succeed("devices").output.splitlines()
    assert lines[0].split() == ["engine", "device", "memory", "state"]
    assert any("(default)" in line for line in lines)
    names = [device.engine for device in lm.devices()]
    engines = [line.split()[0] for line in lines if line[:1].isalpha() and "cannot be" not in line]
    assert engines[1:] == names
    blocks = succeed("devices", "--details").output.split("\n\n")
    assert [block.split()[0] for block in blocks] == names
    assert all("\n  memory " in block and "\n  state " in block for block in blocks)


def test_check_prints_the_table_of_the_network():
    output = succeed("check", "digits.py").output
    assert "3:Linear" in output
    assert output.splitlines()[-1].split() == ["total", "1,210", "2,474"]


def bill(text, batch, *options, **how):
    """The bill of the network of a file."""
    return namespace(text)["net"].plan(batch, *options, **how)


def test_plan_prints_the_bill_of_a_training_step_or_of_inference():
    path, how = "digits.py", (lm.CrossEntropy(), lm.Adam(1e-2))
    assert succeed("plan", path).output == f"{bill(DIGITS, 100, *how)}\n"
    output = succeed("plan", path, "--batch-size", 64, "--micro-batch", 8).output
    assert output == f"{bill(DIGITS, 64, *how, micro_batch=8)}\n"
    assert "sums of gradients" in output
    text = "import lamina as lm\nnet = lm.Sequential(lm.Input(2), lm.Linear(3))\n"
    assert succeed("plan", write("net.py", text)).output == f"{bill(text, 32)}\n"


@pytest.mark.usefixtures("tensor_cores")
@pytest.mark.parametrize(("name", "value"), [("dtype", "mixed-float16"), ("precision", "tf32")])
def test_an_option_overrides_the_precision_of_the_file(name, value):
    path, how = write("own.py", f"{DIGITS}{name} = {value!r}\n"), (lm.CrossEntropy(), lm.Adam(1e-2))
    for options, own in (((), value), ((f"--{name}", "float32"), "float32")):
        output = succeed("plan", path, *options).output
        assert output == f"{bill(DIGITS, 100, *how, **{name: own})}\n"


def test_plan_lists_buffers_counts_data_finds_the_largest_batch_and_draws():
    options = ("--data", "digits", "--buffers", "--memory", "1 MiB", "--plot", "plan.png")
    output = succeed("plan", "digits.py", *options).output
    net = namespace(DIGITS)["net"]
    how = {"loss": lm.CrossEntropy(), "optimizer": lm.Adam(1e-2), "data": lm.data.digits()}
    assert output.startswith(f"{net.plan(100, **how)}\n")
    assert re.search(r"^buffer +shape +bytes +offset +steps$", output, re.MULTILINE)
    assert f"largest batch in 1 MiB: {net.max_batch_size('1 MiB', **how):,} examples" in output
    assert Path("plan.png").read_bytes().startswith(PNG)


def test_verify_prints_the_report_of_random_examples_and_of_a_file():
    for options in ((), ("--data", "table.csv", "--batch-size", 5)):
        output = succeed("verify", "table.py", *options).output
        assert "gradient of 1.weight" in output
        assert output.endswith("all checks passed\n")


OWN_LAYER = """
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


def test_verify_fails_where_a_gradient_is_wrong():
    result = run("verify", write("kink.py", OWN_LAYER))
    assert result.exit_code == 1
    assert "FAILED" in result.output


def test_train_writes_a_model_that_predict_reads():
    output = succeed("train", "digits.py", "--data", "digits", "--validation", "0.2").output
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


def fitted(text, engine="cpu", dtype="float32", seed=0, **how):
    """The model of a file, after an epoch of a fit."""
    names = namespace(text)
    model = lm.Model(names["net"], engine=engine, dtype=dtype, seed=seed)
    fit = {name: names[name] for name in ("loss", "optimizer", "metrics") if name in names}
    data = lm.data.digits() if "digits" not in how else how.pop("digits")
    model.fit(data, epochs=1, progress=False, **fit, **how)
    return model


def assert_equal(name, model):
    """The parameters in a file are the model's."""
    saved = lm.load(name).parameters()
    for key, value in model.parameters().items():
        np.testing.assert_array_equal(saved[key], value)


def test_train_gives_the_parameters_of_fit_in_every_precision():
    common = ("train", "digits.py", "--data", "digits", "--epochs", 1)
    options = ("--batch-size", 64, "--seed", 3, "--engine", "interpreter", "--out", "a.safetensors")
    succeed(*common, *options)
    assert_equal("a.safetensors", fitted(DIGITS, "interpreter", seed=3, batch_size=64))
    succeed(*common, "--dtype", "mixed-bfloat16")
    assert_equal("digits.safetensors", fitted(DIGITS, dtype="mixed-bfloat16", batch_size=100))
    assert "mixed-bfloat16" in repr(lm.load("digits.safetensors"))
    predict = ("predict", "digits.safetensors", "--data", "digits")
    assert succeed(*predict, "--dtype", "float32").output != succeed(*predict).output


def test_train_prints_a_line_per_epoch_draws_the_curves_and_ends_after_some_time():
    common = ("train", "digits.py", "--data", "digits")
    result = succeed(*common, "--epochs", 2, "--curves", "curves.png")
    lines = result.stderr.splitlines()
    assert [line.split()[:2] for line in lines] == [["epoch", "1/2"], ["epoch", "2/2"]]
    assert re.search(r"^loss \d\.\d{4}  accuracy 0\.\d{4}$", result.stdout, re.MULTILINE)
    assert Path("curves.png").read_bytes().startswith(PNG)
    result = succeed(*common, "--minutes", 1e-9, "--log", "run.csv")
    assert "interrupted after 0 of" in result.stdout


def epochs_of_the_log():
    """The rows of the log, their validation losses, and the number of the best epoch."""
    rows = [json.loads(line) for line in Path("run.jsonl").read_text().splitlines()]
    losses = [row["validation_loss"] for row in rows]
    return [row["epoch"] for row in rows], losses, losses.index(min(losses)) + 1


def assert_best_epoch_is_written(losses):
    _, examined = lm.data.digits().split(0.8, seed=0)
    model = lm.load("digits.safetensors")
    found = model.evaluate(examined, namespace(DIGITS)["loss"])["loss"]
    assert found == pytest.approx(min(losses))


PATIENTLY = ("--data", "digits", "--validation", 0.2, "--patience", 2, "--log", "run.jsonl")


def test_train_prints_the_last_and_the_best_epoch():
    rates = "lm.schedules.PiecewiseConstant([45], [0.1, 3.0])"
    path = write("digits.py", f"{DIGITS}\noptimizer = lm.SGD({rates})\n")
    printed = succeed("train", path, *PATIENTLY, "--epochs", 9, "--micro-batch", 20).stdout
    epochs, losses, best = epochs_of_the_log()
    assert len(epochs) == best + 2
    for name, number, end in (("last", best + 2, ""), ("best", best, "  (of the written model)")):
        values = f"  validation_loss {losses[number - 1]:.4f}  .*{re.escape(end)}"
        line = rf"^{name} epoch, {number}:  loss \d\.\d{{4}}  .*{values}$"
        assert re.search(line, printed, re.MULTILINE), printed
    assert_best_epoch_is_written(losses)


def test_train_writes_the_best_epoch_of_a_fit_that_diverges():
    rates = "lm.schedules.PiecewiseConstant([45], [0.1, 1e30])"
    path = write("digits.py", f"{DIGITS}\noptimizer = lm.SGD({rates})\n")
    errors = fail("train", path, *PATIENTLY, "--epochs", 9).splitlines()
    _, losses, best = epochs_of_the_log()
    assert "wrote digits.safetensors" in errors
    assert errors[-1] == f"EarlyStopping: the model has the values of epoch {best}."
    assert_best_epoch_is_written(losses)


def test_train_resumes_from_a_checkpoint_to_the_same_bits():
    common = ("train", "digits.py", "--data", "digits")
    succeed(*common, "--epochs", 2, "--out", "once.safetensors")
    keep = ("--checkpoint", "state.safetensors", "--resume", "--out", "resumed.safetensors")
    succeed(*common, "--epochs", 1, *keep)
    succeed(*common, "--epochs", 2, *keep)
    once, resumed = (lm.load(f"{name}.safetensors").parameters() for name in ("once", "resumed"))
    assert all(np.array_equal(once[name], resumed[name]) for name in once)


def test_train_reads_a_table_and_validates_on_another():
    a_table("train.csv")
    a_table("other.csv")
    output = succeed(
        "train", "table.py", "--data", "train.csv", "--validation", "other.csv",
        "--targets", "0",
    ).output  # fmt: skip
    assert "validation  20 examples: x f32[2], y f32[1]" in output


def test_predict_takes_a_table_with_and_without_its_targets():
    values = a_table()
    np.savetxt("inputs.csv", values[:, :2], delimiter=",", fmt="%.4f")
    succeed("train", "table.py", "--data", "table.csv", "--epochs", 1)
    with_targets = succeed("predict", "table.safetensors", "--data", "table.csv").output
    assert succeed("predict", "table.safetensors", "--data", "inputs.csv").output == with_targets
    assert len(with_targets.splitlines()) == 20


def test_predict_finds_the_users_layers_in_their_file():
    path = write("own.py", OWN_LAYER)
    succeed("train", path, "--data", "table.csv", "--epochs", 1)
    message = fail("predict", "own.safetensors", "--data", "table.csv")
    assert "Kink, which is not a layer of Lamina" in message
    succeed("predict", "own.safetensors", "--data", "table.csv", "--layers", path)


def test_a_file_may_import_modules_of_its_folder_and_its_main_block_is_not_run():
    Path("project").mkdir()
    write("project/sizes.py", "FEATURES = 5\n")
    text = f"from sizes import FEATURES{TABLE}".replace("lm.Linear(3)", "lm.Linear(FEATURES)")
    main = "if __name__ == '__main__':\n    raise SystemExit(9)\n"
    assert "f32[batch, 5]" in succeed("check", write("project/net.py", text + main)).output


# Losses and precisions ----------------------------------------------------------------------------


def test_train_prints_a_warning_about_the_loss_with_the_line_of_the_file():
    path = write("net.py", TABLE.replace("loss = lm.MSE()", "loss = lm.BCE()"))
    np.savetxt("table.csv", np.random.default_rng(0).random((20, 3)), delimiter=",", fmt="%.4f")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        trained = succeed("train", path, "--data", "table.csv", "--epochs", 1).stderr
        checked = succeed("check", path).stderr
    for text in (trained, checked):
        assert text.startswith("warning")
        assert "in BCE (net.py:5): the prediction is raw scores" in text
        assert "Write lm.BCEWithLogits() for raw scores" in text


TWO_OUTPUTS = """
import lamina as lm

x = lm.Input(2, name="x")
net = lm.Network(x, {"size": lm.Linear(1)(x), "kind": lm.Linear(3)(x)})
loss = {"size": lm.MSE()}
optimizer = lm.Adam()
metrics = {"size": [lm.R2()]}
"""


def test_train_takes_losses_and_metrics_by_output():
    path = write("two.py", TWO_OUTPUTS)
    succeed("check", path)
    assert "two.safetensors" in succeed("train", path, "--data", "table.csv", "--epochs", 1).stdout
    assert_equal("two.safetensors", fitted(TWO_OUTPUTS, digits=lm.data.load("table.csv")))


@pytest.mark.parametrize("command", ["train", "plan", "explain", "profile", "tune"])
def test_an_unknown_precision_is_refused_with_the_right_spelling(command):
    options = ("--data", "digits") if command == "train" else ()
    assert fail(command, "digits.py", *options, "--dtype", "bf16") == (
        "DTypeError in --dtype: the parameters of a model are floating-point numbers\n"
        "  expected  float32, float64, bfloat16, float16, mixed, mixed-bfloat16, mixed-float16\n"
        "  found     bf16\n"
        "  Write dtype='bfloat16'.\n"
    )


@pytest.mark.sampled
@pytest.mark.usefixtures("tensor_cores")
def test_commands_take_tf32():
    tf32 = ("--precision", "tf32")
    assert "contraction in TF32" in succeed("explain", "digits.py", *tf32).output
    succeed("profile", "digits.py", "--seconds", "0.01", *tf32)
    succeed("train", "digits.py", "--data", "digits", "--epochs", 1, *tf32)
    assert "(TF32 products)" in repr(lm.load("digits.safetensors"))
    predict = ("predict", "digits.safetensors", "--data", "digits", "--precision")
    assert succeed(*predict, "tf32").output != succeed(*predict, "float32").output
    bench = ("bench", "--workload", "tiny-step", "--seconds", "0.01", "--json", "bench.json")
    assert "in float32 (TF32 products) on cpu" in succeed(*bench, *tf32).output
    assert json.loads(Path("bench.json").read_text())["precision"] == "tf32"
    assert fail("plan", "digits.py", "--precision", "high") == (
        "DefinitionError in --precision: precision must be 'float32' or 'tf32'\n"
        "  expected  'float32' or 'tf32'\n"
        "  found     'high'\n"
        "  Write precision='tf32'.\n"
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_outputs_in_16_bits_are_written_with_all_digits(dtype):
    inputs = a_table()[:, :2].astype("float32")
    options = ("--data", "table.csv", "--dtype", dtype, "--epochs", 1)
    succeed("train", "table.py", *options)
    expected = lm.load("table.safetensors").predict(inputs)
    for name in ("scores.csv", "scores.npy"):
        told = succeed("predict", "table.safetensors", "--data", "table.csv", "--out", name)
    # NumPy's files do not keep bfloat16.
    written = np.load("scores.npy")
    assert written.dtype == ("float32" if dtype == "bfloat16" else "float16")
    assert np.array_equal(written.astype(expected.dtype), expected)
    assert f"wrote scores.npy: {written.dtype}[" in told.output
    read = np.loadtxt("scores.csv", dtype="float32", delimiter=",", ndmin=2)
    assert np.array_equal(read.reshape(-1, 1).astype(expected.dtype), expected)


# Errors -------------------------------------------------------------------------------------------


TWO_LINEAR = """import lamina as lm

x = lm.Input(4)
net = lm.Network(inputs=[x], outputs=lm.Linear(3)(x) + lm.Linear(2)(x))
"""


# The command, the text of its file, and parts of the message, from its beginning on.
@pytest.mark.cases(
    ("command", "text", "expected"),
    ("check", TWO_LINEAR, "ShapeError in ...wrong.py:4"),
    ("check", TABLE + "loss = lm.CrossEntropy(class_weights=[1, 2, 3])", "ShapeError in "),
    (
        *("check", TWO_OUTPUTS.replace('loss = {"size"', 'loss = {"length"')),
        "DefinitionError in ByOutput...the losses do not fit the outputs of the network",
    ),
    ("check", "x = 1\n", "DefinitionError in wrong.py: the file defines no network"),
    ("check", "net = 3\n", "...found     net = 3"),
    ("check", TABLE + "net = lm.Model(net)\n", "...at the end of the file: net = net.network"),
    ("check", TABLE + "model, net = lm.Model(net), 3\n", "...of the file: net = model.network"),
    *(
        (
            command,
            TABLE.partition("loss")[0],
            "DefinitionError in wrong.py: the file defines no loss",
        )
        for command in ("train --data digits", "verify")
    ),
    ("check", TABLE.replace("net =", "model ="), "...model: name the network net."),
    ("check", TABLE + "loss = lm.MSE\n", "...loss = lm.MSE(...)"),
    ("check", TABLE + "optimizer = 0.1\n", "...optimizer has a wrong value"),
    ("check", TABLE + "metrics = lm.Accuracy()\n", "...metrics = [lm.Accuracy()]"),
    ("check", TABLE + "batch_size = 0\n", "...batch_size has a wrong value"),
    ("check", TABLE + "epochs = 2.5\n", "...found     2.5...Write for example: epochs = 32"),
    ("check", TABLE + "batch_size = '5'\n", "...Write batch_size = 5, without quotes."),
    ("check", TABLE + "optimiser = lm.Adam(1)\n", "...the name optimiser is not read"),
    ("check", TABLE + "epoch = 3\n", "...found     epoch = 3...Name it epochs; if it is something"),
    ("plan", TABLE + "dtype = 16\n", "DTypeError in wrong.py, dtype: the parameters of a model"),
    (
        *("plan", TABLE + "precision = True\n"),
        "DefinitionError in wrong.py: precision must be 'float32' or 'tf32'...To allow TF32",
    ),
    (
        *("plan", TABLE + "dtype, precision = 'mixed-bfloat16', 'tf32'\n"),
        "...only products of float32 are rounded to TF32",
    ),
    ("plan", TABLE + "def loss(y, t):\n    return y.nothing\n", "AttributeError in wrong.py:7: "),
    ("check", "a = 1\nnet = = 2\n", "SyntaxError in wrong.py:2: invalid syntax\n    net = = 2\n"),
    ("check", "a\0b", "SyntaxError in wrong.py: this is not a Python file: "),
)
def test_a_wrong_file_is_refused_with_its_line(command, text, expected):
    name, *options = command.split()
    message = fail(name, write("wrong.py", text), *options)
    first, *parts = expected.split("...")
    assert message.startswith(first)
    assert all(part in message for part in parts)


def test_an_exception_in_the_users_file_is_shown_with_its_line_or_its_traceback():
    path = write("wrong.py", "import lamina\n\nnet = {}['size']\n")
    assert fail("check", path) == (
        "KeyError in wrong.py:3: 'size'\n"
        "    net = {}['size']\n"
        "  lamina --debug ... shows the traceback.\n"
    )
    assert isinstance(run("--debug", "check", path).exception, KeyError)


UNKNOWN_ENDING = "DefinitionError in a.foo: pictures cannot be written as .foo"


@pytest.mark.cases(
    ("arguments", "expected"),
    ("train digits.py --data missing.npz", "DataError in missing.npz: there is no such file"),
    ("train digits.py --data digits --engine abacus", "EngineError: there is no engine 'abacus'"),
    ("train digits.py --data digits --out no/a", "DataError in no/a: "),
    ("train digits.py --data digits --curves no/a.png", "DataError in no/a.png: the file could"),
    ("train digits.py --data digits --curves a.foo", UNKNOWN_ENDING),
    ("plan digits.py --plot a.foo", UNKNOWN_ENDING),
    ("bench --json no/a.json", "DataError in no/a.json: the file could"),
    ("predict table.csv --data digits", "FileFormatError in table.csv: "),
)
def test_wrong_arguments_are_refused_before_the_work(arguments, expected):
    assert fail(*arguments.split()).startswith(expected)
    assert not Path("digits.safetensors").exists()


@needs_proc
@pytest.mark.parametrize("option", ["--out", "--curves", "--checkpoint", "--log"])
def test_train_refuses_a_folder_that_cannot_be_written_to_before_it_trains(option):
    result = run("train", "digits.py", "--data", "digits", option, "/proc/self/a.png")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("DataError in /proc/self/a.png: the file could not be written")
    assert "Check that the folder may be written to" in result.stderr


def test_data_of_another_shape_than_the_network_is_refused():
    a_table(columns=5)
    message = fail("train", "table.py", "--data", "table.csv")
    assert message.startswith("ShapeError in input 0: ")
    net = write("net.py", TABLE.replace("lm.Input(2)", "lm.Input(3)"))
    a_table(columns=4)
    succeed("train", net, "--data", "table.csv", "--epochs", 1)
    # Named targets are no features.
    np.savez("points.npz", x=np.zeros((5, 2), "float32"), y=np.zeros((5, 1), "float32"))
    assert "input 0 has another shape" in fail("predict", "net.safetensors", "--data", "points.npz")


def test_curves_without_matplotlib_are_refused_at_once(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    arguments = ("--data", "digits", "--curves", "curves.png")
    message = fail("train", "digits.py", *arguments)
    assert message.startswith("MissingExtraError: --curves needs the package matplotlib")


def test_an_os_error_is_one_line_and_an_error_of_lamina_itself_is_not_hidden(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "plan.png")

    monkeypatch.setattr("lamina.inspect.bill.MemoryBill.plot", full)
    message = fail("plan", "table.py", "--plot", "plan.png")
    assert message == "OSError: plan.png: No space left on device\n"
    monkeypatch.setattr(lm, "devices", lambda: 1 / 0)
    assert isinstance(run("devices").exception, ZeroDivisionError)


@pytest.mark.cases(
    ("arguments", "expected"),
    ("train missing.py --data digits", "'missing.py' does not exist"),
    ("train digits.py", "Missing option '--data'"),
    ("train digits.py --data digits --epochs 0", "0 is not in the range"),
    ("train digits.py --data digits --resume", "--resume needs --checkpoint"),
    ("train digits.py --data digits --validation 2", "between 0 and 1"),
    ("predict digits.py --data digits --out a.txt", "not '.txt'"),
    ("dance", "No such command 'dance'"),
    ("plan digits.py --gaps mean", "--kind and the like are for --data DATA."),
    ("verify digits.py --gaps mean", "--kind and the like are for --data DATA."),
    ("profile digits.py --gaps mean", "--kind and the like are for --data DATA."),
)
def test_wrong_usage_is_refused_with_status_2(arguments, expected):
    assert expected in fail(*arguments.split(), status=2)


def test_several_outputs_do_not_fit_into_one_array():
    path = write(
        "two.py",
        "import lamina as lm\nx = lm.Input(2)\n"
        "net = lm.Network(inputs=x, outputs=[lm.Linear(1)(x), lm.Linear(2)(x)])\n",
    )
    lm.Model(namespace(path.read_text())["net"]).save("two.safetensors")
    common = ("predict", "two.safetensors", "--data", "table.csv", "--out")
    assert "ends in .npz" in fail(*common, "scores.npy")
    succeed(*common, "scores.npz")
    assert sorted(np.load("scores.npz").files) == ["output0", "output1"]


# As a process of its own --------------------------------------------------------------------------


def process(*arguments):
    return run_python("-c", "from lamina.cli import main; main()", *arguments, PYTHONPATH=ROOT)


def test_a_process_ends_with_one_message_or_a_traceback_and_a_status():
    write("wrong.py", "import lamina as lm\nnet = lm.Sequential(lm.Input(2), lm.Linear(0))\n")
    done = process("check", "wrong.py")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("DefinitionError in Linear (wrong.py:2): ")
    assert "Traceback" not in done.stderr
    done = process("--debug", "check", "wrong.py")
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert process("train").returncode == 2


# The demo -----------------------------------------------------------------------------------------


def test_demo_writes_model_and_curves_and_ends_with_the_accuracy():
    result = succeed("demo", "--epochs", 2, "--out", "here")
    assert sorted(path.name for path in Path("here").iterdir()) == [
        "curves.png",
        "digits.safetensors",
    ]
    assert Path("here/curves.png").read_bytes().startswith(PNG)
    last = result.stdout.splitlines()[-1]
    match = re.fullmatch(r"accuracy on held-out digits: ([\d.]+)% \((\d+) of (\d+)\)", last)
    assert match is not None, last
    _, held_out = lm.data.digits().split(0.8, seed=0)
    predicted = lm.load("here/digits.safetensors").predict(held_out.inputs).argmax(axis=1)
    assert int(match[2]) == (predicted == held_out.targets).sum()
    assert int(match[3]) == len(held_out)


def test_demo_is_quiet_where_there_is_no_terminal():
    done = process("demo", "--epochs", "2")
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert [line.split()[:2] for line in lines] == [["epoch", "1/2"], ["epoch", "2/2"]]
    assert "\x1b" not in done.stdout + done.stderr
    assert "\r" not in done.stdout + done.stderr


def test_demo_without_matplotlib_prints_why_there_is_no_picture(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    output = succeed("demo", "--epochs", 1).stdout
    assert "no picture of the curves: " in output
    assert 'pip install "lamina[plot]"' in output
    assert not Path("lamina-demo/curves.png").exists()
    assert output.splitlines()[-1].startswith("accuracy on held-out digits: ")


@pytest.mark.cases(
    ("options", "expected"),
    (["--engine", "cpux"], "there is no engine 'cpux'"),
    (["--out", "file/folder"], "DataError in file/folder: "),
    pytest.param(["--out", "/proc/self"], "DataError in /proc/self/digits", marks=needs_proc),
)
def test_demo_refuses_wrong_options_before_any_output(options, expected):
    write("file", "")
    failed = run("demo", *options)
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert expected in failed.stderr
    assert not Path("lamina-demo").exists()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_demo_reads_98_of_100_digits(seed):
    last = succeed("demo", "--seed", seed).stdout.splitlines()[-1]
    found = re.search(r"([\d.]+)%", last)
    assert found is not None
    assert float(found[1]) >= 98.0
