"""Layers that change training images at random: values by NumPy from the same random numbers.

The oracle runs with seed 1 and step 2, and each draw of a layer has the next stream.
"""

import math

import numpy as np
import pytest
from layer_values import run
from random_arrays import normal64

import lamina as lm
from lamina import ops
from lamina.base.shapes import BATCH, int64
from lamina.graph import Graph, constant, evaluate

LAYERS = [
    lm.RandomFlip(probability=1.0),
    lm.RandomShift(2),
    lm.RandomErasing(probability=1.0, area=(0.2, 0.3)),
    lm.ColourJitter(brightness=0.3, contrast=0.3, saturation=0.3, hue=0.3),
    lm.RandomGreyscale(probability=1.0),
    lm.RandomAffine(degrees=10, shift=0.1, scale=(0.9, 1.1), shear=5),
    lm.RandomRotation(10),
    lm.Mixup(),
    lm.CutMix(alpha=8.0),
]
IMAGES = np.random.default_rng(0).random((12, 3, 7, 6))


def drawn(shape, stream, low=0.0, high=1.0):
    """The numbers that a scope draws, in float32."""
    keys = (constant(1, int64), constant(2, int64))
    numbers = ops.uniform(shape, *keys, stream=stream)
    found, _ = evaluate(Graph((), (("y", numbers),)), {})
    return (found["y"] * np.float32(high - low) + np.float32(low)).astype(np.float32)


def below(count, stream, batch=12):
    return (drawn((batch,), stream) * np.float32(count)).astype(int)


def chosen(probability, stream):
    return drawn((len(IMAGES),), stream) < probability


@pytest.mark.parametrize("layer", LAYERS, ids=repr)
def test_nothing_changes_in_inference(layer):
    np.testing.assert_array_equal(run(layer, IMAGES), IMAGES)
    assert not np.array_equal(run(layer, IMAGES, training=True), IMAGES)


GENTLE = [
    *(lm.RandomFlip(probability=0.0), lm.RandomShift(0), lm.RandomErasing(probability=0.0)),
    *(lm.RandomGreyscale(probability=0.0), lm.ColourJitter(), lm.RandomAffine()),
    # No rectangle is smaller than the image.
    lm.RandomErasing(probability=1.0, area=(1.0, 1.0), ratio=(1.0, 1.0)),
]


@pytest.mark.parametrize("layer", GENTLE, ids=repr)
def test_without_a_change_training_is_the_identity(layer):
    x, rounding = IMAGES[:, :, :6], 1e-6 * isinstance(layer, lm.RandomAffine)
    np.testing.assert_allclose(run(layer, x, training=True), x, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("axis", [-1, -2, 1])
@pytest.mark.parametrize("dtype", ["float64", "uint8", "int8"])
def test_flips_reverse_the_chosen_examples(axis, dtype):
    x = (IMAGES * 100).astype(dtype)
    y = run(lm.RandomFlip(axis=axis, probability=0.4), x, training=True)
    which = chosen(0.4, 0).reshape(-1, 1, 1, 1)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, np.where(which, np.flip(x, axis), x))


@pytest.mark.parametrize("dtype", ["float64", "uint8"])
def test_crops_take_a_part_at_a_random_position(dtype):
    x = (IMAGES * 200).astype(dtype)
    y = run(lm.RandomCrop((5, 6), padding=((1, 2), 1), value=7.0), x, training=True)
    wide = np.pad(x, ((0, 0), (0, 0), (1, 2), (1, 1)), constant_values=7)
    rows, columns = below(10 - 5 + 1, 0), below(8 - 6 + 1, 1)
    for example, (row, column) in enumerate(zip(rows, columns, strict=True)):
        part = wide[example, :, row : row + 5, column : column + 6]
        np.testing.assert_array_equal(y[example], part)


def test_crops_of_signals_and_volumes():
    signal, volume = normal64(4, 2, 9), normal64(4, 2, 3, 4, 5)
    y = run(lm.RandomCrop(4), signal, training=True)
    for example, start in enumerate(below(6, 0, 4)):
        np.testing.assert_array_equal(y[example], signal[example, :, start : start + 4])
    assert run(lm.RandomCrop((2, 3, 4)), volume, training=True).shape == (4, 2, 2, 3, 4)


def test_a_crop_is_the_centre_in_inference():
    np.testing.assert_array_equal(run(lm.RandomCrop((4, 4)), IMAGES), IMAGES[:, :, 1:5, 1:5])
    np.testing.assert_array_equal(run(lm.RandomCrop((7, 6), padding=3), IMAGES), IMAGES)
    assert lm.RandomCrop(9, padding=2)(lm.Input(3, 7, 6)).shape == (BATCH, 3, 9, 9)


@pytest.mark.parametrize(
    ("mode", "numpys"),
    [("constant", "constant"), ("replicate", "edge"), ("reflect", "reflect"), ("circular", "wrap")],
)
def test_shifts_move_by_whole_pixels(mode, numpys):
    y = run(lm.RandomShift((2, 1), mode=mode), IMAGES, training=True)
    wide = np.pad(IMAGES, ((0, 0), (0, 0), (2, 2), (1, 1)), numpys)
    for example, (row, column) in enumerate(zip(below(5, 0), below(3, 1), strict=True)):
        np.testing.assert_array_equal(
            y[example], wide[example, :, row : row + 7, column : column + 6]
        )


