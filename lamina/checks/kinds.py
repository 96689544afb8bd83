"""Kinds of values: the type and range of a parameter, a field of a record, an attribute of an op.

    features: Count
    probability: Annotated[float, Number("[0, 1)")]
    attributes={"axis": Axis(), "reverse": Flag()}

A kind returns the value in plain form (NumPy's numbers as Python's, lists as tuples), so that later
code handles no other types, or raises `Misfit`. A misfit states the expected value. The caller
knows the name of the argument and the source line, and makes the error from these: `refusal`.

Annotations and ops share the kinds here. Kinds that depend on the operands of an op are in
`lamina.graph.attributes`; `lamina.checks` finds the kind of each parameter in its annotation.
"""

from __future__ import annotations

import math
import os
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Annotated, Any, Protocol, TypeAlias, cast, final

import numpy as np

from lamina.base.records import cached_property, frozen_dataclass
from lamina.base.shapes import PUBLIC_DTYPES, DType, DTypeLike, Size, as_dtype, as_whole
from lamina.errors import DefinitionError, DTypeError
from lamina.foreign import foreign_or_nearest


class Operand(Protocol):
    """A tensor, as far as kinds depend on it."""

    @property
    def rank(self) -> int: ...
    @property
    def dtype(self) -> DType: ...


# The operands of the op to which an attribute belongs; empty for other arguments.
Operands: TypeAlias = Sequence[Operand]

# Whole numbers without other limits fit into 64 bits.
LOWEST, HIGHEST = -(2**63), 2**63 - 1
# No count is larger, and the sum of two such numbers fits 64 bits.
LARGEST = 2**62


@final
class Misfit(Exception):
    """A value is not of a kind. In all texts, `{name}` stands for the name of the argument.

    Attributes:
        expected: the kind in words: "a whole number of at least 1".
        example: an example of a right value, `"{name} >= 1"`; by default `expected`.
        problem: the problem, instead of "{name} must be ...".
        advice: the remedy, a full sentence.
        value_text: the value as text; by default its `repr`.
        part: the faulty part of the value, "[1]"; "" for the whole.
    """

    def __init__(
        self,
        expected: str,
        example: str = "",
        *,
        problem: str = "",
        advice: str = "",
        value_text: str = "",
    ) -> None:
        super().__init__(expected)
        self.expected = expected
        self.example = example or expected
        self.problem = problem or f"{{name}} must be {expected}"
        self.advice = advice
        self.value_text = value_text
        self.part = ""

    def within(self, part: str, value: object) -> Misfit:
        """The same misfit, of the tuple that has this value as its part `"[1]"`; returns self."""
        self.part = part + self.part
        self.value_text = self.value_text or shown(value)
        return self


def refusal(
    misfit: Misfit,
    name: str,
    value: object,
    *,
    subject: str = "",
    facts: tuple[tuple[str, str], ...] = (),
    where: str = "",
) -> DefinitionError:
    """The error for a value that is not of its kind; the subject owns the argument."""
    texts = (misfit.problem, misfit.example, misfit.advice)
    problem, example, advice = (text.replace("{name}", name + misfit.part) for text in texts)
    facts = (*facts, ("expected", example), ("found", misfit.value_text or shown(value)))
    return DefinitionError(subject + problem, facts=facts, where=where, advice=advice)


