"""Progress bars of a fit and of other long work, on terminals only."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO, TypeVar

from lamina.reports import measured_text
from lamina.training.history import numbers_in

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


Item = TypeVar("Item")


class Bar:
    """A line for each finished epoch, and a progress bar for the fit; without one, nothing."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def epoch_begins(self, epoch: int, epochs: int, steps: int | None) -> None:
        """An epoch of so many training steps begins; None if their number is not known."""
        if self._progress is None:
            return
        description = f"epoch {epoch}/{epochs}"
        left = None if steps is None else steps * (epochs - epoch + 1)
        if self._task is None:
            self._task = self._progress.add_task(description, total=left, measured="")
            return
        self._progress.update(self._task, description=description)
        if left is not None and self._progress.tasks[self._task].total is None:
            # The first epoch of a stream has shown its number of training steps.
            done = self._progress.tasks[self._task].completed
            self._progress.update(self._task, total=done + left)

    def advance(self, steps: int, row: Mapping[str, object], examples_per_second: float) -> None:
        """Training steps are done; the row holds their loss and metrics."""
        if self._progress is not None and self._task is not None:
            measured = f"{measured_text(numbers_in(row))}  {examples_per_second:,.0f} examples/s"
            self._progress.update(self._task, advance=steps, measured=measured)

    def epoch_ends(self, epoch: int, epochs: int, row: Mapping[str, object]) -> None:
        """An epoch is done; its line omits matrices."""
        if self._progress is not None:
            line = f"epoch {epoch}/{epochs}  {measured_text(numbers_in(row))}"
            self._progress.console.print(line, highlight=False, soft_wrap=True)


@contextmanager
def display(enabled: bool | None) -> Generator[Bar]:
    """A bar with loss, metrics, speed and time left; with None only on a terminal."""
    if enabled is False or (enabled is None and not _may_be_terminal()):
        yield Bar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not (console.is_terminal or enabled):
        yield Bar()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[measured]}"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield Bar(progress)


def with_progress(items: Sequence[Item], what: str) -> Iterator[Item]:
    """Iterates over the items; on a terminal with a progress bar labelled `what`."""
    if not _may_be_terminal():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(items, what, console=console, transient=True, disable=not console.is_terminal)


def _may_be_terminal() -> bool:
    """Whether rich should be loaded to find out. Loading takes longer than a small training."""
    forced = ("FORCE_COLOR", "TTY_COMPATIBLE")
    # None in processes without a console.
    errors: TextIO | None = sys.stderr
    return any(name in os.environ for name in forced) or (errors is not None and errors.isatty())
