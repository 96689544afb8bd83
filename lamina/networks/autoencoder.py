"""Autoencoders: networks that encode their input as few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import size_of
from lamina.checks import checked
from lamina.checks.kinds import Count
from lamina.layers import Flatten, GaussianSample, Input, Layer, Linear, ReLU, Reshape, Sigmoid
from lamina.network import Network, Sequential
from lamina.networks.arguments import Activation, ShapeOfExamples, Widths


@final
@frozen_dataclass
class Autoencoder:
    """An autoencoder, its encoder and its decoder, which share the layers: see `Model.part`.

    Attributes:
        network: the encoder followed by the decoder, for the training.
    """

    network: Network
    encoder: Network
    decoder: Network


@checked
def autoencoder(
    widths: Widths = (1000, 500, 250),
    code: Count = 30,
    input: ShapeOfExamples = (1, 28, 28),
    activation: Activation = None,
) -> Autoencoder:
    """Linear layers from an example to its code and back; examples lie in [0, 1].

    Hinton, Salakhutdinov: Reducing the dimensionality of data with neural networks (2006), with
    ReLU instead of sigmoids, so that no layerwise pretraining is needed. Weights start with
    the defaults of `Linear`. `lm.BCE()` and `lm.MSE()` are losses for it; the targets are
    the inputs.

    Args:
        widths: features of the hidden layers of the encoder; the decoder has them in reverse.
        code: the number of elements of a code.
        input: shape of an example.
        activation: the layer after each hidden layer; `lm.ReLU()` by default.

    Raises:
        DefinitionError: if `widths` or `input` is a number alone.

    Example:
        >>> parts = lm.networks.autoencoder()
        >>> parts.network.parameter_count(), parts.encoder.outputs[0]
        (2837314, Tensor(f32[batch, 30], layer))
    """
    between = activation or ReLU()
    encoder = Sequential(Input(*input), Flatten(), *_linear((*widths, code), between, "encoder"))
    decoder = Sequential(
        Input(code),
        *_linear((*widths[::-1], size_of(input)), between, "decoder"),
        Sigmoid(),
        Reshape(*input),
    )
    example = Input(*input)
    return Autoencoder(Network(example, decoder(encoder(example))), encoder, decoder)


@checked
def variational_autoencoder(
    widths: Widths = (500,),
    code: Count = 20,
    input: ShapeOfExamples = (1, 28, 28),
    activation: Activation = None,
) -> Autoencoder:
    """An autoencoder whose codes are normally distributed: its decoder generates from noise.

    Kingma, Welling: Auto-encoding variational Bayes (2014), appendix C, with ReLU instead of tanh.
    Weights start with the defaults of `Linear`. `lm.EvidenceLowerBound()` is the loss; the
    targets are the inputs.

    Args:
        widths: features of the hidden layers of the encoder; the decoder has them in reverse.
        code: the number of elements of a code.
        input: shape of an example, whose numbers lie in [0, 1].
        activation: the layer after each hidden layer; `lm.ReLU()` by default.

    Returns:
        The network has three outputs: the logits of the example, and mean and logarithm of the
        variance of its code, [batch, code] each. The encoder gives the last two. The decoder
        gives the example from a code, in [0, 1].

    Raises:
        DefinitionError: if `widths` or `input` is a number alone.

    Example:
        >>> parts = lm.networks.variational_autoencoder(code=2)
        >>> parts.network.outputs
        (Tensor(f32[batch, 1, 28, 28], layer), Tensor(f32[batch, 2], layer), ...)
    """
    between = activation or ReLU()
    example = Input(*input)
    h = Flatten()(example)
    for layer in _linear(widths, between, "encoder"):
        h = layer(h)
    h = between(h) if widths else h
    encoder = Network(example, [Linear(code, name="mean")(h), Linear(code, name="log_variance")(h)])
    to_logits = Sequential(
        Input(code), *_linear((*widths[::-1], size_of(input)), between, "decoder"), Reshape(*input)
    )
    example, noise = Input(*input), Input(code)
    mean, log_variance = encoder(example)
    logits = to_logits(GaussianSample()(mean, log_variance))
    return Autoencoder(
        network=Network(example, [logits, mean, log_variance]),
        encoder=encoder,
        decoder=Network(noise, Sigmoid()(to_logits(noise))),
    )


def _linear(widths: Sequence[int], activation: Layer, name: str) -> list[Layer]:
    """Linear layers with activations between, named as in PyTorch: "encoder.0", "encoder.2"."""
    layers: list[Layer] = []
    for number, width in enumerate(widths):
        layers += [activation] if number else []
        layers.append(Linear(width, name=f"{name}.{2 * number}"))
    return layers
