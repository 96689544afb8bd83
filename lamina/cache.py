"""Programs and their machine code on disk, so that they are compiled once.

An entry is named by what it was made from: the graph or program, the processor, the versions. Each
carries a checksum; one that does not fit is removed and compiled again. Some entries are machine
code, so a folder that others could write to is not used. Nothing here ever makes a program fail:
where the disk cannot be used, everything is compiled.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import platformdirs

# Entries begin with this, the length of what follows and its SHA-256.
MAGIC = b"lamina object 1\n"
_LENGTH_BYTES, _CHECKSUM_BYTES = 8, 32
_HEADER_BYTES = len(MAGIC) + _LENGTH_BYTES + _CHECKSUM_BYTES
# When more lies in the folder, the entries that were not used for longest are removed.
LARGEST_BYTES = 256 << 20
_SUFFIX, _UNFINISHED = ".object", ".part"
# What is still unfinished after so long was left behind by a process that ended.
_UNFINISHED_SECONDS = 3600


def folder() -> Path | None:
    """Where entries lie: a folder of the user's own.

    The environment variable LAMINA_CACHE names another one, or turns the cache off if it is
    `off`, `0` or empty. None if there is no cache.
    """
    wanted = os.environ.get("LAMINA_CACHE")
    if wanted is not None and wanted.lower() in ("off", "0", ""):
        return None
    try:
        path = Path(wanted or platformdirs.user_cache_dir("lamina")).expanduser() / "objects"
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path if _is_ours_alone(path) else None
    except OSError:
        return None


def _is_ours_alone(path: Path) -> bool:
    if not hasattr(os, "getuid"):
        return True
    status = path.stat()
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def key_of(parts: Iterable[str]) -> str:
    """The name of what is made from these parts: SHA-256 of all of them, in order."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.hexdigest()


def sources_checksum(*packages: str) -> str:
    """A checksum of the modules of some packages, without those below; "" if they are hidden."""
    found = [
        (f"{package}/{file.name}", file.read_bytes())
        # Sources; in some installations compiled ones, or an archive of them.
        for package in packages
        for file in files(package).iterdir()
        if file.is_file() and file.name.endswith((".py", ".pyc"))
    ]
    digest = hashlib.sha256()
    for name, content in sorted(found):
        digest.update(name.encode() + content)
    return digest.hexdigest() if found else ""


def cached(key: str, make: Callable[[], bytes]) -> bytes:
    """The entry of that name, made and kept if there is none."""
    found = find(key)
    if found is None:
        found = make()
        keep(key, found)
    return found


def find(key: str) -> bytes | None:
    """The entry of that name; None if there is none."""
    place = folder()
    return _read(place, key) if place else None


def keep(key: str, content: bytes) -> None:
    """Makes an entry of that name, if the disk can be used."""
    place = folder()
    if place:
        _write(place, key, content)


def _read(place: Path, key: str) -> bytes | None:
    path = place / f"{key}{_SUFFIX}"
    try:
        data = path.read_bytes()
    except OSError:
        return None
    content = data[_HEADER_BYTES:]
    if data[:_HEADER_BYTES] != _header(content):
        with suppress(OSError):
            path.unlink()
        return None
    with suppress(OSError):
        # So that it counts as used.
        os.utime(path)
    return content


def _header(content: bytes) -> bytes:
    length = len(content).to_bytes(_LENGTH_BYTES, "little")
    return MAGIC + length + hashlib.sha256(content).digest()


def _write(place: Path, key: str, content: bytes) -> None:
    """Atomically: readers see all of an entry or nothing."""
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(dir=place, suffix=_UNFINISHED)
        with os.fdopen(handle, "wb") as file:
            file.write(_header(content) + content)
        os.replace(temporary, place / f"{key}{_SUFFIX}")
        _trim(place)
    except OSError:
        if temporary:
            with suppress(OSError):
                os.unlink(temporary)


def _trim(place: Path) -> None:
    """Removes the entries used longest ago until the rest is small enough, and what was left."""
    for path in place.glob(f"*{_UNFINISHED}"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _UNFINISHED_SECONDS:
                path.unlink()
    entries = [(path.stat(), path) for path in place.glob(f"*{_SUFFIX}")]
    size = sum(status.st_size for status, _ in entries)
    for status, path in sorted(entries, key=lambda entry: entry[0].st_mtime_ns):
        if size <= LARGEST_BYTES:
            return
        path.unlink(missing_ok=True)
        size -= status.st_size
