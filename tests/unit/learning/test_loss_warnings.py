"""Warnings about losses and metrics whose prediction is certainly of a wrong kind."""

import linecache
import warnings
from dataclasses import dataclass, replace

import numpy as np
import pytest

import lamina as lm
from lamina.errors import LaminaWarning

X = np.linspace(-1, 1, 24, dtype="float32").reshape(6, 4)
LABELS = np.arange(6) % 3
BITS = np.arange(18, dtype="float32").reshape(6, 3) % 2
SIGNS = 2 * BITS - 1


def net(*layers):
    return lm.Sequential(lm.Input(4), *layers)


def warned(call):
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        call()
    return list(shown)


def shown_by(network, loss):
    return warned(lambda: network.plan(batch_size=6, loss=loss, optimizer=lm.SGD(0.1)))


# What a loss takes, and the advice.
OUT = "raw scores. Leave the layer before the loss out."
OF_BITS = "probabilities. Write lm.BCEWithLogits() for raw scores, or end in lm.Sigmoid()."
OF_DICE = "probabilities. End in lm.Sigmoid(), or in lm.Softmax(axis=1) for class numbers."
LOGS = "logarithms of probabilities"
OF_LOGS = f"{LOGS}. End in lm.LogSoftmax()."
OF_NLL = f"{LOGS}. Write lm.CrossEntropy() for raw scores, or end in lm.LogSoftmax()."


@pytest.mark.cases(
    ("loss", "layers", "kind", "needs"),
    (lm.BCE, [lm.Linear(3)], "raw scores", OF_BITS),
    (lm.BCE, [lm.Linear(3, bias=False)], "raw scores", OF_BITS),
    (lm.BCE, [lm.Linear(3), lm.Reshape(3, 1), lm.Flatten()], "raw scores", OF_BITS),
    (lm.BCE, [lm.Reshape(1, 4), lm.Conv1d(1, 2)], "raw scores", OF_BITS),
    (lm.NLL, [lm.Linear(3)], "raw scores", OF_NLL),
    (lm.NLL, [lm.Linear(3), lm.Softmax()], "probabilities", OF_NLL),
    (lm.CrossEntropy, [lm.Linear(3), lm.Softmax()], "probabilities", OUT),
    (lm.CrossEntropy, [lm.Linear(3), lm.LogSoftmax()], LOGS, OUT),
    (lm.CrossEntropy, [lm.Linear(3), lm.Sigmoid()], "probabilities", OUT),
    (lm.BCEWithLogits, [lm.Linear(3), lm.Sigmoid()], "probabilities", OUT),
    (lm.BinaryFocal, [lm.Linear(3), lm.Sigmoid()], "probabilities", OUT),
    (lm.SoftMargin, [lm.Linear(3), lm.Sigmoid()], "probabilities", OUT),
    (lm.MultiLabelSoftMargin, [lm.Linear(3), lm.Sigmoid()], "probabilities", OUT),
    (lm.Focal, [lm.Linear(3), lm.LogSoftmax()], LOGS, OUT),
    (lm.Dice, [lm.Linear(3)], "raw scores", OF_DICE),
    (lm.CTC, [lm.Reshape(2, 2), lm.Linear(3)], "raw scores", OF_LOGS),
    (lm.KLDivergence, [lm.Linear(3)], "raw scores", OF_LOGS),
    (lm.KLDivergence, [lm.Linear(3), lm.Softmax()], "probabilities", OF_LOGS),
)
def test_a_prediction_of_a_wrong_kind_is_named_with_both_lines(loss, layers, kind, needs):
    (warning,) = shown_by(net(*layers), loss())
    text = str(warning.message)
    assert warning.category is LaminaWarning
    assert text.startswith(f"in {loss.__name__} (test_loss_warnings.py:")
    assert f"the prediction is {kind} of net/" in text
    assert text.endswith(f", and the loss takes {needs}")


def test_a_warning_names_the_output_of_a_loss():
    x = lm.Input(4)
    boxes, classes = lm.Linear(2)(x), lm.Softmax()(lm.Linear(3)(x))
    loss = {"boxes": lm.MSE(), "classes": lm.CrossEntropy()}
    (warning,) = shown_by(lm.Network(x, {"boxes": boxes, "classes": classes}), loss)
    text = str(warning.message)
    assert text.startswith("in CrossEntropy (test_loss_warnings.py:")
    assert "), for output 'classes': the prediction is probabilities of net/" in text


