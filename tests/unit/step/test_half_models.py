"""Narrow types in daily use: data, files, and models wholly in 16 bits."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from error_texts import error_text, refused
from training_cases import classifier, examples, network, same

import lamina as lm
from lamina.base.shapes import Array, as_dtype, converted, promote
from lamina.data import Dataset
from lamina.engines.discovery import open_engine
from lamina.errors import DataError, DTypeError, LaminaError, LaminaWarning, NonFiniteError

HALVES = ("bfloat16", "float16")
PRECISIONS = (*HALVES, "mixed-bfloat16", "mixed-float16")
HOW: dict[str, Any] = {"loss": lm.CrossEntropy(), "optimizer": lm.Adam(1e-2), "batch_size": 16}


def halved(array: Array, half: str) -> Array:
    return converted(array, as_dtype(half).numpy)


INTEGERS = ("int8", "int16", "uint16", "uint8", "int32", "int64")


def numbers(dtype: str, *shape: int) -> Any:
    low = 0 if dtype.startswith(("u", "bool")) else -100
    high = 2 if dtype == "bool" else 100
    whole = np.random.default_rng(0).integers(low, high, shape)
    return converted(whole / 7 if dtype in HALVES else whole, as_dtype(dtype).numpy)


@pytest.mark.sampled
@pytest.mark.cases(
    ("dtype", "precision"),
    *((dtype, "float32") for dtype in (*INTEGERS, *HALVES, "bool")),
    *((half, precision) for half in HALVES for precision in PRECISIONS),
)
def test_data_of_narrow_types_is_used_as_the_same_numbers(dtype, precision, engine):
    x, y, labels = numbers(dtype, 30, 4), numbers(dtype, 30, 3), np.arange(30) % 3

    def results(x, y, labels):
        model = lm.Model(network(), engine=engine, seed=1, dtype=precision)
        how: Any = {"loss": HOW["loss"], "optimizer": lm.SGD(1e-3), "batch_size": 8}
        history = model.fit((x, labels), validation=(x, labels), **how)
        scores = model.evaluate((x, y), lm.MSE())
        return model.parameters(), history.values, scores, model.predict(x).tolist()

    narrow = results(x, y, labels.astype(dtype) if dtype in INTEGERS else labels)
    expected = results(x.astype("float32"), y.astype("float32"), labels)
    assert same(narrow[0], expected[0])
    assert narrow[1:] == expected[1:]


def test_streamed_examples_in_16_bits_give_the_same_bits(opencl_name, monkeypatch):
    from lamina.engines.gpu.engine import GpuEngine
    from lamina.runtime import streaming

    x, y = examples()

    def trained():
        model = lm.Model(classifier(), engine=opencl_name, dtype="mixed-bfloat16")
        model.fit((halved(x, "bfloat16"), y), epochs=2, **HOW)
        return model.parameters()

    resident = trained()
    monkeypatch.setattr(GpuEngine, "shared", lambda *_: None)
    monkeypatch.setattr(streaming, "_RESIDENT_FRACTION", 0.0)
    monkeypatch.setattr(streaming, "NOT_ASKED_BYTES", -1)
    monkeypatch.setattr(streaming, "_CHUNK_BYTES", 2 * 16 * (2 * 20 + 8))
    for name, value in trained().items():
        assert (value == resident[name]).all()


def test_float16_is_read_from_files(tmp_path):
    h5py: Any = pytest.importorskip("h5py")
    x, y = examples()
    np.savez(tmp_path / "data.npz", x=x.astype(">f2"), y=y)
    np.save(tmp_path / "data.npy", x.astype("float16"))
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"], file["y"] = x.astype("float16"), y
    for name in ("data.npz", "data.npy", "data.h5"):
        inputs = lm.data.load(tmp_path / name).inputs
        assert inputs.dtype == np.dtype("float16")
        assert (inputs == x.astype("float16")).all()


def test_bfloat16_in_a_file_of_numpy_is_refused_with_what_to_save(tmp_path):
    np.save(tmp_path / "data.npy", np.ones((3, 4), ml_dtypes.bfloat16))
    error = refused(DTypeError, lm.data.load, tmp_path / "data.npy")
    assert error.problem == "data.npy does not hold plain numbers"
    assert error.advice == (
        "NumPy's files do not keep bfloat16: save array.astype('float32') instead."
    )


@pytest.mark.parametrize("half", HALVES)
def test_data_in_float32_is_rounded_for_a_model_in_16_bits(half, engine):
    x, y = examples(16)
    losses: list[float] = []
    other = halved(x, "float16" if half == "bfloat16" else "bfloat16")
    for arriving in (x, halved(x, half), x.tolist(), other):
        model = lm.Model(classifier(), engine=engine, dtype=half)
        predictions = model.predict(arriving)
        assert predictions.dtype == as_dtype(half).numpy
        assert (predictions == model.predict(halved(np.asarray(arriving, "float32"), half))).all()
        with model.training(HOW["loss"], HOW["optimizer"], 16) as training:
            losses.append(float(training.step(arriving, y)))
    assert losses[0] == losses[1] == losses[2]


@pytest.mark.sampled
@pytest.mark.parametrize("half", HALVES)
def test_a_model_in_16_bits_learns_as_in_float32(half, engine):
    losses: dict[str, list[float]] = {}
    for dtype in ("float32", half):
        model = lm.Model(classifier(), engine=engine, dtype=dtype)
        losses[dtype] = model.fit(examples(), epochs=6, **HOW)["loss"]
    assert losses[half][-1] < losses[half][0] / 2
    assert np.allclose(losses[half], losses["float32"], rtol=0.03)


def test_float64_is_converted_for_a_model_in_16_bits_with_a_warning():
    x, _ = examples()
    model = lm.Model(classifier(), dtype="bfloat16")
    with pytest.warns(LaminaWarning, match="input 0 is converted from float64 to bfloat16"):
        found = model.predict(x.astype("float64"))
    np.testing.assert_array_equal(found, model.predict(x))


def test_numbers_beyond_the_range_of_float16_are_refused_and_infinities_stay():
    x, y = examples()
    x[3, 4] = -1e5
    model = lm.Model(classifier(), dtype="float16")
    before = model.parameters()
    for call in (model.predict, lambda x: model.fit((x.tolist(), y), **HOW)):
        assert error_text(DataError, call, x) == (
            "input 0 has numbers that float16 cannot hold\n"
            "  expected  at most 65,504\n"
            "  found     100,000\n"
            "  Scale them, or make the model with another dtype."
        )
    error = refused(DataError, model.set_parameters, {"1.bias": np.full(32, 1e5, "float32")})
    assert error.problem == "parameter '1.bias' has numbers that float16 cannot hold"
    assert same(model.parameters(), before)
    x[3, 4] = np.inf
    assert np.isfinite(model.predict(x[2:5])).all(axis=1).tolist() == [True, False, True]


@pytest.mark.parametrize("half", HALVES)
def test_parameters_in_float32_are_rounded_for_a_model_in_16_bits(half):
    values = lm.Model(network(), seed=1).parameters()
    model = lm.Model(network(), dtype=half)
    model.set_parameters(values)
    for name, value in model.parameters().items():
        assert (value == halved(values[name], half)).all()


@pytest.mark.parametrize("half", HALVES)
def test_metrics_of_a_model_in_16_bits_count_every_example(half):
    """8 or 11 bits do not hold the sums: 1001 is not a bfloat16, and 4003 is not a float16."""
    x, _ = examples(4003)
    model = lm.Model(classifier(), dtype=half)
    scores = model.predict(x).astype("float32")
    y = scores.argmax(1)
    y[::4] = (y[::4] + 1) % 5
    measured = model.evaluate(
        (x, y), loss=lm.CrossEntropy(), metrics=[lm.Accuracy()], batch_size=4003
    )
    assert measured["accuracy"] == (scores.argmax(1) == y).mean()
    exact = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    assert measured["loss"] == pytest.approx(-exact[np.arange(4003), y].mean(), rel=1e-5)


def test_batches_are_counted_in_integers():
    """In floats of 16 bits 256 + 1 is 256, and the mean of all batches would stand still."""
    x = np.repeat(np.linspace(-4, 4, 600, dtype="float32"), 2)[:, None]
    model = lm.Model(lm.Sequential(lm.Input(1), lm.BatchNorm(momentum=None)), dtype="bfloat16")
    model.fit((x, x), epochs=1, batch_size=2, shuffle=False, loss=lm.MSE(), optimizer=lm.SGD(0.0))
    states = model.states()
    assert (states["1.batches"], states["1.batches"].dtype) == (600, "int64")


def test_optimizers_divide_by_an_epsilon_that_is_zero_in_float16():
    """1e-8 is zero in float16, but the update is computed in float32."""
    model = lm.Model(lm.Sequential(lm.Input(2), lm.Linear(1)), dtype="float16")
    before = model.parameters()
    x, y = np.zeros((4, 2), "float32"), np.ones((4, 1), "float32")
    with model.training(lm.MSE(), lm.Adam(0.5), 4) as training:
        training.step(x, y)
    # A weight of an input that is always zero has no gradient.
    assert (model.parameters()["1.weight"] == before["1.weight"]).all()
    assert float(model.parameters()["1.bias"][0]) == pytest.approx(before["1.bias"][0] + 0.5, 0.01)


def test_values_that_are_not_finite_in_float16_are_reported_with_the_precision_to_take():
    x, y = examples()
    how = {**HOW, "optimizer": lm.SGD(1e4)}
    for dtype, advice in (
        ("float16", "In float16, squares of small gradients become zero: train with dtype='mixed-"),
        ("mixed-float16", "float16 holds numbers up to 65,504, and bfloat16"),
    ):
        model = lm.Model(classifier(), dtype=dtype)
        assert refused(NonFiniteError, model.fit, (x, y), epochs=5, **how).advice.startswith(advice)


@pytest.mark.parametrize("half", HALVES)
def test_a_file_is_loaded_in_another_precision(half, engine, tmp_path):
    model = lm.Model(network(), seed=2)
    x = np.random.default_rng(1).standard_normal((12, 4), "float32")
    model.save(tmp_path / "model.safetensors")
    loaded = lm.load(tmp_path / "model.safetensors", engine, dtype=half)
    for parameter, value in loaded.parameters().items():
        assert (value == halved(model.parameters()[parameter], half)).all()
    exact, bound = model.predict(x), 2.0**-6 if half == "bfloat16" else 2.0**-9
    assert np.abs(loaded.predict(x).astype("float32") - exact).max() < bound * np.abs(exact).max()
    mixed = lm.load(tmp_path / "model.safetensors", engine, dtype=f"mixed-{half}")
    for parameter, value in mixed.parameters().items():
        assert (value == model.parameters()[parameter]).all()
    loaded.save(tmp_path / "half.safetensors")
    again = lm.load(tmp_path / "half.safetensors", engine)
    assert (again.predict(x) == loaded.predict(x)).all()
    wide = lm.load(tmp_path / "half.safetensors", engine, dtype="float32").parameters()
    assert all((wide[n] == v.astype("float32")).all() for n, v in loaded.parameters().items())


def test_a_file_in_16_bits_takes_half_the_bytes_and_refuses_larger_numbers(tmp_path):
    sizes: list[int] = []
    for dtype in ("float32", "bfloat16"):
        model = lm.Model(lm.Sequential(lm.Input(200), lm.Linear(300)), dtype=dtype)
        model.set_parameters({"1.bias": np.full(300, 7e4, "float32")})
        model.save(tmp_path / dtype)
        sizes.append((tmp_path / dtype).stat().st_size)
        error = refused(DataError, lm.load, tmp_path / dtype, dtype="float16")
        assert error.problem == "parameter '1.bias' has numbers that float16 cannot hold"
    assert sizes[0] - sizes[1] == 2 * 300 * 201


@pytest.mark.cases(
    ("spelling", "precision"),
    ("bf16", "bfloat16"),
    ("fp16", "float16"),
    ("torch.float16", "float16"),
    ("mixed_bfloat16", "mixed-bfloat16"),
    ("mixd", "mixed"),
)
def test_a_precision_of_another_spelling_is_refused_with_the_right_one(spelling, precision):
    for call in (
        lambda: lm.Model(network(), dtype=spelling),
        lambda: network().plan(8, dtype=spelling),
        lambda: lm.load("nowhere", dtype=spelling),
    ):
        assert refused(DTypeError, call).advice == f"Write dtype={precision!r}."


def test_moving_averages_of_a_mixed_training_are_float32():
    model = lm.Model(classifier(), dtype="mixed-bfloat16")
    history = model.fit(examples(), **{**HOW, "optimizer": lm.EMA(lm.Adam(1e-2))})
    assert {value.dtype.name for value in history.averaged_parameters.values()} == {"float32"}


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_parameter_that_is_not_finite_is_noticed_on_every_engine(half, value, engine):
    opened = open_engine(engine)
    largest = np.array([65504.0, -65280.0, 0.0, 2.0**-24], "float32")
    memory = opened.allocate((4,), as_dtype(half).numpy)
    memory.write(halved(largest if half == "float16" else largest * 2.0**90, half))
    assert opened.finite_check([memory])()
    memory.write(halved(np.array([1.0, 2.0, value, 3.0], "float32"), half))
    assert not opened.finite_check([memory])()
    memory.release()


@pytest.mark.parametrize("dtype", INTEGERS)
def test_indices_of_every_integer_type(engine, dtype):
    net = lm.Sequential(lm.Input(6, dtype=dtype), lm.Embedding(100, 3))
    model = lm.Model(net, engine=engine, seed=1)
    x = np.abs(numbers(dtype, 5, 6)) % 100
    table = model.parameters()["1.weight"]
    np.testing.assert_array_equal(model.predict(x), table[x])
    x[2, 1] = 100
    with pytest.raises(LaminaError, match="out of range"):
        model.predict(x)


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint16"])
def test_a_training_is_compiled_for_the_type_of_its_data(dtype, model):
    sample = Dataset(numbers(dtype, 8, 4), np.zeros(8, "uint16"))
    with model.training(lm.CrossEntropy(), lm.SGD(0.1), 8, data=sample) as training:
        buffers = training.bill.program.of_kind("input")
        dtypes = {buffer.name: buffer.dtype.name for buffer in buffers}
        assert dtypes == {"input0": dtype, "target0": "uint16"}
        other = numbers("float32", 8, 4), np.zeros(8, "uint16")
        assert error_text(DTypeError, training.step, *other) == (
            "input 0 has another dtype than the program was compiled for\n"
            f"  expected  {dtype}\n"
            "  found     float32\n"
            f"  Convert it: array.astype({dtype!r})."
        )


def test_constants_of_narrow_types_are_saved(tmp_path):
    x = lm.Input(4)
    for dtype in ("int8", "int16", "uint16"):
        shift = lm.ops.cast(lm.ops.constant(numbers(dtype, 4)), "float32")
        model = lm.Model(lm.Network([x], lm.Linear(2)(x + shift)))
        model.save(tmp_path / "a")
        data = numbers("float32", 3, 4)
        np.testing.assert_array_equal(lm.load(tmp_path / "a").predict(data), model.predict(data))


def test_integers_beyond_the_type_of_an_input_are_refused():
    model = lm.Model(lm.Sequential(lm.Input(2, dtype="uint8"), lm.Rescale(1.0)))
    expected = model.predict(np.array([[1, 200]], np.uint8))
    assert (model.predict(np.array([[1, 200]])) == expected).all()
    targets = np.zeros((1, 2), "float32")
    for call in (model.predict, lambda rows: model.evaluate((rows, targets), lm.MSE())):
        for number in (300, -3):
            assert error_text(DataError, call, np.array([[1, number]])) == (
                "in input 0: input 0 has numbers that uint8 cannot hold\n"
                "  expected  0 to 255\n"
                f"  found     {number}\n"
                "  Scale them, or give the input another dtype: lm.Input(..., dtype='int64')."
            )


def test_integers_are_promoted_as_in_numpy():
    for left in INTEGERS:
        for right in INTEGERS:
            found = promote(as_dtype(left), as_dtype(right))
            assert found.numpy == np.promote_types(left, right)
