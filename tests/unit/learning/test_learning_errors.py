"""What losses, metrics, optimizers and schedules refuse, and weights and losses by output.

Wrong types and ranges of single options are tested for all by what their kinds read, see
`tests/golden/parameters.txt`.
"""

from typing import Any

import numpy as np
import pytest
from error_texts import check_refusal

import lamina as lm
from lamina import ops
from lamina.base.shapes import BATCH as B
from lamina.base.shapes import as_dtype
from lamina.errors import DataError, DefinitionError, DTypeError, LaminaError, ShapeError
from lamina.graph import leaf
from lamina.learning import losses, metrics
from lamina.learning.weighting import balanced

pytestmark = pytest.mark.each_case

x = lm.Input


def y(*shape, dtype="int64"):
    """A target."""
    return leaf("y", "input", (B, *shape), as_dtype(dtype))


PROBABILITIES = np.array([[0.0, 1.0], [0.5, 1.5]])
IGNORED = np.array([0, -1, 1, 1, -1, 3])
SIGNS = np.array([1, -1, 1, 1])
TWELFTH = np.where(np.arange(50) == 37, 12, 0)


PROBABLE = {"classes": lm.CrossEntropy(), "boxes": lm.BCEWithLogits()}
BOTH = {"boxes": lm.MSE(), "classes": lm.CrossEntropy()}
generator = np.random.default_rng(0)
X = generator.normal(size=(40, 3)).astype("float32")
BOXES = generator.normal(size=(40, 2)).astype("float32")
LABELS = np.arange(40) % 4
WEIGHTS = np.ones(40)
DATA = (X, (BOXES, LABELS))
BAD_LABELS = np.where(np.arange(40) == 5, 9, LABELS)


def of_two(**names):
    """A model with two outputs, which perhaps have names."""
    given = x(3)
    outputs = [lm.Linear(2)(given), lm.Linear(4)(given)]
    named = outputs if names else dict(zip(BOTH, outputs, strict=True))
    return lm.Model(lm.Network(given, named), engine="interpreter")


def of_one(outputs=4):
    return lm.Model(lm.Sequential(x(3), lm.Linear(outputs)), engine="interpreter")


def both(data=DATA, loss=BOTH, metrics=()):
    return of_two().evaluate(data, loss, metrics)


def fitted(model, data, loss, **how):
    return model.fit(data, loss=loss, **{"optimizer": lm.SGD(0.1)} | how)


def with_classes(classes):
    return fitted(of_one(), (X, LABELS), lm.CrossEntropy(), class_weights=classes)


def weighted(weights, loss=None, metrics=()):
    return of_one().evaluate((X, LABELS, weights), loss or lm.CrossEntropy(), metrics)


def step(weights, **data):
    with of_one().training(lm.CrossEntropy(), lm.SGD(0.1), 40, **data) as training:
        training.step(X, LABELS, *weights)


OF_MEAN = lm.FunctionMetric(lambda p, t: ops.mean(p), name="bias")


def divergence(y_true, y_pred):
    return y_true - y_pred


class Own:
    name = "own"

    def statistics(self, prediction, target):
        return {"sum": ops.sum(prediction)}

    def result(self, sums):
        return float(sums["sum"])


def bad_weight(value):
    return np.where(np.arange(40) == 7, value, WEIGHTS)


NAMED = "The outputs are named 'boxes' and 'classes'."
OF_NAMES = "dict by names of losses: factors={'boxes': 0.5}. Others are 1."
OF_DATASET = "A training is made for weights by data=lm.data.Dataset(x, y, weights=...)"


