"""Grids of values: a function of two variables, a confusion matrix, a sheet of images.

Row 0 of a function is the lowest, as on a plot, so that its text and its picture agree.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lamina.errors import DataError
from lamina.reports.figure import BLUE, INK, ORANGE, clean_axes, colour_bar, new_figure, save_figure

# From low to high values: each has more ink than the one before.
CHARACTERS = " .:-=+*#%@"
# More classes than this get no numbers in their cells.
_MOST_NUMBERS = 25
# The width of an image; the space between images, and of a caption, as shares of it.
_INCHES = 0.5
_GAP = 0.08
_CAPTION = 0.3


def map_text(values: npt.ArrayLike, *, characters: str = CHARACTERS) -> str:
    """One character for each value; NaN shows as "?".

    A character is about twice as tall as it is wide: for a square picture take twice as many
    columns as rows.

    Args:
        values: (rows, columns), clipped to [0, 1]. Row 0 is printed last.
        characters: characters from low to high.

    Returns:
        One line for each row.

    Raises:
        DataError: if the values are not a grid.

    Example:
        >>> print(map_text([[0.0, 0.5, 1.0], [1.0, 0.5, 0.0]], characters=" +#"))
        #+
         +#
    """
    grid = _grid(values)
    missing = np.isnan(grid)
    level = np.floor(np.where(missing, 0.0, np.clip(grid, 0.0, 1.0)) * len(characters))
    numbers = np.minimum(level.astype(np.int64), len(characters) - 1)
    shown = np.where(missing, "?", np.array(list(characters))[numbers])
    return "\n".join("".join(row) for row in shown[::-1])


def plot_map(
    values: npt.ArrayLike,
    path: str | os.PathLike[str],
    *,
    extent: tuple[float, float, float, float],
    points: npt.ArrayLike | None = None,
    labels: Sequence[int] | npt.ArrayLike | None = None,
    names: tuple[str, str] = ("class 0", "class 1"),
    title: str = "",
) -> None:
    """Writes the values as colours, the contour of 1/2, and the points on top.

    Args:
        values: (rows, columns), in [0, 1]: the probability of the second class. Row 0 is the
            lowest.
        path: the file; PNG, unless its ending says otherwise.
        extent: left, right, bottom, top: the coordinates of the outermost values.
        points: (count, 2): x and y.
        labels: (count,): 0 or 1 for each point; all 0 without them.
        names: the names of the two classes, for the legend.

    Raises:
        DataError: if the values are not a grid, or the labels do not match the points.
        MissingExtraError: without matplotlib.
    """
    grid = np.clip(_grid(values), 0.0, 1.0)
    coordinates = np.zeros((0, 2)) if points is None else np.asarray(points, dtype=np.float64)
    classes = np.zeros(len(coordinates)) if labels is None else np.asarray(labels).reshape(-1)
    if coordinates.ndim != 2 or coordinates.shape[1] != 2 or len(coordinates) != len(classes):
        raise DataError(
            "points and labels do not fit together",
            facts=(("points", str(coordinates.shape)), ("labels", str(classes.shape))),
            advice="Give points as (count, 2) and one label for each.",
        )
    figure = new_figure(5.6, 4.6, purpose="a picture of a map")
    from matplotlib.colors import LinearSegmentedColormap

    # From the first class's colour over near-white to the second's.
    colours = LinearSegmentedColormap.from_list("classes", ["#7FB8DA", "#F7F7F7", "#EDA77C"])
    axes: Any = figure.subplots()
    left, right, bottom, top = extent
    columns = np.linspace(left, right, grid.shape[1])
    rows = np.linspace(bottom, top, grid.shape[0])
    picture = axes.pcolormesh(
        columns, rows, grid, cmap=colours, vmin=0.0, vmax=1.0, shading="nearest", rasterized=True
    )
    if min(grid.shape) >= 2 and np.nanmin(grid) < 0.5 < np.nanmax(grid):
        axes.contour(columns, rows, grid, levels=[0.5], colors=INK, linewidths=1.2)
    for number, (name, colour, marker) in enumerate(zip(names, (BLUE, ORANGE), "os", strict=True)):
        chosen = coordinates[classes == number]
        if len(chosen):
            edges: Any = {"edgecolors": "white", "linewidths": 0.7}
            axes.scatter(*chosen.T, s=22, c=colour, marker=marker, label=name, **edges)
    if len(coordinates):
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.06)}
        axes.legend(**below, ncols=2, frameon=False, fontsize=9)
    clean_axes(axes, grid="")
    axes.set_aspect("equal")
    colour_bar(figure, axes, picture, f"probability of {names[1]}")
    axes.set_title(title, fontsize=11, color=INK)
    save_figure(figure, path)


def _grid(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    grid = np.asarray(values, dtype=np.float64)
    if grid.ndim != 2 or grid.size == 0:
        raise DataError(
            "a map needs a grid of values",
            facts=(("expected", "(rows, columns)"), ("found", str(grid.shape))),
            advice="Reshape the values to (rows, columns).",
        )
    return grid


def plot_confusion(
    counts: npt.ArrayLike,
    path: str | os.PathLike[str],
    *,
    names: Sequence[str] = (),
    title: str = "",
) -> None:
    """Writes the matrix: a row for each true class, a column for each predicted one.

    Colours show shares of the true class, so that rare classes are visible; numbers are counts.

    Args:
        counts: (classes, classes), as `lm.ConfusionMatrix` gives it.
        path: the file; PNG, unless its ending says otherwise.
        names: the names of the classes; their numbers by default.

    Raises:
        DataError: if the counts are not a square matrix of numbers >= 0, or names are missing.
        MissingExtraError: without matplotlib.
    """
    table = np.asarray(counts)
    square = table.ndim == 2 and table.shape[0] == table.shape[1] and table.size > 0
    if not square or not (table >= 0).all():
        raise DataError(
            "a confusion matrix has a row and a column of counts for each class",
            facts=(("expected", "(classes, classes)"), ("found", str(table.shape))),
            advice="model.evaluate(test, loss, [lm.ConfusionMatrix()]) measures one.",
        )
    classes = len(table)
    labels = list(names) or [str(number) for number in range(classes)]
    if len(labels) != classes:
        facts = (("classes", str(classes)), ("names", str(len(labels))))
        raise DataError("the number of names differs from the number of classes", facts=facts)
    shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    side = min(max(2.8, 1.2 + 0.42 * classes), 11.0)
    figure = new_figure(side + 0.5, side, purpose="a picture of a confusion matrix")
    axes: Any = figure.subplots()
    picture = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if classes <= _MOST_NUMBERS:
        for row, column in np.argwhere(table > 0):
            share = shares[row, column]
            text = f"{table[row, column]:g}"
            colour = "white" if share > 0.5 else INK
            axes.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)
    long = max(map(len, labels)) > 2
    rotated: dict[str, Any] = {"rotation": 45, "ha": "right"} if long else {}
    axes.set_xticks(range(classes), labels, fontsize=8, **rotated)
    axes.set_yticks(range(classes), labels, fontsize=8)
    axes.tick_params(length=0, colors=INK)
    axes.set_xlabel("predicted", fontsize=9, color=INK)
    axes.set_ylabel("true", fontsize=9, color=INK)
    for line in axes.spines.values():
        line.set_visible(False)
    colour_bar(figure, axes, picture, "share of the true class")
    axes.set_title(title, fontsize=11, color=INK)
    save_figure(figure, path)


def plot_images(
    images: npt.ArrayLike,
    path: str | os.PathLike[str],
    *,
    columns: int | None = None,
    captions: Sequence[str] = (),
    title: str = "",
) -> None:
    """Writes images side by side, row after row.

    Args:
        images: (count, height, width), (count, 1, height, width) for shades of grey or
            (count, 3, height, width) for colours; clipped to [0, 1].
        path: the file; PNG, unless its ending says otherwise.
        columns: images in a row; by default about as many as rows.
        captions: a word below each image.

    Raises:
        DataError: if these are not images, or the number of captions differs.
        MissingExtraError: without matplotlib.
    """
    pixels = np.asarray(images, dtype=np.float64)
    if pixels.ndim == 3:
        pixels = pixels[:, None]
    if pixels.ndim != 4 or pixels.shape[1] not in (1, 3) or pixels.size == 0:
        shape = str(np.shape(images))
        raise DataError(
            "a sheet is made of images",
            facts=(("expected", "(count, 1 or 3 channels, height, width)"), ("found", shape)),
            advice="Reshape the values, and omit further channels.",
        )
    count, channels, height, width = pixels.shape
    if captions and len(captions) != count:
        facts = (("images", str(count)), ("captions", str(len(captions))))
        raise DataError("images and captions do not fit together", facts=facts)
    across = min(columns or math.ceil(math.sqrt(count)), count)
    down = math.ceil(count / across)
    gap = max(1, round(_GAP * width))
    below = gap + (round(_CAPTION * width) if captions else 0)
    # All images are drawn as one picture: matplotlib takes seconds to lay out many axes.
    sheet = np.ones((down * (height + below) - gap, across * (width + gap) - gap, channels))
    corners = [(n // across * (height + below), n % across * (width + gap)) for n in range(count)]
    for image, (top, left) in zip(pixels, corners, strict=True):
        sheet[top : top + height, left : left + width] = image.transpose(1, 2, 0)
    scale = _INCHES / width
    figure = new_figure(
        max(sheet.shape[1] * scale, 2.0) + 0.1,
        sheet.shape[0] * scale + (0.4 if title else 0.1),
        purpose="a sheet of images",
    )
    axes: Any = figure.subplots()
    axes.set_axis_off()
    shown = np.clip(sheet if channels == 3 else sheet[:, :, 0], 0, 1)
    axes.imshow(shown, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    for caption, (top, left) in zip(captions, corners, strict=False):
        below_image = left + width / 2 - 0.5, top + height
        axes.text(*below_image, caption, ha="center", va="top", fontsize=7, color=INK)
    axes.set_title(title, fontsize=9, color=INK)
    save_figure(figure, path)
