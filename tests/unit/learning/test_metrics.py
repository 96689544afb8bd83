"""Metrics against NumPy, over several batches, and the text of errors."""

from typing import Any

import numpy as np
import pytest
from docstring_examples import example_of
from metric_values import measured
from random_arrays import normal

import lamina
from lamina import Model, Sequential
from lamina import layers as lm
from lamina.learning import losses, metrics

pytestmark = pytest.mark.each_case

generator = np.random.default_rng(0)
SCORES = generator.normal(size=(60, 5)).astype(np.float32)
LABELS = generator.integers(0, 5, 60)
LABELS[LABELS == 4] = 1  # a class that is predicted but never right
IMAGES = generator.normal(size=(8, 3, 4, 2))
PIXELS = generator.integers(0, 3, (8, 4, 2))
CHANCES = generator.random((30, 2)).astype(np.float32)
BITS = generator.integers(0, 2, (30, 2))


def confusion(found: np.ndarray, actual: np.ndarray, classes: int) -> np.ndarray:
    matrix = np.zeros((classes, classes), np.int64)
    for row, column in zip(actual.ravel(), found.ravel(), strict=True):
        matrix[row, column] += 1
    return matrix


def scores_by_class(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    hits, actual, predicted = np.diag(matrix), matrix.sum(1), matrix.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (
            np.nan_to_num(hits / predicted),
            np.nan_to_num(hits / actual),
            np.nan_to_num(2 * hits / (predicted + actual)),
        )


def hit(scores: np.ndarray, labels: np.ndarray, k: int) -> float:
    """The share of labels among the k largest scores."""
    best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return float((best == labels[:, None]).any(1).mean())


KINDS = (metrics.Precision, metrics.Recall, metrics.F1)
ONES, EQUAL = np.full((4, 1), 2.0), np.zeros((4, 4))
RARE = np.array([[2.0, 0.0, 1.0, 0.0], [1.0, 0.0, 2.0, 0.0]])
RIGHT, CHOSEN = SCORES.argmax(1) == LABELS, CHANCES > 0.5
HITS, OTHER = (CHOSEN & (BITS > 0)).sum(), IMAGES[::-1] * 0.5 + 3
BINARY = [HITS / CHOSEN.sum(), HITS / BITS.sum(), 2 * HITS / (CHOSEN.sum() + BITS.sum())]
EXPLAINED = 1 - ((IMAGES - OTHER) ** 2).sum(0) / ((OTHER - OTHER.mean(0)) ** 2).sum(0)
# A metric, a prediction and target, and the value by NumPy.
VALUES: list[tuple[metrics.Metric, np.ndarray, np.ndarray, Any]] = [
    (metrics.Accuracy(), SCORES, LABELS, RIGHT.mean()),
    (metrics.Accuracy(), SCORES, np.eye(5, dtype="f4")[LABELS], RIGHT.mean()),
    (metrics.Accuracy(), IMAGES, PIXELS, (IMAGES.argmax(1) == PIXELS).mean()),
    # The first of equal scores counts.
    (metrics.Accuracy(), EQUAL, np.arange(4), 0.25),
    (metrics.TopK(3), EQUAL, np.arange(4), 0.75),
    *((metrics.TopK(k), SCORES, LABELS, hit(SCORES, LABELS, k)) for k in (1, 2, 5, 9)),
    (metrics.TopK(2), IMAGES, PIXELS, hit(IMAGES, PIXELS, 2)),
    (metrics.BinaryAccuracy(), CHANCES, BITS, (CHOSEN == BITS).mean()),
    (metrics.BinaryAccuracy(threshold=0.0), CHANCES - 0.5, BITS, (CHOSEN == BITS).mean()),
    (metrics.BinaryAccuracy(), CHANCES[:, 0], BITS[:, 0] > 0, (CHOSEN == BITS)[:, 0].mean()),
    *(
        row
        for scores, labels, count in ((SCORES, LABELS, 5), (IMAGES, PIXELS, 3))
        for matrix in [confusion(scores.argmax(1), labels, count)]
        for row in (
            (metrics.ConfusionMatrix(), scores, labels, matrix),
            *(
                (make(), scores, labels, each.mean())
                for make, each in zip(KINDS, scores_by_class(matrix), strict=True)
            ),
        )
    ),
    # Classes that never occur do not count.
    (metrics.Recall(), RARE, np.array([0, 2]), 1.0),
    (metrics.Recall(), RARE, np.array([0, 0]), 0.25),
    *((make(average="micro"), SCORES, LABELS, RIGHT.mean()) for make in KINDS),
    *(
        row
        for make, value in zip(KINDS, BINARY, strict=True)
        for row in (
            (make(average="binary"), CHANCES, BITS, value),
            (make(average="binary", logits=True), CHANCES - 0.5, BITS, value),
            (make(average="binary"), np.zeros((4, 1)), np.zeros((4, 1)), 0.0),
        )
    ),
    (metrics.MeanAbsoluteError(), IMAGES, OTHER, abs(IMAGES - OTHER).mean()),
    (metrics.MeanSquaredError(), IMAGES, OTHER, ((IMAGES - OTHER) ** 2).mean()),
    (metrics.R2(), IMAGES, OTHER, EXPLAINED.mean()),
    (metrics.R2(), IMAGES, IMAGES, 1.0),
    # Of targets that do not vary.
    (metrics.R2(), ONES, ONES, 1.0),
    (metrics.R2(), ONES + 1, ONES, 0.0),
]


def test_metrics_have_the_values_of_their_formulas():
    for metric, prediction, target, expected in VALUES:
        found = measured(metric, prediction, target)
        np.testing.assert_allclose(found, expected, rtol=1e-10, err_msg=repr(metric))
    assert metrics.TopK(2).name == "top_2"
    assert measured(metrics.ConfusionMatrix(), SCORES, LABELS).dtype == np.int64
    assert isinstance(measured(metrics.Accuracy(), SCORES, LABELS.astype(np.uint8)), float)


@pytest.mark.parametrize("mean", [0.0, 1e3, 1e5])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_r2_does_not_depend_on_the_mean_of_the_targets(mean, dtype):
    """In float32, sums of squares of numbers far from zero would cancel."""
    y = (normal(500, 2) + mean).astype(dtype)
    x = (y + 0.5 * normal(500, 2, seed=1)).astype(dtype)
    residual = ((x.astype("float64") - y) ** 2).sum(0)
    expected = 1 - residual / ((y - y.mean(0, dtype="float64")) ** 2).sum(0)
    model = Model(Sequential(lm.Input(2), lm.LeakyReLU(slope=1.0)), dtype=dtype)
    found = model.evaluate((x, y), losses.MSE(), [metrics.R2()])["r2"]
    assert found == pytest.approx(expected.mean(), rel=1e-5)


SHARES = np.exp(SCORES) / np.exp(SCORES).sum(1, keepdims=True)
WEIGHTS = np.random.default_rng(3).random(60)
OTHERS = np.random.default_rng(7).normal(size=(60, 5))
GUESSES = np.round(np.random.default_rng(4).random(60), 1)  # with equal scores
COIN = np.random.default_rng(5).integers(0, 2, 60)


# Values of scikit-learn 1.9, without and with sample_weight: roc_auc_score,
# average_precision_score, jaccard_score, matthews_corrcoef, cohen_kappa_score.
RECORDED = [
    (metrics.AUROC(), (0.40178571428571425, 0.401057636699771)),
    (metrics.AveragePrecision(), (0.40114084269481515, 0.4048425382307927)),
    (metrics.MeanIoU(), (0.05592314118629908, 0.04931579381361227)),
    (metrics.MatthewsCorrelation(), (-0.07335130933967147, -0.0789522881875826)),
    (metrics.CohenKappa(), (-0.06630211893369786, -0.07054488920647484)),
]


@pytest.mark.parametrize(("metric", "expected"), RECORDED, ids=lambda one: repr(one)[:40])
def test_metrics_have_recorded_values(metric, expected):
    ranking = isinstance(metric, metrics.AUROC | metrics.AveragePrecision)
    scores, wanted = (GUESSES, COIN) if ranking else (SCORES, LABELS)
    for weights, value in zip((None, WEIGHTS), expected, strict=True):
        np.testing.assert_allclose(measured(metric, scores, wanted, weights), value, rtol=1e-6)


EACH = LABELS.copy()
EACH[:5] = range(5)  # each class occurs
FOUND, ONE_HOT = SCORES.argmax(1), np.eye(5, dtype=np.float32)[EACH]
SEVERAL: dict[str, Any] = {"multilabel": True, "logits": True}
_AUROC, _PRECISION, _ZERO = "roc_auc_score", "average_precision_score", {"zero_division": 0}
_MACRO, _WEIGHTED, _MICRO = ({"average": one} for one in ("macro", "weighted", "micro"))
# A metric, the prediction and target; the name of scikit-learn's function, and what it takes.
SCIKIT_LEARN: list[tuple[metrics.Metric, Any, Any, str, Any, Any, dict[str, Any]]] = [
    (metrics.AUROC(), GUESSES, COIN, _AUROC, COIN, GUESSES, {}),
    (metrics.AUROC(), SHARES, EACH, _AUROC, ONE_HOT, SHARES, {}),
    (metrics.AUROC(logits=True), SCORES, EACH, _AUROC, ONE_HOT, SHARES, {}),
    (metrics.AUROC(**_WEIGHTED), SHARES, ONE_HOT, _AUROC, ONE_HOT, SHARES, _WEIGHTED),
    (metrics.AUROC(**_MICRO), SHARES, ONE_HOT, _AUROC, ONE_HOT, SHARES, _MICRO),
    (metrics.AUROC(average="none"), SHARES, ONE_HOT, _AUROC, ONE_HOT, SHARES, {"average": None}),
    (metrics.AveragePrecision(), GUESSES, COIN, _PRECISION, COIN, GUESSES, {}),
    (metrics.AveragePrecision(), SHARES, EACH, _PRECISION, ONE_HOT, SHARES, {}),
    *(
        (make(average=own, **SEVERAL), SCORES, OTHERS > 0, f"{score}_score", *of_labels)
        for own in ("macro", "micro", "weighted", "none")
        for of_labels in [(OTHERS > 0, SCORES > 0, {"average": None if own == "none" else own})]
        for make, score in (
            *((metrics.F1, "f1"), (metrics.Precision, "precision"), (metrics.Recall, "recall")),
        )
    ),
    (metrics.Accuracy(), SCORES, EACH, "accuracy_score", EACH, FOUND, {}),
    (metrics.TopK(2), SCORES, EACH, "top_k_accuracy_score", EACH, SCORES, {"k": 2}),
    (metrics.Precision(), SCORES, EACH, "precision_score", EACH, FOUND, _MACRO | _ZERO),
    (metrics.Recall(), SCORES, EACH, "recall_score", EACH, FOUND, _MACRO),
    (metrics.F1(), SCORES, EACH, "f1_score", EACH, FOUND, _MACRO),
    (metrics.F1(average="binary"), GUESSES, COIN, "f1_score", COIN, GUESSES > 0.5, {}),
    (metrics.F1(**_WEIGHTED), SCORES, EACH, "f1_score", EACH, FOUND, _WEIGHTED),
    (metrics.MeanIoU(), SCORES, EACH, "jaccard_score", EACH, FOUND, _MACRO),
    (metrics.MatthewsCorrelation(), SCORES, EACH, "matthews_corrcoef", EACH, FOUND, {}),
    (metrics.MatthewsCorrelation(), GUESSES, COIN, "matthews_corrcoef", COIN, GUESSES > 0.5, {}),
    (metrics.CohenKappa(), SCORES, EACH, "cohen_kappa_score", EACH, FOUND, {}),
    (metrics.ConfusionMatrix(), SCORES, EACH, "confusion_matrix", EACH, FOUND, {}),
    (metrics.Perplexity(), SCORES, EACH, "log_loss", EACH, SHARES, {}),
    (metrics.R2(), GUESSES, COIN, "r2_score", COIN, GUESSES, {}),
    (metrics.MeanAbsoluteError(), GUESSES, COIN, "mean_absolute_error", COIN, GUESSES, {}),
    (metrics.RootMeanSquaredError(), GUESSES, COIN, "root_mean_squared_error", COIN, GUESSES, {}),
]


@pytest.mark.sampled
@pytest.mark.parametrize("weighted", [False, True])
def test_metrics_agree_with_scikit_learn(weighted):
    theirs = pytest.importorskip("sklearn.metrics")
    weights = WEIGHTS if weighted else None
    for metric, prediction, target, score, *given, how in SCIKIT_LEARN:
        expected = getattr(theirs, score)(*given, **how, sample_weight=weights)
        expected = np.exp(expected) if score == "log_loss" else expected
        value = measured(metric, prediction, target, weights)
        np.testing.assert_allclose(value, expected, rtol=2e-5, err_msg=repr(metric))


def test_rankings_of_one_class_have_no_value():
    perfect = measured(metrics.AUROC(), COIN.astype(float), COIN)
    assert (perfect, measured(metrics.AUROC(), -COIN.astype(float), COIN)) == (1.0, 0.0)
    assert np.isnan(measured(metrics.AUROC(), GUESSES, np.ones(60, np.int64)))
    assert np.isnan(measured(metrics.AveragePrecision(), GUESSES, np.zeros(60, np.int64)))


def test_the_calibration_error_is_the_mean_difference_over_bins():
    confidence, right = np.array([0.05, 0.15, 0.65, 0.75, 1.0]), np.array([0, 1, 1, 0, 1])
    # Bins of 1/2: [0.05, 0.15] against 1/2, and [0.65, 0.75, 1] against 2/3.
    gaps = np.array([abs(0.1 - 0.5), abs(0.8 - 2 / 3)])
    shares = np.array([2, 3]) / 5
    for norm, expected in (
        ("mean", gaps @ shares),
        ("square", np.sqrt(gaps**2 @ shares)),
        ("max", gaps.max()),
    ):
        metric = metrics.CalibrationError(bins=2, norm=norm)
        np.testing.assert_allclose(measured(metric, confidence, right), expected, rtol=1e-12)
    own = SHARES.max(1)
    whole = abs(own.mean() - (SHARES.argmax(1) == LABELS).mean())
    for metric, scores in (
        (metrics.CalibrationError(bins=1), SHARES),
        (metrics.CalibrationError(bins=1, logits=True), SCORES),
    ):
        np.testing.assert_allclose(measured(metric, scores, LABELS), whole, rtol=1e-4)


def test_pearson_correlation_is_that_of_numpy():
    x, y = IMAGES[:, 0, :, 0], IMAGES[:, 1, :, 1]
    expected = np.mean([np.corrcoef(x[:, n], y[:, n])[0, 1] for n in range(4)])
    np.testing.assert_allclose(measured(metrics.PearsonCorrelation(), x, y), expected, rtol=1e-12)


@pytest.mark.parametrize("name", sorted({*metrics.__all__} - {"Metric"}))
def test_a_users_subclass_of_a_metric_keeps_its_name(name):
    cls = getattr(metrics, name)
    example = example_of(cls)
    of_user = type("Derived", (type("OfUser", (cls,), {}),), {})
    assert of_user(**example.arguments).name == example.made.name


def test_a_users_metric_has_the_name_of_its_class():
    class OfUser(metrics.F1):
        pass

    class OwnFormula(metrics.Metric):
        def statistics(self, prediction, target, weights=None):
            return {"sum": lamina.ops.sum(prediction)}

        def result(self, sums):
            return float(sums["sum"])

    model = Model(Sequential(lm.Input(3), lm.Linear(4)), engine="interpreter")
    own = [OfUser(), OwnFormula()]
    found = model.evaluate((normal(5, 3), np.arange(5) % 4), losses.CrossEntropy(), own)
    assert list(found) == ["loss", "f1", "own_formula"]


def test_functions_and_losses_are_metrics():
    def largest(prediction, target):
        return lamina.ops.max(abs(prediction - target), 1)

    def bias(prediction, target):
        return lamina.ops.mean(prediction - target)

    net = lamina.Sequential(lamina.Input(3), lamina.Linear(2))
    model = lamina.Model(net, engine="interpreter")
    x, y = generator.normal(size=(2, 50, 3)).astype(np.float32)
    y = y[:, :2]
    own = lamina.FunctionMetric(lambda p, t: abs(p - t), name="own")
    several = [largest, bias, own, lamina.MAPE(), lamina.MAE(reduction="sum")]
    found = model.evaluate((x, y), lamina.MSE(), several, batch_size=16)
    difference = model.predict(x) - y
    expected = {
        "largest": abs(difference).max(1).mean(),
        "bias": difference.mean(),
        "own": abs(difference).mean(),
        "mape": 100 * (abs(difference) / abs(y)).mean(),
        "mae": abs(difference).sum(),
    }
    assert list(found) == ["loss", *expected]
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, err_msg=name)
    weights = generator.random(50)
    found = model.evaluate((x, y, weights), lamina.MSE(), [largest, lamina.MSE()], batch_size=16)
    largest_errors = np.average(abs(difference).max(1), weights=weights)
    np.testing.assert_allclose(found["largest"], largest_errors, rtol=1e-5)
    np.testing.assert_allclose(found["mse"], found["loss"], rtol=1e-6)
