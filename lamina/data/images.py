"""A folder of pictures, one subfolder for each class."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from lamina.data.untrusted import reading
from lamina.disk import open_regular
from lamina.errors import DataError, missing_extra
from lamina.shapes import Array

_SUFFIXES = frozenset(
    (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
)
# The modes of Pillow that are read, and the modes to which they are converted without loss.
_CONVERSIONS = {"1": "L", "L": "L", "P": "RGB", "RGB": "RGB"}


def read_image_folder(folder: Path) -> tuple[Array, Array]:
    """All pictures in the subfolders of a folder.

    Returns:
        Images uint8[n, channels, height, width] with 1 channel (grey) or 3 (red, green, blue);
        labels int64[n]: the index of the picture's subfolder among the sorted subfolders.

    Raises:
        DataError: if there are no pictures, or they differ in size or in the number of channels.
        FileFormatError: if a picture is damaged.
        MissingExtraError: if Pillow is not installed.
    """
    classes = sorted(entry for entry in folder.iterdir() if entry.is_dir())
    files = [
        (path, label)
        for label, subfolder in enumerate(classes)
        for path in sorted(subfolder.iterdir())
        if path.suffix.lower() in _SUFFIXES
    ]
    if not files:
        raise DataError(
            "the folder holds no pictures in subfolders",
            facts=(
                ("expected", "one subfolder a class, with .png, .jpg or other pictures"),
                ("found", f"{len(classes)} subfolders without pictures"),
            ),
            advice="Sort the pictures into one subfolder for each class.",
            where=str(folder),
        )
    try:
        image_module: Any = importlib.import_module("PIL.Image")
    except ImportError as error:
        raise missing_extra("pillow", "data", "reading pictures") from error
    first = _read_picture(image_module, files[0][0], None)
    images = np.empty((len(files), *first.shape), np.uint8)
    for index, (path, _) in enumerate(files):
        images[index] = _read_picture(image_module, path, (files[0][0], first.shape))
    return images, np.array([label for _, label in files], np.int64)


def _read_picture(
    image_module: Any, path: Path, like: tuple[Path, tuple[int, ...]] | None
) -> Array:
    """One picture as uint8[channels, height, width], of the shape of the first one."""
    with reading(path, "a picture"), warnings.catch_warnings():
        # Pillow only warns of pictures that are so large that they may be an attack. Here that is
        # an error.
        warnings.simplefilter("error", image_module.DecompressionBombWarning)
        with open_regular(path) as file, image_module.open(file) as image:
            if image.mode not in _CONVERSIONS:
                raise DataError(
                    "the pixels of the picture cannot be read without loss",
                    facts=(("expected", ", ".join(_CONVERSIONS)), ("found", image.mode)),
                    advice="Convert it to grey (L) or colour (RGB) first.",
                )
            mode = _CONVERSIONS[image.mode]
            shape = (1 if mode == "L" else 3, image.height, image.width)
            if like is not None and shape != like[1]:
                raise DataError(
                    "the pictures differ in size or colour",
                    facts=(
                        ("expected", f"{_describe(like[1])} as in {like[0]}"),
                        ("found", _describe(shape)),
                    ),
                    advice="Bring all pictures to one size, and all to grey or all to colour.",
                )
            pixels = np.asarray(image.convert(mode), np.uint8)
    return pixels[None] if mode == "L" else np.moveaxis(pixels, 2, 0)


def _describe(shape: tuple[int, ...]) -> str:
    return f"{'grey' if shape[0] == 1 else 'colour'}, {shape[2]} wide, {shape[1]} high"
