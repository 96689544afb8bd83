"""Checks of hyper-parameters, made when a layer, loss or optimizer is written down; of operands."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence
from numbers import Integral, Real
from operator import index
from typing import Any, Self, cast

from lamina.errors import DefinitionError, DTypeError, ShapeError
from lamina.graph import Origin, Tensor, described, source_line
from lamina.layers.calls import Called
from lamina.shapes import normalise_axis


class Sourced(metaclass=Called):
    """A record that remembers the user's line that made it, for the errors about it."""

    _source: str

    def __new__(cls, *_: Any, **__: Any) -> Self:
        record = super().__new__(cls)
        object.__setattr__(record, "_source", source_line())
        return record

    @property
    def source(self) -> str:
        """The user's line that made the record, `"train.py:12"`."""
        return self._source


def place_of(owner: object) -> str:
    """Where a record was made, or is being made: `"Linear (train.py:12)"`."""
    source = owner.source if isinstance(owner, Sourced) else source_line()
    return str(Origin(type(owner).__name__, source))


def require_whole(owner: object, name: str, value: object, minimum: int = 1) -> None:
    """Checks a count.

    Args:
        owner: the record it belongs to, named in the error.
        name: of the hyper-parameter.
        value: what was given for it.
        minimum: the smallest value allowed.

    Raises:
        DefinitionError: if it is not an int of at least the minimum.
    """
    problem = f"{name} must be a whole number of at least {minimum}"
    whole_number(name, value, problem, place_of(owner), minimum)


def whole_number(
    name: str, value: object, problem: str, where: str, minimum: int = 1, advice: str = ""
) -> int:
    """A count as an int: of epochs, steps, examples, features.

    Args:
        name: of the argument.
        value: what was given for it.
        problem: what is wrong if it is no count.
        where: whose argument it is.
        minimum: the smallest value allowed.
        advice: what to do.

    Raises:
        DefinitionError: if it is no whole number of at least the minimum. True is none.
    """
    # NumPy's whole numbers count as well.
    count = index(value) if isinstance(value, Integral) and value is not True else minimum - 1
    if count < minimum or value is False:
        raise DefinitionError(
            problem,
            facts=(("expected", f"{name} >= {minimum}"), ("found", reprlib.repr(value))),
            where=where,
            advice=advice,
        )
    return count


def require_number(owner: object, name: str, value: object, interval: str = "(-inf, inf)") -> None:
    """Checks a number.

    Args:
        owner: the record it belongs to, named in the error.
        name: of the hyper-parameter.
        value: what was given for it.
        interval: where it must lie: `"[0, 1)"` includes 0 and excludes 1. NaN lies nowhere.

    Raises:
        DefinitionError: if it is no number, or lies outside.
    """
    low, high = (float(end) for end in interval[1:-1].split(","))
    closed_low, closed_high = interval[0] == "[", interval[-1] == "]"
    # NumPy's numbers count as well; True and False do not.
    number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    above = low <= number if closed_low else low < number
    below = number <= high if closed_high else number < high
    if not (above and below):
        left = "" if low == -math.inf else f"{low:g} {'<=' if closed_low else '<'} "
        right = "" if high == math.inf else f" {'<=' if closed_high else '<'} {high:g}"
        bounds = f"{left}{name}{right}"
        raise DefinitionError(
            f"{name} is not a number in its range" if left or right else f"{name} is not a number",
            facts=(
                ("expected", bounds if left or right else "a finite number"),
                ("found", reprlib.repr(value)),
            ),
            where=place_of(owner),
        )


def require_choice(owner: object, name: str, value: object, choices: Sequence[str]) -> None:
    """Checks a word.

    Raises:
        DefinitionError: if it is none of the choices.
    """
    if value not in choices:
        raise DefinitionError(
            f"{name} has no value {value!r}",
            facts=(("expected", ", ".join(map(repr, choices))), ("found", repr(value))),
            where=place_of(owner),
        )


def require_truth(owner: object, name: str, value: object, advice: str = "") -> None:
    """Checks what says yes or no.

    Raises:
        DefinitionError: if it is neither True nor False.
    """
    if not isinstance(value, bool):
        raise DefinitionError(
            f"{name} is either True or False",
            facts=(("expected", "True or False"), ("found", repr(value))),
            where=place_of(owner),
            advice=advice,
        )


def entries_of(value: object) -> tuple[object, ...] | None:
    """The entries of a list or tuple; None for anything else."""
    return tuple(cast(Sequence[object], value)) if isinstance(value, list | tuple) else None


# What makes features of things that are numbered.
EMBEDDING = "Put an lm.Embedding(count, features) before it: it makes features of indices."


def require_float(layer: object, x: Tensor, advice: str = "") -> None:
    """Checks that a layer is applied to floats.

    Raises:
        DTypeError: if it is not.
    """
    if not x.dtype.is_float:
        raise DTypeError(
            f"{type(layer).__name__} calculates with floats",
            facts=(("expected", "f32 or f64"), ("found", described(x))),
            advice=advice or "Leave dtype out of lm.Input, or add lm.Rescale(1.0) before it.",
        )


def axis_within_example(layer: object, axis: int, x: Tensor) -> int:
    """The axis counted from the front.

    Raises:
        ShapeError: if there is no such axis, or it is the batch.
    """
    counted = normalise_axis(axis, x.rank)
    if counted == 0:
        raise ShapeError(
            f"{type(layer).__name__} along the batch would mix examples",
            facts=(("axis", str(axis)), ("found", described(x))),
            advice="Axis 0 is the batch; name an axis of the example.",
        )
    return counted
