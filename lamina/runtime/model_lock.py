"""The lock of a model: one thread at a time runs its programs or uses its memories.

So the programs of a model never run at the same time, and share an arena. An unread result in the
arena is copied before the next program overwrites it.
"""

from __future__ import annotations

import os
import weakref
from threading import RLock
from typing import Protocol, final


class Unread(Protocol):
    """A result in the arena until it is read; `keep` copies it without waiting for the device."""

    def keep(self) -> object: ...


@final
class ModelLock:
    """The lock of a model and the models that share its parameters: `with lock.mutex:`.

    It is reentrant. Copies and forked children get a new lock, because the thread that holds this
    one does not exist there.

    Attributes:
        mutex: a lock that is held while a program runs or memories are used.
        unread: a weak reference to the last result, a `DeferredLoss`, if it is not read yet.
    """

    __slots__ = ("__weakref__", "mutex", "unread")

    def __init__(self) -> None:
        self.mutex = RLock()
        self.unread: weakref.ref[Unread] | None = None
        _all.add(self)

    def settle(self) -> None:
        """Copies the last result from the arena, if it is unread and still referenced."""
        unread = self.unread() if self.unread else None
        if unread is not None:
            unread.keep()
        self.unread = None

    def __reduce__(self) -> tuple[type[ModelLock], tuple[()]]:
        return ModelLock, ()


_all: weakref.WeakSet[ModelLock] = weakref.WeakSet()


def _reset_after_fork() -> None:
    for lock in _all:
        lock.mutex = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
