"""Data of narrow types travels as it is, and is converted on the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_texts import error_text
from fit_cases import same
from model_cases import network

import lamina as lm
from lamina.base.shapes import as_dtype, promote
from lamina.data import Dataset
from lamina.errors import DataError, DTypeError, LaminaError

INTEGERS = ("int8", "int16", "uint16", "uint8", "int32", "int64")
TYPES = (*INTEGERS, "float16", "bool")


def numbers(dtype: str, *shape: int) -> Any:
    low = 0 if dtype.startswith(("u", "b")) else -100
    high = 2 if dtype == "bool" else 100
    return np.random.default_rng(0).integers(low, high, shape).astype(dtype)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", TYPES)
def test_inputs_are_converted_on_the_device(engine: str, dtype: str) -> None:
    x, y = numbers(dtype, 30, 4), np.arange(30) % 3

    def trained(x: Any) -> tuple[dict[str, Any], Any]:
        model = lm.Model(network(), engine=engine, seed=1)
        model.fit(
            (x, y), loss=lm.CrossEntropy(), optimizer=lm.SGD(0.01), batch_size=8, progress=False
        )
        return model.parameters(), model.predict(x)

    (narrow, scores), (wide, expected) = trained(x), trained(x.astype("float32"))
    assert same(narrow, wide)
    np.testing.assert_array_equal(scores, expected)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_class_numbers_of_every_integer_type(engine: str, dtype: str) -> None:
    x, y = numbers("float32", 30, 4), np.arange(30) % 3
    model = lm.Model(network(), engine=engine, seed=1)
    expected = model.evaluate((x, y), lm.CrossEntropy(), [lm.Accuracy()])
    assert model.evaluate((x, y.astype(dtype)), lm.CrossEntropy(), [lm.Accuracy()]) == expected


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", TYPES)
def test_numbers_as_targets(engine: str, dtype: str) -> None:
    x, y = numbers("float32", 30, 4), numbers(dtype, 30, 3)
    model = lm.Model(network(), engine=engine, seed=1)
    expected = model.evaluate((x, y.astype("float32")), lm.MSE())
    assert model.evaluate((x, y), lm.MSE()) == expected


@pytest.mark.parametrize("dtype", INTEGERS)
def test_indices_of_every_integer_type(engine: str, dtype: str) -> None:
    net = lm.Sequential(lm.Input(6, dtype=dtype), lm.Embedding(100, 3))
    model = lm.Model(net, engine=engine, seed=1)
    x = np.abs(numbers(dtype, 5, 6)) % 100
    table = model.parameters()["1.weight"]
    np.testing.assert_array_equal(model.predict(x), table[x])
    x[2, 1] = 100
    with pytest.raises(LaminaError, match="out of range"):
        model.predict(x)


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint16"])
def test_a_training_is_compiled_for_the_type_of_its_data(dtype: str) -> None:
    sample = Dataset(numbers(dtype, 8, 4), np.zeros(8, "uint16"))
    model = lm.Model(network())
    with model.training(lm.CrossEntropy(), lm.SGD(0.1), 8, data=sample) as training:
        buffers = {
            buffer.name: buffer.dtype.name for buffer in training.bill.program.of_kind("input")
        }
        assert buffers == {"input0": dtype, "target0": "uint16"}
        other = numbers("float32", 8, 4), np.zeros(8, "uint16")
        assert error_text(DTypeError, lambda: training.step(*other)) == (
            "input 0 has another dtype than the program was compiled for\n"
            f"  expected  {dtype}\n"
            "  found     float32\n"
            f"  Convert it: array.astype({dtype!r})."
        )


def test_constants_of_narrow_types_are_saved(tmp_path: Path) -> None:
    x = lm.Input(4)
    for dtype in ("int8", "int16", "uint16"):
        shift = lm.ops.cast(lm.ops.constant(numbers(dtype, 4)), "float32")
        model = lm.Model(lm.Network([x], lm.Linear(2)(x + shift)))
        model.save(tmp_path / "a")
        given = numbers("float32", 3, 4)
        np.testing.assert_array_equal(lm.load(tmp_path / "a").predict(given), model.predict(given))


def test_integers_beyond_the_type_of_an_input_are_refused() -> None:
    model = lm.Model(lm.Sequential(lm.Input(2, dtype="uint8"), lm.Rescale(1.0)))
    expected = model.predict(np.array([[1, 200]], np.uint8))
    assert (model.predict(np.array([[1, 200]])) == expected).all()
    targets = np.zeros((1, 2), "float32")
    for call in (model.predict, lambda rows: model.evaluate((rows, targets), lm.MSE())):
        for number in (300, -3):
            text = error_text(DataError, call, np.array([[1, number]]))
            assert text == (
                "in input 0: input 0 has numbers that uint8 cannot hold\n"
                "  expected  0 to 255\n"
                f"  found     {number}\n"
                "  Scale them, or give the input another dtype: lm.Input(..., dtype='int64')."
            )


def test_integers_are_promoted_as_in_numpy() -> None:
    for left in INTEGERS:
        for right in INTEGERS:
            found = promote(as_dtype(left), as_dtype(right))
            assert found.numpy == np.promote_types(left, right)
