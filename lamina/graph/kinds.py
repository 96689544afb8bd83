"""Kinds of arguments: what a parameter takes, declared once, in its annotation.

    features: Count
    probability: Annotated[float, Number("[0, 1)")]
    bias: bool = True

`lamina.graph.calls` finds the kind of each parameter, and hands it what the user gave. The kind
refuses it, or gives it back in its plain form: NumPy's numbers as Python's, lists as tuples. So
records and functions see nothing else. A plain `bool`, `int`, `float`, `str`, `Literal[...]`, a
path, or one of Lamina's classes is a kind by itself, and so is one of these `| None`. What means
nothing here, such as a union of other types, is left to the function.
"""

from __future__ import annotations

import math
import os
import reprlib
import types
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

import numpy as np

from lamina.errors import DefinitionError, LaminaError
from lamina.graph.tensor import Origin, Tensor, source_line
from lamina.records import frozen_dataclass
from lamina.shapes import DType, DTypeLike, as_dtype, float_dtype

# Whole numbers that have no other limit fit into 64 bits.
LOWEST, HIGHEST = -(2**63), 2**63 - 1


@frozen_dataclass
class Argument:
    """What is being checked, for the errors about it.

    Attributes:
        name: of the parameter, `"stride"`, or `"class_weights[1]"`.
        called: what it was given to, `"Conv2d"`.
        owner: the class that is called; None for a function.
    """

    name: str
    called: str
    owner: type | None = None

    def part(self, number: int) -> Argument:
        """One element of it."""
        return replace(self, name=f"{self.name}[{number}]")

    def wrong(
        self, problem: str, expected: str, found: object, advice: str = ""
    ) -> DefinitionError:
        """The error for a value that is refused."""
        return DefinitionError(
            problem,
            facts=(("expected", expected), ("found", shown(found))),
            where=str(Origin(self.called, source_line())),
            advice=advice,
        )


def shown(value: object) -> str:
    """A value for the facts of an error, in one line."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return " ".join(_SHORT.repr(value).split())


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


class Kind(ABC):
    """What a parameter takes."""

    @abstractmethod
    def taken(self, value: Any, argument: Argument) -> Any:
        """The value in its plain form.

        Raises:
            DefinitionError: if the parameter does not take it.
        """


# Single values ------------------------------------------------------------------------------------


@frozen_dataclass
class Flag(Kind):
    """True or False, of Python or NumPy."""

    advice: str = ""

    def taken(self, value: Any, argument: Argument) -> bool:
        given: object = value
        if isinstance(given, bool):
            return given
        if isinstance(given, np.bool_):
            return bool(cast(Any, given))
        problem = f"{argument.name} is either True or False"
        raise argument.wrong(problem, "True or False", value, self.advice)


@frozen_dataclass
class Whole(Kind):
    """A whole number, of Python or NumPy; True and False are none."""

    lowest: int = LOWEST
    highest: int = HIGHEST

    def taken(self, value: Any, argument: Argument) -> int:
        name, low, high = argument.name, self.lowest, self.highest
        whole = is_whole(value)
        if whole and low <= int(value) <= high:
            return int(value)
        expected = f"{low} <= {name} <= {high}" if low > LOWEST else f"{name} <= {high}"
        if low > LOWEST and (not whole or int(value) < low):
            problem, expected = f"a whole number of at least {low}", f"{name} >= {low}"
        elif high < HIGHEST and whole:
            problem = f"a whole number of at most {high}"
        else:
            problem = f"a whole number{' of 64 bits' if whole else ''}"
            expected = f"{name}=0, 1, 2, ..."
        raise argument.wrong(f"{name} must be {problem}", expected, value)


def is_whole(value: object) -> bool:
    """Whether it is a whole number, of Python or NumPy."""
    return issubclass(type(value), Integral) and type(value) is not bool


@frozen_dataclass
class Number(Kind):
    """A number, of Python or NumPy; True and False are none.

    Attributes:
        interval: where it must lie: `"[0, 1)"` includes 0 and excludes 1. NaN lies nowhere.
    """

    interval: str = "(-inf, inf)"

    def taken(self, value: Any, argument: Argument) -> float:
        low, high = (float(end) for end in self.interval[1:-1].split(","))
        number = _float(value)
        above = low <= number if self.interval[0] == "[" else low < number
        below = number <= high if self.interval[-1] == "]" else number < high
        if above and below:
            return number
        left = "" if low == -math.inf else f"{low:g} {'<=' if self.interval[0] == '[' else '<'} "
        right = "" if high == math.inf else f" {'<=' if self.interval[-1] == ']' else '<'} {high:g}"
        problem = f"{argument.name} is not a number{' in its range' if left or right else ''}"
        bounds = f"{left}{argument.name}{right}"
        raise argument.wrong(problem, bounds if left or right else "a finite number", value)


def _float(value: Any) -> float:
    """The number as a float; NaN for what is none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # of an int
        return math.inf if cast(int, value) > 0 else -math.inf


