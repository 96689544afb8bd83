"""Optimizers with running means of the gradient and of its square: the family of Adam."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.checks.kinds import Fraction, NotNegative
from lamina.graph import Tensor
from lamina.learning.optimizers.optimizer import (
    Optimizer,
    Rate,
    Slots,
    Update,
    bias_correction,
    decayed,
    rate_at,
    running_mean,
    running_square,
)
from lamina.learning.protocols import PerParameter

__all__ = ["LAMB", "Adam", "AdamW", "Adamax", "NAdam"]


@frozen_dataclass
class _OfMoments(Optimizer):
    """The base of optimizers with running means; its options come in this order."""

    rate: Rate = 1e-3
    _: KW_ONLY
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    epsilon: NotNegative = 1e-8
    weight_decay: NotNegative = 0.0

    def slots(self) -> dict[str, float | PerParameter]:
        return {"mean": 0.0, "square_mean": 0.0}


@frozen_dataclass(kw_only=True)
class Adam(_OfMoments):
    """w - rate m / (sqrt(v) + epsilon), with bias-corrected running means m of g and v of g^2.

    From Kingma, Ba: Adam: a method for stochastic optimization (2015), algorithm 1; `amsgrad`
    from Reddi, Kale, Kumar: On the convergence of Adam and beyond (2018).

    Args:
        rate: the learning rate: a number, or a function of the training step (`lamina.schedules`).
        beta1: the share of m that each training step keeps.
        beta2: the share of v that each training step keeps.
        epsilon: a summand that keeps the divisor above zero.
        weight_decay: the multiple of the parameter that is added to its gradient; see `AdamW`.
        amsgrad: whether the divisor is made from the largest v so far.

    Example:
        >>> lm.Adam(1e-3).slots()
        {'mean': 0.0, 'square_mean': 0.0}
    """

    amsgrad: bool = False

    def slots(self) -> dict[str, float | PerParameter]:
        return super().slots() | ({"largest_square_mean": 0.0} if self.amsgrad else {})

    def update(self, parameter: Tensor, gradient: Tensor, slots: Slots, step: Tensor) -> Update:
        rate = rate_at(self.rate, step, parameter.dtype)
        start, direction = self._decayed(parameter, gradient, rate)
        mean = running_mean(slots["mean"], direction, self.beta1)
        square_mean = running_square(slots["square_mean"], direction, self.beta2)
        new_slots = {"mean": mean, "square_mean": square_mean}
        if self.amsgrad:
            square_mean = ops.maximum(slots["largest_square_mean"], square_mean)
            new_slots["largest_square_mean"] = square_mean
        # Numbers that are the same for all elements are computed once, as scalars.
        time = _time(step, start)
        length = -rate / bias_correction(time, self.beta1)
        divisor = _root(square_mean, time, self.beta2, self.epsilon)
        return ops.multiply_add(mean / divisor, length, start), new_slots

    def _decayed(self, parameter: Tensor, gradient: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        """The parameter and the gradient with the weight decay in one of them."""
        return parameter, decayed(gradient, parameter, self.weight_decay)


@frozen_dataclass(kw_only=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: w is first multiplied by 1 - rate decay.

    From Loshchilov, Hutter: Decoupled weight decay regularization (2019), algorithm 2.

    Args:
        weight_decay: the multiple of rate times the parameter that is subtracted.
        others: the arguments of `Adam`.

    Example:
        >>> lm.AdamW(1e-3, amsgrad=True).slots()
        {'mean': 0.0, 'square_mean': 0.0, 'largest_square_mean': 0.0}
    """

    weight_decay: NotNegative = 1e-2

    def _decayed(self, parameter: Tensor, gradient: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        decay = self.weight_decay
        return parameter * (1.0 - rate * decay) if decay else parameter, gradient


@frozen_dataclass
class Adamax(_OfMoments):
    """w - rate m / u: Adam with a decaying maximum u of the gradient's absolute value.

    From Kingma, Ba: Adam: a method for stochastic optimization (2015), algorithm 2.

    Args:
        beta2: the share of u that each training step keeps.
        epsilon: a summand of the gradient's absolute value.
        rate, beta1, weight_decay: the arguments of `Adam`.

    Example:
        >>> lm.Adamax(2e-3).slots()
        {'mean': 0.0, 'largest': 0.0}
    """

    rate: Rate = 2e-3

    def slots(self) -> dict[str, float | PerParameter]:
        return {"mean": 0.0, "largest": 0.0}

    def update(self, parameter: Tensor, gradient: Tensor, slots: Slots, step: Tensor) -> Update:
        direction = decayed(gradient, parameter, self.weight_decay)
        rate = rate_at(self.rate, step, parameter.dtype)
        mean = running_mean(slots["mean"], direction, self.beta1)
        size = ops.abs(direction) + self.epsilon
        largest = ops.maximum(slots["largest"] * self.beta2, size)
        length = -rate / bias_correction(_time(step, parameter), self.beta1)
        new = ops.multiply_add(mean / largest, length, parameter)
        return new, {"mean": mean, "largest": largest}


@frozen_dataclass
class NAdam(_OfMoments):
    """Adam with Nesterov momentum; the momentum grows towards beta1.

    From Dozat: Incorporating Nesterov momentum into Adam (2016). The momentum of training step t,
    counted from 1, is beta1 (1 - 0.5 * 0.96^(t momentum_decay)).

    Args:
        momentum_decay: the speed with which the momentum grows.
        decoupled_weight_decay: whether the parameter is multiplied by 1 - rate * weight_decay
            instead, as `AdamW` does.
        others: the arguments of `Adam`.

    Example:
        >>> list(lm.NAdam(2e-3).slots())
        ['mean', 'square_mean', 'momentum_product']
    """

    rate: Rate = 2e-3
    _: KW_ONLY
    momentum_decay: NotNegative = 4e-3
    decoupled_weight_decay: bool = False

    def slots(self) -> dict[str, float | PerParameter]:
        return {"mean": 0.0, "square_mean": 0.0, "momentum_product": PerParameter(1.0)}

    def update(self, parameter: Tensor, gradient: Tensor, slots: Slots, step: Tensor) -> Update:
        rate = rate_at(self.rate, step, parameter.dtype)
        start, direction = parameter, gradient
        if self.decoupled_weight_decay:
            start = parameter * (1.0 - rate * self.weight_decay)
        else:
            direction = decayed(gradient, parameter, self.weight_decay)
        mean = running_mean(slots["mean"], direction, self.beta1)
        square_mean = running_square(slots["square_mean"], direction, self.beta2)
        # Numbers that are the same for all elements are computed once, as scalars.
        time = _time(step, parameter)
        momentum, next_momentum = self._momentum(time), self._momentum(time + 1.0)
        product = slots["momentum_product"] * momentum
        length = rate * (1.0 - momentum) / (1.0 - product)
        next_length = rate * next_momentum / (1.0 - product * next_momentum)
        moved = ops.multiply_add(direction, length, mean * next_length)
        new = start - moved / _root(square_mean, time, self.beta2, self.epsilon)
        new_slots = {"mean": mean, "square_mean": square_mean, "momentum_product": product}
        return new, new_slots

    def _momentum(self, time: Tensor) -> Tensor:
        decay = ops.exp(time * (self.momentum_decay * math.log(0.96)))
        return (1.0 - decay * 0.5) * self.beta1


@frozen_dataclass(kw_only=True)
class LAMB(_OfMoments):
    """w - rate |w| / |d| d, where d is the direction of Adam with the parameter's decay added.

    Each parameter moves in proportion to its own norm, which keeps large batches stable. From
    You et al.: Large batch optimization for deep learning: training BERT in 76 minutes (2020),
    algorithm 2, with the identity for its function phi. The quotient is 1 where a norm is 0.

    Args:
        weight_decay: the multiple of the parameter that is added to the direction.
        others: the arguments of `Adam`.

    Example:
        >>> lm.LAMB(1e-3).slots()
        {'mean': 0.0, 'square_mean': 0.0}
    """

    epsilon: NotNegative = 1e-6
    weight_decay: NotNegative = 1e-2

    def update(self, parameter: Tensor, gradient: Tensor, slots: Slots, step: Tensor) -> Update:
        rate = rate_at(self.rate, step, parameter.dtype)
        mean = running_mean(slots["mean"], gradient, self.beta1)
        square_mean = running_square(slots["square_mean"], gradient, self.beta2)
        time = _time(step, parameter)
        scale = ops.reciprocal(bias_correction(time, self.beta1))
        adam = mean * scale / _root(square_mean, time, self.beta2, self.epsilon)
        direction = decayed(adam, parameter, self.weight_decay)
        size, length = _norm(parameter), _norm(direction)
        usual = ops.logical_and(ops.greater(size, 0.0), ops.greater(length, 0.0))
        trust = ops.where(usual, size, 1.0) / ops.where(usual, length, 1.0)
        new = ops.multiply_add(direction, trust * -rate, parameter)
        return new, {"mean": mean, "square_mean": square_mean}


def _time(step: Tensor, parameter: Tensor) -> Tensor:
    """The number of the training step, from 1, in the parameter's dtype."""
    return ops.cast(step, parameter.dtype) + 1.0


def _root(square_mean: Tensor, time: Tensor, beta: float, epsilon: float) -> Tensor:
    """sqrt(v) + epsilon for the bias-corrected mean of squares v."""
    scale = ops.reciprocal(ops.sqrt(bias_correction(time, beta)))
    return ops.multiply_add(ops.sqrt(square_mean), scale, epsilon)


def _norm(x: Tensor) -> Tensor:
    return ops.sqrt(ops.sum(x * x))
