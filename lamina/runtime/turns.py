"""One thread at a time: the calls of one model wait for each other.

So its programs never run at the same time, and share an arena. A result that somebody still holds
without having read it is read before the next program runs.
"""

from __future__ import annotations

import os
import weakref
from threading import RLock
from typing import Protocol, final


class Unread(Protocol):
    """A result that lies in the arena until it is read."""

    def resolve(self) -> object: ...


@final
class Turns:
    """Whose turn it is: `with turns.lock:`. A thread that has its turn may take another one.

    Copies, and what a forked child has, begin anew: a thread that has its turn here is not there.
    """

    __slots__ = ("__weakref__", "lock", "unread")

    def __init__(self) -> None:
        self.lock = RLock()
        self.unread: weakref.ref[Unread] | None = None
        _all.add(self)

    def settle(self) -> None:
        """Reads the last result while it is still there, if anyone holds it."""
        unread = self.unread() if self.unread else None
        if unread is not None:
            unread.resolve()
        self.unread = None

    def __reduce__(self) -> tuple[type[Turns], tuple[()]]:
        return Turns, ()


_all: weakref.WeakSet[Turns] = weakref.WeakSet()


def _begin_anew() -> None:
    for turns in _all:
        turns.lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
