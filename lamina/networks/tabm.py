"""TabM: many cheap members of one network for tables."""

from __future__ import annotations

from lamina.checks import checked
from lamina.checks.kinds import Count, Probability
from lamina.layers import Dropout, Input, Layer, LinearBatchEnsemble, LinearEnsemble, ReLU
from lamina.layers.init import RandomSigns
from lamina.network import Network, Sequential


@checked
def tabm(
    features: Count,
    outputs: Count,
    members: Count = 32,
    blocks: Count = 3,
    width: Count = 512,
    dropout: Probability = 0.1,
) -> Network:
    """An ensemble in one network, whose members share most weights; gives their outputs.

    Gorishniy, Kotelnikov, Babenko: TabM: advancing tabular deep learning with parameter-efficient
    ensembling (2025). Each member is trained on its own prediction: the loss is the mean over the
    members. Their mean, of probabilities or numbers, is the prediction.

    Args:
        features: the number of columns; they should be scaled.
        outputs: the classes, or the numbers to predict.
        members: the number of members.
        blocks, width: the hidden layers, and the features of each.
        dropout: the share of hidden features that are dropped in training.

    Returns:
        A network of [batch, features] that gives [batch, members, outputs].

    Example:
        >>> lm.networks.tabm(8, 1).parameter_count()
        676128
    """
    layers: list[Layer] = []
    for number in range(blocks):
        # The first scaling makes the members differ.
        signs = None if number else RandomSigns()
        layers += [LinearBatchEnsemble(width, members, r_init=signs), ReLU(), Dropout(dropout)]
    return Sequential(Input(features), *layers, LinearEnsemble(outputs))
