"""Folders that no other user can change: opened one by one from the root, not following links.

Code in the cache is run, so the cache must belong to the user of this process. Its path alone does
not show that: another user may own a folder along it, or put a link there between a check and the
use. So every folder along the path is opened relative to its parent, and checked when it is open.
Files are opened relative to the last folder. ssh and sudo check the paths of their files like this.

Where the system cannot open files relative to folders (Windows), the user's folders are protected
by default, and nothing is checked.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, final

from lamina.base.disk import new_unfinished, sweep

# Checks are reliable only where folders can be held open.
_EXAMINED = hasattr(os, "geteuid") and os.open in os.supports_dir_fd
_FOLDER = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
# Folders along the path need not be readable.
_ANCESTOR = _FOLDER | getattr(os, "O_PATH", os.O_RDONLY)
_FILE = (
    getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    # Opening a pipe, for example, must not wait.
    | getattr(os, "O_NONBLOCK", 0)
)  # fmt: skip
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
# The limit of links in one path on Linux.
_MOST_LINKS = 40


class RefusedError(OSError):
    """Another user owns or can change a folder, or a file in it."""


@final
class Folder:
    """An open folder that only this user can change; its contents are opened by its descriptor."""

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self.path = path
        self._descriptor = descriptor

    @contextmanager
    def below(self, name: str) -> Generator[Folder]:
        """A folder in this one, made if it does not exist."""
        if self._descriptor is None:
            path = self.path / name
            path.mkdir(exist_ok=True)
            yield Folder(path, None)
            return
        descriptor = _opened_or_made(name, self._descriptor, _FOLDER | os.O_RDONLY)
        try:
            _require_own(os.fstat(descriptor), self.path / name)
            yield Folder(self.path / name, descriptor)
        finally:
            os.close(descriptor)

    def open(self, name: str, flags: int) -> int:
        """A descriptor of a regular file that this user owns and no other user can write."""
        file = os.open(self._at(name), flags | _FILE, 0o600, dir_fd=self._descriptor)
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise RefusedError(f"{self.path / name} is not a file")
            if _EXAMINED:
                _require_own(status, self.path / name)
        except BaseException:
            os.close(file)
            raise
        return file

    def unfinished(self) -> tuple[str, IO[bytes]]:
        """The name of a new file, and the file; `sweep` leaves it alone while it is open."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        directory = "" if self._descriptor is not None else str(self.path)
        return new_unfinished(lambda name: self.open(name, flags), directory, self._descriptor)

    def sweep(self) -> None:
        """Removes unfinished files of processes that have ended."""
        sweep(str(self.path) if self._descriptor is None else self._descriptor)

    def touch(self, name: str, file: int) -> None:
        """Marks an open file as used now."""
        os.utime(file if os.utime in os.supports_fd else self._at(name))

    def remove(self, name: str) -> None:
        os.unlink(self._at(name), dir_fd=self._descriptor)

    def take(self, source: Folder, name: str, new_name: str) -> None:
        """Moves a file here from another folder, atomically, replacing a file of the new name."""
        there, here = source._at(name), self._at(new_name)
        os.replace(there, here, src_dir_fd=source._descriptor, dst_dir_fd=self._descriptor)

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Name and status of all regular files, except those that vanish meanwhile."""
        with os.scandir(self.path if self._descriptor is None else self._descriptor) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                if stat.S_ISREG(status.st_mode):
                    yield entry.name, status

    def _at(self, name: str) -> str:
        return name if self._descriptor is not None else str(self.path / name)


@contextmanager
def opened(path: Path, name: str) -> Generator[Folder]:
    """The folder of that name at a path; missing folders are made.

    Every folder along the path must belong to this user or to root, and be writable by no one else
    unless users can only change their own files in it, as in /tmp (the sticky bit). The last one
    must belong to this user and be writable by no one else. Links are followed only where root
    alone can make them, and the path itself must not be one.
    """
    if not _EXAMINED:
        (path / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        yield Folder(path / name, None)
        return
    descriptor = _walked(Path(os.path.abspath(path)))
    try:
        with Folder(path, descriptor).below(name) as folder:
            yield folder
    finally:
        os.close(descriptor)


def _walked(path: Path) -> int:
    """A descriptor of the folder at an absolute path; every folder along it is checked."""
    rest = list(reversed(path.parts[1:]))
    here, links = "", 0
    descriptor = os.open("/", _ANCESTOR)
    try:
        only_root = _require_trusted(descriptor, "/")
        while rest:
            name = rest.pop()
            try:
                below = _opened_or_made(name, descriptor, _ANCESTOR)
            except OSError as error:
                # The error for a link instead of a folder differs between systems.
                if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK):
                    error.filename = f"{here}/{name}"
                    raise
                try:
                    target = Path(os.readlink(name, dir_fd=descriptor))
                except OSError:
                    raise RefusedError(f"{here}/{name} is not a folder") from None
                links += 1
                if not (only_root and rest) or links > _MOST_LINKS:
                    raise RefusedError(f"{here}/{name} is a link") from None
                rest += reversed(target.parts[1:] if target.is_absolute() else target.parts)
                if not target.is_absolute():
                    continue
                below, here, name = os.open("/", _ANCESTOR), "", ""
            before, descriptor = descriptor, below
            os.close(before)
            here = f"{here}/{name}" if name else here
            only_root = _require_trusted(descriptor, here or "/") and only_root
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _opened_or_made(name: str, folder: int, flags: int) -> int:
    with suppress(FileNotFoundError):
        return os.open(name, flags, dir_fd=folder)
    with suppress(FileExistsError):  # Another process made it first.
        os.mkdir(name, 0o700, dir_fd=folder)
    return os.open(name, flags, dir_fd=folder)


def _require_trusted(descriptor: int, path: str) -> bool:
    """Checks a folder along the path; returns whether only root can change it."""
    status = os.fstat(descriptor)
    if status.st_uid not in (0, os.geteuid()):
        raise RefusedError(f"{path} belongs to another user")
    shared = _others_may_write(status, descriptor)
    if shared and not status.st_mode & stat.S_ISVTX:
        raise RefusedError(f"others may write to {path}")
    return status.st_uid == 0 and not shared


def _others_may_write(status: os.stat_result, descriptor: int) -> bool:
    mode = status.st_mode
    if mode & stat.S_IWOTH:
        return True
    # These bits also limit the permissions that an access control list grants: acl(5).
    in_group = bool(mode & stat.S_IWGRP)
    return in_group and not (_is_own_group(status.st_gid) and _has_no_access_list(descriptor))


def _is_own_group(group: int) -> bool:
    """Whether a group is the private group that many systems make for each user."""
    import grp
    import pwd

    try:
        user, record = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    is_users = user.pw_gid == group and record.gr_name == user.pw_name
    return is_users and user.pw_uid != 0 and set(record.gr_mem) <= {user.pw_name}


def _has_no_access_list(descriptor: int) -> bool:
    """Whether a folder has no access control list in addition to its mode."""
    if sys.platform != "linux":
        return True
    try:
        # The descriptor itself may only be used to open folders below (O_PATH).
        os.getxattr(f"/proc/self/fd/{descriptor}", "system.posix_acl_access")
    except OSError as error:
        return error.errno in (errno.ENODATA, errno.ENOTSUP)
    return False


def _require_own(status: os.stat_result, path: Path) -> None:
    if status.st_uid != os.geteuid():
        raise RefusedError(f"{path} belongs to another user")
    if status.st_mode & _WRITABLE_BY_OTHERS:
        raise RefusedError(f"others may write to {path}")
