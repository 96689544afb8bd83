"""Attention, and the blocks of transformers.

After Vaswani, Shazeer, Parmar, Uszkoreit, Jones, Gomez, Kaiser, Polosukhin: Attention is all you
need (2017). Sequences are f32 or f64 [batch, length, features]. A mask is bool, true for the keys
that a query attends to: [batch, keys], for sequences of different lengths, (queries, keys),
[batch, queries, keys], or [batch, heads, queries, keys]. (PyTorch's `key_padding_mask` is true for
the other keys.) A mask of floats is added to the scores: (queries, keys), [batch, queries, keys]
after as many sequences as the layer takes, or [batch, heads, queries, keys]. Any extent of four may
be 1. A query without any key gets zeros. Keys that a mask of each sequence leaves out for all
queries, with false or -infinity, have no influence, also if they are NaN.
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, replace
from typing import Any, Literal

import numpy as np

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import bool_, shape_text, static
from lamina.checks.kinds import Count, NotNegative, Positive, Probability
from lamina.errors import DefinitionError, DTypeError, ShapeError
from lamina.graph import Tensor, described
from lamina.layers.activation import GELU
from lamina.layers.checks import EMBEDDING, require_float
from lamina.layers.dropout import Dropout, dropout_factors
from lamina.layers.init import XavierUniform, Zeros
from lamina.layers.layer import Layer
from lamina.layers.linear import Linear
from lamina.layers.normalization import LayerNorm
from lamina.layers.scope import Scope

__all__ = ["MultiHeadAttention", "TransformerDecoderBlock", "TransformerEncoderBlock"]

Activation = Literal["relu", "gelu"]


@frozen_dataclass
class MultiHeadAttention(Layer):
    """Multi-head scaled dot-product attention: softmax(q k^T / sqrt(d)) v in each head.

    If it is applied to one sequence, the positions attend to each other (self-attention). If it is
    applied to two, the first attends to the second; if to three, they are the sources of queries,
    keys and values. One or two masks may follow; keys must be allowed by both, and floats are added
    up. Floats of three axes are a mask after three sequences, `attention(x, x, x, mask)`, and a
    sequence before. Gives [batch, queries, features].

    It contains four `Linear` layers, `queries`, `keys`, `values` and `output`, so its parameters
    are `queries.weight`, (features, inputs), `queries.bias`, (features,), and so on. PyTorch's
    `in_proj_weight` and `in_proj_bias` are the first three one after the other. Queries, keys and
    values are split into heads of equal size; each head has its own attention weights.

    Args:
        heads: the number of heads; it divides the features.
        features: the number of features of the result, and of queries, keys and values, all heads
            together; by default as many as the first sequence has.
        dropout: the probability that an attention weight becomes zero while training.
        bias: whether the four layers have biases.
        causal: whether position i attends to positions 0 to i only.
        key_heads: the number of heads of keys and values, which divides `heads`: neighbouring heads
            of queries share them (grouped queries, Ainslie et al. 2023; 1: multi-query attention,
            Shazeer 2019). None: as many as heads.
        head_features: the number of features of queries, keys and values in each head; None:
            features / heads.
        rotary: the base of rotary positions, such as 10000.0: queries and keys are rotated by
            angles that grow with the position (Su et al.: RoFormer, 2021), element i of a head
            together with element i + head_features / 2. None: they are not.
        returns: the `"output"`, or a tuple of the output and the `"weights"`,
            [batch, heads, queries, keys].

    Example:
        >>> lm.MultiHeadAttention(4)(lm.Input(12, 64)).shape
        (batch, 12, 64)
    """

    heads: Count
    _: KW_ONLY
    features: Count | None = None
    dropout: Probability = 0.0
    bias: bool = True
    causal: bool = False
    key_heads: Count | None = None
    head_features: Count | None = None
    rotary: Positive | None = None
    returns: Literal["output", "weights"] = "output"

    def __post_init__(self) -> None:
        divided = self.features if self.head_features is None else None
        if divided is not None and divided % self.heads:
            raise DefinitionError(_UNEVEN, facts=_facts_of_heads(self.heads, str(divided)))
        if self.key_heads is not None and self.heads % self.key_heads:
            raise DefinitionError(
                "the heads of queries cannot share the heads of keys evenly",
                facts=(("expected", f"a divisor of {self.heads}"), ("found", str(self.key_heads))),
            )

    def forward(self, scope: Scope, *operands: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        sequences, masks = _sequences_and_masks(self, operands, (1, 2, 3))
        queries, *others = (*sequences, *([sequences[-1]] * (3 - len(sequences))))
        # Queries may be padded where the keys are, if they are the same tensor.
        padding = masks if queries in others else ()
        sources = (_finite(queries, padding), *(_without_padding(x, masks) for x in others))
        (width,) = static(sources[0].shape[2:])
        features = self.features or width
        q, k, v = _projected(self, scope, sources, features)
        options: dict[str, Any] = {**_fitted(masks, q, k), "causal": self.causal}
        if scope.training and self.dropout:
            options["factors"] = dropout_factors(scope, (*q.shape[:3], k.shape[2]), self.dropout)
        means = ops.transpose(ops.attention(q, k, v, **options), (0, 2, 1, 3))
        joined = ops.reshape(means, (*sources[0].shape[:2], -1))
        y = scope.layer("output", Linear(features, bias=self.bias, bias_init=Zeros()), joined)
        if self.returns == "output":
            return y
        # Means of unit vectors are the weights.
        unit = ops.constant(np.eye(static(k.shape[2:3])[0]), k.dtype)
        ones = ops.broadcast_to(unit, (*k.shape[:3], k.shape[2]))
        return y, ops.attention(q, k, ones, **options)


_UNEVEN = "the features cannot be divided evenly among the heads"


def _facts_of_heads(heads: int, found: str) -> tuple[tuple[str, str], ...]:
    return ("expected", f"a multiple of {heads} features"), ("found", found)


def _projected(
    layer: MultiHeadAttention, scope: Scope, sources: Sequence[Tensor], features: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, [batch, heads, length, features of a head]."""
    size = layer.head_features or features // layer.heads
    if not layer.head_features and features % layer.heads:
        facts = _facts_of_heads(layer.heads, described(sources[0]))
        advice = "Choose a number of heads that divides the features, or give features=."
        raise ShapeError(_UNEVEN, facts=facts, advice=advice)

    def heads_of(name: str, x: Tensor, heads: int) -> Tensor:
        # PyTorch initializes all three as one matrix, of three times as many outputs.
        init = XavierUniform(gain=math.sqrt(0.5))
        linear = Linear(size * heads, bias=layer.bias, weight_init=init, bias_init=Zeros())
        split = ops.reshape(scope.layer(name, linear, x), (*x.shape[:2], heads, size))
        return ops.transpose(split, (0, 2, 1, 3))

    key_heads = layer.key_heads or layer.heads
    q = heads_of("queries", sources[0], layer.heads)
    k, v = (heads_of(n, x, key_heads) for n, x in zip(("keys", "values"), sources[1:], strict=True))
    if layer.rotary is not None:
        q, k = (_rotated(layer, x, layer.rotary) for x in (q, k))
    return q, k, v


