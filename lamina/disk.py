"""Files: read only if they are regular ones, and written whole or not at all.

A file is written under a name of its own in the folder where it shall lie, and takes the other name
when it is whole. What a killed process leaves unfinished is removed by the next writer.

Whether a process is gone is not asked of its number: that may be another's by now, and means
nothing in another container. Whoever writes holds a lock of the system (`flock`) on the unfinished
file. The system gives it back when the last process that has the file open is gone, however it
ended; a new name is given while the lock is held. Where a file system has no such locks, nothing is
removed. Where one machine does not see the locks of another, a file may be removed that somebody
writes: its writer finds it gone, and writes it again.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import IO, BinaryIO, cast

from lamina.errors import DataError

if sys.platform != "win32":
    import fcntl

Content = bytes | bytearray | memoryview

PREFIX, SUFFIX = ".lamina-", ".tmp"
# So often is a file written again that somebody removed, and made again where somebody took it
# for one that was left, as it was not locked yet.
_ATTEMPTS, _CLAIMS = 5, 1000
# Flags that some systems do not have.
_CLOSED_BY_PROGRAMS = getattr(os, "O_CLOEXEC", 0)
_WITHOUT_WAITING = getattr(os, "O_NONBLOCK", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_AS_IT_IS = getattr(os, "O_BINARY", 0)


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a file for reading; never waits for the other end of a pipe.

    Raises:
        DataError: for a folder, a pipe, a socket or a device.
        OSError: if it cannot be opened.
    """
    # Before it is opened: opening a device may do something.
    _require_regular(path, os.stat(path).st_mode)
    flags = os.O_RDONLY | _CLOSED_BY_PROGRAMS | _WITHOUT_WAITING | _AS_IT_IS
    # It is the caller who closes it.
    file = open(path, "rb", opener=lambda name, _: os.open(name, flags))  # noqa: SIM115
    try:
        # By now another one may have its name.
        _require_regular(path, os.fstat(file.fileno()).st_mode)
    except BaseException:
        file.close()
        raise
    return cast(BinaryIO, file)


def _require_regular(path: str | os.PathLike[str], mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise DataError(
            "this is not a file",
            facts=(
                ("expected", "a file"),
                ("found", "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"),
            ),
            advice="Name one file.",
            where=os.fspath(path),
        )


def write_whole(
    path: str,
    content: Content,
    *,
    durable: bool = True,
    permissions: int | None = None,
    folder: int | None = None,
) -> None:
    """Writes a file, or leaves the one that is there as it is.

    Args:
        path: of the file; it is replaced, and so would a link be.
        content: all of it.
        durable: wait until it is on the disk, where a power cut does not undo it.
        permissions: of the file; as the process makes files if None.
        folder: the descriptor of an open folder in which the path begins.

    Raises:
        OSError: if it cannot be written; nothing is left behind.
    """
    for _ in range(_ATTEMPTS):
        if _written(path, content, durable, permissions, folder):
            break
    else:
        raise _removed()
    if durable:
        _make_name_durable(os.path.dirname(path) or ".", folder)


def check_folder(directory: str) -> None:
    """Raises OSError unless files can be written in a folder."""
    name, file = _new_in(directory, None, None)
    file.close()
    with suppress(FileNotFoundError):
        _remove(os.path.join(directory, name), None)


def sweep(folder: str | int) -> None:
    """Removes what writers left unfinished in a folder; never what a living one writes.

    Args:
        folder: its path, or the descriptor of an open one.
    """
    if sys.platform == "win32":
        # There nobody can remove a file that somebody has open: no lock is needed.
        remove = _remove
    else:
        remove = _remove_if_left
    opened = folder if isinstance(folder, int) else None
    start = folder if isinstance(folder, str) else ""
    with suppress(OSError), os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
        for name in names:
            if name.startswith(PREFIX) and name.endswith(SUFFIX):
                with suppress(OSError):
                    remove(os.path.join(start, name), opened)


def new_unfinished(
    create: Callable[[str], int], directory: str, folder: int | None
) -> tuple[str, IO[bytes]]:
    """A new file under a name of its own, which `sweep` leaves alone while it is open.

    Args:
        create: opens a new file of a given name in the folder.
        directory: the path of the folder.
        folder: the descriptor of an open folder in which that path begins.

    Returns:
        Its name in the folder, and the file.
    """
    for _ in range(_CLAIMS):
        name = f"{PREFIX}{os.urandom(8).hex()}{SUFFIX}"
        path = os.path.join(directory, name)
        try:
            file = os.fdopen(create(name), "wb")
            if _is_ours(file, path, folder):
                return name, file
            file.close()
        except BaseException:
            with suppress(OSError):
                _remove(path, folder)
            raise
    raise _removed()


def _removed() -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "somebody removes what is not finished yet")


