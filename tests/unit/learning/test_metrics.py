"""Metrics against NumPy, over several batches, and the text of errors."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from metric_values import measured
from random_arrays import normal

from lamina import Model, Sequential
from lamina import layers as lm
from lamina.base.shapes import BATCH, Size, as_dtype
from lamina.data import Dataset
from lamina.graph import Graph, bind_batch, evaluate, leaf
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


def run(metric: metrics.Metric, prediction: np.ndarray, target: np.ndarray, pieces: int = 3) -> Any:
    """The metric over batches of uneven size."""
    x, y = (
        leaf(name, "input", (BATCH, *a.shape[1:]), as_dtype(a.dtype))
        for name, a in (("x", prediction), ("y", target))
    )
    statistics = metric.statistics(x, y)
    assert all(tensor.dtype == x.dtype for tensor in statistics.values())
    rows = {n for n, one in statistics.items() if one.rank and isinstance(one.shape[0], Size)}
    pieces_of: dict[str, list[np.ndarray]] = {name: [] for name in statistics}
    bounds = [0, *(len(prediction) // 4 * n for n in range(1, pieces)), len(prediction)]
    for start, stop in itertools.pairwise(bounds):
        graph = bind_batch(Graph((x, y), tuple(statistics.items())), stop - start)
        found, _ = evaluate(graph, {"x": prediction[start:stop], "y": target[start:stop]})
        for name, value in found.items():
            pieces_of[name].append(value.astype(np.float64))
    return metric.result(
        {
            name: np.concatenate(values) if name in rows else np.sum(values, 0)
            for name, values in pieces_of.items()
        }
    )


def confusion(found: np.ndarray, actual: np.ndarray, classes: int) -> np.ndarray:
    matrix = np.zeros((classes, classes), np.int64)
    for row, column in zip(actual.ravel(), found.ravel(), strict=True):
        matrix[row, column] += 1
    return matrix


def test_accuracy() -> None:
    assert run(metrics.Accuracy(), SCORES, LABELS) == (SCORES.argmax(1) == LABELS).mean()
    assert run(metrics.Accuracy(), IMAGES, PIXELS) == (IMAGES.argmax(1) == PIXELS).mean()
    one_hot = np.eye(5, dtype=np.float32)[LABELS]
    assert run(metrics.Accuracy(), SCORES, one_hot) == (SCORES.argmax(1) == LABELS).mean()
    assert isinstance(run(metrics.Accuracy(), SCORES, LABELS.astype(np.uint8)), float)


def test_binary_accuracy() -> None:
    expected = ((CHANCES > 0.5) == BITS).mean()
    np.testing.assert_allclose(run(metrics.BinaryAccuracy(), CHANCES, BITS), expected)
    np.testing.assert_allclose(
        run(metrics.BinaryAccuracy(threshold=0.0), CHANCES - 0.5, BITS), expected
    )
    column = run(metrics.BinaryAccuracy(), CHANCES[:, 0], BITS[:, 0] > 0)
    np.testing.assert_allclose(column, ((CHANCES > 0.5) == BITS)[:, 0].mean())


@pytest.mark.parametrize("k", [1, 2, 5, 9])
def test_top_k(k: int) -> None:
    best = np.argsort(-SCORES, axis=1, kind="stable")[:, :k]
    expected = (best == LABELS[:, None]).any(1).mean()
    np.testing.assert_allclose(run(metrics.TopK(k), SCORES, LABELS), expected)
    assert metrics.TopK(k).name == f"top_{k}"


def test_top_k_counts_the_first_of_equal_scores() -> None:
    scores, labels = np.zeros((4, 4)), np.arange(4)
    assert run(metrics.TopK(3), scores, labels, 1) == 0.75
    assert run(metrics.Accuracy(), scores, labels, 1) == run(metrics.TopK(1), scores, labels, 1)


def test_top_k_of_images() -> None:
    best = np.argsort(-IMAGES, axis=1)[:, :2]
    expected = (best == PIXELS[:, None]).any(1).mean()
    np.testing.assert_allclose(run(metrics.TopK(2), IMAGES, PIXELS), expected)


def test_confusion_matrix() -> None:
    found = run(metrics.ConfusionMatrix(), SCORES, LABELS)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, confusion(SCORES.argmax(1), LABELS, 5))
    images = run(metrics.ConfusionMatrix(), IMAGES, PIXELS)
    np.testing.assert_array_equal(images, confusion(IMAGES.argmax(1), PIXELS, 3))


def scores_by_class(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    hits, actual, predicted = np.diag(matrix), matrix.sum(1), matrix.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (
            np.nan_to_num(hits / predicted),
            np.nan_to_num(hits / actual),
            np.nan_to_num(2 * hits / (predicted + actual)),
        )


def test_precision_recall_and_f1_as_means_over_classes() -> None:
    expected = [values.mean() for values in scores_by_class(confusion(SCORES.argmax(1), LABELS, 5))]
    found = [run(m(), SCORES, LABELS) for m in (metrics.Precision, metrics.Recall, metrics.F1)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    expected = [values.mean() for values in scores_by_class(confusion(IMAGES.argmax(1), PIXELS, 3))]
    found = [run(m(), IMAGES, PIXELS) for m in (metrics.Precision, metrics.Recall, metrics.F1)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_classes_that_never_occur_do_not_count() -> None:
    scores = np.array([[2.0, 0.0, 1.0, 0.0], [1.0, 0.0, 2.0, 0.0]])
    assert run(metrics.Recall(), scores, np.array([0, 2]), 1) == 1.0
    assert run(metrics.Recall(), scores, np.array([0, 0]), 1) == 0.25


def test_micro_averages_are_the_accuracy() -> None:
    for make in (metrics.Precision, metrics.Recall, metrics.F1):
        found = run(make(average="micro"), SCORES, LABELS)
        np.testing.assert_allclose(found, (SCORES.argmax(1) == LABELS).mean())


def test_binary_precision_recall_and_f1() -> None:
    found, wanted = CHANCES > 0.5, BITS > 0
    hits = (found & wanted).sum()
    expected = [hits / found.sum(), hits / wanted.sum(), 2 * hits / (found.sum() + wanted.sum())]
    for make, value in zip((metrics.Precision, metrics.Recall, metrics.F1), expected, strict=True):
        np.testing.assert_allclose(run(make(average="binary"), CHANCES, BITS), value)
        np.testing.assert_allclose(
            run(make(average="binary", logits=True), CHANCES - 0.5, BITS), value
        )


def test_metrics_without_positives_are_zero() -> None:
    nothing = np.zeros((4, 1))
    for make in (metrics.Precision, metrics.Recall, metrics.F1):
        assert run(make(average="binary"), nothing, nothing, 1) == 0.0


def test_regression_metrics() -> None:
    x, y = IMAGES, IMAGES[::-1] * 0.5 + 3
    np.testing.assert_allclose(run(metrics.MeanAbsoluteError(), x, y), abs(x - y).mean())
    np.testing.assert_allclose(run(metrics.MeanSquaredError(), x, y), ((x - y) ** 2).mean())
    explained = 1 - ((x - y) ** 2).sum(0) / ((y - y.mean(0)) ** 2).sum(0)
    np.testing.assert_allclose(run(metrics.R2(), x, y), explained.mean(), rtol=1e-10)
    assert run(metrics.R2(), x, x) == 1.0


@pytest.mark.parametrize("mean", [0.0, 1e3, 1e5])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_r2_does_not_depend_on_the_mean_of_the_targets(mean: float, dtype: str) -> None:
    """In float32, sums of squares of numbers far from zero would cancel."""
    y = (normal(500, 2) + mean).astype(dtype)
    x = (y + 0.5 * normal(500, 2, seed=1)).astype(dtype)
    residual = ((x.astype("float64") - y) ** 2).sum(0)
    expected = 1 - residual / ((y - y.mean(0, dtype="float64")) ** 2).sum(0)
    model = Model(Sequential(lm.Input(2), lm.LeakyReLU(slope=1.0)), dtype=dtype)
    found = model.evaluate((x, y), losses.MSE(), [metrics.R2()])["r2"]
    assert found == pytest.approx(expected.mean(), rel=1e-5)


def test_r2_of_targets_that_do_not_vary() -> None:
    constant = np.full((4, 1), 2.0)
    assert run(metrics.R2(), constant, constant, 1) == 1.0
    assert run(metrics.R2(), constant + 1, constant, 1) == 0.0


# Weights, and metrics of all examples -------------------------------------------------------------


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
def test_metrics_have_recorded_values(
    metric: metrics.Metric, expected: tuple[float, float]
) -> None:
    ranking = isinstance(metric, metrics.AUROC | metrics.AveragePrecision)
    scores, wanted = (GUESSES, COIN) if ranking else (SCORES, LABELS)
    for weights, value in zip((None, WEIGHTS), expected, strict=True):
        np.testing.assert_allclose(measured(metric, scores, wanted, weights), value, rtol=1e-6)


EACH = LABELS.copy()
EACH[:5] = range(5)  # each class occurs
FOUND, ONE_HOT = SCORES.argmax(1), np.eye(5, dtype=np.float32)[EACH]
Cases = list[tuple[metrics.Metric, np.ndarray, np.ndarray, Any]]


def rankings(sk: Any, how: dict[str, Any]) -> Cases:
    return [
        (metrics.AUROC(), GUESSES, COIN, sk.roc_auc_score(COIN, GUESSES, **how)),
        (metrics.AUROC(), SHARES, EACH, sk.roc_auc_score(ONE_HOT, SHARES, **how)),
        (metrics.AUROC(logits=True), SCORES, EACH, sk.roc_auc_score(ONE_HOT, SHARES, **how)),
        (
            metrics.AUROC(average="weighted"),
            SHARES,
            ONE_HOT,
            sk.roc_auc_score(ONE_HOT, SHARES, average="weighted", **how),
        ),
        (
            metrics.AUROC(average="micro"),
            SHARES,
            ONE_HOT,
            sk.roc_auc_score(ONE_HOT, SHARES, average="micro", **how),
        ),
        (
            metrics.AUROC(average="none"),
            SHARES,
            ONE_HOT,
            sk.roc_auc_score(ONE_HOT, SHARES, average=None, **how),
        ),
        (
            metrics.AveragePrecision(),
            GUESSES,
            COIN,
            sk.average_precision_score(COIN, GUESSES, **how),
        ),
        (
            metrics.AveragePrecision(),
            SHARES,
            EACH,
            sk.average_precision_score(ONE_HOT, SHARES, **how),
        ),
    ]


def of_labels(sk: Any, how: dict[str, Any]) -> Cases:
    found, wanted, several = SCORES > 0, OTHERS > 0, {"multilabel": True, "logits": True}
    averages = {"macro": "macro", "micro": "micro", "weighted": "weighted", "none": None}
    return [
        (make(average=own, **several), SCORES, wanted, score(wanted, found, average=its, **how))
        for own, its in averages.items()
        for make, score in (
            (metrics.F1, sk.f1_score),
            (metrics.Precision, sk.precision_score),
            (metrics.Recall, sk.recall_score),
        )
    ]


def of_classes_and_numbers(sk: Any, how: dict[str, Any]) -> Cases:
    return [
        (metrics.Accuracy(), SCORES, EACH, sk.accuracy_score(EACH, FOUND, **how)),
        (metrics.TopK(2), SCORES, EACH, sk.top_k_accuracy_score(EACH, SCORES, k=2, **how)),
        (
            metrics.Precision(),
            SCORES,
            EACH,
            sk.precision_score(EACH, FOUND, average="macro", zero_division=0, **how),
        ),
        (metrics.Recall(), SCORES, EACH, sk.recall_score(EACH, FOUND, average="macro", **how)),
        (metrics.F1(), SCORES, EACH, sk.f1_score(EACH, FOUND, average="macro", **how)),
        (metrics.F1(average="binary"), GUESSES, COIN, sk.f1_score(COIN, GUESSES > 0.5, **how)),
        (
            metrics.F1(average="weighted"),
            SCORES,
            EACH,
            sk.f1_score(EACH, FOUND, average="weighted", **how),
        ),
        (metrics.MeanIoU(), SCORES, EACH, sk.jaccard_score(EACH, FOUND, average="macro", **how)),
        (metrics.MatthewsCorrelation(), SCORES, EACH, sk.matthews_corrcoef(EACH, FOUND, **how)),
        (
            metrics.MatthewsCorrelation(),
            GUESSES,
            COIN,
            sk.matthews_corrcoef(COIN, GUESSES > 0.5, **how),
        ),
        (metrics.CohenKappa(), SCORES, EACH, sk.cohen_kappa_score(EACH, FOUND, **how)),
        (metrics.ConfusionMatrix(), SCORES, EACH, sk.confusion_matrix(EACH, FOUND, **how)),
        (metrics.Perplexity(), SCORES, EACH, np.exp(sk.log_loss(EACH, SHARES, **how))),
        (metrics.R2(), GUESSES, COIN, sk.r2_score(COIN, GUESSES, **how)),
        (metrics.MeanAbsoluteError(), GUESSES, COIN, sk.mean_absolute_error(COIN, GUESSES, **how)),
        (
            metrics.RootMeanSquaredError(),
            GUESSES,
            COIN,
            np.sqrt(sk.mean_squared_error(COIN, GUESSES, **how)),
        ),
    ]


@pytest.mark.sampled
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("cases", [rankings, of_labels, of_classes_and_numbers])
def test_metrics_agree_with_scikit_learn(cases: Any, weighted: bool) -> None:
    sk = pytest.importorskip("sklearn.metrics")
    weights = WEIGHTS if weighted else None
    for metric, prediction, target, expected in cases(sk, {"sample_weight": weights}):
        value = measured(metric, prediction, target, weights)
        np.testing.assert_allclose(value, expected, rtol=2e-5, err_msg=repr(metric))


def test_the_auroc_is_the_share_of_pairs_in_order() -> None:
    positive, negative = GUESSES[COIN == 1], GUESSES[COIN == 0]
    differences = positive[:, None] - negative
    expected = ((differences > 0) + 0.5 * (differences == 0)).mean()
    np.testing.assert_allclose(measured(metrics.AUROC(), GUESSES, COIN), expected, rtol=1e-12)
    perfect = measured(metrics.AUROC(), COIN.astype(float), COIN)
    assert (perfect, measured(metrics.AUROC(), -COIN.astype(float), COIN)) == (1.0, 0.0)
    assert np.isnan(measured(metrics.AUROC(), GUESSES, np.ones(60, np.int64)))


def test_average_precision_of_a_ranking_by_hand() -> None:
    scores, wanted = np.array([0.9, 0.8, 0.7, 0.6]), np.array([1, 0, 1, 0])
    # Precision 1 at the first positive, 2/3 at the second.
    found = measured(metrics.AveragePrecision(), scores, wanted)
    np.testing.assert_allclose(found, (1 + 2 / 3) / 2, rtol=1e-12)
    assert np.isnan(measured(metrics.AveragePrecision(), scores, np.zeros(4, np.int64)))


def test_the_calibration_error_is_the_mean_difference_over_bins() -> None:
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


def test_pearson_correlation_is_that_of_numpy() -> None:
    x, y = IMAGES[:, 0, :, 0], IMAGES[:, 1, :, 1]
    expected = np.mean([np.corrcoef(x[:, n], y[:, n])[0, 1] for n in range(4)])
    np.testing.assert_allclose(measured(metrics.PearsonCorrelation(), x, y), expected, rtol=1e-12)
    weights = np.array([1, 2, 1, 0, 3, 1, 1, 2])
    repeated = np.repeat(np.arange(8), weights)
    np.testing.assert_allclose(
        measured(metrics.PearsonCorrelation(), x, y, weights.astype(float)),
        measured(metrics.PearsonCorrelation(), x[repeated], y[repeated]),
        rtol=1e-10,
    )


@pytest.mark.parametrize(
    "make",
    [
        metrics.Accuracy,
        metrics.TopK,
        metrics.Precision,
        metrics.Recall,
        metrics.F1,
        metrics.ConfusionMatrix,
        metrics.MeanIoU,
        metrics.MatthewsCorrelation,
        metrics.CohenKappa,
        metrics.Perplexity,
    ],
)
def test_targets_of_the_ignored_class_do_not_count(make: Any) -> None:
    options = {"k": 2} if make is metrics.TopK else {}
    for scores, labels in ((SCORES, LABELS), (IMAGES, PIXELS)):
        ignored = labels.copy()
        ignored[labels == 2] = -1
        found = measured(make(**options, ignore_index=-1), scores, ignored)
        pixels = np.moveaxis(scores, 1, -1).reshape(-1, scores.shape[1])
        kept = labels.ravel() != 2
        expected = measured(make(**options), pixels[kept], labels.ravel()[kept])
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "metric",
    [
        metrics.Accuracy(),
        metrics.BinaryAccuracy(),
        metrics.TopK(2),
        metrics.Precision(),
        metrics.F1(average="binary"),
        metrics.ConfusionMatrix(),
        metrics.MeanIoU(),
        metrics.CalibrationError(bins=4, logits=True),
        metrics.Perplexity(),
        metrics.AUROC(),
        metrics.AveragePrecision(),
        metrics.MeanAbsoluteError(),
        metrics.MeanSquaredError(),
        metrics.R2(),
        metrics.PearsonCorrelation(),
    ],
    ids=repr,
)
def test_a_weight_of_two_counts_an_example_twice(metric: metrics.Metric) -> None:
    weights = np.random.default_rng(6).integers(0, 3, 60)
    of_numbers = (
        isinstance(
            metric,
            metrics.BinaryAccuracy
            | metrics.MeanAbsoluteError
            | metrics.MeanSquaredError
            | metrics.R2
            | metrics.PearsonCorrelation,
        )
        or getattr(metric, "average", "") == "binary"
    )
    scores, wanted = (GUESSES, COIN) if of_numbers else (SCORES, LABELS)
    rows = np.repeat(np.arange(60), weights)
    np.testing.assert_allclose(
        measured(metric, scores, wanted, weights.astype(scores.dtype)),
        measured(metric, scores[rows], wanted[rows]),
        rtol=1e-5,
    )


# Functions ----------------------------------------------------------------------------------------


def test_functions_and_losses_are_metrics() -> None:
    import lamina

    def largest(prediction: lamina.Tensor, target: lamina.Tensor) -> lamina.Tensor:
        return lamina.ops.max(abs(prediction - target), 1)

    def bias(prediction: lamina.Tensor, target: lamina.Tensor) -> lamina.Tensor:
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


@pytest.mark.parametrize(
    "make", [metrics.AUROC, metrics.AveragePrecision, metrics.CalibrationError]
)
@pytest.mark.parametrize("weighted", [False, True])
def test_metrics_of_scores_leave_ignored_targets_out(make: Any, weighted: bool) -> None:
    generator = np.random.default_rng(3)
    scores = generator.normal(size=(40, 3)).astype("float32")
    targets = generator.integers(0, 3, 40)
    weights = generator.uniform(0.5, 2, 40).astype("float32") if weighted else None
    kept = generator.uniform(size=40) < 0.6
    model = Model(Sequential(lm.Input(3), lm.Identity()), engine="interpreter")

    def found(rows: Any, classes: Any, own: Any, **how: Any) -> float:
        metric, loss = make(logits=True, **how), losses.CrossEntropy(**how)
        return model.evaluate(Dataset(rows, classes, weights=own), loss, [metric])[metric.name]

    expected = found(scores[kept], targets[kept], None if weights is None else weights[kept])
    some = np.where(kept, targets, -1)
    assert found(scores, some, weights, ignore_index=-1) == pytest.approx(expected, rel=1e-6)