@dataclass(frozen=True)
class Own(lm.Linear):
    def forward(self, scope, x):
        return lm.ops.clip(super().forward(scope, x), 0.01, 0.99)


@pytest.mark.cases(
    ("loss", "layers"),
    (lm.BCE(), [lm.Linear(3), lm.Sigmoid()]),
    (lm.BCE(), [lm.Linear(3), lm.Softmax(), lm.Flatten()]),
    (lm.BCE(), [lm.Linear(3), lm.Hardtanh(low=0.0, high=1.0)]),
    (lm.BCE(), [Own(3)]),
    (lm.BCE(), [lm.Linear(3), lm.Softplus()]),
    (lm.NLL(), [lm.Linear(3), lm.LogSoftmax()]),
    (lm.CrossEntropy(), [lm.Linear(3)]),
    (lm.CrossEntropy(), [lm.Linear(3), lm.ReLU()]),
    (lm.CrossEntropy(), [lm.Linear(6), lm.Reshape(3, 2), lm.Softmax()]),
    (lm.BCEWithLogits(), [lm.Linear(3)]),
    (lm.MSE(), [lm.Linear(3), lm.Sigmoid()]),
    (lm.Dice(), [lm.Linear(3), lm.Sigmoid()]),
    (lm.KLDivergence(), [lm.Linear(3), lm.LogSoftmax()]),
    (lm.CTC(), [lm.Reshape(2, 2), lm.Linear(3), lm.LogSoftmax()]),
    (lambda p, t: lm.ops.mean(p * t), [lm.Linear(3), lm.Softmax()]),
)
def test_a_prediction_that_may_be_right_gets_no_warning(loss, layers):
    assert shown_by(net(*layers), loss) == []


@pytest.mark.parametrize("scores", ["sigmoid", "softmax", "margins"])
def test_a_users_loss_of_scores_warns_of_nothing(scores):
    class OfUser(lm.training.losses.Loss):
        def __call__(self, prediction, target=None, weights=None):
            return lm.ops.mean((prediction - target) ** 2)

    OfUser.scores = scores
    assert shown_by(net(lm.Linear(3), lm.Sigmoid()), OfUser()) == []


def test_a_subclass_of_a_loss_warns_as_the_loss():
    class OfUser(lm.CrossEntropy):
        pass

    (warning,) = shown_by(net(lm.Linear(3), lm.Softmax()), OfUser())
    assert str(warning.message).startswith("in OfUser (test_loss_warnings.py:")
    assert str(warning.message).endswith(f", and the loss takes {OUT}")


def of_labels(prediction, target):
    """A loss that is not Lamina's: nobody knows what it takes."""
    hit = lm.ops.one_hot(target, 3, prediction.dtype)
    return lm.ops.mean((prediction - hit) ** 2)


BINARY = lm.Precision(average="binary")
RAW, SHARES = "raw scores", "probabilities"
LOGITS, THRESHOLD = "Write logits=True for raw scores.", "Write threshold=0.0 for raw scores."
NO_LOGITS, NO_THRESHOLD = "Leave logits=True out.", "Leave threshold=0.0 out."
FOR_LOGS = "Write logits=True for these."
BEFORE = "Leave the layer before it out, or end in lm.LogSoftmax()."
OF_LOGITS = {"average": "binary", "logits": True}
OF_ONE_NUMBER = (lm.MeanIoU, lm.MatthewsCorrelation, lm.CohenKappa)


def shown_by_metric(metric, layers, loss, targets):
    model = lm.Model(net(lm.Linear(3), *layers), engine="interpreter")
    return warned(lambda: model.evaluate((X, targets), loss, [metric]))


