"""Metrics against NumPy, over batches; of several labels at once, of NaN, infinity and nothing."""

from dataclasses import replace

import numpy as np
import pytest
from docstring_examples import example_of
from error_texts import error_text
from metric_values import measured
from random_arrays import normal

import lamina
from lamina import Model, Sequential
from lamina import layers as lm
from lamina.errors import DataError
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


def confusion(predicted, actual, classes):
    matrix = np.zeros((classes, classes), np.int64)
    for row, column in zip(actual.ravel(), predicted.ravel(), strict=True):
        matrix[row, column] += 1
    return matrix


def scores_by_class(matrix):
    hits, actual, predicted = np.diag(matrix), matrix.sum(1), matrix.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (
            np.nan_to_num(hits / predicted),
            np.nan_to_num(hits / actual),
            np.nan_to_num(2 * hits / (predicted + actual)),
        )


def hit(scores, labels, k):
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
VALUES = [
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
        result = measured(metric, prediction, target)
        np.testing.assert_allclose(result, expected, rtol=1e-10, err_msg=repr(metric))
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
    result = model.evaluate((x, y), losses.MSE(), [metrics.R2()])["r2"]
    assert result == pytest.approx(expected.mean(), rel=1e-5)


SHARES = np.exp(SCORES) / np.exp(SCORES).sum(1, keepdims=True)
WEIGHTS = np.random.default_rng(3).random(60)
GUESSES = np.round(np.random.default_rng(4).random(60), 1)  # with equal scores
COIN = np.random.default_rng(5).integers(0, 2, 60)


# Values of scikit-learn 1.9, without and with sample_weight: roc_auc_score,
# average_precision_score, jaccard_score, matthews_corrcoef, cohen_kappa_score.
@pytest.mark.cases(
    ("metric", "expected"),
    (metrics.AUROC(), (0.40178571428571425, 0.401057636699771)),
    (metrics.AveragePrecision(), (0.40114084269481515, 0.4048425382307927)),
    (metrics.MeanIoU(), (0.05592314118629908, 0.04931579381361227)),
    (metrics.MatthewsCorrelation(), (-0.07335130933967147, -0.0789522881875826)),
    (metrics.CohenKappa(), (-0.06630211893369786, -0.07054488920647484)),
    ids=lambda argument: repr(argument)[:40],
)
def test_metrics_have_recorded_values(metric, expected):
    ranking = isinstance(metric, metrics.AUROC | metrics.AveragePrecision)
    scores, targets = (GUESSES, COIN) if ranking else (SCORES, LABELS)
    for weights, value in zip((None, WEIGHTS), expected, strict=True):
        np.testing.assert_allclose(measured(metric, scores, targets, weights), value, rtol=1e-6)


EACH = LABELS.copy()
EACH[:5] = range(5)  # each class occurs
FOUND, ONE_HOT = SCORES.argmax(1), np.eye(5, dtype=np.float32)[EACH]
_AUROC, _PRECISION = "roc_auc_score", "average_precision_score"
_WEIGHTED, _MICRO = ({"average": average} for average in ("weighted", "micro"))
# A metric, the prediction and target; the name of scikit-learn's function, and what it takes.
SCIKIT_LEARN = [
    (metrics.AUROC(), GUESSES, COIN, _AUROC, COIN, GUESSES, {}),
    (metrics.AUROC(), SHARES, EACH, _AUROC, ONE_HOT, SHARES, {}),
    (metrics.AUROC(logits=True), SCORES, EACH, _AUROC, ONE_HOT, SHARES, {}),
    (metrics.AUROC(**_WEIGHTED), SHARES, ONE_HOT, _AUROC, ONE_HOT, SHARES, _WEIGHTED),
    (metrics.AUROC(**_MICRO), SHARES, ONE_HOT, _AUROC, ONE_HOT, SHARES, _MICRO),
    (metrics.AUROC(average="none"), SHARES, ONE_HOT, _AUROC, ONE_HOT, SHARES, {"average": None}),
    (metrics.AveragePrecision(), GUESSES, COIN, _PRECISION, COIN, GUESSES, {}),
    (metrics.AveragePrecision(), SHARES, EACH, _PRECISION, ONE_HOT, SHARES, {}),
    (metrics.F1(**_WEIGHTED), SCORES, EACH, "f1_score", EACH, FOUND, _WEIGHTED),
    (metrics.MatthewsCorrelation(), GUESSES, COIN, "matthews_corrcoef", COIN, GUESSES > 0.5, {}),
    (metrics.Perplexity(), SCORES, EACH, "log_loss", EACH, SHARES, {}),
    (metrics.RootMeanSquaredError(), GUESSES, COIN, "root_mean_squared_error", COIN, GUESSES, {}),
]


@pytest.mark.sampled
@pytest.mark.parametrize("weighted", [False, True])
def test_metrics_agree_with_scikit_learn(weighted):
    theirs = pytest.importorskip("sklearn.metrics")
    weights = WEIGHTS if weighted else None
    for metric, prediction, target, score, *arguments, how in SCIKIT_LEARN:
        expected = getattr(theirs, score)(*arguments, **how, sample_weight=weights)
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
    confidences = SHARES.max(1)
    gap = abs(confidences.mean() - (SHARES.argmax(1) == LABELS).mean())
    for metric, scores in (
        (metrics.CalibrationError(bins=1), SHARES),
        (metrics.CalibrationError(bins=1, logits=True), SCORES),
    ):
        np.testing.assert_allclose(measured(metric, scores, LABELS), gap, rtol=1e-4)


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
    custom = [OfUser(), OwnFormula()]
    results = model.evaluate((normal(5, 3), np.arange(5) % 4), losses.CrossEntropy(), custom)
    assert list(results) == ["loss", "f1", "own_formula"]


def test_functions_and_losses_are_metrics():
    def largest(prediction, target):
        return lamina.ops.max(abs(prediction - target), 1)

    def bias(prediction, target):
        return lamina.ops.mean(prediction - target)

    net = lamina.Sequential(lamina.Input(3), lamina.Linear(2))
    model = lamina.Model(net, engine="interpreter")
    x, y = generator.normal(size=(2, 50, 3)).astype(np.float32)
    y = y[:, :2]
    distance = lamina.FunctionMetric(lambda p, t: abs(p - t), name="own")
    several = [largest, bias, distance, lamina.MAPE(), lamina.MAE(reduction="sum")]
    results = model.evaluate((x, y), lamina.MSE(), several, batch_size=16)
    difference = model.predict(x) - y
    expected = {
        "largest": abs(difference).max(1).mean(),
        "bias": difference.mean(),
        "own": abs(difference).mean(),
        "mape": 100 * (abs(difference) / abs(y)).mean(),
        "mae": abs(difference).sum(),
    }
    assert list(results) == ["loss", *expected]
    for name, value in expected.items():
        np.testing.assert_allclose(results[name], value, rtol=1e-4, err_msg=name)
    weights = generator.random(50)
    results = model.evaluate((x, y, weights), lamina.MSE(), [largest, lamina.MSE()], batch_size=16)
    largest_errors = np.average(abs(difference).max(1), weights=weights)
    np.testing.assert_allclose(results["largest"], largest_errors, rtol=1e-5)
    np.testing.assert_allclose(results["mse"], results["loss"], rtol=1e-6)


LABEL_SCORES = np.random.default_rng(8).normal(size=(60, 3)).astype(np.float32)
MULTI_HOT = (np.random.default_rng(9).random((60, 3)) < [0.2, 0.5, 0.7]).astype(np.float32)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("average", ["macro", "micro", "weighted", "none"])
def test_several_labels_count_on_their_own(average, weighted):
    weights = WEIGHTS if weighted else np.ones(60)
    guesses, truths = LABEL_SCORES > 0, MULTI_HOT > 0
    counts = [(weights @ mask).astype(float) for mask in (guesses & truths, guesses, truths)]
    shares = counts[2] / counts[2].sum() if average == "weighted" else np.full(3, 1 / 3)
    if average == "micro":
        counts, shares = [sums.sum(keepdims=True) for sums in counts], np.ones(1)
    hits, predicted, actual = counts
    precision, recall = hits / predicted, hits / actual
    for make, each in (
        (metrics.Precision, precision),
        (metrics.Recall, recall),
        (metrics.F1, 2 * precision * recall / (precision + recall)),
    ):
        metric = make(average=average, multilabel=True, logits=True)
        value = measured(metric, LABEL_SCORES, MULTI_HOT, weights if weighted else None)
        expected = each if average == "none" else each @ shares
        np.testing.assert_allclose(value, expected, rtol=1e-6)
        sigmoid = 1 / (1 + np.exp(-LABEL_SCORES))
        metric = make(average=average, multilabel=True)
        value = measured(metric, sigmoid, MULTI_HOT, weights if weighted else None)
        np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_averages_over_classes_and_labels_that_do_not_occur():
    scores, labels = np.eye(4)[[0, 0, 2]], np.array([0, 2, 2])
    assert measured(metrics.Recall(average="weighted"), scores, labels) == 2 / 3
    each = measured(metrics.Precision(average="none"), scores, labels)
    np.testing.assert_array_equal(each, [0.5, np.nan, 1, np.nan])
    nothing = np.zeros((4, 2))
    for average in ("macro", "micro", "weighted", "binary"):
        metric = metrics.F1(average=average, multilabel=average != "binary")
        assert measured(metric, nothing, nothing) == 0.0


@pytest.mark.cases(
    ("metric", "advice"),
    (metrics.Accuracy(), "lm.BinaryAccuracy(), for raw scores lm.BinaryAccuracy(threshold=0.0)"),
    (metrics.TopK(2), "lm.AveragePrecision()"),
    (metrics.F1(average="weighted"), "multilabel=True, for raw scores with logits=True"),
    (metrics.ConfusionMatrix(), "lm.F1(multilabel=True)"),
    (metrics.MeanIoU(), "lm.F1(multilabel=True)"),
    (metrics.Perplexity(), "the metric lm.BCEWithLogits()"),
    ids=repr,
)
@pytest.mark.parametrize("by_output", [False, True])
def test_several_labels_are_no_class(metric, advice, by_output):
    net = Sequential(lm.Input(3), lm.Identity())
    model = Model(net, engine="interpreter")
    choice = {"output0": metric} if by_output else [metric]
    loss = losses.BCEWithLogits()
    how = {"loss": [loss] if by_output else loss, "metrics": choice}
    text = error_text(DataError, lambda: model.evaluate((LABEL_SCORES, MULTI_HOT), **how))
    first = int(np.argmax(MULTI_HOT.sum(1) > 1))
    assert text.splitlines() == [
        f"in {type(metric).__name__}: targets are not one class for each example",
        "  expected  a sum of 1 over the classes",
        f"  found     {MULTI_HOT[first].sum()} at example {first}",
        f"  For several labels at once use {advice}, for quantities lm.R2().",
    ]
    # Of at most one label an example of none does not count.
    some = MULTI_HOT * (MULTI_HOT.sum(1, keepdims=True) < 2)
    kept = some.any(1)
    results = model.evaluate((LABEL_SCORES, some), **how)
    expected = model.evaluate(
        (LABEL_SCORES[kept], some[kept].argmax(1)), losses.CrossEntropy(), [metric]
    )
    (name,) = expected.keys() - {"loss"}
    np.testing.assert_allclose(results["output0_" * by_output + name], expected[name], rtol=1e-6)


def test_scores_as_targets_are_compared_by_a_function():
    """As where a network learns the scores of another one."""
    model = Model(Sequential(lm.Input(3), lm.Identity()), engine="interpreter")
    data, loss = (LABEL_SCORES, LABEL_SCORES[::-1]), losses.MSE()
    text = error_text(DataError, lambda: model.evaluate(data, loss, [metrics.Accuracy()]))
    assert (
        "  For quantities use lm.R2(). Scores are compared by a function: lm.FunctionMetric("
        in text
    )
    advised = eval(text.partition("function: ")[2].rstrip("."), {"lm": lamina})
    results = model.evaluate(data, loss, [advised])
    same = LABEL_SCORES.argmax(1) == LABEL_SCORES[::-1].argmax(1)
    assert results["agreement"] == pytest.approx(same.mean())


def test_shares_of_one_label_are_compared_with_the_threshold():
    net = Sequential(lm.Input(1), lm.Identity())
    shares = np.where(COIN > 0, 0.7, 0.2).astype("float32")[:, None]
    x, metric = GUESSES[:, None].astype("float32"), metrics.MeanIoU()
    model = Model(net, engine="interpreter")
    results = [model.evaluate((x, y), losses.MSE(), [metric]) for y in (shares, shares.round())]
    assert results[0]["mean_iou"] == results[1]["mean_iou"]


CLASSES = np.random.default_rng(10).integers(0, 3, 60)
OF_CLASSES = (LABEL_SCORES, CLASSES)
OF_ELEMENTS = (GUESSES, COIN.astype(np.float64))
OF_LABELS = (LABEL_SCORES.astype(np.float64), MULTI_HOT.astype(np.float64))
EVERY = [
    (metrics.Accuracy(), OF_CLASSES),
    (metrics.Accuracy(), (LABEL_SCORES, np.eye(3, dtype="f4")[CLASSES])),
    (metrics.TopK(2), OF_CLASSES),
    *(
        (make(average=how), OF_CLASSES)
        for make in (metrics.F1, metrics.Recall, metrics.Precision)
        for how in ("macro", "micro", "weighted")
    ),
    (metrics.F1(average="binary"), OF_ELEMENTS),
    (metrics.F1(multilabel=True), OF_LABELS),
    (metrics.ConfusionMatrix(), OF_CLASSES),
    (metrics.MeanIoU(), OF_CLASSES),
    (metrics.MeanIoU(), OF_ELEMENTS),
    (metrics.MatthewsCorrelation(), OF_CLASSES),
    (metrics.CohenKappa(), OF_ELEMENTS),
    (metrics.CohenKappa(), OF_CLASSES),
    (metrics.AUROC(), OF_ELEMENTS),
    (metrics.AUROC(average="weighted"), OF_LABELS),
    *((make(), OF_CLASSES) for make in (metrics.AUROC, metrics.AveragePrecision)),
    (metrics.AveragePrecision(logits=True), OF_CLASSES),
    (metrics.CalibrationError(), OF_ELEMENTS),
    (metrics.CalibrationError(logits=True), OF_CLASSES),
    (metrics.Perplexity(), OF_CLASSES),
    (metrics.MeanSquaredError(), OF_LABELS),
    (metrics.R2(), OF_LABELS),
]
TRIED = {type(metric).__name__ for metric, _ in EVERY} | {"Metric"}
EVERY += [
    (example_of(getattr(metrics, name)).made, OF_ELEMENTS)
    for name in metrics.__all__
    if name not in TRIED
]


@pytest.mark.parametrize(("metric", "arrays"), EVERY, ids=lambda argument: repr(argument)[:60])
def test_nan_among_what_counts_gives_nan(metric, arrays):
    scores, targets = (array.copy() for array in arrays)
    of_examples = [np.full(scores.shape[1:], np.nan), *([np.nan] if scores.ndim > 1 else [])]
    for value in of_examples:
        wrong = scores.copy()
        wrong[4, ...] = value
        if np.isscalar(value):
            wrong[4] = scores[4]
            wrong[4, 1] = np.nan
        assert np.isnan(measured(metric, wrong, targets)).all()
        # An example of weight 0 does not count.
        weights = np.ones(60)
        weights[4] = 0
        weighted = measured(metric, wrong, targets, weights)
        expected = measured(metric, *(np.delete(array, 4, 0) for array in (scores, targets)))
        np.testing.assert_allclose(weighted, expected, rtol=1e-5)
    if targets.dtype.kind == "f":
        targets[4] = np.nan
        assert np.isnan(measured(metric, scores, targets)).all()


@pytest.mark.parametrize(("metric", "arrays"), EVERY, ids=lambda argument: repr(argument)[:60])
def test_a_weight_of_two_counts_an_example_twice(metric, arrays):
    weights = generator.integers(0, 3, 60)
    repeated = (one[np.repeat(np.arange(60), weights)] for one in arrays)
    weighted = measured(metric, *arrays, weights.astype(arrays[0].dtype))
    np.testing.assert_allclose(weighted, measured(metric, *repeated), rtol=1e-5)


OF_INDICES = [
    metric for metric, arrays in EVERY if arrays is OF_CLASSES and hasattr(metric, "ignore_index")
]


@pytest.mark.parametrize("metric", OF_INDICES, ids=lambda metric: repr(metric)[:60])
def test_targets_of_the_ignored_class_do_not_count(metric):
    images, pixels = generator.normal(size=(8, 3, 4, 2)), generator.integers(0, 3, (8, 4, 2))
    for scores, labels in (OF_CLASSES, (images, pixels)):
        rows = np.moveaxis(scores, 1, -1).reshape(-1, scores.shape[1])
        kept = labels.ravel() != 2
        ignored = np.where(labels == 2, -1, labels)
        result = measured(replace(metric, ignore_index=-1), scores, ignored)
        expected = measured(metric, rows[kept], labels.ravel()[kept])
        np.testing.assert_allclose(result, expected, rtol=1e-5)


@pytest.mark.parametrize(("metric", "arrays"), EVERY, ids=lambda argument: repr(argument)[:60])
def test_means_over_nothing_are_nan(metric, arrays):
    result = measured(metric, *arrays, np.zeros(60))
    expected = 0.0 if getattr(metric, "_on_its_own", False) else np.nan
    if not isinstance(metric, metrics.ConfusionMatrix):
        np.testing.assert_equal(result, expected)


def test_equal_infinite_scores_are_one_threshold():
    for infinite in (np.inf, -np.inf):
        scores = np.full(60, infinite)
        for targets in (COIN, COIN[::-1], np.sort(COIN)):
            assert measured(metrics.AUROC(), scores, targets) == 0.5
            precision = measured(metrics.AveragePrecision(), scores, targets)
            np.testing.assert_allclose(precision, COIN.mean(), rtol=1e-12)
    scores = np.where(COIN > 0, np.inf, -np.inf)
    assert measured(metrics.AUROC(), scores, COIN) == 1.0


@pytest.mark.filterwarnings("error")
def test_infinite_numbers_are_not_hidden():
    x, y = (generator.normal(size=(20, 2)) for _ in range(2))
    x[3, 0] = np.inf
    assert measured(metrics.R2(), x, y) == -np.inf
    assert measured(metrics.MeanSquaredError(), x, y) == np.inf
    y[3, 0] = -np.inf
    assert np.isnan(measured(metrics.R2(), x[::-1], y))
    scores = np.array([[0.0, -np.inf], [0.0, 1.0]])
    assert measured(metrics.Perplexity(), scores, np.array([1, 0])) == np.inf
    assert measured(metrics.Perplexity(), np.array([[0, 1e4]] * 2), np.array([0, 0])) == np.inf
    # A class that there is not has no probability.
    assert np.isnan(measured(metrics.Perplexity(), LABEL_SCORES, np.full(60, 7)))