# Calls, and parts of the texts of their errors in their order.
Rows = list[tuple[Any, ...]]
TRANSPOSED = "Classes are axis 1 of the prediction: lm.ops.transpose(prediction, (0, 2, 1))."
OF_ONE_HOT = "Make class numbers of one-hot targets: y.argmax(axis=1)."
DROP = "Drop the last axis of the targets: y[..., 0]."
UNFIT = "the target does not fit the prediction"
FEW = "the prediction has no axis of at least two classes"
FLATTEN = "For one result of each example put lm.Flatten() before the last lm.Linear. Give every"
QUANTITIES = "for quantities lm.R2() or lm.MeanAbsoluteError()."
AUTOENCODER = "EvidenceLowerBound takes the three outputs of a variational autoencoder"
POSITIONS = (
    "The prediction has an axis for each position: put lm.Flatten() before the last "
    'lm.Linear, or returns="last" in a recurrent layer, for one result of each example.'
)
OF_CLASSES = [metrics.Accuracy(), metrics.TopK(2), metrics.F1(), metrics.ConfusionMatrix()]


def scores_of_pixels():
    return lm.Linear(2)(lm.Conv2d(4, 3)(x(1, 6, 6)))


SHAPES = [
    # Losses.
    (
        lambda: losses.MSE()(x(1), x()),
        *("in MSE (test_learning_errors.py:", UNFIT, "prediction  f32[batch, 1]"),
        *("expected    f32[batch, 1]", "found       f32[batch]"),
        "Give the targets a last axis: y[..., None].",
    ),
    (lambda: losses.MSE()(x(), x(1)), DROP),
    (lambda: losses.CrossEntropy()(x(4), y(1)), "expected    i64[batch]", DROP),
    *(
        (lambda loss=loss, dtype=dtype: loss(x(4), y(4, dtype=dtype)), OF_ONE_HOT)
        for loss, dtype in (
            (losses.CrossEntropy(), "int64"),
            (losses.CrossEntropy(), "bool"),
            (losses.NLL(), "float32"),
            (losses.Focal(), "int64"),
            (losses.MultiMargin(), "float32"),
        )
    ),
    (lambda: losses.CrossEntropy()(x(12, 50), y(12)), "expected    i64[batch, 50]", TRANSPOSED),
    (
        lambda: losses.CrossEntropy()(x(), x()),
        *(FEW, "For two classes as one number use lm.BCEWithLogits(), for quantities lm.MSE()."),
    ),
    *(
        (lambda loss=loss, t=t: loss(x(1), t), FEW, "found     f32[batch, 1]")
        for loss in (losses.CrossEntropy(), losses.NLL(), losses.Focal(), losses.MultiMargin())
        for t in (y(1, dtype="float32"), y())
    ),
    (lambda: losses.CrossEntropy()(scores_of_pixels(), y()), POSITIONS),
    (lambda: losses.CrossEntropy()(x(1, 8, 10), y()), FEW, FLATTEN),
    (lambda: metrics.F1().statistics(x(1, 8, 10), y()), FEW, FLATTEN),
    (lambda: losses.MSE()(scores_of_pixels(), x(2)), POSITIONS),
    (
        lambda: losses.MSE()(x(3), y()),
        "Class numbers are for the loss lm.CrossEntropy() and the metric lm.Accuracy(). For",
        "end in lm.Linear(1), and give the targets a last axis: y[..., None].",
    ),
    (
        lambda: losses.BCEWithLogits()(x(1), y()),
        "words are classes, with one output for each and lm.CrossEntropy().",
    ),
    (lambda: losses.Dice()(x(), x()), "the prediction has no axis of classes"),
    (lambda: losses.Triplet()((x(4), x(4), x(5))), "does not fit"),
    (lambda: losses.EvidenceLowerBound()((x(4), x(4), x(5)), x(4)), "does not fit"),
    (lambda: losses.EvidenceLowerBound()((x(5), x(4), x(4)), x(4)), "does not fit"),
    (
        lambda: losses.CrossEntropy(class_weights=[1.0, 1.0])(x(3), y()),
        *("expected  3 weights for f32[batch, 3]", "found     2 weights"),
    ),
    (
        lambda: losses.Quantile([0.1, 0.5, 0.9])(x(2), x()),
        "the last axis of the prediction has one number for each quantile",
    ),
    (
        lambda: losses.CosineEmbedding()((x(4), x(4)), x(4)),
        "There is one target, 1 or -1, for each pair of vectors.",
    ),
    (lambda: losses.GaussianNLL()((x(4), x(3)), x(4)), "the variance does not fit the mean"),
    (
        lambda: losses.CTC()(x(7), y(3)),
        *("the labels do not fit the prediction", "Fill the labels up with -1 to the longest"),
    ),
    # Metrics.
    *(
        row
        for metric in OF_CLASSES
        for row in (
            (
                lambda metric=metric: metric.statistics(x(4), y(1)),
                *(f"in {type(metric).__name__} (test_learning_errors.py:", UNFIT),
                *("expected    i64[batch]", "found       i64[batch, 1]", DROP),
            ),
            (
                lambda metric=metric: metric.statistics(x(), y(dtype="float32")),
                *(FEW, f"For two classes as one number use {metric.of_one_number}, {QUANTITIES}"),
            ),
            (lambda metric=metric: metric.statistics(x(1), y()), FEW),
        )
    ),
    *(
        (lambda metric=metric: metric.statistics(x(4), x()), UNFIT)
        for metric in (metrics.BinaryAccuracy(), metrics.Recall(average="binary"), metrics.R2())
    ),
    (
        lambda: lm.FunctionMetric(lambda p, t: 3, name="three").statistics(x(2), x(2)),
        "the metric 'three' gives no tensor",
    ),
    # Trainings and evaluations.
    (
        lambda: weighted(WEIGHTS, metrics=[OF_MEAN]),
        "the examples have weights, and the metric 'bias' gives one number",
        "Return a number for each example.",
    ),
    (
        lambda: weighted(np.ones((40, 2))),
        *("the weights do not fit the values that they weight", "expected  [batch]"),
        "found     f32[batch, 2]",
    ),
    (
        lambda: with_classes([1.0, 2.0]),
        *("expected  4 weights for f32[batch, 4]", "or a dict of those that differ from 1"),
    ),
    (
        lambda: with_classes({0: 1.0, 5: 2.0}),
        "in class_weights: there is no class of that number",
        *("  expected  0..3 for f32[batch, 4]", "  found     {5: 2.0}"),
        "Classes are numbered from 0.",
    ),
]
DTYPES = [
    (
        lambda: losses.NLL()(x(4), y(dtype="bool")),
        *("class numbers must be integers", "expected    i64[batch]", "found       bool[batch]"),
        "Convert the targets: y.astype('int64').",
    ),
    (lambda: losses.CrossEntropy()(x(4), y(dtype="float32")), "class numbers must be integers"),
    (
        lambda: losses.MSE()(x(4), y(4, dtype="float64")),
        "the target has another float type than the prediction",
        "Convert the targets: y.astype('float32').",
    ),
    (lambda: losses.MSE()(y(4), y(4)), "a prediction of floats"),
    (lambda: losses.CTC()(x(7, 4), x(3)), "labels and lengths are integers"),
    *(
        (
            lambda metric=metric: metric.statistics(x(4), y(dtype="float32")),
            "class numbers must be integers",
        )
        for metric in OF_CLASSES
    ),
    # Trainings and evaluations.
    (
        lambda: both((X, (BOXES, LABELS.astype("float32")))),
        *("class numbers must be integers", "  target      y[1], of the output 'classes'"),
        "Convert the targets: y[1].astype('int64').",
    ),
]
MASKED = np.ma.masked_array([1.0, 2.0], mask=[False, True])
ONE_MORE, ONE_RATE = "one schedule more than boundaries", "one rate more"
LBFGS = (
    "averages are kept of parameters that are updated one by one",
    *("LBFGS, which updates all as one vector", "Use the optimizer alone"),
)


