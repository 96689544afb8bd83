"""Optimizers that do not scale by gradient statistics: SGD with momentum, and by signs only."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Annotated

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.checks import refused
from lamina.checks.kinds import Fraction, Misfit, NotNegative, Number
from lamina.errors import DefinitionError
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
)

__all__ = ["SGD", "Lion", "Rprop"]


@frozen_dataclass
class SGD(ByDirection):
    """Stochastic gradient descent: w - rate g, or w - rate b with b = momentum b + g.

    Args:
        rate: the learning rate: a number, or a function of the training step (`lamina.schedules`).
        momentum: the share of b that each training step keeps (Polyak 1964).
        dampening: the share of g that b leaves out from the second training step on.
        nesterov: whether g + momentum b replaces b (Nesterov 1983; Sutskever et al. 2013); it needs
            momentum, and no dampening.
        weight_decay: the multiple of the parameter that is added to its gradient.

    Example:
        >>> lm.SGD(0.1, momentum=0.9).slots()
        {'momentum': 0.0}
    """

    rate: Rate = 1e-3
    _: KW_ONLY
    momentum: NotNegative = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: NotNegative = 0.0

    def __post_init__(self) -> None:
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            settings = f"momentum = {self.momentum}, dampening = {self.dampening}"
            raise DefinitionError(
                "nesterov needs momentum and no dampening",
                facts=(("expected", "momentum > 0, dampening = 0"), ("found", settings)),
                advice="For example SGD(0.1, momentum=0.9, nesterov=True).",
            )

    def slots(self) -> dict[str, float]:
        return {"momentum": 0.0} if self.momentum else {}

    def _direction(self, gradient: Tensor, slots: Slots, step: Tensor) -> Update:
        if not self.momentum:
            return gradient, {}
        damped = gradient * (1 - self.dampening) if self.dampening else gradient
        buffer = ops.multiply_add(slots["momentum"], self.momentum, damped)
        if self.dampening:
            buffer = ops.where(ops.equal(step, 0), gradient, buffer)
        ahead = ops.multiply_add(buffer, self.momentum, gradient) if self.nesterov else buffer
        return ahead, {"momentum": buffer}


@frozen_dataclass
class Lion(Optimizer):
    """w - rate (sign(c) + decay w), where c is a mean of g and the running mean of gradients.

    From Chen et al.: Symbolic discovery of optimization algorithms (2023), algorithm 2. All
    elements move by the same length, so the rate is 3 to 10 times smaller than AdamW's,
    and the weight decay as much larger.

    Args:
        rate: the learning rate: a number, or a function of the training step (`lamina.schedules`).
        beta1: the share of the mean in c; the rest is the gradient.
        beta2: the share of the mean that each training step keeps.
        weight_decay: the multiple of rate times the parameter that is subtracted.

    Example:
        >>> lm.Lion(1e-4, weight_decay=0.1).slots()
        {'mean': 0.0}
    """

    rate: Rate = 1e-4
    _: KW_ONLY
    beta1: Fraction = 0.9
    beta2: Fraction = 0.99
    weight_decay: NotNegative = 0.0

    def slots(self) -> dict[str, float]:
        return {"mean": 0.0}

    def update(self, parameter: Tensor, gradient: Tensor, slots: Slots, step: Tensor) -> Update:
        rate = rate_at(self.rate, step, parameter.dtype)
        sign = ops.sign(running_mean(slots["mean"], gradient, self.beta1))
        moved = decayed(sign, parameter, self.weight_decay)
        new = ops.multiply_add(moved, -rate, parameter)
        return new, {"mean": running_mean(slots["mean"], gradient, self.beta2)}


@frozen_dataclass
class Rprop(Optimizer):
    """w - length sign(g): a length for each element, longer while its gradient keeps its sign.

    An element whose gradient changes its sign stays unchanged in this training step. From
    Riedmiller, Braun: A direct adaptive method for faster backpropagation learning (1993), as
    iRprop- of Igel, Hüsken: Improving the Rprop learning algorithm (2000). It is meant for full
    batches: signs that differ between batches shorten the lengths.

    Args:
        rate: the first length, a number.
        decrease: the factor of the length if the sign changes; PyTorch's `etas[0]`.
        increase: the factor of the length if the sign stays; PyTorch's `etas[1]`.
        shortest, longest: limits of the lengths; PyTorch's `step_sizes`.

    Example:
        >>> lm.Rprop(0.01).slots()
        {'gradient': 0.0, 'length': 0.01}
    """

    rate: NotNegative = 1e-2
    _: KW_ONLY
    decrease: Annotated[float, Number("(0, 1)")] = 0.5
    increase: Annotated[float, Number("(1, inf)")] = 1.2
    shortest: NotNegative = 1e-6
    longest: float = 50.0

    def __post_init__(self) -> None:
        try:
            Number(f"[{self.shortest}, inf)").read(self.longest)
        except Misfit as misfit:
            raise refused(misfit, "longest", self.longest, "Rprop") from None

    def slots(self) -> dict[str, float]:
        return {"gradient": 0.0, "length": float(self.rate)}

    def update(self, parameter: Tensor, gradient: Tensor, slots: Slots, step: Tensor) -> Update:
        agreement = gradient * slots["gradient"]
        changed = ops.less(agreement, 0.0)
        length = slots["length"]
        longer = ops.where(ops.greater(agreement, 0.0), length * self.increase, length)
        length = ops.where(changed, length * self.decrease, longer)
        length = ops.clip(length, self.shortest, self.longest)
        followed = ops.where(changed, 0.0, gradient)
        new = parameter - ops.sign(followed) * length
        return new, {"gradient": followed, "length": length}
