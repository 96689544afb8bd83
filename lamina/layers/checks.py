"""The base of records that keep their source line; checks of the operands of layers."""

from __future__ import annotations

from typing import Any, Self

from lamina.base.shapes import normalise_axis, static
from lamina.checks import Called
from lamina.checks.origin import Origin, source_line
from lamina.errors import DefinitionError, DTypeError, Named, ShapeError
from lamina.graph import Tensor, described


class Sourced(Named, metaclass=Called):
    """A record that keeps the line of the user's code that made it, for errors."""

    _source: str

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Makes the record.

        Raises:
            DefinitionError: for an argument of another kind, such as a number out of range or
                another word, and for arguments that exclude each other.
        """
        record = super().__new__(cls)
        object.__setattr__(record, "_source", source_line())
        return record

    @property
    def source(self) -> str:
        """The user's line that made the record, `"train.py:12"`."""
        return self._source


def origin_text(owner: object) -> str:
    """A record's class and the line of the user's code that makes it: `"Linear (train.py:12)"`."""
    source = owner.source if isinstance(owner, Sourced) else source_line()
    return str(Origin(type(owner).__name__, source))


def crossed(owner: Any, problem: str, expected: str) -> DefinitionError:
    """The error for bounds in the wrong order."""
    facts = (("expected", expected), ("found", f"low={owner.low!r}, high={owner.high!r}"))
    return DefinitionError(problem, facts=facts)


# Advice for a layer that needs features and is applied to indices.
EMBEDDING = "Put an lm.Embedding(count, features) before it: it makes features of indices."


def require_float(layer: object, x: Tensor, advice: str = "") -> None:
    """Checks that a layer is applied to floats; DTypeError for integers and bools."""
    if not x.dtype.is_float:
        raise DTypeError(
            f"{type(layer).__name__} takes floats",
            facts=(("expected", "f32 or f64"), ("found", described(x))),
            advice=advice or "Leave dtype out of lm.Input, or add lm.Rescale(1.0) before it.",
        )


def axis_within_example(layer: object, axis: int, x: Tensor) -> int:
    """The number of an axis counted from the front; ShapeError for none, and for the batch."""
    counted = normalise_axis(axis, x.rank)
    if counted == 0:
        raise ShapeError(
            f"{type(layer).__name__} along the batch would mix examples",
            facts=(("axis", str(axis)), ("found", described(x))),
            advice="Axis 0 is the batch; name an axis of the example.",
        )
    return counted


def image_extents(layer: object, x: Tensor) -> tuple[int, int]:
    """Height and width of [batch, channels, height, width]; ShapeError for another rank."""
    if x.rank != 4:
        raise no_images(layer, x)
    height, width = static(x.shape[2:])
    return height, width


def no_images(layer: object, x: Tensor) -> ShapeError:
    """The error for a tensor of another rank than images."""
    return ShapeError(
        f"{type(layer).__name__} takes images",
        facts=(("expected", "[batch, channels, height, width]"), ("found", described(x))),
        advice="Bring the tensor into this shape with lm.Reshape.",
    )


def require_channels(layer: object, x: Tensor, advice: str) -> None:
    """Checks that a layer is applied to a tensor with channels; ShapeError if there are none."""
    if x.rank < 2:
        raise ShapeError(
            f"{type(layer).__name__} needs an axis of channels",
            facts=(("expected", "[batch, channels, ...]"), ("found", described(x))),
            advice=advice,
        )


def grouped_channels(x: Tensor, groups: int) -> tuple[int, int]:
    """The groups and the channels of each; ShapeError if they are not of one size."""
    (channels,) = static(x.shape[1:2]) or (0,)
    if not channels or channels % groups:
        raise ShapeError(
            "the channels cannot be divided evenly into groups",
            facts=(("expected", f"a multiple of {groups} channels"), ("found", described(x))),
            advice="Choose a number of groups that divides the number of channels.",
        )
    return groups, channels // groups
