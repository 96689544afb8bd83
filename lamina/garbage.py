"""When Python does not look for garbage.

Its collector goes through all objects that there are, again and again while more are made: as long
as a large graph is built and compiled, that takes as long as everything else. Objects that are not
needed any more are freed by their reference counts as always; what is left are circles, and those
wait until the work is done.

The switch is one for the whole process, and several threads may want it off at once. Nothing here
waits or takes a lock: the handler of a signal may come anywhere, and raise, or pause as well.
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
    """No garbage is collected until this is ended, or is gone."""

    def __init__(self) -> None:
        # Functions in C take it out again, which no signal cuts in two.
        self._mark = _Mark(self, _pauses.discard)
        self._mark.thread = threading.get_ident()
        _pauses.add(self._mark)
        _switch_off()

    def end(self) -> None:
        """Lets garbage be collected again, if nobody else has paused it and it was before."""
        _pauses.discard(self._mark)
        _switch_on()

    def __del__(self) -> None:
        # What a signal has interrupted above is done again here. If one comes here, too, the next
        # pause that ends switches the collector on.
        self.end()


@final
class _Mark(weakref.ref[Pause]):
    """Stands for a pause as long as it lives: its thread."""

    __slots__ = ("thread",)
    thread: int


def without_collections(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The function, which makes so many objects that garbage is collected afterwards."""

    @wraps(function)
    def call(*values: Parameters.args, **options: Parameters.kwargs) -> Result:
        pause = Pause()
        try:
            return function(*values, **options)
        finally:
            pause.end()

    return call


@final
class _Debt:
    """Made by whoever switches the collector off: its end switches it on, and nothing cuts in."""

    # A function in C takes no `self`.
    __del__ = gc.enable


_pauses: set[_Mark] = set()
_debts: list[_Debt] = []


def _switch_off() -> None:
    if gc.isenabled():
        _debts.append(_Debt())
        gc.disable()


def _switch_on() -> None:
    if not _pauses:
        _debts.clear()
    if _pauses:
        # Another thread has begun one in between.
        _switch_off()


def _forget_other_threads() -> None:
    """In a forked child, which has only the thread that forked."""
    for pause in list(_pauses):
        if pause.thread != threading.get_ident():
            _pauses.discard(pause)
    _switch_on()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_other_threads)
