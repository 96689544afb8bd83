"""Convolution, pooling and layers of images: shapes, parameters, windows, sizes and padding."""

import numpy as np
import pytest
from random_arrays import normal64

import lamina as lm
from lamina import ops
from lamina.base.shapes import BATCH, float64
from lamina.graph import Graph, evaluate, leaf
from lamina.ops.windows import Window, fold, windows
from lamina.program.steps import stores_of


def predicted(layer, x):
    dtype = None if x.dtype.kind == "f" else x.dtype
    net = lm.Sequential(lm.Input(*x.shape[1:], dtype=dtype), layer)
    return lm.Model(net, dtype="float64").predict(x)


def evaluated(x, made):
    """The value of a graph of ops for an array."""
    source = leaf("x", "input", x.shape, float64)
    found, _ = evaluate(Graph((source,), (("y", made(source)),)), {"x": x})
    return found["y"]


IMAGE, SEQUENCE, VOLUME = (3, 9, 12), (4, 10), (2, 5, 6, 7)


@pytest.mark.cases(
    ("layer", "example", "expected"),
    (lm.Conv2d(5, (3, 2), stride=(2, 1), padding=(0, (1, 2))), IMAGE, (5, 4, 14)),
    (lm.Conv2d(5, 3, padding="same", dilation=(2, 1)), IMAGE, (5, 9, 12)),
    (lm.Conv2d(5, (4, 1), padding="same"), IMAGE, (5, 9, 12)),
    (lm.Conv2d(6, 3, padding=2, padding_mode="circular", groups=3), IMAGE, (6, 11, 14)),
    (lm.Conv3d(5, 2, dilation=(1, 2, 3)), VOLUME, (5, 4, 4, 4)),
    (lm.ConvTranspose2d(5, 3, stride=2, padding=1, output_padding=(0, 1)), IMAGE, (5, 17, 24)),
    (lm.ConvTranspose2d(5, 2, stride=1, dilation=3, output_padding=2), IMAGE, (5, 14, 17)),
    (lm.ConvTranspose3d(5, 2, stride=(1, 2, 3)), VOLUME, (5, 6, 12, 20)),
    (lm.MaxPool1d(3, ceil_mode=True), SEQUENCE, (4, 4)),
    (lm.MaxPool2d(3, stride=2, padding=1), IMAGE, (3, 5, 6)),
    (lm.AvgPool1d(4, stride=3, padding=2), SEQUENCE, (4, 4)),
    (lm.LPPool2d(3, ceil_mode=True), IMAGE, (3, 3, 4)),
    (lm.GlobalAvgPool(), VOLUME, (2,)),
    (lm.GlobalMaxPool(keepdims=True), IMAGE, (3, 1, 1)),
    (lm.AdaptiveAvgPool((None, 5)), IMAGE, (3, IMAGE[1], 5)),
    (lm.AdaptiveMaxPool((20, None)), IMAGE, (3, 20, IMAGE[2])),
    # Widths count from the last axis; one number is for all axes of an image.
    (lm.Pad((1,)), IMAGE, (3, 9, 14)),
    (lm.Pad(((0, 1), 2)), IMAGE, (3, 10, 16)),
    (lm.Pad((1, 0, 0)), IMAGE, (5, 9, 12)),
    (lm.Crop(((0, 1), 2)), IMAGE, (3, 8, 8)),
    ids=repr,
)
def test_outputs_have_the_expected_shape(layer, example, expected):
    y = layer(lm.Input(*example))
    assert y.shape == (BATCH, *expected)
    found = predicted(layer, np.random.default_rng(0).normal(size=(2, *example)))
    assert found.shape == (2, *expected)


def test_lists_are_kept_as_tuples():
    assert lm.Conv2d(4, [3, 3], padding=[1, [0, 2]]) == lm.Conv2d(4, (3, 3), padding=(1, (0, 2)))
    assert hash(lm.MaxPool2d([2, 2])) == hash(lm.MaxPool2d((2, 2)))
    assert lm.ConvTranspose1d(4, [2]) == lm.ConvTranspose1d(4, (2,))
    assert lm.Pad([1, [0, 2]]) == lm.Pad(((1, 1), (0, 2)))
    assert lm.AdaptiveMaxPool([2, 1]) == lm.AdaptiveMaxPool((2, 1))


