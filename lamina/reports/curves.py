"""Training and validation curves as a picture."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from lamina.errors import DataError
from lamina.reports.figure import BLUE, INK, ORANGE, clean_axes, new_figure, save_figure

VALIDATION = "validation_"

# A loss that falls by more than this factor is drawn on a logarithmic axis.
_LOGARITHMIC_ABOVE = 100.0
_PANELS_A_ROW = 3


def plot_curves(
    series: Mapping[str, Sequence[float]], path: str | os.PathLike[str], *, title: str = ""
) -> None:
    """Writes one panel for the loss and one for each metric, over the epochs.

    Args:
        series: name -> one value for each epoch. `"validation_NAME"` is drawn in the panel of
            `"NAME"`. NaN leaves a gap.
        path: the file; PNG, unless its ending says otherwise.

    Raises:
        DataError: if there is nothing to draw.
        MissingExtraError: without matplotlib.
    """
    if not any(len(values) for values in series.values()):
        raise DataError(
            "there are no curves to draw", advice="Train for at least one epoch, then plot."
        )
    drawn = [name.removeprefix(VALIDATION) for name, values in series.items() if len(values)]
    panels = sorted(dict.fromkeys(drawn), key=lambda name: name != "loss")
    columns = min(len(panels), _PANELS_A_ROW)
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(4.4 * columns, 3.1 * rows, purpose="a plot of curves")
    grid: Any = figure.subplots(rows, columns, squeeze=False)
    for number, axes in enumerate(grid.flat):
        if number < len(panels):
            _draw_panel(axes, panels[number], series)
        else:
            axes.set_visible(False)
    if title:
        figure.suptitle(title, fontsize=11, color=INK)
    save_figure(figure, path)


def _draw_panel(axes: Any, name: str, series: Mapping[str, Sequence[float]]) -> None:
    from matplotlib.ticker import MaxNLocator

    curves = (
        ("training", series.get(name, ()), BLUE, "-", "o"),
        ("validation", series.get(VALIDATION + name, ()), ORANGE, "--", "s"),
    )
    epochs = max(len(values) for _, values, *_ in curves)
    for label, values, colour, line, marker in curves:
        if len(values):
            numbers = range(1, len(values) + 1)
            # Many epochs: the line alone, with a mark on the last value.
            marked = 1 if epochs <= 20 else [len(values) - 1]
            axes.plot(
                numbers,
                values,
                label=label,
                color=colour,
                linestyle=line,
                linewidth=1.6,
                marker=marker,
                markersize=4,
                markevery=marked,
            )
    finite = [value for _, values, *_ in curves for value in values if math.isfinite(value)]
    smallest, largest = min(finite, default=0.0), max(finite, default=0.0)
    if name == "loss" and smallest > 0 and largest / smallest > _LOGARITHMIC_ABOVE:
        axes.set_yscale("log")
    clean_axes(axes)
    axes.set_title(name.replace("_", " "), fontsize=10, color=INK, loc="left")
    axes.set_xlabel("epoch", fontsize=9, color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.legend(frameon=False, fontsize=8)
