"""The user's FILE.py: network, loss, optimizer and more, as names at its top level."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import click

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import DTypeLike
from lamina.checks.kinds import Misfit, ModelType, refusal
from lamina.cli.errors import USER_FILE
from lamina.errors import DefinitionError, DTypeError
from lamina.foreign import nearest
from lamina.layers.layer import Layer
from lamina.learning.by_output import ByOutput, as_loss, as_metrics, terms_of
from lamina.learning.losses import Loss as KnownLoss
from lamina.learning.optimizers import Adam
from lamina.learning.protocols import Loss, Metric, Optimizer
from lamina.network import Network
from lamina.step.precision import ProductPrecision

BATCH_SIZE = 32
EPOCHS = 10
# The names that are read, besides `net`.
_NAMES = ("loss", "optimizer", "metrics", "batch_size", "epochs", "dtype", "precision")


@frozen_dataclass
class Definition:
    """The definitions at the top level of a file, under their names there; `network` is `net`."""

    path: str
    network: Network
    loss: Loss | None
    optimizer: Optimizer
    metrics: tuple[Metric, ...]
    batch_size: int
    epochs: int
    dtype: DTypeLike = "float32"
    precision: str = "float32"

    def types(self, dtype: DTypeLike | None, precision: str | None) -> dict[str, Any]:
        """The arguments of `Model` that choose its precision; options override the file's."""
        return {"dtype": dtype or self.dtype, "precision": precision or self.precision}

    def required_loss(self) -> Loss:
        """The loss; raises DefinitionError if the file defines none."""
        if self.loss is None:
            raise DefinitionError(
                "the file defines no loss",
                where=self.path,
                advice="Add one at its top level: loss = lm.CrossEntropy()",
            )
        return self.loss

    def check_loss(self) -> None:
        """Checks that the loss fits the network, if there is one.

        A loss that is a function of the user's is not checked: its targets are not known.
        """
        terms = () if self.loss is None else terms_of(self.loss, self.network.output_names)
        if terms and all(isinstance(term.loss, KnownLoss) for term in terms):
            self.network.plan(1, self.loss, self.optimizer)


def read_definition(path: str) -> Definition:
    """Runs the file and reads `net` and the other names from it.

    It runs as a separate module: `__name__` is not `"__main__"`. It may import modules of its
    folder.
    """
    names = _run(path)
    _check_spellings(path, names)
    network = names.get("net")
    if not isinstance(network, Network):
        others = [name for name, value in names.items() if isinstance(value, Network)]
        assignment = f"net = {_kind(names['net'])}" if "net" in names else "no net"
        advice = "Add at its top level: net = lm.Sequential(lm.Input(784), lm.Linear(10))"
        models = [n for n, v in names.items() if isinstance(getattr(v, "network", None), Network)]
        if models:
            advice = f"Add at the end of the file: net = {models[0]}.network"
        if others:
            advice = f"The file defines {' and '.join(others)}: name the network net."
        facts = (("expected", "net = a Network"), ("found", assignment))
        raise DefinitionError("the file defines no network", facts=facts, advice=advice, where=path)
    loss, optimizer = _loss(path, names.get("loss")), names.get("optimizer")
    is_optimizer = hasattr(optimizer, "slots") and hasattr(optimizer, "update")
    if optimizer is not None and (isinstance(optimizer, type) or not is_optimizer):
        raise _wrong(path, "optimizer", optimizer, "lm.Adam(1e-3)")
    batch_size, epochs = names.get("batch_size", BATCH_SIZE), names.get("epochs", EPOCHS)
    return Definition(
        path,
        network,
        loss,
        Adam() if optimizer is None else optimizer,
        _metrics(path, names.get("metrics", ())),
        _count(path, "batch_size", batch_size),
        _count(path, "epochs", epochs),
        *_precisions(path, names.get("dtype", "float32"), names.get("precision", "float32")),
    )


def _check_spellings(path: str, names: Mapping[str, Any]) -> None:
    """Raises DefinitionError for a name like one that the file does not define."""
    missing = [name for name in _NAMES if name not in names]
    for name, value in names.items():
        meant = nearest(name, missing, 0.85)
        if meant and not isinstance(value, type | ModuleType):
            raise DefinitionError(
                f"the name {name} is not read",
                facts=(("expected", meant), ("found", f"{name} = {_kind(value)}")),
                where=path,
                advice=f"Name it {meant}; if it is something else, give it another name.",
            )


def read_layers(path: str) -> list[type[Layer]]:
    """The layer classes that the file defines, for a model file with layers of the user's own."""
    values = (value for value in _run(path).values() if isinstance(value, type))
    return [cls for cls in values if issubclass(cls, Layer) and cls is not Layer]


def _run(path: str) -> Mapping[str, Any]:
    click.get_current_context().meta[USER_FILE] = path
    folder = str(Path(path).resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    # Before Python 3.11.4 its compiler raises ValueError for them.
    if b"\0" in Path(path).read_bytes():
        raise SyntaxError("source code cannot contain null bytes")
    return runpy.run_path(path, run_name="lamina_definition")


def _wrong(path: str, name: str, value: object, expected: str, advice: str = "") -> DefinitionError:
    if not advice and isinstance(value, type):
        advice = f"It is the class; make one of it: {name} = lm.{value.__name__}(...)"
    return DefinitionError(
        f"{name} has a wrong value",
        facts=(("expected", expected), ("found", _kind(value))),
        where=path,
        advice=advice or f"Write for example: {name} = {expected}",
    )


def _kind(value: object) -> str:
    if isinstance(value, bool | int | float | str):
        return repr(value)
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def _loss(path: str, value: Any) -> Loss | None:
    if isinstance(value, dict | list):
        value = as_loss(value)
    is_loss = callable(value) or isinstance(value, ByOutput)
    if value is not None and (isinstance(value, type) or not is_loss):
        raise _wrong(path, "loss", cast(object, value), "lm.CrossEntropy()")
    return cast(Loss | None, value)


def _metrics(path: str, value: Any) -> tuple[Metric, ...]:
    if isinstance(value, list | tuple):
        metrics = tuple(cast(list[Any], value))
        # A function may be a metric too.
        fitting = (callable(metric) or hasattr(metric, "statistics") for metric in metrics)
        if all(fitting) and not any(isinstance(metric, type) for metric in metrics):
            return as_metrics(metrics)
    if isinstance(value, dict):
        return as_metrics(value)
    raise _wrong(path, "metrics", cast(object, value), "[lm.Accuracy()]")


def _precisions(path: str, dtype: Any, products: Any) -> tuple[DTypeLike, str]:
    try:
        return ModelType().read(dtype), ProductPrecision().read(products)
    except DTypeError as error:
        raise error.at(f"{path}, dtype") from None
    except Misfit as misfit:
        raise refusal(misfit, "precision", products, where=path) from None


def _count(path: str, name: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    digits = value.strip() if isinstance(value, str) else ""
    advice = f"Write for example: {name} = {BATCH_SIZE}"
    if digits.isdecimal():
        advice = f"Write {name} = {digits}, without quotes."
    raise _wrong(path, name, cast(object, value), "a whole number above zero", advice)
