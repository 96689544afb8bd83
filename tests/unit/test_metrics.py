"""Metrics against NumPy, over several batches, and the text of errors."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from error_texts import error_text

from lamina import layers as lm
from lamina.errors import DefinitionError, DTypeError, ShapeError
from lamina.graph import Graph, bind_batch, evaluate, leaf
from lamina.shapes import BATCH, as_dtype, float32, int64
from lamina.training import metrics

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
    sums = dict.fromkeys(statistics, np.float64(0))
    bounds = [0, *(len(prediction) // 4 * n for n in range(1, pieces)), len(prediction)]
    for start, stop in itertools.pairwise(bounds):
        graph = bind_batch(Graph((x, y), tuple(statistics.items())), stop - start)
        found, _ = evaluate(graph, {"x": prediction[start:stop], "y": target[start:stop]})
        sums = {name: sums[name] + found[name].astype(np.float64) for name in sums}
    return metric.result(sums)


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


def test_top_k_does_not_count_nan() -> None:
    scores = np.array([[np.nan, 1.0], [0.0, 1.0]])
    assert run(metrics.TopK(1), scores, np.array([0, 1]), 1) == 0.5


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


def test_r2_of_targets_that_do_not_vary() -> None:
    constant = np.full((4, 1), 2.0)
    assert run(metrics.R2(), constant, constant, 1) == 1.0
    assert run(metrics.R2(), constant + 1, constant, 1) == 0.0


@pytest.mark.parametrize(
    "metric",
    [metrics.Accuracy(), metrics.TopK(2), metrics.F1(), metrics.ConfusionMatrix()],
    ids=repr,
)
def test_metrics_of_classes_explain_targets_that_do_not_fit(metric: metrics.Metric) -> None:
    column = leaf("y", "input", (BATCH, 1), int64)
    found = error_text(ShapeError, lambda: metric.statistics(lm.Input(4), column))
    assert found.startswith(f"in {type(metric).__name__} (test_metrics.py:")
    assert "the target does not fit the prediction" in found
    assert "expected    [batch]" in found
    assert "found       i64[batch, 1]" in found
    floats = leaf("y", "input", (BATCH,), float32)
    found = error_text(DTypeError, lambda: metric.statistics(lm.Input(4), floats))
    assert "class numbers must be integers" in found
    found = error_text(ShapeError, lambda: metric.statistics(lm.Input(), floats))
    assert "the prediction has no axis of at least two classes" in found
    assert "BinaryAccuracy" in found


def test_metrics_of_elements_need_one_shape() -> None:
    for metric in (metrics.BinaryAccuracy(), metrics.Recall(average="binary"), metrics.R2()):
        with pytest.raises(ShapeError, match="the target does not fit the prediction"):
            metric.statistics(lm.Input(4), lm.Input())


def test_hyper_parameters_are_checked() -> None:
    with pytest.raises(DefinitionError) as error:
        metrics.TopK(0)
    assert str(error.value).startswith("in TopK (test_metrics.py:")
    with pytest.raises(DefinitionError, match="average must be one of 'macro', 'micro', 'binary'"):
        metrics.F1(average="weighted")


@pytest.mark.parametrize(
    "metric",
    [metrics.Accuracy(), metrics.TopK(1), metrics.F1(), metrics.ConfusionMatrix()],
    ids=repr,
)
def test_a_single_score_is_no_choice_of_classes(metric: metrics.Metric) -> None:
    with pytest.raises(ShapeError, match="no axis of at least two classes"):
        metric.statistics(lm.Input(1), leaf("y", "input", (BATCH,), int64))
