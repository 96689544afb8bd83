"""Optimizers that divide by the size of the gradients so far: Adagrad, RMSProp, Adadelta."""

from __future__ import annotations

from dataclasses import KW_ONLY

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.checks.kinds import Fraction, NotNegative
from lamina.graph import Tensor
from lamina.learning.optimizers.optimizer import (
    ByDirection,
    Optimizer,
    Rate,
    Slots,
    Update,
    decayed,
    rate_at,
    running_mean,
    running_square,
)

__all__ = ["Adadelta", "Adagrad", "RMSProp"]


@frozen_dataclass
class Adagrad(Optimizer):
    """w - rate g / (sqrt(s) + epsilon), where s is the sum of all squared gradients.

    From Duchi, Hazan, Singer: Adaptive subgradient methods (JMLR 12, 2011).

    Args:
        rate: the learning rate: a number, or a function of the training step (`lamina.schedules`).
        rate_decay: a number; after n training steps the rate is divided by 1 + rate_decay * n.
        weight_decay: the multiple of the parameter that is added to its gradient.
        initial_sum: the first value of s.
        epsilon: a summand that keeps the divisor above zero.

    Example:
        >>> lm.Adagrad(0.01).slots()
        {'square_sum': 0.0}
    """

    rate: Rate = 1e-2
    _: KW_ONLY
    rate_decay: NotNegative = 0.0
    weight_decay: NotNegative = 0.0
    initial_sum: NotNegative = 0.0
    epsilon: NotNegative = 1e-10

    def slots(self) -> dict[str, float]:
        return {"square_sum": float(self.initial_sum)}

    def update(self, parameter: Tensor, gradient: Tensor, slots: Slots, step: Tensor) -> Update:
        direction = decayed(gradient, parameter, self.weight_decay)
        rate = rate_at(self.rate, step, parameter.dtype)
        if self.rate_decay:
            rate = rate / (ops.cast(step, parameter.dtype) * self.rate_decay + 1.0)
        total = ops.multiply_add(direction, direction, slots["square_sum"])
        new = ops.multiply_add(direction / (ops.sqrt(total) + self.epsilon), -rate, parameter)
        return new, {"square_sum": total}


@frozen_dataclass
class RMSProp(ByDirection):
    """w - rate g / (sqrt(s) + epsilon), where s is a running mean of squared gradients.

    From Hinton, Srivastava, Swersky: Neural networks for machine learning, lecture 6e (2012);
    centred as in Graves: Generating sequences with recurrent neural networks (2013).

    Args:
        rate: the learning rate: a number, or a function of the training step (`lamina.schedules`).
        decay: the share of the running means that each training step keeps; PyTorch's `alpha`.
        epsilon: a summand that keeps the divisor above zero.
        weight_decay: the multiple of the parameter that is added to its gradient.
        momentum: the share of the last update that is kept.
        centered: whether the divisor is the standard deviation of the gradient instead of its size.

    Example:
        >>> lm.RMSProp(0.01, centered=True).slots()
        {'square_mean': 0.0, 'mean': 0.0}
    """

    rate: Rate = 1e-2
    _: KW_ONLY
    decay: Fraction = 0.99
    epsilon: NotNegative = 1e-8
    weight_decay: NotNegative = 0.0
    momentum: NotNegative = 0.0
    centered: bool = False

    def slots(self) -> dict[str, float]:
        mean = {"mean": 0.0} if self.centered else {}
        momentum = {"momentum": 0.0} if self.momentum else {}
        return {"square_mean": 0.0, **mean, **momentum}

    def _direction(self, gradient: Tensor, slots: Slots, step: Tensor) -> Update:
        square_mean = running_square(slots["square_mean"], gradient, self.decay)
        new_slots = {"square_mean": square_mean}
        variance = square_mean
        if self.centered:
            mean = running_mean(slots["mean"], gradient, self.decay)
            new_slots["mean"] = mean
            # Rounding can make a variance of 0 negative.
            variance = ops.relu(square_mean - mean * mean)
        direction = gradient / (ops.sqrt(variance) + self.epsilon)
        if self.momentum:
            direction = ops.multiply_add(slots["momentum"], self.momentum, direction)
            new_slots["momentum"] = direction
        return direction, new_slots


@frozen_dataclass
class Adadelta(ByDirection):
    """w - rate d, where d = g sqrt(u + epsilon) / sqrt(s + epsilon).

    s is a running mean of squared gradients, and u of the d^2 of earlier training steps: d has the
    physical unit of the parameter. From Zeiler: ADADELTA: an adaptive learning rate method (2012),
    algorithm 1, which has no rate.

    Args:
        rate: the learning rate: a number, or a function of the training step (`lamina.schedules`).
        decay: the share of the running means that each training step keeps; PyTorch's `rho`.
        epsilon: a number added to u and s: it keeps the first updates and the divisor above 0.
        weight_decay: the multiple of the parameter that is added to its gradient.

    Example:
        >>> lm.Adadelta().slots()
        {'square_mean': 0.0, 'square_step_mean': 0.0}
    """

    rate: Rate = 1.0
    _: KW_ONLY
    decay: Fraction = 0.9
    epsilon: NotNegative = 1e-6
    weight_decay: NotNegative = 0.0

    def slots(self) -> dict[str, float]:
        return {"square_mean": 0.0, "square_step_mean": 0.0}

    def _direction(self, gradient: Tensor, slots: Slots, step: Tensor) -> Update:
        square_mean = running_square(slots["square_mean"], gradient, self.decay)
        before = ops.sqrt(slots["square_step_mean"] + self.epsilon)
        moved = before / ops.sqrt(square_mean + self.epsilon) * gradient
        square_step_mean = running_square(slots["square_step_mean"], moved, self.decay)
        return moved, {"square_mean": square_mean, "square_step_mean": square_step_mean}
