"""Evaluation: loss and metrics of a model on a data set, in inference mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from lamina.data import Dataset
from lamina.derive import GRADIENT_NORM, evaluation_graph
from lamina.protocols import Loss, Metric
from lamina.runtime import Parameters
from lamina.runtime.parameters import with_random_state
from lamina.training.batches import BatchRunner, Examples, Recorded, batches_of_rows, joined

# The default number of examples in a batch.
BATCH_SIZE = 256


def evaluate(
    parameters: Parameters,
    dataset: Dataset,
    loss: Loss,
    metrics: Sequence[Metric],
    batch_size: int = BATCH_SIZE,
) -> dict[str, Any]:
    """Loss and metrics on a data set, by name: floats, or arrays such as a confusion matrix."""
    evaluation = Evaluation(parameters, dataset, loss, metrics, batch_size)
    try:
        with evaluation.uploaded(dataset) as resident:
            recorded = evaluation.run(resident, len(dataset))
    finally:
        evaluation.release()
    return summary(recorded, metrics)


def summary(recorded: Recorded, metrics: Sequence[Metric]) -> dict[str, Any]:
    """The loss over all examples, and metrics, by name; a repeated name gets a number.

    The norm of gradients is the mean over batches.
    """
    row: dict[str, Any] = {"loss": recorded.loss}
    for number, metric in enumerate(metrics):
        prefix = f"metric{number}."
        sums = {
            name.removeprefix(prefix): values.sum(axis=0, dtype=np.float64)
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
        dataset: has the dtypes of the inputs and the shapes and dtypes of the targets.
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
        super().__init__(parameters, loss, dataset, min(batch_size, len(dataset)))
        self._shared = with_random_state(parameters)
        self._graph = evaluation_graph(
            parameters.network,
            loss,
            self._targets,
            dtype=parameters.dtype,
            rounding=parameters.rounding,
            metrics=metrics,
            input_dtypes=self._input_dtypes,
        )

    def run(self, resident: Examples, examples: int) -> Recorded:
        """Evaluates all examples of an uploaded data set, in their order."""
        groups = batches_of_rows(np.arange(examples, dtype=np.int64), self.batch_size)
        groups = self._in_order(resident, groups)
        return joined([self._run_batches(resident, rows) for rows in groups])
