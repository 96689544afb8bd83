"""Every loss on the engine under test: weighted value, gradient, and statistics of metrics."""

from typing import Any

import numpy as np
import pytest
from docstring_examples import example_of
from harness import Leaves
from loss_limits import LIMITS

import lamina as lm
from lamina import ops
from lamina.base.shapes import Array, DType, bfloat16, converted, float16, float32
from lamina.graph import Tensor, bind_batch, evaluate
from lamina.learning import losses, metrics
from lamina.ops.differentiate import gradients

generator = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return generator.normal(size=shape).astype("float32")


SCORES, OTHERS, THIRD = (normal(7, 5) for _ in range(3))
SHARES = np.exp(SCORES) / np.exp(SCORES).sum(1, keepdims=True)
LABELS = generator.integers(0, 5, 7)
SIGNS = np.where(OTHERS < 0, -1, 1).astype("float32")
TIMES = np.log(generator.dirichlet(np.ones(4), (7, 6))).astype("float32")
SEQUENCES = generator.integers(1, 4, (7, 3))
SEQUENCES[::2, 1:] = -1

# Predictions, and the target, of losses that do not take two tensors of one shape.
CASES: dict[str, tuple[losses.Loss, list[Array], Array | None]] = {
    "MSLE": (lm.MSLE(), [SHARES], np.abs(OTHERS)),
    "Quantile": (lm.Quantile([0.1, 0.3, 0.5, 0.7, 0.9]), [SCORES], OTHERS[:, 0]),
    "CrossEntropy": (lm.CrossEntropy(ignore_index=2), [SCORES], LABELS),
    "NLL": (lm.NLL(class_weights=[1, 2, 3, 4, 5]), [np.log(SHARES)], LABELS),
    "Focal": (lm.Focal(), [SCORES], LABELS),
    "BCE": (lm.BCE(), [SHARES], (OTHERS > 0).astype("float32")),
    "BCEWithLogits": (lm.BCEWithLogits(positive_weight=2.0), [SCORES], SHARES),
    "BinaryFocal": (lm.BinaryFocal(), [SCORES], (OTHERS > 0).astype("float32")),
    "KLDivergence": (lm.KLDivergence(reduction="batchmean"), [np.log(SHARES)], SHARES[::-1]),
    "GaussianNLL": (lm.GaussianNLL(full=True), [SCORES, SHARES], OTHERS),
    "PoissonNLL": (lm.PoissonNLL(full=True), [SCORES], np.floor(np.abs(OTHERS) * 3)),
    "EvidenceLowerBound": (lm.EvidenceLowerBound(), [SCORES, OTHERS, THIRD], SHARES),
    "Hinge": (lm.Hinge(), [SCORES], SIGNS),
    "SquaredHinge": (lm.SquaredHinge(), [SCORES], SIGNS),
    "SoftMargin": (lm.SoftMargin(), [SCORES], SIGNS),
    "HingeEmbedding": (lm.HingeEmbedding(), [SCORES], SIGNS),
    "MarginRanking": (lm.MarginRanking(margin=0.3), [SCORES, THIRD], SIGNS),
    "MultiMargin": (lm.MultiMargin(power=2), [SCORES], LABELS),
    "CategoricalHinge": (lm.CategoricalHinge(), [SCORES], LABELS),
    "MultiLabelMargin": (
        lm.MultiLabelMargin(),
        [SCORES],
        np.where(np.arange(5) < 2, generator.integers(0, 5, (7, 5)), -1),
    ),
    "MultiLabelSoftMargin": (lm.MultiLabelSoftMargin(), [SCORES], (OTHERS > 0).astype("float32")),
    "Triplet": (lm.Triplet(swap=True), [SCORES, OTHERS, THIRD], None),
    "TripletWithDistance": (
        lm.TripletWithDistance(lambda a, b: ops.sum(abs(a - b), -1)),
        [SCORES, OTHERS, THIRD],
        None,
    ),
    "CosineEmbedding": (lm.CosineEmbedding(margin=0.1), [SCORES, THIRD], SIGNS[:, 0]),
    "Dice": (lm.Dice(), [SHARES], LABELS),
    "CTC": (lm.CTC(), [TIMES], SEQUENCES),
}
CASES |= {
    name: (example_of(getattr(losses, name)).made, [SCORES], OTHERS)
    for name in losses.__all__
    if name not in ("Loss", "Elements", *CASES)
}


