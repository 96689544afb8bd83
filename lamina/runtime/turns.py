"""One thread at a time: the calls of one model wait for each other."""

from __future__ import annotations

import os
import weakref
from threading import RLock
from typing import final


@final
class Turns:
    """Whose turn it is: `with turns.lock:`. A thread that has its turn may take another one.

    Copies, and what a forked child has, begin anew: a thread that has its turn here is not there.
    """

    __slots__ = ("__weakref__", "lock")

    def __init__(self) -> None:
        self.lock = RLock()
        _all.add(self)

    def __reduce__(self) -> tuple[type[Turns], tuple[()]]:
        return Turns, ()


_all: weakref.WeakSet[Turns] = weakref.WeakSet()


def _begin_anew() -> None:
    for turns in _all:
        turns.lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
