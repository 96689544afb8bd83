"""A folder of pictures, one subfolder for each class."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lamina.base.disk import open_regular
from lamina.base.shapes import Array
from lamina.data.untrusted import reading
from lamina.errors import DataError, imported_extra

_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"}
# The modes of Pillow that are read, and the modes to which they are converted. That loses nothing,
# if no pixel is transparent.
_MODES = dict.fromkeys(("1", "L", "LA"), "L") | dict.fromkeys(("P", "PA", "RGB", "RGBA"), "RGB")
_NUMBER = re.compile(r"[-+]?\d{1,300}([.,]\d+)?", re.ASCII)
# Folders of systems and programs, which hold copies and caches. Hidden ones begin with a point.
_CACHES = frozenset(
    ("__MACOSX", "__pycache__", "@eaDir", "#recycle", "$RECYCLE.BIN", "System Volume Information")
)


def read_image_folder(
    folder: Path, classes: Sequence[str] | None = None
) -> tuple[Array, Array, tuple[str, ...]]:
    """All pictures in the subfolders of a folder; hidden, empty and cache folders are left out.

    Args:
        classes: the names of the subfolders by their labels; by default those that are found,
            sorted, numbers as numbers.

    Returns:
        Images uint8[n, channels, height, width] with 1 channel (grey) or 3 (red, green, blue);
        labels int64[n]: the index of the picture's subfolder among the classes; the classes.
    """
    subfolders = sorted(filter(Path.is_dir, _visible(folder)), key=_rank)
    pictures = {entry.name: paths for entry in subfolders if (paths := _pictures_in(entry))}
    if not pictures:
        raise DataError(
            "the folder holds no pictures in subfolders",
            facts=(
                ("expected", "one subfolder a class, with .png, .jpg or other pictures"),
                ("found", f"{len(subfolders)} subfolders without pictures"),
            ),
            advice="Sort the pictures into one subfolder for each class.",
        )
    classes = tuple(classes or pictures)
    unknown = next((name for name in pictures if name not in classes), None)
    if unknown is not None:
        raise DataError(
            f"the subfolder {unknown!r} is none of the classes",
            facts=(("expected", ", ".join(classes)), ("found", ", ".join(pictures))),
            advice="Rename it, leave it out, or train on a folder that has all classes.",
        )
    files = [(path, classes.index(name)) for name, paths in pictures.items() for path in paths]
    pillow = partial(imported_extra, extra="data", purpose="reading pictures", package="pillow")
    read = partial(_read_picture, pillow("PIL.Image"), pillow("PIL.ImageOps").exif_transpose)
    first = read(files[0][0], None)
    images = np.empty((len(files), *first.shape), np.uint8)
    for index, (path, _) in enumerate(files):
        images[index] = read(path, (files[0][0], first.shape))
    return images, np.array([label for _, label in files], np.int64), classes


def _visible(folder: Path) -> list[Path]:
    entries = folder.iterdir()
    return [x for x in entries if not x.name.startswith(".") and x.name not in _CACHES]


def _rank(folder: Path) -> tuple[bool, float, str]:
    """The order of subfolders: numbers, then words."""
    number = float(folder.name.replace(",", ".")) if _NUMBER.fullmatch(folder.name) else math.inf
    return number == math.inf, number, folder.name


def _pictures_in(folder: Path) -> list[Path]:
    """The pictures of a class, sorted."""
    entries = sorted(_visible(folder))
    for inner in filter(Path.is_dir, entries):
        if pictures := _pictures_in(inner):
            raise DataError(
                f"the subfolder {folder.name!r} has pictures in folders of its own",
                facts=(("expected", str(folder / pictures[0].name)), ("found", str(pictures[0]))),
                advice="Each subfolder is a class and holds its pictures: load the folder that has "
                "the classes, or move the pictures up.",
            )
    return [entry for entry in entries if entry.suffix.lower() in _SUFFIXES]


def _read_picture(
    image_module: Any, upright: Any, path: Path, like: tuple[Path, tuple[int, ...]] | None
) -> Array:
    """One picture as uint8[channels, height, width], of the shape of the first one."""
    with reading(path, "a picture"), warnings.catch_warnings():
        # Pillow only warns of pictures that are so large that they may be an attack. Here that is
        # an error.
        warnings.simplefilter("error", image_module.DecompressionBombWarning)
        with open_regular(path) as file, image_module.open(file) as opened:
            _require_readable(opened)
            image = upright(opened)  # cameras store in EXIF how they were held
            mode = _MODES[image.mode]
            shape = (1 if mode == "L" else 3, image.height, image.width)
            if like is not None and shape != like[1]:
                size = _describe(shape)
                raise DataError(
                    "the pictures differ in size or colour",
                    facts=(("expected", f"{_describe(like[1])} as in {like[0]}"), ("found", size)),
                    advice="Bring all pictures to one size, and all to grey or all to colour.",
                )
            pixels = np.asarray(image.convert(mode), np.uint8)
    return pixels[None] if mode == "L" else np.moveaxis(pixels, 2, 0)


def _require_readable(image: Any) -> None:
    """Requires a single picture without transparency."""
    description, frames = image.mode, getattr(image, "n_frames", 1)
    problem, expected = "", ", ".join(_MODES)
    advice = "Convert it to grey (L) or colour (RGB) first."
    if frames > 1 and image.format != "MPO":  # a JPEG of a camera, with a preview
        problem, expected, description = "has several frames", "one", f"{frames} frames"
        advice = "Save the frame that counts as a picture of its own."
    elif image.mode not in _MODES:
        problem = "cannot be read without loss"
    elif image.has_transparency_data:
        alphas = image.convert("RGBA").getchannel("A")
        if alphas.getextrema()[0] < 255:
            problem, description = "is transparent", f"{description} with transparent pixels"
            expected = "opaque pixels"
            advice = "Put it on a background first, and convert it to colour (RGB) or grey (L)."
    if problem:
        facts = (("expected", expected), ("found", description))
        raise DataError(f"the picture {problem}", facts=facts, advice=advice)


def _describe(shape: tuple[int, ...]) -> str:
    return f"{'grey' if shape[0] == 1 else 'colour'}, {shape[2]} wide, {shape[1]} high"
