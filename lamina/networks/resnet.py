"""Residual networks."""

from __future__ import annotations

from typing import Any, Literal

from lamina.base.shapes import static
from lamina.checks import checked
from lamina.checks.kinds import Count
from lamina.checks.origin import source_line
from lamina.errors import DefinitionError
from lamina.graph import Tensor
from lamina.layers import BatchNorm, Conv2d, GlobalAvgPool, Input, Linear, MaxPool2d, ReLU
from lamina.layers.init import KaimingUniform
from lamina.network import Network
from lamina.networks.arguments import ShapeOfImages

# Table 1 of the paper: the number of blocks in each stage.
_BLOCKS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
_INPUTS = {"imagenet": (3, 224, 224), "cifar": (3, 32, 32)}


@checked
def resnet(
    depth: int = 18,
    classes: Count = 1000,
    stem: Literal["imagenet", "cifar"] = "imagenet",
    input: ShapeOfImages | None = None,
    width: Count = 64,
) -> Network:
    """Four stages of residual blocks, of two convolutions up to 34 layers and of three above.

    He, Zhang, Ren, Sun: Deep residual learning for image recognition (2016). Where a stage halves
    the image, the 3x3 convolution of its first block has the stride, as in PyTorch. Convolutions
    start with the variance of the same authors' Delving deep into rectifiers (2015).

    Args:
        depth: 18, 34, 50, 101 or 152.
        classes: the number of results.
        stem: `"imagenet"` begins with a 7x7 convolution and pooling, which quarter the image;
            `"cifar"` with a 3x3 convolution, for small images.
        input: (channels, height, width); by default 3 x 224 x 224, for the `"cifar"` stem
            3 x 32 x 32.
        width: the channels of the first stage; each further stage has twice as many. Networks of
            three layers in a block return four times as many from each stage.

    Raises:
        DefinitionError: for another depth or stem, or a shape with the channels last.

    Example:
        >>> lm.networks.resnet(18, classes=10, stem="cifar").parameter_count()
        11173962
    """
    if depth not in _BLOCKS:
        raise DefinitionError(
            "there is no residual network of this depth",
            facts=(("expected", " or ".join(map(str, _BLOCKS))), ("found", str(depth))),
            where=f"resnet ({source_line()})",
        )
    image = Input(*(input or _INPUTS[stem]))
    names = "conv1", "bn1"
    if stem == "cifar":
        x = _convolution(image, names, width, 3)
    else:
        x = MaxPool2d(3, stride=2, padding=1)(_convolution(image, names, width, 7, stride=2))
    block = _basic if depth <= 34 else _bottleneck
    for stage, blocks in enumerate(_BLOCKS[depth]):
        for number in range(blocks):
            name, stride = f"layer{stage + 1}.{number}", 2 if stage > 0 and number == 0 else 1
            x = block(x, name, width << stage, stride)
    return Network(image, Linear(classes, name="fc")(GlobalAvgPool()(x)))


def _basic(x: Tensor, name: str, width: int, stride: int) -> Tensor:
    """Figure 5, left: 3x3, 3x3."""
    first, second = _numbered(name, 2)
    y = _convolution(x, first, width, 3, stride)
    y = _convolution(y, second, width, 3, activated=False)
    return ReLU()(y + _shortcut(x, name, width, stride))


def _bottleneck(x: Tensor, name: str, width: int, stride: int) -> Tensor:
    """Figure 5, right: 1x1, 3x3, 1x1 with four times the channels."""
    first, second, third = _numbered(name, 3)
    y = _convolution(x, first, width, 1)
    y = _convolution(y, second, width, 3, stride)
    y = _convolution(y, third, 4 * width, 1, activated=False)
    return ReLU()(y + _shortcut(x, name, 4 * width, stride))


def _numbered(name: str, count: int) -> list[tuple[str, str]]:
    """The names of the convolutions of a block, and of their normalisations: torchvision's."""
    return [(f"{name}.conv{number}", f"{name}.bn{number}") for number in range(1, count + 1)]


def _shortcut(x: Tensor, name: str, channels: int, stride: int) -> Tensor:
    """The input, or a projection of it if its shape differs: option B of section 3.3."""
    if static(x.shape[1:2]) == (channels,) and stride == 1:
        return x
    names = f"{name}.downsample.0", f"{name}.downsample.1"
    return _convolution(x, names, channels, 1, stride, activated=False)


def _convolution(
    x: Tensor,
    names: tuple[str, str],
    channels: int,
    window: int,
    stride: int = 1,
    activated: bool = True,
) -> Tensor:
    """A padded convolution with batch normalisation and, if `activated`, a ReLU.

    Args:
        names: the names of the convolution and of the normalisation.
    """
    init = KaimingUniform(mode="fan_out", nonlinearity="relu")
    sizes: dict[str, Any] = {"stride": stride, "padding": window // 2}
    y = Conv2d(channels, window, **sizes, bias=False, weight_init=init, name=names[0])(x)
    y = BatchNorm(name=names[1])(y)
    return ReLU()(y) if activated else y
