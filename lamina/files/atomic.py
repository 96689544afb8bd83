"""Writing files atomically: a reader finds the old contents or the new, never a mixture."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from lamina.base.disk import Content, check_folder, sweep, write_whole
from lamina.errors import DataError


def write_atomically(path: str | os.PathLike[str], data: Content) -> None:
    """Writes a whole file: a temporary file in the same folder, fsync, rename, fsync of the folder.

    After an error or a crash the old file is intact. A file that is replaced keeps its permissions,
    and a symbolic link keeps pointing to the file that is written. Temporary files that killed
    processes left in the folder are removed.
    """
    target = Path(os.path.realpath(path))
    # First, because leftover temporary files may fill the disk.
    sweep(str(target.parent))
    try:
        permissions = None
        with suppress(FileNotFoundError):
            permissions = target.stat().st_mode & 0o7777
        write_whole(str(target), data, permissions)
    except OSError as error:
        size = f"{memoryview(data).nbytes:,} bytes"
        raise _not_written(error, path, target, ("writing", size)) from error


def require_writable(path: str | os.PathLike[str]) -> None:
    """Checks that a file can be written, before its contents are computed."""
    target = Path(os.path.realpath(path))
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        check_folder(str(target.parent))
    except OSError as error:
        raise _not_written(error, path, target) from error


def _not_written(
    error: OSError, path: str | os.PathLike[str], target: Path, *facts: tuple[str, str]
) -> DataError:
    return DataError(
        "the file could not be written",
        facts=(*facts, ("reason", error.strerror or str(error))),
        advice=_advice_on_error(error, target),
        where=os.fspath(path),
    )


def _advice_on_error(error: OSError, target: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Free some space on that disk, or write to another; the old file is unharmed."
    if target.is_dir():
        return "This is a folder: add a file name."
    if not target.parent.is_dir():
        return f"Create the folder first: {target.parent}"
    return "Check that the folder may be written to; an existing file is unharmed."
