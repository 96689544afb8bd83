"""What users pass to ops, brought into the form that the records expect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from lamina.errors import LaminaError, ShapeError
from lamina.graph import Tensor, TensorLike, constant, described, located, source_line
from lamina.shapes import Size, normalise_axes, normalise_axis


def as_tensor(value: TensorLike) -> Tensor:
    """The tensor itself, or a constant.

    Raises:
        LaminaError: for a batch size that is still open.
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
