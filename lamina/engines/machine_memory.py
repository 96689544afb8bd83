"""How much memory the machine has, and how much of it can be had now."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

_PROC = Path("/proc")
# For each version of control groups: limit, use, and the lines of memory.stat that say how much
# of the use is cache of files, which the system gives up when memory is short.
_FILES = {
    "cgroup": (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
    "cgroup2": ("memory.max", "memory.current", ("inactive_file", "active_file")),
}


def physical_bytes() -> int | None:
    """How much memory the computer has; None where the system does not say."""
    if os.name == "nt":
        return _windows_memory()[0]
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def available_bytes() -> int | None:
    """How much memory this process can still take; None where the system does not say.

    On Linux what programs can take without swapping, and no more than what is left in each control
    group around the process and of its own limit of addresses (`ulimit -v`); on Windows what it
    calls available; elsewhere all that there is.
    """
    if os.name == "nt":
        return _windows_memory()[1]
    limits = (_meminfo_available(), _left_of_addresses(), *_control_groups())
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else physical_bytes()


def _meminfo_available() -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in (_PROC / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _left_of_addresses() -> int | None:
    """What is left of the addresses that the process may use; None if there is no limit."""
    with suppress(ImportError, OSError, ValueError, IndexError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            used = int((_PROC / "self" / "statm").read_text().split()[0])
            return max(limit - used * resource.getpagesize(), 0)
    return None


def _control_groups() -> Iterator[int]:
    """What is left in each control group around this process."""
    with suppress(OSError, ValueError, IndexError):
        paths = _group_paths((_PROC / "self" / "cgroup").read_text())
        for line in (_PROC / "self" / "mountinfo").read_text().splitlines():
            # "36 35 98:0 /root /where options ... - kind source options", as in proc(5).
            left, _, right = line.partition(" - ")
            kind, _, options = right.split(" ", 2)
            if kind not in paths or (kind == "cgroup" and "memory" not in options.split(",")):
                continue
            root, where = left.split(" ")[3:5]
            yield from _left_along(Path(where), _below(root, paths[kind]), kind)


def _group_paths(text: str) -> Mapping[str, str]:
    """By the version of control groups: the one whose limits of memory hold for the process."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            paths["cgroup2"] = path
        elif "memory" in controllers.split(","):
            paths["cgroup"] = path
    return paths


def _below(root: str, path: str) -> tuple[str, ...]:
    """The folders from where a hierarchy is mounted down to a group, as far as they are seen."""
    if ".." in path:  # The group lies outside of what this process sees.
        return ()
    inside = PurePosixPath(path)
    if inside.is_relative_to(root):
        inside = inside.relative_to(root)
    return tuple(part for part in inside.parts if part != "/")


def _left_along(mount: Path, folders: tuple[str, ...], kind: str) -> Iterator[int]:
    """What is left in a group and in each one around it."""
    limit_file, used_file, cache_lines = _FILES[kind]
    for depth in range(len(folders), -1, -1):
        folder = mount.joinpath(*folders[:depth])
        # A group without a limit says "max", or has no such file.
        with suppress(OSError, ValueError):
            limit = int((folder / limit_file).read_text())
            used = int((folder / used_file).read_text())
            with suppress(OSError, ValueError):
                rows = (row.split() for row in (folder / "memory.stat").read_text().splitlines())
                counts = {row[0]: int(row[1]) for row in rows if len(row) == 2}
                used -= sum(counts.get(name, 0) for name in cache_lines)
            yield max(limit - max(used, 0), 0)


def _windows_memory() -> tuple[int | None, int | None]:
    """All memory, and what is available: GlobalMemoryStatusEx."""

    class Status(ctypes.Structure):
        _fields_ = (
            ("length", ctypes.c_uint32),
            ("load", ctypes.c_uint32),
            *((f"bytes{number}", ctypes.c_uint64) for number in range(7)),
        )

    library: Any = getattr(ctypes, "windll", None)
    status = Status()
    status.length = ctypes.sizeof(Status)
    if library is None or not library.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        return None, None
    found: Any = status
    return int(found.bytes0), int(found.bytes1)
