"""Folders that nobody else can change: opened step by step from the root, without following links.

What lies in the cache is run, so it must be ours. A folder's path says nothing about that: another
user may own a folder on the way, or put a link there between a check and the use. So every folder
on the way is opened relative to the one before it and examined when it is open, as ssh and sudo
examine the ways to their files, and files are opened relative to the last folder.

Where the system cannot open files relative to folders (Windows), the user's folders are protected
by default, and nothing is examined.
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

from lamina.disk import new_unfinished, sweep

# Only where a folder can be held open do checks mean anything.
_EXAMINED = hasattr(os, "geteuid") and os.open in os.supports_dir_fd
_FOLDER = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
# On the way, folders need not be readable.
_ON_THE_WAY = _FOLDER | getattr(os, "O_PATH", os.O_RDONLY)
_FILE = (
    getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    # Something that is no file, a pipe for example, must not keep us waiting.
    | getattr(os, "O_NONBLOCK", 0)
)  # fmt: skip
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
# As many links as Linux follows on one way.
_MOST_LINKS = 40


class RefusedError(OSError):
    """A folder, or a file in it, could be somebody else's."""


@final
class Folder:
    """An open folder that is ours alone; everything in it is reached through its descriptor.

    Args:
        path: for people, and where there are no descriptors of folders.
        descriptor: of the folder; None where there are none.
    """

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self.path = path
        self._descriptor = descriptor

    @contextmanager
    def below(self, name: str) -> Generator[Folder]:
        """A folder in this one, made if it is not there."""
        if self._descriptor is None:
            path = self.path / name
            path.mkdir(exist_ok=True)
            yield Folder(path, None)
            return
        descriptor = _opened_or_made(name, self._descriptor, _FOLDER | os.O_RDONLY)
        try:
            _require_ours(os.fstat(descriptor), self.path / name)
            yield Folder(self.path / name, descriptor)
        finally:
            os.close(descriptor)

    def open(self, name: str, flags: int) -> int:
        """A descriptor of a file, which is a plain one, ours, and written by nobody else."""
        file = os.open(self._at(name), flags | _FILE, 0o600, dir_fd=self._descriptor)
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise RefusedError(f"{self.path / name} is no file")
            if _EXAMINED:
                _require_ours(status, self.path / name)
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
        """Removes what processes left unfinished that ended."""
        sweep(str(self.path) if self._descriptor is None else self._descriptor)

    def touch(self, name: str, file: int) -> None:
        """Has an open file count as used now."""
        if os.utime in os.supports_fd:
            os.utime(file)
        else:
            os.utime(self._at(name))

    def remove(self, name: str) -> None:
        """Removes a file."""
        os.unlink(self._at(name), dir_fd=self._descriptor)

    def take(self, source: Folder, name: str, new_name: str) -> None:
        """Moves a file here from another folder, at once, in place of one of the new name."""
        there, here = source._at(name), self._at(new_name)
        os.replace(there, here, src_dir_fd=source._descriptor, dst_dir_fd=self._descriptor)

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Name and status of all plain files, those left out that vanish meanwhile."""
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
    """The folder of that name at a path, all of it made where it is not there.

    Every folder on the way belongs to us or to root, and nobody else may write to it; or it is
    one where people can only touch what is theirs, as in /tmp (the sticky bit). The last one is
    ours alone. Links are followed where only root can put them, but the path itself is none.

    Raises:
        OSError: where that is not so (`RefusedError`), or the system has other reasons.
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
    """A descriptor of the folder at an absolute path, every folder on the way being examined."""
    rest = list(reversed(path.parts[1:]))
    here, links = "", 0
    descriptor = os.open("/", _ON_THE_WAY)
    try:
        only_root = _require_trusted(descriptor, "/")
        while rest:
            name = rest.pop()
            try:
                below = _opened_or_made(name, descriptor, _ON_THE_WAY)
            except OSError as error:
                # Systems differ in what they say to a link where a folder is wanted.
                if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK):
                    error.filename = f"{here}/{name}"
                    raise
                target = Path(_link(name, descriptor, here))
                links += 1
                if not (only_root and rest) or links > _MOST_LINKS:
                    raise RefusedError(f"{here}/{name} is a link") from None
                rest += reversed(target.parts[1:] if target.is_absolute() else target.parts)
                if not target.is_absolute():
                    continue
                below, here, name = os.open("/", _ON_THE_WAY), "", ""
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
    with suppress(FileExistsError):  # Another process was quicker.
        os.mkdir(name, 0o700, dir_fd=folder)
    return os.open(name, flags, dir_fd=folder)


def _link(name: str, folder: int, path: str) -> str:
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError:
        raise RefusedError(f"{path}/{name} is no folder") from None


def _require_trusted(descriptor: int, path: str) -> bool:
    """Checks a folder on the way; whether root alone decides what lies in it."""
    status = os.fstat(descriptor)
    if status.st_uid not in (0, os.geteuid()):
        raise RefusedError(f"{path} belongs to somebody else")
    shared = _others_may_write(status, descriptor)
    if shared and not status.st_mode & stat.S_ISVTX:
        raise RefusedError(f"others may write to {path}")
    return status.st_uid == 0 and not shared


def _others_may_write(status: os.stat_result, descriptor: int) -> bool:
    mode = status.st_mode
    if mode & stat.S_IWOTH:
        return True
    # These bits also bound what an access control list gives to others: acl(5).
    in_group = bool(mode & stat.S_IWGRP)
    return in_group and not (_is_own_group(status.st_gid) and _has_no_list(descriptor))


def _is_own_group(group: int) -> bool:
    """Whether it is the group that many systems make for each user, with nobody else in it."""
    import grp
    import pwd

    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    own = user.pw_gid == group and found.gr_name == user.pw_name
    return own and user.pw_uid != 0 and set(found.gr_mem) <= {user.pw_name}


def _has_no_list(descriptor: int) -> bool:
    """Whether a folder has no access control list beside its mode."""
    if sys.platform != "linux":
        return True
    try:
        # The descriptor itself allows no more than to go on from it (O_PATH).
        os.getxattr(f"/proc/self/fd/{descriptor}", "system.posix_acl_access")
    except OSError as error:
        return error.errno in (errno.ENODATA, errno.ENOTSUP)
    return False


def _require_ours(status: os.stat_result, path: Path) -> None:
    if status.st_uid != os.geteuid():
        raise RefusedError(f"{path} belongs to somebody else")
    if status.st_mode & _WRITABLE_BY_OTHERS:
        raise RefusedError(f"others may write to {path}")
