"""The loss of a training step, read from the device when it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import SupportsFloat, final

from lamina.elsewhere import Named
from lamina.runtime.compiled import CompiledProgram


@final
class DeferredLoss(Named):
    """The loss of a training step; `float(loss)`, sums and comparisons wait for the device.

    Args:
        program: the last program that the model ran, which computed the loss; None for a known
            value.
        value: the loss, if it is known.
    """

    __slots__ = ("__weakref__", "_program", "_read", "_value")

    def __init__(self, program: CompiledProgram | None, value: float = 0.0) -> None:
        self._program = program
        # Reads the value after it was copied from the results of the program.
        self._read: Callable[[], float] | None = None
        self._value = value

    def keep(self) -> None:
        """Copies the value on the device, before another program of the model overwrites it."""
        if self._program is not None:
            self._read = self._program.executable.kept_scalar("loss")
            self._program = None

    def resolve(self) -> float:
        """Reads the value once."""
        program = self._program
        if program is not None:
            with program.lock.mutex:
                if self._program is not None:
                    self._value = program.executable.scalar("loss")
                    self._program = None
        read = self._read
        if read is not None:
            self._value, self._read = read(), None
        return self._value

    def __float__(self) -> float:
        return self.resolve()

    def __repr__(self) -> str:
        return repr(self.resolve())

    def __format__(self, specification: str) -> str:
        return format(self.resolve(), specification)

    def __add__(self, other: SupportsFloat) -> float:
        return self.resolve() + float(other)

    __radd__ = __add__

    def __lt__(self, other: SupportsFloat) -> bool:
        return self.resolve() < float(other)

    def __gt__(self, other: SupportsFloat) -> bool:
        return self.resolve() > float(other)