def applied(
    case: tuple[losses.Loss, list[Array], Array | None], leaves: Leaves, dtype: DType = float32
) -> tuple[list[Tensor], Tensor | None]:
    """The predictions and the target; floats are of the type."""
    _, predictions, target = case
    x = [leaves.add(converted(array, dtype.numpy)) for array in predictions]
    if target is None:
        return x, None
    return x, leaves.add(converted(target, dtype.numpy) if target.dtype.kind == "f" else target)


def called(loss: losses.Loss, x: list[Tensor], *further: Any) -> Tensor:
    return loss(x if len(x) > 1 else x[0], *further)


def value_of(case: Any, dtype: DType = float32) -> float:
    leaves = Leaves()
    x, y = applied(case, leaves, dtype)
    outputs, _ = evaluate(bind_batch(leaves.graph([called(case[0], x, y)]), 1), leaves.feeds)
    return float(outputs["y0"])


@pytest.mark.cases("loss, predictions, target", CASES)
def test_a_prediction_of_nan_gives_a_loss_of_nan(loss, predictions, target):
    for number in range(len(predictions)):
        arrays = [array.astype("float32") for array in predictions]
        arrays[number][3] = np.nan
        assert np.isnan(value_of((loss, arrays, target))), number


@pytest.mark.parametrize("half", [bfloat16, float16], ids=str)
@pytest.mark.cases("loss, predictions, target", CASES)
def test_a_loss_of_16_bits_is_computed_in_float32(loss, predictions, target, half):
    def rounded(x):
        return converted(converted(x, half.numpy), float32.numpy) if x.dtype.kind == "f" else x

    case = loss, [*map(rounded, predictions)], None if target is None else rounded(target)
    wide = np.asarray(value_of(case), "float32")
    assert value_of(case, half) == float(converted(wide, half.numpy))


def test_weighted_losses_and_gradients_agree_with_numpy(check_cases):
    def build(name, leaves):
        x, y = applied(CASES[name], leaves)
        weights = leaves.add(np.random.default_rng(1).random(7).astype("float32"))
        value = called(CASES[name][0], x, y, weights)
        return [value, *gradients(value, x)]

    check_cases(CASES, build)


def test_limits_agree_with_numpy(check_cases):
    def build(name, leaves):
        x, y = applied(LIMITS[name][:3], leaves)
        value = called(LIMITS[name][0], x, y)
        return [value, *gradients(ops.sum(value), x)]

    check_cases(LIMITS, build)


UNKNOWN = np.where(np.arange(35).reshape(7, 5) == 11, np.nan, SCORES)
METRICS: dict[str, tuple[Any, Array, Array]] = {
    "labels": (metrics.F1(multilabel=True), SCORES, (OTHERS > 0).astype("float32")),
    "Accuracy of NaN": (metrics.Accuracy(), UNKNOWN, LABELS),
    "ConfusionMatrix of NaN": (metrics.ConfusionMatrix(ignore_index=1), UNKNOWN, LABELS),
    "Precision of NaN": (metrics.Precision(), UNKNOWN, LABELS),
    "MeanIoU": (metrics.MeanIoU(), SCORES, LABELS),
    "MatthewsCorrelation": (metrics.MatthewsCorrelation(), SHARES[:, 0], (SIGNS[:, 0] > 0) * 1.0),
    "CalibrationError": (metrics.CalibrationError(bins=5, logits=True), SCORES, LABELS),
    "Perplexity": (metrics.Perplexity(ignore_index=1), SCORES, LABELS),
    "F1": (metrics.F1(ignore_index=1), SCORES, LABELS),
    "TopK": (metrics.TopK(2), SCORES, LABELS),
    "AUROC": (metrics.AUROC(logits=True), SCORES, LABELS),
    "R2": (metrics.R2(), SCORES, OTHERS),
}


def test_weighted_statistics_agree_with_numpy(check_cases):
    def build(name, leaves):
        metric, prediction, target = METRICS[name]
        x, y = leaves.add(prediction), leaves.add(np.asarray(target, target.dtype))
        weights = leaves.add(np.random.default_rng(1).random(7).astype("float32"))
        return list(metric.statistics(x, y, weights=weights).values())

    check_cases(METRICS, build)
