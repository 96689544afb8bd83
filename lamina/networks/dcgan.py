"""DCGAN: a generator of images, and a discriminator that tells them from real ones."""

from __future__ import annotations

from typing import Any

from lamina.checks import checked
from lamina.checks.kinds import Count
from lamina.checks.origin import source_line
from lamina.errors import DefinitionError
from lamina.layers import BatchNorm, Conv2d, ConvTranspose2d, Flatten, Input, Layer, Reshape, Tanh
from lamina.layers.init import Normal
from lamina.layers.rectifiers import LeakyReLU, ReLU
from lamina.network import Network, Sequential
from lamina.networks.arguments import ShapeOfImages

# Height and width of the smallest feature maps, next to the noise.
_SMALLEST = 4


@checked
def dcgan(
    latent: Count = 100, image: ShapeOfImages = (3, 64, 64), width: Count = 64
) -> tuple[Network, Network]:
    """A generator and a discriminator.

    Radford, Metz, Chintala: Unsupervised representation learning with deep convolutional generative
    adversarial networks (2016). All weights start as N(0, 0.02^2), as in the paper.
    examples/gan_digits.py trains them against each other.

    Args:
        latent: the number of elements of the noise from which an image is generated.
        image: (channels, side, side), the side 8, 16, 32, 64, ...
        width: channels of the convolution next to the image; they double with each halving of the
            image.

    Returns:
        The generator, from noise [batch, latent] to images [batch, *image] in [-1, 1]; and the
        discriminator, from images to a score [batch, 1] that is above 0 for real ones.

    Raises:
        DefinitionError: for another side, or channels that come last.

    Example:
        >>> generator, discriminator = lm.networks.dcgan(latent=16, image=(1, 8, 8), width=8)
        >>> generator.outputs[0], discriminator.outputs[0]
        (Tensor(f32[batch, 1, 8, 8], layer), Tensor(f32[batch, 1], layer))
    """
    colours, height, side = image
    # From the image to the smallest feature maps.
    halvings = (side // _SMALLEST).bit_length() - 1
    if height != side or halvings < 1 or side != _SMALLEST * 2**halvings:
        raise DefinitionError(
            "a DCGAN is defined for square images of some sizes only",
            facts=(("expected", "8 x 8, 16 x 16, 32 x 32, .."), ("found", f"{height} x {side}")),
            where=f"dcgan ({source_line()})",
            advice="Enlarge or pad the images: lm.Upsample, lm.Pad.",
        )
    widths = [width * 2**number for number in range(halvings)]
    start = Normal(deviation=0.02)

    halves: dict[str, Any] = {"stride": 2, "padding": 1}
    # PyTorch's tutorial has these names; there, all layers are in one sequence.
    layers: list[Layer] = []

    def options() -> dict[str, Any]:
        return {"bias": False, "weight_init": start, "name": f"main.{len(layers)}"}

    layers.append(ConvTranspose2d(widths[-1], _SMALLEST, **options()))
    for channels in (*reversed(widths[:-1]), colours):
        layers += [BatchNorm(name=f"main.{len(layers)}"), ReLU()]
        layers.append(ConvTranspose2d(channels, 4, **halves, **options()))
    generator = Sequential(Input(latent), Reshape(latent, 1, 1), *layers, Tanh(), name="generator")

    layers.clear()
    layers += [Conv2d(widths[0], 4, **halves, **options()), LeakyReLU(slope=0.2)]
    for channels in widths[1:]:
        layers.append(Conv2d(channels, 4, **halves, **options()))
        layers += [BatchNorm(name=f"main.{len(layers)}"), LeakyReLU(slope=0.2)]
    layers.append(Conv2d(1, _SMALLEST, **options()))
    discriminator = Sequential(Input(*image), *layers, Flatten(), name="discriminator")
    return generator, discriminator
