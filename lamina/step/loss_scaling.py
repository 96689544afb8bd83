"""Loss scaling, for gradients in float16: small gradients must not become zero.

The loss is multiplied by a large number before it is differentiated, and the gradients of the
parameters are divided by it. If one of them is infinite or NaN, the training step is skipped:
parameters and states keep their values, and the scale is halved. After many training steps without
one the scale is doubled. After Micikevicius et al.: Mixed precision training (2018), with the
first scale and the growth of PyTorch's `GradScaler`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import float32, int64
from lamina.graph import Tensor, leaf

# The first scale; after so many training steps without overflow it is doubled.
FIRST_SCALE, GROWTH_STEPS = 2.0**16, 2000
# Powers of two, so that scaling rounds nothing. Beyond these, float32 could overflow.
LEAST_SCALE, LARGEST_SCALE = 1.0, 2.0**24
# The names of the scale, and of the state that counts skipped training steps.
SCALE, SKIPPED = "loss_scale", "loss_scale/skipped"


@frozen_dataclass
class LossScale:
    """The states of loss scaling, as leaves of the graph of a training step."""

    scale: Tensor
    steps: Tensor
    skipped: Tensor

    @property
    def slots(self) -> Mapping[str, tuple[Tensor, float]]:
        """Each state with its first value, by name."""
        states = (self.scale, FIRST_SCALE), (self.steps, 0.0), (self.skipped, 0.0)
        return {tensor.attributes["name"]: (tensor, first) for tensor, first in states}

    def updates(self, finite: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The new states; `finite` is whether all gradients were finite."""
        grows = ops.greater_equal(self.steps, GROWTH_STEPS - 1)
        grown = ops.minimum(self.scale * 2.0, LARGEST_SCALE)
        reduced = ops.maximum(self.scale * 0.5, LEAST_SCALE)
        kept = ops.where(grows, grown, self.scale)
        steps = ops.where(grows, 0, self.steps + 1)
        return [
            (self.scale, ops.where(finite, kept, reduced)),
            (self.steps, ops.where(finite, steps, 0)),
            (self.skipped, ops.where(finite, self.skipped, self.skipped + 1)),
        ]


def loss_scale() -> LossScale:
    """The states of a training."""
    return LossScale(
        leaf(SCALE, "state", (), float32),
        leaf("loss_scale/steps", "state", (), int64),
        leaf(SKIPPED, "state", (), int64),
    )


def all_finite(gradients: Sequence[Tensor]) -> Tensor:
    """Whether all elements are finite: a bool."""
    # A maximum is NaN if one of its operands is.
    largest = [ops.max(ops.abs(gradient)) for gradient in gradients]
    return ops.less(reduce(ops.maximum, largest), math.inf)


def kept_unless(
    finite: Tensor, updates: Sequence[tuple[Tensor, Tensor]]
) -> list[tuple[Tensor, Tensor]]:
    """Updates that change nothing unless all gradients are finite."""
    return [(target, ops.where(finite, new, target)) for target, new in updates]
