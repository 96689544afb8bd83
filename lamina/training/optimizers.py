"""Optimizers: how a gradient becomes a new value of its parameter.

An optimizer is a frozen record that builds the update from ops, so that it runs on every engine
and is fused with the gradient. All formulas and default values are those of PyTorch, apart from
the names: `rate` is PyTorch's `lr`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lamina import ops
from lamina.errors import DefinitionError
from lamina.graph import Tensor, TensorLike, constant
from lamina.layers.checks import Sourced, place_of, require_number
from lamina.shapes import DType

Rate = float | Callable[[Tensor], TensorLike]
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
    def slots(self) -> dict[str, float]:
        """The state that is kept for each parameter, in its shape and dtype: name -> first value.

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


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent: w - rate g, or w - rate b with b = momentum b + g.

    Args:
        rate: the step length: a number, or a function of the step (see `lamina.schedules`).
        momentum: how much of the last step is kept (Polyak 1964).
        dampening: how much of the gradient is left out of the momentum, from the second step on.
        nesterov: whether to look ahead, g + momentum b (Nesterov 1983; Sutskever et al. 2013).
        weight_decay: this multiple of the parameter is added to its gradient.

    Raises:
        DefinitionError: for a number out of range, or nesterov without momentum or with
            dampening.

    Example:
        >>> import lamina as lm
        >>> lm.SGD(0.1, momentum=0.9).slots()
        {'momentum': 0.0}
    """

    rate: Rate = 1e-3
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_rate(self, self.rate)
        require_number(self, "momentum", self.momentum, "[0, inf)")
        require_number(self, "dampening", self.dampening)
        require_number(self, "weight_decay", self.weight_decay, "[0, inf)")
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise DefinitionError(
                "nesterov needs momentum and no dampening",
                facts=(
                    ("expected", "momentum > 0, dampening = 0"),
                    ("found", f"momentum = {self.momentum}, dampening = {self.dampening}"),
                ),
                where=place_of(self),
                advice="For example SGD(0.1, momentum=0.9, nesterov=True).",
            )

    def slots(self) -> dict[str, float]:
        """`momentum`, if there is any."""
        return {"momentum": 0.0} if self.momentum else {}

    def update(
        self, parameter: Tensor, gradient: Tensor, slots: Mapping[str, Tensor], step: Tensor
    ) -> tuple[Tensor, Slots]:
        """Builds the update of one parameter."""
        direction = _decayed(gradient, parameter, self.weight_decay)
        rate = _rate(self, self.rate, step, parameter.dtype)
        if not self.momentum:
            return parameter - direction * rate, {}
        kept = slots["momentum"] * self.momentum
        if self.dampening:
            damped = kept + direction * (1 - self.dampening)
            buffer = ops.where(ops.equal(step, 0), direction, damped)
        else:
            buffer = kept + direction
        if self.nesterov:
            return parameter - (direction + buffer * self.momentum) * rate, {"momentum": buffer}
        return parameter - buffer * rate, {"momentum": buffer}


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """w - rate g / (sqrt(s) + epsilon), where s is the sum of all squared gradients.

    From Duchi, Hazan, Singer: Adaptive subgradient methods (JMLR 12, 2011).

    Args:
        rate: the step length: a number, or a function of the step (see `lamina.schedules`).
        rate_decay: the rate is divided by 1 + rate_decay * step.
        weight_decay: this multiple of the parameter is added to its gradient.
        initial_sum: the first value of s.
        epsilon: keeps the divisor above zero.

    Raises:
        DefinitionError: for a number out of range.

    Example:
        >>> import lamina as lm
        >>> lm.Adagrad(0.01).slots()
        {'square_sum': 0.0}
    """

    rate: Rate = 1e-2
    rate_decay: float = 0.0
    weight_decay: float = 0.0
    initial_sum: float = 0.0
    epsilon: float = 1e-10

    def __post_init__(self) -> None:
        _check_rate(self, self.rate)
        require_number(self, "rate_decay", self.rate_decay, "[0, inf)")
        require_number(self, "weight_decay", self.weight_decay, "[0, inf)")
        require_number(self, "initial_sum", self.initial_sum, "[0, inf)")
        require_number(self, "epsilon", self.epsilon, "[0, inf)")

    def slots(self) -> dict[str, float]:
        """`square_sum`."""
        return {"square_sum": float(self.initial_sum)}

    def update(
        self, parameter: Tensor, gradient: Tensor, slots: Mapping[str, Tensor], step: Tensor
    ) -> tuple[Tensor, Slots]:
        """Builds the update of one parameter."""
        direction = _decayed(gradient, parameter, self.weight_decay)
        rate = _rate(self, self.rate, step, parameter.dtype)
        if self.rate_decay:
            rate = rate / (ops.cast(step, parameter.dtype) * self.rate_decay + 1.0)
        total = slots["square_sum"] + direction * direction
        new = parameter - direction / (ops.sqrt(total) + self.epsilon) * rate
        return new, {"square_sum": total}


@dataclass(frozen=True)
class RMSProp(Optimizer):
    """w - rate g / (sqrt(s) + epsilon), where s is a running mean of squared gradients.

    From Hinton, Srivastava, Swersky: Neural networks for machine learning, lecture 6e (2012);
    centred as in Graves: Generating sequences with recurrent neural networks (2013).

    Args:
        rate: the step length: a number, or a function of the step (see `lamina.schedules`).
        decay: how much of the running means is kept in each step; PyTorch's `alpha`.
        epsilon: keeps the divisor above zero.
        weight_decay: this multiple of the parameter is added to its gradient.
        momentum: how much of the last step is kept.
        centered: divides by the standard deviation of the gradient instead of its size.

    Raises:
        DefinitionError: for a number out of range.

    Example:
        >>> import lamina as lm
        >>> lm.RMSProp(0.01, centered=True).slots()
        {'square_mean': 0.0, 'mean': 0.0}
    """

    rate: Rate = 1e-2
    decay: float = 0.99
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False

    def __post_init__(self) -> None:
        _check_rate(self, self.rate)
        require_number(self, "decay", self.decay, "[0, 1)")
        require_number(self, "epsilon", self.epsilon, "[0, inf)")
        require_number(self, "weight_decay", self.weight_decay, "[0, inf)")
        require_number(self, "momentum", self.momentum, "[0, inf)")

    def slots(self) -> dict[str, float]:
        """`square_mean`, and `mean` and `momentum` if they are used."""
        mean = {"mean": 0.0} if self.centered else {}
        momentum = {"momentum": 0.0} if self.momentum else {}
        return {"square_mean": 0.0, **mean, **momentum}

    def update(
        self, parameter: Tensor, gradient: Tensor, slots: Mapping[str, Tensor], step: Tensor
    ) -> tuple[Tensor, Slots]:
        """Builds the update of one parameter."""
        direction = _decayed(gradient, parameter, self.weight_decay)
        rate = _rate(self, self.rate, step, parameter.dtype)
        square_mean = _running_square(slots["square_mean"], direction, self.decay)
        new_slots = {"square_mean": square_mean}
        variance = square_mean
        if self.centered:
            mean = _running_mean(slots["mean"], direction, self.decay)
            new_slots["mean"] = mean
            # Rounding can make a variance of 0 negative.
            variance = ops.relu(square_mean - mean * mean)
        direction = direction / (ops.sqrt(variance) + self.epsilon)
        if self.momentum:
            direction = slots["momentum"] * self.momentum + direction
            new_slots["momentum"] = direction
        return parameter - direction * rate, new_slots


@dataclass(frozen=True)
class Adam(Optimizer):
    """w - rate m / (sqrt(v) + epsilon), m and v being running means of g and g^2 without bias.

    From Kingma, Ba: Adam: a method for stochastic optimization (2015), algorithm 1; `amsgrad`
    from Reddi, Kale, Kumar: On the convergence of Adam and beyond (2018).

    Args:
        rate: the step length: a number, or a function of the step (see `lamina.schedules`).
        beta1: how much of m is kept in each step.
        beta2: how much of v is kept in each step.
        epsilon: keeps the divisor above zero.
        weight_decay: this multiple of the parameter is added to its gradient; see `AdamW`.
        amsgrad: divides by the largest v so far.

    Raises:
        DefinitionError: for a number out of range.

    Example:
        >>> import lamina as lm
        >>> lm.Adam(1e-3).slots()
        {'mean': 0.0, 'square_mean': 0.0}
    """

    rate: Rate = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False

    def __post_init__(self) -> None:
        _check_adam(self)

    def slots(self) -> dict[str, float]:
        """`mean` and `square_mean`, and `largest_square_mean` with amsgrad."""
        return _adam_slots(self)

    def update(
        self, parameter: Tensor, gradient: Tensor, slots: Mapping[str, Tensor], step: Tensor
    ) -> tuple[Tensor, Slots]:
        """Builds the update of one parameter."""
        rate = _rate(self, self.rate, step, parameter.dtype)
        direction = _decayed(gradient, parameter, self.weight_decay)
        return _adam_update(self, parameter, direction, slots, step, rate)


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with weight decay apart from the gradient: w is first multiplied by 1 - rate decay.

    From Loshchilov, Hutter: Decoupled weight decay regularization (2019), algorithm 2.

    Args:
        rate: the step length: a number, or a function of the step (see `lamina.schedules`).
        beta1: how much of m is kept in each step.
        beta2: how much of v is kept in each step.
        epsilon: keeps the divisor above zero.
        weight_decay: this multiple of the parameter is subtracted in a step of length 1.
        amsgrad: divides by the largest v so far.

    Raises:
        DefinitionError: for a number out of range.

    Example:
        >>> import lamina as lm
        >>> lm.AdamW(1e-3, amsgrad=True).slots()
        {'mean': 0.0, 'square_mean': 0.0, 'largest_square_mean': 0.0}
    """

    rate: Rate = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 1e-2
    amsgrad: bool = False

    def __post_init__(self) -> None:
        _check_adam(self)

    def slots(self) -> dict[str, float]:
        """`mean` and `square_mean`, and `largest_square_mean` with amsgrad."""
        return _adam_slots(self)

    def update(
        self, parameter: Tensor, gradient: Tensor, slots: Mapping[str, Tensor], step: Tensor
    ) -> tuple[Tensor, Slots]:
        """Builds the update of one parameter."""
        rate = _rate(self, self.rate, step, parameter.dtype)
        start = parameter
        if self.weight_decay:
            start = parameter * (1.0 - rate * self.weight_decay)
        return _adam_update(self, start, gradient, slots, step, rate)


