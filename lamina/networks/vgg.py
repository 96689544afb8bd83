"""VGG: stages of 3x3 convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from lamina.checks import checked
from lamina.checks.kinds import Count, Either, Probability, Row, Whole
from lamina.checks.origin import source_line
from lamina.errors import DefinitionError
from lamina.layers import BatchNorm, Conv2d, Dropout, Flatten, Input, Layer, Linear, MaxPool2d, ReLU
from lamina.layers.init import KaimingUniform
from lamina.network import Network, Sequential
from lamina.networks.arguments import ShapeOfImages, Widths

# Table 1 of the paper, columns A, B, D and E: the number of convolutions in each stage.
_DEPTHS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_WIDTHS = (64, 128, 256, 512, 512)


@checked
def vgg(
    stages: Annotated[
        int | Sequence[Sequence[int]], Either(Whole(), Row(Row(Whole(1)), least=1))
    ] = 16,
    classes: Count = 1000,
    input: ShapeOfImages = (3, 224, 224),
    hidden: Widths = (4096, 4096),
    batch_norm: bool = False,
    dropout: Probability = 0.5,
) -> Network:
    """Stages of 3x3 convolutions, each stage followed by pooling; then linear layers.

    Simonyan, Zisserman: Very deep convolutional networks for large-scale image recognition (2015).
    Convolutions start with the variance of He et al.: Delving deep into rectifiers (2015), because
    a network this deep does not learn with the layers' default; the linear layers have the default.

    Args:
        stages: the paper's 11, 13, 16 or 19 layers; or the channels of each convolution of each
            stage: `((32, 32), (64, 64), (128, 128))`.
        classes: the number of results.
        input: (channels, height, width); each stage halves height and width.
        hidden: features of the linear layers before the last.
        batch_norm: whether to normalise after each convolution, unlike the paper.
        dropout: probability after each hidden linear layer; 0 for none.

    Raises:
        DefinitionError: for a depth that the paper does not have, or channels that come last.

    Example:
        >>> small = lm.networks.vgg(((8,), (16,)), 10, (3, 32, 32), hidden=(64,), batch_norm=True)
        >>> small.outputs[0]
        Tensor(f32[batch, 10], layer)
    """
    # Names are torchvision's: the numbers of layers in two sequences.
    layers: list[Layer] = []

    def name() -> str:
        return f"features.{len(layers)}"

    if isinstance(stages, int):
        if stages not in _DEPTHS:
            raise DefinitionError(
                "there is no VGG of this depth",
                facts=(("expected", "11, 13, 16 or 19"), ("found", str(stages))),
                where=f"vgg ({source_line()})",
                advice="Give the channels of each convolution instead: ((64, 64), (128, 128)).",
            )
        stages = [[width] * n for width, n in zip(_WIDTHS, _DEPTHS[stages], strict=True)]
    for stage in stages:
        for channels in stage:
            conv = Conv2d(channels, 3, padding="same", weight_init=_KAIMING, name=name())
            layers.append(conv)
            layers += [BatchNorm(name=name()), ReLU()] if batch_norm else [ReLU()]
        layers.append(MaxPool2d(2))
    layers.append(Flatten())
    for number, features in enumerate(hidden):
        layers += [Linear(features, name=f"classifier.{3 * number}"), ReLU()]
        layers += [Dropout(dropout)] if dropout else []
    last = Linear(classes, name=f"classifier.{3 * len(hidden)}")
    return Sequential(Input(*input), *layers, last)


_KAIMING = KaimingUniform(mode="fan_out", nonlinearity="relu")
