"""The limited-memory quasi-Newton method, which updates all parameters together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from itertools import pairwise
from typing import ClassVar

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.checks.kinds import Count, NotNegative
from lamina.graph import Tensor
from lamina.learning.optimizers.optimizer import Optimizer, Rate, Slots, Update, rate_at

__all__ = ["LBFGS"]

# A pair of changes is kept if their product is above this: otherwise the curvature is unknown.
_LEAST_CURVATURE = 1e-10


@frozen_dataclass
class LBFGS(Optimizer):
    """w - rate H g, where H approximates the inverse Hessian from the last changes of w and g.

    From Nocedal: Updating quasi-Newton matrices with limited storage (1980); Nocedal, Wright:
    Numerical optimization (2006), algorithm 7.4. It is PyTorch's `LBFGS(max_iter=1)` with
    `history_size=history`, without line search: each training step evaluates the gradient once. The
    first step is rate min(1, 1 / |g|_1) g, as is each after one in which nothing moved.

    H is estimated from differences of gradients, so all training steps should see the same
    examples: `batch_size=len(data)`, in a network without random layers. All parameters with this
    optimizer are one vector, and the state is 2 history + 2 such vectors; `EMA` and `SWA` do not
    average it.

    Args:
        rate: the learning rate: a number, or a function of the training step (`lamina.schedules`).
        history: the number of the last changes of w and g that are kept.
        gradient_tolerance: a limit; no step is taken if no number of the gradient is larger.
        change_tolerance: a limit; no step is taken if the product of gradient and direction is not
            below minus this number.

    Example:
        >>> lm.LBFGS(history=1).slots()
        {'gradient': 0.0, 'change': 0.0, 'gradients0': 0.0, 'changes0': 0.0}
    """

    joins_parameters: ClassVar[bool] = True

    rate: Rate = 1.0
    _: KW_ONLY
    history: Count = 10
    gradient_tolerance: NotNegative = 1e-7
    change_tolerance: NotNegative = 1e-9

    def slots(self) -> dict[str, float]:
        kept = (f"{name}{n}" for n in range(self.history) for name in ("gradients", "changes"))
        return dict.fromkeys(("gradient", "change", *kept), 0.0)

    def update(self, parameter: Tensor, gradient: Tensor, slots: Slots, step: Tensor) -> Update:
        """Builds the update of all parameters, joined to one vector."""
        changes = [slots[f"changes{n}"] for n in range(self.history)]
        gradients = [slots[f"gradients{n}"] for n in range(self.history)]
        small = ops.less_equal(ops.max(ops.abs(gradient)), self.gradient_tolerance)
        difference = gradient - slots["gradient"]
        curved = ops.greater(_dot(difference, slots["change"]), _LEAST_CURVATURE)
        # Unless there is no step, the newest changes replace the oldest.
        replaces = ops.logical_and(curved, ops.logical_not(small))
        changes, gradients = (
            [ops.where(replaces, new, old) for old, new in pairwise((*kept, newest))]
            for kept, newest in ((changes, slots["change"]), (gradients, difference))
        )
        direction = _direction(gradient, changes, gradients)
        follows = ops.greater(ops.max(ops.abs(slots["change"])), 0.0)
        length = ops.minimum(1.0, ops.reciprocal(ops.sum(ops.abs(gradient))))
        length = ops.where(follows, 1.0, length) * rate_at(self.rate, step, parameter.dtype)
        flat = ops.greater(_dot(gradient, direction), -self.change_tolerance)
        stays = ops.logical_or(small, flat)
        change = ops.where(stays, 0.0, direction * length)
        new_slots = {"gradient": ops.where(small, slots["gradient"], gradient), "change": change}
        for n in range(self.history):
            new_slots |= {f"gradients{n}": gradients[n], f"changes{n}": changes[n]}
        return parameter + change, new_slots


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return ops.sum(x * y)


def _direction(gradient: Tensor, changes: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """-H g by two loops over the kept changes; changes of zeros, not filled yet, add nothing."""
    products = [_dot(y, s) for s, y in zip(changes, gradients, strict=True)]
    inverses = [_inverse(product, 0.0) for product in products]
    direction, shares = -gradient, dict[int, Tensor]()
    for n in reversed(range(len(changes))):
        shares[n] = _dot(changes[n], direction) * inverses[n]
        direction = ops.multiply_add(gradients[n], -shares[n], direction)
    # The size of the first estimate of H, from the newest changes; 1 without any.
    squares = _dot(gradients[-1], gradients[-1])
    filled = ops.greater(products[-1], 0.0)
    direction = direction * ops.where(filled, products[-1] * _inverse(squares, 1.0), 1.0)
    for n in range(len(changes)):
        back = _dot(gradients[n], direction) * inverses[n]
        direction = ops.multiply_add(changes[n], shares[n] - back, direction)
    return direction


def _inverse(x: Tensor, of_zero: float) -> Tensor:
    """1 / x, or a number where x is 0."""
    is_zero = ops.equal(x, 0.0)
    return ops.where(is_zero, of_zero, ops.reciprocal(ops.where(is_zero, 1.0, x)))