def shown(value: object) -> str:
    """A value for the facts of an error, in one line."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return " ".join(_SHORT.repr(value).split())


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


class Kind(ABC):
    """The type and range of an argument."""

    @abstractmethod
    def read(self, value: Any, operands: Operands = ()) -> Any:
        """The value in its plain form; operands are given for attributes of an op."""

    def of_class(self, owner: type) -> Kind:
        """This kind, or the kind to use for a field of this class, if it depends on the class."""
        del owner
        return self


# Single values ------------------------------------------------------------------------------------


@final
@frozen_dataclass
class Flag(Kind):
    """True or False of Python or NumPy."""

    def read(self, value: Any, operands: Operands = ()) -> bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, np.bool_):
            return bool(cast(object, value))
        raise Misfit("True or False")


@final
@frozen_dataclass
class Whole(Kind):
    """A whole number of Python or NumPy, not a bool, from `least` to `most`."""

    least: int = LOWEST
    most: int = HIGHEST

    def read(self, value: Any, operands: Operands = ()) -> int:
        number = value if type(value) is int else as_whole(value)
        if number is None or not self.least <= number <= self.most:
            raise self._misfit(number)
        return number

    def _misfit(self, number: int | None) -> Misfit:
        low, high = self.least > -LARGEST, self.most < LARGEST
        if number is not None:
            if self.least == LOWEST > number or self.most == HIGHEST < number:
                return Misfit("a whole number of 64 bits", "{name}=0, 1, 2, ...")
            low, high = low or number < self.least, high or number > self.most
        limits = [f"at least {self.least}"] * low + [f"at most {self.most}"] * high
        example = f"{self.least} <= {{name}}" if low else "{name}"
        example = f"{example} <= {self.most}" if high else f"{{name}} >= {self.least}"
        example = example if limits else "{name}=0, 1, 2, ..."
        return Misfit(f"a whole number{' of ' if limits else ''}{', '.join(limits)}", example)


@final
@frozen_dataclass
class Number(Kind):
    """A number of Python or NumPy, not a bool, as a float.

    Attributes:
        interval: the range: `"[0, 1)"` includes 0 and excludes 1. No interval includes NaN.
    """

    interval: str = "(-inf, inf)"

    @cached_property
    def _ends(self) -> tuple[float, bool, float, bool]:
        """The lower end and whether it is included, and the upper one."""
        low, high = map(float, self.interval[1:-1].split(","))
        return low, self.interval[0] == "[", high, self.interval[-1] == "]"

    def read(self, value: Any, operands: Operands = ()) -> float:
        low, with_low, high, with_high = self._ends
        plain = as_number(value)
        number = math.nan if plain is None else float(plain)
        if (low < number or (with_low and low == number)) and (
            number < high or (with_high and high == number)
        ):
            return number
        raise self._misfit()

    def _misfit(self) -> Misfit:
        low, with_low, high, with_high = self._ends
        limits: list[str] = []
        example = "{name}"
        if low != -math.inf:
            limits.append(f"{'at least' if with_low else 'above'} {low:g}")
            example = f"{low:g} {'<=' if with_low else '<'} {example}"
        if high != math.inf:
            limits.append(f"{'at most' if with_high else 'below'} {high:g}")
            example = f"{example} {'<=' if with_high else '<'} {high:g}"
        if not limits:
            return Misfit("a finite number")
        preposition = "of " if limits[0].startswith("at") else ""
        return Misfit(f"a number {preposition}{', '.join(limits)}", example)


def as_number(value: Any) -> float | None:
    """The Python int or float of a number that a float holds; None for anything else."""
    if isinstance(value, np.integer | np.floating):
        value = cast(Any, value).item()
    # An int beyond int64 becomes a float.
    if type(value) is float or (type(value) is int and LOWEST <= value <= HIGHEST):
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


@final
@frozen_dataclass
class ReadBy(Kind):
    """A kind that a function reads: it returns a value in plain form, or raises `Misfit`."""

    function: Callable[[Any], Any]

    def read(self, value: Any, operands: Operands = ()) -> Any:
        return self.function(value)


@final
@frozen_dataclass
class Measured(Kind):
    """A number, also an infinite one or NaN; a whole one stays whole."""

    def read(self, value: Any, operands: Operands = ()) -> float:
        if (number := as_number(value)) is None:
            raise Misfit("a number")
        return number


@final
@frozen_dataclass
class Word(Kind):
    """One of some words."""

    words: tuple[str, ...]

    def read(self, value: Any, operands: Operands = ()) -> str:
        if isinstance(value, str) and value in self.words:
            return value
        words = ", ".join(map(repr, self.words))
        raise Misfit(f"one of {words}", words)


@final
@frozen_dataclass
class Text(Kind):
    """A text, of at most `longest` characters."""

    longest: int | None = None

    def read(self, value: Any, operands: Operands = ()) -> str:
        if isinstance(value, str) and (self.longest is None or len(value) <= self.longest):
            return value
        limit = "" if self.longest is None else f" of at most {self.longest} characters"
        raise Misfit(f"a text{limit}", '{name}="..."')


@final
@frozen_dataclass
class ElementType(Kind):
    """An element type that tensors may have, by its name or NumPy's or Python's type; a `DType`."""

    kinds: tuple[str, ...] = ("float", "int", "bool")

    def read(self, value: Any, operands: Operands = ()) -> DType:
        """The dtype; raises DTypeError if there is no such dtype."""
        dtype = value if isinstance(value, DType) else as_dtype(value)
        if dtype.kind in self.kinds and dtype.name in PUBLIC_DTYPES:
            return dtype
        names = ", ".join(name for name, d in PUBLIC_DTYPES.items() if d.kind in self.kinds)
        raise Misfit(f"one of {names}", names)


_FLOATS = tuple(name for name, dtype in PUBLIC_DTYPES.items() if dtype.is_float)


@final
@frozen_dataclass
class ModelType(Kind):
    """The precision of a model: a float type, or the name of a mixed precision."""

    mixed: tuple[str, ...] = ("mixed", "mixed-bfloat16", "mixed-float16")

    def read(self, value: Any, operands: Operands = ()) -> DType | str:
        """The dtype, or the name."""
        if isinstance(value, str) and value in self.mixed:
            return value
        try:
            if (dtype := as_dtype(value)).is_float:
                return dtype
        except DTypeError:
            pass
        names = (*_FLOATS, *self.mixed)
        text = str(value).rpartition(".")[2].lower().replace("_", "-")
        # `float8` is no misspelt `float64`.
        letters = "abcdefghijklmnopqrstuvwxyz-"
        alike = [name for name in names if text.lstrip(letters) in ("", name.lstrip(letters))]
        near = foreign_or_nearest("dtype=", text, alike, 0.75)
        raise DTypeError(
            "the parameters of a model are floating-point numbers",
            facts=(("expected", ", ".join(names)), ("found", getattr(value, "name", str(value)))),
            advice=f"Write dtype={near!r}." if near else "",
        )


@final
@frozen_dataclass
class Extent(Kind):
    """The extent of an axis: a number from `least` on, or one that depends on the batch."""

    least: int = 0

    def read(self, value: Any, operands: Operands = ()) -> int | Size:
        if type(value) is Size:
            coefficient, offset = value.coefficient, value.offset
            are_whole = type(coefficient) is int and type(offset) is int
            if are_whole and 0 < coefficient <= LARGEST and -LARGEST <= offset <= LARGEST:
                return value
        number = value if type(value) is int else as_whole(value)
        if number is None or not self.least <= number <= LARGEST:
            limit = f" of at least {self.least}" if self.least > -LARGEST else ""
            raise Misfit(f"a whole number{limit}, or one that depends on the batch")
        return number


@final
@frozen_dataclass
class FilePath(Kind):
    """A path, as text or as an object of pathlib; the words are for the error."""

    what: str = "the path of a file"

    def read(self, value: Any, operands: Operands = ()) -> Any:
        path: object = value
        is_path = isinstance(path, str | os.PathLike)
        text = cast(object, os.fspath(cast(Any, path)) if is_path else None)
        if not isinstance(text, str):
            raise Misfit(self.what, '{name}="..."')
        if not text or "\0" in text:
            raise Misfit("a path that is not empty", problem="{name} names no file")
        return value


@final
@frozen_dataclass
class Function(Kind):
    """A callable that is not a class; example and words are for the error."""

    example: str
    what: str = "a function"

    def read(self, value: Any, operands: Operands = ()) -> Any:
        if callable(value) and not isinstance(value, type):
            return value
        raise Misfit(self.what, self.example, advice=_made(value))


@final
@frozen_dataclass
class Instance(Kind):
    """An object of a class; by default the problem is the name of the class."""

    cls: type
    problem: str = ""
    advice: str = ""

    def read(self, value: Any, operands: Operands = ()) -> Any:
        if isinstance(value, self.cls):
            return value
        name = self.cls.__name__
        raise Misfit(
            f"{'an' if name[0] in 'AEIOU' else 'a'} {name}",
            name,
            problem=self.problem,
            advice=_made(value) or self.advice,
            value_text=shown(value) if isinstance(value, type) else type(value).__name__,
        )


def _made(value: object) -> str:
    return f"Make one of the class: {value.__name__}(...)." if isinstance(value, type) else ""


# Several values -----------------------------------------------------------------------------------


@final
@frozen_dataclass
class Row(Kind):
    """At least so many values of one kind, as a tuple: from a list, a tuple, or an array."""

    kind: Kind
    least: int = 0
    example: str = "[...]"

    def read(self, value: Any, operands: Operands = ()) -> tuple[Any, ...]:
        entries = entries_of(value)
        if entries is None or len(entries) < self.least:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            advice = f"Write a single one with a comma: {{name}}=({value},)." if is_number else ""
            if entries is None and isinstance(self.kind, Instance):
                advice = "Give them as one list: [a, b]."
            elif entries is None and hasattr(value, "__array__"):
                advice = "Give it as a list: {name}=array.tolist()."
            enough = f", at least {self.least}" if self.least else ""
            what = "numbers" if isinstance(self.kind, Whole | Number | Extent) else "elements"
            if isinstance(self.kind, Instance):
                what = f"{self.kind.cls.__name__.lower()}s"
            example = f"{{name}}={self.example}"
            raise Misfit(f"a list of {what}{enough}", example, advice=advice)
        return read_each(self.kind, entries, operands)


def read_each(kind: Kind, values: tuple[Any, ...], operands: Operands = ()) -> tuple[Any, ...]:
    """All values in plain form, in the same type of tuple."""
    return read_with_kinds([kind] * len(values), values, "[{}]".format, operands)


def read_with_kinds(
    kinds: Iterable[Kind],
    values: tuple[Any, ...],
    label: Callable[[int], str],
    operands: Operands = (),
) -> tuple[Any, ...]:
    """The values in plain form, each read by its own kind; `label` makes the name of a value."""
    plain: list[Any] = []
    for number, (kind, value) in enumerate(zip(kinds, values, strict=True)):
        try:
            plain.append(kind.read(value, operands))
        except Misfit as misfit:
            raise misfit.within(label(number), value) from None
    same = all(kept is value for kept, value in zip(plain, values, strict=True))
    make: Any = getattr(type(values), "_make", tuple)  # of named tuples
    return values if same else make(plain)


def is_data(value: Any) -> bool:
    """Whether it is an array, or a list, tuple or dict of arrays, numbers or words."""
    if not isinstance(value, list | tuple | dict):
        return hasattr(value, "shape")
    entries = cast(Any, value.values() if isinstance(value, dict) else value)
    return all(isinstance(entry, int | float | str) or is_data(entry) for entry in entries)


def entries_of(value: object) -> tuple[Any, ...] | None:
    """The entries of a list, a tuple, a range or an array with axes; None for anything else.

    NumPy's numbers are not converted. Masked elements are None.
    """
    if isinstance(value, list | tuple | range):
        return tuple(cast(Sequence[Any], value))
    if not hasattr(value, "__array__") or isinstance(value, np.generic | type):
        return None
    if np.ma.is_masked(value):
        return tuple(cast(Any, value).tolist())
    try:
        array = np.asarray(value)
    # Broad on purpose: arrays of other libraries raise exceptions of any type.
    except Exception:
        return None
    return tuple(array) if array.ndim and array.dtype.kind in "biufU" else None


@final
@frozen_dataclass
class Either(Kind):
    """A single value of one kind, or several values of another kind."""

    single: Kind
    several: Kind

    def read(self, value: Any, operands: Operands = ()) -> Any:
        kind = self.single if entries_of(value) is None else self.several
        return kind.read(value, operands)


@final
@frozen_dataclass
class OrNone(Kind):
    """None, or a value of another kind."""

    kind: Kind

    def read(self, value: Any, operands: Operands = ()) -> Any:
        return None if value is None else self.kind.read(value, operands)


@final
@frozen_dataclass
class AnyOf(Kind):
    """A value of one of several kinds; the first that fits reads the value."""

    kinds: tuple[Kind, ...]

    def read(self, value: Any, operands: Operands = ()) -> Any:
        misfits: list[Misfit] = []
        for kind in self.kinds:
            try:
                return kind.read(value, operands)
            except Misfit as misfit:
                misfits.append(misfit)
        raise Misfit(
            ", or ".join(misfit.expected for misfit in misfits),
            " or ".join(misfit.example for misfit in misfits),
            advice=next((misfit.advice for misfit in misfits if misfit.advice), ""),
            value_text=next((misfit.value_text for misfit in misfits if misfit.value_text), ""),
        )


# Kinds of annotations -----------------------------------------------------------------------------

FloatType = Annotated[DTypeLike, ModelType()]
# A count: at least one.
Count = Annotated[int, Whole(1)]
# A count of objects that Python makes one after the other, such as stacked layers.
Depth = Annotated[int, Whole(1, 10_000)]
Positive = Annotated[float, Number("(0, inf)")]
NotNegative = Annotated[float, Number("[0, inf)")]
# From 0 to below 1: the decay of an average.
Fraction = Annotated[float, Number("[0, 1)")]
Probability = Annotated[float, Number("[0, 1]")]
