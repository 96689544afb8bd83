"""Attention, and the blocks that transformers are made of.

After Vaswani, Shazeer, Parmar, Uszkoreit, Jones, Gomez, Kaiser, Polosukhin: Attention is all you
need (2017). Sequences are f32 or f64 [batch, length, features]. A mask is a bool that is true where
there is something to look at: [batch, keys], for sequences that are shorter than others, or
[batch, queries, keys]. (PyTorch's `key_padding_mask` says the opposite.) A query that may look at
nothing gets zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from lamina import ops
from lamina.errors import DefinitionError, DTypeError, ShapeError
from lamina.graph import Tensor, described
from lamina.graph.kinds import Count, Fraction, NotNegative
from lamina.layers.activation import GELU
from lamina.layers.checks import EMBEDDING, place_of, require_float
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
    """Each position gets a mean of what stands at others, weighted by how well they fit.

    Applied to queries alone they look at each other (self-attention); applied to two sequences, the
    first looks at the second. A mask may follow. Gives [batch, queries, features].

    Its parts are four `Linear` layers: `queries`, `keys`, `values` and `output`, so its parameters
    are `queries.weight`, (features, inputs), `queries.bias`, (features,), and so on. PyTorch's
    `in_proj_weight` and `in_proj_bias` are the first three one after the other. What these give is
    cut into `heads` parts of equal size, each of which has weights of its own.

    Args:
        heads: how many; they divide the features.
        features: of the result, and of queries, keys and values together for all heads; by default
            as many as there come in.
        dropout: the probability that a weight becomes zero while training.
        bias: whether the parts have biases.
        causal: whether position i looks at positions 0 to i alone.

    Raises:
        DefinitionError: if heads or features are no whole numbers above zero, or dropout is no
            probability below 1.
        ShapeError: when applied to other shapes, or if the heads do not divide the features.
        DTypeError: when applied to integers, or to a mask that is not bool.

    Example:
        >>> import lamina as lm
        >>> lm.MultiHeadAttention(4)(lm.Input(12, 64)).shape
        (Size(coefficient=1, offset=0), 12, 64)
    """

    heads: Count
    features: Count | None = None
    dropout: Fraction = 0.0
    bias: bool = True
    causal: bool = False

    def __post_init__(self) -> None:
        if self.features is not None and self.features % self.heads:
            facts = _facts_of_heads(self.heads, str(self.features))
            raise DefinitionError(_UNEVEN, facts=facts, where=place_of(self))

    def forward(self, scope: Scope, *operands: Tensor) -> Tensor:
        """Builds the attention of queries to themselves or to a second sequence."""
        sequences, masks = _sorted(self, operands, (1, 2), 1)
        queries, source = sequences[0], sequences[-1]
        (width,) = static(queries.shape[2:])
        features = self.features or width
        if features % self.heads:
            facts = _facts_of_heads(self.heads, described(queries))
            advice = "Choose a number of heads that divides the features, or give features=."
            raise ShapeError(_UNEVEN, facts=facts, advice=advice)
        # PyTorch initializes all three as one matrix, of three times as many outputs.
        linear = Linear(features, self.bias, XavierUniform(math.sqrt(0.5)), Zeros())
        q, k, v = (
            _split_heads(scope.layer(name, linear, x), self.heads)
            for name, x in (("queries", queries), ("keys", source), ("values", source))
        )
        mask = _of_weights(masks[0], q, k) if masks else None
        factors = None
        if scope.training and self.dropout:
            weights, stay = (*q.shape[:3], k.shape[2]), 1.0 - self.dropout
            factors = scope.bernoulli(weights, stay) * (1.0 / stay)
        means = ops.attention(q, k, v, mask, self.causal, factors=factors)
        joined = ops.reshape(ops.transpose(means, (0, 2, 1, 3)), (*queries.shape[:2], features))
        output = Linear(features, self.bias, bias_init=Zeros())
        return scope.layer("output", output, joined)


_UNEVEN = "the features cannot be divided evenly among the heads"


def _facts_of_heads(heads: int, found: str) -> tuple[tuple[str, str], ...]:
    return ("expected", f"a multiple of {heads} features"), ("found", found)


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """[batch, length, features] -> [batch, heads, length, features / heads]."""
    batch, length, features = x.shape
    (width,) = static((features,))
    apart = ops.reshape(x, (batch, length, heads, width // heads))
    return ops.transpose(apart, (0, 2, 1, 3))


@frozen_dataclass
class TransformerEncoderBlock(Layer):
    """Attention among the positions of a sequence, then two linear layers at each of them.

    Applied to [batch, length, features], and perhaps a mask; gives the same shape. Around both
    parts leads a way past, and each has a layer normalisation: of the sum of both ways, or, with
    `norm_first`, of what goes in (Xiong et al.: On layer normalization in the transformer
    architecture, 2020). With `causal=True` it is the block of models that continue texts.

    Its parts are `attention`, a `MultiHeadAttention`; `attention_norm`; `hidden` and `output`, two
    `Linear` layers; `feedforward_norm`. PyTorch's names for them are `self_attn`, `norm1`,
    `linear1`, `linear2`, `norm2`.

    Args:
        heads: of the attention; they divide the features.
        hidden: the features between the two linear layers.
        dropout: the probability of an element to become zero while training, of weights, after the
            activation, and before each sum.
        activation: `"relu"` or `"gelu"`.
        norm_first: whether normalisation comes before each part.
        causal: whether position i looks at positions 0 to i alone.
        epsilon: of the normalisations.

    Raises:
        DefinitionError: if a hyper-parameter lies outside its range.
        ShapeError: when applied to other shapes, or if the heads do not divide the features.
        DTypeError: when applied to integers, or to a mask that is not bool.

    Example:
        >>> import lamina as lm
        >>> lm.TransformerEncoderBlock(4, 256)(lm.Input(12, 64)).shape
        (Size(coefficient=1, offset=0), 12, 64)
    """

    heads: Count
    hidden: Count
    dropout: Fraction = 0.1
    activation: Activation = "relu"
    norm_first: bool = False
    causal: bool = False
    epsilon: NotNegative = 1e-5

    def forward(self, scope: Scope, *operands: Tensor) -> Tensor:
        """Builds both parts with the ways past them."""
        (x,), masks = _sorted(self, operands, (1,), 1)
        attention = MultiHeadAttention(self.heads, dropout=self.dropout, causal=self.causal)
        x = _with_way_past(
            *(self, scope, "attention", x),
            lambda y: scope.layer("attention", attention, y, *masks),
        )
        return _fed_forward(self, scope, x)


@frozen_dataclass
class TransformerDecoderBlock(Layer):
    """As `TransformerEncoderBlock`, but between its parts it also looks at a second sequence.

    Applied to [batch, length, features] and a memory [batch, other length, other features], such as
    the result of an encoder; gives the shape of the first. Two masks may follow: of the memory, and
    of the first sequence.

    Its parts are `attention`, `attention_norm`, `memory_attention`, `memory_attention_norm`,
    `hidden`, `output` and `feedforward_norm`. PyTorch's names for them are `self_attn`, `norm1`,
    `multihead_attn`, `norm2`, `linear1`, `linear2`, `norm3`.

    Args:
        heads: of both attentions; they divide the features.
        hidden: the features between the two linear layers.
        dropout: the probability of an element to become zero while training, of weights, after the
            activation, and before each sum.
        activation: `"relu"` or `"gelu"`.
        norm_first: whether normalisation comes before each part.
        causal: whether position i of the first sequence looks at positions 0 to i of it alone.
        epsilon: of the normalisations.

    Raises:
        DefinitionError: if a hyper-parameter lies outside its range.
        ShapeError: when applied to other shapes, or if the heads do not divide the features.
        DTypeError: when applied to integers, or to a mask that is not bool.

    Example:
        >>> import lamina as lm
        >>> lm.TransformerDecoderBlock(4, 256)(lm.Input(12, 64), lm.Input(20, 32)).shape
        (Size(coefficient=1, offset=0), 12, 64)
    """

    heads: Count
    hidden: Count
    dropout: Fraction = 0.1
    activation: Activation = "relu"
    norm_first: bool = False
    causal: bool = True
    epsilon: NotNegative = 1e-5

    def forward(self, scope: Scope, *operands: Tensor) -> Tensor:
        """Builds the three parts with the ways past them."""
        (x, memory), masks = _sorted(self, operands, (2,), 2)
        (features,) = static(x.shape[2:])
        own = MultiHeadAttention(self.heads, dropout=self.dropout, causal=self.causal)
        other = MultiHeadAttention(self.heads, features, self.dropout)
        x = _with_way_past(
            *(self, scope, "attention", x),
            lambda y: scope.layer("attention", own, y, *masks[1:]),
        )
        x = _with_way_past(
            *(self, scope, "memory_attention", x),
            lambda y: scope.layer("memory_attention", other, y, memory, *masks[:1]),
        )
        return _fed_forward(self, scope, x)


# What they share ----------------------------------------------------------------------------------

_Block = TransformerEncoderBlock | TransformerDecoderBlock


def _with_way_past(
    block: _Block, scope: Scope, name: str, x: Tensor, part: Callable[[Tensor], Tensor]
) -> Tensor:
    """The sum of x and a part of it, with the normalisation where the block has it."""
    norm, dropout = LayerNorm(epsilon=block.epsilon), Dropout(block.dropout)
    if block.norm_first:
        return x + dropout.forward(scope, part(scope.layer(f"{name}_norm", norm, x)))
    return scope.layer(f"{name}_norm", norm, x + dropout.forward(scope, part(x)))


def _fed_forward(block: _Block, scope: Scope, x: Tensor) -> Tensor:
    """Two linear layers at each position, with their way past."""
    (features,) = static(x.shape[2:])

    def part(y: Tensor) -> Tensor:
        y = scope.layer("hidden", Linear(block.hidden), y)
        y = ops.relu(y) if block.activation == "relu" else GELU().forward(scope, y)
        y = Dropout(block.dropout).forward(scope, y)
        return scope.layer("output", Linear(features), y)

    return _with_way_past(block, scope, "feedforward", x, part)


_NO_MASK = " Or, if it is a second sequence: put an lm.Embedding(count, features) before it."


def _sorted(
    layer: Layer, operands: tuple[Tensor, ...], counts: tuple[int, ...], most_masks: int
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The sequences and the masks that a layer is applied to.

    Raises:
        ShapeError: if there are more than the layer takes, or a sequence has other axes.
        DTypeError: for integers, and for masks that are not bool.
    """
    sequences = tuple(x for x in operands if x.dtype != bool_)
    masks = tuple(x for x in operands if x.dtype == bool_)
    facts = tuple((f"operand {n}", described(x)) for n, x in enumerate(operands))
    name = type(layer).__name__
    for place, x in enumerate(operands):
        # Of so few axes it is a mask that is not bool, unless only a sequence can stand here.
        if place >= min(counts) and x.rank == 2 and x.dtype != bool_:
            indices = place < max(counts) and x.dtype.kind == "int"
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
                advice="An lm.Embedding makes them of indices, an ops.reshape of images.",
            )
    return sequences, masks


def _of_weights(mask: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """A mask in the order of the weights, [batch, heads, queries, keys].

    Raises:
        ShapeError: if it belongs to other lengths.
    """
    batch, _, rows, _ = queries.shape
    columns = keys.shape[2]
    if mask.shape == (batch, columns):
        return ops.reshape(mask, (batch, 1, 1, columns))
    if mask.shape == (batch, rows, columns):
        return ops.reshape(mask, (batch, 1, rows, columns))
    raise ShapeError(
        "the mask does not fit the sequences",
        facts=(
            (
                "expected",
                f"{shape_text((batch, columns))} or {shape_text((batch, rows, columns))}",
            ),
            ("found", described(mask)),
        ),
        advice="It says for each key, or each pair of query and key, whether to look.",
    )
