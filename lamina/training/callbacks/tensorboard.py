"""Event files for TensorBoard; the only file that imports tensorboardX."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from lamina.errors import missing_extra
from lamina.training.callbacks.callback import Callback, RunningFit


@dataclass
class TensorBoard(Callback):
    """Writes the measures of each epoch as event files, which TensorBoard shows.

    It needs `pip install "lamina[tensorboard]"`.

    Args:
        folder: of the event files; each fit adds one.

    Raises:
        MissingExtraError: without tensorboardX, when a fit begins.

    Example:
        >>> import lamina as lm
        >>> lm.callbacks.TensorBoard("runs/first").folder
        'runs/first'
    """

    folder: str | os.PathLike[str]
    _writer: Any = field(default=None, init=False, repr=False)

    def fit_begins(self, fit: RunningFit) -> None:
        """Opens an event file."""
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise missing_extra("tensorboardX", "tensorboard", "TensorBoard") from None
        self._writer = SummaryWriter(os.fspath(self.folder))

    def epoch_ends(self, fit: RunningFit) -> None:
        """Writes the measures."""
        for name in fit.history:
            self._writer.add_scalar(name, fit.history[name][-1], fit.epoch)
        self._writer.flush()

    def fit_ends(self, fit: RunningFit) -> None:
        """Closes the file."""
        self._writer.close()

    def fit_fails(self, fit: RunningFit, error: BaseException) -> None:
        """Closes the file, if it was opened."""
        if self._writer is not None:
            self._writer.close()
