"""Transformers: networks for sequences of tokens, such as letters, words or notes."""

from __future__ import annotations

from lamina import ops
from lamina.checks import checked
from lamina.checks.kinds import Count, Depth, Probability
from lamina.layers import Input, LayerNorm, Linear, TransformerEncoderBlock
from lamina.layers.embedding import Embedding, LearnedPositions
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
    dropout: Probability = 0.1,
) -> Network:
    """Transformer encoder blocks over a sequence of tokens.

    Vaswani, Shazeer, Parmar, Uszkoreit, Jones, Gomez, Kaiser, Polosukhin: Attention is all you need
    (2017), with normalisation before each sublayer, GELU and learned positions, as in Radford, Wu,
    Child, Luan, Amodei, Sutskever: Language models are unsupervised multitask learners (2019). It
    takes integers [batch, length] from 0 to vocabulary - 1; `lm.CrossEntropy()` is its loss.

    Args:
        vocabulary: the number of different tokens.
        length: the length of a sequence.
        features: the number of features of each position between the blocks.
        heads: the number of heads of each attention; it divides the features.
        layers: the number of blocks.
        hidden: features between the two linear layers of a block.
        classes: the number of classes of a sequence; None for a network that predicts a token at
            each position.
        causal: whether each position attends only to itself and earlier ones, to predict the next
            token.
        dropout: the probability of an element to become zero while training.

    Returns:
        A network that gives scores [batch, classes], computed from the mean over the positions, or
        [batch, vocabulary, length].

    Example:
        >>> net = lm.networks.transformer_encoder(1000, 128)
        >>> net.parameter_count(), net.outputs[0]
        (3705320, Tensor(f32[batch, 1000, 128], transpose))
    """
    tokens = Input(length, dtype="int64")
    x = Embedding(vocabulary, features, name="embedding")(tokens)
    x = LearnedPositions(name="positions")(x)
    for number in range(layers):
        block = TransformerEncoderBlock(
            heads,
            hidden=hidden,
            dropout=dropout,
            activation="gelu",
            norm_first=True,
            causal=causal,
            # As in PyTorch's TransformerEncoder.
            name=f"encoder.layers.{number}",
        )
        x = block(x)
    x = LayerNorm(name="encoder.norm")(x)
    if classes is not None:
        return Network(tokens, Linear(classes, name="head")(ops.mean(x, 1)))
    return Network(tokens, ops.transpose(Linear(vocabulary, name="head")(x), (0, 2, 1)))
