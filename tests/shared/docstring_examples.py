"""Valid calls of public classes, from the examples in their docstrings."""

import contextlib
import doctest
import inspect
import io
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina.checks import Called

# Of classes whose docstring has no example, and that one input of 10 features does not suit.
SIBLINGS = {
    f"{kind}{rank}d": f"lm.{kind}{rank}d({sizes})(lm.Input(4, {'8, ' * rank}))"
    for rank in (1, 3)
    for kind, sizes in {
        "Conv": "4, 3",
        "ConvTranspose": "4, 3, stride=2",
        **dict.fromkeys(("AvgPool", "MaxPool", "LPPool"), "2"),
    }.items()
} | {"Threshold": "lm.Threshold(0.1, 0.0)(lm.Input(10))"}


@dataclass(frozen=True)
class Example:
    """The first object of a class that the example in its docstring makes.

    Attributes:
        arguments: with which it is made, by the name of the parameter.
        made: the object.
        operands: to which it is applied first; none if it is not applied.
    """

    arguments: Mapping[str, Any]
    made: Any
    operands: tuple[Any, ...]


@cache
def example_of(cls: type) -> Example:
    """The example of a class.

    Raises:
        AssertionError: if its docstring makes no object of it.
    """
    made: list[tuple[Mapping[str, Any], Any]] = []
    operands: list[tuple[Any, ...]] = []
    make, apply = Called.__call__, inspect.getattr_static(cls, "__call__", None)

    def making(kind: Any, *values: Any, **options: Any) -> Any:
        instance = make(kind, *values, **options)
        if kind is cls:
            made.append((inspect.signature(cls).bind(*values, **options).arguments, instance))
        return instance

    def applying(self: Any, *values: Any, **options: Any) -> Any:
        if type(self) is cls:
            operands.append(values)
        return apply(self, *values, **options)

    source = doctest.DocTestParser().get_examples(inspect.getdoc(cls) or "")
    if not source:  # as for its siblings
        usual = f"lm.{cls.__name__}()(lm.Input(10))"
        source = [doctest.Example(SIBLINGS.get(cls.__name__, usual), "")]
    with pytest.MonkeyPatch.context() as patches, contextlib.redirect_stdout(io.StringIO()):
        patches.setattr(Called, "__call__", making)
        if apply is not None:
            patches.setattr(cls, "__call__", applying)
        names = vars(sys.modules[cls.__module__]) | {"lm": lm, "np": np}
        for example in source:
            exec(compile(example.source, cls.__name__, "single"), names)
    assert made, f"the docstring of {cls.__name__} has no example that makes one"
    return Example(*made[0], (*operands, ())[0])


def inputs_like(operands: Any) -> Any:
    """Inputs of a network with the shapes and dtypes of tensors, which may be in tuples."""
    if isinstance(operands, list | tuple):
        return tuple(map(inputs_like, operands))
    return None if operands is None else lm.Input(*operands.shape[1:], dtype=operands.dtype)