def _rotated(layer: Layer, x: Tensor, base: float) -> Tensor:
    """Queries or keys, [batch, heads, length, features], rotated by their positions."""
    length, features = static(x.shape[2:])
    if features % 2:
        raise ShapeError(
            f"{type(layer).__name__} rotates pairs of features, and a head has an odd number",
            facts=(("found", f"{features} features in each head"),),
            advice="Choose another number of heads or head_features.",
        )
    half = features // 2
    angles = np.arange(length)[:, None] * float(base) ** (-np.arange(half) / half)
    cos, sin = (ops.constant(values, x.dtype) for values in (np.cos(angles), np.sin(angles)))
    first, second = ops.split(x, 2, -1)
    return ops.concat([first * cos - second * sin, second * cos + first * sin], -1)


@frozen_dataclass
class _Block(Layer, ABC):
    heads: Count
    _: KW_ONLY
    hidden: Count
    dropout: Probability = 0.1
    activation: Activation = "relu"
    norm_first: bool = False
    causal: bool = False
    epsilon: NotNegative = 1e-5
    bias: bool = True
    key_heads: Count | None = None
    rotary: Positive | None = None


@frozen_dataclass
class TransformerEncoderBlock(_Block):
    """Self-attention, then a feed-forward network of two linear layers at each position.

    Applied to [batch, length, features], and perhaps one or two masks; gives the same shape. Both
    sublayers have a residual connection and a layer normalisation: of the sum, or, with
    `norm_first`, of the sublayer's input (Xiong et al.: On layer normalization in the transformer
    architecture, 2020). With `causal=True` it is the block of decoder-only language models.

    It contains `attention`, a `MultiHeadAttention`; `attention_norm`; `hidden` and `output`, two
    `Linear` layers; `feedforward_norm`. PyTorch's names for them are `self_attn`, `norm1`,
    `linear1`, `linear2`, `norm2`.

    Args:
        heads: the number of heads of the attention; it divides the features.
        hidden: the features between the two linear layers.
        dropout: the probability of an element to become zero while training: of attention weights,
            after the activation, and before each sum.
        activation: `"relu"` or `"gelu"`.
        norm_first: whether normalisation comes before each sublayer.
        causal: whether position i attends to positions 0 to i only.
        epsilon: the number that normalisations add to variances.
        bias: whether linear layers and normalisations have biases.
        key_heads: the number of heads of keys and values, as in `MultiHeadAttention`.
        rotary: the base of rotary positions in the attention of the sequence to itself, as in
            `MultiHeadAttention`.

    Example:
        >>> lm.TransformerEncoderBlock(4, hidden=256)(lm.Input(12, 64)).shape
        (batch, 12, 64)
    """

    def forward(self, scope: Scope, *operands: Tensor) -> Tensor:
        (x,), masks = _sequences_and_masks(self, operands, (1,))
        x, attention = _finite(x, masks), _self_attention(self)
        x = _residual(
            *(self, scope, "attention", x),
            lambda y: scope.layer("attention", attention, y, y, y, *masks),
        )
        return _feedforward(self, scope, x)


