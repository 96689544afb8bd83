"""Callbacks that write the history: lines, tables, JSON lines, events for TensorBoard."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lamina.checks.kinds import Count
from lamina.errors import missing_extra
from lamina.files.atomic import require_writable, write_atomically
from lamina.training.callbacks.callback import Callback, RunningFit

PathLike = str | os.PathLike[str]


@dataclass
class _Log(Callback):
    """The base of callbacks that write the history after each epoch."""

    path: PathLike

    def fit_begins(self, fit: RunningFit) -> None:
        """Checks that the file can be written."""
        self.path = fit.path_of(self.path)
        require_writable(self.path)

    def epoch_ends(self, fit: RunningFit) -> None:
        """Writes the file."""
        history = fit.history
        rows = [
            {
                "epoch": number + 1,
                **{name: history[name][number] for name in history},
                "seconds": history.seconds[number],
            }
            for number in range(len(history))
        ]
        write_atomically(self.path, self._text(rows).encode())

    def _text(self, rows: Sequence[Mapping[str, float]]) -> str:
        raise NotImplementedError


class CSVLog(_Log):
    """Writes the history as a table after each epoch: a column for each measure.

    Args:
        path: the path of the file; it is replaced, atomically.

    Raises:
        DataError: if it cannot be written.

    Example:
        >>> lm.callbacks.CSVLog("run.csv").path
        'run.csv'
    """

    def _text(self, rows: Sequence[Mapping[str, float]]) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()


class JSONLinesLog(_Log):
    """Writes the history as a JSON object for each epoch, one a line; NaN and infinity as null.

    Args:
        path: the path of the file; it is replaced, atomically.

    Raises:
        DataError: if it cannot be written.

    Example:
        >>> lm.callbacks.JSONLinesLog("run.jsonl").path
        'run.jsonl'
    """

    def _text(self, rows: Sequence[Mapping[str, float]]) -> str:
        plain = ({k: v if math.isfinite(v) else None for k, v in row.items()} for row in rows)
        return "".join(f"{json.dumps(row, allow_nan=False)}\n" for row in plain)


@dataclass
class PrintEpochs(Callback):
    """Prints a line for each epoch, also where there is no terminal for a progress bar.

    Args:
        every: the divisor of the numbers of the epochs that are printed, besides the last one.

    Example:
        >>> lm.callbacks.PrintEpochs(every=10).every
        10
    """

    every: Count = 1

    def epoch_ends(self, fit: RunningFit) -> None:
        """Prints the line."""
        if fit.epoch % self.every == 0 or fit.epoch == fit.epochs:
            values = ((name, fit.history[name][-1]) for name in fit.history)
            numbers = "  ".join(f"{name} {value:.6g}" for name, value in values)
            member = "" if fit.member is None else f"member {fit.member}  "
            print(f"{member}epoch {fit.epoch}/{fit.epochs}  {numbers}", flush=True)


@dataclass
class TensorBoard(Callback):
    """Writes the measures of each epoch as event files, which TensorBoard shows.

    It needs `pip install "lamina[tensorboard]"`.

    Args:
        folder: the folder of the event files; each fit adds one. A resumed fit's file replaces what
            the fit before it has written after its last checkpoint.

    Raises:
        MissingExtraError: without tensorboardX, when a fit begins.

    Example:
        >>> lm.callbacks.TensorBoard("runs/first").folder
        'runs/first'
    """

    folder: PathLike
    _writer: Any = field(default=None, init=False, repr=False)

    def fit_begins(self, fit: RunningFit) -> None:
        """Opens an event file."""
        library, folder = _library(), os.fspath(fit.path_of(self.folder))
        library.record_writer.directory_check(folder)
        # SummaryWriter writes in a thread, whose queue its `flush` does not wait for. Two of its
        # files of the same second have one name.
        make = library.event_file_writer.EventsWriter
        self._writer = make(os.path.join(folder, "events"), f".{time.time_ns()}")
        if len(fit.history):
            # TensorBoard omits earlier events from this epoch on.
            log = library.proto.event_pb2.SessionLog
            self._write(len(fit.history) + 1, session_log=log(status=log.START))

    def epoch_ends(self, fit: RunningFit) -> None:
        """Writes the measures: they are in the file before the checkpoint is written."""
        for name in fit.history:
            scalar = _library().summary.scalar(name, fit.history[name][-1])
            self._write(fit.epoch, summary=scalar)
        self._writer.flush()

    def _write(self, step: int, **what: Any) -> None:
        event = _library().proto.event_pb2.Event(step=step, wall_time=time.time(), **what)
        self._writer.write_event(event)

    def fit_ends(self, fit: RunningFit) -> None:
        """Closes the file."""
        self._writer.close()

    def fit_fails(self, fit: RunningFit, error: BaseException) -> None:
        """Closes the file, if it was opened."""
        if self._writer is not None:
            self._writer.close()


def _library() -> Any:
    try:
        import tensorboardX
    except ImportError:
        raise missing_extra("tensorboardX", "tensorboard", "TensorBoard") from None
    return tensorboardX
