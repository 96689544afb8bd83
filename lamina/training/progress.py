"""The progress bar of a fit: one line on a terminal, nothing elsewhere."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Display(Protocol):
    """What the fit loop tells its viewer."""

    def epoch_begins(self, epoch: int, epochs: int, steps: int) -> None: ...

    def advance(self, steps: int, loss: float, examples_per_second: float) -> None: ...

    def epoch_ends(self, epoch: int, epochs: int, row: Mapping[str, object]) -> None: ...


class Quiet:
    """Shows nothing."""

    def epoch_begins(self, epoch: int, epochs: int, steps: int) -> None:
        """An epoch begins."""

    def advance(self, steps: int, loss: float, examples_per_second: float) -> None:
        """Steps are done."""

    def epoch_ends(self, epoch: int, epochs: int, row: Mapping[str, object]) -> None:
        """An epoch is done."""


class Bar:
    """A line for each epoch that is done, and a moving one for the epoch under way."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def epoch_begins(self, epoch: int, epochs: int, steps: int) -> None:
        """An epoch begins."""
        self._task = self._progress.add_task(f"epoch {epoch}/{epochs}", total=steps, measured="")

    def advance(self, steps: int, loss: float, examples_per_second: float) -> None:
        """Steps are done."""
        if self._task is not None:
            measured = f"loss {loss:.4f}  {examples_per_second:,.0f} examples/s"
            self._progress.update(self._task, advance=steps, measured=measured)

    def epoch_ends(self, epoch: int, epochs: int, row: Mapping[str, object]) -> None:
        """An epoch is done."""
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None
        shown = "  ".join(f"{k} {v:.4f}" for k, v in row.items() if isinstance(v, float))
        self._progress.console.print(
            f"epoch {epoch}/{epochs}  {shown}", highlight=False, soft_wrap=True
        )


@contextmanager
def display(wanted: bool | None) -> Generator[Display]:
    """A bar, or nothing.

    Args:
        wanted: None shows it exactly if standard error is a terminal.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not (console.is_terminal if wanted is None else wanted):
        yield Quiet()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[measured]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield Bar(progress)
