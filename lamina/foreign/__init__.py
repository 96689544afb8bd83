"""What names of PyTorch, Keras, NumPy and scikit-learn are called here, for the advice of errors.

Comes in: a name. Leaves: advice. Read `names.txt` first: the table, loaded when an error needs it.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

# Below it, `Trainer` resembles `Linear`, and `KFold` resembles `Focal`.
_LIKENESS = 0.7
# Equal but for case and underscores, or a letter of many.
_SAME = 0.9


@cache
def spellings_by_owner() -> dict[str, dict[str, list[str]]]:
    """Lamina's spellings in the order of `names.txt`, by where a name is used and by the name."""
    table: dict[str, dict[str, list[str]]] = {}
    heading = ""
    for line in Path(__file__).with_name("names.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            heading = line[1:-1]
        elif line and not line.startswith("#"):
            where, names, here = [heading, *line.split(" | ")][-3:]
            several = [names] if names.startswith("(") else names.split()
            for owner, name in itertools.product(where.split(), several):
                entries = table.setdefault(owner, {}).setdefault(name, [])
                entries.append(here.replace("{}", name))
    return table


def spellings(where: str, name: str) -> list[str]:
    """Every spelling of a name here."""
    return spellings_by_owner().get(where, {}).get(name, [])


def spelling(where: Iterable[str], name: str) -> str:
    """A name's spelling by the first of these owners that lists it, or sentences; "" for none."""
    return next((found[0] for owner in where if (found := spellings(owner, name))), "")


def sentence(here: str) -> str:
    """A spelling as advice."""
    return here if here.endswith(".") or not here else f"Here it is {here}."


def nearest(name: str, names: Iterable[str], likeness: float = _LIKENESS) -> str:
    """The one of the names that is most like `name`; "" if none is like it.

    Case and underscores do not count, so that `Relu` resembles `ReLU` more than `Recall`.
    """
    # It takes longer to import than this package.
    from difflib import get_close_matches

    folded: dict[str, str] = {}
    for candidate in names:
        folded.setdefault(_folded(candidate), candidate)
    return next((folded[x] for x in get_close_matches(_folded(name), folded, 1, likeness)), "")


def _folded(name: str) -> str:
    return name.lower().replace("_", "")


def foreign_or_nearest(
    where: str, name: str, names: Iterable[str], likeness: float = _LIKENESS
) -> str:
    """The spelling of a foreign name here, or the nearest of the names; "" for none."""
    return spelling((where,), name) or nearest(name, names, likeness)


def did_you_mean(near: str) -> str:
    """The advice that names what is similar; "" for none."""
    return f"Did you mean {near!r}?" if near else ""


def unknown_attribute(owner: type | ModuleType, name: str) -> str:
    """The text of the error for an attribute that a module or the objects of a class lack."""
    is_module = isinstance(owner, ModuleType)
    kind = f"module {owner.__name__!r}" if is_module else f"{owner.__name__!r} object"
    problem = f"{kind} has no attribute {name!r}"
    if name.startswith("_"):
        return problem
    owners = [owner.__name__] if is_module else [base.__name__ for base in owner.__mro__]
    here = spelling(owners, name) or (_function(name) if "Tensor" in owners else "")
    if not here and owners == ["lamina.ops"]:  # a layer or a loss is a function there: logsigmoid
        exports = dir(sys.modules["lamina"])
        ours = {export.lower(): f"lm.{export}" for export in exports if not export.islower()}
        theirs = {word.lower(): texts[0] for word, texts in spellings_by_owner()["lamina"].items()}
        here = (theirs | ours).get(_folded(name), "")
    public = [attribute for attribute in dir(owner) if not attribute.startswith("_")]
    near = "" if here or not hasattr(owner, "__all__") else nearest(name, public)
    if not here and owners == ["lamina"] and _folded(near) != _folded(name):
        near = "" if (here := function_here(name)) else near
    if not here and not near:
        # A name of another framework, misspelt.
        elsewhere = {word for where in owners for word in spellings_by_owner().get(where, ())}
        here = spelling(owners, nearest(name, elsewhere, _SAME))
    advice = did_you_mean(near) or sentence(here)
    return f"{problem}. {advice}" if advice else problem


def function_here(name: str) -> str:
    """The function of tensors that PyTorch or NumPy calls by this name; "" for none."""
    return spelling(["lamina.ops"], name) or (f"lm.ops.{name}" if _op(name) is not None else "")


def _function(name: str) -> str:
    """The call of the function of tensors of this name."""
    function = _op(name)
    if function is None:
        return function_here(name)
    parameters = [*inspect.signature(function).parameters.values()]
    names = [p.name for n, p in enumerate(parameters) if n == 0 or p.default is p.empty]
    called = {"left": "x", "right": "y"}
    return f"lm.ops.{name}({', '.join(called.get(operand, operand) for operand in names)})"


# The methods of classes that are meant by words, as Keras takes them.
_METHODS = {"loss": ["measured"], "optimizer": ["slots"], "metric": ["statistics", "measured"]}
_METHODS["metrics"] = _METHODS["metric"]


def word_here(word: str, kind: str) -> str:
    """The call of the loss, optimizer or metric that a word means: `"mse"`; "" for none."""
    package, call = sys.modules["lamina"], spelling([f"{kind}="], word.lower())
    for method in _METHODS.get(kind, ()):
        names = (export for export in dir(package) if _folded(export) == _folded(word))
        called = (f"lm.{export}()" for export in names if hasattr(getattr(package, export), method))
        call = call or next(called, "")
    return call


def _op(name: str) -> Callable[..., Any] | None:
    """The function in `lamina.ops`."""
    function = getattr(sys.modules["lamina"].ops, name, None)
    return function if callable(function) else None


_FRAMEWORKS = {
    *("torch", "torchvision", "torchmetrics", "keras", "tf_keras", "tensorflow", "sklearn"),
    *("jax", "flax", "optax"),
}


def _is_foreign(value: object) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] in _FRAMEWORKS


def advice_on_object(value: object) -> str:
    """What an object of another framework, or its class, is called here; "" for all others."""
    cls = value if isinstance(value, type) else type(value)
    for name in [base.__name__ for base in cls.__mro__ if _is_foreign(base)]:
        here = spelling(["lamina"], name)
        if here or hasattr(sys.modules["lamina"], name):
            return sentence(here or f"lm.{name}")
    return ""


def is_foreign_function(value: object) -> bool:
    """Whether it is a function of another framework, such as accuracy_score of scikit-learn."""
    return isinstance(value, FunctionType) and _is_foreign(value)
