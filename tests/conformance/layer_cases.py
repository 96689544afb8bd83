"""One network for each layer, for tests of what mixed precision does to them.

A layer stands between two products, as in most networks: what it gets and what it gives are
activations, and so are their gradients.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from docstring_examples import example_of

import lamina as lm
from lamina.base.shapes import Array, static
from lamina.graph import LEAF, Graph, Tensor

BATCH = 8
# Extents without the batch.
FEATURES, SEQUENCE, IMAGE, VOLUME = (24,), (7, 8), (4, 8, 6), (2, 4, 4, 4)
COLOURS = (3, 5, 4)
TOKENS = 11


@dataclass(frozen=True)
class LayerCase:
    """A layer and what it is applied to.

    Attributes:
        make: (tensors) -> what the layer returns for them.
        shapes: of the tensors, without the batch.
        roundings: the tensors that are rounded within the layer, forwards.
        steps: it has steps or kinks, or selects elements: it is given numbers of 16 bits that are
            far from each other and from its steps, as a rounded number may be on the other side.
        indices: it is applied to integers.
    """

    make: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    roundings: int = 0
    steps: bool = False
    indices: bool = False


def _tied(x: Tensor) -> Tensor:
    layer = lm.Linear(12)
    return lm.TiedLinear(layer)(layer(x))


def _lstm_cell(x: Tensor, h: Tensor, c: Tensor) -> Tensor:
    new = lm.LSTMCell(10)(x, h, c)
    return new[0] * new[1]


def _unpooled(x: Tensor) -> Tensor:
    values, indices = lm.MaxPool2d(2, returns="indices")(x)
    return lm.MaxUnpool(size=tuple(static(x.shape[2:])))(values, indices)


def _similarity(a: Tensor, b: Tensor) -> Tensor:
    return lm.ops.expand_dims(lm.CosineSimilarity()(a, b), 1)


def _on(shape: tuple[int, ...], make: Any, *more: tuple[int, ...], **options: Any) -> LayerCase:
    return LayerCase(make, (shape, *more), **options)


_features, _sequence, _image, _volume = (
    partial(_on, shape) for shape in (FEATURES, SEQUENCE, IMAGE, VOLUME)
)
_steps = partial(_features, steps=True)
# A weight.
_weight = 1
# Weights of the input and of the state, their input, and the state of each iteration.
_loop = 3 + SEQUENCE[0]
# Both weights and the new states.
_cell = 4
# Four weights, queries, keys, values, means of values, and attention weights.
_attention = 9
# Two weights, and what they multiply.
_feedforward = 4

# Of layers that round, have steps, or have an example in their docstring with large tensors.
LAYERS: dict[str, LayerCase] = {
    # Products
    "Linear": _features(lm.Linear(20), roundings=_weight),
    "TiedLinear": _features(_tied, roundings=2 * _weight + 1),
    "Conv1d": _sequence(lm.Conv1d(6, 3, padding=1), roundings=_weight),
    "Conv2d": _image(lm.Conv2d(6, 3, padding="same"), roundings=_weight),
    "Conv3d": _volume(lm.Conv3d(4, 2, stride=2), roundings=_weight),
    "ConvTranspose1d": _sequence(lm.ConvTranspose1d(5, 3), roundings=_weight),
    "ConvTranspose2d": _image(lm.ConvTranspose2d(5, 2, stride=2), roundings=_weight),
    "ConvTranspose3d": _volume(lm.ConvTranspose3d(3, 2), roundings=_weight),
    "MultiHeadAttention": _sequence(lm.MultiHeadAttention(2), roundings=_attention),
    "TransformerEncoderBlock": _sequence(
        lm.TransformerEncoderBlock(2, hidden=16, activation="gelu", norm_first=True),
        roundings=_attention + _feedforward,
    ),
    "TransformerDecoderBlock": _sequence(
        lm.TransformerDecoderBlock(2, hidden=16, activation="gelu"),
        (5, 8),
        roundings=2 * _attention + _feedforward,
    ),
    # Recurrences
    "RNN": _sequence(lm.RNN(10), roundings=_loop),
    "LSTM": _sequence(lm.LSTM(10), roundings=_loop),
    "GRU": _sequence(lm.GRU(10), roundings=_loop),
    "RNNCell": LayerCase(lm.RNNCell(10), (FEATURES, (10,)), roundings=_cell),
    "LSTMCell": LayerCase(_lstm_cell, (FEATURES, (10,), (10,)), roundings=_cell),
    "GRUCell": LayerCase(lm.GRUCell(10), (FEATURES, (10,)), roundings=_cell),
    # Indices
    "Embedding": LayerCase(lm.Embedding(TOKENS, 10), ((7,),), indices=True),
    "OneHot": LayerCase(lm.OneHot(TOKENS), ((7,),), indices=True),
    "LearnedPositions": _sequence(lm.LearnedPositions()),
    "SinusoidalPositions": _sequence(lm.SinusoidalPositions()),
    "EmbeddingBag": LayerCase(lm.EmbeddingBag(TOKENS, 10), ((7,),), indices=True),
    # Pairs
    "Bilinear": LayerCase(lm.Bilinear(12), (FEATURES, (9,)), roundings=_weight + 1),
    "CosineSimilarity": LayerCase(_similarity, (FEATURES, FEATURES)),
    "PairwiseDistance": LayerCase(lm.PairwiseDistance(keepdims=True), (FEATURES, FEATURES)),
    # Normalisation
    "LocalResponseNorm": _image(lm.LocalResponseNorm(3, alpha=0.5)),
    "BatchNorm": _image(lm.BatchNorm()),
    "GroupNorm": _image(lm.GroupNorm(2)),
    "InstanceNorm": _image(lm.InstanceNorm(affine=True)),
    "LayerNorm": _features(lm.LayerNorm()),
    "RMSNorm": _features(lm.RMSNorm()),
    # Pooling
    "AvgPool2d": _image(lm.AvgPool2d(2)),
    "AvgPool3d": _volume(lm.AvgPool3d(2)),
    "LPPool2d": _image(lm.LPPool2d(2)),
    "LPPool3d": _volume(lm.LPPool3d(2)),
    "MaxPool1d": _sequence(lm.MaxPool1d(3, stride=2), steps=True),
    "MaxPool2d": _image(lm.MaxPool2d(2), steps=True),
    "MaxPool3d": _volume(lm.MaxPool3d(2), steps=True),
    "MaxUnpool": _image(_unpooled, steps=True),
    "AdaptiveAvgPool": _image(lm.AdaptiveAvgPool((4, 3))),
    "AdaptiveMaxPool": _image(lm.AdaptiveMaxPool((3, 4)), steps=True),
    "GlobalAvgPool": _image(lm.GlobalAvgPool()),
    "GlobalMaxPool": _image(lm.GlobalMaxPool(), steps=True),
    # Activations
    **{
        name: _steps(getattr(lm, name)())
        for name in (
            *("CELU", "ELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU"),
            *("ReLU", "ReLU6", "RReLU", "SELU", "Softshrink"),
        )
    },
    "PReLU": _steps(lm.PReLU(per_channel=True)),
    "Threshold": _steps(lm.Threshold(0.1, -0.5)),
    # Random layers
    "GaussianSample": LayerCase(lm.GaussianSample(), (FEATURES, FEATURES)),
    "SpatialDropout": _image(lm.SpatialDropout(0.4)),
    # Augmentation
    "RandomFlip": _image(lm.RandomFlip()),
    "RandomCrop": _image(lm.RandomCrop((6, 6), padding=1)),
    "RandomShift": _image(lm.RandomShift(2, mode="reflect")),
    "RandomErasing": _image(lm.RandomErasing(probability=0.8)),
    "ColourJitter": LayerCase(
        lm.ColourJitter(brightness=0.3, contrast=0.3, saturation=0.3, high=2.0),
        (COLOURS,),
        steps=True,
    ),
    "RandomGreyscale": LayerCase(lm.RandomGreyscale(probability=0.5), (COLOURS,)),
    "RandomAffine": _image(lm.RandomAffine(degrees=10, shift=0.1, scale=(0.9, 1.1), shear=10)),
    "RandomRotation": _image(lm.RandomRotation(20)),
    "Mixup": _features(lm.Mixup()),
    "CutMix": _image(lm.CutMix()),
    # Images, shapes and joins
    "Pad": _image(lm.Pad(1, mode="reflect")),
    "Upsample": _image(lm.Upsample(scale=2, mode="bilinear")),
    "Rescale": _features(lm.Rescale(2.5, offset=-0.3)),
    "Reshape": _image(lm.Reshape(-1, 6)),
}


def _of_docstring(cls: type) -> LayerCase:
    example = example_of(cls)
    return LayerCase(example.made, tuple(static(x.shape[1:]) for x in example.operands))


LAYERS |= {
    name: _of_docstring(cls)
    for name, cls in ((name, getattr(lm, name)) for name in dir(lm) if name not in LAYERS)
    if isinstance(cls, type) and issubclass(cls, lm.Layer) and cls is not lm.Layer
}


def network_of(case: LayerCase) -> lm.Network:
    """The network in which the layer is between two products along the last axis."""
    dtype = "int64" if case.indices else "float32"
    inputs = [lm.Input(*shape, dtype=dtype) for shape in case.shapes]
    tensors = inputs if case.indices else [_multiplied(x) for x in inputs]
    return lm.Network(inputs, lm.Linear(5)(case.make(*tensors)))


def alone(case: LayerCase) -> lm.Network:
    """The network of the layer alone; its floats have the model's type."""
    dtype = "int64" if case.indices else None
    inputs = [lm.Input(*shape, dtype=dtype) for shape in case.shapes]
    return lm.Network(inputs, case.make(*inputs))


