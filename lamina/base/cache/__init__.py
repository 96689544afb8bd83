"""Programs and their machine code on disk, so that they are compiled once.

Comes in: entries, and their inputs: the graph or program, the processor, the versions. A hash of
these is the entry's name. Leaves: the entry, if it is there. It holds its name and a checksum; one
that does not match is removed and compiled again. Some entries are machine code, so the folder must
be one that no other user can change. The cache never makes a program fail: where the disk cannot be
used, everything is compiled. Read `folders.py` first.

    objects/new/                unfinished entries
    objects/0/ ... objects/f/   shards, by the first digit of an entry's name
    objects/0/written           a byte for each KiB written since this shard was last trimmed

The time to write an entry does not depend on their number: shards are listed once in many writes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import final

import platformdirs

from lamina.base.cache.folders import Folder, opened
from lamina.base.records import cached_property

# An entry begins with this, the SHA-256 of the key, the length of the content, and the SHA-256 of
# those three and the content.
MAGIC = b"lamina object 2\n"
_LENGTH_BYTES = 8
_HEADER_BYTES = len(MAGIC) + 32 + _LENGTH_BYTES + 32
# If a shard exceeds its share of this, its least recently used entries are removed. That is checked
# each time an eighth of its share was written.
LARGEST_BYTES = 256 << 20
SHARDS = 16
_OVERSHOOT = 8
_FOLDER, _NEW, _WRITTEN = "objects", "new", "written"
_SUFFIX = ".object"
_WRITTEN_UNIT = 1 << 10
# The reported reasons for having no cache.
_reported: set[str] = set()


def folder() -> Path | None:
    """The folder of the entries, which is the user's own; None if there is no cache.

    The environment variable LAMINA_CACHE names another folder, or turns the cache off if it is
    `off`, `0` or empty. If the folder cannot be used, the reason is reported once.
    """
    with _opened() as cache_folder:
        return cache_folder.path if cache_folder else None


@contextmanager
def _opened() -> Generator[Folder | None]:
    """The folder of the cache; None if there is none."""
    cache_folder = None
    with ExitStack() as stack:
        try:
            path = _path()
            if path is not None:
                cache_folder = stack.enter_context(opened(path, _FOLDER))
        except OSError as error:
            _report_once(error.strerror or str(error), error.filename)
        yield cache_folder


def _path() -> Path | None:
    """The path of the cache's parent folder; None if the cache is turned off."""
    setting = os.environ.get("LAMINA_CACHE")
    if setting is not None and setting.lower() in ("off", "0", ""):
        return None
    user = setting.partition(os.sep)[0] if setting else "~"
    home = os.path.expanduser(user)
    try:
        path = Path(setting or platformdirs.user_cache_dir("lamina")).expanduser()
    except RuntimeError:
        raise OSError("there is no home folder") from None
    # A folder with an absolute path is made if it does not exist, but a home folder is not.
    is_lacking = user.startswith("~") and path.is_relative_to(home) and not os.path.isdir(home)
    if is_lacking or (not setting and not path.is_absolute()):
        raise OSError("there is no home folder")
    return path


def _report_once(reason: str, where: object) -> None:
    """Logs why there is no cache; not as a warning, which some users turn into errors."""
    text = f"{where}: {reason}" if where else reason
    if text not in _reported:
        _reported.add(text)
        import logging

        logging.getLogger("lamina").warning(
            "Lamina compiles again in every process, because its cache cannot be used: %s. "
            "LAMINA_CACHE names another folder; LAMINA_CACHE=off turns the cache off.",
            text,
        )


def key_of(inputs: Iterable[str]) -> str:
    """The key of an entry made from these inputs: the SHA-256 of all of them, in order."""
    encoded = (len(text).to_bytes(8, "little") + text for text in map(str.encode, inputs))
    return hashlib.sha256(b"".join(encoded)).hexdigest()


@final
class Sources:
    """The modules of some packages, without subpackages, when this object is made.

    Make it while the packages are imported: an upgrade may replace them while the process runs.
    """

    def __init__(self, *packages: str) -> None:
        self.packages = packages
        self.checksum = sources_checksum(*packages)

    @cached_property
    def are_unchanged(self) -> bool:
        """Whether modules imported later are of the same version; checked once."""
        return sources_checksum(*self.packages) == self.checksum


