"""Evaluation: loss and metrics of a model on a data set, in inference mode."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, final

import numpy as np

from lamina.data import Dataset, Stream
from lamina.data.background import Reader
from lamina.data.stream import STEP_EXAMPLES
from lamina.derive import GRADIENT_NORM, evaluation_graph
from lamina.objective.protocols import Loss, Metric
from lamina.runtime import Parameters
from lamina.runtime.feeds import Stopped
from lamina.runtime.parameters import with_random_state
from lamina.training.batches import BatchRunner, Examples, Recorded, joined
from lamina.training.order import batches_of_rows

# The default number of examples in a batch.
BATCH_SIZE = STEP_EXAMPLES


def evaluate(
    parameters: Parameters,
    data: Dataset | Stream,
    loss: Loss,
    metrics: Sequence[Metric],
    batch_size: int = BATCH_SIZE,
) -> dict[str, Any]:
    """Loss and metrics on data, by name: floats, or arrays such as a confusion matrix."""
    with evaluating(parameters, data, loss, metrics, batch_size) as measure:
        return summary(measure(lambda: False), metrics)


@contextmanager
def evaluating(
    parameters: Parameters,
    data: Dataset | Stream,
    loss: Loss,
    metrics: Sequence[Metric],
    batch_size: int = BATCH_SIZE,
) -> Generator[Callable[[Stopped], Recorded]]:
    """A function that evaluates a model on data, as often as it is called within the block.

    It takes a function that returns whether to end early. A stream is read anew for each call.
    """
    first = Reader(data) if isinstance(data, Stream) else None
    evaluation = None
    try:
        sample = data if isinstance(data, Dataset) else first.sample() if first else None
        assert sample is not None
        regrouped = isinstance(data, Dataset) or data.regroup
        size = batch_size if regrouped else len(sample)
        if isinstance(data, Dataset):
            evaluation = Evaluation(parameters, data, loss, metrics, min(size, len(data)))
            with evaluation.uploaded(data) as resident:
                yield lambda stopped: evaluation.run(resident, len(data))
            return
        evaluation = Evaluation(parameters, sample, loss, metrics, size)
        readers = [first]

        def measure(stopped: Stopped) -> Recorded:
            reader = (readers.pop() if readers else None) or Reader(data)
            return evaluation.run_stream(reader, data.steps_per_epoch, stopped)

        yield measure
    finally:
        if first is not None:
            first.close()
        if evaluation is not None:
            evaluation.release()


def summary(recorded: Recorded, metrics: Sequence[Metric]) -> dict[str, Any]:
    """The loss over all examples, and metrics, by name; a repeated name gets a number.

    The norm of gradients is the mean over batches.
    """
    row: dict[str, Any] = {"loss": recorded.loss, **recorded.losses_by_output}
    for number, metric in enumerate(metrics):
        prefix = f"metric{number}."
        sums = {
            name.removeprefix(prefix): values
            if name in recorded.kept
            else values.sum(axis=0, dtype=np.float64)
            for name, values in recorded.statistics.items()
            if name.startswith(prefix)
        }
        name = f"{metric.name}_{number}" if metric.name in row else metric.name
        row[name] = metric.result(sums)
    norms = recorded.statistics.get(GRADIENT_NORM)
    if norms is not None:
        row[GRADIENT_NORM] = float(norms.mean(dtype=np.float64))
    return row


@final
class Evaluation(BatchRunner):
    """Loss and metrics of a model on data, in inference mode.

    Args:
        parameters: of the model.
        dataset: has the dtypes of the inputs, the shapes and dtypes of the targets and weights.
        loss, metrics: to compute.
        batch_size: the largest number of examples in a batch.
    """

    _program_name = "evaluation"

    def __init__(
        self,
        parameters: Parameters,
        dataset: Dataset,
        loss: Loss,
        metrics: Sequence[Metric],
        batch_size: int = BATCH_SIZE,
    ) -> None:
        super().__init__(parameters, loss, dataset, batch_size)
        self._shared = with_random_state(parameters)
        self._graph = evaluation_graph(
            parameters.network,
            loss,
            self._arrays.targets,
            dtype=parameters.dtype,
            rounding=parameters.rounding,
            metrics=metrics,
            weights=self._arrays.weights,
            input_dtypes=self._arrays.input_dtypes,
        )

    def run(self, resident: Examples, examples: int) -> Recorded:
        """Evaluates all examples of an uploaded data set, in their order."""
        groups = batches_of_rows(np.arange(examples, dtype=np.int64), self.batch_size)
        groups = self.in_order(resident, groups)
        return joined([self._run_batches(resident, rows) for rows in groups])

    def run_stream(self, reader: Reader, steps: int | None, stopped: Stopped) -> Recorded:
        """Evaluates the examples of a stream, in their order, and closes its reader.

        Args:
            reader: of the stream.
            steps: the most batches; None for all up to the end.
            stopped: whether to end early.
        """
        try:
            sample = reader.sample()
            with self.fed(reader, sample, steps=steps) as feed:
                groups = feed.groups(steps, stopped)
                return joined([self._run_batches(resident, rows) for resident, rows in groups])
        finally:
            reader.close()
