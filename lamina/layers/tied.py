"""The product with the weight of another layer."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import cast

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import static
from lamina.errors import DefinitionError, ShapeError
from lamina.graph import Tensor, described
from lamina.layers.checks import require_float
from lamina.layers.embedding import Embedding
from lamina.layers.init import Zeros
from lamina.layers.layer import Layer
from lamina.layers.linear import Linear
from lamina.layers.scope import InitializerOption, RegularizerOption, Scope, parameter_of

__all__ = ["TiedLinear"]


@frozen_dataclass
class TiedLinear(Layer):
    """The product with the transposed weight of another layer, plus its own bias.

    With an `Embedding` it computes a score for each index, x weight^T: f32 or f64
    [batch, ..., features] become [batch, ..., count]. With a `Linear` it maps features to that
    layer's inputs, x weight: [batch, ..., features] become [batch, ..., inputs]. The weight is the
    other layer's; the gradients of both uses are added. Its only parameter is `bias`. After Press
    and Wolf, 2017, and Inan, Khosravi, Socher, 2017.

    Args:
        layer: the `Embedding` or `Linear` from which x is computed, the same object.
        bias: whether a bias is added.
        bias_init: the first values of the bias; by default zeros.
        bias_regularizer: a function of the bias that is added to the loss, such as `lm.L2`.

    Example:
        >>> tokens, embedding = lm.Input(12, dtype="int64"), lm.Embedding(1000, 32)
        >>> scores = lm.TiedLinear(embedding)(lm.GRU(32)(embedding(tokens)))
        >>> lm.Network(tokens, scores).outputs[0].shape
        (batch, 12, 1000)
    """

    layer: Layer
    _: KW_ONLY
    bias: bool = True
    bias_init: InitializerOption = None
    bias_regularizer: RegularizerOption = None

    def __post_init__(self) -> None:
        if not isinstance(cast(object, self.layer), Embedding | Linear):
            raise DefinitionError(
                "weights are shared with an Embedding or a Linear",
                facts=(("found", repr(self.layer)),),
                advice="In a layer of your own, scope.shared gives the parameters of any layer.",
            )

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        weight = scope.shared(self.layer, "weight")
        if isinstance(self.layer, Embedding):
            weight = ops.transpose(weight)
        features, results = static(weight.shape)
        if x.rank < 2 or x.shape[-1] != features:
            raise ShapeError(
                "the last axis must be the features of the shared weights",
                facts=(("expected", f"[batch, ..., {features}]"), ("found", described(x))),
                advice=f"Add lm.Linear({features}) before it.",
            )
        require_float(self, x)
        y = ops.matmul(x, weight)
        return y if not self.bias else y + parameter_of(self, scope, "bias", (results,), Zeros())
