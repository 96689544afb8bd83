"""Attention, and the blocks of transformers.

After Vaswani, Shazeer, Parmar, Uszkoreit, Jones, Gomez, Kaiser, Polosukhin: Attention is all you
need (2017). Sequences are f32 or f64 [batch, length, features]. A mask is bool, true for the keys
that a query attends to: [batch, keys], for sequences of different lengths, or
[batch, queries, keys]. (PyTorch's `key_padding_mask` is true for the other keys.) A query without
any key gets zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Literal

from lamina import ops
from lamina.errors import DefinitionError, DTypeError, ShapeError
from lamina.graph import Tensor, described
from lamina.graph.kinds import Count, Fraction, NotNegative
from lamina.layers.activation import GELU
from lamina.layers.checks import EMBEDDING, origin_text, require_float
from lamina.layers.dropout import Dropout
from lamina.layers.init import XavierUniform, Zeros
from lamina.layers.layer import Layer
from lamina.layers.linear import Linear
from lamina.layers.normalization import LayerNorm
from lamina.layers.scope import Scope
from lamina.records import frozen_dataclass
from lamina.shapes import bool_, shape_text, static

Activation = Literal["relu", "gelu"]


@frozen_dataclass
class MultiHeadAttention(Layer):
    """Multi-head scaled dot-product attention: softmax(q k^T / sqrt(d)) v in each head.

    If it is applied to one sequence, the positions attend to each other (self-attention). If it is
    applied to two, the first attends to the second. A mask may follow. Gives
    [batch, queries, features].

    It contains four `Linear` layers, `queries`, `keys`, `values` and `output`, so its parameters
    are `queries.weight`, (features, inputs), `queries.bias`, (features,), and so on. PyTorch's
    `in_proj_weight` and `in_proj_bias` are the first three one after the other. Queries, keys and
    values are split into `heads` heads of equal size; each head has its own attention weights.

    Args:
        heads: their number; it divides the features.
        features: of the result, and of queries, keys and values, all heads together; by default
            those of the first sequence.
        dropout: the probability that an attention weight becomes zero while training.
        bias: whether the four layers have biases.
        causal: whether position i attends to positions 0 to i only.

    Raises:
        DefinitionError: if heads or features are not whole numbers above zero, or dropout is not
            a probability below 1.
        ShapeError: when applied to other shapes, or if the heads do not divide the features.
        DTypeError: when applied to integers, or to a mask that is not bool.

    Example:
        >>> import lamina as lm
        >>> lm.MultiHeadAttention(4)(lm.Input(12, 64)).shape
        (Size(coefficient=1, offset=0), 12, 64)
    """

    heads: Count
    _: KW_ONLY
    features: Count | None = None
    dropout: Fraction = 0.0
    bias: bool = True
    causal: bool = False

    def __post_init__(self) -> None:
        if self.features is not None and self.features % self.heads:
            facts = _facts_of_heads(self.heads, str(self.features))
            raise DefinitionError(_UNEVEN, facts=facts, where=origin_text(self))

    def forward(self, scope: Scope, *operands: Tensor) -> Tensor:
        """Builds the attention of queries to themselves or to a second sequence."""
        sequences, masks = _sequences_and_masks(self, operands, (1, 2), 1)
        queries, source = sequences[0], sequences[-1]
        (width,) = static(queries.shape[2:])
        features = self.features or width
        if features % self.heads:
            facts = _facts_of_heads(self.heads, described(queries))
            advice = "Choose a number of heads that divides the features, or give features=."
            raise ShapeError(_UNEVEN, facts=facts, advice=advice)
        # PyTorch initializes all three as one matrix, of three times as many outputs.
        linear = Linear(
            features,
            bias=self.bias,
            weight_init=XavierUniform(gain=math.sqrt(0.5)),
            bias_init=Zeros(),
        )
        q, k, v = (
            _split_heads(scope.layer(name, linear, x), self.heads)
            for name, x in (("queries", queries), ("keys", source), ("values", source))
        )
        mask = _mask_of_weights(masks[0], q, k) if masks else None
        factors = None
        if scope.training and self.dropout:
            weights_shape, stay = (*q.shape[:3], k.shape[2]), 1.0 - self.dropout
            factors = scope.bernoulli(weights_shape, stay) * (1.0 / stay)
        means = ops.attention(q, k, v, mask, self.causal, factors=factors)
        joined = ops.reshape(ops.transpose(means, (0, 2, 1, 3)), (*queries.shape[:2], features))
        output = Linear(features, bias=self.bias, bias_init=Zeros())
        return scope.layer("output", output, joined)


_UNEVEN = "the features cannot be divided evenly among the heads"


def _facts_of_heads(heads: int, found: str) -> tuple[tuple[str, str], ...]:
    return ("expected", f"a multiple of {heads} features"), ("found", found)


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """[batch, length, features] -> [batch, heads, length, features / heads]."""
    batch, length, features = x.shape
    (width,) = static((features,))
    split = ops.reshape(x, (batch, length, heads, width // heads))
    return ops.transpose(split, (0, 2, 1, 3))


@frozen_dataclass
class TransformerEncoderBlock(Layer):
    """Self-attention, then a feed-forward network of two linear layers at each position.

    Applied to [batch, length, features], and perhaps a mask; gives the same shape. Both sublayers
    have a residual connection and a layer normalisation: of the sum, or, with `norm_first`, of the
    sublayer's input (Xiong et al.: On layer normalization in the transformer architecture, 2020).
    With `causal=True` it is the block of decoder-only language models.

    It contains `attention`, a `MultiHeadAttention`; `attention_norm`; `hidden` and `output`, two
    `Linear` layers; `feedforward_norm`. PyTorch's names for them are `self_attn`, `norm1`,
    `linear1`, `linear2`, `norm2`.

    Args:
        heads: of the attention; their number divides the features.
        hidden: the features between the two linear layers.
        dropout: the probability of an element to become zero while training: of attention weights,
            after the activation, and before each sum.
        activation: `"relu"` or `"gelu"`.
        norm_first: whether normalisation comes before each sublayer.
        causal: whether position i attends to positions 0 to i only.
        epsilon: of the normalisations.

    Raises:
        DefinitionError: if a hyper-parameter is out of range.
        ShapeError: when applied to other shapes, or if the heads do not divide the features.
        DTypeError: when applied to integers, or to a mask that is not bool.

    Example:
        >>> import lamina as lm
        >>> lm.TransformerEncoderBlock(4, 256)(lm.Input(12, 64)).shape
        (Size(coefficient=1, offset=0), 12, 64)
    """

    heads: Count
    hidden: Count
    _: KW_ONLY
    dropout: Fraction = 0.1
    activation: Activation = "relu"
    norm_first: bool = False
    causal: bool = False
    epsilon: NotNegative = 1e-5

    def forward(self, scope: Scope, *operands: Tensor) -> Tensor:
        """Builds both sublayers with their residual connections."""
        (x,), masks = _sequences_and_masks(self, operands, (1,), 1)
        attention = MultiHeadAttention(self.heads, dropout=self.dropout, causal=self.causal)
        x = _residual(
            *(self, scope, "attention", x),
            lambda y: scope.layer("attention", attention, y, *masks),
        )
        return _feedforward(self, scope, x)


@frozen_dataclass
class TransformerDecoderBlock(Layer):
    """As `TransformerEncoderBlock`, with attention to a second sequence between its sublayers.

    Applied to [batch, length, features] and a memory [batch, other length, other features], such as
    the result of an encoder; gives the shape of the first. Two masks may follow: of the memory, and
    of the first sequence.

    It contains `attention`, `attention_norm`, `memory_attention`, `memory_attention_norm`,
    `hidden`, `output` and `feedforward_norm`. PyTorch's names for them are `self_attn`, `norm1`,
    `multihead_attn`, `norm2`, `linear1`, `linear2`, `norm3`.

    Args:
        heads: of both attentions; their number divides the features.
        hidden: the features between the two linear layers.
        dropout: the probability of an element to become zero while training: of attention weights,
            after the activation, and before each sum.
        activation: `"relu"` or `"gelu"`.
        norm_first: whether normalisation comes before each sublayer.
        causal: whether position i of the first sequence attends only to its positions 0 to i.
        epsilon: of the normalisations.

    Raises:
        DefinitionError: if a hyper-parameter is out of range.
        ShapeError: when applied to other shapes, or if the heads do not divide the features.
        DTypeError: when applied to integers, or to a mask that is not bool.

    Example:
        >>> import lamina as lm
        >>> lm.TransformerDecoderBlock(4, 256)(lm.Input(12, 64), lm.Input(20, 32)).shape
        (Size(coefficient=1, offset=0), 12, 64)
    """

    heads: Count
    hidden: Count
    _: KW_ONLY
    dropout: Fraction = 0.1
    activation: Activation = "relu"
    norm_first: bool = False
    causal: bool = True
    epsilon: NotNegative = 1e-5

    def forward(self, scope: Scope, *operands: Tensor) -> Tensor:
        """Builds the three sublayers with their residual connections."""
        (x, memory), masks = _sequences_and_masks(self, operands, (2,), 2)
        (features,) = static(x.shape[2:])
        own = MultiHeadAttention(self.heads, dropout=self.dropout, causal=self.causal)
        other = MultiHeadAttention(self.heads, features=features, dropout=self.dropout)
        x = _residual(
            *(self, scope, "attention", x),
            lambda y: scope.layer("attention", own, y, *masks[1:]),
        )
        x = _residual(
            *(self, scope, "memory_attention", x),
            lambda y: scope.layer("memory_attention", other, y, memory, *masks[:1]),
        )
        return _feedforward(self, scope, x)


# Shared by the layers above -----------------------------------------------------------------------

_Block = TransformerEncoderBlock | TransformerDecoderBlock


def _residual(
    block: _Block, scope: Scope, name: str, x: Tensor, sublayer: Callable[[Tensor], Tensor]
) -> Tensor:
    """The sum of x and the sublayer of x, normalised before or after."""
    norm, dropout = LayerNorm(epsilon=block.epsilon), Dropout(block.dropout)
    if block.norm_first:
        return x + dropout.forward(scope, sublayer(scope.layer(f"{name}_norm", norm, x)))
    return scope.layer(f"{name}_norm", norm, x + dropout.forward(scope, sublayer(x)))


def _feedforward(block: _Block, scope: Scope, x: Tensor) -> Tensor:
    """Two linear layers at each position, with a residual connection."""
    (features,) = static(x.shape[2:])

    def sublayer(y: Tensor) -> Tensor:
        y = scope.layer("hidden", Linear(block.hidden), y)
        y = ops.relu(y) if block.activation == "relu" else GELU().forward(scope, y)
        y = Dropout(block.dropout).forward(scope, y)
        return scope.layer("output", Linear(features), y)

    return _residual(block, scope, "feedforward", x, sublayer)


_NO_MASK = " If it is a second sequence, put an lm.Embedding(count, features) before it."


def _sequences_and_masks(
    layer: Layer, operands: tuple[Tensor, ...], counts: tuple[int, ...], most_masks: int
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The sequences and the masks to which a layer is applied.

    Raises:
        ShapeError: if there are more than the layer takes, or a sequence has other axes.
        DTypeError: for integers, and for masks that are not bool.
    """
    sequences = tuple(x for x in operands if x.dtype != bool_)
    masks = tuple(x for x in operands if x.dtype == bool_)
    facts = tuple((f"operand {n}", described(x)) for n, x in enumerate(operands))
    name = type(layer).__name__
    for number, x in enumerate(operands):
        # A tensor of two axes is a mask that is not bool, unless it must be a sequence.
        if number >= min(counts) and x.rank == 2 and x.dtype != bool_:
            indices = number < max(counts) and x.dtype.kind == "int"
            raise DTypeError(
                f"a mask of {name} is bool",
                facts=(("expected", "bool[batch, keys]"), ("found", described(x))),
                advice='Take it as lm.Input(keys, dtype="bool"), or compare: '
                "ops.not_equal(mask, 0)." + (_NO_MASK if indices else ""),
            )
    fits = operands == (*sequences, *masks) and len(masks) <= most_masks
    if not fits or len(sequences) not in counts:
        wanted = "one sequence" if counts == (1,) else "two sequences"
        wanted = wanted if len(counts) == 1 else "one or two sequences"
        masks_too = "a mask" if most_masks == 1 else "up to two masks"
        raise ShapeError(
            f"{name} takes {wanted}, and perhaps {masks_too}",
            facts=facts,
            advice="A mask is bool, and comes last.",
        )
    for x in sequences:
        require_float(layer, x, EMBEDDING if x.rank == 2 else "")
        if x.rank != 3:
            raise ShapeError(
                f"{name} needs sequences",
                facts=(("expected", "[batch, length, features]"), ("found", described(x))),
                advice="lm.Embedding makes sequences of indices, and ops.reshape of images.",
            )
    return sequences, masks


def _mask_of_weights(mask: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """A mask that broadcasts over the attention weights, [batch, heads, queries, keys].

    Raises:
        ShapeError: if it belongs to other lengths.
    """
    batch, _, query_count, _ = queries.shape
    key_count = keys.shape[2]
    if mask.shape == (batch, key_count):
        return ops.reshape(mask, (batch, 1, 1, key_count))
    if mask.shape == (batch, query_count, key_count):
        return ops.reshape(mask, (batch, 1, query_count, key_count))
    shapes = (batch, key_count), (batch, query_count, key_count)
    raise ShapeError(
        "the mask does not fit the sequences",
        facts=(
            ("expected", " or ".join(map(shape_text, shapes))),
            ("found", described(mask)),
        ),
        advice="A mask has one bool for each key, or for each pair of query and key.",
    )
