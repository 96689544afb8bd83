"""Checks of what ready networks are given: shapes of examples, and widths of layers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

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
        listed = isinstance(value, Iterable)
        extents = tuple(cast(Iterable[int], value)) if listed else ()
        advice = "Images of one colour have one channel."
        if isinstance(value, int):
            advice = f"{advice[:-1]}: {name}=(1, {value}, {value})."
        elif len(extents) == 3:
            # Images are often square, and have so many colours; networks of that width are rare.
            height, width, channels = extents
            if channels not in (1, 3, 4) or height != width or height < 16:
                continue
            advice = f"Channels come first: {name}=({channels}, {height}, {width}), and for the "
            advice += "data array.transpose(0, 3, 1, 2)."
        raise DefinitionError(
            "this is no shape of images",
            facts=(
                ("expected", f"{name}=(channels, height, width)"),
                ("found", f"{name}={extents if listed else value}"),
            ),
            where=source_line(),
            advice=advice,
        )
