"""Graphs and programs of small networks, the public names, and what parameters take, as text."""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

from harness import training_step

import lamina as lm
from lamina.base.shapes import float32
from lamina.checks.calls import _kinds_of, _kinds_of_class
from lamina.checks.kinds import Kind, Misfit
from lamina.compiler.pipeline import compile_graph
from lamina.engines import DEFAULT_TARGET
from lamina.errors import LaminaError
from lamina.graph import show
from lamina.step.derive import BatchGraph, BatchSpecs, inference_graph

FOLDER = Path(__file__).parent
BATCH = 32


def _mlp() -> lm.Network:
    return lm.Sequential(lm.Input(8), lm.Linear(16), lm.ReLU(), lm.Linear(4))


def _training() -> BatchGraph:
    return training_step(_mlp(), lm.CrossEntropy(), lm.SGD(0.1, momentum=0.9))


def _program(name: str, made: BatchGraph) -> str:
    return str(compile_graph(made.graph, batch=BATCH, name=name, target=DEFAULT_TARGET))


# Where users find names. Names after "lm." are attributes; the others are modules to import.
_PLACES = (
    *("lamina", "lamina.data", "lamina.errors", "lamina.networks", "lamina.ops", "lamina.reports"),
    *("lamina.training", "lamina.training.callbacks", "lamina.training.losses", "lm.init"),
    *("lm.training.clipping", "lm.training.metrics", "lm.training.optimizers"),
    *("lm.training.schedules", "lm.training.history"),
)


def _public() -> dict[str, Any]:
    """What users find, by its place and name."""
    everything: dict[str, Any] = {}
    for place in _PLACES:
        attribute = place.startswith("lm.")
        namespace = attrgetter(place[3:])(lm) if attribute else import_module(place)
        names = getattr(namespace, "__all__", None) or (
            name
            for name, value in vars(namespace).items()
            if isinstance(value, type) and value.__module__.startswith("lamina.")
        )
        public = sorted(name for name in names if not name.startswith("_"))
        everything |= {f"{place}.{name}": getattr(namespace, name) for name in public}
    return everything


def _parameters() -> str:
    """What parameters of public classes and functions take, as errors say it."""
    lines: list[str] = []
    seen: set[Any] = set()
    for name, member in _public().items():
        if member not in seen and not name.startswith(("lamina.ops", "lamina.errors")):
            is_class = isinstance(member, type)
            kinds = _kinds_of_class(member) if is_class else _kinds_of(inspect.unwrap(member))
            shown = {n: kind.of_class(member) if is_class else kind for n, kind in kinds.items()}
            arguments = sorted(n for n in shown if n[0] != "_" and n not in ("name", "return"))
            lines += [f"{name}, {n}: {_taken(shown[n])}" for n in arguments]
        seen.add(member)
    return "\n".join(lines)


def _taken(kind: Kind) -> str:
    try:
        kind.read(object())
    except Misfit as misfit:
        return f"{misfit.expected} ({misfit.example})"
    except LaminaError as error:
        return error.facts[0][1]
    return "anything"


TEXTS: Mapping[str, Callable[[], str]] = {
    "public_names.txt": lambda: "\n".join(_public()),
    "parameters.txt": _parameters,
    "mlp_graph.txt": lambda: show(_training().graph),
    "mlp_program.txt": lambda: _program("training", _training()),
    "mlp_inference_program.txt": lambda: _program(
        "inference", inference_graph(BatchSpecs(_mlp(), float32))
    ),
}
