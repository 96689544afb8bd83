"""What the attributes of ops may be: a closed vocabulary, in which the records of ops say theirs.

`lamina.graph.tensor.apply` checks every op that is made against its record, whether Python code or
a file asks for it; so what stands behind (shape rules, gradients, lowerings, engines) may rely on
it. A kind gives the value as ops keep it, with NumPy's numbers as Python's, or raises `Misfit`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast, final

import numpy as np

from lamina.records import frozen_dataclass
from lamina.shapes import PUBLIC_DTYPES, DType, Size, as_whole, converted

if TYPE_CHECKING:
    from lamina.graph.tensor import Tensor

# Numbers beyond it cannot count anything, and sums of two of them would not fit 64 bits.
LARGEST = 2**62
_LONGEST_TEXT = 1000


@final
class Misfit(Exception):
    """An attribute is none of its kind.

    Attributes:
        expected: what it has to be.
    """

    def __init__(self, expected: str) -> None:
        super().__init__(expected)
        self.expected = expected


class Kind(ABC):
    """What an attribute may be."""

    @abstractmethod
    def read(self, value: Any, operands: Sequence[Tensor]) -> Any:
        """The value as ops keep it.

        Raises:
            Misfit: if it is none of this kind, or does not fit the operands.
        """


# Numbers, words and flags -------------------------------------------------------------------------


@final
@frozen_dataclass
class Flag(Kind):
    """True or False."""

    def read(self, value: Any, operands: Sequence[Tensor]) -> bool:
        if isinstance(value, bool | np.bool_):
            return bool(cast(object, value))
        raise Misfit("True or False")


@final
@frozen_dataclass
class Whole(Kind):
    """A whole number from `least` to `most`."""

    least: int = -LARGEST
    most: int = LARGEST

    def read(self, value: Any, operands: Sequence[Tensor]) -> int:
        found = value if type(value) is int else as_whole(value)
        if found is None or not self.least <= found <= self.most:
            raise Misfit(self._expected())
        return found

    def _expected(self) -> str:
        text = "a whole number"
        if self.least > -LARGEST:
            text += f" of at least {self.least}"
        return text if self.most == LARGEST else f"{text}, at most {self.most}"


@final
@frozen_dataclass
class Number(Kind):
    """A number from `least` to `most`; NaN only where neither is said."""

    least: float = -math.inf
    most: float = math.inf

    def read(self, value: Any, operands: Sequence[Tensor]) -> float:
        found = as_number(value)
        if found is None:
            raise Misfit("a number")
        anything = (self.least, self.most) == (-math.inf, math.inf)
        if not (anything or self.least <= found <= self.most):
            raise Misfit(f"a number from {self.least:g} to {self.most:g}")
        return found


def as_number(value: Any) -> float | None:
    """A number that a float holds, as Python's, whole or not; None for anything else."""
    if isinstance(value, np.integer | np.floating):
        value = cast(Any, value).item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        # What no int64 holds is a float.
        return value if -(2**63) <= value < 2**63 else float(value)
    except OverflowError:
        return None


@final
@frozen_dataclass
class Element(Kind):
    """A number that can stand in the first operand."""

    def read(self, value: Any, operands: Sequence[Tensor]) -> float:
        dtype = operands[0].dtype
        found = value if isinstance(value, bool) else as_number(value)
        if found is not None and not dtype.is_float:
            # The same number, and no other that it was rounded or cut to.
            held: int = converted(np.asarray(found, float), dtype.numpy).item()
            found = held if held == found else None
        if found is None:
            raise Misfit(f"a number that {dtype.name} holds")
        return found


@final
@frozen_dataclass
class Word(Kind):
    """One of some words; of none, any text."""

    words: tuple[str, ...] = ()

    def read(self, value: Any, operands: Sequence[Tensor]) -> str:
        known = not self.words or value in self.words if isinstance(value, str) else False
        if not known or len(value) > _LONGEST_TEXT:
            raise Misfit(" or ".join(map(repr, self.words)) if self.words else "a short text")
        return value


@final
@frozen_dataclass
class Type(Kind):
    """A dtype of some kinds."""

    kinds: tuple[str, ...] = ("float", "int", "bool")

    def read(self, value: Any, operands: Sequence[Tensor]) -> DType:
        if isinstance(value, DType) and value.kind in self.kinds and value.name in PUBLIC_DTYPES:
            return value
        fits = (dtype.name for dtype in PUBLIC_DTYPES.values() if dtype.kind in self.kinds)
        raise Misfit(", ".join(fits))


# Axes and extents ---------------------------------------------------------------------------------


@final
@frozen_dataclass
class Extent(Kind):
    """How long an axis is: a number of at least 0, or one that depends on the batch.

    Attributes:
        signed: whether the shape rule says which numbers fit, for it says more about it.
    """

    signed: bool = False

    def read(self, value: Any, operands: Sequence[Tensor]) -> int | Size:
        if type(value) is Size:
            slope, offset = value.coefficient, value.offset
            whole = type(slope) is int and type(offset) is int
            if whole and 0 < slope <= LARGEST and -LARGEST <= offset <= LARGEST:
                return value
        found = value if type(value) is int else as_whole(value)
        if found is None or not (-LARGEST if self.signed else 0) <= found <= LARGEST:
            raise Misfit("a whole number of at least 0, or one that depends on the batch")
        return found


