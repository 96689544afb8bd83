"""The first training steps of the demo and of every example are the same on opencl and cpu.

Initial weights, shuffles and dropout masks are the same bits; the losses are the
same but for rounding, which grows with each training step.
"""

import runpy
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from click.testing import CliRunner
from test_examples import EXAMPLES, write_idx_folder

import lamina as lm
from lamina.cli.commands import main as command_line
from lamina.training.batches import BatchRunner
from lamina.training.training import Training

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
    for one, other in zip(first.weights, second.weights, strict=True):
        assert list(one) == list(other)
        assert all(one[name].tobytes() == other[name].tobytes() for name in one)
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
