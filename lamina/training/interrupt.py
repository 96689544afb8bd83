"""Ctrl-C: noticed between two training steps, never within one."""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import TypeAlias

# The result of signal.getsignal.
_Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | None


class Interrupt:
    """Whether Ctrl-C was pressed, and whether the caller handled it.

    Attributes:
        pressed: whether it was pressed.
        handled: whether the caller ended its work because of it.
    """

    def __init__(self) -> None:
        self.pressed = False
        self.handled = False

    def handle(self) -> bool:
        """Whether Ctrl-C was pressed. The caller then ends its work without an exception."""
        self.handled = self.pressed
        return self.handled


class _Block:
    """Exists while a `held_interrupts` block runs; freed however the block is left."""


@contextmanager
def held_interrupts() -> Generator[Interrupt]:
    """Within the block, Ctrl-C sets `Interrupt.pressed` instead of raising.

    A second Ctrl-C raises `KeyboardInterrupt`. So does the end of the block, if Ctrl-C was pressed
    and not handled. In other threads than the main one it has no effect.
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
        interrupt.handled = True
        raise
    finally:
        signal.signal(signal.SIGINT, _settable(before))
        if interrupt.pressed and not interrupt.handled:
            raise KeyboardInterrupt


def _settable(handler: _Handler) -> _Handler:
    """The handler. None means a handler that was not set from Python; the default replaces it."""
    return signal.SIG_DFL if handler is None else handler


def _hand_back(handler: _Handler, number: int, frame: FrameType | None) -> None:
    """Reinstalls the previous handler and lets it handle this signal.

    Needed if an exception from a signal handler prevented the end of the block from doing so.
    """
    signal.signal(number, _settable(handler))
    if callable(handler):
        handler(number, frame)
    elif handler != signal.SIG_IGN:
        signal.raise_signal(number)
