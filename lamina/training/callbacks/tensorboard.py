"""Event files for TensorBoard; the only file that imports tensorboardX."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

from lamina.errors import missing_extra
from lamina.training.callbacks.callback import Callback, RunningFit


@dataclass
class TensorBoard(Callback):
    """Writes the measures of each epoch as event files, which TensorBoard shows.

    It needs `pip install "lamina[tensorboard]"`.

    Args:
        folder: of the event files; each fit adds one. A resumed fit's file replaces what the
            fit before it has written after its last checkpoint.

    Raises:
        MissingExtraError: without tensorboardX, when a fit begins.

    Example:
        >>> lm.callbacks.TensorBoard("runs/first").folder
        'runs/first'
    """

    folder: str | os.PathLike[str]
    _writer: Any = field(default=None, init=False, repr=False)

    def fit_begins(self, fit: RunningFit) -> None:
        """Opens an event file."""
        library, folder = _library(), os.fspath(self.folder)
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
