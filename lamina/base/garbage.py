"""Pauses of Python's cyclic garbage collector.

The collector traverses all objects, again and again while more are made. While a large graph is
built and compiled, that takes as long as all other work. During a pause reference counts still free
objects; only reference cycles wait until the work is done.

The collector has one switch for the whole process, and several threads may pause it at the same
time. This module never waits and takes no lock: the handler of a signal may run at any point, and
raise, or pause the collector as well.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar, final

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@final
class Pause:
    """No garbage is collected until this is ended or deleted."""

    def __init__(self) -> None:
        # Functions in C remove it again: no signal interrupts them.
        self._mark = _Mark(self, _pauses.discard)
        self._mark.thread = threading.get_ident()
        _pauses.add(self._mark)
        _switch_off()

    def end(self) -> None:
        """Enables the collector again, if there is no other pause and it was enabled before."""
        _pauses.discard(self._mark)
        _switch_on()

    def __del__(self) -> None:
        # If a signal has interrupted `end`, this does it again. If one interrupts this, too, the
        # next pause that ends enables the collector.
        self.end()


@final
class _Mark(weakref.ref[Pause]):
    """A weak reference to a pause, with its thread."""

    __slots__ = ("thread",)
    thread: int


def without_collections(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorates a function that makes many objects: garbage is collected after it."""

    @wraps(function)
    def call(*values: Parameters.args, **options: Parameters.kwargs) -> Result:
        pause = Pause()
        try:
            return function(*values, **options)
        finally:
            pause.end()

    return call


@final
class _Reenabling:
    """Made when the collector is disabled; its deletion enables it, without interruption."""

    # A function in C takes no `self`.
    __del__ = gc.enable


_pauses: set[_Mark] = set()
_reenablings: list[_Reenabling] = []


def _switch_off() -> None:
    if gc.isenabled():
        _reenablings.append(_Reenabling())
        gc.disable()


def _switch_on() -> None:
    if not _pauses:
        _reenablings.clear()
    if _pauses:
        # Another thread has begun a pause in between.
        _switch_off()


def _forget_other_threads() -> None:
    """Drops the pauses of threads that a forked child lacks: it has only the forking thread."""
    for pause in list(_pauses):
        if pause.thread != threading.get_ident():
            _pauses.discard(pause)
    _switch_on()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_other_threads)
