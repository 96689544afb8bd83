"""Hyper-parameters: numbers that are inputs of a program, so that other values compile nothing.

Optimizers, schedules, clipping and penalties are records with numbers. While the graph of a
training step is derived, `Hyperparameters.of` replaces these numbers by numbers with names.
Formulas calculate with them in double precision and compare them, as with any numbers. Where such
a number meets a tensor, it becomes a leaf instead of a constant. The leaf's name is the formula,
`"(1.0 - optimizer/beta1)"`. So the graph has no values, and does not depend on which numbers happen
to be equal.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast, final

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import DType
from lamina.graph.leaves import LEAF
from lamina.graph.tensor import Tensor

_Record = TypeVar("_Record")
# Longer names of formulas are shortened to a checksum.
_LONGEST_NAME = 200
_SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "pow": "**"}


class Hyperparameter:
    """A number with a name: a field of a record, or the result of a formula of such fields.

    Attributes:
        name: the name of the leaf that it becomes.
        sources: the names of the fields on which it depends.
    """

    name: str
    sources: frozenset[str]
    _owner: Hyperparameters
    # The last function of the formula and its operands; None for a field.
    _formula: tuple[Callable[..., float], tuple[float, ...]] | None

    def leaf(self, dtype: DType) -> Tensor:
        """The leaf of the graph that has this value."""
        return self._owner.leaf(self, dtype)

    def with_values(self, values: Mapping[str, float]) -> float:
        """The number that follows from other values of fields, by their names."""
        if self._formula is None:
            return values.get(self.name, _plain(cast(float, self)))
        function, operands = self._formula
        return function(*(_with_values(x, values) for x in operands))


@final
class _Float(Hyperparameter, float):
    pass


@final
class _Whole(Hyperparameter, int):
    pass


def _plain(number: float) -> float:
    return float(number) if isinstance(number, float) else int(number)


def _made(
    value: float,
    name: str,
    owner: Hyperparameters,
    sources: frozenset[str],
    formula: tuple[Callable[..., float], tuple[float, ...]] | None = None,
) -> Any:
    made = _Float(value) if isinstance(value, float) else _Whole(value)
    made.name, made.sources = name, sources
    made._owner, made._formula = owner, formula  # pyright: ignore[reportPrivateUsage]
    return made


def of_numbers(function: Callable[..., float], *numbers: float) -> float:
    """`function(*numbers)`, a hyper-parameter if one of the numbers is: `math.log` of beta."""
    value = function(*map(_plain, numbers))
    named = [x for x in numbers if isinstance(x, Hyperparameter)]
    if not named or not isinstance(cast(object, value), int | float):
        return value
    words = [x.name if isinstance(x, Hyperparameter) else repr(x) for x in numbers]
    symbol = _SYMBOLS.get(function.__name__)
    name = (
        f"({f' {symbol} '.join(words)})" if symbol else f"{function.__name__}({', '.join(words)})"
    )
    if len(name) > _LONGEST_NAME:
        name = f"formula {hashlib.sha256(name.encode()).hexdigest()}"
    sources = frozenset[str]().union(*(x.sources for x in named))
    owner = named[0]._owner  # pyright: ignore[reportPrivateUsage]
    return _made(value, name, owner, sources, (function, numbers))


def _method(function: Callable[..., float], *, is_reflected: bool = False) -> Callable[..., Any]:
    def method(self: float, *others: Any) -> Any:
        if not all(isinstance(other, int | float) for other in others):
            # A tensor makes a leaf of this number.
            return NotImplemented
        numbers = (self, *others)
        return of_numbers(function, *(numbers[::-1] if is_reflected else numbers))

    return method


def _comparison(function: Callable[..., bool]) -> Callable[..., Any]:
    def method(self: Any, *others: Any) -> Any:
        if not all(isinstance(other, int | float) for other in others):
            return NotImplemented
        result = function(*map(_plain, (self, *others)))
        names = [x.name if isinstance(x, Hyperparameter) else x for x in (self, *others)]
        decisions = self._owner.decisions
        decisions.setdefault((function, *names), Decision(function, (self, *others), result))
        return result

    return method


_comparisons = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
for _name, _compare in (_comparisons | {"bool": operator.truth}).items():
    setattr(Hyperparameter, f"__{_name}__", _comparison(_compare))
for _name in (*_SYMBOLS, "mod", "neg", "abs"):
    _function: Callable[..., float] = getattr(operator, _name)
    setattr(Hyperparameter, f"__{_name}__", _method(_function))
    if _name not in ("neg", "abs"):
        setattr(Hyperparameter, f"__r{_name}__", _method(_function, is_reflected=True))


@frozen_dataclass
class Decision:
    """A comparison of hyper-parameters on which a graph depends.

    Attributes:
        operands: hyper-parameters and numbers.
        result: what `function` returned for them.
    """

    function: Callable[..., bool]
    operands: tuple[float, ...]
    result: bool

    def holds(self, values: Mapping[str, float]) -> bool:
        """Whether it has the same result with other values of fields, by their names."""
        return self.function(*(_with_values(x, values) for x in self.operands)) is self.result


def _with_values(number: float, values: Mapping[str, float]) -> float:
    return number.with_values(values) if isinstance(number, Hyperparameter) else number


class Hyperparameters:
    """The hyper-parameters of the graph of a training step.

    Attributes:
        leaves: leaves and values, by name, of hyper-parameters that have met a tensor.
        decisions: comparisons of hyper-parameters, by function and names: with values with which
            they have other results, the graph may be another one.
        records: the records whose numbers were replaced, by name.
    """

    def __init__(self) -> None:
        self.records: dict[str, Any] = {}
        self.leaves: dict[str, tuple[Tensor, float]] = {}
        self.decisions: dict[tuple[Any, ...], Decision] = {}

    def of(self, record: _Record, name: str) -> _Record:
        """The record with hyper-parameters in place of its numbers; their names begin with `name`.

        Numbers in records, rows and dicts in its fields are replaced too. Values of other types
        stay as they are.
        """
        self.records[name] = record
        return self._named(record, f"{name}/", ())

    def number(self, value: float, name: str) -> float:
        """A hyper-parameter."""
        return _made(_plain(value), name, self, frozenset((name,)))

    def _named(self, value: Any, name: str, keys: tuple[str, ...]) -> Any:
        """The value of a field with hyper-parameters; `keys` are of the dicts in which it is."""
        if isinstance(value, bool | Hyperparameter):
            return value
        if isinstance(value, int | float):
            return self.number(value, name)
        if type(value) in (tuple, list):
            items = enumerate(cast(tuple[Any, ...], value))
            return type(value)(self._named(item, f"{name}[{n}]", keys) for n, item in items)
        if isinstance(value, Mapping):
            pairs = cast(Mapping[Any, Any], value).items()
            return {k: self._named(v, f"{name}[{k}]", (*keys, str(k))) for k, v in pairs}
        # Layers are known by their identity.
        if is_dataclass(value) and not isinstance(value, type) and not hasattr(value, "forward"):
            changed: Any = copy(value)
            prefix = name if name.endswith("/") else f"{name}."
            for entry in fields(value):
                new = self._field(value, entry.name, f"{prefix}{entry.name}", keys)
                object.__setattr__(changed, entry.name, new)
            return changed
        return value

    def _field(self, record: Any, field: str, name: str, keys: tuple[str, ...]) -> Any:
        """The new value of a record's field."""
        return self._named(getattr(record, field), name, keys)

    def leaf(self, number: Hyperparameter, dtype: DType) -> Tensor:
        """The leaf of a hyper-parameter in a dtype, which is the same for all that use it."""
        name = number.name
        if name in self.leaves and self.leaves[name][0].dtype != dtype:
            name = f"{name} {dtype.name}"
        if name not in self.leaves:
            attributes = {"name": name, "role": "state", "shape": (), "dtype": dtype}
            self.leaves[name] = Tensor(LEAF, (), attributes, (), dtype), cast(float, number)
        return self.leaves[name][0]


@final
class Fields(Hyperparameters):
    """The numbers in the fields of records, by name.

    A record whose numbers are replaced by their names (`of`) is equal to any that differs from it
    in its numbers only.

    Attributes:
        values: the numbers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, float] = {}

    def number(self, value: float, name: str) -> Any:
        self.values[name] = _plain(value)
        return name
