"""LeNet."""

from __future__ import annotations

from lamina.checks import checked
from lamina.checks.kinds import Count
from lamina.layers import Conv2d, Flatten, Input, Linear, MaxPool2d, ReLU
from lamina.network import Network, Sequential
from lamina.networks.arguments import ShapeOfImages


@checked
def lenet(classes: Count = 10, input: ShapeOfImages = (1, 28, 28)) -> Network:
    """Two convolutions, each followed by pooling, and two linear layers.

    LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition (1998),
    in Caffe's variant: max pooling instead of averages, more channels, a ReLU. Layers have Caffe's
    names, and weights start with the layers' defaults.

    Args:
        classes: the number of results.
        input: (channels, height, width), at least 16 x 16.

    Raises:
        DefinitionError: for a shape with the channels last.

    Example:
        >>> lm.networks.lenet().parameter_count()
        431080
    """
    return Sequential(
        Input(*input),
        Conv2d(20, 5, name="conv1"),
        MaxPool2d(2),
        Conv2d(50, 5, name="conv2"),
        MaxPool2d(2),
        Flatten(),
        Linear(500, name="ip1"),
        ReLU(),
        Linear(classes, name="ip2"),
    )
