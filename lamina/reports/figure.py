"""The common part of pictures: a matplotlib figure without pyplot, colours, atomic saving.

matplotlib is an optional package without complete types: it is imported when a picture is made,
and its objects are `Any` here.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lamina.base.disk import write_whole
from lamina.errors import DataError, DefinitionError, missing_extra

# Okabe and Ito, "Color Universal Design" (2008): distinct for people with any colour vision.
BLUE = "#0072B2"
ORANGE = "#D55E00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
SKY = "#56B4E9"
AMBER = "#E69F00"
YELLOW = "#F0E442"
GREY = "#8C8C8C"
INK = "#262626"
# The text of labels within a picture.
CENTRED: Mapping[str, Any] = {"ha": "center", "va": "center", "fontsize": 7, "color": INK}
PALETTE = (SKY, AMBER, GREEN, PURPLE, YELLOW, BLUE, ORANGE, GREY)


def new_figure(width: float, height: float, *, purpose: str) -> Any:
    """An empty `matplotlib.figure.Figure`, width x height in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise missing_extra("matplotlib", "plot", purpose) from None
    return Figure(figsize=(width, height), dpi=150, layout="constrained", facecolor="white")


def clean_axes(axes: Any, *, grid: str = "y") -> None:
    """Removes the frame's upper and right line, and draws a faint grid under the data."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GREY)
    axes.tick_params(colors=INK, labelsize=8)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(axis=grid, color="#E3E3E3", linewidth=0.8)


def colour_bar(figure: Any, axes: Any, picture: Any, label: str) -> None:
    """Draws the scale of a picture's colours, from 0 to 1, next to it."""
    bar = figure.colorbar(picture, ax=axes, ticks=[0.0, 0.5, 1.0], shrink=0.8)
    bar.set_label(label, fontsize=9, color=INK)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)


def picture_format(path: str | os.PathLike[str]) -> str:
    """The format of a picture, by the ending of its path.

    Raises:
        DefinitionError: if pictures with that ending cannot be written.
        MissingExtraError: without matplotlib.
    """
    try:
        from matplotlib.backend_bases import FigureCanvasBase as Canvas
    except ImportError:
        raise missing_extra("matplotlib", "plot", "a picture") from None
    kind = Path(path).suffix.removeprefix(".").lower() or "png"
    supported = sorted(Canvas.get_supported_filetypes())
    if kind not in supported:
        raise DefinitionError(
            f"pictures cannot be written as .{kind}",
            where=str(path),
            facts=(("possible", ", ".join(supported)),),
            advice="Give a file name that ends in .png.",
        )
    return kind


def save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Writes the figure atomically: as PNG, or in the format of the path's ending (.svg, .pdf)."""
    target, kind = Path(path), picture_format(path)
    picture = io.BytesIO()
    figure.savefig(picture, format=kind)
    try:
        write_whole(str(target), picture.getbuffer(), permissions=0o644)
    except OSError as error:
        raise DataError(
            f"the picture cannot be written: {error.strerror or error}",
            where=str(target),
            advice="Check that the folder exists and may be written to.",
        ) from error
