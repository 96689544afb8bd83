"""Graphs and programs of small networks, and the public names, as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import lamina as lm
from lamina.base.shapes import float32
from lamina.compiler.pipeline import compile_graph
from lamina.engines import DEFAULT_TARGET
from lamina.graph import show
from lamina.learning.protocols import TrainingOptions
from lamina.step.derive import (
    BatchGraph,
    BatchSpecs,
    default_targets,
    inference_graph,
    training_graph,
)

FOLDER = Path(__file__).parent
BATCH = 32


def _mlp() -> lm.Network:
    return lm.Sequential(lm.Input(8), lm.Linear(16), lm.ReLU(), lm.Linear(4))


def _training() -> BatchGraph:
    network, loss = _mlp(), lm.CrossEntropy()
    targets = default_targets(network, loss, float32)
    options = TrainingOptions(loss, lm.SGD(0.1, momentum=0.9))
    return training_graph(BatchSpecs(network, float32, targets=targets), options)


def _inference() -> BatchGraph:
    return inference_graph(BatchSpecs(_mlp(), float32))


# Where users find names. Names after "lm." are attributes; the others are modules to import.
_PLACES = (
    *("lamina", "lamina.data", "lamina.errors", "lamina.networks", "lamina.ops", "lamina.reports"),
    *("lamina.training", "lamina.training.callbacks", "lamina.training.losses", "lm.init"),
    *("lm.training.clipping", "lm.training.metrics", "lm.training.optimizers"),
    *("lm.training.schedules", "lm.training.history"),
)


def _public_names() -> str:
    """The names that users find, by their place."""
    lines: list[str] = []
    for place in _PLACES:
        attribute = place.startswith("lm.")
        found = attrgetter(place[3:])(lm) if attribute else import_module(place)
        names = getattr(found, "__all__", None) or (
            name
            for name, value in vars(found).items()
            if isinstance(value, type) and value.__module__.startswith("lamina.")
        )
        lines += sorted(f"{place}.{name}" for name in names if not name.startswith("_"))
    return "\n".join(lines)


TEXTS: Mapping[str, Callable[[], str]] = {
    "public_names.txt": _public_names,
    "mlp_graph.txt": lambda: show(_training().graph),
    "mlp_program.txt": lambda: str(
        compile_graph(_training().graph, batch=BATCH, name="training", target=DEFAULT_TARGET)
    ),
    "mlp_inference_program.txt": lambda: str(
        compile_graph(_inference().graph, batch=BATCH, name="inference", target=DEFAULT_TARGET)
    ),
}