def test_windows_have_the_elements_at_stride_and_dilation():
    x = np.arange(1.0, 8.0)
    shown = evaluated(x, lambda x: windows(x, [0], [Window(3, 2, 2, 1, 1)]))
    assert shown.tolist() == [[0, 2, 4], [2, 4, 6], [4, 6, 0]]
    tiles = evaluated(x, lambda x: windows(x, [0], [Window(2, 2)]))
    assert tiles.tolist() == [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize("window", [Window(3, 2, 2, 1, 1), Window(2, 2), Window(3, 1, 1, 0, 2)])
def test_folding_adds_up_the_elements_of_windows(window):
    x = np.ones((2, 7, 3))
    seen = evaluated(x, lambda x: fold(windows(x, [1], [window]), [1], [window], [7]))
    expected = np.zeros(7)
    for position in range(window.count(7)):
        for element in range(window.size):
            at = position * window.stride + element * window.dilation - window.before
            if 0 <= at < 7:
                expected[at] += 1
    np.testing.assert_array_equal(seen, np.broadcast_to(expected[None, :, None], (2, 7, 3)))


def test_the_maximum_of_a_window_may_be_infinite_or_nan():
    x = np.array([[-np.inf, -np.inf, 1.0, np.inf, np.nan, 2.0]])
    found = evaluated(x, lambda x: ops.window_max(x, [Window(2, 2)]))
    np.testing.assert_array_equal(found, [[-np.inf, np.inf, np.nan]])


@pytest.mark.parametrize("size", [(2, 3), (4, None), (5, 4), (1, 1)])
def test_indices_of_adaptive_max_pooling_find_the_largest_elements(size):
    x = np.random.default_rng(0).normal(size=(3, 2, 8, 6)).astype("float32")
    image = lm.Input(2, 8, 6)
    pool = lm.AdaptiveMaxPool(size, returns="indices")
    values, indices = lm.Model(lm.Network(image, list(pool(image)))).predict(x)
    chosen = np.take_along_axis(x.reshape(3, 2, 48), indices.reshape(3, 2, -1), -1)
    np.testing.assert_array_equal(chosen.reshape(values.shape), values)
    (alone,) = lm.compile(image, lm.AdaptiveMaxPool(size)(image))(x)
    np.testing.assert_array_equal(values, alone)


BYTES, NUMBERS = np.arange(24, dtype=np.uint8).reshape(2, 1, 3, 4), np.arange(12.0)


@pytest.mark.cases(
    ("layer", "x", "expected"),
    (lm.Upsample(scale=(2, 3)), BYTES, BYTES.repeat(2, 2).repeat(3, 3)),
    (lm.Pad(1, value=255), BYTES[:1, :, :1, :1], [[[[255] * 3, [255, 0, 255], [255] * 3]]]),
    (
        lm.Pad(((-1, 1), (0, -2)), value=7),
        NUMBERS.reshape(1, 1, 3, 4),
        [[[[4, 5], [8, 9], [7, 7]]]],
    ),
)
def test_elements_are_repeated_and_removed(layer, x, expected):
    found = predicted(layer, x)
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_cropping_undoes_padding(mode):
    x, widths = normal64(2, 3, 4, 5), ((1, 3), (0, 2))
    net = lm.Sequential(lm.Input(3, 4, 5), lm.Pad(widths, mode=mode), lm.Crop(widths))
    np.testing.assert_array_equal(lm.Model(net, dtype="float64").predict(x), x)


@pytest.mark.cases(
    "layer",
    *(lm.Upsample(scale=2), lm.Upsample(scale=2, mode="bilinear")),
    lm.Upsample(scale=(3, 2), mode="bilinear", align_corners=True),
    lm.Upsample(size=(3, 7), mode="bicubic"),
    lm.Upsample(scale=(0.6, 1.7), mode="area"),
    *(lm.PixelShuffle(2), lm.PixelUnshuffle(2), lm.Crop(1)),
    *(lm.Pad(1, mode=mode) for mode in ("reflect", "replicate", "circular")),
    ids=repr,
)
def test_gradients_of_image_layers_do_not_scatter(layer, training_program):
    before = lm.Multiply()
    x = lm.Input(4, 4, 4)
    y = layer(before(x, lm.Linear(4)(x)))
    program = training_program(lm.Network(x, y), lm.MSE(), lm.SGD(0.1), 2)
    assert not [store for step in program.steps for store in stores_of(step) if store.accumulate]
