"""Evaluation: loss and metrics of a model on a data set, in inference mode."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, contextmanager
from typing import Any, final

import numpy as np

from lamina.base.shapes import Array
from lamina.checks.origin import warn
from lamina.data import Dataset, Stream
from lamina.data.background import Reader
from lamina.data.stream import STEP_EXAMPLES
from lamina.learning.protocols import Loss, Metric
from lamina.runtime import Parameters
from lamina.runtime.feeds import Stopped
from lamina.runtime.streaming import Streamed
from lamina.step.derive import GRADIENT_NORM, evaluation_graph
from lamina.training.batches import BatchRunner, Examples, Recorded, joined
from lamina.training.epochs import ALL_FINITE, batches_of_rows, equal_members, fault_of

# The default number of examples in a batch.
BATCH_SIZE = STEP_EXAMPLES


@contextmanager
def evaluating(
    parameters: Parameters,
    data: Dataset | Stream,
    loss: Loss,
    metrics: Sequence[Metric],
    stopped: Stopped = lambda: False,
    *,
    batch_size: int = BATCH_SIZE,
    measured: str = "loss",
) -> Generator[Callable[[], Recorded] | None]:
    """A function that evaluates a model on data, as often as it is called within the block.

    A stream is read anew for each call. A loss that is NaN or infinite gives a warning.

    Args:
        stopped: whether to end early, while a stream is read. There is no function if it becomes
            true before the stream's first batch.
    """
    given = parameters, data, loss, metrics, stopped, batch_size
    with _evaluation(*given) as opened:
        if opened is None:
            yield None
            return
        (_, run), dataset = opened, data if isinstance(data, Dataset) else None

        def measure() -> Recorded:
            recorded = run(None)
            # A stream may have been read in part.
            is_whole = dataset is not None or not stopped()
            return _checked(recorded, measured, dataset) if is_whole else recorded

        yield measure


@contextmanager
def evaluating_members(
    parameters: Parameters,
    data: Dataset | Stream,
    loss: Loss,
    metrics: Sequence[Metric],
    stopped: Stopped = lambda: False,
    *,
    subsets: Sequence[Array] | None = None,
    batch_size: int = BATCH_SIZE,
) -> Generator[Callable[[Sequence[int]], dict[int, Recorded]]]:
    """A function that evaluates some members of a population, as often as it is called.

    Args:
        data, stopped: as in `evaluating`.
        subsets: the positions of the examples of each member in a data set; by default all.
    """
    given = parameters, data, loss, metrics, stopped, batch_size
    with _evaluation(*given, own_inputs=subsets is not None) as opened:
        if opened is None:
            yield lambda members: {}
            return
        evaluation, run = opened
        yield lambda members: evaluation.of_members(members, run, subsets)


# Evaluates all examples, or some rows of a data set, of each member.
_Run = Callable[[Array | None], Recorded]


@contextmanager
def _evaluation(
    parameters: Parameters,
    data: Dataset | Stream,
    loss: Loss,
    metrics: Sequence[Metric],
    stopped: Stopped,
    batch_size: int,
    *,
    own_inputs: bool = False,
) -> Generator[tuple[Evaluation, _Run] | None]:
    """An evaluation, and a function that runs it; None if a stream stops before its first batch."""
    how = {"own_inputs": own_inputs}
    if isinstance(data, Dataset):
        size = min(batch_size, len(data))
        with (
            Evaluation(parameters, data, loss, metrics, size, **how) as evaluation,
            evaluation.uploaded(data) as resident,
        ):
            every = np.arange(len(data), dtype=np.int64)

            def run_rows(rows: Array | None) -> Recorded:
                return evaluation.run(resident, every if rows is None else rows)

            yield evaluation, run_rows
        return
    with closing(Reader(data)) as first:
        sample = first.sample_unless(stopped)
        if sample is None:
            yield None
            return
        size = batch_size if data.regroup else len(sample)
        with Evaluation(parameters, sample, loss, metrics, size, **how) as evaluation:
            readers = [first]

            def run(_: Array | None) -> Recorded:
                reader = readers.pop() if readers else Reader(data)
                return evaluation.run_stream(reader, data.steps_per_epoch, stopped)

            yield evaluation, run


def _checked(recorded: Recorded, name: str, dataset: Dataset | None = None) -> Recorded:
    """Warns if the loss of that name is NaN or infinite, and says for which examples."""
    if not math.isfinite(recorded.loss):
        bad, where = np.flatnonzero(~np.isfinite(recorded.losses)), ""
        if bad.size:
            end = int(recorded.examples[: bad[0] + 1].sum())
            where = (
                f", first in the batch of examples {end - recorded.examples[bad[0]]} to {end - 1}"
            )
        fault = ALL_FINITE if dataset is None else fault_of(dataset)
        if fault == ALL_FINITE:
            fault = "look for values that overflow, weights that are all 0, and ignored targets"
        warn(f"{name} is {recorded.loss}{where}: {fault}")
    return recorded


def summary(recorded: Recorded, metrics: Sequence[Metric]) -> dict[str, Any]:
    """The loss over all examples, and metrics, by name.

    The norm of gradients is the mean over batches.
    """
    row: dict[str, Any] = {"loss": recorded.loss, **recorded.losses_by_output}
    names = names_of(row, metrics)
    for number, (name, metric) in enumerate(zip(names, metrics, strict=True)):
        prefix = f"metric{number}."
        sums = {
            key.removeprefix(prefix): values
            if key in recorded.kept
            else values.sum(axis=0, dtype=np.float64)
            for key, values in recorded.statistics.items()
            if key.startswith(prefix)
        }
        row[name] = metric.result(sums)
    norms = recorded.statistics.get(GRADIENT_NORM)
    if norms is not None:
        row[GRADIENT_NORM] = float(norms.mean(dtype=np.float64))
    return row


def directions_of(outputs: Iterable[str], metrics: Sequence[Metric]) -> dict[str, bool | None]:
    """The names of measures, and whether smaller values are better; None if nobody says.

    Args:
        outputs: those with losses by output.
    """
    losses: dict[str, bool | None] = dict.fromkeys(["loss", *(f"{n}_loss" for n in outputs)], True)
    says = [getattr(metric, "smaller_is_better", None) for metric in metrics]
    return losses | dict(zip(names_of(losses, metrics), says, strict=True))


def names_of(losses: Iterable[str], metrics: Sequence[Metric]) -> list[str]:
    """The names of metrics next to such losses; a repeated name gets the metric's number."""
    taken = list(losses)
    first = len(taken)
    for number, metric in enumerate(metrics):
        name = metric.name
        while name in taken:
            name = f"{name}_{number}"
        taken.append(name)
    return taken[first:]