def planned(optimizer):
    network = lm.Sequential(x(4), lm.Linear(5), lm.Tanh(), lm.Linear(3))
    return network.plan(8, lm.CrossEntropy(), optimizer)


DEFINITIONS = [
    # Losses.
    (
        lambda: losses.CrossEntropy(class_weights=[1.0, -1.0]),
        "class_weights[1] must be a number of",
    ),
    (lambda: losses.CrossEntropy(class_weights=MASKED), "class_weights[1] must be a number"),
    (
        lambda: losses.Triplet()((x(4), x(4)), x(4)),
        *("found     2 outputs, a target", "outputs=[anchor, positive, negative]"),
    ),
    (
        lambda: losses.EvidenceLowerBound()(x(4), x(4)),
        *(AUTOENCODER, "expected  (logits, mean, log_variance)", "found     1 output"),
    ),
    *(
        (
            lambda loss=loss: loss(x(4), x(4)),
            *(f"{type(loss).__name__} compares 2 outputs of a network", f"expected  ({names})"),
            "found     1 output",
        )
        for loss, names in (
            (losses.MarginRanking(), "first, second"),
            (losses.CosineEmbedding(), "first, second"),
            (losses.GaussianNLL(), "mean, variance"),
        )
    ),
    *(
        (
            lambda how=how: of_one().evaluate((X, np.zeros((40, 4), "float32")), *how),
            "the function takes the target first, and gets the prediction first\n",
            *("  expected  (prediction, target)\n", "  found     (y_true, y_pred)\n"),
            "  Swap them: lambda y_pred, y_true: divergence(y_true, y_pred).",
        )
        for how in ([divergence], [losses.MSE(), [divergence]])
    ),
    *(
        (
            lambda layer=layer, do=do: do(of_one(3), (X, X), lambda y, t: ops.mean(layer(y) - t)),
            f"in loss/{type(layer).__name__}",
            "only layers without parameters and states are applied outside of a network",
            "lm.Network(x, [y, layer(y)])",
        )
        for layer in (lm.Linear(3), lm.BatchNorm(affine=False))
        for do in (fitted, lm.Model.evaluate)
    ),
    # The words of Keras.
    *(
        (
            lambda how=how: fitted(of_one(), (X, LABELS), **{"loss": lm.CrossEntropy()} | how),
            f"Write {here}.",
        )
        for how, here in (
            ({"loss": "mse"}, "lm.MSE()"),
            ({"loss": "mean_squared_error"}, "lm.MSE()"),
            ({"loss": "sparse_categorical_crossentropy"}, "lm.CrossEntropy()"),
            ({"loss": "bce_with_logits"}, "lm.BCEWithLogits()"),
            ({"optimizer": "adamw"}, "lm.AdamW()"),
            ({"metrics": ["acc"]}, "lm.Accuracy()"),
            ({"metrics": ["top_k"]}, "lm.TopK()"),
            ({"metrics": ["mape"]}, "lm.MAPE()"),
            ({"metrics": "mse"}, "[lm.MeanSquaredError()]"),
        )
    ),
    # Metrics.
    (
        lambda: metrics.F1(average="binary", multilabel=True),
        *("the average 'binary' is for one label", "'micro' counts all labels together."),
    ),
    (lambda: lm.FunctionMetric(lambda p, t: p), "a metric of a function without a name needs one"),
    # Optimizers.
    (
        lambda: lm.SGD(0.1, nesterov=True),
        *("in SGD (test_learning_errors.py:", "nesterov needs momentum and no dampening"),
    ),
    *(
        (lambda rate=rate: planned(lm.SGD(rate)), "in SGD (test", "lm.ops.floor(step / 10)")
        for rate in (lambda step: 0.1 * 0.5 ** int(step / 10), lambda step: "fast")
    ),
    (lambda: lm.EMA(0.999), "in optimizer: this is not an optimizer"),
    (lambda: lm.EMA(lm.Adam), "in optimizer: this is not an optimizer"),
    (
        lambda: planned(
            lm.EMA(lm.ByPath({"1.bias": lm.SWA(lm.Adam(), start=1)}, default=lm.Adam()))
        ),
        *("in EMA (test_learning_errors.py:", "the wrapped optimizer keeps an average already\n"),
        *("  parameter  1.bias\n", "  optimizer  SWA\n", "  One of EMA and SWA is enough."),
    ),
    *(
        (lambda average=average, wrapped=wrapped: planned(average(wrapped)), *LBFGS)
        for average in (lm.EMA, lambda one: lm.SWA(one, start=1))
        for wrapped in (lm.LBFGS(), lm.ByPath({"1.*": lm.LBFGS()}, lm.SGD(0.1)))
    ),
    (
        lambda: of_one().training(lm.CrossEntropy(), lm.SGD(0.1), 4).averaged_parameters(),
        "in averaged_parameters: the optimizer of this training keeps no averages\n",
        "  Wrap it in EMA or SWA: lm.EMA(lm.Adam(1e-3), decay=0.999).",
    ),
    # Schedules.
    (lambda: lm.schedules.PiecewiseConstant([10, 5], [0.3, 0.2, 0.1]), "boundaries must rise"),
    (lambda: lm.schedules.PiecewiseConstant([10], [0.3]), ONE_RATE),
    (lambda: lm.schedules.Chain([10], [0.1]), ONE_MORE),
    (
        lambda: lm.schedules.Cosine(0.1),
        *("missing a required argument: 'steps'", "epochs * math.ceil(len(x) / batch_size)"),
    ),
    # Losses by output.
    (lambda: lm.ByOutput({}), "the losses are given as a dict, by outputs, or as a list"),
    (lambda: lm.ByOutput({"boxes": 3}), "this is not a loss"),
    *(
        (
            lambda parts=parts, factors=factors: lm.ByOutput(parts, factors=factors),
            *("the factors do not fit the losses", f"\n  Give a {advice}"),
        )
        for parts, factors, advice in (
            (BOTH, {"box": 1.0}, OF_NAMES),
            (BOTH, [1, 3.0], OF_NAMES),
            ([lm.MSE(), lm.CrossEntropy()], [1.0], "list with one factor for each loss."),
            ([None, lm.MSE()], [1.0, 2.0], "dict by numbers of losses: factors={1: 0.5}."),
        )
    ),
    (
        lambda: lm.ByOutput(BOTH, factors={"boxes": -1.0}),
        "the factor of a loss is a number of at least 0",
    ),
    *(
        (
            lambda name=name: lm.Network(made := x(3), {name: lm.Linear(2)(made)}),
            "the name of an output is a word of letters, digits and underscores",
        )
        for name in ("a b", "", 1, "0")
    ),
    # Trainings and evaluations.
    (
        lambda: both(loss={"box": lm.MSE(), "classes": lm.MSE()}),
        *("the losses do not fit the outputs of the network", "outputs  boxes, classes"),
        *("losses   box, classes", NAMED),
    ),
    (
        lambda: both(loss=[lm.MSE()]),
        "the losses do not fit the outputs",
        "Give one loss for each output, with None for one that is not trained.",
    ),
    (
        lambda: of_two(without="names").evaluate(DATA, {"boxes": lm.MSE()}),
        "outputs  output0, output1",
        "Name the outputs: lm.Network(inputs, outputs={'boxes': boxes, ...}).",
    ),
    (
        lambda: both(metrics={"box": [lm.Accuracy()]}),
        *("the metrics do not fit the outputs of the network", NAMED),
    ),
    (
        lambda: both(metrics=[lm.Accuracy()]),
        *("a metric compares one output with one target", "outputs  boxes, classes"),
        *("targets  2", "Give the metrics by output: metrics={'boxes': [...], ...}. A metric that"),
    ),
    (
        lambda: both((X, BOXES), {"boxes": lm.MSE()}, {"classes": [lm.Accuracy()]}),
        *("targets  1", "  Give targets, and a loss for each output that has metrics."),
    ),
    (
        lambda: fitted(of_two(), DATA, BOTH, class_weights=[1.0, 2.0]),
        *("weights of classes need one output and one target", "outputs  2\n  targets  2\n"),
        "lm.CrossEntropy(class_weights=[...])",
    ),
    (
        lambda: weighted(WEIGHTS, lambda p, t: ops.mean(p)),
        "in loss: the examples have weights, and this loss does not take them",
        "expected  loss(prediction, target, weights)",
        "Give the function a third parameter: def loss(prediction, target, weights=None)",
    ),
    (
        lambda: weighted(WEIGHTS, metrics=[Own()]),
        "the examples have weights, and this metric does not take them",
        "expected  statistics(prediction, target, weights=None)",
    ),
    (lambda: with_classes({0: -1.0}), "class_weights[0] must be a number of at least 0"),
    (lambda: with_classes("even"), "class_weights=[1.0, 2.5], {1: 2.5} or 'balanced'"),
    (
        lambda: of_one().training(lm.CrossEntropy(), lm.SGD(0.1), 4, class_weights="balanced"),
        "balanced weights of classes need the data",
    ),
]
DATAS = [
    (
        lambda: fitted(of_two(), DATA, BOTH, class_weights="balanced"),
        "only class numbers can be balanced",
        "Give each loss its weights: lm.CrossEntropy(class_weights=[...]).",
    ),
    (
        lambda: both((X, LABELS)),
        *("the data has another number of targets than the losses take", "expected  2 targets"),
        "Give a tuple with one target for each output that has a loss.",
    ),
    (
        lambda: both([(X, BOXES, LABELS)]),
        "  The third value of (x, y, z) is the weights of the examples. ",
        "Several targets make a tuple: (x, (y, z)).",
    ),
    (
        lambda: both((*DATA, (WEIGHTS,) * 3)),
        "the data has another number of weights than there are losses",
    ),
    (
        lambda: both((X, (BOXES, BAD_LABELS))),
        *("in CrossEntropy: labels out of range", "found     9 at example 5"),
        "target    y[1], of the output 'classes'",
        "The prediction has 4 classes: number them from 0, or give its last layer 10 features.",
    ),
    (
        lambda: both((X, (BOXES, LABELS)), PROBABLE),
        *("in BCEWithLogits: targets out of range", "target    y[0], of the output 'boxes'"),
    ),
    (
        lambda: both((X, (np.sign(BOXES), LABELS)), PROBABLE),
        "Targets are probabilities: convert -1 and 1 by (y[0] + 1) / 2.",
    ),
    (lambda: both((X, [BOXES, LABELS])), "  Several targets make a tuple: (a, b)."),
    (
        lambda: both((*DATA, (WEIGHTS, bad_weight(-1.0)))),
        "in weights: the array of weights of 'classes' has numbers that are negative or not",
    ),
    *(
        (
            lambda value=value: weighted(bad_weight(value)),
            "in weights: the array of weights has numbers that are negative or not finite",
            "expected  0 or more, finite",
            f"found     {value} at example 7",
        )
        for value in (-1.0, np.nan, np.inf)
    ),
    (lambda: weighted(bad_weight(1e300)), "the array of weights has numbers that float32 cannot"),
    (lambda: step([WEIGHTS]), "the examples have weights here only", OF_DATASET),
    (
        lambda: step([], data=lm.data.Dataset(X, LABELS, weights=WEIGHTS)),
        "the examples need weights",
    ),
    (
        lambda: lm.data.Dataset(X, LABELS, weights=WEIGHTS[:-1]),
        "the inputs and the weights differ in the number",
    ),
    (lambda: balanced([np.ones(4)]), "only class numbers can be balanced"),
]
THIRTEEN = "number them from 0, or give its last layer 13 features."
CTC = lm.CTC()
ONE_GAP, NO_BLANK = np.array([[1, -1, -1], [3, -1, 2]]), np.array([[1, 2, -1], [3, 0, -1]])
THIRDS = np.full((3, 3), 1 / 3, "float32")
# (loss, target, shape of the prediction) -> the error of the check of data.
TARGETS = [
    *(
        (
            loss,
            *(TWELFTH, (B, 10)),
            (
                *(f"in {type(loss).__name__}: labels out of range\n", "  expected  0..9\n"),
                *("  found     12 at example 37\n", f"  The prediction has 10 classes: {THIRTEEN}"),
            ),
        )
        for loss in (losses.CrossEntropy(), losses.NLL())
    ),
    (
        losses.NLL(),
        *(-(np.arange(50) == 37).astype(int), (B, 10)),
        ("found     -1 at example 37", "leave out examples that have no class"),
    ),
    *(
        (loss, PROBABILITIES, (B, 2), ("expected  0..1", "found     1.5 at example 1"))
        for loss in (losses.BCE(), losses.BCEWithLogits())
    ),
    *(
        (losses.CrossEntropy(), targets, (B, 3), (f"{problem}\n", f"found     {found}"))
        for targets, problem, found in (
            (THIRDS * 255, "targets out of range", "85.0 at example 0"),
            (-THIRDS, "targets out of range", "-0."),
            (np.eye(3, dtype="f4")[[0, 1, 2]] + THIRDS, "targets out of range", "1.33"),
            (np.float32([[1, 0, 0]] * 5 + [[1, 0, 1]]), "no shares of classes", "2.0 at example 5"),
        )
    ),
    (losses.BCE(), np.array([[0.0, np.nan]]), (B, 2), ("found     nan at example 0",)),
    (
        losses.Hinge(),
        *(np.array([[1], [0]]), (B, 1)),
        ("expected  -1 or 1", "found     0 at example 1", "2 * y - 1"),
    ),
    (losses.KLDivergence(), np.array([[-0.5]]), (B, 1), ("expected  0 or more",)),
    (losses.NLL(ignore_index=-1), IGNORED - 1, (B, 4), ("found     -2 at example 1",)),
    (losses.NLL(), IGNORED, (B, 4), ("or name their number: ignore_index=-1",)),
    (losses.CrossEntropy(), *(SIGNS, (B, 2)), ("convert -1 and 1 by (y > 0).astype('int64').",)),
    *(
        (loss, SIGNS * 1.0, (B,), ("convert -1 and 1 by (y + 1) / 2.",))
        for loss in (losses.BCE(), losses.BCEWithLogits())
    ),
    (
        CTC,
        *(ONE_GAP, (B, 7, 4)),
        ("found     2 at example 1", "fill labels up with -1 at their end"),
    ),
    (CTC, NO_BLANK, (B, 7, 4), ("found     0 at example 1", "The blank is no label")),
]
REFUSED = [
    (LaminaError, lambda: planned(lm.SGD(lambda step: np.cos(step))), ["lm.ops.cos"]),
    *(
        (kind, call, parts)
        for kind, rows in {
            ShapeError: SHAPES,
            DTypeError: DTYPES,
            DefinitionError: DEFINITIONS,
            DataError: DATAS,
        }.items()
        for call, *parts in rows
    ),
    *(
        (DataError, lambda given=given: given[0].check_target(*given[1:]), parts)
        for *given, parts in TARGETS
    ),
]


