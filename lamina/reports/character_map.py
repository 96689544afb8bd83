"""A function of two variables, sampled on a grid: as characters, and as a picture.

Row 0 is the lowest, as on a plot, so that text and picture agree.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lamina.errors import DataError
from lamina.reports.figure import BLUE, INK, ORANGE, clean_axes, colour_bar, new_figure, save_figure

# From low to high values: each has more ink than the one before.
CHARACTERS = " .:-=+*#%@"


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
    if title:
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
