"""The loss of a training step, read from the device when it is used."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np

from lamina.elsewhere import Named
from lamina.runtime.compiled import CompiledProgram
from lamina.shapes import Array

if TYPE_CHECKING:

    class _Number(float):
        def __new__(cls, program: CompiledProgram | None, value: float = 0.0) -> Self: ...

else:

    def _of_value(name: str) -> Callable[..., Any]:
        """A special method of float, called on the value of a loss."""
        method = getattr(float, name)

        def call(self: Any, *others: Any) -> Any:
            values = [float(x) if isinstance(x, DeferredLoss) else x for x in others]
            return method(self.resolve(), *values)

        return call

    # The rest follows from these in `Real`.
    _NAMES = {*Real.__abstractmethods__, "__gt__", "__ge__", "__int__", "__hash__"}
    _Number = type("_Number", (Real,), {"__slots__": (), **{n: _of_value(n) for n in _NAMES}})


@final
class DeferredLoss(Named, _Number):
    """The loss of a training step: a number as floats are, and an array for NumPy.

    What needs its value, such as `float(loss)` or `loss / 2`, waits for the device.

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

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        del copy  # the array is always a new one
        return np.asarray(self.resolve(), dtype)

    def __repr__(self) -> str:
        return repr(self.resolve())

    def __format__(self, specification: str) -> str:
        return format(self.resolve(), specification)