# What several have in common ----------------------------------------------------------------------


def _check_rate(optimizer: Optimizer, rate: Rate) -> None:
    if not callable(rate):
        require_number(optimizer, "rate", rate, "[0, inf)")


def _rate(optimizer: Optimizer, rate: Rate, step: Tensor, dtype: DType) -> Tensor:
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
        where=place_of(optimizer),
        advice="Use numbers, + - * / **, and lm.ops: 0.1 * 0.5 ** lm.ops.floor(step / 10).",
    )


def _decayed(gradient: Tensor, parameter: Tensor, weight_decay: float) -> Tensor:
    return gradient + parameter * weight_decay if weight_decay else gradient


def _running_mean(mean: Tensor, value: Tensor, kept: float) -> Tensor:
    return mean + (value - mean) * (1.0 - kept)


def _running_square(mean: Tensor, value: Tensor, kept: float) -> Tensor:
    return mean * kept + value * value * (1.0 - kept)


def _check_adam(optimizer: Adam | AdamW) -> None:
    _check_rate(optimizer, optimizer.rate)
    require_number(optimizer, "beta1", optimizer.beta1, "[0, 1)")
    require_number(optimizer, "beta2", optimizer.beta2, "[0, 1)")
    require_number(optimizer, "epsilon", optimizer.epsilon, "[0, inf)")
    require_number(optimizer, "weight_decay", optimizer.weight_decay, "[0, inf)")


