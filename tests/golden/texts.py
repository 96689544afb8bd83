"""Graphs and programs of small networks, as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import lamina as lm
from lamina.base.shapes import float32
from lamina.compiler.pipeline import compile_graph
from lamina.engines import DEFAULT_TARGET
from lamina.graph import show
from lamina.learning.protocols import TrainingOptions
from lamina.step.derive import BatchGraph, default_targets, inference_graph, training_graph

FOLDER = Path(__file__).parent
BATCH = 32


def _mlp() -> lm.Network:
    return lm.Sequential(lm.Input(8), lm.Linear(16), lm.ReLU(), lm.Linear(4))


def _training() -> BatchGraph:
    network, loss = _mlp(), lm.CrossEntropy()
    targets = default_targets(network, loss, float32)
    options = TrainingOptions(loss, lm.SGD(0.1, momentum=0.9))
    return training_graph(network, options, targets, dtype=float32)


def _inference() -> BatchGraph:
    return inference_graph(_mlp(), dtype=float32)


TEXTS: Mapping[str, Callable[[], str]] = {
    "mlp_graph.txt": lambda: show(_training().graph),
    "mlp_program.txt": lambda: str(
        compile_graph(_training().graph, batch=BATCH, name="training", target=DEFAULT_TARGET)
    ),
    "mlp_inference_program.txt": lambda: str(
        compile_graph(_inference().graph, batch=BATCH, name="inference", target=DEFAULT_TARGET)
    ),
}
