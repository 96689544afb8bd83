"""What layers refuse: their options, and what they are applied to.

Wrong types and ranges of single options are tested for all layers by what their kinds read, see
`tests/golden/parameters.txt`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from error_texts import check_refusal, error_text

import lamina as lm
from lamina.errors import DataError, DefinitionError, DTypeError, ShapeError

pytestmark = pytest.mark.each_case

# Calls, and parts of the texts of their errors in their order.
Rows = list[tuple[Any, ...]]


def x(*shape):
    return lm.Input(*shape)


def ints(*shape):
    return lm.Input(*shape, dtype="int64")


def bools(*shape):
    return lm.Input(*shape, dtype="bool")


_NUMBERS = "must be a whole number, or one for each of 2 axes"
_PAIRS = "padding must be a whole number, or for each of 2 axes one or a pair"
_GROUPS = "the channels cannot be divided into groups"
_MULTIPLES = "The channels of the input and of the result must be multiples of groups."
_HALF = "padding is at most half of the window"
_DIMENSIONS = "these are not the dimensions of an example"
_AREA = ("area must be two numbers, the lower one first", "expected  area=(0.02, 0.33)")
_WIDTHS = ("widths must be whole numbers, two for each axis", "expected  widths=((1, 1), (0, 2))")

_KINDS = {
    "init": ("an initializer, a function", "lm.init.XavierUniform()"),
    "izer": ("a regularizer, a function", "lm.L2(1e-4)"),
}
_OF_SHAPE = "Write a function of shape, seed and stream that returns the array."

OPTIONS = [
    # Rows of numbers.
    (lambda: lm.Conv2d(4, (3, 3, 3)), f"window {_NUMBERS}", "found     (3, 3, 3)"),
    (lambda: lm.Conv2d(4, "3"), f"window {_NUMBERS}", "window=3 or window=(3, 4)"),
    (lambda: lm.Conv1d(4, (3, 3)), "window must be a whole number, or one for its axis"),
    (lambda: lm.MaxPool2d((2, 0)), "window[1] must be a whole number of at least 1"),
    (lambda: lm.Conv2d(4, 3, padding=(1, 2, 3)), _PAIRS, "found     (1, 2, 3)"),
    (lambda: lm.Conv2d(4, 3, padding=(1, (1, 2, 3))), _PAIRS, "padding=((1, 2), (1, 2))"),
    (lambda: lm.Conv2d(4, 3, padding=(1, (0, -1))), "padding[1][1] must be a whole number of at "),
    (lambda: lm.Conv2d(4, 3, padding="full"), "padding must be one of 'same', 'valid'"),
    (lambda: lm.ConvTranspose2d(4, 3, padding="same"), _PAIRS, "found     'same'"),
    (lambda: lm.AdaptiveMaxPool((1,) * 4), "must be a whole number, or one for each of 3"),
    (lambda: lm.Upsample(scale=0), "scale must be a number above 0"),
    (lambda: lm.Crop(-1), "widths must be whole numbers of at least 0"),
    *((lambda widths=one: lm.Pad(widths), *_WIDTHS) for one in (1.5, (), ((1, 2, 3),))),
    *((lambda area=one: lm.RandomErasing(area=area), *_AREA) for one in ((0.3, 0.2), (0.2,), 0.2)),
    *((lambda row=one: lm.Reshape(*row), _DIMENSIONS) for one in ((0,), (-2,), (-1, -1), (2.0,))),
    *((lambda row=one: lm.LayerNorm(axes=row), "axes must be whole numbers") for one in (0.5, ())),
    # Options that do not fit together.
    (
        lambda: lm.Conv2d(4, 3, stride=(1, 2), padding="same"),
        'padding="same" needs a stride of 1',
        *("stride  (1, 2)", "such as padding=1."),
    ),
    (lambda: lm.Conv2d(4, 3, groups=3), _GROUPS, "groups    3", _MULTIPLES),
    (lambda: lm.ConvTranspose2d(4, 3, groups=3), _GROUPS, "channels  4", _MULTIPLES),
    (
        lambda: lm.ConvTranspose2d(4, 3, stride=(2, 3), output_padding=(2, 2)),
        "output_padding must be smaller than the stride or the dilation",
        *("output_padding  (2, 2)", "stride          (2, 3)", "dilation        1"),
        "output_padding chooses one of them.",
    ),
    (lambda: lm.MaxPool2d(2, padding=(1, 2)), _HALF, "window   2", "padding  (1, 2)"),
    (lambda: lm.AvgPool2d(3, padding=((0, 2), 0)), _HALF),
    (lambda: lm.Upsample(), "Upsample takes a scale or a size"),
    (lambda: lm.Upsample(scale=2, size=4), "Upsample takes a scale or a size"),
    (lambda: lm.Upsample(scale=2, align_corners=True), "applies to modes that blend"),
    (lambda: lm.Pad(-1, mode="reflect"), "negative widths apply to mode="),
    (lambda: lm.Pad(((0, 1), (-1, 0)), mode="circular"), "Remove elements with Crop"),
    (lambda: lm.RandomFlip(axis=0), "axis 0 is the batch, and examples are reversed"),
    (lambda: lm.Hardtanh(low=1.0, high=1.0), "found     low=1.0, high=1.0"),
    (lambda: lm.RReLU(low=0.5), "low must not be above high"),
    *(
        (
            lambda name=name, value=value: lm.Linear(3, **{name: value}),
            *("in Linear (test_layer_errors.py:", f"): {name} must be {_KINDS[name[-4:]][0]}"),
            _KINDS[name[-4:]][1],
            f"\n  {advice}",
        )
        for name, value, advice in (
            ("weight_init", "he_normal", "Write lm.init.KaimingNormal()."),
            ("weight_init", "glorot_uniform", "Write lm.init.XavierUniform()."),
            ("weight_init", "mystery", "lm.init has the initializers."),
            ("weight_init", np.zeros, "Write lm.init.Zeros()."),
            ("weight_init", np.ones, "Write lm.init.Constant(1.0)."),
            ("bias_init", 0.5, "Write lm.init.Constant(0.5)."),
            ("weight_init", np.zeros((3, 4)), _OF_SHAPE),
            ("weight_init", lm.init.Zeros, "Make one of the class: Zeros(...)."),
            ("weight_regularizer", 0.01, "Write lm.L2(0.01)."),
            ("weight_regularizer", "l1", "Write lm.L1(0.01)."),
            ("weight_regularizer", "l2", "Write lm.L2(0.02)."),
            ("weight_regularizer", lm.L2, "Make one of the class: L2(...)."),
        )
    ),
    (lambda: lm.init.Uniform(1.0, 0.0), "low must not be above high"),
    (
        lambda: lm.init.XavierUniform()((5,), 0, 0),
        *("XavierUniform needs a weight with inputs and outputs", "found     [5]"),
        "Use init.Zeros()",
    ),
    (lambda: lm.MultiHeadAttention(3, features=8), "the features cannot be divided evenly"),
    (lambda: lm.MultiHeadAttention(4, key_heads=3), "share the heads of keys evenly"),
    (lambda: lm.Embedding(3, 2, padding=3), "padding is out of the range of indices"),
    (lambda: lm.EmbeddingBag(5, 2, padding=5), "padding is out of the range"),
    (
        lambda: lm.TiedLinear(lm.Conv2d(3, 3)),
        *("weights are shared with an Embedding or a Linear", "scope.shared"),
    ),
    (lambda: lm.Recompute(lm.Linear), "layers and networks can be computed again"),
    (lambda: lm.Recompute([lm.Linear(2), lm.ReLU()]), "Unpack the list: Recompute(*layers)."),
    (lambda: lm.Recompute(), "there is no layer to compute again"),
    (
        lambda: lm.Recompute(lm.Linear(3), name="first"),
        *("Recompute has no option name", "  expected  layers and networks"),
        "  found     name='first'",
        "  It changes no names: name the layers in it, lm.Linear(64, name='first').",
    ),
]


ENCODER, DECODER = (
    make(2, hidden=4) for make in (lm.TransformerEncoderBlock, lm.TransformerDecoderBlock)
)
ATTENTION = lm.MultiHeadAttention(2)
_SHARES = "it shares parameters with Linear, but its operands do not depend on that layer"
_FEW = "axis 2 has too few elements for this padding"


@dataclass(frozen=True)
class Misnamed(lm.Layer):
    layer: lm.Linear

    def forward(self, scope, x):
        return lm.ops.matmul(x, scope.shared(self.layer, "kernel"))


@dataclass(frozen=True)
class Mixing(lm.Layer):
    def forward(self, scope, x):
        scope.mix(scope.uniform(x.shape))
        return x


@dataclass(frozen=True)
class Giving(lm.Layer):
    """Gives what it is made with, or in training mode two tensors and in inference mode one."""

    results: Any = None

    def forward(self, scope, x):
        if self.results != "fewer":
            return self.results
        return (x, x + 1) if scope.training else (x,)


class Loose(lm.Layer):
    def forward(self, scope, x):
        return x


def tied(features, dtype="float32"):
    table, tokens = lm.Embedding(9, 6), ints(5)
    hidden = lm.Linear(features)(table(tokens))
    return lm.TiedLinear(table)(lm.ops.cast(hidden, dtype))


def misnamed():
    layer = lm.Linear(3)
    return Misnamed(layer)(layer(x(8)))


def of_two_outputs():
    given = x(3)
    return lm.Network(given, [lm.Linear(2)(given), lm.Linear(3)(given)])


_AXES, _STRIDE = "Axes 2 and 3 differ, ", "give the shortcut stride=2 as well."
_SAME = "give both branches the same padding and stride."
_CHANNELS = "give both branches the same number of channels."
_RANKS = "add lm.Flatten() or lm.Reshape() to one of them."

SHAPES = [
    (
        lambda: lm.Linear(3)(x()),
        *("in net/1:Linear (", "Linear needs an axis of features", "expected  [batch, features]"),
        *("found     f32[batch]", "Add lm.Flatten() before it"),
    ),
    (
        lambda: lm.Reshape(5, 2)(x(12)),
        *("an example has another number of elements", "expected  5*2 elements for [5, 2]"),
        "found     f32[batch, 12]",
    ),
    (lambda: lm.Reshape(5, -1)(x(12)), "expected  a multiple of 5 elements for [5, -1]"),
    (
        lambda: lm.Flatten(first=2, last=1)(x(3, 4)),
        "the last axis to flatten comes before the first",
    ),
    (lambda: lm.Flatten(first=0)(x(3, 4)), "along the batch"),
    # Joins.
    *(
        (
            lambda left=left, right=right: lm.Add()(lm.ReLU()(x(*left)), x(*right)),
            *("in net/3:Add (", "): the two branches differ in shape\n"),
            f"  left   f32[batch, {', '.join(map(str, left))}]   from net/",
            f":ReLU\n  right  f32[batch, {', '.join(map(str, right))}]   from net/",
            f":Input\n  {difference}",
        )
        for left, right, difference in (
            *(((8, 16, 16), (8, 32, 32), f"{_AXES}16 against 32: {_STRIDE}"),),
            *(((8, 30, 30), (8, 32, 32), f"{_AXES}30 against 32: {_SAME}"),),
            *(((8, 16, 8), (8, 32, 4), f"{_AXES}16 and 8 against 32 and 4: {_SAME}"),),
            ((8, 9), (4, 9), f"Axis 1 differs, 8 against 4: {_CHANNELS}"),
            ((8, 16, 16), (8,), f"The left branch has 4 axes, the right one 2: {_RANKS}"),
        )
    ),
    # Random layers.
    (
        lambda: lm.GaussianSample()(x(3), x(1)),
        *("GaussianSample needs a variance for each mean", "log_variance  f32[batch, 1]"),
    ),
    (lambda: lm.SpatialDropout(0.1)(x()), "SpatialDropout needs an axis of channels"),
    (
        lambda: lm.AlphaDropout(0.5, whole_channels=True)(x()),
        "AlphaDropout needs an axis of channels",
    ),
    (lambda: lm.RandomFlip(axis=-3)(x(4, 4)), "RandomFlip along the batch would mix examples"),
    (
        lambda: lm.RandomCrop((8, 9), padding=1)(x(1, 6, 6)),
        *("the image is smaller than the crop", "size   (8, 9)"),
    ),
    (
        lambda: lm.ColourJitter()(x(4, 8, 8)),
        *("ColourJitter takes grey images, or red, green and blue", "expected  1 or 3 channels"),
    ),
    (
        lambda: Mixing()(x(2)),
        "the share of an example in a mixture is one number for the batch",
        "found     f32[batch, 2]",
    ),
    # Joins.
    (lambda: lm.Add()(x(3), x(3), x(4)), "the branches 1 and 3 differ in shape"),
    (
        lambda: lm.Concat(axis=2)(x(3, 4), x(5, 4)),
        "Axis 1 differs, 3 against 5: only axis 2 may differ.",
    ),
    (lambda: lm.Concat(axis=2)(x(3), x(3)), "the branches have no axis 2"),
    (
        lambda: lm.Add()(x(3)),
        *("Add joins two tensors or more", "In Sequential a layer has one input"),
    ),
    # Activations.
    (lambda: lm.Softmax()(x()), "along the batch would mix examples"),
    (lambda: lm.LogSoftmax(axis=0)(x()), "along the batch would mix examples"),
    (lambda: lm.GLU()(x(5)), "GLU halves an axis of even extent"),
    (lambda: lm.PReLU(per_channel=True)(x()), "PReLU needs an axis of channels"),
    # Attention.
    (
        lambda: lm.TransformerEncoderBlock(5, hidden=16)(x(12, 8)),
        "in net/1:TransformerEncoderBlock/attention:MultiHeadAttention (",
        "the features cannot be divided evenly among the heads",
        "  expected  a multiple of 5 features",
        "  found     f32[batch, 12, 8]   from net/0:Input",
        "  Choose a number of heads that divides the features, or give features=.",
    ),
    (lambda: ATTENTION(x(8)), "MultiHeadAttention needs sequences"),
    (lambda: ATTENTION(*[x(5, 8)] * 4), "takes one to three sequences, and perhaps up to"),
    (lambda: ATTENTION(x(5, 8), *[bools(5)] * 3), "and perhaps up to 2 masks"),
    (lambda: ATTENTION(bools(5), x(5, 8)), "Masks come last; they are bool, or floats"),
    (lambda: ATTENTION(x(5, 8), x(1, 5, 4)), "expected  [5, 5] or [batch, 2, 5, 5]"),
    (lambda: lm.MultiHeadAttention(8, rotary=10.0)(x(5, 8)), "a head has an odd number"),
    (lambda: ATTENTION(x(5, 8), x(4, 6), bools(5)), "expected  [batch, 4] or [batch, 5, 4]"),
    (lambda: ENCODER(x(5, 8), x(5, 8)), "takes one sequence, and perhaps up to 2 masks"),
    (
        lambda: DECODER(x(5, 8), x(4, 8), x(5, 6)),
        "[batch, queries, keys] are a mask after as many sequences as the layer takes.",
    ),
    (lambda: DECODER(x(5, 8), x(4, 8), x(4, 5)), "[batch, 5, 4] or [5, 4] or"),
    (lambda: DECODER(x(5, 8)), "takes two sequences, and perhaps up to"),
    (lambda: DECODER(x(5, 8), x(7)), "TransformerDecoderBlock needs sequences"),
    # Recurrence.
    (
        lambda: lm.LSTM(4)(x(12)),
        *("in net/1:LSTM (", "LSTM needs sequences of features"),
        *("expected  f32[batch, length, features]", "found     f32[batch, 12]"),
        "Add lm.Reshape(length, features) before it.",
    ),
    *(
        (lambda make=make: make(4)(ints(12)), "Put an lm.Embedding(count, features) before it")
        for make in (lm.LSTM, lm.GRU, lm.RNN)
    ),
    (lambda: lm.GRU(4)(ints(3, 4, 5)), "Add lm.Reshape(length, features) before it"),
    (lambda: lm.LSTM(4)(x(5, 3), ints(2)), "found     i64[batch, 2]"),
    (
        lambda: lm.LSTM(4)(x(5, 3), bools(5)),
        'Lengths follow from a mask: ops.sum(ops.cast(mask, "int64"), 1).',
    ),
    # Indices and positions.
    (lambda: lm.SinusoidalPositions()(x(4)), "needs an axis of positions and one of features"),
    (lambda: lm.LearnedPositions()(x(4)), "needs an axis of positions and one of features"),
    (lambda: lm.EmbeddingBag(5, 2)(ints(4, 3)), "EmbeddingBag needs bags of indices"),
    (lambda: lm.EmbeddingBag(5, 2)(ints(4), x(4)), "EmbeddingBag takes weights in mode 'sum' only"),
    # Pairs, and shared weights.
    (lambda: lm.Bilinear(2)(x(3, 4), x(4)), "of Bilinear do not fit"),
    (lambda: lm.CosineSimilarity()(x(4), x(5)), "the tensors of CosineSimilarity do not fit"),
    (lambda: tied(7), "expected  [batch, ..., 6]", "Add lm.Linear(6) before it."),
    # Normalisation.
    (lambda: lm.BatchNorm()(x()), "in net/1:BatchNorm (", "BatchNorm needs an axis of channels"),
    (lambda: lm.GroupNorm(2)(x()), "GroupNorm needs an axis of channels"),
    (lambda: lm.GroupNorm(4)(x(6, 5)), "expected  a multiple of 4 channels"),
    (lambda: lm.InstanceNorm()(x(6)), "InstanceNorm needs axes after the channels"),
    (lambda: lm.LayerNorm()(x()), "LayerNorm along the batch would mix examples"),
    (lambda: lm.LayerNorm(axes=(0, 1))(x(4)), "LayerNorm along the batch would mix examples"),
    (lambda: lm.LayerNorm(axes=2)(x(4)), "there is no axis 2"),
    (lambda: lm.RMSNorm(axes=(1, -1))(x(4)), "RMSNorm names an axis twice"),
    # Images.
    (lambda: lm.Upsample(scale=2)(x(3)), "in net/1:Upsample (", "in mode 'nearest' takes images"),
    (
        lambda: lm.Upsample(scale=2, mode="bilinear")(x(3, 4)),
        "Upsample in mode 'bilinear' takes images",
    ),
    (
        lambda: lm.Upsample(scale=(2, 2, 2))(x(3, 4, 4)),
        "a wrong number of factors or sizes for this",
    ),
    (lambda: lm.Upsample(size=(2, 2))(x(3, 4)), "a wrong number of factors or sizes for this"),
    (
        lambda: lm.Upsample(scale=0.2)(x(3, 4, 4)),
        "the result of Upsample would be empty or too large",
    ),
    (
        lambda: lm.Upsample(size=3, mode="linear")(x(3, 4, 4)),
        "Upsample in mode 'linear' takes sequences",
    ),
    (lambda: lm.PixelShuffle(2)(x(6, 3, 3)), "expected  a multiple of 4 channels"),
    (lambda: lm.PixelShuffle(2)(x(4, 3)), "PixelShuffle takes images"),
    (lambda: lm.PixelUnshuffle(2)(x(1, 4, 5)), "expected  multiples of 2"),
    (lambda: lm.PixelUnshuffle(2)(x(1, 4)), "PixelUnshuffle takes images"),
    (lambda: lm.ChannelShuffle(4)(x(6, 2, 2)), "expected  a multiple of 4 channels"),
    (lambda: lm.Pad(1)(x(5)), "Pad has widths for more axes than the tensor has"),
    (lambda: lm.Pad((1, 1))(x(5)), "expected  2 axes after the batch"),
    (
        lambda: lm.Pad(3, mode="reflect")(x(1, 3, 8)),
        "expected  at most 2 on each side for mode 'reflect'",
    ),
    (lambda: lm.Pad(4, mode="circular")(x(1, 3, 8)), _FEW),
    (lambda: lm.Crop(2)(x(1, 4, 8)), "a cropped axis would be empty"),
    (lambda: lm.Crop((1, 1))(x(5)), "Crop has widths for more axes than the tensor has"),
    *(
        (
            lambda layer=layer: layer(x(5)),
            *("takes images", "expected  [batch, channels, height, width]"),
            "found     f32[batch, 5]",
        )
        for layer in (
            *(lm.RandomShift(2), lm.RandomErasing(), lm.ColourJitter(), lm.RandomGreyscale()),
            *(lm.RandomAffine(), lm.RandomRotation(10), lm.CutMix(), lm.RandomCrop(2)),
        )
    ),
    # Windows.
    (
        lambda: lm.Conv2d(4, 3)(x(28, 28)),
        "Conv2d needs channels and 2 further axes",
        "expected  f32[batch, channels, height, width]",
        "found     f32[batch, 28, 28]   from net/0:Input",
        "Write the channels in lm.Input as well: lm.Input(1, 28, 28).",
    ),
    (
        lambda: lm.MaxPool1d(2)(x(28)),
        *("MaxPool1d needs channels and 1 further axis", "f32[batch, channels, length]"),
        "lm.Input(1, 28).",
    ),
    (lambda: lm.Conv2d(4, 3)(lm.Linear(8)(x(8))), "Put lm.Reshape(channels, height, width) before"),
    (lambda: lm.Conv1d(4, 3)(lm.ReLU()(x(8))), "Put lm.Reshape(1, 8) before it."),
    (lambda: lm.AvgPool2d(2)(x(3, 8, 8, 8)), "lm.AvgPool3d has as many axes."),
    # Channels last, as in Keras, where the window does not fit or a later one.
    (lambda: lm.Conv2d(4, 3)(x(28, 28, 1)), "Channels come first: lm.Input(1, 28, 28)."),
    (lambda: lm.MaxPool2d(2)(x(28, 20, 1)), "Channels come first: lm.Input(1, 28, 20)."),
    (lambda: lm.Conv1d(4, 5)(x(99, 3)), "Channels come first: lm.Input(3, 99)."),
    (lambda: lm.MaxPool2d(2)(lm.Conv2d(8, 3)(x(32, 32, 3))), "first: lm.Input(3, 32, 32)."),
    (
        lambda: lm.Conv2d(4, 3, padding=1, padding_mode="reflect")(x(28, 28, 1)),
        *("axis 3 has too few elements", "Channels come first: lm.Input(1, 28, 28)."),
    ),
    (
        lambda: lm.ConvTranspose3d(4, 3)(x(8, 8, 8)),
        *("ConvTranspose3d needs channels and 3 further axes", "depth, height, "),
    ),
    (
        lambda: lm.Conv2d(4, 3, groups=2)(x(3, 8, 8)),
        *(_GROUPS, "f32[batch, 3, 8, 8]", "groups  2", _MULTIPLES),
    ),
    (lambda: lm.ConvTranspose1d(4, 3, groups=2)(x(3, 8)), _GROUPS, "groups  2"),
    (
        lambda: lm.Conv2d(4, 3, padding=((0, 1), 0), dilation=4)(x(1, 7, 9)),
        "conv: the window is larger than the padded tensor",
        "tensor   f32[batch, 1, 7, 9]   from net/0:Input",
        *("window   3 elements, from first to last 9", "padding  0 before and 1 after"),
        "Use a smaller window, less dilation, or padding.",
    ),
    (lambda: lm.Conv2d(4, 3, padding=5, padding_mode="reflect")(x(1, 4, 4)), _FEW, "'reflect'"),
    (
        lambda: lm.ConvTranspose2d(4, 3, padding=3)(x(1, 4, 4)),
        *("the result would be empty", "padding  3"),
        "The padding is cropped from the result: use a smaller one.",
    ),
    (
        lambda: lm.MaxPool2d((1, 3), padding=(0, (0, 1)))(x(1, 2, 1)),
        *("no window fits", "axis    3, 0 + 1 + 1 elements"),
        "window  3 elements, from first to last 3",
    ),
    (lambda: lm.AvgPool3d(5)(x(1, 9, 9, 4)), "no window fits", "axis    4"),
    (
        lambda: lm.GlobalMaxPool()(x(3)),
        *("GlobalMaxPool needs an axis after the channels", "expected  f32[batch, channels, ...]"),
        "It takes sequences, images and volumes.",
    ),
    (
        lambda: lm.AdaptiveMaxPool(2)(x(3)),
        "AdaptiveMaxPool needs one to three axes after the channels",
    ),
    (
        lambda: lm.MaxUnpool(size=4)(x(3, 2, 2), ints(3, 2)),
        "MaxUnpool needs values and as many indices",
    ),
]
_EMBED = ("takes floats", "Put an lm.Embedding(count, features) before it")
_SECOND = "If it is a second sequence, put an lm.Embedding("
_MASK = (
    "expected  bool[batch, keys]",
    'Take it as lm.Input(keys, dtype="bool"), or compare: ops.not_equal(mask, 0).',
)
_FOUR = "added to the scores have four axes: [batch, 1, queries, keys]."
DTYPES = [
    (
        lambda: lm.Linear(3)(lm.Input(4, dtype="uint8")),
        *("u8[batch, 4]", "Leave dtype out of lm.Input, or add lm.Rescale(1.0) before it."),
    ),
    (
        lambda: lm.Conv2d(4, 3)(lm.Input(1, 28, 28, dtype="uint8")),
        *("Conv2d takes floats", "add lm.Rescale(1.0) before it"),
    ),
    (lambda: lm.BatchNorm()(ints(4, 3)), "BatchNorm takes floats", "found     i64[batch, 4, 3]"),
    (lambda: lm.GRU(4)(ints(12, 3)), "GRU takes floats", "Leave dtype out of lm.Input"),
    *(
        (lambda layer=layer: layer(ints(3, 8, 8)), f"{type(layer).__name__} takes floats")
        for layer in (
            *(lm.SpatialDropout(0.4), lm.DropPath(0.4), lm.GaussianNoise(0.3), lm.Mixup()),
            *(lm.GlobalAvgPool(), lm.ColourJitter(), lm.RandomGreyscale(), lm.RandomAffine()),
            *(lm.RandomRotation(10), lm.LayerNorm(), lm.GroupNorm(1), lm.InstanceNorm()),
            *(lm.RMSNorm(), lm.SinusoidalPositions(), lm.LearnedPositions()),
            lm.Upsample(scale=2, mode="bilinear"),
        )
    ),
    (lambda: lm.GaussianSample()(x(3), ints(3)), "GaussianSample takes floats"),
    (lambda: lm.PairwiseDistance()(x(4), ints(4)), "PairwiseDistance takes floats"),
    (lambda: tied(6, "int64"), "TiedLinear takes floats"),
    *(
        (
            lambda layer=layer: layer(x(4)),
            *(f"{type(layer).__name__} takes indices", "found     f32[batch, 4]"),
            'lm.Input(..., dtype="int64")',
        )
        for layer in (lm.Embedding(4, 2), lm.OneHot(4))
    ),
    (
        lambda: lm.LSTM(4)(x(5, 3), x()),
        "lengths are one whole number for each sequence",
        'Take them as lm.Input(dtype="int64")',
    ),
    (lambda: ATTENTION(ints(5, 8)), "MultiHeadAttention takes floats"),
    (lambda: ATTENTION(ints(5)), *_EMBED),
    (lambda: ATTENTION(x(5, 8), ints(5)), "a mask of MultiHeadAttention is bool", *_MASK, _SECOND),
    (lambda: ATTENTION(x(5, 8), x(5)), "a mask of MultiHeadAttention is bool", *_MASK, _FOUR),
    (lambda: ENCODER(x(5, 8), ints(5)), "a mask of TransformerEncoderBlock is bool", *_MASK),
    (lambda: ENCODER(x(5, 8), x(5)), "a mask of TransformerEncoderBlock is bool", *_MASK, _FOUR),
    (lambda: ATTENTION(x(5, 8), ints(7, 8)), "MultiHeadAttention takes floats"),
    (lambda: DECODER(x(5, 8), ints(7, 8)), "TransformerDecoderBlock takes floats"),
    (lambda: DECODER(x(5, 8), ints(7)), *_EMBED),
    (lambda: DECODER(x(5, 8), x(5, 8), x(5)), "a mask of TransformerDecoderBlock is bool"),
]
DEFINITIONS = [
    (
        lambda: lm.Sequential(x(2), lm.Linear(6)).forward(x(2)),
        "the first argument of forward is the scope of a layer",
        "A network is applied like a layer, net(x); lm.Model(net) computes numbers.",
    ),
    *(
        (lambda one=one: Giving(one)(x(4)), "a tensor, or a tuple of tensors")
        for one in ((), (None,), [1])
    ),
    (lambda: lm.Model(lm.Sequential(x(4), Giving("fewer"))), "as many tensors in inference mode"),
    (
        lambda: lm.Sequential(x(4), Giving("fewer"), lm.Linear(4)),
        *("a layer is applied to tensors", "y, *states = layer(x)"),
    ),
    (lambda: Loose()(x(3)), "Write @dataclass(frozen=True) above class Loose"),
    (
        lambda: lm.AdaptiveMaxPool((2, 2))(x(3, 8)),
        *("size must be a whole number, or one for its", "found     (2, 2)"),
    ),
    (
        lambda: lm.TiedLinear(lm.Linear(3))(lm.Linear(3)(x(8))),
        *("in net/2:TiedLinear (", _SHARES, "Apply Linear, the same object"),
    ),
    (misnamed, "Linear has no parameter 'kernel' to share", "expected  weight, bias"),
    (
        lambda: lm.Recompute(of_two_outputs())(x(3)),
        *("what is computed again has one output", "2 outputs"),
    ),
    (
        lambda: lm.Model(lm.Sequential(x(1, 4, 4), lm.Mixup(), lm.CutMix())),
        "the examples of the batch are mixed already",
        "first  net/1:Mixup (test_layer_errors.py:",
        "now    net/2:CutMix (test_layer_errors.py:",
    ),
]


@dataclass(frozen=True)
class Token(lm.Layer):
    def forward(self, scope, x):
        return lm.Embedding(7, 2)(x)


def indexed(layer, index):
    """A layer on indices, among them this one."""
    model = lm.Model(lm.Sequential(ints(4), layer), engine="interpreter")
    return model.predict(np.where(np.arange(80).reshape(20, 4) == 46, index, 0))


def sliced(first, second):
    """Two layers on indices of one input, which is not the first one."""
    given, other = lm.Input(2, dtype="uint8"), x(3)
    parts = [lm.Embedding(3, 2)(given[:, 0]), lm.OneHot(5)(given[:, 1]), other]
    model = lm.Model(lm.Network([other, given], lm.concat(parts)), engine="interpreter")
    return model.predict((np.zeros((2, 3), "float32"), [[2, 4], [first, second]]))


def of_length(length):
    sequences, lengths = x(5, 3), ints()
    layer = lm.GRU(4, layers=2, bidirectional=True)
    model = lm.Model(lm.Network([sequences, lengths], layer(sequences, lengths)))
    return model.predict((np.zeros((6, 5, 3), "float32"), np.array([5, 0, 3, length, 1, 2])))


def test_indices_and_lengths_within_their_range_are_accepted():
    assert indexed(Token(), 6).shape == (20, 4, 2)
    assert sliced(2, 4).shape == (2, 10)
    assert of_length(5).shape == (6, 5, 8)


DATAS = [
    (
        lambda: indexed(lm.Embedding(7, 3), 9),
        *("in net/1:Embedding (", "): indices out of range\n", "  expected  0..6\n"),
        "  found     9 at example 11 of input 0\n",
        "  The layer was made for 7: number them from 0, or make it for 10.",
    ),
    (
        lambda: indexed(lm.Embedding(7, 3), -3),
        "found     -3 at example 11 of input 0",
        "and give unknown values a number of their own.",
    ),
    (lambda: indexed(Token(), 7), "in net/1:Token/0:Embedding"),
    (lambda: sliced(4, 2), "Embedding", "found     4 at example 1 of input 1"),
    (lambda: sliced(0, 5), "OneHot"),
    (lambda: lm.compile(given := ints(), lm.OneHot(3)(given))([3]), "indices out of range"),
    *(
        (
            lambda length=length: of_length(length),
            *("in net/2:GRU (", "): lengths out of range\n", "  expected  0..5\n"),
            f"  found     {length} at example 3 of input 1\n",
            "  The sequences have 5 positions; 0 is the length of an empty sequence.",
        )
        for length in (6, -1)
    ),
]
REFUSED = [
    (kind, call, parts)
    for kind, rows in {
        DefinitionError: [*OPTIONS, *DEFINITIONS],
        ShapeError: SHAPES,
        DTypeError: DTYPES,
        DataError: DATAS,
    }.items()
    for call, *parts in rows
]


@pytest.mark.parametrize(("kind", "call", "parts"), REFUSED)
def test_what_does_not_fit_is_refused(kind, call, parts):
    assert "test_layer_errors.py:" in check_refusal(kind, call, *parts)


class Inner(lm.Layer):
    def __init__(self):
        self.first = lm.Linear(3)

    def forward(self, scope, x):
        return self.first(x)


def test_an_init_without_parameters_becomes_fields_of_its_attributes():
    text = error_text(DefinitionError, lambda: Inner()(x(2)))
    _, _, field = text.rpartition(
        "above class Inner, and in it, in place of __init__: a field for each attribute, such as "
    )
    names = {"lm": lm, "dataclass": dataclass, "Inner": Inner}
    exec(
        f"@dataclass(frozen=True)\nclass Fields(lm.Layer):\n    {field.removesuffix('.')}\n"
        "    forward = Inner.forward\n",
        names,
    )
    assert names["Fields"]()(x(2)).shape[1:] == (3,)


class Scaled(lm.Layer):
    def __init__(self, factor, offset: float = 0.5, power=2):
        self.factor, self.offset, self.power = factor, offset, power

    def forward(self, scope, x):
        return x**self.power * self.factor + self.offset


def test_the_advice_for_a_layer_with_an_init_is_followed_as_it_is_written():
    methods = {"__init__": Scaled.__init__, "forward": Scaled.forward}
    frozen = dataclass(frozen=True)(type("Scaled", (lm.Layer,), methods))
    texts = [error_text(DefinitionError, lambda: Scaled(3.0)(x(2)))]
    texts.append(error_text(DefinitionError, frozen, 3.0))
    assert texts[1].splitlines()[0].endswith("a frozen dataclass has no __init__ that assigns")
    for text in texts:
        _, _, fields = text.rpartition("above class Scaled, and in it, in place of __init__: ")
        names = {"lm": lm, "dataclass": dataclass}
        exec(
            f"@dataclass(frozen=True)\nclass Scaled(lm.Layer):\n    {fields.removesuffix('.')}\n"
            "    def forward(self, scope, x):\n"
            "        return x**self.power * self.factor + self.offset\n",
            names,
        )
        model = lm.Model(lm.Sequential(x(2), names["Scaled"](3.0)), engine="interpreter")
        assert model.predict(np.ones((1, 2), "float32")).tolist() == [[3.5, 3.5]]


@dataclass(frozen=True)
class Counting(lm.Layer):
    init: Any

    def forward(self, scope, x):
        scope.state("count", (), self.init, dtype="int64")
        return x


def test_the_example_of_an_initializer_of_a_state_makes_a_counter():
    example = "lm.init.Zeros()"
    counting = Counting(np.full)
    check_refusal(DefinitionError, lambda: counting(x(2)), "init must be an initializer", example)
    assert lm.Sequential(x(2), Counting(lm.init.Zeros())).outputs
