"""Kinds of the attributes of ops: kinds that depend on operands, and kinds that only ops have.

All other kinds are in `lamina.checks.kinds`. `lamina.graph.apply` checks every op against its
record, whether Python code or a file makes it. So shape rules, gradients, lowering rules and
engines rely on valid attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from itertools import pairwise
from typing import Any, cast, final

import numpy as np

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import as_whole, converted
from lamina.checks.kinds import (
    LARGEST,
    Kind,
    Misfit,
    Operands,
    Text,
    Whole,
    as_number,
    read_each,
    read_with_kinds,
)

# The longest name of a leaf, label of an axis, or formula of an einsum.
LABEL = Text(longest=1000)


def whole(least: int = -LARGEST, most: int = LARGEST) -> Whole:
    """A whole number for shapes and indices: the sum of two fits into 64 bits."""
    return Whole(least, most)


@final
@frozen_dataclass
class AnyNumber(Kind):
    """A number, also an infinite one or NaN; an int stays an int."""

    def read(self, value: Any, operands: Operands = ()) -> float:
        number = as_number(value)
        if number is None:
            raise Misfit("a number")
        return number


@final
@frozen_dataclass
class Element(Kind):
    """A number that the dtype of the first operand holds."""

    def read(self, value: Any, operands: Operands = ()) -> float:
        dtype = operands[0].dtype
        number = value if isinstance(value, bool) else as_number(value)
        if number is not None and not dtype.is_float:
            # The number must not be rounded or truncated.
            held: int = converted(np.asarray(number), dtype.numpy).item()
            number = held if held == number else None
        if number is None:
            raise Misfit(f"a number that {dtype.name} holds")
        return number


@final
@frozen_dataclass
class Axis(Kind):
    """An axis of the first operand, counted from the front.

    Attributes:
        between: whether it names a new axis, which may also come after the last one.
    """

    between: bool = False

    def read(self, value: Any, operands: Operands = ()) -> int:
        count = operands[0].rank + self.between
        number = as_whole(value)
        if number is None or not 0 <= number < count:
            limits = f"an axis from 0 to {count - 1}" if count else "an axis of a tensor with axes"
            raise Misfit(limits)
        return number


@final
@frozen_dataclass
class Axes(Kind):
    """Some axes of the first operand, at least `least`, counted from the front and in order."""

    least: int = 1

    def read(self, value: Any, operands: Operands = ()) -> tuple[int, ...]:
        count = operands[0].rank
        number = _wholes(value)
        if (
            number is None
            or len(number) < self.least
            or (number and not (number[0] >= 0 and number[-1] < count))
            or (len(number) > 1 and any(left >= right for left, right in pairwise(number)))
        ):
            raise Misfit(f"a tuple of axes below {count}, each once, in order")
        return number


@final
@frozen_dataclass
class Permutation(Kind):
    """All axes of the first operand, in another order."""

    def read(self, value: Any, operands: Operands = ()) -> tuple[int, ...]:
        number = _wholes(value)
        if number is None or sorted(number) != list(range(operands[0].rank)):
            raise Misfit(f"a tuple of all axes below {operands[0].rank}, each once")
        return number


def _wholes(value: Any) -> tuple[int, ...] | None:
    """A tuple of whole numbers; None for anything else."""
    if not isinstance(value, tuple):
        return None
    items = cast(tuple[Any, ...], value)
    if all(type(item) is int for item in items):
        return items
    numbers = [as_whole(item) for item in items]
    return tuple([item for item in numbers if item is not None]) if None not in numbers else None


@final
@frozen_dataclass
class Many(Kind):
    """A tuple of values of one kind, any number or one for each axis of the first operand.

    Lists are refused, as graphs are immutable.
    """

    kind: Kind
    of_each_axis: bool = False

    def read(self, value: Any, operands: Operands = ()) -> tuple[Any, ...]:
        items = cast(tuple[Any, ...], value) if isinstance(value, tuple) else None
        if items is None or (self.of_each_axis and len(items) != operands[0].rank):
            count = f" with an entry for each of {operands[0].rank} axes"
            raise Misfit(f"a tuple{count if self.of_each_axis else ''}")
        return read_each(self.kind, items, operands)


@final
@frozen_dataclass
class Fields(Kind):
    """A tuple with one value for each of some names; each name has its kind.

    Attributes:
        named: the class of named tuples in which the values are put; a file has plain tuples.
    """

    kinds: Mapping[str, Kind] = field(hash=False)
    named: Any = None

    def read(self, value: Any, operands: Operands = ()) -> tuple[Any, ...]:
        items = cast(tuple[Any, ...], value) if isinstance(value, tuple) else None
        if items is None or len(items) != len(self.kinds):
            raise Misfit(f"a tuple ({', '.join(self.kinds)})")
        if self.named is not None and not isinstance(value, self.named):
            items = self.named._make(items)
        names = tuple(self.kinds)
        return read_with_kinds(self.kinds.values(), items, lambda n: f".{names[n]}", operands)


@final
@frozen_dataclass
class MayLack(Kind):
    """A value of a kind; the attribute may be omitted."""

    kind: Kind

    def read(self, value: Any, operands: Operands = ()) -> Any:
        return self.kind.read(value, operands)
