"""The value of a metric over batches."""

from typing import Any

import numpy as np

from lamina.base.shapes import BATCH, as_dtype
from lamina.graph import Graph, bind_batch, evaluate, leaf
from lamina.learning import metrics


def measured(
    metric: metrics.Metric,
    prediction: np.ndarray,
    target: np.ndarray,
    weights: np.ndarray | None = None,
) -> Any:
    """The metric over batches of 7 examples: sums are added, rows are kept."""
    arrays = {"x": prediction, "y": target} | (
        {} if weights is None else {"w": weights.astype(prediction.dtype)}
    )
    leaves = {
        name: leaf(name, "input", (BATCH, *a.shape[1:]), as_dtype(a.dtype))
        for name, a in arrays.items()
    }
    options = {} if weights is None else {"weights": leaves["w"]}
    statistics = metric.statistics(leaves["x"], leaves["y"], **options)
    assert all(tensor.dtype == leaves["x"].dtype for tensor in statistics.values())
    graph = Graph(tuple(leaves.values()), tuple(statistics.items()))
    parts: dict[str, list[np.ndarray]] = {name: [] for name in statistics}
    for start in range(0, len(prediction), 7):
        piece = {name: a[start : start + 7] for name, a in arrays.items()}
        outputs, _ = evaluate(bind_batch(graph, len(piece["x"])), piece)
        for name in parts:
            parts[name].append(outputs[name].astype(np.float64))
    rows = {name for name, tensor in statistics.items() if tensor.shape[:1] == (BATCH,)}
    return metric.result(
        {name: np.concatenate(a) if name in rows else sum(a) for name, a in parts.items()}
    )
