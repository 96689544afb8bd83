"""Dropout."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.graph import Tensor
from lamina.layers.checks import require_number
from lamina.layers.layer import Layer
from lamina.layers.scope import Scope


@dataclass(frozen=True)
class Dropout(Layer):
    """Sets elements to zero at random while training; does nothing in inference.

    Takes f32 or f64 of any shape. The elements that stay are divided by the probability to stay
    ("inverted dropout"), so that the expected value is the same. The mask is a function of seed,
    step and place; the backward pass computes it again instead of storing it. After Srivastava,
    Hinton, Krizhevsky, Sutskever, Salakhutdinov: Dropout (JMLR 15, 2014).

    Args:
        probability: of an element to become zero.

    Raises:
        DefinitionError: unless 0 <= probability < 1.

    Example:
        >>> import lamina as lm
        >>> lm.Dropout(0.5)(lm.Input(100)).shape
        (Size(coefficient=1, offset=0), 100)
    """

    probability: float

    def __post_init__(self) -> None:
        require_number(self, "probability", self.probability, "[0, 1)")

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        """Builds x times a random mask, or x alone in the inference form."""
        if not scope.training or self.probability == 0:
            return x
        stay = 1.0 - self.probability
        return x * (scope.bernoulli(x.shape, stay) * (1.0 / stay))
