"""Weights of examples and classes: in losses, metrics, fits, evaluations and training steps."""

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.learning.weighting import balanced

generator = np.random.default_rng(0)
X = generator.normal(size=(50, 3)).astype("float32")
Y = generator.integers(0, 4, 50)
TARGETS = generator.normal(size=(50, 4)).astype("float32")
WEIGHTS = generator.random(50) * (np.arange(50) % 5 > 0)
OF_ELEMENTS = generator.random((50, 4))
CLASSES = [1.0, 2.0, 0.5, 3.0]
LOSS = lm.CrossEntropy()


def model(engine="interpreter", outputs=4, **options):
    layer = lm.Linear(outputs, **options)
    return lm.Model(lm.Sequential(lm.Input(3), layer), engine=engine, seed=0)


def fitted(classifier, *data, loss=LOSS, rate=0.0, **how):
    """The history of a fit."""
    return classifier.fit(data, loss=loss, optimizer=lm.SGD(rate), **{"batch_size": 16, **how})


MODEL = model()
SCORES = MODEL.predict(X).astype("float64")
EACH = np.log(np.exp(SCORES).sum(1)) - SCORES[np.arange(50), Y]
RIGHT, SQUARES = SCORES.argmax(1) == Y, (SCORES - TARGETS) ** 2


def function(prediction, target, weights=None):
    each = lm.CrossEntropy(reduction="none")(prediction, target)
    return ops.mean(each) if weights is None else ops.sum(each * weights) / ops.sum(weights)


MEAN = np.average(EACH, weights=WEIGHTS)
# The target, the weights, the loss, its value, a metric, and its value.
EVALUATIONS = [
    (Y, WEIGHTS, LOSS, MEAN, lm.Accuracy(), np.average(RIGHT, weights=WEIGHTS)),
    (Y, 2 * WEIGHTS, LOSS, MEAN, lm.Accuracy(), np.average(RIGHT, weights=WEIGHTS)),
    (Y, np.ones(50), LOSS, EACH.mean(), lm.Accuracy(), RIGHT.mean()),
    (Y, WEIGHTS, lm.CrossEntropy(reduction="sum"), EACH @ WEIGHTS, lm.CrossEntropy(), MEAN),
    (
        *(TARGETS, OF_ELEMENTS, lm.MSE(), np.average(SQUARES, weights=OF_ELEMENTS)),
        *(lm.MeanSquaredError(), np.average(SQUARES, weights=OF_ELEMENTS)),
    ),
    (
        *(TARGETS, WEIGHTS, lm.MSE(), np.average(SQUARES.mean(1), weights=WEIGHTS)),
        *(lm.MeanSquaredError(), np.average(SQUARES.mean(1), weights=WEIGHTS)),
    ),
]


@pytest.mark.parametrize("row", EVALUATIONS)
def test_an_evaluation_has_the_weighted_mean_over_all_examples(row):
    target, weights, loss, value, metric, measured = row
    results = MODEL.evaluate((X, target, weights), loss, [metric], batch_size=16)
    np.testing.assert_allclose([*results.values()], [value, measured], rtol=1e-5)


def test_a_loss_function_takes_weights_as_its_third_argument():
    value = MODEL.evaluate((X, Y, WEIGHTS), function, batch_size=50)["loss"]
    np.testing.assert_allclose(value, MEAN, rtol=1e-6)
    np.testing.assert_allclose(MODEL.evaluate((X, Y), function)["loss"], EACH.mean(), rtol=1e-6)


def test_an_example_of_weight_0_changes_nothing():
    changed = X.copy()
    changed[WEIGHTS == 0] = 99.0
    models = model(), model()
    for classifier, inputs in zip(models, (X, changed), strict=True):
        fitted(classifier, inputs, Y, WEIGHTS, rate=0.1, batch_size=50, epochs=2)
    np.testing.assert_array_equal(*(classifier.parameters()["1.weight"] for classifier in models))


def test_a_batch_without_weight_has_no_loss_and_no_gradient():
    own = model()
    before = own.parameters()["1.weight"]
    history = fitted(own, X, Y, np.zeros(50), rate=0.1, batch_size=50)
    assert np.isnan(history["loss"]).all()  # a mean over no examples
    np.testing.assert_array_equal(own.parameters()["1.weight"], before)


