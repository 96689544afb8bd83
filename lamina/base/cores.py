"""The cores of the computer that this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """The number of cores on which the system runs threads of this process; at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
