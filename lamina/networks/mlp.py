"""Multilayer perceptrons."""

from __future__ import annotations

from lamina.checks import checked
from lamina.checks.kinds import Count
from lamina.layers import Flatten, Input, Layer, Linear, ReLU
from lamina.network import Network, Sequential
from lamina.networks.arguments import Activation, ShapeOfExamples, Widths


@checked
def mlp(
    widths: Widths = (256, 128),
    classes: Count = 10,
    input: ShapeOfExamples = (784,),
    activation: Activation = None,
) -> Network:
    """Linear layers with an activation between them; gives a score for each class.

    Rumelhart, Hinton, Williams: Learning representations by back-propagating errors (1986).
    Weights start with the defaults of `Linear`.

    Args:
        widths: features of the hidden layers.
        classes: the number of results.
        input: shape of an example; more than one axis is flattened.
        activation: the layer after each hidden layer; `lm.ReLU()` by default.

    Raises:
        DefinitionError: if `widths` or `input` is a number alone.

    Example:
        >>> lm.networks.mlp((256, 128), classes=10, input=(1, 28, 28)).parameter_count()
        235146
    """
    layers: list[Layer] = [] if len(input) == 1 else [Flatten()]
    for width in widths:
        layers += [Linear(width), activation or ReLU()]
    return Sequential(Input(*input), *layers, Linear(classes))
