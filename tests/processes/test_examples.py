"""Each example runs and reaches the results that it claims, and trains the same on OpenCL."""

import gzip
import os
import re
import runpy
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from click.testing import CliRunner

import lamina as lm
from lamina.cli.commands import main as command_line
from lamina.training.batches import BatchRunner
from lamina.training.training import Training

ROOT = Path(__file__).parents[2]
# A folder with the original files.
FASHION = Path(os.environ.get("LAMINA_FASHION_MNIST", "fashion-mnist"))
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Runs an example in an empty folder; returns its output."""
    monkeypatch.chdir(tmp_path)

    def run_example(name, *arguments):
        main = runpy.run_path(str(ROOT / "examples" / f"{name}.py"))["main"]
        main([str(argument) for argument in arguments])
        return capsys.readouterr().out

    return run_example


def number(pattern, text):
    found = re.search(pattern, text)
    assert found is not None, text
    return float(found[1])


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_takes_an_engine(run, path, tmp_path):
    write_idx_folder(tmp_path, scale=3)
    folder = [tmp_path] if 'add_argument("folder"' in path.read_text() else []
    with pytest.raises(lm.errors.EngineError, match="'abacus'"):
        run(path.stem, *folder, "--engine", "abacus")


def test_every_example_is_tested_and_shows_its_command():
    tested = Path(__file__).read_text()
    for path in EXAMPLES:
        assert f'("{path.stem}"' in tested
        assert f"python examples/{path.name}" in path.read_text().split('"""')[1]


def assert_pictures(*names):
    for name in names:
        assert Path(name).read_bytes().startswith(PNG)


def test_circles_are_classified(run):
    output = run("circles", "--epochs", 60, "--picture", "circles.png")
    assert number(r"accuracy on 100 held-out points: ([\d.]+)%", output) >= 95
    lines = output.splitlines()
    assert lines[16][32] in "%@"  # the middle is the inner circle
    assert set(lines[0]) <= set(" .:-")  # the upper edge is not
    assert_pictures("circles.png")


SUMS = r"right of 2000 other sums: ([\d.]+)%"
# Arguments, a number that is printed, and the least that it must be.
CLAIMS = [
    ("softmax_digits", "--epochs 15", r"accuracy on 359 held-out images: ([\d.]+)%", 93),
    ("cartpole", "--seeds 2 --rollouts 30", r"mean return ([\d.]+), the least", 150),
    pytest.param(
        *("cartpole", "", r"mean return ([\d.]+), the least", 475), marks=pytest.mark.slow
    ),
    ("two_inputs", "", r"explained of the variance: ([\d.]+)%", 98),
    ("adding_problem", "--length 10 --examples 10000 --epochs 2", SUMS, 90),
    pytest.param("adding_problem", "", SUMS, 99, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "arguments", "pattern", "least"), CLAIMS)
def test_an_example_reaches_what_it_claims(run, name, arguments, pattern, least):
    curves = [] if name in ("two_inputs", "cartpole") else ["--curves", "curves.png"]
    assert number(pattern, run(name, *arguments.split(), *curves)) >= least
    assert_pictures(*curves[1:])


def test_a_calibrated_ensemble_contains_as_many_targets_as_it_says(run):
    output = run("calibrated_ensemble", "--networks", 5, "--epochs", 60)
    shares = {
        name: [float(share) for share in re.findall(r"([\d.]+) %", line)]
        for line in output.splitlines()
        if (name := line.split("  ")[0]) in ("one network", "the calibrated ensemble")
    }
    errors = {
        name: max(abs(share - level) for share, level in zip(each, (50, 80, 90, 95), strict=True))
        for name, each in shares.items()
    }
    assert errors["the calibrated ensemble"] < min(errors["one network"], 6)


def test_softmax_trains_on_idx_files(run, tmp_path):
    write_idx_folder(tmp_path)
    output = run("softmax_digits", "--mnist", tmp_path, "--epochs", 3)
    assert number(r"accuracy on 397 held-out images: ([\d.]+)%", output) >= 50


