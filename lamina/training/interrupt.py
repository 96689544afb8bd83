"""Ctrl-C between steps, never within one."""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import TypeAlias

# As signal.getsignal gives it.
_Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | None


class Interrupt:
    """Whether Ctrl-C was pressed, and whether anybody did something about it."""

    def __init__(self) -> None:
        self.pressed = False
        self.answered = False

    def answer(self) -> bool:
        """Whether it was pressed; whoever asks ends what is under way."""
        self.answered = self.pressed
        return self.answered


class _Block:
    """Lives as long as a block runs that holds interrupts, however it is left."""


@contextmanager
def held_interrupts() -> Generator[Interrupt]:
    """Remembers Ctrl-C instead of raising at once; a second one raises `KeyboardInterrupt`.

    So does the first one at the end of the block, unless somebody answered it. Only the main thread
    can do this; elsewhere nothing changes.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    before = signal.getsignal(signal.SIGINT)
    block = _Block()
    running = weakref.ref(block)

    def remember(number: int, frame: FrameType | None) -> None:
        if running() is None:
            _hand_back(before, number, frame)
        elif interrupt.pressed:
            raise KeyboardInterrupt
        else:
            interrupt.pressed = True

    try:
        signal.signal(signal.SIGINT, remember)
        yield interrupt
    except KeyboardInterrupt:
        interrupt.answered = True
        raise
    finally:
        signal.signal(signal.SIGINT, _settable(before))
        if interrupt.pressed and not interrupt.answered:
            raise KeyboardInterrupt


def _settable(handler: _Handler) -> _Handler:
    """None stands for a handler that Python did not set and cannot set again."""
    return signal.SIG_DFL if handler is None else handler


def _hand_back(handler: _Handler, number: int, frame: FrameType | None) -> None:
    """Lets another handler answer a signal, also from now on.

    The end of the block should have set it, but a signal's handler raised there.
    """
    signal.signal(number, _settable(handler))
    if callable(handler):
        handler(number, frame)
    elif handler != signal.SIG_IGN:
        signal.raise_signal(number)
