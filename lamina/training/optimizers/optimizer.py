"""The base of all optimizers, and what several have in common."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

from lamina import ops
from lamina.errors import DefinitionError
from lamina.graph import Tensor, TensorLike, constant
from lamina.graph.kinds import AnyOf, Function, Number
from lamina.layers.checks import Sourced, origin_text
from lamina.protocols import Optimizer as AnyOptimizer
from lamina.protocols import PerParameter
from lamina.shapes import DType

_RATE = AnyOf((Number("[0, inf)"), Function("a function of the step")))
Rate = Annotated[float | Callable[[Tensor], TensorLike], _RATE]
Slots = dict[str, Tensor]


class Optimizer(Sourced, ABC):
    """The base of all optimizers; one of one's own is a frozen dataclass like any other.

    Example:
        >>> from dataclasses import dataclass
        >>> import lamina as lm
        >>> @dataclass(frozen=True)
        ... class SignDescent(lm.training.optimizers.Optimizer):
        ...     rate: float = 1e-3
        ...     def slots(self):
        ...         return {}
        ...     def update(self, parameter, gradient, slots, step):
        ...         return parameter - lm.ops.sign(gradient) * self.rate, {}
    """

    @abstractmethod
    def slots(self) -> Mapping[str, float | PerParameter]:
        """The state that is kept for each parameter, in its shape and dtype: name -> first value.

        A state of one number for the whole parameter has `PerParameter(first value)`. A state
        named "average" is what `Training.averaged_parameters` reads.

        Returns:
            A new dict; empty if there is no state.
        """

    @abstractmethod
    def update(
        self, parameter: Tensor, gradient: Tensor, slots: Mapping[str, Tensor], step: Tensor
    ) -> tuple[Tensor, Slots]:
        """Builds the update of one parameter.

        Args:
            parameter: f32 or f64 of any shape.
            gradient: of the loss, in the parameter's shape and dtype.
            slots: the state, in the parameter's shape and dtype, by the names of `slots()`.
            step: i64[], how many steps are finished: 0 in the first.

        Returns:
            The new parameter and the new state, in the parameter's shape and dtype.
        """

    def for_parameters(self, names: Sequence[str]) -> Mapping[str, AnyOptimizer]:
        """The optimizer of each parameter, by its name: this one, for all of them.

        Raises:
            DefinitionError: by wrappers, for what does not fit these parameters.
        """
        return dict.fromkeys(names, self)


def rate_at(optimizer: Optimizer, rate: Rate, step: Tensor, dtype: DType) -> Tensor:
    """The rate of this step, without axes.

    Raises:
        DefinitionError: if a function for it asks something of the step that a tensor cannot do.
    """
    if not callable(rate):
        return constant(rate, dtype)
    try:
        value: object = rate(ops.cast(step, dtype))
    except (TypeError, ValueError, AttributeError) as error:
        raise _no_rate(optimizer, str(error)) from error
    if isinstance(value, Tensor):
        return ops.cast(value, dtype)
    if isinstance(value, float | int):
        # A number by itself would become float32 first, and lose half its digits in float64.
        return constant(value, dtype)
    raise _no_rate(optimizer, repr(value))


def _no_rate(optimizer: Optimizer, found: str) -> DefinitionError:
    return DefinitionError(
        "the function of the step gives no learning rate",
        facts=(("expected", "a number, or a tensor made from the step"), ("found", found)),
        where=origin_text(optimizer),
        advice="Use numbers, + - * / **, and lm.ops: 0.1 * 0.5 ** lm.ops.floor(step / 10).",
    )


def decayed(gradient: Tensor, parameter: Tensor, weight_decay: float) -> Tensor:
    """The gradient of the loss with weight_decay / 2 times the parameter's square added to it."""
    return ops.multiply_add(parameter, weight_decay, gradient) if weight_decay else gradient


def running_mean(mean: Tensor, value: Tensor, kept: float) -> Tensor:
    """The part `kept` of the mean, and of the value the rest."""
    return ops.multiply_add(value - mean, 1.0 - kept, mean)


def running_square(mean: Tensor, value: Tensor, kept: float) -> Tensor:
    """The part `kept` of the mean, and of the squared value the rest."""
    return ops.multiply_add(value * value, 1.0 - kept, mean * kept)


def bias_correction(time: Tensor, beta: float) -> Tensor:
    """1 - beta^time, accurate in float32 too, where beta^time is nearly 1."""
    return -ops.expm1(time * math.log(beta)) if beta else ops.ones_like(time)
