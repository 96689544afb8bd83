"""The networks of `lamina.networks` as tinygrad's users write them.

Each takes the options of Lamina's function with the name in `READY`. `nn.state.get_parameters`
finds the attributes of a network in the order in which they were set: Lamina's order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinygrad import Tensor, nn


class LastState:
    """The last hidden state of an LSTM. tinygrad has the cell; the loop is the user's."""

    def __init__(self, inputs: int, features: int) -> None:
        self.cell = nn.LSTMCell(inputs, features)

    def __call__(self, x: Tensor) -> Tensor:
        state = None
        for position in range(x.shape[1]):
            state = self.cell(x[:, position], state)
        return state[0]


class ResNetBlock:
    """Two convolutions with windows of 3 x 3, and a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm(width)
        self.shortcut: list[Any] = []
        if stride > 1 or inputs != width:
            self.shortcut.append(nn.Conv2d(inputs, width, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm(width))

    def __call__(self, x: Tensor) -> Tensor:
        y = self.norm1(self.conv1(x)).relu()
        return (self.norm2(self.conv2(y)) + x.sequential(self.shortcut)).relu()


class ResNet:
    def __init__(self, depth: int, classes: int, stem: str, input: list[int]) -> None:
        if (depth, stem) != (18, "cifar"):
            raise NotImplementedError(f"a residual network of {depth} layers, stem {stem}")
        self.layers: list[Any] = [nn.Conv2d(input[0], 64, 3, 1, 1, bias=False), nn.BatchNorm(64)]
        self.layers.append(Tensor.relu)
        inputs = 64
        for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            self.layers += [ResNetBlock(inputs, width, stride), ResNetBlock(width, width, 1)]
            inputs = width
        self.output = nn.Linear(512, classes)

    def __call__(self, x: Tensor) -> Tensor:
        return self.output(x.sequential(self.layers).mean((2, 3)))


class Bottleneck:
    """MobileNetV2's block: a 1 x 1 expansion, a depthwise convolution, a 1 x 1 projection."""

    def __init__(self, inputs: int, channels: int, expansion: int, stride: int) -> None:
        inner = inputs * expansion
        self.layers = [
            *(normalised(inputs, inner, 1) if expansion > 1 else []),
            *normalised(inner, inner, 3, stride, inner),
            *normalised(inner, channels, 1)[:2],
        ]
        self.residual = stride == 1 and inputs == channels

    def __call__(self, x: Tensor) -> Tensor:
        y = x.sequential(self.layers)
        return x + y if self.residual else y


def normalised(
    inputs: int, channels: int, window: int, stride: int = 1, groups: int = 1
) -> list[Any]:
    convolution = nn.Conv2d(
        inputs, channels, window, stride, window // 2, groups=groups, bias=False
    )
    return [convolution, nn.BatchNorm(channels), Tensor.relu6]


class MobileNetV2:
    def __init__(self, classes: int, width: float, input: list[int], dropout: float) -> None:
        if width != 1 or dropout:
            raise NotImplementedError("a MobileNetV2 with dropout, or of another width")
        self.layers = normalised(input[0], 32, 3, 2)
        inputs = 32
        for expansion, channels, count, stride in (
            *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
            *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
        ):
            for number in range(count):
                block = Bottleneck(inputs, channels, expansion, stride if number == 0 else 1)
                self.layers.append(block)
                inputs = channels
        self.layers += normalised(inputs, 1280, 1)
        self.output = nn.Linear(1280, classes)

    def __call__(self, x: Tensor) -> Tensor:
        return self.output(x.sequential(self.layers).mean((2, 3)))


class TransformerBlock:
    """Attention and two layers, each after a normalisation and with a residual connection."""

    def __init__(self, features: int, heads: int, hidden: int, causal: bool) -> None:
        self.norm1 = nn.LayerNorm(features)
        self.query, self.key, self.value, self.out = (
            nn.Linear(features, features) for _ in range(4)
        )
        self.norm2 = nn.LayerNorm(features)
        self.linear1, self.linear2 = nn.Linear(features, hidden), nn.Linear(hidden, features)
        self.heads, self.causal = heads, causal

    def __call__(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        queries, keys, values = (
            linear(y).reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        means = queries.scaled_dot_product_attention(keys, values, is_causal=self.causal)
        x = x + self.out(means.transpose(1, 2).reshape(*x.shape))
        return x + self.linear2(self.linear1(self.norm2(x)).gelu("none"))


class TransformerEncoder:
    """Transformer blocks over indices of tokens; returns [batch, length, vocabulary]."""

    def __init__(
        self,
        vocabulary: int,
        length: int,
        features: int,
        heads: int,
        layers: int,
        hidden: int,
        causal: bool,
        dropout: float,
    ) -> None:
        if dropout:
            raise NotImplementedError("a transformer with dropout")
        self.table = nn.Embedding(vocabulary, features)
        self.positions = Tensor.zeros(length, features)
        self.blocks = [TransformerBlock(features, heads, hidden, causal) for _ in range(layers)]
        self.norm = nn.LayerNorm(features)
        self.output = nn.Linear(features, vocabulary)

    def __call__(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens) + self.positions
        return self.output(self.norm(x.sequential(self.blocks)))


READY: dict[str, Callable[..., Any]] = {
    "resnet": ResNet,
    "mobilenet_v2": MobileNetV2,
    "transformer_encoder": TransformerEncoder,
}
