"""Arguments of the public functions of ops, converted to the plain values of attributes.

Attributes are checked against the op's record when the op is applied. Before that, this file counts
axes from the front and converts lists to tuples. It checks arguments that are not attributes,
against the same kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from lamina.base.shapes import (
    DType,
    DTypeLike,
    Shape,
    Size,
    as_whole,
    normalise_axes,
    normalise_axis,
)
from lamina.checks.kinds import (
    ElementType,
    Extent,
    Flag,
    Kind,
    Misfit,
    Whole,
    entries_of,
    read_each,
    refusal,
)
from lamina.checks.origin import source_line
from lamina.errors import LaminaError, ShapeError
from lamina.graph import Tensor, TensorLike, constant, described
from lamina.graph.attributes import whole


def as_tensor(value: TensorLike) -> Tensor:
    """The tensor itself, or a constant; an open batch size is refused."""
    if isinstance(value, Tensor):
        return value
    if isinstance(cast(object, value), Size):
        raise LaminaError(
            "the batch size is not known while a network is defined",
            where=source_line(),
            advice="ops.mean(x, 0) averages over the batch; ops.element_count(x, 0, 'float32') is "
            "the batch size as a tensor.",
        )
    return constant(value)


def tensors_of(name: str, values: Sequence[TensorLike]) -> list[Tensor]:
    """Several tensors; DefinitionError for anything but a list or tuple."""
    listed = entries_of(values)
    if listed is None:
        raise refused(name, "a list or tuple of tensors", values)
    return [as_tensor(value) for value in listed]


def refused(
    name: str, expected: Misfit | str, value: object, operands: Sequence[Tensor] = ()
) -> LaminaError:
    """The error for an argument that is not of the expected kind."""
    misfit = Misfit(expected) if isinstance(expected, str) else expected
    facts = (("tensor", described(operands[0])),) if operands else ()
    return refusal(misfit, name, value, facts=facts)


def read(name: str, kind: Kind, value: object, *operands: Tensor) -> Any:
    """An argument, checked and converted by a kind; DefinitionError if it is not of the kind."""
    try:
        return kind.read(value, operands)
    except Misfit as misfit:
        raise refused(name, misfit, value, operands) from None


def whole_of(name: str, value: object, least: int = 0) -> int:
    """A whole number of at least `least`; DefinitionError for anything else."""
    return read(name, whole(least), value)


def flag_of(name: str, value: object) -> bool:
    """True or False; DefinitionError for anything else."""
    return read(name, Flag(), value)


_ANY_TYPE = ElementType()


def dtype_of(value: DTypeLike, kind: ElementType = _ANY_TYPE) -> DType:
    """A dtype that tensors may have, of a kind."""
    return read("dtype", kind, value)


_EXTENT, _EXTENT_OR_INFERRED = Extent(), Extent(-1)


def shape_of(value: object, name: str = "shape", *, inferred: bool = False) -> Shape:
    """A shape: a number for one axis, or numbers for several; -1 only if one may be `inferred`."""
    kind = _EXTENT_OR_INFERRED if inferred else _EXTENT
    if isinstance(value, Size) or as_whole(value) is not None:
        return (read(name, kind, value),)
    entries = entries_of(value)
    if entries is None:
        raise refused(name, "a whole number, or a list of them", value)
    try:
        return read_each(kind, entries)
    except Misfit as misfit:
        raise refused(name, misfit, value) from None


def each_of(name: str, value: object, count: int, kind: Kind) -> tuple[Any, ...]:
    """A value for each of `count` axes; a single one is for all of them."""
    entries = entries_of(value)
    if entries is None:
        return (read(name, kind, value),) * count
    if len(entries) != count:
        raise refused(name, f"one for all axes, or one for each of {count}", value)
    try:
        return read_each(kind, entries)
    except Misfit as misfit:
        raise refused(name, misfit, value) from None


def pairs_of(name: str, value: object, count: int, least: int = 0) -> tuple[tuple[int, int], ...]:
    """(before, after) for each of `count` axes; a single number is for both, or for all axes."""
    entries = entries_of(value)
    if entries is None:
        width = whole_of(name, value, least)
        return ((width, width),) * count
    number = "a number of at least 0" if not least else "a whole number"
    expected = f"{number}, or a pair of them, for each of {count} axes"
    if len(entries) != count:
        raise refused(name, expected, value)
    pairs: list[tuple[int, int]] = []
    for entry in entries:
        pair = entries_of(entry)
        try:
            low, high = read_each(whole(least), (entry, entry) if pair is None else pair)
        except (Misfit, ValueError):  # a number that misfits, or not two of them
            raise refused(name, expected, value) from None
        pairs.append((low, high))
    return tuple(pairs)


_AXIS = Whole()


def axis_of(x: Tensor, axis: int, count: int | None = None) -> int:
    """The axis counted from the front, of `count` axes, by default the axes of x."""
    number: int = read("axis", _AXIS, axis, x)
    try:
        return normalise_axis(number, x.rank if count is None else count)
    except LaminaError as error:
        raise _about(x, error) from None


def axes_of(x: Tensor, axes: int | Sequence[int] | None) -> tuple[int, ...]:
    """The axes counted from the front, in rising order; None means all."""
    try:
        return normalise_axes(None if axes is None else listed_axes(axes, x), x.rank)
    except ShapeError as error:
        raise _about(x, error) from None


def listed_axes(axes: object, x: Tensor) -> list[int]:
    """The axes that the user named: one or several."""
    if type(axes) is int:
        return [axes]
    entries = (axes,) if as_whole(axes) is not None else entries_of(axes)
    numbers = [as_whole(entry) for entry in entries or ()]
    if entries is None or None in numbers:
        raise refused("axes", "one axis, or several in a tuple", axes, (x,))
    return [axis for axis in numbers if axis is not None]


def _about(x: Tensor, error: LaminaError) -> LaminaError:
    facts = (("tensor", described(x)), *error.facts)
    return ShapeError(error.problem, facts=facts, advice=error.advice)
