"""U-Net: a class for each pixel."""

from __future__ import annotations

from typing import Annotated, Literal

from lamina.base.shapes import static
from lamina.checks import checked
from lamina.checks.kinds import Count, Row, Whole
from lamina.checks.origin import source_line
from lamina.errors import DefinitionError
from lamina.graph import Tensor
from lamina.layers import BatchNorm, Conv2d, ConvTranspose2d, Crop, Input, MaxPool2d, ReLU, concat
from lamina.layers.init import KaimingUniform
from lamina.network import Network
from lamina.networks.arguments import ShapeOfImages, Widths


@checked
def unet(
    classes: Count = 2,
    input: ShapeOfImages = (1, 256, 256),
    widths: Annotated[Widths, Row(Whole(1), 1, "(64, 128)")] = (64, 128, 256, 512, 1024),
    padding: Literal["same", "valid"] = "same",
    batch_norm: bool = False,
) -> Network:
    """An encoder and a decoder of images, with skip connections at equal resolutions.

    Ronneberger, Fischer, Brox: U-Net: convolutional networks for biomedical image segmentation
    (2015). Convolutions start with the paper's variance, 2 / N for sums of N products.

    Args:
        classes: the number of scores for each pixel.
        input: (channels, height, width); height and width are halved once for each width but the
            first.
        widths: channels, from the full image to the smallest.
        padding: `"same"` for a result as large as the image; or the paper's `"valid"`, without
            padding, for a smaller result.
        batch_norm: whether to normalise after each convolution, unlike the paper; the convolutions
            then have no biases.

    Returns:
        A network that gives [batch, classes, height, width].

    Raises:
        DefinitionError: for an image that cannot be halved that often, or has its channels last.

    Example:
        >>> lm.networks.unet(classes=3, input=(1, 32, 32), widths=(8, 16)).outputs[0]
        Tensor(f32[batch, 3, 32, 32], layer)
    """

    def twice(x: Tensor, channels: int, name: str) -> Tensor:
        """Two convolutions 3x3."""
        for number in (1, 2):
            x = Conv2d(
                channels,
                3,
                padding=padding,
                bias=not batch_norm,
                weight_init=KaimingUniform(),
                name=f"{name}.conv{number}",
            )(x)
            x = ReLU()(BatchNorm(name=f"{name}.norm{number}")(x) if batch_norm else x)
        return x

    image = Input(*input)
    x, skips = image, list[Tensor]()
    for level, width in enumerate(widths[:-1], start=1):
        skips.append(twice(x, width, f"encoder{level}"))
        height, side = static(skips[-1].shape[2:])
        if height % 2 or side % 2:
            halvings = len(widths) - 1
            raise DefinitionError(
                "an image in the encoder cannot be halved",
                facts=(("expected", "an even height and width"), ("found", f"{height} x {side}")),
                where=f"unet ({source_line()})",
                advice=f"The image is halved {halvings} times: with padding='same', height and "
                f"width must be multiples of {2**halvings}.",
            )
        x = MaxPool2d(2)(skips[-1])
    x = twice(x, widths[-1], "bottleneck")
    for level in range(len(skips), 0, -1):
        width, skip, name = widths[level - 1], skips[level - 1], f"decoder{level}"
        init = KaimingUniform(mode="fan_out")
        x = ConvTranspose2d(width, 2, stride=2, weight_init=init, name=f"{name}.up")(x)
        x = twice(concat([_cropped(skip, x), x]), width, name)
    return Network(image, Conv2d(classes, 1, weight_init=KaimingUniform(), name="head")(x))


def _cropped(x: Tensor, like: Tensor) -> Tensor:
    """The centre of an image, cropped to the size of another one."""
    sides = zip(static(x.shape[2:]), static(like.shape[2:]), strict=True)
    widths = tuple(((large - small) // 2, (large - small + 1) // 2) for large, small in sides)
    return Crop(widths)(x) if any(map(any, widths)) else x
