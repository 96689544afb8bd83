"""Recurrent networks: classifiers of sequences."""

from __future__ import annotations

from lamina.checks import checked
from lamina.checks.kinds import Count, Depth, Probability
from lamina.checks.origin import source_line
from lamina.errors import DefinitionError
from lamina.layers import LSTM, Embedding, Input, Linear
from lamina.network import Network


@checked
def lstm_classifier(
    classes: Count,
    length: Count,
    inputs: Count | None = None,
    vocabulary: Count | None = None,
    features: Count = 128,
    layers: Depth = 1,
    bidirectional: bool = True,
    lengths: bool = False,
    dropout: Probability = 0.0,
) -> Network:
    """Long short-term memory along a sequence, and a linear layer on its last state.

    Hochreiter and Schmidhuber: Long short-term memory (1997); bidirectional as in Graves and
    Schmidhuber: Framewise phoneme classification with bidirectional LSTM (2005).
    `lm.CrossEntropy()` is its loss.

    Args:
        classes: the number of results.
        length: the length of a sequence, or of the longest.
        inputs: the features of each position; the network takes f32 [batch, length, inputs].
        vocabulary: instead of `inputs`, the number of different tokens, such as letters or words;
            the network takes integers [batch, length] below it, and has an `Embedding` of
            `features` elements.
        features: the number of features of the states.
        layers: the number of stacked layers.
        bidirectional: whether sequences are read backwards too.
        lengths: whether there is a second input, integers [batch], the length of each sequence.
        dropout: probability, between layers.

    Raises:
        DefinitionError: unless exactly one of `inputs` and `vocabulary` is given.

    Example:
        >>> lm.networks.lstm_classifier(10, length=28, inputs=28).parameter_count()
        164362
    """
    if (inputs is None) == (vocabulary is None):
        raise DefinitionError(
            "lstm_classifier takes either inputs or a vocabulary",
            facts=(("expected", "inputs=28, or vocabulary=10_000"),),
            where=source_line(),
        )
    if vocabulary is None:
        first = x = Input(length, inputs or 0)
    else:
        first = Input(length, dtype="int64")
        x = Embedding(vocabulary, features, name="embedding")(first)
    memory = LSTM(
        features,
        layers=layers,
        bidirectional=bidirectional,
        dropout=dropout,
        returns="last",
        name="lstm",
    )
    network_inputs = [first, Input(dtype="int64")] if lengths else [first]
    return Network(network_inputs, Linear(classes, name="head")(memory(x, *network_inputs[1:])))
