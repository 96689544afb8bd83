"""The progress of a training: a bar or lines, and the callbacks of `lamina train`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from lamina.model import Model
from lamina.reports import measured_text
from lamina.training.callbacks import Callback, CSVLog, EarlyStopping, JSONLinesLog, TimeLimit
from lamina.training.history import History


def on_terminal() -> bool:
    """Whether standard error is a terminal, on which `Model.fit` shows its bar."""
    return sys.stderr.isatty()


def one_epoch(history: History, number: int) -> str:
    """Loss and metrics of an epoch, counted from 1: `loss 0.1234  accuracy 0.9600`."""
    return measured_text({name: values[number - 1] for name, values in history.values.items()})


def _best_epochs(callbacks: Sequence[Callback]) -> list[int]:
    """The best epochs, from 1, whose values the model has after the fit."""
    bests = [callback.best_epoch for callback in callbacks if isinstance(callback, EarlyStopping)]
    return [best for best in bests if best]


@contextmanager
def best_model_written(model: Model, path: Path, callbacks: Sequence[Callback]) -> Generator[None]:
    """Writes the model of the best epoch, if there is one, when the fit in the block fails."""
    try:
        yield
    except Exception:
        if _best_epochs(callbacks):
            model.save(path)
            click.echo(f"wrote {path}", err=True)
        raise


def result_lines(history: History, callbacks: Sequence[Callback]) -> Iterator[str]:
    """Loss and metrics of the last epoch; also of the best one, if its model is the result."""
    last, bests = len(history), _best_epochs(callbacks)
    if not bests:
        yield one_epoch(history, last)
        return
    yield f"last epoch, {last}:  {one_epoch(history, last)}"
    for best in bests:
        yield f"best epoch, {best}:  {one_epoch(history, best)}  (of the written model)"


def callbacks(
    patience: int | None, log: Path | None, minutes: float | None, *, validated: bool
) -> list[Callback]:
    """The callbacks that options of `lamina train` ask for."""
    chosen: list[Callback] = []
    if patience is not None:
        monitor = "validation_loss" if validated else "loss"
        chosen.append(EarlyStopping(monitor, patience=patience))
    if log is not None:
        chosen.append(JSONLinesLog(log) if log.suffix == ".jsonl" else CSVLog(log))
    if minutes is not None:
        chosen.append(TimeLimit(60 * minutes))
    return chosen


def epoch_lines(epochs: int) -> list[Callable[[History], None]]:
    """The callbacks for `Model.fit`: print lines on standard error, unless there is a bar."""

    def line(history: History) -> None:
        click.echo(f"epoch {len(history)}/{epochs}  {one_epoch(history, len(history))}", err=True)

    return [] if on_terminal() else [line]
