"""MobileNetV2: inverted residuals of depthwise convolutions."""

from __future__ import annotations

from typing import Annotated, Any

from lamina.base.shapes import static
from lamina.checks import checked
from lamina.checks.kinds import Count, Number, Probability
from lamina.graph import Tensor
from lamina.layers import BatchNorm, Conv2d, Dropout, GlobalAvgPool, Hardtanh, Input, Linear
from lamina.layers.init import KaimingUniform, Normal
from lamina.network import Network
from lamina.networks.arguments import ShapeOfImages

# Table 2 of the paper: expansion t, channels c, repetitions n, stride s of the first repetition.
_TABLE = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


@checked
def mobilenet_v2(
    classes: Count = 1000,
    width: Annotated[float, Number("(0, 1000]")] = 1.0,
    input: ShapeOfImages = (3, 224, 224),
    dropout: Probability = 0.2,
) -> Network:
    """Inverted residual blocks: 1x1 expansion, depthwise convolution, 1x1 projection.

    Sandler, Howard, Zhu, Zhmoginov, Chen: MobileNetV2: inverted residuals and linear bottlenecks
    (2018). Convolutions start with the variance of He et al.: Delving deep into rectifiers (2015),
    the last layer with a deviation of 0.01, as PyTorch's.

    Args:
        classes: the number of results.
        width: a factor for all channels, which are rounded to multiples of 8.
        input: (channels, height, width); height and width become 32 times smaller, at least 1.
        dropout: probability before the last layer, as PyTorch's; 0 for none.

    Raises:
        DefinitionError: for a width not above zero, or a shape with the channels last.

    Example:
        >>> lm.networks.mobilenet_v2(classes=10, input=(3, 32, 32)).outputs[0]
        Tensor(f32[batch, 10], layer)
    """
    image = Input(*input)
    # Names are torchvision's, where `features` is a sequence.
    x = _convolution(image, _names("features.0"), _multiple_of_8(32 * width), 3, stride=2)
    blocks = 1
    for expansion, channels, repetitions, stride in _TABLE:
        for number in range(repetitions):
            name, first = f"features.{blocks}.conv", stride if number == 0 else 1
            x = _bottleneck(x, name, expansion, _multiple_of_8(channels * width), first)
            blocks += 1
    x = _convolution(x, _names(f"features.{blocks}"), _multiple_of_8(1280 * max(1.0, width)), 1)
    x = GlobalAvgPool()(x)
    x = Dropout(dropout)(x) if dropout else x
    scores = Linear(classes, weight_init=Normal(deviation=0.01), name="classifier.1")(x)
    return Network(image, scores)


def _names(name: str) -> tuple[str, str]:
    """The names of a convolution and its normalisation."""
    return f"{name}.0", f"{name}.1"


def _bottleneck(x: Tensor, name: str, expansion: int, channels: int, stride: int) -> Tensor:
    """Table 1 of the paper; figure 4 shows where there is a shortcut."""
    (inputs,) = static(x.shape[1:2])
    inner = inputs * expansion
    y = _convolution(x, _names(f"{name}.0"), inner, 1) if expansion > 1 else x
    depthwise = int(expansion > 1)
    y = _convolution(y, _names(f"{name}.{depthwise}"), inner, 3, stride, groups=inner)
    # The last convolution has no activation, and is not a sequence of its own.
    names = f"{name}.{depthwise + 1}", f"{name}.{depthwise + 2}"
    y = _convolution(y, names, channels, 1, activated=False)
    return x + y if stride == 1 and inputs == channels else y


def _convolution(
    x: Tensor,
    names: tuple[str, str],
    channels: int,
    window: int,
    stride: int = 1,
    groups: int = 1,
    activated: bool = True,
) -> Tensor:
    """A normalised convolution; the activation is ReLU6."""
    init = KaimingUniform(mode="fan_out")
    sizes: dict[str, Any] = {"stride": stride, "padding": window // 2, "groups": groups}
    y = Conv2d(channels, window, **sizes, bias=False, weight_init=init, name=names[0])(x)
    y = BatchNorm(name=names[1])(y)
    return Hardtanh(low=0.0, high=6.0)(y) if activated else y


def _multiple_of_8(channels: float) -> int:
    """The nearest multiple of 8; the next one if that is more than a tenth smaller."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8
