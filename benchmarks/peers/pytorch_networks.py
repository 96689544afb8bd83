"""The networks of `lamina.networks` as PyTorch's users write them.

Each takes the options of Lamina's function with the name in `READY`. Its parameters are in Lamina's
order. Where PyTorch keeps several parameters in one tensor, `in_order` yields slices of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional


class LastState(nn.Module):
    """The last hidden state of an LSTM."""

    def __init__(self, memory: nn.LSTM) -> None:
        super().__init__()
        self.memory = memory

    def forward(self, x: Tensor) -> Tensor:
        _, (state, _) = self.memory(x)
        return state[-1]


class ResNetBlock(nn.Module):
    """Two convolutions with windows of 3 x 3, and a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride > 1 or inputs != width:
            projection = nn.Conv2d(inputs, width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def resnet(depth: int, classes: int, stem: str, input: list[int], width: int = 64) -> nn.Module:
    if (depth, stem) != (18, "cifar"):
        raise NotImplementedError(f"a residual network of {depth} layers, stem {stem}")
    layers = [nn.Conv2d(input[0], width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    inputs = width
    for stage, stride in enumerate((1, 2, 2, 2)):
        channels = width << stage
        layers += [ResNetBlock(inputs, channels, stride), ResNetBlock(channels, channels, 1)]
        inputs = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


class Bottleneck(nn.Module):
    """MobileNetV2's block: a 1 x 1 expansion, a depthwise convolution, a 1 x 1 projection."""

    def __init__(self, inputs: int, channels: int, expansion: int, stride: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.layers = nn.Sequential(
            *(normalised(inputs, inner, 1) if expansion > 1 else []),
            *normalised(inner, inner, 3, stride, inner),
            *normalised(inner, channels, 1)[:2],
        )
        self.residual = stride == 1 and inputs == channels

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.residual else self.layers(x)


def normalised(
    inputs: int, channels: int, window: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    convolution = nn.Conv2d(
        inputs, channels, window, stride, window // 2, groups=groups, bias=False
    )
    return [convolution, nn.BatchNorm2d(channels), nn.ReLU6()]


def mobilenet_v2(classes: int, width: float, input: list[int], dropout: float) -> nn.Module:
    def wide(channels: int) -> int:
        """The nearest multiple of 8; the next one if that is more than a tenth smaller."""
        nearest = max(8, int(channels * width + 4) // 8 * 8)
        return nearest if nearest >= 0.9 * channels * width else nearest + 8

    inputs = wide(32)
    layers = normalised(input[0], inputs, 3, 2)
    for expansion, channels, count, stride in (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    ):
        for number in range(count):
            outputs = wide(channels)
            layers.append(Bottleneck(inputs, outputs, expansion, stride if number == 0 else 1))
            inputs = outputs
    # The last convolution does not become narrower.
    features = max(1280, wide(1280))
    layers += [*normalised(inputs, features, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Dropout(dropout), nn.Linear(features, classes))


class TransformerEncoder(nn.Module):
    """Transformer blocks over indices of tokens; returns [batch, vocabulary, length]."""

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
        super().__init__()
        self.table = nn.Embedding(vocabulary, features)
        self.positions = nn.Parameter(torch.zeros(length, features))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                *(features, heads, hidden, dropout, "gelu"), batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(features)
        self.output = nn.Linear(features, vocabulary)
        self.causal = causal
        mask = nn.Transformer.generate_square_subsequent_mask(length) if causal else None
        self.register_buffer("mask", mask)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens) + self.positions
        for block in self.blocks:
            x = block(x, self.mask, is_causal=self.causal)
        return self.output(self.norm(x)).transpose(1, 2)

    def in_order(self) -> Iterator[Tensor]:
        yield from (self.table.weight, self.positions)
        for block in self.blocks:
            attention = block.self_attn
            yield from block.norm1.parameters()
            for weight, bias in zip(
                attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3), strict=True
            ):
                yield from (weight, bias)
            for part in (attention.out_proj, block.norm2, block.linear1, block.linear2):
                yield from part.parameters()
        yield from self.norm.parameters()
        yield from self.output.parameters()


READY: dict[str, Callable[..., nn.Module]] = {
    "resnet": resnet,
    "mobilenet_v2": mobilenet_v2,
    "transformer_encoder": TransformerEncoder,
}