@final
class Evaluation(BatchRunner):
    """Loss and metrics of a model on data, in inference mode."""

    _program_name = "evaluation"

    def __init__(
        self,
        parameters: Parameters,
        dataset: Dataset,
        loss: Loss,
        metrics: Sequence[Metric],
        batch_size: int = BATCH_SIZE,
        *,
        own_inputs: bool = False,
    ) -> None:
        super().__init__(parameters, loss, dataset, batch_size)
        self._own_inputs = own_inputs
        self._shared = parameters.with_random_state()
        self._graph = evaluation_graph(self._batch, loss, metrics)

    def run(self, resident: Examples, rows: Array) -> Recorded:
        """Evaluates examples of an uploaded data set in this order; perhaps for each member."""
        groups = batches_of_rows(rows, self.batch_size)
        if not isinstance(resident, Streamed):
            return self._run_batches(resident, *groups)
        return joined([self._run_batches(*group) for group in self.in_order(resident, groups)])

    def of_members(
        self, members: Sequence[int], run: _Run, subsets: Sequence[Array] | None = None
    ) -> dict[int, Recorded]:
        """Evaluates some members of a population, on all examples or on their subsets of them.

        Nothing is recorded if it stops before the first batch.
        """
        numbers, recorded_of = np.array(members, np.int64), dict[int, Recorded]()
        lengths = [0 if subsets is None else len(subsets[number]) for number in members]
        for group in equal_members(lengths):
            self._running = numbers[group]
            running: list[int] = self._running.tolist()
            rows = None if subsets is None else np.stack([subsets[number] for number in running])
            recorded = run(rows)
            if len(recorded.examples):
                recorded_of |= {n: recorded.of_member(at) for at, n in enumerate(running)}
        return recorded_of

    def run_stream(self, reader: Reader, steps: int | None, stopped: Stopped) -> Recorded:
        """Evaluates the examples of a stream, in their order, and closes its reader."""
        with closing(reader):
            sample = reader.sample_unless(stopped)
            if sample is None:
                return joined([])
            with self.fed(reader, sample, steps=steps) as feed:
                return joined([self._run_batches(*group) for group in feed.groups(steps, stopped)])
