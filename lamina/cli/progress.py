"""The progress of a training: a bar on terminals, a line for each epoch elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from lamina.reports import measured_text
from lamina.training.history import History


def on_terminal() -> bool:
    """Whether standard error is a terminal, on which `Model.fit` shows its bar."""
    return sys.stderr.isatty()


def last_epoch(history: History) -> str:
    """Loss and metrics of the last epoch: `loss 0.1234  accuracy 0.9600`."""
    return measured_text({name: values[-1] for name, values in history.values.items()})


def epoch_lines(epochs: int) -> list[Callable[[History], None]]:
    """The callbacks for `Model.fit`: print lines on standard error, unless there is a bar."""

    def line(history: History) -> None:
        click.echo(f"epoch {len(history)}/{epochs}  {last_epoch(history)}", err=True)

    return [] if on_terminal() else [line]