@frozen_dataclass(kw_only=True)
class TransformerDecoderBlock(_Block):
    """As `TransformerEncoderBlock`, with attention to a second sequence between its sublayers.

    Applied to [batch, length, features] and a memory [batch, other length, other features], such as
    the result of an encoder; gives the shape of the first. Two masks may follow: of the memory, and
    of the first sequence.

    It contains `attention`, `attention_norm`, `memory_attention`, `memory_attention_norm`,
    `hidden`, `output` and `feedforward_norm`. PyTorch's names for them are `self_attn`, `norm1`,
    `multihead_attn`, `norm2`, `linear1`, `linear2`, `norm3`.

    Args:
        heads: the number of heads of both attentions; it divides the features.
        causal: whether position i of the first sequence attends only to its positions 0 to i.
        others: the arguments of `TransformerEncoderBlock`.

    Example:
        >>> lm.TransformerDecoderBlock(4, hidden=256)(lm.Input(12, 64), lm.Input(20, 32)).shape
        (batch, 12, 64)
    """

    causal: bool = True

    def forward(self, scope: Scope, *operands: Tensor) -> Tensor:
        (x, memory), masks = _sequences_and_masks(self, operands, (2,))
        x = _finite(x, masks[1:])
        (features,) = static(x.shape[2:])
        attention = _self_attention(self)
        of_memory = replace(attention, features=features, causal=False, rotary=None)
        x = _residual(
            *(self, scope, "attention", x),
            lambda y: scope.layer("attention", attention, y, y, y, *masks[1:]),
        )
        x = _residual(
            *(self, scope, "memory_attention", x),
            lambda y: scope.layer("memory_attention", of_memory, y, memory, memory, *masks[:1]),
        )
        return _feedforward(self, scope, x)


def _self_attention(block: _Block) -> MultiHeadAttention:
    """The attention of a block's sequence to itself."""
    return MultiHeadAttention(
        block.heads,
        dropout=block.dropout,
        bias=block.bias,
        causal=block.causal,
        key_heads=block.key_heads,
        rotary=block.rotary,
    )


def _residual(
    block: _Block, scope: Scope, name: str, x: Tensor, sublayer: Callable[[Tensor], Tensor]
) -> Tensor:
    """The sum of x and the sublayer of x, normalised before or after."""
    norm, dropout = LayerNorm(epsilon=block.epsilon, bias=block.bias), Dropout(block.dropout)
    if block.norm_first:
        return x + dropout.forward(scope, sublayer(scope.layer(f"{name}_norm", norm, x)))
    return scope.layer(f"{name}_norm", norm, x + dropout.forward(scope, sublayer(x)))


def _feedforward(block: _Block, scope: Scope, x: Tensor) -> Tensor:
    """Two linear layers at each position, with a residual connection."""
    (features,) = static(x.shape[2:])

    def sublayer(y: Tensor) -> Tensor:
        y = scope.layer("hidden", Linear(block.hidden, bias=block.bias), y)
        y = ops.relu(y) if block.activation == "relu" else GELU().forward(scope, y)
        y = Dropout(block.dropout).forward(scope, y)
        return scope.layer("output", Linear(features, bias=block.bias), y)

    return _residual(block, scope, "feedforward", x, sublayer)


_ADDED = " Numbers that are added to the scores have four axes: [batch, 1, queries, keys]."
_NO_MASK = " If it is a second sequence, put an lm.Embedding(count, features) before it."
_MOST_MASKS = 2


def _is_mask(x: Tensor, before: Sequence[Tensor] | None) -> bool:
    """Whether a tensor is a mask: bool, or floats that are added to the scores.

    Args:
        before: all sequences that the layer can take, if the tensor comes after them. Only then are
            floats of three axes a mask, if their axes have the lengths of these sequences.
    """
    pairs = x.rank == 2 and isinstance(x.shape[0], int)
    lengths = [y.shape[1] for y in before or () if y.rank > 1]
    of_examples = x.rank == 3 and all(dim in lengths for dim in x.shape[1:])
    return x.dtype == bool_ or (x.dtype.is_float and (x.rank == 4 or pairs or of_examples))