def _written(
    path: str,
    content: Content,
    durable: bool,
    permissions: int | None,
    folder: int | None,
) -> bool:
    """Writes a file; False if somebody else removed it before it was finished."""
    directory = os.path.dirname(path)
    name, file = _new_in(directory, permissions, folder)
    unfinished = os.path.join(directory, name)
    # Not "with": on Windows it must be closed before it gets another name.
    try:
        if permissions is not None:
            os.chmod(file.fileno() if os.chmod in os.supports_fd else unfinished, permissions)
        file.write(content)
        file.flush()
        if durable:
            os.fsync(file.fileno())
        if sys.platform == "win32":
            file.close()
        # Still locked.
        os.replace(unfinished, path, src_dir_fd=folder, dst_dir_fd=folder)
        return True
    except FileNotFoundError:
        return False
    except BaseException:
        with suppress(OSError):
            _remove(unfinished, folder)
        raise
    finally:
        file.close()


def _new_in(directory: str, permissions: int | None, folder: int | None) -> tuple[str, IO[bytes]]:
    """The same, made here: never a file, or a link, that somebody else put there."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINK | _CLOSED_BY_PROGRAMS | _AS_IT_IS
    mode = 0o666 if permissions is None else 0o600

    def create(name: str) -> int:
        return os.open(os.path.join(directory, name), flags, mode, dir_fd=folder)

    return new_unfinished(create, directory, folder)


def _is_ours(file: IO[bytes], path: str, folder: int | None) -> bool:
    """Locks a new file, and says whether it is still there."""
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # somebody is about to remove it
        return False
    except OSError:  # a file system without locks: nobody removes anything there
        pass
    return _is_named(file.fileno(), path, folder)


def _is_named(descriptor: int, path: str, folder: int | None) -> bool:
    try:
        named = os.stat(path, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(descriptor))


def _remove_if_left(path: str, folder: int | None) -> None:
    """Removes an unfinished file unless somebody writes it; raises OSError where that shows."""
    if sys.platform == "win32":
        return
    flags = os.O_RDWR | _NO_LINK | _WITHOUT_WAITING | _CLOSED_BY_PROGRAMS
    descriptor = os.open(path, flags, dir_fd=folder)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # It may be finished by now: then what is locked is somebody's file, under its own name.
            if _is_named(descriptor, path, folder):
                _remove(path, folder)
    finally:
        os.close(descriptor)


def _remove(path: str, folder: int | None) -> None:
    os.unlink(path, dir_fd=folder)


def _make_name_durable(directory: str, folder: int | None) -> None:
    """Without this a power cut may undo the new name, although the contents are on the disk."""
    if sys.platform == "win32":  # there a folder cannot be opened
        return
    try:
        descriptor = os.open(directory, os.O_RDONLY | _CLOSED_BY_PROGRAMS, dir_fd=folder)
    except PermissionError:  # a folder that may be written to and not listed
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that have no such thing
            raise
    finally:
        os.close(descriptor)
