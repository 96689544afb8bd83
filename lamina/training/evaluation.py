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
from lamina.training.epochs import ALL_FINITE, batches_of_rows, fault_of

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
    if isinstance(data, Dataset):
        size = min(batch_size, len(data))
        with (
            Evaluation(parameters, data, loss, metrics, size) as evaluation,
            evaluation.uploaded(data) as resident,
        ):
            yield lambda: _checked(evaluation.run(resident, len(data)), measured, data)
        return
    with closing(Reader(data)) as first:
        sample = first.sample_unless(stopped)
        if sample is None:
            yield None
            return
        size = batch_size if data.regroup else len(sample)
        with Evaluation(parameters, sample, loss, metrics, size) as evaluation:
            readers = [first]

            def measure() -> Recorded:
                reader = readers.pop() if readers else Reader(data)
                recorded = evaluation.run_stream(reader, data.steps_per_epoch, stopped)
                return recorded if stopped() else _checked(recorded, measured)

            yield measure


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

    def run(self, resident: Examples, examples: int) -> Recorded:
        """Evaluates all examples of an uploaded data set, in their order."""
        groups = batches_of_rows(np.arange(examples, dtype=np.int64), self.batch_size)
        if not isinstance(resident, Streamed):
            return self._run_batches(resident, *groups)
        return joined([self._run_batches(*group) for group in self.in_order(resident, groups)])

    def run_members(
        self,
        resident: Examples,
        examples: int,
        members: Sequence[int],
        subsets: Sequence[Array] | None = None,
    ) -> dict[int, Recorded]:
        """Evaluates some members of a population, on all examples or on their subsets of them."""
        if subsets is None:
            self._running = np.array(members, np.int64)
            recorded = self.run(resident, examples)
            return {number: recorded.of_member(n) for n, number in enumerate(members)}
        recorded_of: dict[int, Recorded] = {}
        numbers, lengths = np.array(members, np.int64), [len(subsets[n]) for n in members]
        for length in sorted(set(lengths)):
            self._running = group = numbers[np.array(lengths) == length]
            of_group: list[int] = group.tolist()
            rows = np.stack([subsets[number] for number in of_group])
            groups = batches_of_rows(rows, self.batch_size)
            recorded = self._run_batches(resident, *groups)
            recorded_of |= {n: recorded.of_member(at) for at, n in enumerate(of_group)}
        return recorded_of

    def run_stream(self, reader: Reader, steps: int | None, stopped: Stopped) -> Recorded:
        """Evaluates the examples of a stream, in their order, and closes its reader."""
        with closing(reader):
            sample = reader.sample_unless(stopped)
            if sample is None:
                return joined([])
            with self.fed(reader, sample, steps=steps) as feed:
                return joined([self._run_batches(*group) for group in feed.groups(steps, stopped)])
