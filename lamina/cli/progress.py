"""How a command shows that a training goes on: a bar on terminals, a line an epoch elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from lamina.training.history import History


def on_terminal() -> bool:
    """Whether somebody watches: then `Model.fit` shows its bar."""
    return sys.stderr.isatty()


def epoch_lines(epochs: int) -> list[Callable[[History], None]]:
    """The callbacks for `Model.fit`: lines on standard error, unless there is a bar."""

    def line(history: History) -> None:
        values = "  ".join(f"{name} {row[-1]:.4f}" for name, row in history.values.items())
        click.echo(f"epoch {len(history)}/{epochs}  {values}", err=True)

    return [] if on_terminal() else [line]
