"""Layers of images: shapes, inverse layers, and the text of errors.

Their values and gradients are compared with PyTorch's in test_layers_torch.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_arrays import normal64

import lamina as lm
from lamina.base.shapes import BATCH
from lamina.errors import DefinitionError, DTypeError, LaminaError, ShapeError
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


@pytest.mark.parametrize("layer", IMAGE_LAYERS, ids=repr)
def test_a_saved_model_has_the_same_layer(layer: Layer, tmp_path: Path) -> None:
    model = lm.Model(lm.Sequential(lm.Input(4, 4, 4), layer))
    model.save(tmp_path / "model.safetensors")
    again = lm.load(tmp_path / "model.safetensors")
    assert again.network.nodes[-1].attributes["layer"] == layer


# Errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (lm.Upsample(scale=2), (3,), "Upsample in mode 'nearest' takes images"),
        (lm.Upsample(scale=2, mode="bilinear"), (3, 4), "Upsample in mode 'bilinear' takes images"),
        (lm.Upsample(scale=(2, 2, 2)), (3, 4, 4), "a wrong number of factors or sizes for this"),
        (lm.Upsample(size=(2, 2)), (3, 4), "a wrong number of factors or sizes for this"),
        (lm.Upsample(scale=0.2), (3, 4, 4), "the result of Upsample would be empty or too large"),
        (
            lm.Upsample(size=3, mode="linear"),
            (3, 4, 4),
            "Upsample in mode 'linear' takes sequences",
        ),
        (lm.PixelShuffle(2), (6, 3, 3), "expected  a multiple of 4 channels"),
        (lm.PixelShuffle(2), (4, 3), "PixelShuffle takes images"),
        (lm.PixelUnshuffle(2), (1, 4, 5), "expected  multiples of 2"),
        (lm.PixelUnshuffle(2), (1, 4), "PixelUnshuffle takes images"),
        (lm.Pad(1), (5,), "Pad has widths for more axes than the tensor has"),
        (lm.Pad((1, 1)), (5,), "expected  2 axes after the batch"),
        (
            lm.Pad(3, mode="reflect"),
            (1, 3, 8),
            "expected  at most 2 on each side for mode 'reflect'",
        ),
        (lm.Pad(4, mode="circular"), (1, 3, 8), "axis 2 has too few elements for this padding"),
        (lm.Crop(2), (1, 4, 8), "a cropped axis would be empty"),
        (lm.Crop((1, 1)), (5,), "Crop has widths for more axes than the tensor has"),
    ],
    ids=str,
)
def test_shapes_that_do_not_fit_are_refused(
    layer: Layer, shape: tuple[int, ...], expected: str
) -> None:
    with pytest.raises(ShapeError) as error:
        layer(lm.Input(*shape))
    assert str(error.value).startswith(f"in net/1:{type(layer).__name__} (test_layers_image.py:")
    assert expected in str(error.value)


def test_bilinear_upsampling_refuses_integers() -> None:
    with pytest.raises(DTypeError, match="Upsample takes floats"):
        lm.Upsample(scale=2, mode="bilinear")(lm.Input(3, 4, 4, dtype="uint8"))


def test_negative_widths_remove_elements() -> None:
    x = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    y = predicted(lm.Pad(((-1, 1), (0, -2)), value=7), x)
    np.testing.assert_array_equal(y[0, 0], [[4, 5], [8, 9], [7, 7]])


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: lm.Upsample(scale=0), "scale must be a number above 0"),
        (lambda: lm.Upsample(scale=(2, 0)), "scale[1] must be a number above 0"),
        (lambda: lm.Upsample(size=(2, 0)), "size[1] must be a whole number of at least 1"),
        (lambda: lm.Upsample(), "Upsample takes a scale or a size"),
        (lambda: lm.Upsample(scale=2, size=4), "Upsample takes a scale or a size"),
        (lambda: lm.Upsample(scale=2, mode="cubic"), "mode must be one of 'nearest', "),
        (lambda: lm.Upsample(scale=2, align_corners=True), "applies to modes that blend"),
        (
            lambda: lm.Upsample(scale=2, mode="bilinear", align_corners=1),
            "align_corners must be True or False",
        ),
        (lambda: lm.PixelShuffle(0), "factor must be a whole number of at least 1"),
        (lambda: lm.PixelUnshuffle("2"), "factor must be a whole number of at least 1"),
        (lambda: lm.Pad(-1, mode="reflect"), "negative widths apply to mode="),
        (lambda: lm.Pad(((0, 1), (-1, 0)), mode="circular"), "Remove elements with Crop"),
        (lambda: lm.Pad(1.5), "widths must be whole numbers, two for each axis"),
        (lambda: lm.Crop(-1), "widths must be whole numbers of at least 0"),
        (lambda: lm.Pad(()), "widths must be whole numbers, two for each axis"),
        (lambda: lm.Pad(((1, 2, 3),)), "expected  widths=((1, 1), (0, 2))"),
        (lambda: lm.Pad(1, mode="edge"), "mode must be one of '"),
        (lambda: lm.Pad(1, value=float("nan")), "value must be a finite number"),
        (lambda: lm.Crop(1.0), "expected  widths=((1, 1), (0, 2))"),
    ],
)
def test_hyper_parameters_are_checked(make: Any, expected: str) -> None:
    with pytest.raises(LaminaError) as error:
        make()
    assert isinstance(error.value, DefinitionError)
    assert expected in str(error.value)