@pytest.mark.cases(
    ("metric", "layers", "loss", "targets", "kind", "advice"),  # Class numbers.
    *(
        (metric, [], lm.CrossEntropy(), LABELS, RAW, LOGITS)
        for metric in (lm.AUROC(), lm.AveragePrecision())
    ),
    (lm.CalibrationError(), [], lm.CrossEntropy(), LABELS, RAW, FOR_LOGS),
    (lm.CalibrationError(), [lm.LogSoftmax()], lm.NLL(), LABELS, LOGS, FOR_LOGS),
    # Elements.
    (lm.BinaryAccuracy(), [], lm.BCEWithLogits(), BITS, RAW, THRESHOLD),
    (lm.BinaryAccuracy(), [], lm.Hinge(), SIGNS, RAW, THRESHOLD),
    (lm.CalibrationError(), [], lm.BCEWithLogits(), BITS, RAW, LOGITS),
    (BINARY, [], lm.BCEWithLogits(), BITS, RAW, LOGITS),
    (lm.F1(average="binary"), [], lm.BinaryFocal(), BITS, RAW, LOGITS),
    (lm.Recall(average="binary"), [], lm.SoftMargin(), SIGNS, RAW, LOGITS),
    *(
        (make(), [lm.Linear(1)], lm.BCEWithLogits(), BITS[:, :1], RAW, LOGITS)
        for make in OF_ONE_NUMBER
    ),
    # The reverse.
    (lm.AUROC(logits=True), [lm.Softmax()], of_labels, LABELS, SHARES, NO_LOGITS),
    (lm.CalibrationError(logits=True), [lm.Sigmoid()], lm.BCE(), BITS, SHARES, NO_LOGITS),
    (lm.BinaryAccuracy(threshold=0.0), [lm.Sigmoid()], lm.BCE(), BITS, SHARES, NO_THRESHOLD),
    (lm.F1(**OF_LOGITS), [lm.Sigmoid()], lm.BCE(), BITS, SHARES, NO_LOGITS),
    (lm.Perplexity(), [lm.Softmax()], of_labels, LABELS, SHARES, BEFORE),
)
def test_a_metric_of_a_prediction_of_a_wrong_kind_says_so(
    metric, layers, loss, targets, kind, advice
):
    (warning,) = shown_by_metric(metric, layers, loss, targets)
    text = str(warning.message)
    assert warning.category is LaminaWarning
    assert text.startswith(f"in {type(metric).__name__} (test_loss_warnings.py:")
    assert f"the prediction is {kind} of net/" in text
    assert ", and the metric takes " in text
    assert text.endswith(f". {advice}")


@pytest.mark.parametrize("loss", [lm.BCEWithLogits(), lm.SoftMargin()], ids=repr)
def test_a_loss_of_raw_scores_says_what_any_layer_makes(loss):
    metric, targets = lm.BinaryAccuracy(), BITS if isinstance(loss, lm.BCEWithLogits) else SIGNS
    (warning,) = shown_by_metric(metric, [lm.BatchNorm()], loss, targets)
    name = type(loss).__name__
    assert str(warning.message).endswith(
        f"{name} takes raw scores, and the metric takes probabilities. Write threshold=0.0 for raw "
        "scores."
    )
    # The loss of these says that they are none; the metric is right.
    (warning,) = shown_by_metric(metric, [lm.Sigmoid()], lm.BCEWithLogits(), BITS)
    assert str(warning.message).startswith("in BCEWithLogits")


@pytest.mark.cases(
    ("metric", "layers", "loss", "targets"),
    (lm.AUROC(logits=True), [], lm.CrossEntropy(), LABELS),
    (lm.AUROC(), [lm.Softmax()], of_labels, LABELS),
    # Logarithms keep the order.
    (lm.AUROC(), [lm.LogSoftmax()], lm.NLL(), LABELS),
    (lm.AUROC(logits=True), [lm.LogSoftmax()], lm.NLL(), LABELS),
    # Each label is ranked by itself.
    (lm.AUROC(), [], lm.BCEWithLogits(), BITS),
    (lm.AUROC(), [], lm.MultiMargin(), LABELS),
    (lm.CalibrationError(logits=True), [lm.LogSoftmax()], lm.NLL(), LABELS),
    (lm.Accuracy(), [], lm.CrossEntropy(), LABELS),
    (lm.F1(), [], lm.CrossEntropy(), LABELS),
    (lm.MeanIoU(), [], lm.CrossEntropy(), LABELS),
    (lm.Perplexity(), [], lm.CrossEntropy(), LABELS),
    (lm.Perplexity(), [lm.LogSoftmax()], lm.NLL(), LABELS),
    (lm.BinaryAccuracy(threshold=0.0), [], lm.BCEWithLogits(), BITS),
    (lm.BinaryAccuracy(threshold=0.7), [], lm.BCEWithLogits(), BITS),
    (lm.BinaryAccuracy(), [lm.Sigmoid()], lm.BCE(), BITS),
    # Trained on 0 and 1, a linear layer estimates probabilities.
    (lm.BinaryAccuracy(), [], lm.MSE(), BITS),
    (BINARY, [], lm.MSE(), BITS),
    *(
        (make(logits=True), [lm.Linear(1)], lm.BCEWithLogits(), BITS[:, :1])
        for make in OF_ONE_NUMBER
    ),
)
def test_a_metric_of_a_prediction_that_may_be_right_gives_no_warning(metric, layers, loss, targets):
    assert shown_by_metric(metric, layers, loss, targets) == []


