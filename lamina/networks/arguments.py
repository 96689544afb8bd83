"""Kinds of the arguments of ready networks: shapes of examples, and widths of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from lamina.checks.kinds import Function, Misfit, OrNone, ReadBy, Row, Whole, entries_of, shown
from lamina.layers import Layer

_EXTENTS = Row(Whole(1), example="(256, 128)")


def _shape_of_images(value: Any) -> tuple[int, ...]:
    """Channels, height and width."""
    extents = entries_of(value)
    advice = _advice_on_images(value if extents is None else extents)
    if advice:
        raise Misfit(
            "{name}=(channels, height, width)",
            problem="this is not a shape of images",
            advice=advice,
            value_text=shown(value if extents is None else extents),
        )
    return _EXTENTS.read(extents)


def _advice_on_images(extents: Any) -> str:
    """Advice for a value that is not (channels, height, width); empty if it is."""
    match extents:
        # A square image with channels last is more likely than an image 1, 3 or 4 pixels wide.
        case (int(height), int(width), 1 | 3 | 4 as channels) if height == width >= 16:
            first = f"{{name}}=({channels}, {height}, {width})"
            return f"Channels come first: {first}, and for the data array.transpose(0, 3, 1, 2)."
        case (_, _, _):
            return ""
        case int(extent):
            return f"Images of one colour have one channel: {{name}}=(1, {extent}, {extent})."
        case _:
            return "Images of one colour have one channel."


# Features or channels, one layer after the other.
Widths = Annotated[Sequence[int], _EXTENTS]
ShapeOfExamples = Annotated[tuple[int, ...], _EXTENTS]
ShapeOfImages = Annotated[tuple[int, int, int], ReadBy(_shape_of_images)]
Activation = Annotated[Layer | None, OrNone(Function("lm.Tanh()", "an activation, a layer"))]
