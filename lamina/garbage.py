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
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar, final

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@final
class Pause:
    """No garbage is collected until this is ended, or is gone."""

    def __init__(self) -> None:
        _pauses[id(self)] = threading.get_ident()
        _switch_off()

    def end(self) -> None:
        """Lets garbage be collected again, if nobody else has paused it and it was before."""
        _pauses.pop(id(self), None)
        if not _pauses:
            _debts.clear()
        if _pauses:
            # Another thread has begun one in between.
            _switch_off()

    def __del__(self) -> None:
        # What a signal has interrupted above is done again here.
        self.end()


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


# The pauses, and the threads that they belong to.
_pauses: dict[int, int] = {}
_debts: list[_Debt] = []


def _switch_off() -> None:
    if gc.isenabled():
        _debts.append(_Debt())
        gc.disable()


def _forget_other_threads() -> None:
    """In a forked child, which has only the thread that forked."""
    for pause, thread in list(_pauses.items()):
        if thread != threading.get_ident():
            del _pauses[pause]
    if not _pauses:
        _debts.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_other_threads)
