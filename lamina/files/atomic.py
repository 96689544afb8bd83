"""Writing a file so that a reader finds the old contents or the new, never a part of them."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path

from lamina.errors import DataError


def write_atomically(path: str | os.PathLike[str], data: bytes | bytearray | memoryview) -> None:
    """Writes a whole file: a temporary file in the same folder, fsync, rename, fsync of the folder.

    After an error or a crash the old file is still there, whole. A file that is replaced keeps
    its permissions, and a symbolic link keeps pointing to the file that is written.

    Raises:
        DataError: if the file cannot be written; nothing is left behind.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_atomically(folder / "note", b"all of it")
    >>> (folder / "note").read_bytes()
    b'all of it'
    """
    target = Path(os.path.realpath(path))
    temporary = _temporary(target)
    try:
        try:
            _write_durably(temporary, data)
            with contextlib.suppress(FileNotFoundError):
                temporary.chmod(target.stat().st_mode & 0o7777)
            temporary.replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        _make_name_durable(target.parent)
    except OSError as error:
        size = f"{memoryview(data).nbytes:,} bytes"
        raise _not_written(error, path, target, ("writing", size)) from error


def require_writable(path: str | os.PathLike[str]) -> None:
    """Checks that a file could be written there, before there is anything to write.

    Raises:
        DataError: if it cannot; a file that is there is not touched.
    """
    target = Path(os.path.realpath(path))
    temporary = _temporary(target)
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        temporary.touch(exist_ok=False)
        temporary.unlink()
    except OSError as error:
        raise _not_written(error, path, target) from error


def _temporary(target: Path) -> Path:
    return target.parent / f".lamina-{secrets.token_hex(8)}.tmp"


def _not_written(
    error: OSError, path: str | os.PathLike[str], target: Path, *facts: tuple[str, str]
) -> DataError:
    return DataError(
        "the file could not be written",
        facts=(*facts, ("reason", error.strerror or str(error))),
        advice=_advice(error, target),
        where=os.fspath(path),
    )


def _write_durably(path: Path, data: bytes | bytearray | memoryview) -> None:
    with path.open("xb") as file:  # "x": never a file, or a link, that somebody else put there
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _make_name_durable(folder: Path) -> None:
    """Without this a power cut may undo the rename, although the contents are on the disk."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder that may be written to and not listed
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that have no such thing
            raise
    finally:
        os.close(descriptor)


def _advice(error: OSError, target: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Free some space on that disk, or write to another; the old file is unharmed."
    if target.is_dir():
        return "This is a folder: add a file name."
    if not target.parent.is_dir():
        return f"Create the folder first: {target.parent}"
    return "Check that the folder may be written to; a file that was there is unharmed."
