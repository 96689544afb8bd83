"""A confusion matrix as a picture: true classes against predicted ones."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lamina.errors import DataError
from lamina.reports.figure import INK, colour_bar, new_figure, save_figure

# More classes than this get no numbers in their cells.
_MOST_NUMBERS = 25


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
        raise DataError(
            "the number of names differs from the number of classes",
            facts=(("classes", str(classes)), ("names", str(len(labels)))),
        )
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
    if title:
        axes.set_title(title, fontsize=11, color=INK)
    save_figure(figure, path)
