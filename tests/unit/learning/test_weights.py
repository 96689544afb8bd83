"""Weights of examples and classes: in losses, metrics, fits, evaluations and training steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.learning.weighting import balanced

generator = np.random.default_rng(0)
X = generator.normal(size=(50, 3)).astype("float32")
Y = generator.integers(0, 4, 50)
WEIGHTS = generator.random(50) * (np.arange(50) % 5 > 0)
CLASSES = [1.0, 2.0, 0.5, 3.0]


def model(engine: str = "interpreter", outputs: int = 4) -> lm.Model:
    return lm.Model(lm.Sequential(lm.Input(3), lm.Linear(outputs)), engine=engine, seed=0)


def each_loss(of: lm.Model) -> np.ndarray:
    scores = of.predict(X).astype("float64")
    return np.log(np.exp(scores).sum(1)) - scores[np.arange(50), Y]


def test_an_evaluation_has_the_weighted_mean_over_all_examples() -> None:
    own = model()
    expected = np.average(each_loss(own), weights=WEIGHTS)
    found = own.evaluate((X, Y, WEIGHTS), lm.CrossEntropy(), [lm.Accuracy()], batch_size=16)
    np.testing.assert_allclose(found["loss"], expected, rtol=1e-6)
    right = own.predict(X).argmax(1) == Y
    np.testing.assert_allclose(found["accuracy"], np.average(right, weights=WEIGHTS), rtol=1e-6)


def test_twice_the_weights_are_the_same() -> None:
    own = model()
    one, two = (
        own.evaluate((X, Y, WEIGHTS * factor), lm.CrossEntropy(), batch_size=50)
        for factor in (1.0, 2.0)
    )
    assert one == two


def test_weights_of_one_are_no_weights() -> None:
    own = model()
    plain = own.evaluate((X, Y), lm.CrossEntropy(), [lm.Accuracy(), lm.F1(), lm.AUROC(logits=True)])
    ones = own.evaluate(
        (X, Y, np.ones(50)), lm.CrossEntropy(), [lm.Accuracy(), lm.F1(), lm.AUROC(logits=True)]
    )
    for name, value in plain.items():
        np.testing.assert_allclose(ones[name], value, rtol=1e-6)


def test_the_sum_of_weighted_losses_is_not_divided() -> None:
    own = model()
    found = own.evaluate((X, Y, WEIGHTS), lm.CrossEntropy(reduction="sum"), batch_size=16)
    np.testing.assert_allclose(found["loss"], each_loss(own) @ WEIGHTS, rtol=1e-6)


def test_an_example_of_weight_0_changes_nothing() -> None:
    changed = X.copy()
    changed[WEIGHTS == 0] = 99.0
    how: dict[str, Any] = {"loss": lm.CrossEntropy(), "optimizer": lm.SGD(0.1), "batch_size": 50}
    fits = []
    for inputs in (X, changed):
        own = model()
        own.fit((inputs, Y, WEIGHTS), **how, epochs=2)
        fits.append(own.parameters()["1.weight"])
    np.testing.assert_array_equal(*fits)


def test_a_batch_without_weight_has_no_loss_and_no_gradient() -> None:
    own = model()
    before = own.parameters()["1.weight"]
    zeros = np.zeros(50)
    history = own.fit((X, Y, zeros), loss=lm.CrossEntropy(), optimizer=lm.SGD(0.1), batch_size=50)
    assert np.isnan(history["loss"]).all()  # a mean over no examples
    np.testing.assert_array_equal(own.parameters()["1.weight"], before)


def test_weights_of_elements_are_counted_from_the_batch() -> None:
    own = model(outputs=2)
    targets = generator.normal(size=(50, 2)).astype("float32")
    weights = generator.random((50, 2))
    found = own.evaluate((X, targets, weights), lm.MSE(), [lm.MeanSquaredError()], batch_size=16)
    expected = np.average((own.predict(X) - targets) ** 2, weights=weights)
    np.testing.assert_allclose(found["loss"], expected, rtol=1e-5)
    np.testing.assert_allclose(found["mean_squared_error"], expected, rtol=1e-5)
    rows = own.evaluate((X, targets, WEIGHTS), lm.MSE(), batch_size=16)
    expected = np.average(((own.predict(X) - targets) ** 2).mean(1), weights=WEIGHTS)
    np.testing.assert_allclose(rows["loss"], expected, rtol=1e-5)


def test_one_step_is_the_gradient_of_the_weighted_mean() -> None:
    own = model()
    before, scores = own.parameters()["1.weight"], own.predict(X).astype("float64")
    data = lm.data.Dataset(X, Y, weights=WEIGHTS)
    with own.training(lm.CrossEntropy(), lm.SGD(1.0), 50, data=data) as training:
        loss = float(training.step(X, Y, WEIGHTS))
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    slopes = (shares - np.eye(4)[Y]) * (WEIGHTS / WEIGHTS.sum())[:, None]
    np.testing.assert_allclose(
        own.parameters()["1.weight"], before - slopes.T @ X, rtol=1e-4, atol=1e-5
    )
    expected = -np.log(shares[np.arange(50), Y]) @ WEIGHTS / WEIGHTS.sum()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


@pytest.mark.parametrize("engine", ["interpreter", "cpu"])
def test_weights_are_shuffled_with_their_examples(engine: str) -> None:
    # With a learning rate of 0, the loss of an epoch does not depend on the order.
    own = model(engine)
    expected = np.average(each_loss(own), weights=WEIGHTS)
    history = own.fit(
        lm.data.Dataset(X, Y, weights=WEIGHTS),
        loss=lm.CrossEntropy(),
        optimizer=lm.SGD(0.0),
        batch_size=16,
        epochs=2,
        validation=(X, Y, WEIGHTS),
    )
    np.testing.assert_allclose(history["loss"], [expected] * 2, rtol=1e-5)
    np.testing.assert_allclose(history["validation_loss"], [expected] * 2, rtol=1e-5)


def test_penalties_are_not_divided_by_weights() -> None:
    net = lm.Sequential(lm.Input(3), lm.Linear(4, weight_regularizer=lm.L2(0.1)))
    own = lm.Model(net, engine="interpreter", seed=0)
    penalty = 0.1 * (own.parameters()["1.weight"].astype("float64") ** 2).sum()
    plain = own.evaluate((X, Y, WEIGHTS), lm.CrossEntropy())["loss"]
    how: dict[str, Any] = {"loss": lm.CrossEntropy(), "optimizer": lm.SGD(0.0), "batch_size": 16}
    history = own.fit((X, Y, WEIGHTS), **how)
    without = own.fit((X, Y), **how)
    unweighted = own.evaluate((X, Y), lm.CrossEntropy())["loss"]
    # However the regularizer counts, it adds the same with weights as without.
    np.testing.assert_allclose(
        history["loss"][0] - plain, without["loss"][0] - unweighted, rtol=1e-3
    )
    assert history["loss"][0] - plain > 0.1 * penalty


# Classes ------------------------------------------------------------------------------------------


def test_weights_of_classes_multiply_those_of_examples() -> None:
    own = model()
    weights = np.take(CLASSES, Y) * WEIGHTS
    expected = np.average(each_loss(own), weights=weights)
    how: dict[str, Any] = {"loss": lm.CrossEntropy(), "optimizer": lm.SGD(0.0), "batch_size": 16}
    for classes in (CLASSES, {1: 2.0, 2: 0.5, 3: 3.0}, np.array(CLASSES)):
        history = own.fit((X, Y, WEIGHTS), **how, class_weights=classes)
        np.testing.assert_allclose(history["loss"], [expected], rtol=1e-5)
    # They count in the loss of training alone.
    history = own.fit(
        (X, Y), **how, class_weights=CLASSES, validation=(X, Y), metrics=[lm.Accuracy()]
    )
    right = (own.predict(X).argmax(1) == Y).mean()
    np.testing.assert_allclose(history["validation_loss"], [each_loss(own).mean()], rtol=1e-5)
    np.testing.assert_allclose(history["accuracy"], [right], rtol=1e-6)


def test_class_weights_of_the_fit_are_those_of_the_loss() -> None:
    how: dict[str, Any] = {"optimizer": lm.SGD(0.1), "batch_size": 16, "epochs": 2}
    losses = [
        model().fit((X, Y), loss=lm.CrossEntropy(class_weights=CLASSES), **how)["loss"],
        model().fit((X, Y), loss=lm.CrossEntropy(), class_weights=CLASSES, **how)["loss"],
    ]
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.sampled
def test_balanced_weights_are_those_of_scikit_learn() -> None:
    labels = np.array([0, 0, 0, 2, 2, 5])
    # sklearn.utils.class_weight.compute_class_weight("balanced", classes=[0, 2, 5], y=labels)
    assert balanced([labels]) == pytest.approx({0: 6 / 9, 2: 1.0, 5: 2.0})
    sklearn = pytest.importorskip("sklearn.utils.class_weight")
    expected = sklearn.compute_class_weight("balanced", classes=np.unique(Y), y=Y)
    assert list(balanced([Y]).values()) == pytest.approx(expected.tolist())


def test_classes_of_0_and_1_and_of_probabilities_have_weights_too() -> None:
    bits = (Y > 1).astype("float32")[:, None]
    own = model(outputs=1)
    how: dict[str, Any] = {"optimizer": lm.SGD(0.0), "batch_size": 50}
    loss = lm.BCEWithLogits()
    found = own.fit((X, bits), loss=loss, class_weights={1: 3.0}, **how)["loss"]
    weighted = own.evaluate((X, bits, np.where(bits > 0, 3.0, 1.0)), loss)["loss"]
    np.testing.assert_allclose(found, [weighted], rtol=1e-6)
    own, shares = model(), np.eye(4, dtype="float32")[Y]
    found = own.fit((X, shares), loss=lm.CrossEntropy(), class_weights=CLASSES, **how)["loss"]
    weighted = own.evaluate((X, shares, np.take(CLASSES, Y)), lm.CrossEntropy())["loss"]
    np.testing.assert_allclose(found, [weighted], rtol=1e-6)


# Data sets ----------------------------------------------------------------------------------------


def test_a_data_set_keeps_weights_with_their_examples() -> None:
    data = lm.data.Dataset(X, Y, weights=WEIGHTS)
    assert repr(data) == "50 examples: x f32[3], y i64[], weights f64[]"
    first, second = data.split(0.5, seed=0)
    for part in (first, second, data.subset(3, 20), data.take([4, 2])):
        for x, weight in zip(part.inputs, part.weights, strict=True):
            (row,) = np.flatnonzero((x == X).all(1))
            assert weight == WEIGHTS[row]
    batches = list(data.batches(20, seed=0))
    assert [len(weights) for _, _, weights in batches] == [20, 20, 10]


# Functions ----------------------------------------------------------------------------------------


def test_a_loss_function_takes_weights_as_its_third_argument() -> None:
    def loss(prediction: lm.Tensor, target: lm.Tensor, weights: Any = None) -> lm.Tensor:
        each = lm.CrossEntropy(reduction="none")(prediction, target)
        return ops.mean(each) if weights is None else ops.sum(each * weights) / ops.sum(weights)

    own = model()
    found = own.evaluate((X, Y, WEIGHTS), loss, batch_size=50)["loss"]
    np.testing.assert_allclose(found, np.average(each_loss(own), weights=WEIGHTS), rtol=1e-6)
    np.testing.assert_allclose(own.evaluate((X, Y), loss)["loss"], each_loss(own).mean(), rtol=1e-6)


def test_a_data_set_converts_its_weights_too() -> None:
    data = lm.data.Dataset(X, Y, weights=WEIGHTS, dtype="float32")
    assert data.weight_arrays[0].dtype == np.float32
    np.testing.assert_array_equal(data.weight_arrays[0], WEIGHTS.astype("float32"))


def test_balanced_weights_may_have_a_number_that_does_not_count() -> None:
    model = lm.Model(lm.Sequential(lm.Input(4), lm.Linear(2)), engine="interpreter")
    data = np.zeros((6, 4), "float32"), np.array([0, 1, 0, 1, 255, 0])
    loss = lm.CrossEntropy(ignore_index=255)
    history = model.fit(data, loss=loss, optimizer=lm.SGD(0.1), class_weights="balanced")
    assert np.isfinite(history["loss"]).all()
