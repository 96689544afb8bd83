"""The memory of the machine, and the available part of it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

_PROC = Path("/proc")
# For each version of control groups: the files of the limit and of the use, and the lines of
# memory.stat for the page cache. It is part of the use, but the system frees it when memory is
# short.
_FILES = {
    "cgroup": (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
    "cgroup2": ("memory.max", "memory.current", ("inactive_file", "active_file")),
}


def physical_bytes() -> int | None:
    """The physical memory in bytes; None if the system does not report it."""
    if os.name == "nt":
        return _windows_memory()[0]
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def available_bytes() -> int | None:
    """The bytes that this process can still allocate; None if the system does not report it.

    On Linux it is the least of: the memory that is available without swapping, the rest of the
    limit of each control group around the process, and the rest of the process's limit of addresses
    (`ulimit -v`). On Windows it is the system's available memory; elsewhere all physical memory.
    """
    if os.name == "nt":
        return _windows_memory()[1]
    limits = (_meminfo_available(), _rest_of_addresses(), *_control_groups())
    present = [limit for limit in limits if limit is not None]
    return min(present) if present else physical_bytes()


def _meminfo_available() -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in (_PROC / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _rest_of_addresses() -> int | None:
    """The rest of the process's limit of addresses; None if there is no limit."""
    with suppress(ImportError, OSError, ValueError, IndexError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            used = int((_PROC / "self" / "statm").read_text().split()[0])
            return max(limit - used * resource.getpagesize(), 0)
    return None


def _control_groups() -> Iterator[int]:
    """The rest of the limit of each control group around this process."""
    with suppress(OSError, ValueError, IndexError):
        paths = _group_paths((_PROC / "self" / "cgroup").read_text())
        for line in (_PROC / "self" / "mountinfo").read_text().splitlines():
            # "36 35 98:0 /root /where options ... - kind source options", as in proc(5).
            left, _, right = line.partition(" - ")
            kind, _, options = right.split(" ", 2)
            if kind not in paths or (kind == "cgroup" and "memory" not in options.split(",")):
                continue
            root, where = left.split(" ")[3:5]
            yield from _rest_along(Path(where), _below(root, paths[kind]), kind)


def _group_paths(text: str) -> Mapping[str, str]:
    """The path of the process's group for memory, for each version of control groups."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            paths["cgroup2"] = path
        elif "memory" in controllers.split(","):
            paths["cgroup"] = path
    return paths


def _below(root: str, path: str) -> tuple[str, ...]:
    """The visible folders from the mount point of a hierarchy down to a group."""
    if ".." in path:  # The group is outside of the process's namespace.
        return ()
    inside = PurePosixPath(path)
    if inside.is_relative_to(root):
        inside = inside.relative_to(root)
    return tuple(name for name in inside.parts if name != "/")


def _rest_along(mount: Path, folders: tuple[str, ...], kind: str) -> Iterator[int]:
    """The rest of the limits of a group and of each group around it."""
    limit_file, used_file, cache_lines = _FILES[kind]
    for depth in range(len(folders), -1, -1):
        folder = mount.joinpath(*folders[:depth])
        # The file of a group without a limit holds "max", or does not exist.
        with suppress(OSError, ValueError):
            limit = int((folder / limit_file).read_text())
            used = int((folder / used_file).read_text())
            with suppress(OSError, ValueError):
                rows = (row.split() for row in (folder / "memory.stat").read_text().splitlines())
                counts = {row[0]: int(row[1]) for row in rows if len(row) == 2}
                used -= sum(counts.get(name, 0) for name in cache_lines)
            yield max(limit - max(used, 0), 0)


def _windows_memory() -> tuple[int | None, int | None]:
    """Physical and available memory, by GlobalMemoryStatusEx."""

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
    filled: Any = status
    return int(filled.bytes0), int(filled.bytes1)