@frozen_dataclass
class Choice(Kind):
    """One of some words."""

    words: tuple[str, ...]

    def taken(self, value: Any, argument: Argument) -> str:
        if isinstance(value, str) and value in self.words:
            return value
        expected = ", ".join(map(repr, self.words))
        raise argument.wrong(f"{argument.name} has no value {shown(value)}", expected, value)


@frozen_dataclass
class Text(Kind):
    """A text."""

    def taken(self, value: Any, argument: Argument) -> str:
        if isinstance(value, str):
            return value
        raise argument.wrong(f"{argument.name} is a text", f'{argument.name}="..."', value)


@frozen_dataclass
class ElementType(Kind):
    """An element type, by its name or NumPy's or Python's type; becomes a `DType`.

    Attributes:
        floats: whether it must be one of floats.
    """

    floats: bool = False

    def taken(self, value: Any, argument: Argument) -> DType:
        place = str(Origin(f"{argument.called}, {argument.name}", source_line()))
        if self.floats:
            return float_dtype(value, place)
        try:
            return as_dtype(value)
        except LaminaError as error:
            raise error.at(place) from None


@frozen_dataclass
class FilePath(Kind):
    """A path, as text or as an object of pathlib."""

    def taken(self, value: Any, argument: Argument) -> Any:
        name = argument.name
        given: object = value
        is_path = isinstance(given, str | os.PathLike)
        text = cast(object, os.fspath(cast(Any, given)) if is_path else None)
        if not isinstance(text, str):
            raise argument.wrong(f"{name} is the path of a file", f'{name}="..."', value)
        if not text or "\0" in text:
            raise argument.wrong(f"{name} names no file", "a path that is not empty", value)
        return value


@frozen_dataclass
class Function(Kind):
    """Something that can be called, and is no class.

    Attributes:
        example: of one.
        what: it is, for the error.
    """

    example: str
    what: str = "a function"

    def taken(self, value: Any, argument: Argument) -> Any:
        if callable(value) and not isinstance(value, type):
            return value
        problem = f"{argument.name} is {self.what}"
        raise argument.wrong(problem, self.example, value, _made(value))


@frozen_dataclass
class Instance(Kind):
    """An object of a class.

    Attributes:
        cls: the class.
        problem: of the error; by default what the parameter is.
        advice: of the error.
    """

    cls: type
    problem: str = ""
    advice: str = ""

    def taken(self, value: Any, argument: Argument) -> Any:
        if isinstance(value, self.cls):
            return value
        name = self.cls.__name__
        article = "an" if name[0] in "AEIOU" else "a"
        problem = self.problem or f"{argument.name} must be {article} {name}"
        found = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        advice = _made(value) or self.advice
        raise argument.wrong(problem, name, Bare(found), advice)


