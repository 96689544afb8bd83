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
    for stage, blocks in enumerate(_BLOCKS[depth]):
        for number in range(blocks):
            name, stride = f"layer{stage + 1}.{number}", 2 if stage > 0 and number == 0 else 1
            x = _block(x, name, width << stage, stride, is_deep=depth > 34)
    return Network(image, Linear(classes, name="fc")(GlobalAvgPool()(x)))


def _block(x: Tensor, name: str, width: int, stride: int, *, is_deep: bool) -> Tensor:
    """Figure 5: 3x3, 3x3; or 1x1, 3x3, 1x1 with four times the channels."""
    # The names of convolutions and normalisations are torchvision's.
    first, second, third = ((f"{name}.conv{n}", f"{name}.bn{n}") for n in (1, 2, 3))
    channels = 4 * width if is_deep else width
    if is_deep:
        y = _convolution(x, first, width, 1)
        y = _convolution(y, second, width, 3, stride)
        y = _convolution(y, third, channels, 1, activated=False)
    else:
        y = _convolution(x, first, width, 3, stride)
        y = _convolution(y, second, width, 3, activated=False)
    if static(x.shape[1:2]) != (channels,) or stride > 1:
        # A projection of the input if its shape differs: option B of section 3.3.
        names = f"{name}.downsample.0", f"{name}.downsample.1"
        x = _convolution(x, names, channels, 1, stride, activated=False)
    return ReLU()(y + x)


def _convolution(
    x: Tensor,
    names: tuple[str, str],
    channels: int,
    window: int,
    stride: int = 1,
    activated: bool = True,
) -> Tensor:
    """A padded convolution with batch normalisation, of these names, and maybe a ReLU."""
    init = KaimingUniform(mode="fan_out", nonlinearity="relu")
    sizes: dict[str, Any] = {"stride": stride, "padding": window // 2}
    y = Conv2d(channels, window, **sizes, bias=False, weight_init=init, name=names[0])(x)
    y = BatchNorm(name=names[1])(y)
    return ReLU()(y) if activated else y
