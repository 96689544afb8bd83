"""The tables, by the module or class that lacks the names."""

from __future__ import annotations

from collections.abc import Mapping

from lamina.elsewhere import functions, layers, objects, training


def _each(*tables: Mapping[str, str]) -> dict[str, str]:
    """The text of each single name; where two tables have it, the first counts."""
    every: dict[str, str] = {}
    for table in tables:
        for names, text in table.items():
            for name in names.split():
                every.setdefault(name, text)
    return every


# Functions that other packages have at the top level.
_IN_OPS = {name: f"lm.ops.{name}" for name in functions.IN_OPS.split()}
_LAYERS = _each(layers.LAYERS)
TABLES: dict[str, dict[str, str]] = {
    "lamina": _each(
        layers.LAYERS,
        training.LOSSES,
        training.OPTIMIZERS,
        training.METRICS,
        training.SCHEDULES,
        training.CALLBACKS,
        training.SAME_CALLBACKS,
        training.CLIPPING,
        training.REGULARISERS,
        functions.TOP,
        _IN_OPS,
    ),
    "lamina.layers": _LAYERS,
    "lamina.layers.init": _each(training.INITIALISERS),
    "lamina.training": _each(
        *(training.LOSSES, training.OPTIMIZERS, training.METRICS),
        *(training.CALLBACKS, training.SAME_CALLBACKS),
    ),
    "lamina.training.callbacks": _each(training.CALLBACKS),
    "lamina.learning.losses": _each(training.LOSSES),
    "lamina.learning.optimizers": _each(training.OPTIMIZERS),
    "lamina.learning.schedules": _each(training.SCHEDULES),
    "lamina.ops": _each(functions.OPS),
    "lamina.data": _each(functions.DATA),
    "lamina.networks": _each(layers.NETWORKS),
    "Model": _each(objects.MODEL),
    "Network": _each(objects.NETWORK),
    "Training": _each(objects.TRAINING),
    "Layer": _each(objects.LAYER),
    "Optimizer": _each(objects.OPTIMIZER),
    "Loss": _each(objects.LOSS),
    "DeferredLoss": _each(objects.DEFERRED_LOSS),
    "Metric": _each(objects.METRIC),
    "Schedule": _each(objects.SCHEDULE),
    "History": _each(objects.HISTORY),
    "Dataset": _each(objects.DATASET),
    "Tensor": _each(objects.TENSOR),
}