@final
@frozen_dataclass
class Axis(Kind):
    """An axis of the first operand, or a place between them, counted from the front."""

    between: bool = False

    def read(self, value: Any, operands: Sequence[Tensor]) -> int:
        count = operands[0].rank + self.between
        found = as_whole(value)
        if found is None or not 0 <= found < count:
            raise Misfit(
                f"an axis from 0 to {count - 1}" if count else "an axis, and there is none"
            )
        return found


@final
@frozen_dataclass
class Axes(Kind):
    """Some axes of the first operand, at least so many, counted from the front and in order."""

    least: int = 1

    def read(self, value: Any, operands: Sequence[Tensor]) -> tuple[int, ...]:
        count = operands[0].rank
        found = _wholes(value)
        if (
            found is None
            or len(found) < self.least
            or (found and not (found[0] >= 0 and found[-1] < count))
            or (len(found) > 1 and any(left >= right for left, right in pairwise(found)))
        ):
            raise Misfit(f"a tuple of axes below {count}, each once, in order")
        return found


@final
@frozen_dataclass
class Permutation(Kind):
    """All axes of the first operand, in another order."""

    def read(self, value: Any, operands: Sequence[Tensor]) -> tuple[int, ...]:
        found = _wholes(value)
        if found is None or sorted(found) != list(range(operands[0].rank)):
            raise Misfit(f"a tuple of all axes below {operands[0].rank}, each once")
        return found


def _wholes(value: Any) -> tuple[int, ...] | None:
    """A tuple of whole numbers; None for anything else."""
    if not isinstance(value, tuple):
        return None
    items = cast(tuple[Any, ...], value)
    if all(type(item) is int for item in items):
        return items
    found = [as_whole(item) for item in items]
    return tuple([item for item in found if item is not None]) if None not in found else None


# What is made of others ---------------------------------------------------------------------------


@final
@frozen_dataclass
class Many(Kind):
    """A tuple of any number of values of one kind; of so many, or one for each axis of x."""

    kind: Kind
    of_each_axis: bool = False

    def read(self, value: Any, operands: Sequence[Tensor]) -> tuple[Any, ...]:
        if not isinstance(value, tuple):
            raise Misfit(f"a tuple of {self._what(operands)}")
        items = cast(tuple[Any, ...], value)
        if self.of_each_axis and len(items) != operands[0].rank:
            raise Misfit(f"one for each of {operands[0].rank} axes: a tuple")
        kind, found, changed = self.kind, list[Any](), False
        try:
            for item in items:
                kept = kind.read(item, operands)
                found.append(kept)
                changed = changed or kept is not item
        except Misfit as misfit:
            raise Misfit(f"for each entry {misfit.expected}") from None
        return _like(items, found) if changed else items

    def _what(self, operands: Sequence[Tensor]) -> str:
        try:
            self.kind.read(object(), operands)
        except Misfit as misfit:
            return f"entries, each {misfit.expected}"
        return "entries"


@final
@frozen_dataclass
class Row(Kind):
    """A tuple with one value for each of some names."""

    kinds: Mapping[str, Kind] = field(hash=False)

    def read(self, value: Any, operands: Sequence[Tensor]) -> tuple[Any, ...]:
        if not isinstance(value, tuple) or len(cast(tuple[Any, ...], value)) != len(self.kinds):
            raise Misfit(f"a tuple ({', '.join(self.kinds)})")
        items = cast(tuple[Any, ...], value)
        found: list[Any] = []
        for (name, kind), item in zip(self.kinds.items(), items, strict=True):
            try:
                found.append(kind.read(item, operands))
            except Misfit as misfit:
                raise Misfit(f"{misfit.expected} for {name}") from None
        same = all(a is b for a, b in zip(items, found, strict=True))
        return items if same else _like(items, found)


def _like(old: tuple[Any, ...], new: Sequence[Any]) -> tuple[Any, ...]:
    """The new entries, in the same type of tuple."""
    make: Any = getattr(type(old), "_make", tuple)
    return make(new)


@final
@frozen_dataclass
class OrNone(Kind):
    """A value of a kind, or None."""

    kind: Kind

    def read(self, value: Any, operands: Sequence[Tensor]) -> Any:
        if value is None:
            return None
        try:
            return self.kind.read(value, operands)
        except Misfit as misfit:
            raise Misfit(f"None, or {misfit.expected}") from None


@final
@frozen_dataclass
class MayLack(Kind):
    """A value of a kind; it may also be left out altogether."""

    kind: Kind

    def read(self, value: Any, operands: Sequence[Tensor]) -> Any:
        return self.kind.read(value, operands)


@final
@frozen_dataclass
class Instance(Kind):
    """A record of a class, immutable and checked by itself."""

    cls: type

    def read(self, value: Any, operands: Sequence[Tensor]) -> Any:
        if not isinstance(value, self.cls):
            raise Misfit(f"a {self.cls.__name__}")
        return value