class Bare:
    """Text that errors show as it stands."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _made(value: object) -> str:
    return f"Make one of the class: {value.__name__}(...)." if isinstance(value, type) else ""


# Several values -----------------------------------------------------------------------------------


@frozen_dataclass
class Row(Kind):
    """Some values of one kind, as a tuple: from a list, a tuple, or an array of one axis.

    Attributes:
        kind: of each.
        least: how many there are at least.
        example: of the whole.
    """

    kind: Kind
    least: int = 0
    example: str = ""

    def taken(self, value: Any, argument: Argument) -> tuple[Any, ...]:
        name = argument.name
        found = entries_of(value)
        if found is None or len(found) < self.least:
            one = isinstance(value, int | float) and not isinstance(value, bool)
            advice = f"Write a single one with a comma: {name}=({value},)." if one else ""
            if found is None and hasattr(value, "__array__"):
                advice = f"Give it as a list: {name}=array.tolist()."
            example = self.example or "[...]"
            raise argument.wrong(
                f"{name} is a list of {self._what()}{self._at_least()}",
                f"{name}={example}",
                value,
                advice,
            )
        return each_taken(self.kind, found, argument)

    def _at_least(self) -> str:
        return f", at least {self.least}" if self.least else ""

    def _what(self) -> str:
        if isinstance(self.kind, Instance):
            return f"{self.kind.cls.__name__.lower()}s"
        return "numbers" if isinstance(self.kind, Whole | Number) else "elements"


def each_taken(kind: Kind, values: Sequence[Any], argument: Argument) -> tuple[Any, ...]:
    """All values in their plain form; an error names the first that is refused by its number."""
    try:
        return tuple(kind.taken(one, argument) for one in values)
    except LaminaError:
        return tuple(kind.taken(one, argument.part(n)) for n, one in enumerate(values))


def entries_of(value: object) -> tuple[Any, ...] | None:
    """The entries of a list, a tuple, a range or an array with axes; None for anything else."""
    if isinstance(value, list | tuple | range):
        return tuple(cast(Sequence[Any], value))
    if not hasattr(value, "__array__") or isinstance(value, np.generic | type):
        return None
    try:
        array = np.asarray(value)
    # Broad on purpose: arrays of other libraries raise almost anything.
    except Exception:
        return None
    return tuple(array.tolist()) if array.ndim and array.dtype.kind in "biuf" else None


@frozen_dataclass
class Either(Kind):
    """A single value of one kind, or what another kind takes.

    Attributes:
        one: for what is no list, tuple or array.
        several: for what is.
    """

    one: Kind
    several: Kind

    def taken(self, value: Any, argument: Argument) -> Any:
        kind = self.one if entries_of(value) is None else self.several
        return kind.taken(value, argument)


@frozen_dataclass
class Maybe(Kind):
    """None, or what another kind takes."""

    kind: Kind

    def taken(self, value: Any, argument: Argument) -> Any:
        return None if value is None else self.kind.taken(value, argument)


@frozen_dataclass
class AnyOf(Kind):
    """What one of some kinds takes; the first names the problem.

    Attributes:
        kinds: in the order in which they are asked.
    """

    kinds: tuple[Kind, ...]

    def taken(self, value: Any, argument: Argument) -> Any:
        refusals: list[DefinitionError] = []
        for kind in self.kinds:
            try:
                return kind.taken(value, argument)
            except DefinitionError as error:
                refusals.append(error)
        expected = " or ".join(dict(error.facts)["expected"] for error in refusals)
        raise argument.wrong(refusals[0].problem, expected, value, refusals[0].advice)


# Kinds of annotations -----------------------------------------------------------------------------

Tensors = Annotated[Sequence[Tensor], Row(Instance(Tensor))]
FloatType = Annotated[DTypeLike, ElementType(floats=True)]
# How many there are of something: at least one.
Count = Annotated[int, Whole(1)]
# How many things Python makes one after the other, such as stacked layers.
Depth = Annotated[int, Whole(1, 10_000)]
Positive = Annotated[float, Number("(0, inf)")]
NotNegative = Annotated[float, Number("[0, inf)")]
# From 0 to below 1: the probability of a dropout, what an average keeps in a step.
Fraction = Annotated[float, Number("[0, 1)")]


def kind_of(annotation: Any) -> Kind | None:
    """The kind of a parameter; None if its annotation says none."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        declared = [part for part in parts[1:] if isinstance(part, Kind)]
        return declared[-1] if declared else kind_of(parts[0])
    if origin is Literal:
        return Choice(tuple(parts)) if all(isinstance(part, str) for part in parts) else None
    if origin in (Union, types.UnionType):
        kinds = [kind_of(part) for part in parts if part is not type(None)]
        if set(parts) - {type(None)} == {str, os.PathLike[str]}:
            kinds = [FilePath()]
        if len(kinds) != 1 or kinds[0] is None:
            return None
        return Maybe(kinds[0]) if type(None) in parts else kinds[0]
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]
    plain_class = isinstance(annotation, type) and annotation.__module__.startswith("lamina.")
    protocol = getattr(cast(object, annotation), "_is_protocol", False)
    return Instance(annotation) if plain_class and not protocol else None


_SIMPLE: dict[Any, Kind] = {bool: Flag(), int: Whole(), float: Number(), str: Text()}