def _multiplied(x: Tensor) -> Tensor:
    (extent,) = static(x.shape[-1:])
    return lm.Linear(extent, bias=False)(x)


def random_network(seed: int) -> tuple[lm.Network, int]:
    """Three to seven layers in a row, some with a residual connection, and their roundings."""
    generator = np.random.default_rng(seed)
    shape = (SEQUENCE, IMAGE, FEATURES)[seed % 3]
    x = data = lm.Input(*shape)
    layers, names = _LAYERS_OF[shape], list[str]()
    roundings = 3
    for _ in range(int(generator.integers(3, 8))):
        names.append(str(generator.choice([*layers])))
        layer, count = layers[names[-1]]
        y = layer()(x)
        x = x + y if generator.random() < 0.3 else y
        roundings += count + 1
    return lm.Network(data, lm.Linear(5)(x)), roundings


# By the shape that they keep: layers without kinks, and what they round. Biases of convolutions
# would have no gradient before a normalisation.
_ANY: dict[str, tuple[Callable[[], lm.Layer], int]] = {
    "Tanh": (lm.Tanh, 0),
    "GELU": (lm.GELU, 0),
    "Softplus": (lm.Softplus, 0),
    "Dropout": (lambda: lm.Dropout(0.2), 0),
    "GaussianNoise": (lambda: lm.GaussianNoise(0.1), 0),
}
_LAYERS_OF: dict[tuple[int, ...], dict[str, tuple[Callable[[], lm.Layer], int]]] = {
    FEATURES: {
        **_ANY,
        "Linear": (lambda: lm.Linear(FEATURES[0]), _weight),
        "LayerNorm": (lm.LayerNorm, 0),
        "RMSNorm": (lm.RMSNorm, 0),
    },
    SEQUENCE: {
        **_ANY,
        "Linear": (lambda: lm.Linear(SEQUENCE[1]), _weight),
        "LayerNorm": (lm.LayerNorm, 0),
        "GRU": (lambda: lm.GRU(SEQUENCE[1]), _loop),
        "MultiHeadAttention": (lambda: lm.MultiHeadAttention(2), _attention),
        "Conv1d": (lambda: lm.Conv1d(SEQUENCE[0], 3, padding=1, bias=False), _weight),
    },
    IMAGE: {
        **_ANY,
        "Conv2d": (lambda: lm.Conv2d(IMAGE[0], 3, padding=1, bias=False), _weight),
        "BatchNorm": (lm.BatchNorm, 0),
        "GroupNorm": (lambda: lm.GroupNorm(2), 0),
        "SiLU": (lm.SiLU, 0),
    },
}