def sources_checksum(*packages: str) -> str:
    """A checksum of the modules of some packages, without subpackages; "" if unreadable."""
    modules: list[tuple[str, bytes]] = []
    for package in packages:
        root, *below = package.split(".")  # it need not be imported
        for file in files(root).joinpath(*below).iterdir():
            # Some installations have only compiled modules.
            if file.name.endswith((".py", ".pyc")) and file.is_file():
                modules.append((f"{package}/{file.name}", file.read_bytes()))
    texts = (name.encode() + content for name, content in sorted(modules))
    return hashlib.sha256(b"".join(texts)).hexdigest() if modules else ""


def cached(key: str, make: Callable[[], bytes]) -> bytes:
    """The entry of a key. If there is none, it is made and kept."""
    content = find(key)
    if content is None:
        content = make()
        keep(key, content)
    return content


def find(key: str) -> bytes | None:
    """The entry of a key; None if there is none."""
    with _opened() as cache_folder:
        if cache_folder is None:
            return None
        name, shard = _names(key)
        with suppress(OSError), cache_folder.below(shard) as entries:
            return _read(entries, name, key)
    return None


def keep(key: str, content: bytes) -> None:
    """Writes the entry of a key, if the disk can be used."""
    with _opened() as root:
        if root is None:
            return
        name, shard = _names(key)
        with suppress(OSError), root.below(_NEW) as new, root.below(shard) as entries:
            new.sweep()
            _write(new, entries, name, _header(key, content) + content)


def _names(key: str) -> tuple[str, str]:
    """The names of an entry's file and of its shard."""
    digest = hashlib.sha256(key.encode()).hexdigest()
    return digest + _SUFFIX, digest[0]


def _header(key: str, content: bytes) -> bytes:
    start = MAGIC + hashlib.sha256(key.encode()).digest()
    start += len(content).to_bytes(_LENGTH_BYTES, "little")
    digest = hashlib.sha256(start)
    digest.update(content)
    return start + digest.digest()


def _read(entries: Folder, name: str, key: str) -> bytes | None:
    with os.fdopen(entries.open(name, os.O_RDONLY), "rb") as file:
        data = file.read()
        content = data[_HEADER_BYTES:]
        if data[:_HEADER_BYTES] == _header(key, content):
            with suppress(OSError):
                # Mark it as used.
                entries.touch(name, file.fileno())
            return content
    entries.remove(name)
    return None


def _write(new: Folder, entries: Folder, name: str, data: bytes) -> None:
    """Writes an entry atomically: readers see all of it or nothing."""
    temporary, file = new.unfinished()
    try:
        file.write(data)
        file.flush()
        # Counted first: a process killed in between leaves no entry that was not counted.
        needs_trim = _count(entries, len(data))
        if os.name != "posix":
            # On Windows an open file cannot be moved. Elsewhere it stays locked until then.
            file.close()
        entries.take(new, temporary, name)
    except BaseException:
        with suppress(OSError):
            new.remove(temporary)
        raise
    finally:
        file.close()
    if needs_trim:
        _trim(entries)


def _count(entries: Folder, size: int) -> bool:
    """Counts bytes written to a shard; returns whether it should be trimmed."""
    try:
        file = entries.open(_WRITTEN, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, bytes(-(-size // _WRITTEN_UNIT)))
            written = os.fstat(file).st_size * _WRITTEN_UNIT
            needs_trim = written * SHARDS * _OVERSHOOT > LARGEST_BYTES
            if needs_trim:
                os.ftruncate(file, 0)
            return needs_trim
        finally:
            os.close(file)
    except OSError:
        return True


def _trim(entries: Folder) -> None:
    """Removes a shard's least recently used entries until it is small, but never the last."""
    objects = [entry for entry in entries.files() if entry[0].endswith(_SUFFIX)]
    objects.sort(key=lambda entry: entry[1].st_mtime_ns)
    size = sum(status.st_size for _, status in objects)
    for name, status in objects[:-1]:
        if size * SHARDS <= LARGEST_BYTES:
            return
        with suppress(OSError):
            entries.remove(name)
        size -= status.st_size
