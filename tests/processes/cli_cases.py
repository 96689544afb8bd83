"""Helpers of the tests of the command line."""

from pathlib import Path

import numpy as np
from click.testing import CliRunner, Result

from lamina.cli import main

DIGITS = """
import lamina as lm

net = lm.Sequential(
    lm.Input(1, 8, 8), lm.Rescale(1 / 16), lm.Flatten(), lm.Linear(16), lm.ReLU(), lm.Linear(10)
)
loss = lm.CrossEntropy()
optimizer = lm.Adam(1e-2)
metrics = [lm.Accuracy()]
batch_size = 100
epochs = 2
"""
TABLE = """
import lamina as lm

net = lm.Sequential(lm.Input(2), lm.Linear(3), lm.Tanh(), lm.Linear(1))
loss = lm.MSE()
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def succeed(*arguments: object) -> Result:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result


def fail(*arguments: object, status: int = 1) -> str:
    """The text on standard error; it must be a message and no traceback."""
    result = run(*arguments)
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.output
    assert isinstance(result.exception, SystemExit)
    return result.stderr


def write(name: str, text: str) -> Path:
    path = Path(name)
    path.write_text(text)
    return path


def a_table(name: str = "table.csv", columns: int = 3) -> np.ndarray:
    values = np.random.default_rng(0).normal(size=(20, columns)).round(4)
    np.savetxt(name, values, delimiter=",", fmt="%.4f")
    return values


def namespace(text: str) -> dict:
    names: dict = {}
    exec(text, names)
    return names