def values_for(case: LayerCase, graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Values in float32 for the leaves of the network's bound graph, by name."""
    generator = np.random.default_rng(seed)
    values: dict[str, Array] = {}
    for node in graph.nodes():
        if node.op is not LEAF:
            continue
        name, shape = node.attributes["name"], static(node.shape)
        if not node.dtype.is_float:
            array = generator.integers(0, TOKENS, shape)
        elif case.steps and name == "input0":
            array = _far_apart(generator, shape)
        elif case.steps and name == "1.weight" and len(shape) == 2:
            array = np.eye(shape[0])
        elif len(shape) > 1 and node.attributes["role"] == "parameter":
            array = generator.normal(size=shape) / np.sqrt(np.prod(shape[1:]))
        else:
            is_input = node.attributes["role"] == "input"
            array = generator.normal(size=shape) * (1.0 if is_input else 0.3)
            if name.endswith(("variance", "weight")):
                array = np.exp(array)
        dtype = "float32" if node.dtype.is_float else node.dtype.numpy
        values[name] = np.asarray(array, dtype)
    return values


def _far_apart(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Numbers of at most 8 bits: in each example different ones, none near a whole number."""
    size = int(np.prod(shape[1:]))
    rows = [generator.permutation(size) - size // 2 for _ in range(shape[0])]
    return (np.array(rows).reshape(shape) + 0.5) / 2 ** int(np.ceil(np.log2(size)) - 2)
