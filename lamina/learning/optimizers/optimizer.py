"""The base of all optimizers, and formulas that several share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, ClassVar

from lamina import ops
from lamina.base.shapes import DType
from lamina.checks.kinds import AnyOf, Function, Number
from lamina.errors import DefinitionError
from lamina.graph import Tensor, TensorLike, constant, of_numbers
from lamina.layers.checks import Sourced
from lamina.learning.protocols import Optimizer as AnyOptimizer
from lamina.learning.protocols import PerParameter

_RATE = AnyOf((Number("[0, inf)"), Function("a function of the training step")))
Rate = Annotated[float | Callable[[Tensor], TensorLike], _RATE]
# The state of a parameter, by the names of `slots()`; the new parameter and its new state.
Slots = Mapping[str, Tensor]
Update = tuple[Tensor, Slots]


class Optimizer(Sourced, ABC):
    """The base of all optimizers. A subclass is a frozen dataclass.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class SignDescent(lm.training.optimizers.Optimizer):
        ...     rate: float = 1e-3
        ...     def slots(self):
        ...         return {}
        ...     def update(self, parameter, gradient, slots, step):
        ...         return parameter - lm.ops.sign(gradient) * self.rate, {}

    Attributes:
        joins_parameters: whether `update` is called once for all parameters that have this
            optimizer, joined to one vector, as `LBFGS` needs it. Its states are such vectors.
    """

    joins_parameters: ClassVar[bool] = False

    @abstractmethod
    def slots(self) -> Mapping[str, float | PerParameter]:
        """The state that is kept for each parameter, in its shape and dtype: name -> first value.

        A state of one number for the whole parameter has `PerParameter(first value)`.
        `Training.averaged_parameters` reads the state named "average".

        Returns:
            A new dict; empty if there is no state.
        """

    @abstractmethod
    def update(self, parameter: Tensor, gradient: Tensor, slots: Slots, step: Tensor) -> Update:
        """Builds the update of one parameter, or of all as one vector if `joins_parameters`.

        Args:
            parameter: the parameter, f32 or f64 of any shape.
            gradient: the gradient of the loss, in the parameter's shape and dtype.
            slots: the state, in the parameter's shape and dtype, by the names of `slots()`.
            step: the number of finished training steps, i64[]: 0 in the first.

        Returns:
            The new parameter and the new state, in the parameter's shape and dtype.
        """

    def for_parameters(self, names: Sequence[str]) -> Mapping[str, AnyOptimizer]:
        """The optimizer of each parameter, by its name: this one, for all of them.

        Raises:
            DefinitionError: by wrappers whose settings do not fit these parameters.
        """
        return dict.fromkeys(names, self)


class ByDirection(Optimizer):
    """The base of optimizers that add -rate times a direction to a parameter.

    The gradient from which the direction follows contains the weight decay.
    """

    rate: Rate
    weight_decay: float

    def update(self, parameter: Tensor, gradient: Tensor, slots: Slots, step: Tensor) -> Update:
        rate = rate_at(self.rate, step, parameter.dtype)
        decaying = decayed(gradient, parameter, self.weight_decay)
        direction, new_slots = self._direction(decaying, slots, step)
        return ops.multiply_add(direction, -rate, parameter), new_slots

    @abstractmethod
    def _direction(self, gradient: Tensor, slots: Slots, step: Tensor) -> Update:
        """The direction, and the new state of the parameter."""


def rate_at(rate: Rate, step: Tensor, dtype: DType) -> Tensor:
    """The rate of this training step, a scalar; DefinitionError if a function gives no number."""
    if not callable(rate):
        return constant(rate, dtype)
    try:
        value: object = rate(ops.cast(step, dtype))
    except (TypeError, ValueError, AttributeError) as error:
        raise _no_rate(str(error)) from error
    if isinstance(value, Tensor):
        return ops.cast(value, dtype)
    if isinstance(value, float | int):
        # ops would make it a float32 constant, which loses half the digits of a float64.
        return constant(value, dtype)
    raise _no_rate(repr(value))


def _no_rate(found: str) -> DefinitionError:
    return DefinitionError(
        "the function of the training step does not return a learning rate",
        facts=(("expected", "a number, or a tensor made from its argument"), ("found", found)),
        advice="Use numbers, + - * / **, and lm.ops: 0.1 * 0.5 ** lm.ops.floor(step / 10).",
    )


def decayed(gradient: Tensor, parameter: Tensor, weight_decay: float) -> Tensor:
    """Gradient + weight_decay * parameter: the gradient with an L2 penalty."""
    return ops.multiply_add(parameter, weight_decay, gradient) if weight_decay else gradient


def running_mean(mean: Tensor, value: Tensor, kept: float) -> Tensor:
    """Kept * mean + (1 - kept) * value."""
    return ops.multiply_add(value - mean, 1.0 - kept, mean)


def running_square(mean: Tensor, value: Tensor, kept: float) -> Tensor:
    """Kept * mean + (1 - kept) * value^2."""
    return ops.multiply_add(value * value, 1.0 - kept, mean * kept)


def bias_correction(time: Tensor, beta: float) -> Tensor:
    """1 - beta^time, accurate in float32 even if beta^time is nearly 1."""
    return -ops.expm1(time * of_numbers(math.log, beta)) if beta else ops.ones_like(time)