def test_a_loss_as_a_metric_says_what_it_says_as_a_loss():
    (warning,) = shown_by_metric(lm.BCE(), [], lm.MSE(), BITS)
    assert str(warning.message).startswith("in BCE (test_loss_warnings.py:")
    assert "and the loss takes probabilities. Write lm.BCEWithLogits()" in str(warning.message)


def test_a_warning_names_the_output_of_a_metric():
    x = lm.Input(4)
    outputs = {"boxes": lm.Linear(3)(x), "bits": lm.Linear(3)(x)}
    model = lm.Model(lm.Network(x, outputs), engine="interpreter")
    loss = {"boxes": lm.MSE(), "bits": lm.BCEWithLogits()}
    metrics = {"boxes": lm.BinaryAccuracy(), "bits": lm.BinaryAccuracy()}
    with pytest.warns(LaminaWarning) as shown:
        model.evaluate((X, (BITS, BITS)), loss, metrics)
    (text,) = [str(warning.message) for warning in shown]
    assert text.startswith("in BinaryAccuracy (test_loss_warnings.py:")
    assert "), for output 'bits': the prediction is raw scores of net/" in text


def model():
    return lm.Model(net(lm.Linear(3)), engine="interpreter")


DATA = (X, BITS)
HOW = {"optimizer": lm.SGD(0.1), "validation": DATA}
OF_SCORES = {"loss": lm.BCEWithLogits()}
USES = {
    "fit": lambda loss: model().fit(DATA, loss=loss, epochs=2, **HOW),
    "metrics of fit": lambda metric: model().fit(DATA, metrics=[metric], **HOW, **OF_SCORES),
    "metrics of evaluate": lambda metric: model().evaluate(DATA, metrics=[metric], **OF_SCORES),
    "training": lambda loss: model().training(loss=loss, optimizer=lm.SGD(0.1), batch_size=6),
    "evaluate": lambda loss: model().evaluate((X, BITS), loss=loss),
    "plan": lambda loss: net(lm.Linear(3)).plan(batch_size=6, loss=loss, optimizer=lm.SGD(0.1)),
    "verify": lambda loss: lm.verify(net(lm.Linear(3)), loss=loss),
}


@pytest.mark.sampled
@pytest.mark.parametrize("use", USES)
def test_the_warning_is_at_the_line_of_the_call(use):
    made = lm.BinaryAccuracy() if "metrics" in use else lm.BCE()
    shown = warned(lambda: USES[use](made))
    # Building kernels for OpenCL changes the filters, so that Python shows a text again.
    texts = {str(warning.message).partition(":")[0] for warning in shown}
    assert texts == {f"in {type(made).__name__} (test_loss_warnings.py"}
    assert use == "verify" or len(shown) == 1
    assert {warning.filename for warning in shown} == {__file__}
    assert f'"{use}": lambda' in linecache.getline(__file__, shown[0].lineno)


SOME = np.array([0, -1, 2, -1, 1, 0])


@pytest.mark.cases(
    "metric",
    *(lm.Accuracy(), lm.TopK(2), lm.F1(), lm.Perplexity(), lm.MeanIoU()),
    *(lm.AUROC(logits=True), lm.AveragePrecision(logits=True)),
    lm.CalibrationError(logits=True),
    ids=lambda metric: metric.name,
)
def test_a_metric_that_counts_what_the_loss_ignores_says_so(metric):
    (warning,) = shown_by_metric(metric, [], lm.CrossEntropy(ignore_index=-1), SOME)
    assert str(warning.message).startswith(f"in {type(metric).__name__} (test_loss_warnings.py:")
    assert str(warning.message).endswith(
        "CrossEntropy ignores targets of -1, and the metric counts them. Write ignore_index=-1."
    )
    same = replace(metric, ignore_index=-1)
    assert shown_by_metric(same, [], lm.CrossEntropy(ignore_index=-1), SOME) == []


def test_the_softmax_of_one_number_is_no_probability():
    (warning,) = shown_by(net(lm.Linear(1), lm.Softmax()), lm.BCE())
    assert str(warning.message).endswith(
        "the prediction is the softmax of a single number: 1. End in lm.Sigmoid()."
    )
    (warning,) = shown_by(net(lm.Linear(1), lm.LogSoftmax()), lm.KLDivergence())
    assert str(warning.message).endswith("softmax of a single number. Give each class a score.")
