"""Transformers: networks for sequences of numbered things, such as letters, words or notes."""

from __future__ import annotations

from lamina import ops
from lamina.calls import checked
from lamina.graph.kinds import Count, Depth, Fraction
from lamina.layers import (
    Embedding,
    Input,
    LayerNorm,
    LearnedPositions,
    Linear,
    TransformerEncoderBlock,
)
from lamina.network import Network


@checked
def transformer_encoder(
    vocabulary: Count,
    length: Count,
    features: Count = 256,
    heads: Count = 4,
    layers: Depth = 4,
    hidden: Count = 1024,
    classes: Count | None = None,
    causal: bool = False,
    dropout: Fraction = 0.1,
) -> Network:
    """Blocks of attention and linear layers over a sequence of indices.

    Vaswani, Shazeer, Parmar, Uszkoreit, Jones, Gomez, Kaiser, Polosukhin: Attention is all you need
    (2017), with normalisation before each part, GELU and learned positions, as in Radford, Wu,
    Child, Luan, Amodei, Sutskever: Language models are unsupervised multitask learners (2019). It
    takes integers [batch, length] from 0 to vocabulary - 1; `lm.CrossEntropy()` is its loss.

    Args:
        vocabulary: how many different things there are.
        length: of a sequence.
        features: of each position between the layers.
        heads: of each attention; they divide the features.
        layers: the number of blocks.
        hidden: features within the two linear layers of a block.
        classes: how many classes a sequence may belong to; without, what is found is one of the
            vocabulary at each position.
        causal: whether each position looks at itself and those before it alone: for the next thing
            in a sequence.
        dropout: the probability of an element to become zero while training.

    Returns:
        The network gives scores [batch, classes], of the mean of all positions, or
        [batch, vocabulary, length].

    Example:
        >>> import lamina as lm
        >>> net = lm.networks.transformer_encoder(1000, 128)
        >>> net.parameter_count(), net.outputs[0]
        (3705320, Tensor(f32[batch, 1000, 128], transpose))
    """
    tokens = Input(length, dtype="int64")
    x = LearnedPositions()(Embedding(vocabulary, features)(tokens))
    for _ in range(layers):
        block = TransformerEncoderBlock(
            heads, hidden, dropout, "gelu", norm_first=True, causal=causal
        )
        x = block(x)
    x = LayerNorm()(x)
    if classes is not None:
        return Network(tokens, Linear(classes)(ops.mean(x, 1)))
    return Network(tokens, ops.transpose(Linear(vocabulary)(x), (0, 2, 1)))
