"""Ctrl-C between steps, never within one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether Ctrl-C was pressed, and whether anybody did something about it."""

    def __init__(self) -> None:
        self.pressed = False
        self.answered = False

    def answer(self) -> bool:
        """Whether it was pressed; whoever asks ends what is under way."""
        self.answered = self.pressed
        return self.answered


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

    def remember(_number: int, _frame: FrameType | None) -> None:
        if interrupt.pressed:
            raise KeyboardInterrupt
        interrupt.pressed = True

    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, remember)
        yield interrupt
    except KeyboardInterrupt:
        interrupt.answered = True
        raise
    finally:
        # None stands for a handler that Python did not set and cannot set again.
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
        if interrupt.pressed and not interrupt.answered:
            raise KeyboardInterrupt
