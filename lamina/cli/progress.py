"""The progress of a training: a bar on terminals, a line for each epoch elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from lamina.training.history import History


def on_terminal() -> bool:
    """Whether standard error is a terminal, on which `Model.fit` shows its bar."""
    return sys.stderr.isatty()


def epoch_lines(epochs: int) -> list[Callable[[History], None]]:
    """The callbacks for `Model.fit`: print lines on standard error, unless there is a bar."""

    def line(history: History) -> None:
        values = "  ".join(f"{name} {row[-1]:.4f}" for name, row in history.values.items())
        click.echo(f"epoch {len(history)}/{epochs}  {values}", err=True)

    return [] if on_terminal() else [line]
