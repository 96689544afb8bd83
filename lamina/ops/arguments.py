"""What users pass to ops, brought into the form that the records expect."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.errors import LaminaError, ShapeError
from lamina.graph import Tensor, TensorLike, constant, described, located
from lamina.shapes import normalise_axes, normalise_axis


def as_tensor(value: TensorLike) -> Tensor:
    """The tensor itself, or a constant."""
    return value if isinstance(value, Tensor) else constant(value)


def axis_of(x: Tensor, axis: int) -> int:
    """The axis counted from the front.

    Raises:
        ShapeError: if the tensor has no such axis.
    """
    try:
        return normalise_axis(axis, x.rank)
    except LaminaError as error:
        raise located(_about(x, error)) from None


def axes_of(x: Tensor, axes: int | Sequence[int] | None) -> tuple[int, ...]:
    """The axes counted from the front, in rising order; None means all.

    Raises:
        ShapeError: if an axis is missing or named twice.
    """
    try:
        return normalise_axes(axes, x.rank)
    except LaminaError as error:
        raise located(_about(x, error)) from None


def _about(x: Tensor, error: LaminaError) -> LaminaError:
    facts = (("tensor", described(x)), *error.facts)
    return ShapeError(error.problem, facts=facts, advice=error.advice)