@pytest.mark.parametrize("dtype", ["float64", "uint8"])
def test_erasing_replaces_the_first_rectangle_that_is_smaller(dtype):
    x = (IMAGES * 200).astype(dtype)
    layer = lm.RandomErasing(probability=0.7, area=(0.1, 0.9), ratio=(0.3, 3.0), value=5.0)
    y = run(layer, x, training=True)
    batch, (height, width) = len(x), x.shape[2:]
    area = drawn((batch, 10), 0, 0.1 * height * width, 0.9 * height * width)
    ratio = np.exp(drawn((batch, 10), 1, math.log(0.3), math.log(3.0)))
    heights, widths = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
    smaller = (heights < height) & (widths < width)
    which, starts = chosen(0.7, 2), (drawn((batch,), 3), drawn((batch,), 4))
    expected, later = x.copy(), 0
    for example in np.flatnonzero(which & smaller.any(1)):
        first = smaller[example].argmax()
        later += first > 0
        h, w = int(heights[example, first]), int(widths[example, first])
        row, column = (
            int(starts[0][example] * (height - h + 1)),
            int(starts[1][example] * (width - w + 1)),
        )
        expected[example, :, row : row + h, column : column + w] = 5
    assert later > 0
    assert not which.all()
    np.testing.assert_array_equal(y, expected)


def factors(most, stream):
    low = max(0.0, 1 - most)
    return drawn((len(IMAGES),), stream, low, 1 + most).astype(float).reshape(-1, 1, 1, 1)


def grey(x):
    return 0.2989 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]


def test_brightness_contrast_and_saturation_by_their_formulas():
    y = run(lm.ColourJitter(brightness=0.5, contrast=0.4, saturation=1.5), IMAGES, training=True)
    bright = np.clip(factors(0.5, 0) * IMAGES, 0, 1)
    f = factors(0.4, 1)
    contrast = np.clip(f * bright + (1 - f) * grey(bright).mean((1, 2, 3), keepdims=True), 0, 1)
    f = factors(1.5, 2)
    expected = np.clip(f * contrast + (1 - f) * grey(contrast), 0, 1)
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)


def test_grey_images_have_contrast_and_the_range_of_values_is_an_option():
    x = IMAGES[:, :1] * 255
    y = run(lm.ColourJitter(contrast=0.4, saturation=0.5, hue=0.5, high=255.0), x, training=True)
    f = factors(0.4, 0)
    expected = np.clip(f * x + (1 - f) * x.mean((1, 2, 3), keepdims=True), 0, 255)
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-4)
    assert y.max() == 255


def test_hues_move_by_a_random_distance():
    import colorsys

    y = run(lm.ColourJitter(hue=0.3), IMAGES, training=True)
    distances = drawn((len(IMAGES),), 0, -0.3, 0.3).astype(float)
    for example, distance in enumerate(distances):
        for pixel, jittered in zip(
            IMAGES[example].reshape(3, -1).T, y[example].reshape(3, -1).T, strict=True
        ):
            hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
            expected = colorsys.hsv_to_rgb((hue + distance) % 1, saturation, value)
            np.testing.assert_allclose(jittered, expected, atol=1e-6)
    grey = np.broadcast_to(IMAGES[:, :1], IMAGES.shape).copy()
    np.testing.assert_array_equal(run(lm.ColourJitter(hue=0.5), grey, training=True), grey)


def test_some_images_become_grey():
    y = run(lm.RandomGreyscale(probability=0.4), IMAGES, training=True)
    which = chosen(0.4, 0).reshape(-1, 1, 1, 1)
    np.testing.assert_allclose(y, np.where(which, grey(IMAGES), IMAGES), rtol=1e-12)
    assert 0 < which.sum() < len(IMAGES)


def read_nearest(image, rows, columns):
    """Pixels at positions from the centre, zero outside."""
    height, width = image.shape[-2:]
    rows, columns = (
        np.rint(at + (extent - 1) / 2).astype(int)
        for at, extent in ((rows, height), (columns, width))
    )
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    pixels = image[:, rows.clip(0, height - 1), columns.clip(0, width - 1)]
    return np.where(inside, pixels, 0)


def test_affine_maps_shear_scale_rotate_and_shift_about_the_centre():
    layer = lm.RandomAffine(degrees=40, shift=0.2, scale=(0.6, 1.5), shear=20, mode="nearest")
    y = run(layer, IMAGES, training=True)
    batch, (height, width) = len(IMAGES), IMAGES.shape[2:]
    options = [(math.radians(40),), (0.6, 1.5), (math.radians(20),), (0.2,), (0.2,)]
    angle, factor, slant, right, down = (
        drawn((batch,), stream, *(ends if len(ends) == 2 else (-ends[0], *ends))).astype(float)
        for stream, ends in enumerate(options)
    )
    rows, columns = np.indices((height, width))
    rows, columns = rows - (height - 1) / 2, columns - (width - 1) / 2
    for n in range(batch):
        forwards = np.array(
            [[np.cos(angle[n]), -np.sin(angle[n])], [np.sin(angle[n]), np.cos(angle[n])]]
        ) @ (factor[n] * np.array([[1, np.tan(slant[n])], [0, 1]]))
        moved = [columns - right[n] * width, rows - down[n] * height]
        across, along = np.tensordot(np.linalg.inv(forwards), moved, 1)
        np.testing.assert_array_equal(y[n], read_nearest(IMAGES[n], along, across))


def test_a_rotation_is_the_affine_map_without_the_rest():
    y = run(lm.RandomRotation(25, mode="bicubic", padding="border"), IMAGES, training=True)
    same = lm.RandomAffine(degrees=25, mode="bicubic", padding="border")
    np.testing.assert_array_equal(y, run(same, IMAGES, training=True))
