"""Layers of images: shapes, inverse layers, and the text of errors.

Their values and gradients are compared with PyTorch's in test_layers_torch.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from random_arrays import normal64

import lamina as lm
from lamina.base.shapes import BATCH
from lamina.layers.layer import Layer
from lamina.program.program import Program
from lamina.program.steps import stores_of


def predicted(layer: Layer, x: np.ndarray) -> np.ndarray:
    dtype = None if x.dtype.kind == "f" else x.dtype
    net = lm.Sequential(lm.Input(*x.shape[1:], dtype=dtype), layer)
    return lm.Model(net, dtype="float64").predict(x)


def test_nearest_repeats_elements_of_any_dtype() -> None:
    x = np.arange(24, dtype=np.uint8).reshape(2, 1, 3, 4)
    y = predicted(lm.Upsample(scale=(2, 3)), x)
    assert y.dtype == np.uint8
    np.testing.assert_array_equal(y, x.repeat(2, 2).repeat(3, 3))


def test_bilinear_upsampling_keeps_linear_images_linear() -> None:
    row = np.arange(4.0)
    x = np.broadcast_to(row, (1, 1, 3, 4)).copy()
    y = predicted(lm.Upsample(scale=3, mode="bilinear", align_corners=True), x)
    np.testing.assert_allclose(y[0, 0], np.broadcast_to(np.linspace(0, 3, 12), (9, 12)))
    y = predicted(lm.Upsample(scale=(1, 2), mode="bilinear"), x)
    np.testing.assert_allclose(y[0, 0, 0], [0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3])


def test_unshuffling_undoes_shuffling() -> None:
    x = normal64(2, 18, 4, 5)
    net = lm.Sequential(lm.Input(18, 4, 5), lm.PixelShuffle(3), lm.PixelUnshuffle(3))
    np.testing.assert_array_equal(lm.Model(net, dtype="float64").predict(x), x)


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_cropping_undoes_padding(mode: Any) -> None:
    x, widths = normal64(2, 3, 4, 5), ((1, 3), (0, 2))
    net = lm.Sequential(lm.Input(3, 4, 5), lm.Pad(widths, mode=mode), lm.Crop(widths))
    np.testing.assert_array_equal(lm.Model(net, dtype="float64").predict(x), x)


def test_padding_widths_count_from_the_last_axis_and_one_number_is_for_all_image_axes() -> None:
    image = lm.Input(3, 8, 9)
    assert lm.Pad(1)(image).shape == (BATCH, 3, 10, 11)
    assert lm.Pad((1,))(image).shape == (BATCH, 3, 8, 11)
    assert lm.Pad(((0, 1), 2))(image).shape == (BATCH, 3, 9, 13)
    assert lm.Pad((1, 0, 0))(image).shape == (BATCH, 5, 8, 9)
    assert lm.Crop(1)(image).shape == (BATCH, 3, 6, 7)
    assert lm.Crop(((0, 1), 2))(image).shape == (BATCH, 3, 7, 5)
    assert lm.Pad([1, [0, 2]]) == lm.Pad(((1, 1), (0, 2)))


def test_padding_values_have_the_dtype_of_the_image() -> None:
    y = predicted(lm.Pad(1, value=255), np.zeros((1, 1, 1, 1), np.uint8))
    assert y.dtype == np.uint8
    assert y[0, 0].tolist() == [[255] * 3, [255, 0, 255], [255] * 3]


IMAGE_LAYERS = [
    lm.Upsample(scale=2),
    lm.Upsample(scale=2, mode="bilinear"),
    lm.Upsample(scale=(3, 2), mode="bilinear", align_corners=True),
    lm.Upsample(size=(3, 7), mode="bicubic"),
    lm.Upsample(scale=(0.6, 1.7), mode="area"),
    lm.PixelShuffle(2),
    lm.PixelUnshuffle(2),
    lm.Pad(1, mode="reflect"),
    lm.Pad(1, mode="replicate"),
    lm.Pad(1, mode="circular"),
    lm.Crop(1),
]


@pytest.mark.parametrize("layer", IMAGE_LAYERS, ids=repr)
def test_gradients_of_image_layers_do_not_scatter(layer: Layer, training_program: Any) -> None:
    before = lm.Multiply()
    x = lm.Input(4, 4, 4)
    y = layer(before(x, lm.Linear(4)(x)))
    program: Program = training_program(lm.Network(x, y), lm.MSE(), lm.SGD(0.1), 2)
    assert not [store for step in program.steps for store in stores_of(step) if store.accumulate]


# Errors -------------------------------------------------------------------------------------------


def test_negative_widths_remove_elements() -> None:
    x = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    y = predicted(lm.Pad(((-1, 1), (0, -2)), value=7), x)
    np.testing.assert_array_equal(y[0, 0], [[4, 5], [8, 9], [7, 7]])
