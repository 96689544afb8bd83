"""Files: read only if they are regular ones, and given their name when they are complete.

A file is written under a temporary name in its final folder, and renamed when it is complete.
Unfinished files of killed processes are removed by the next writer.

Process numbers cannot show whether a writer is still alive: another process may have the number by
now, and numbers mean nothing in another container. Instead a writer holds a lock (`flock`) on the
unfinished file. The system releases it when the last process that has the file open has ended, even
by a kill. The file is renamed while the lock is held. On a file system without such locks nothing
is removed. If one machine does not see the locks of another, it may remove a file that is being
written. The writer notices that and writes the file again.
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
# How often a file is written again after another process has removed it, and how often a new
# temporary file is made after another process has removed one that was not locked yet.
_ATTEMPTS, _NAME_ATTEMPTS = 5, 1000
# Flags that some systems lack.
_CLOSE_ON_EXEC = getattr(os, "O_CLOEXEC", 0)
_NONBLOCKING = getattr(os, "O_NONBLOCK", 0)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_BINARY = getattr(os, "O_BINARY", 0)


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a file for reading; never waits for the other end of a pipe."""
    # Checked before it is opened: opening a device may have effects.
    _require_regular(path, os.stat(path).st_mode)
    flags = os.O_RDONLY | _CLOSE_ON_EXEC | _NONBLOCKING | _BINARY
    # The caller closes it.
    file = open(path, "rb", opener=lambda name, _: os.open(name, flags))  # noqa: SIM115
    try:
        # Another file may have taken its name in between.
        _require_regular(path, os.fstat(file.fileno()).st_mode)
    except BaseException:
        file.close()
        raise
    return cast(BinaryIO, file)


def _require_regular(path: str | os.PathLike[str], mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"
        facts = (("expected", "a file"), ("found", kind))
        error = DataError("this is not a regular file", facts=facts, advice="Name one file.")
        raise error.at(os.fspath(path))


def write_whole(path: str, content: Content, permissions: int | None = None) -> None:
    """Writes a file, or leaves an existing one unchanged; waits until it survives a power failure.

    Args:
        permissions: the permissions of the file; if None, the process's umask decides.
    """
    for _ in range(_ATTEMPTS):
        if _written(path, content, permissions):
            break
    else:
        raise _removed()
    _make_name_durable(os.path.dirname(path) or ".")


def check_folder(directory: str) -> None:
    """Raises OSError unless files can be written in a folder."""
    name, file = _new_in(directory, None)
    file.close()
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(directory, name))


def sweep(folder: str | int) -> None:
    """Removes the unfinished files of ended writers from a folder, a path or a descriptor."""
    opened = folder if isinstance(folder, int) else None
    start = folder if isinstance(folder, str) else ""
    with suppress(OSError), os.scandir(folder) as entries:
        for name in [entry.name for entry in entries]:
            if name.startswith(PREFIX) and name.endswith(SUFFIX):
                with suppress(OSError):
                    _remove_if_abandoned(os.path.join(start, name), opened)


def new_unfinished(
    create: Callable[[str], int], directory: str, folder: int | None
) -> tuple[str, IO[bytes]]:
    """A new file, made by `create`, and its temporary name; `sweep` leaves it while it is open."""
    for _ in range(_NAME_ATTEMPTS):
        name = f"{PREFIX}{os.urandom(8).hex()}{SUFFIX}"
        path = os.path.join(directory, name)
        try:
            file = os.fdopen(create(name), "wb")
            if _is_ours(file, path, folder):
                return name, file
            file.close()
        except BaseException:
            with suppress(OSError):
                os.unlink(path, dir_fd=folder)
            raise
    raise _removed()


def _removed() -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "another process removes unfinished files")


def _written(path: str, content: Content, permissions: int | None) -> bool:
    """Writes a file; returns False if another process removed it before it was finished."""
    directory = os.path.dirname(path)
    name, file = _new_in(directory, permissions)
    unfinished = os.path.join(directory, name)
    # Not "with": on Windows it must be closed before it is renamed.
    try:
        if permissions is not None:
            os.chmod(file.fileno() if os.chmod in os.supports_fd else unfinished, permissions)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        if sys.platform == "win32":
            file.close()
        # Still locked.
        os.replace(unfinished, path)
        return True
    except FileNotFoundError:
        return False
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise
    finally:
        file.close()


def _new_in(directory: str, permissions: int | None) -> tuple[str, IO[bytes]]:
    """A new unfinished file; never an existing file or link that another process made."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_FOLLOW | _CLOSE_ON_EXEC | _BINARY
    mode = 0o666 if permissions is None else 0o600

    def create(name: str) -> int:
        return os.open(os.path.join(directory, name), flags, mode)

    return new_unfinished(create, directory, None)


def _is_ours(file: IO[bytes], path: str, folder: int | None) -> bool:
    """Locks a new file; returns whether it still has its name."""
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # another process is about to remove it
        return False
    except OSError:  # a file system without locks: unfinished files are never removed there
        pass
    return _is_named(file.fileno(), path, folder)


def _is_named(descriptor: int, path: str, folder: int | None) -> bool:
    try:
        named = os.stat(path, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(descriptor))


def _remove_if_abandoned(path: str, folder: int | None) -> None:
    """Removes an unfinished file; raises OSError if a writer has locked it."""
    if sys.platform == "win32":
        os.unlink(path)  # an open file cannot be removed: no lock is needed
        return
    flags = os.O_RDWR | _NO_FOLLOW | _NONBLOCKING | _CLOSE_ON_EXEC
    descriptor = os.open(path, flags, dir_fd=folder)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # It may be finished by now: the locked file then has its final name.
            if _is_named(descriptor, path, folder):
                os.unlink(path, dir_fd=folder)
    finally:
        os.close(descriptor)


def _make_name_durable(directory: str) -> None:
    """Flushes a folder: a power failure could otherwise undo a renaming, but not the contents."""
    if sys.platform == "win32":  # a folder cannot be opened on Windows
        return
    try:
        descriptor = os.open(directory, os.O_RDONLY | _CLOSE_ON_EXEC)
    except PermissionError:  # a folder that is writable and not readable
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems without this
            raise
    finally:
        os.close(descriptor)