def _adam_slots(optimizer: Adam | AdamW) -> dict[str, float]:
    largest = {"largest_square_mean": 0.0} if optimizer.amsgrad else {}
    return {"mean": 0.0, "square_mean": 0.0, **largest}


def _adam_update(
    optimizer: Adam | AdamW,
    start: Tensor,
    direction: Tensor,
    slots: Mapping[str, Tensor],
    step: Tensor,
    rate: Tensor,
) -> tuple[Tensor, Slots]:
    mean = _running_mean(slots["mean"], direction, optimizer.beta1)
    square_mean = _running_square(slots["square_mean"], direction, optimizer.beta2)
    new_slots = {"mean": mean, "square_mean": square_mean}
    if optimizer.amsgrad:
        square_mean = ops.maximum(slots["largest_square_mean"], square_mean)
        new_slots["largest_square_mean"] = square_mean
    # What holds for the whole parameter is computed once, without axes.
    time = ops.cast(step, start.dtype) + 1.0
    length = rate / _bias(time, optimizer.beta1)
    scale = ops.reciprocal(ops.sqrt(_bias(time, optimizer.beta2)))
    divisor = ops.sqrt(square_mean) * scale + optimizer.epsilon
    return start - mean / divisor * length, new_slots


def _bias(time: Tensor, beta: float) -> Tensor:
    """1 - beta^time, accurate in float32 too, where beta^time is nearly 1."""
    return -ops.expm1(time * math.log(beta)) if beta else ops.ones_like(time)
