"""What users pass to ops, brought into the form that the records expect.

What becomes an attribute is checked against the record when the op is made; here it is counted from
the front, or made a tuple. What does not is checked here, against the same kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from lamina.errors import LaminaError, ShapeError
from lamina.graph import Tensor, TensorLike, constant, described, located, source_line
from lamina.graph.attributes import Extent, Flag, Kind, Misfit, Type, Whole
from lamina.graph.tensor import unfit
from lamina.shapes import (
    DType,
    DTypeLike,
    Shape,
    Size,
    as_dtype,
    as_whole,
    normalise_axes,
    normalise_axis,
)


def as_tensor(value: TensorLike) -> Tensor:
    """The tensor itself, or a constant.

    Raises:
        LaminaError: for a batch size that is still open.
        DTypeError: for what is no number, and no array of them.
    """
    if isinstance(value, Tensor):
        return value
    if isinstance(cast(object, value), Size):
        raise LaminaError(
            "the batch size is open as long as a network is written down",
            where=source_line(),
            advice="ops.mean(x, 0) averages over it; ops.element_count(x, 0, 'float32') is the "
            "number as a tensor.",
        )
    return constant(value)


def tensors_of(name: str, values: Sequence[TensorLike]) -> list[Tensor]:
    """Several tensors.

    Raises:
        DefinitionError: for anything but a list or tuple.
    """
    listed = entries_of(values)
    if listed is None:
        raise refused(name, "a list or tuple of tensors", values)
    return [as_tensor(value) for value in listed]


def entries_of(value: object) -> list[Any] | None:
    """The entries of a list, a tuple, a range, or an array of one axis; None for anything else."""
    if isinstance(value, list | tuple | range):
        return list(cast(Sequence[Any], value))
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        return list(array) if array.ndim == 1 else None
    return None


def refused(name: str, expected: str, value: object) -> LaminaError:
    """The error for an argument that is not what is expected, with the user's line."""
    return located(unfit(name, expected, value))


def read(name: str, kind: Kind, value: object, *operands: Tensor) -> Any:
    """An argument that is of a kind.

    Raises:
        DefinitionError: if it is not.
    """
    try:
        return kind.read(value, operands)
    except Misfit as misfit:
        raise located(unfit(name, misfit.expected, value, operands)) from None


def whole_of(name: str, value: object, least: int = 0) -> int:
    """A whole number of at least so much.

    Raises:
        DefinitionError: if it is none.
    """
    return read(name, Whole(least), value)


def flag_of(name: str, value: object) -> bool:
    """True or False.

    Raises:
        DefinitionError: for anything else.
    """
    return read(name, Flag(), value)


_ANY_TYPE = Type()


def dtype_of(value: DTypeLike, kind: Type = _ANY_TYPE) -> DType:
    """A dtype that tensors may have.

    Raises:
        DTypeError: if there is no such dtype.
        DefinitionError: if it is of another kind.
    """
    try:
        return read("dtype", kind, value if isinstance(value, DType) else as_dtype(value))
    except LaminaError as error:
        raise located(error) from None


_EXTENT = Extent()


def shape_of(value: object, name: str = "shape", *, open_places: bool = False) -> Shape:
    """A shape: a number for one axis, or numbers for several.

    Args:
        value: what the user gave.
        name: of the argument.
        open_places: whether -1 may stand for a number that follows from the others.

    Raises:
        DefinitionError: if it is no shape.
    """
    alone = isinstance(value, Size) or as_whole(value) is not None
    entries = [value] if alone else entries_of(value)
    if entries is None:
        raise refused(name, "a whole number for each axis", value)
    try:
        return tuple(
            [
                -1 if open_places and _is_open(entry) else _EXTENT.read(entry, ())
                for entry in entries
            ]
        )
    except Misfit as misfit:
        raise refused(name, f"for each axis {misfit.expected}", value) from None


def _is_open(entry: object) -> bool:
    return not isinstance(entry, Size) and as_whole(entry) == -1


def each_of(name: str, value: object, count: int, kind: Kind) -> tuple[Any, ...]:
    """A value for each of some axes; one alone stands for all of them.

    Raises:
        DefinitionError: if their number is another one, or a value is none of its kind.
    """
    entries = entries_of(value)
    if entries is None:
        return (read(name, kind, value),) * count
    if len(entries) != count:
        raise refused(name, f"one for all axes, or one for each of {count}", value)
    return tuple(read(name, kind, entry) for entry in entries)


_WIDTH = Whole(0)


def pairs_of(name: str, value: object, count: int) -> tuple[tuple[int, int], ...]:
    """How much there is before and after, along each of some axes; one number may stand for both.

    Raises:
        DefinitionError: if their number is another one, or one of them is no such number.
    """
    entries = entries_of(value)
    if entries is None:
        width = whole_of(name, value)
        return ((width, width),) * count
    expected = f"for each of {count} axes a number of at least 0, or a pair of them"
    if len(entries) != count:
        raise refused(name, expected, value)
    found: list[tuple[int, int]] = []
    for entry in entries:
        pair = entries_of(entry)
        pair = [entry, entry] if pair is None else pair
        if len(pair) != 2:
            raise refused(name, expected, value)
        try:
            low, high = (_WIDTH.read(width, ()) for width in pair)
        except Misfit:
            raise refused(name, expected, value) from None
        found.append((low, high))
    return tuple(found)


def axis_of(x: Tensor, axis: int, count: int | None = None) -> int:
    """The axis counted from the front.

    Args:
        x: the tensor.
        axis: counted from either end.
        count: how many axes there are, if not as many as x has.

    Raises:
        ShapeError: if the tensor has no such axis.
        DefinitionError: for anything but a whole number.
    """
    whole = as_whole(axis)
    if whole is None:
        raise located(unfit("axis", "a whole number", axis, (x,)))
    try:
        return normalise_axis(whole, x.rank if count is None else count)
    except LaminaError as error:
        raise located(_about(x, error)) from None


def axes_of(x: Tensor, axes: int | Sequence[int] | None) -> tuple[int, ...]:
    """The axes counted from the front, in rising order; None means all.

    Raises:
        ShapeError: if an axis is missing or named twice.
        DefinitionError: for anything but whole numbers.
    """
    try:
        return normalise_axes(None if axes is None else listed_axes(axes, x), x.rank)
    except ShapeError as error:
        raise located(_about(x, error)) from None


def listed_axes(axes: object, x: Tensor) -> list[int]:
    """The axes that the user named: one, or several.

    Raises:
        DefinitionError: for anything but whole numbers.
    """
    if type(axes) is int:
        return [axes]
    entries = [axes] if as_whole(axes) is not None else entries_of(axes)
    found = [as_whole(entry) for entry in entries or ()]
    if entries is None or None in found:
        raise located(unfit("axes", "one axis, or several in a tuple", axes, (x,)))
    return [axis for axis in found if axis is not None]


def _about(x: Tensor, error: LaminaError) -> LaminaError:
    facts = (("tensor", described(x)), *error.facts)
    return ShapeError(error.problem, facts=facts, advice=error.advice)
