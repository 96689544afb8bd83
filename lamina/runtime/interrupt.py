"""Ctrl-C between steps, never within one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether Ctrl-C was pressed."""

    def __init__(self) -> None:
        self.pressed = False


@contextmanager
def held_interrupts() -> Generator[Interrupt]:
    """Remembers Ctrl-C instead of raising at once; a second one raises `KeyboardInterrupt`.

    A step that is half done would leave some parameters updated and others not. Only the main
    thread can do this; elsewhere nothing changes.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    def remember(_number: int, _frame: FrameType | None) -> None:
        if interrupt.pressed:
            raise KeyboardInterrupt
        interrupt.pressed = True

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield interrupt
    finally:
        # None stands for a handler that Python did not set and cannot set again.
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
