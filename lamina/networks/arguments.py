"""Checks of what ready networks are given: shapes of examples, and widths of layers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from lamina.errors import DefinitionError
from lamina.graph import source_line


def check_lists(**given: object) -> None:
    """Checks what says one number after the other.

    Args:
        given: by the name of the argument what was given for it.

    Raises:
        DefinitionError: for a number alone.
    """
    for name, value in given.items():
        if not isinstance(value, Iterable):
            raise DefinitionError(
                f"{name} is a list of numbers",
                facts=(("expected", f"{name}=(256, 128)"), ("found", repr(value))),
                where=source_line(),
                advice=f"Write a single one with a comma: {name}=({value},).",
            )


def check_image(**given: object) -> None:
    """Checks a shape of images.

    Args:
        given: by the name of the argument what was given for it.

    Raises:
        DefinitionError: unless there are three extents, or if the channels clearly come last.
    """
    for name, value in given.items():
        extents = tuple(cast(Iterable[int], value)) if isinstance(value, Iterable) else value
        advice = _what_to_do(name, cast(Any, extents))
        if advice:
            raise DefinitionError(
                "this is no shape of images",
                facts=(
                    ("expected", f"{name}=(channels, height, width)"),
                    ("found", f"{name}={extents}"),
                ),
                where=source_line(),
                advice=advice,
            )


def _what_to_do(name: str, extents: tuple[int, ...] | int) -> str:
    """Nothing, if they are those of images."""
    match extents:
        # Images are often square, and have so many colours; networks of that width are rare.
        case (int(height), int(width), 1 | 3 | 4 as channels) if height == width >= 16:
            first = f"{name}=({channels}, {height}, {width})"
            return f"Channels come first: {first}, and for the data array.transpose(0, 3, 1, 2)."
        case (_, _, _):
            return ""
        case int(extent):
            return f"Images of one colour have one channel: {name}=(1, {extent}, {extent})."
        case _:
            return "Images of one colour have one channel."