def test_a_training_shares_the_weights_of_its_model(run):
    output = run("shared_weights")
    assert number(r"given weights: +([\d.]+)", output) == 0.4352
    assert number(r"after one training step: +([\d.]+)", output) > 0.4352
    assert number(r"after a hundred more: +([\d.]+)", output) == pytest.approx(0.9, abs=1e-3)
    assert number(r"parameters, shared: +(\d+) bytes", output) == 17 * 4
    last = number(r"and one more training step: +([\d.]+)", output)
    assert last > number(r"bias set to -3: +([\d.]+)", output)
    assert number(r"released, still answers: +([\d.]+)", output) == last
    assert "ReleasedError in Training: " in output


def test_an_own_layer_learns_its_parameter_and_loads_again(run):
    output = run("own_layer")
    assert "all checks passed" in output
    assert number(r"2\.beta: from 1\.0 to (-?[\d.]+)", output) != 1.0
    assert number(r"([\d.]+) at last", output) < 0.005
    assert "the same to the last bit" in output


def test_the_heat_equation_is_solved(run):
    output = run("heat_equation", "--epochs", 30)
    assert number(r"largest error of the temperature: ([\d.]+)", output) < 0.005
    assert number(r"t = 1\.0: ([\d.]+)", output) == pytest.approx(0.3727, abs=0.003)


def test_a_transformer_learns_to_sort(run):
    output = run("sort_transformer", "--length", 6, "--sequences", 8000, "--epochs", 4)
    assert number(r"right in 1000 unseen sequences: ([\d.]+)%", output) >= 95
    assert len(re.findall(r"^(\d ){6}-> (\d ?){6}$", output, re.MULTILINE)) == 3


@pytest.mark.parametrize(
    ("name", "arguments", "pictures"),
    [("fashion_mlp", (), ("curves",)), ("lenet_fashion", ("--digits",), ("curves", "confusion"))],
)
def test_an_example_reads_a_folder_of_idx_files_or_names_the_missing_folder(
    run, tmp_path, name, arguments, pictures
):
    assert run(name).startswith("Nothing to learn from: give the folder")
    write_idx_folder(tmp_path, scale=3)
    options = [f"--{picture}={picture}.png" for picture in pictures]
    output = run(name, tmp_path, "--epochs", 1, "--limit", 300, *arguments, *options)
    assert "accuracy on 397 test images: " in output
    assert_pictures(*(f"{picture}.png" for picture in pictures))


@pytest.mark.skipif(not FASHION.is_dir(), reason=f"the files of Fashion-MNIST are not in {FASHION}")
@pytest.mark.cases(
    ("name", "arguments", "least"),
    ("fashion_mlp", ("--limit", 6000), 75),
    pytest.param("fashion_mlp", (), 84, marks=pytest.mark.slow),
    pytest.param("lenet_fashion", (), 88.5, marks=pytest.mark.slow),
)
def test_fashion_is_learned(run, name, arguments, least):
    output = run(name, FASHION, *arguments)
    assert number(r"accuracy on 10000 test images: ([\d.]+)%", output) >= least


def test_networks_of_blocks_classify_digits(run):
    lines = run("blocks", "--epochs", 3).splitlines()[1:]
    found = {line.split()[0]: float(line.split()[-1].rstrip("%")) for line in lines}
    assert list(found) == ["plain", "residual", "inception", "squeeze_and_excitation"]
    assert min(found.values()) >= 80


def test_a_variational_autoencoder_learns_digits(run):
    output = run("vae_digits", "--epochs", 8, "--samples", "samples.png", "--curves", "curves.png")
    found = re.search(r"([\d.]+) after one epoch, ([\d.]+) at last", output)
    assert float(found[2]) < 0.9 * float(found[1])
    assert_pictures("samples.png", "curves.png")


def test_two_networks_are_trained_against_each_other(run):
    output = run("gan_digits", "--epochs", 2, "--samples", "samples.png", "--curves", "curves.png")
    assert 0.1 < number(r"([\d.]+) in the last", output) < 2
    assert_pictures("samples.png", "curves.png")


