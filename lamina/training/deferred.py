"""The loss of a training step, read from the device when it is used."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from numbers import Real
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np

from lamina.base.shapes import Array
from lamina.errors import Named
from lamina.runtime.compiled import CompiledProgram

if TYPE_CHECKING:

    class _Number(float):
        def __new__(cls, value: float = 0.0, program: CompiledProgram | None = None) -> Self: ...

else:

    def _of_value(name: str) -> Callable[..., Any]:
        """A method of float, called on the value of a loss."""
        # An operator is applied again, because float's method knows only Python's own numbers.
        forward = vars(operator).get(f"__{name[3:]}")
        if name.startswith("__r") and forward is not None:
            return lambda self, other: forward(other, self.resolve())
        function = vars(operator).get(name) or getattr(float, name)
        return lambda self, *others: function(self.resolve(), *others)

    # The others are of classes, of floats as objects, or follow from these in `Real`.
    _METHODS = (types.WrapperDescriptorType, types.MethodDescriptorType)
    _NAMES = {name for name, method in vars(float).items() if isinstance(method, _METHODS)}
    _NAMES -= {"__getattribute__", "__getnewargs__", "__divmod__", "__rdivmod__"}
    _Number = type("_Number", (Real,), {"__slots__": (), **{n: _of_value(n) for n in _NAMES}})


@final
class DeferredLoss(Named, _Number):
    """The loss of a training step: a number as floats are, and an array for NumPy.

    What needs its value, such as `float(loss)` or `loss / 2`, waits for the device. Copies are
    floats. Some functions take no real numbers but Python's own: write `float(loss)` for
    `Decimal`, `Fraction`, `json.dumps` (or give it `default=float`), lists of losses for PyTorch
    and pandas, and losses among floats for `statistics`.

    Args:
        value: the loss, if it is known.
        program: the last program that the model ran, which computed the loss; None for a known
            value.
    """

    __slots__ = ("__weakref__", "_program", "_read", "_value")

    def __init__(self, value: float = 0.0, program: CompiledProgram | None = None) -> None:
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
        return float(self._value)  # `statistics.mean` of losses makes one of a fraction

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        del copy  # the array is always a new one
        return np.asarray(self.resolve(), dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        # As with a float, arrays of float32 remain float32.
        values = [x.resolve() if isinstance(x, DeferredLoss) else x for x in inputs]
        return getattr(ufunc, method)(*values, **options)

    def __dlpack__(self, **options: Any) -> Any:
        return np.asarray(self.resolve()).__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return np.asarray(0.0).__dlpack_device__()

    def __reduce__(self) -> Any:
        return float, (self.resolve(),)
