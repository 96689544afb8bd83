"""Ctrl-C: noticed between two training steps, never within one."""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import ClassVar, TypeAlias

# The result of signal.getsignal.
_Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | None

# After a Ctrl-C that ended work without an exception, another one within so many seconds raises.
_REPEATED_SECONDS = 1.0


class Interrupt:
    """Whether work shall end early: because of Ctrl-C, or because its time is over.

    Attributes:
        handled: whether the caller ended its work because of Ctrl-C.
        ends_at: the time of `time.monotonic` at which work ends.
    """

    _last_said: ClassVar[float] = -math.inf

    def __init__(self) -> None:
        self.pressed = False
        self.handled = False
        self.ends_at = math.inf

    @property
    def is_ending(self) -> bool:
        return self.pressed or time.monotonic() >= self.ends_at

    def handle(self) -> bool:
        """Whether Ctrl-C was pressed. The caller then ends its work without an exception."""
        self.handled = self.pressed
        return self.handled

    @classmethod
    def say(cls, text: str) -> None:
        """Says on standard error that Ctrl-C ended work; if pressed again soon, it raises."""
        print(text, file=sys.stderr, flush=True)
        cls._last_said = time.monotonic()

    @classmethod
    def was_just_said(cls) -> bool:
        """Whether Ctrl-C ended other work within the last second."""
        return time.monotonic() - cls._last_said < _REPEATED_SECONDS


class _Block:
    """Exists while a `held_interrupts` block runs; freed however the block is left."""


@contextmanager
def held_interrupts() -> Generator[Interrupt]:
    """Within the block, Ctrl-C sets `Interrupt.pressed` instead of raising.

    A second Ctrl-C raises `KeyboardInterrupt`; so does the first one, within a second after
    `Interrupt.say`, and the end of the block, if Ctrl-C was pressed and not handled. In other
    threads than the main one it has no effect.
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
            # An exception from a signal handler prevented the end of the block: the handler before
            # it handles this signal.
            signal.signal(number, _settable(before))
            if callable(before):
                before(number, frame)
            elif before != signal.SIG_IGN:
                signal.raise_signal(number)
        elif interrupt.pressed or interrupt.was_just_said():
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