@pytest.mark.slow
@pytest.mark.sampled
def test_generated_images_are_classified_as_digits(run, monkeypatch):
    sheets = []
    monkeypatch.setattr("lamina.reports.plot_images", lambda made, *_, **__: sheets.append(made))
    run("gan_digits", "--epochs", 40, "--samples", "samples.png")
    reader = lm.Model(
        lm.Sequential(
            *(lm.Input(1, 8, 8), lm.Conv2d(16, 3), lm.ReLU(), lm.MaxPool2d(2), lm.Flatten()),
            *(lm.Dropout(0.2), lm.Linear(10), lm.Softmax()),
        )
    )
    digits = lm.data.digits()
    images = np.asarray(digits.inputs, "float32") / 16
    targets = np.eye(10, dtype="float32")[digits.targets]
    reader.fit((images, targets), epochs=20, loss=lm.BCE(), optimizer=lm.Adam(3e-3))
    read = reader.predict(sheets[0].astype("float32"))
    # All digits occur, and most are recognised with confidence; of real ones 96%. Their number
    # depends on rounding, as adversarial training amplifies the smallest difference.
    assert set(read.argmax(1)) == set(range(10))
    assert (read.max(1) > 0.7).mean() > 0.6


def write_idx_folder(folder, scale=1):
    """The embedded digits as the four files of MNIST: 1,400 to learn from and 397 to test."""
    digits = lm.data.digits()
    images, labels = np.asarray(digits.inputs)[:, 0] * 15, np.asarray(digits.targets)
    images = images.repeat(scale, axis=1).repeat(scale, axis=2)
    for part, rows in (("train", slice(0, 1400)), ("t10k", slice(1400, None))):
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", images[rows])
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", labels[rows])


def write_idx(path, array):
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(header + array.astype("uint8").tobytes()))


STEPS = 6
# Arguments that shorten an example. They change no network and no batch but long sequences.
SHORT = {
    "adding_problem": ("--length", "10", "--examples", "2000"),
    "sort_transformer": ("--length", "6", "--sequences", "2000"),
}


class EnoughSteps(Exception):
    """Ends an example."""


@dataclass
class Record:
    """The first training steps of an example.

    Attributes:
        weights: parameters of each model when it was made.
        rows: examples of each training step over a data set.
        losses: loss of each training step.
    """

    weights: list[dict[str, Any]] = field(default_factory=list)
    rows: bytes = b""
    losses: list[float] = field(default_factory=list)

    def add(self, *losses):
        self.losses += map(float, losses)
        if len(self.losses) >= STEPS:
            raise EnoughSteps


def watched(work):
    """Runs something until its models have done `STEPS` training steps; returns their record."""
    make, run, step = lm.Model.__init__, BatchRunner._run_batches, Training.step
    seen = Record()

    def made(self, *arguments, **named):
        make(self, *arguments, **named)
        seen.weights.append(self.parameters())

    def ran(self, resident, rows):
        # The number of training steps in a piece depends on their time.
        rows = rows[: STEPS - len(seen.losses)]
        found = run(self, resident, rows)
        seen.rows += rows.tobytes()
        seen.add(*found.losses)
        return found

    def stepped(self, *arguments):
        loss = step(self, *arguments)
        seen.add(loss)
        return loss

    with (
        patch.object(lm.Model, "__init__", made),
        patch.object(BatchRunner, "_run_batches", ran),
        patch.object(Training, "step", stepped),
        suppress(EnoughSteps),
    ):
        work()
    return seen


def assert_same(first, second):
    assert first.losses
    assert len(first.weights) == len(second.weights) > 0
    for left, right in zip(first.weights, second.weights, strict=True):
        assert list(left) == list(right)
        assert all(left[name].tobytes() == right[name].tobytes() for name in left)
    assert first.rows == second.rows
    np.testing.assert_allclose(first.losses, second.losses, rtol=1e-4)


@pytest.mark.sampled
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_trains_the_same_on_cpu_and_opencl(path, opencl_name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = [*SHORT.get(path.stem, ())]
    if 'add_argument("folder"' in path.read_text():
        write_idx_folder(tmp_path, scale=3)
        arguments.append(str(tmp_path))
    main = runpy.run_path(str(path))["main"]
    engines = ("cpu", opencl_name)
    assert_same(*(watched(partial(main, [*arguments, "--engine", name])) for name in engines))


def test_the_demo_trains_the_same_on_cpu_and_opencl(opencl_name, tmp_path):
    def demo(name):
        options = ["demo", "--engine", name, "--out", str(tmp_path / "demo")]
        result = CliRunner().invoke(command_line, options)
        assert isinstance(result.exception, EnoughSteps)
        raise result.exception

    assert_same(*(watched(partial(demo, name)) for name in ("cpu", opencl_name)))