def _sequences_and_masks(
    layer: Layer, operands: tuple[Tensor, ...], counts: tuple[int, ...]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The sequences and the masks to which a layer is applied; a LaminaError if it takes others."""
    most = max(counts)
    before = operands[:most]
    kinds = [_is_mask(x, before if n >= most else None) for n, x in enumerate(operands)]
    sequences = tuple(x for x, is_mask in zip(operands, kinds, strict=True) if not is_mask)
    masks = tuple(x for x, is_mask in zip(operands, kinds, strict=True) if is_mask)
    facts = tuple((f"operand {n}", described(x)) for n, x in enumerate(operands))
    name = type(layer).__name__
    for number, x in enumerate(operands):
        # A tensor of two axes is a mask that is not bool, unless it must be a sequence.
        if number >= min(counts) and x.rank == 2 and not kinds[number]:
            indices = number < most and x.dtype.kind == "int"
            raise DTypeError(
                f"a mask of {name} is bool",
                facts=(("expected", "bool[batch, keys]"), ("found", described(x))),
                advice='Take it as lm.Input(keys, dtype="bool"), or compare: '
                "ops.not_equal(mask, 0)." + (_NO_MASK if indices else _ADDED),
            )
    fits = operands == (*sequences, *masks) and len(masks) <= _MOST_MASKS
    if not fits or len(sequences) not in counts:
        expected = "one sequence" if counts == (1,) else "two sequences"
        expected = expected if len(counts) == 1 else "one to three sequences"
        raise ShapeError(
            f"{name} takes {expected}, and perhaps up to {_MOST_MASKS} masks",
            facts=facts,
            advice="Masks come last; they are bool, or floats of four axes. Floats "
            "[batch, queries, keys] are a mask after as many sequences as the layer takes.",
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


def _without_padding(x: Tensor, masks: Sequence[Tensor]) -> Tensor:
    """Keys or values, with zeros at those that a mask leaves out for all queries."""
    # The weight of such a key is zero, but its product with NaN is NaN, and so would the gradients
    # of the weights be.
    for mask in masks:
        if (mask.shape[0], mask.shape[-1]) == x.shape[:2]:
            read = mask if mask.dtype == bool_ else ops.greater(mask, -math.inf)
            read = ops.any(read, range(1, mask.rank - 1)) if mask.rank > 2 else read
            x = ops.where(ops.expand_dims(read, 2), x, 0)
    return x


def _finite(x: Tensor, masks: Sequence[Tensor]) -> Tensor:
    """A sequence with zeros for NaN and infinity at the keys that a mask leaves out."""
    # Finite elements there stay: they have results, as in PyTorch.
    return ops.where(ops.isfinite(x), x, _without_padding(x, masks)) if masks else x


def _fitted(masks: Sequence[Tensor], q: Tensor, k: Tensor) -> dict[str, Tensor]:
    """The mask and the bias of an attention, which broadcast over its weights."""
    fitted: dict[str, Tensor] = {}
    for mask in masks:
        fitting = _fitting(mask, q, k)
        if mask.dtype == bool_:
            earlier = fitted.get("mask")
            fitted["mask"] = fitting if earlier is None else ops.logical_and(earlier, fitting)
        else:
            earlier = fitted.get("bias")
            fitted["bias"] = fitting if earlier is None else earlier + fitting
    return fitted


def _fitting(mask: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """A mask that broadcasts over the attention weights; ShapeError if it is of other lengths."""
    batch, heads, query_count, _ = queries.shape
    key_count = keys.shape[2]
    weights = (batch, heads, query_count, key_count)
    if mask.rank == 4 and all(
        extent in (1, dim) for extent, dim in zip(mask.shape, weights, strict=True)
    ):
        return mask
    shapes = (batch, key_count), (batch, query_count, key_count), (query_count, key_count)
    if mask.shape == shapes[0] and mask.dtype == bool_:
        return ops.reshape(mask, (batch, 1, 1, key_count))
    if mask.shape == shapes[1]:
        return ops.reshape(mask, (batch, 1, query_count, key_count))
    if mask.shape == shapes[2]:
        return ops.reshape(mask, (1, 1, query_count, key_count))
    listed = shapes if mask.dtype == bool_ else shapes[1 if mask.rank == 3 else 2 :]
    shape = described(mask)
    raise ShapeError(
        "the mask does not fit the sequences",
        facts=(("expected", " or ".join(map(shape_text, (*listed, weights)))), ("found", shape)),
        advice="A mask has one value for each pair of query and key, and a bool mask may have one "
        "for each key.",
    )
