"""Metrics of several labels at once, and metrics of NaN, infinity and nothing."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from docstring_examples import example_of
from error_texts import error_text
from metric_values import measured

import lamina
from lamina import Model, Sequential
from lamina import layers as lm
from lamina.errors import DataError
from lamina.learning import losses, metrics

generator = np.random.default_rng(0)
WEIGHTS = generator.random(60)
GUESSES, COIN = np.round(generator.random(60), 1), generator.integers(0, 2, 60)

LABEL_SCORES = np.random.default_rng(8).normal(size=(60, 3)).astype(np.float32)
MULTI_HOT = (np.random.default_rng(9).random((60, 3)) < [0.2, 0.5, 0.7]).astype(np.float32)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("average", ["macro", "micro", "weighted", "none"])
def test_several_labels_count_on_their_own(average, weighted):
    weights = WEIGHTS if weighted else np.ones(60)
    found, wanted = LABEL_SCORES > 0, MULTI_HOT > 0
    counts = [(weights @ one).astype(float) for one in (found & wanted, found, wanted)]
    shares = counts[2] / counts[2].sum() if average == "weighted" else np.full(3, 1 / 3)
    if average == "micro":
        counts, shares = [one.sum(keepdims=True) for one in counts], np.ones(1)
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


@pytest.mark.parametrize(
    ("metric", "advice"),
    [
        (
            metrics.Accuracy(),
            "lm.BinaryAccuracy(), for raw scores lm.BinaryAccuracy(threshold=0.0)",
        ),
        (metrics.TopK(2), "lm.AveragePrecision()"),
        (metrics.F1(average="weighted"), "multilabel=True, for raw scores with logits=True"),
        (metrics.ConfusionMatrix(), "lm.F1(multilabel=True)"),
        (metrics.MeanIoU(), "lm.F1(multilabel=True)"),
        (metrics.Perplexity(), "the metric lm.BCEWithLogits()"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("by_output", [False, True])
def test_several_labels_are_no_class(metric, advice, by_output):
    net = Sequential(lm.Input(3), lm.Identity())
    model = Model(net, engine="interpreter")
    given: Any = {"output0": metric} if by_output else [metric]
    loss = losses.BCEWithLogits()
    how: Any = {"loss": [loss] if by_output else loss, "metrics": given}
    text = error_text(DataError, lambda: model.evaluate((LABEL_SCORES, MULTI_HOT), **how))
    first = int(np.argmax(MULTI_HOT.sum(1) > 1))
    assert text.splitlines() == [
        f"in {type(metric).__name__}: targets are not one class for each example",
        "  expected  a sum of 1 over the classes",
        f"  found     {MULTI_HOT[first].sum()} at example {first}",
        f"  For several labels at once use {advice}.",
    ]
    # Of at most one label an example of none does not count.
    some = MULTI_HOT * (MULTI_HOT.sum(1, keepdims=True) < 2)
    kept = some.any(1)
    found = model.evaluate((LABEL_SCORES, some), **how)
    expected = model.evaluate(
        (LABEL_SCORES[kept], some[kept].argmax(1)), losses.CrossEntropy(), [metric]
    )
    (name,) = expected.keys() - {"loss"}
    np.testing.assert_allclose(found["output0_" * by_output + name], expected[name], rtol=1e-6)


def test_scores_as_targets_are_compared_by_a_function():
    """As where a network learns the scores of another one."""
    model = Model(Sequential(lm.Input(3), lm.Identity()), engine="interpreter")
    data, loss = (LABEL_SCORES, LABEL_SCORES[::-1]), losses.MSE()
    text = error_text(DataError, lambda: model.evaluate(data, loss, [metrics.Accuracy()]))
    assert "Scores are compared by a function: lm.FunctionMetric(lambda y, t: lm.ops.mean(" in text
    advised = eval(text.partition("function: ")[2].rstrip("."), {"lm": lamina})
    found = model.evaluate(data, loss, [advised])
    same = LABEL_SCORES.argmax(1) == LABEL_SCORES[::-1].argmax(1)
    assert found["agreement"] == pytest.approx(same.mean())


def test_shares_of_one_label_are_compared_with_the_threshold():
    net = Sequential(lm.Input(1), lm.Identity())
    shares = np.where(COIN > 0, 0.7, 0.2).astype("float32")[:, None]
    x, metric = GUESSES[:, None].astype("float32"), metrics.MeanIoU()
    model = Model(net, engine="interpreter")
    found = [model.evaluate((x, y), losses.MSE(), [metric]) for y in (shares, shares.round())]
    assert found[0]["mean_iou"] == found[1]["mean_iou"]


CLASSES = np.random.default_rng(10).integers(0, 3, 60)
OF_CLASSES = (LABEL_SCORES, CLASSES)
OF_ELEMENTS = (GUESSES, COIN.astype(np.float64))
OF_LABELS = (LABEL_SCORES.astype(np.float64), MULTI_HOT.astype(np.float64))
EVERY: list[tuple[metrics.Metric, tuple[np.ndarray, np.ndarray]]] = [
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


@pytest.mark.parametrize(("metric", "arrays"), EVERY, ids=lambda one: repr(one)[:60])
def test_nan_among_what_counts_gives_nan(metric, arrays):
    scores, targets = (one.copy() for one in arrays)
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
        found = measured(metric, wrong, targets, weights)
        expected = measured(metric, *(np.delete(one, 4, 0) for one in (scores, targets)))
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    if targets.dtype.kind == "f":
        targets[4] = np.nan
        assert np.isnan(measured(metric, scores, targets)).all()


@pytest.mark.parametrize(("metric", "arrays"), EVERY, ids=lambda one: repr(one)[:60])
def test_a_weight_of_two_counts_an_example_twice(metric, arrays):
    weights = generator.integers(0, 3, 60)
    repeated = (one[np.repeat(np.arange(60), weights)] for one in arrays)
    found = measured(metric, *arrays, weights.astype(arrays[0].dtype))
    np.testing.assert_allclose(found, measured(metric, *repeated), rtol=1e-5)


OF_INDICES = [
    metric for metric, arrays in EVERY if arrays is OF_CLASSES and hasattr(metric, "ignore_index")
]


@pytest.mark.parametrize("metric", OF_INDICES, ids=lambda one: repr(one)[:60])
def test_targets_of_the_ignored_class_do_not_count(metric):
    images, pixels = generator.normal(size=(8, 3, 4, 2)), generator.integers(0, 3, (8, 4, 2))
    for scores, labels in (OF_CLASSES, (images, pixels)):
        rows = np.moveaxis(scores, 1, -1).reshape(-1, scores.shape[1])
        kept = labels.ravel() != 2
        ignored = np.where(labels == 2, -1, labels)
        found = measured(replace(metric, ignore_index=-1), scores, ignored)
        expected = measured(metric, rows[kept], labels.ravel()[kept])
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(("metric", "arrays"), EVERY, ids=lambda one: repr(one)[:60])
def test_means_over_nothing_are_nan(metric, arrays):
    found = measured(metric, *arrays, np.zeros(60))
    expected = 0.0 if getattr(metric, "_on_its_own", False) else np.nan
    if not isinstance(metric, metrics.ConfusionMatrix):
        np.testing.assert_equal(found, expected)


def test_equal_infinite_scores_are_one_threshold():
    for infinite in (np.inf, -np.inf):
        scores = np.full(60, infinite)
        for wanted in (COIN, COIN[::-1], np.sort(COIN)):
            assert measured(metrics.AUROC(), scores, wanted) == 0.5
            found = measured(metrics.AveragePrecision(), scores, wanted)
            np.testing.assert_allclose(found, COIN.mean(), rtol=1e-12)
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
