"""Embeddings and positions: initial tables, bags, and indices out of range."""

import numpy as np
import pytest
from error_texts import error_text

import lamina as lm
from lamina.errors import DataError

LOSS, SGD = lm.CrossEntropy(), lm.SGD(0.5)
HOW = {"loss": LOSS, "optimizer": SGD}


def sequence_model(padding=None, count=7):
    layers = lm.Embedding(count, 3, padding=padding), lm.Flatten(), lm.Linear(2)
    return lm.Model(lm.Sequential(lm.Input(4, dtype="int64"), *layers), seed=3)


def sequences(count=20, below=7):
    generator = np.random.default_rng(0)
    return generator.integers(0, below, (count, 4)), generator.integers(0, 2, count)


@pytest.mark.parametrize("layer", [lm.Embedding, lm.EmbeddingBag])
def test_rows_above_a_norm_are_scaled_to_it(layer):
    model = lm.Model(lm.Sequential(lm.Input(1, dtype="int64"), layer(3, 2, max_norm=2.0)))
    table = np.array([[3, 4], [0, 1], [-2, 0]], "float32")
    model.set_parameters({"1.weight": table})
    rows = model.predict(np.arange(3)[:, None]).reshape(3, 2)
    np.testing.assert_allclose(rows, [[1.2, 1.6], [0, 1], [-2, 0]], rtol=1e-6)
    np.testing.assert_array_equal(model.parameters()["1.weight"], table)


def test_rows_start_with_the_initializer_but_for_the_padding():
    def table(*sizes, **options):
        net = lm.Sequential(lm.Input(4, dtype="int64"), lm.Embedding(*sizes, **options))
        return lm.Model(net).parameters()["1.weight"]

    weight = table(500, 40, padding=2)
    assert weight.shape == (500, 40)
    assert not weight[2].any()
    rest = np.delete(weight, 2, 0)
    assert abs(rest.mean()) < 0.03
    assert rest.std() == pytest.approx(1, abs=0.03)
    halves = table(3, 2, padding=0, weight_init=lm.init.Constant(0.5))
    assert halves.tolist() == [[0, 0], [0.5, 0.5], [0.5, 0.5]]


def test_the_row_of_the_padding_is_never_trained_and_the_others_are():
    model = sequence_model(padding=5)
    model.set_parameters({"1.weight": model.parameters()["1.weight"] + 1})
    before = model.parameters()["1.weight"]
    model.fit(sequences(), epochs=2, **HOW)
    changed = (model.parameters()["1.weight"] != before).any(axis=1)
    assert changed.tolist() == [True] * 5 + [False, True]


BAGS = np.array([[1, 2, 3], [4, 4, 0], [5, 1, 2]])
COUNTED = np.array([[True, True, False], [True, True, True], [False, False, False]])


def bag_of(mode, second, **options):
    x = lm.Input(3, dtype="int64")
    layer = lm.EmbeddingBag(6, 4, mode=mode, **options)
    return lm.Model(lm.Network([x, second], layer(x, second)), seed=0)


@pytest.mark.parametrize("mode", ["mean", "sum", "max"])
@pytest.mark.parametrize("padding", [None, 2])
def test_a_mask_chooses_the_indices_that_count(mode, padding):
    model = bag_of(mode, lm.Input(3, dtype="bool"), padding=padding)
    (table,) = model.parameters().values()
    results = model.predict((BAGS, COUNTED))
    for row, bag, counted in zip(results, BAGS, COUNTED, strict=True):
        rows = table[bag[counted & (bag != padding)]]
        expected = getattr(np, mode)(rows, 0) if len(rows) else np.zeros(4)
        np.testing.assert_allclose(row, expected, rtol=1e-5, atol=1e-6)


USES = {
    "predict": lambda model, x, y: model.predict(x),
    "evaluate": lambda model, x, y: model.evaluate((x, y), loss=LOSS),
    "fit": lambda model, x, y: model.fit((x, y), **HOW),
    "a validation": lambda model, x, y: model.fit((x * 0, y), validation=(x, y), **HOW),
    "a step": lambda model, x, y: model.training(LOSS, SGD, 20).step(x, y),
    "a step on int32": lambda model, x, y: model.training(LOSS, SGD, 20).step(x.astype("i4"), y),
    "a run": lambda model, x, y: model.training(LOSS, SGD, 4).run((x, y), steps=3),
}


@pytest.mark.parametrize("wrong", [7, -1])
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_indices_out_of_range_are_refused_before_anything_changes(use, wrong):
    model = sequence_model()
    before = model.parameters()
    x, y = sequences()
    x[11, 2] = wrong
    assert "indices out of range" in error_text(DataError, lambda: use(model, x, y))
    for name, value in model.parameters().items():
        np.testing.assert_array_equal(value, before[name])


def test_indices_that_are_computed_are_brought_into_range():
    x = lm.Input(dtype="int64")
    model = lm.Model(lm.Network(x, lm.Embedding(4, 2)(x * 2)))
    (weight,) = model.parameters().values()
    np.testing.assert_array_equal(model.predict([1, 3, -1]), weight[[2, 3, 0]])


def test_sinusoidal_positions_are_those_of_the_formula():
    model = lm.Model(lm.Sequential(lm.Input(50, 7), lm.SinusoidalPositions()), dtype="float64")
    x = np.random.default_rng(0).normal(size=(2, 50, 7))
    position, feature = np.indices((50, 7))
    angle = position / 10000 ** (2 * (feature // 2) / 7)
    table = np.where(feature % 2, np.cos(angle), np.sin(angle))
    np.testing.assert_allclose(model.predict(x), x + table, rtol=1e-12, atol=1e-12)


def test_learned_positions_add_their_table():
    net = lm.Sequential(lm.Input(200, 30), lm.LearnedPositions())
    model = lm.Model(net, dtype="float64")
    weight = model.parameters()["1.weight"]
    assert weight.shape == (200, 30)
    assert weight.std() == pytest.approx(0.02, rel=0.05)
    x = np.random.default_rng(0).normal(size=(2, 200, 30))
    np.testing.assert_allclose(model.predict(x), x + weight, rtol=1e-12)