def test_one_step_is_the_gradient_of_the_weighted_mean():
    classifier = model()
    before = classifier.parameters()["1.weight"]
    data = lm.data.Dataset(X, Y, weights=WEIGHTS)
    with classifier.training(LOSS, lm.SGD(1.0), 50, data=data) as training:
        np.testing.assert_allclose(float(training.step(X, Y, WEIGHTS)), MEAN, rtol=1e-5)
    shares = np.exp(SCORES) / np.exp(SCORES).sum(1, keepdims=True)
    slopes = (shares - np.eye(4)[Y]) * (WEIGHTS / WEIGHTS.sum())[:, None]
    expected = before - slopes.T @ X
    np.testing.assert_allclose(classifier.parameters()["1.weight"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ["interpreter", "cpu"])
def test_weights_are_shuffled_with_their_examples(engine):
    # With a learning rate of 0, the loss of an epoch does not depend on the order.
    history = fitted(model(engine), X, Y, WEIGHTS, epochs=2, validation=(X, Y, WEIGHTS))
    np.testing.assert_allclose(history["loss"], [MEAN] * 2, rtol=1e-5)
    np.testing.assert_allclose(history["validation_loss"], [MEAN] * 2, rtol=1e-5)


def test_penalties_are_not_divided_by_weights():
    classifier = model(weight_regularizer=lm.L2(0.1))
    # However the regularizer counts, it adds the same with weights as without.
    added = [
        fitted(classifier, *data)["loss"][0] - classifier.evaluate(data, LOSS)["loss"]
        for data in ((X, Y, WEIGHTS), (X, Y))
    ]
    np.testing.assert_allclose(*added, rtol=1e-3)
    assert added[0] > 0.01 * (classifier.parameters()["1.weight"] ** 2).sum()


def test_weights_of_classes_multiply_those_of_examples():
    expected = np.average(EACH, weights=np.take(CLASSES, Y) * WEIGHTS)
    for classes in (CLASSES, {1: 2.0, 2: 0.5, 3: 3.0}, np.array(CLASSES)):
        history = fitted(model(), X, Y, WEIGHTS, class_weights=classes)
        np.testing.assert_allclose(history["loss"], [expected], rtol=1e-5)
    # They count in the loss of training alone.
    how = {"validation": (X, Y), "metrics": [lm.Accuracy()]}
    history = fitted(model(), X, Y, class_weights=CLASSES, **how)
    np.testing.assert_allclose(history["validation_loss"], [EACH.mean()], rtol=1e-5)
    np.testing.assert_allclose(history["accuracy"], [RIGHT.mean()], rtol=1e-6)


BITS, SHARES = (Y > 1).astype("float32")[:, None], np.eye(4, dtype="float32")[Y]


@pytest.mark.cases(
    ("target", "loss", "classes", "weights"),
    (Y, LOSS, CLASSES, np.take(CLASSES, Y)),
    (SHARES, LOSS, CLASSES, np.take(CLASSES, Y)),
    (BITS, lm.BCEWithLogits(), {1: 3.0}, np.where(BITS > 0, 3.0, 1.0)),
    ids=["numbers", "shares", "bits"],
)
def test_weights_of_classes_are_weights_of_their_examples(target, loss, classes, weights):
    classifier = model(outputs=1 if target is BITS else 4)
    history = fitted(classifier, X, target, loss=loss, class_weights=classes, batch_size=50)["loss"]
    expected = classifier.evaluate((X, target, weights), loss)["loss"]
    np.testing.assert_allclose(history, [expected], rtol=1e-6)


@pytest.mark.sampled
def test_balanced_weights_are_those_of_scikit_learn():
    labels = np.array([0, 0, 0, 2, 2, 5])
    # sklearn.utils.class_weight.compute_class_weight("balanced", classes=[0, 2, 5], y=labels)
    assert balanced([labels]) == pytest.approx({0: 6 / 9, 2: 1.0, 5: 2.0})
    sklearn = pytest.importorskip("sklearn.utils.class_weight")
    expected = sklearn.compute_class_weight("balanced", classes=np.unique(Y), y=Y)
    assert list(balanced([Y]).values()) == pytest.approx(expected.tolist())


def test_balanced_weights_may_have_a_number_that_does_not_count():
    ignored = np.where(np.arange(50) == 4, 255, Y)
    loss = lm.CrossEntropy(ignore_index=255)
    history = fitted(model(), X, ignored, loss=loss, class_weights="balanced")
    assert np.isfinite(history["loss"]).all()


def test_a_data_set_keeps_weights_with_their_examples():
    data = lm.data.Dataset(X, Y, weights=WEIGHTS)
    assert repr(data) == "50 examples: x f32[3], y i64[], weights f64[]"
    first, second = data.split(0.5, seed=0)
    for part in (first, second, data.subset(3, 20), data.take([4, 2])):
        for x, weight in zip(part.inputs, part.weights, strict=True):
            (row,) = np.flatnonzero((x == X).all(1))
            assert weight == WEIGHTS[row]
    batches = list(data.batches(20, seed=0))
    assert [len(weights) for _, _, weights in batches] == [20, 20, 10]
    converted = lm.data.Dataset(X, Y, weights=WEIGHTS, dtype="float32").weight_arrays[0]
    np.testing.assert_array_equal(converted, WEIGHTS.astype("float32"), strict=True)
