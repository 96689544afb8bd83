"""Many small images as one picture: samples of a generator, examples of a data set."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lamina.errors import DataError
from lamina.reports.figure import INK, new_figure, save_figure

# The width of an image; the space between images, and of a caption, as shares of it.
_INCHES = 0.5
_GAP = 0.08
_CAPTION = 0.3


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
        raise DataError(
            "a sheet is made of images",
            facts=(
                ("expected", "(count, 1 or 3 channels, height, width)"),
                ("found", str(np.shape(images))),
            ),
            advice="Reshape the values, and omit further channels.",
        )
    count, channels, height, width = pixels.shape
    if captions and len(captions) != count:
        raise DataError(
            "images and captions do not fit together",
            facts=(("images", str(count)), ("captions", str(len(captions)))),
        )
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
    if title:
        axes.set_title(title, fontsize=9, color=INK)
    save_figure(figure, path)
