"""Origins of tensors, for errors: the path in the network and the user's source line."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path

from lamina.base.records import frozen_dataclass
from lamina.errors import LaminaError, LaminaWarning


@frozen_dataclass
class Origin:
    """The origin of a tensor: the path of its layer, `"net/2:Linear"`, and the source line."""

    path: str = ""
    source: str = ""

    def __str__(self) -> str:
        has_both = self.path and self.source
        return f"{self.path} ({self.source})" if has_both else self.path or self.source


ORIGIN: ContextVar[Origin] = ContextVar("origin", default=Origin())  # noqa: B039 (frozen)

# Python's own files, through which this package calls itself: context managers and wrappers.
_BETWEEN = {contextlib.__file__, functools.__file__}
_package_folder = str(Path(__file__).resolve().parents[1]) + os.sep
# No line of the user's called what commands call.
_commands_folder = _package_folder + "cli" + os.sep

# Interactive code has no file. Other file names that begin with "<" are generated code.
_TYPED = ("<stdin>", "<python-input", "<ipython-input", "<doctest")


@contextmanager
def labelled(origin: Origin) -> Generator[None]:
    """Gives tensors made in the block this origin; it only changes names in messages."""
    token = ORIGIN.set(origin)
    try:
        yield
    finally:
        ORIGIN.reset(token)


def source_line() -> str:
    """`"file.py:12"`: the innermost line of the caller's stack outside this package, or ""."""
    # inspect.stack() reads the sources of all frames; currentframe() may be None.
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and not frame.f_code.co_filename.startswith(_commands_folder):
        name = frame.f_code.co_filename
        if _is_of_users(name):
            return f"{os.path.basename(name)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def warn(message: str) -> None:
    """Shows a `LaminaWarning` at the innermost line of the caller's stack outside this package.

    Python shows a text once for a line, unless its filters say otherwise. A thread of this package,
    which reads the batches of a stream, does not warn: the first batch was read by the caller's.
    """
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    level = 2
    while frame.f_back is not None and not _is_of_users(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    if frame.f_code.co_filename == threading.__file__:
        return
    warnings.warn(message, LaminaWarning, stacklevel=level)


# Called for each frame of the stack when an op is applied outside layers.
@lru_cache(maxsize=1 << 10)
def _is_of_users(file: str) -> bool:
    generated = file.startswith("<") and not file.startswith(_TYPED)
    return not file.startswith(_package_folder) and not generated and file not in _BETWEEN


def current_origin() -> Origin:
    """The layer being traced and its line; outside layers only the user's line."""
    current = ORIGIN.get()
    return current if current.source else Origin(current.path, source_line())


def located(error: LaminaError, path: str = "") -> LaminaError:
    """The error, with the current layer, or this path outside layers, and the source line added."""
    origin = current_origin()
    return error.at(str(Origin(origin.path or path, origin.source)))