@pytest.mark.parametrize(("kind", "call", "parts"), REFUSED)
def test_what_does_not_fit_is_refused(kind, call, parts):
    check_refusal(kind, call, *parts)


def test_what_errors_advise_is_accepted():
    scores = ops.transpose(x(12, 50), (0, 2, 1))
    assert losses.CrossEntropy()(scores, y(12)).shape == ()
    assert losses.MSE()(x(1), y(1)).shape == ()
    for loss, target, shape in (
        (losses.CrossEntropy(), (SIGNS > 0).astype("int64"), (B, 2)),
        (losses.BCE(), (SIGNS + 1) / 2, (B,)),
        (losses.BCEWithLogits(), np.array([[0, 1]], np.uint8), (B, 2)),
        (losses.CrossEntropy(), np.full((6, 4), 0.25), (B, 4)),
        (losses.CrossEntropy(ignore_index=-1), IGNORED, (B, 4)),
        (losses.MSE(), PROBABILITIES, (B, 2)),
        (CTC, (ONE_GAP, np.array([7, 7]), np.array([1, 1])), (B, 7, 4)),
    ):
        loss.check_target(target, shape)
    of_one().evaluate((X, LABELS), lm.CrossEntropy(), [Own()])
    assert both([(X, (BOXES, LABELS))]) == both()
