"""Losses: values and gradients against NumPy and PyTorch, and the text of errors."""

import re
from pathlib import Path

import numpy as np
import pytest
from error_texts import error_text
from loss_limits import LIMITS
from random_arrays import normal
from test_losses_torch import LABELS, found_by

import lamina
from lamina import layers as lm
from lamina import ops
from lamina.base.shapes import BATCH, float32, int64
from lamina.errors import DataError, NonFiniteError
from lamina.learning import losses, metrics

pytestmark = pytest.mark.each_case

generator = np.random.default_rng(0)
SCORES = generator.normal(size=(6, 4))
OTHERS = generator.normal(size=(6, 4))
SHARES = np.exp(OTHERS) / np.exp(OTHERS).sum(1, keepdims=True)
BITS = np.array([[0.0, 1.0, 1.0, 0.25], [0.0, 1.0, 0.0, 1.0], [1.0, 0.0, 1.0, 0.0]])


def run(loss, prediction, target=None, weights=None):
    """The loss, and the gradient of the first prediction."""
    predictions = prediction if isinstance(prediction, list) else [prediction]
    found = found_by(loss, predictions, target, weights)
    return found["value"], found["slope0"]


def _log_softmax(x):
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def _bce(p, t):
    with np.errstate(divide="ignore"):
        low, high = np.maximum(np.log(1 - p), -100), np.maximum(np.log(p), -100)
    return -(t * high + (1 - t) * low)


def test_the_evidence_lower_bound_is_cross_entropy_and_divergence():
    mean, variance = OTHERS[:3, :2], np.exp(OTHERS[:3, 2:])
    missed = _bce(1 / (1 + np.exp(-SCORES[:3])), BITS).sum(1).mean()
    divergence = 0.5 * (mean**2 + variance - 1 - np.log(variance)).sum(1).mean()
    for factor in (1.0, 0.0, 4.0):
        loss = losses.EvidenceLowerBound(divergence=factor)
        value, _ = run(loss, [SCORES[:3], mean, OTHERS[:3, 2:]], BITS)
        np.testing.assert_allclose(value, missed + factor * divergence, rtol=1e-12)


def test_the_divergence_of_nearly_a_standard_normal_is_not_lost_in_rounding():
    log_variance = np.array([[-1e-3], [1e-3], [1e-4]], np.float32)
    zero = np.zeros((1, 1), np.float32)
    loss, logits = losses.EvidenceLowerBound(), zero - np.float32(np.inf)
    values = [run(loss, [logits, zero, row[None]], zero)[0] for row in log_variance]
    exact = np.expm1(log_variance.astype("float64")) - log_variance
    np.testing.assert_allclose(values, exact[:, 0] / 2, rtol=0.01)


def test_binary_cross_entropy_limits_its_logarithms():
    shares = np.array([[0.0, 1.0, 0.3, 0.9], [1e-40, 1 - 1e-12, 0.5, 0.2], [0.1, 0.6, 1, 0]])
    value, _ = run(losses.BCE(), shares, BITS)
    np.testing.assert_allclose(value, _bce(shares, BITS).mean(), rtol=1e-12)


def test_kullback_leibler_of_a_vector_per_batch():
    value, _ = run(losses.KLDivergence(reduction="batchmean"), np.log(SHARES[0]), SHARES[1])
    expected = (SHARES[1] * np.log(SHARES[1] / SHARES[0])).mean()
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    value, _ = run(losses.KLDivergence(reduction="batchmean"), _log_softmax(SCORES), SHARES)
    expected = (SHARES * (np.log(SHARES) - _log_softmax(SCORES))).sum() / 6
    np.testing.assert_allclose(value, expected, rtol=1e-12)


def test_integer_targets_are_converted():
    bits = np.array([[0, 1, 1, 0]] * 6, np.uint8)
    for loss in (losses.MSE(), losses.BCEWithLogits()):
        expected, _ = run(loss, SCORES, bits.astype(float))
        np.testing.assert_array_equal(run(loss, SCORES, bits)[0], expected)
    labels, _ = run(losses.CrossEntropy(), SCORES, LABELS.astype(np.uint8))
    np.testing.assert_array_equal(labels, run(losses.CrossEntropy(), SCORES, LABELS)[0])


def test_default_targets_follow_from_the_prediction():
    x = lm.Input(4, 3)
    assert losses.MSE().target(x) == ((BATCH, 4, 3), float32)
    assert losses.CrossEntropy().target(x) == ((BATCH, 3), int64)
    assert losses.NLL().target(lm.Input(4)) == ((BATCH,), int64)
    assert losses.Triplet().target((x, x, x)) is None
    assert losses.Quantile([0.1, 0.5, 0.9]).target(lm.Input(7, 3)) == ((BATCH, 7), float32)
    assert losses.EvidenceLowerBound().target((x, x, x)) == ((BATCH, 4, 3), float32)


def test_targets_of_the_ignored_class_do_not_count():
    labels = np.array([0, -1, 1, 1, -1, 3])
    kept = labels >= 0
    for loss in (losses.CrossEntropy(ignore_index=-1), losses.Focal(ignore_index=-1)):
        loss.check_target(labels, (BATCH, 4))
        value, gradient = run(loss, SCORES, labels)
        plain = type(loss)()
        expected, slopes = run(plain, SCORES[kept], labels[kept])
        np.testing.assert_allclose(value, expected, rtol=1e-12)
        np.testing.assert_allclose(gradient[kept], slopes, rtol=1e-12)
        assert not gradient[~kept].any()
    nothing, _ = run(losses.CrossEntropy(ignore_index=-1), SCORES, np.full(6, -1))
    assert np.isnan(nothing)  # as in PyTorch


def test_without_a_reduction_there_is_a_loss_for_each_element():
    for loss, target, shape in (
        (losses.CrossEntropy, LABELS, (6,)),
        (losses.MSE, OTHERS, (6, 4)),
        (losses.Dice, SHARES, (6, 4)),
    ):
        values, _ = run(loss(reduction="none"), SCORES, target)
        assert values.shape == shape
        np.testing.assert_allclose(values.mean(), run(loss(), SCORES, target)[0], rtol=1e-12)


def test_losses_that_pytorch_lacks_have_the_values_of_their_formulas():
    x, y = SCORES, OTHERS
    unit = [a / np.sqrt((a * a).sum(1, keepdims=True)) for a in (x, y)]
    others = np.where(np.eye(4)[LABELS] > 0, 0.0, x)
    right = x[np.arange(6), LABELS]
    cases = [
        (losses.LogCosh(), y, np.log(np.cosh(x - y)).mean()),
        (losses.MAPE(), y, 100 * (abs(x - y) / abs(y)).mean()),
        (losses.MSLE(), abs(y), ((np.log1p(np.maximum(x, 1e-7)) - np.log1p(abs(y))) ** 2).mean()),
        (losses.NegativeCosine(), y, -(unit[0] * unit[1]).sum(1).mean()),
        (losses.SquaredHinge(), np.sign(y), (np.maximum(0, 1 - np.sign(y) * x) ** 2).mean()),
        (losses.CategoricalHinge(), LABELS, np.maximum(0, 1 - right + others.max(1)).mean()),
        (losses.Hinge(), np.sign(y), np.maximum(0, 1 - np.sign(y) * x).mean()),
    ]
    for loss, target, expected in cases:
        value, gradient = run(loss, x, target)
        np.testing.assert_allclose(value, expected, rtol=1e-10, err_msg=repr(loss))
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", LIMITS)
def test_losses_have_the_limits_of_their_formulas(name, dtype):
    loss, predictions, target, expected, slope = LIMITS[name]
    if target is not None and target.dtype.kind == "f":
        target = target.astype(dtype)
    value, gradient = run(loss, [prediction.astype(dtype) for prediction in predictions], target)
    precision = 3e-7 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(value, expected, rtol=precision)
    np.testing.assert_allclose(gradient, slope, rtol=precision, atol=1e-20)


def test_examples_of_weight_0_with_an_infinite_loss_do_not_count():
    for infinite, expected in ((np.inf, 1.5), (np.nan, np.nan)):
        scores = np.array([[1.0, 2], [infinite, 0], [3, 0]])
        value, _ = run(losses.MAE(), scores, np.zeros((3, 2)), np.array([1.0, 0, 1]))
        np.testing.assert_equal(value, expected)


@pytest.mark.parametrize("focus", [0.5, 2.0])
def test_focal_losses_of_certain_predictions_have_finite_gradients(focus):
    scores = np.array([[1e4, -1e4], [-1e4, 1e4]])
    for loss, target in (
        (losses.Focal(focus=focus), np.array([0, 0])),
        (losses.BinaryFocal(focus=focus), np.array([[1.0, 0.0], [1.0, 0.0]])),
    ):
        value, gradient = run(loss, scores, target)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()
        assert not gradient[0].any()
        assert gradient[1].any()


def test_dice_of_nothing_is_0():
    empty = np.zeros((2, 3, 4))
    value, gradient = run(losses.Dice(smoothing=0.0), empty, empty)
    assert value == 0
    assert np.isfinite(gradient).all()


def ctc_losses(prediction, labels, **options):
    x = lm.Input(*prediction.shape[1:], dtype="float64")
    y = lm.Input(*labels.shape[1:], dtype="int64")
    value = lamina.CTC(**options)(x, y)
    return lamina.compile([x, y], value, engine="interpreter")(prediction, labels)[0]


def test_ctc_adds_up_all_alignments():
    # Labels a, a need a blank between them: in four times there are 5 alignments of probability
    # 1/3 each time: a-a., a-.a and the like.
    shares = np.log(np.full((1, 4, 3), 1 / 3))
    labels = np.array([[1, 1, -1]])
    total = ctc_losses(shares, labels, reduction="sum")
    letters = np.array(np.meshgrid(*[range(3)] * 4)).reshape(4, -1).T
    count = 0
    for word in letters:
        merged = [letter for n, letter in enumerate(word) if n == 0 or letter != word[n - 1]]
        count += [letter for letter in merged if letter] == [1, 1]
    np.testing.assert_allclose(total, -np.log(count / 3**4), rtol=1e-12)


def test_an_infinite_loss_of_ctc_is_explained():
    x, y = np.zeros((2, 3, 4), "float32"), np.array([[1, 1, 2], [1, 2, 3]])
    network = lamina.Sequential(lm.Input(3, 4), lm.Linear(4), lm.LogSoftmax())
    model = lamina.Model(network, engine="interpreter")
    how = {"optimizer": lamina.SGD(0.1), "epochs": 1, "progress": False}
    text = error_text(NonFiniteError, lambda: model.fit((x, y), loss=lamina.CTC(), **how))
    assert text.splitlines()[-1] == (
        "  A prediction needs a time for each label, and one between equal labels: leave shorter "
        "ones out, or take lm.CTC(zero_infinity=True), in which they have the loss 0."
    )
    assert model.fit((x, y), loss=lamina.CTC(zero_infinity=True), **how)["loss"][0] > 0


@pytest.mark.cases(
    ("lengths", "problem", "expected", "actual"),
    (([8, 7], [1, 2]), "input lengths out of range", "0..7", "8 at example 0"),
    (([7, -1], [1, 2]), "input lengths out of range", "0..7", "-1 at example 1"),
    (([7, 7], [1, 4]), "target lengths out of range", "0..3", "4 at example 1"),
    (([7, 7], [-1, 2]), "target lengths out of range", "0..3", "-1 at example 0"),
    (([7, 7], [3, 2]), "targets out of range", "class numbers up to 3", "-1 at example 0"),
)
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_ctc_refuses_lengths_that_the_arrays_do_not_have(
    lengths, problem, expected, actual, zero_infinity
):
    loss = lamina.CTC(zero_infinity=zero_infinity)
    model = lamina.Model(lamina.Sequential(lm.Input(7, 4), lm.LogSoftmax()))
    x, labels = np.zeros((2, 7, 4), "float32"), np.array([[1, 2, -1], [3, 1, -1]])
    target = (labels, *(np.array(counts) for counts in lengths))
    text = error_text(DataError, lambda: model.evaluate((x, target), loss=loss))
    assert f"{problem}\n" in text
    assert f"expected  {expected}" in text
    assert f"found     {actual}" in text
    # Without a check of data, as in a compiled function, such an example has no loss.
    inputs = [lm.Input(7, 4), *(lm.Input(*shape, dtype="int64") for shape in ((3,), (), ()))]
    each = lamina.CTC(zero_infinity=zero_infinity, reduction="none")
    value = each(inputs[0], tuple(inputs[1:]))
    (result,) = lamina.compile(inputs, value, engine="interpreter")(x, *target)
    wrong = int(actual[-1])
    assert np.isnan(result[wrong])
    assert not np.isnan(result[1 - wrong])


def test_dice_takes_class_numbers():
    """The loss is the same as with one-hot targets."""
    labels = np.random.default_rng(0).integers(0, 3, (8, 4, 4))
    layers = lm.Conv2d(3, 3, padding="same"), lm.Softmax(axis=1)
    model = lamina.Model(lamina.Sequential(lm.Input(1, 4, 4), *layers), seed=0)
    one_hot = np.moveaxis(np.eye(3, dtype="float32")[labels], -1, 1)
    data = [(normal(8, 1, 4, 4), y) for y in (labels, one_hot)]
    value, expected = (model.evaluate(pair, losses.Dice())["loss"] for pair in data)
    assert value == pytest.approx(expected, rel=1e-6)


THIRDS = np.full((6, 3), 1 / 3, "float32")


def test_shares_may_be_rounded_and_an_example_may_have_none():
    model = lamina.Model(lamina.Sequential(lm.Input(3), lm.Linear(3)), engine="interpreter")
    rounded = THIRDS.astype("float16")
    rounded[2] = 0
    assert model.evaluate((THIRDS, rounded), losses.CrossEntropy())["loss"] > 0


def _by_layer(prediction, target):
    return ops.mean((prediction - lm.OneHot(3)(target)) ** 2)


def _by_op(prediction, target):
    chosen = ops.take_along_axis(prediction, ops.expand_dims(ops.cast(target, "int64"), 1), 1)
    return -ops.mean(chosen)


def _by_row(prediction, target):
    return ops.mean(prediction[:, 0] * ops.take(np.ones(3, "float32"), target, 0))


@pytest.mark.parametrize("function", [_by_layer, _by_op, _by_row])
@pytest.mark.parametrize("as_metric", [False, True])
@pytest.mark.parametrize("wrong", [3, -1])
def test_targets_that_index_in_a_function_of_the_user_are_checked(function, as_metric, wrong):
    """Programs clamp indices: the function would compare with another class."""
    how = {"loss": losses.CrossEntropy(ignore_index=wrong)}
    how |= {"metrics": [lamina.FunctionMetric(function)]} if as_metric else {"loss": function}
    model, x = lamina.Model(lamina.Sequential(lm.Input(2), lm.Linear(3)), seed=0), normal(4, 2)
    before = model.parameters()
    calls = [
        lambda y: model.evaluate((x, y), **how),
        lambda y: model.fit((x, y), optimizer=lamina.Adam(), epochs=1, **how),
        lambda y: model.fit([(x, y)], optimizer=lamina.Adam(), epochs=1, **how),
    ]
    for call in calls:
        text = error_text(DataError, lambda call=call: call(np.array([0, 2, wrong, 1])))
        assert "indices out of range" in text
        assert f"expected  0..2\n  found     {wrong} at example 2 of target 0" in text
    for name, value in model.parameters().items():
        np.testing.assert_array_equal(value, before[name])
    for call in calls:
        call(np.array([0, 2, 2, 1]))


def test_computed_indices_of_targets_are_not_checked():
    def loss(prediction, target):
        return _by_op(prediction, ops.clip(target, 0, 2))

    model = lamina.Model(lamina.Sequential(lm.Input(2), lm.Linear(3)), seed=0)
    assert np.isfinite(model.evaluate((normal(2, 2), np.array([5, -5])), loss)["loss"])


def test_the_page_of_losses_lists_every_loss_and_metric():
    page = (Path(__file__).parents[3] / "docs" / "losses.md").read_text()
    words = set(re.findall(r"\w+", page))
    public = {*losses.__all__, *metrics.__all__} - {"Loss", "Metric", "Elements"}
    assert not public - words


def test_losses_name_their_reduction():
    classes = [getattr(losses, name) for name in losses.__all__]
    reduced = {cls.__name__: cls.__doc__ for cls in classes if hasattr(cls, "reduction")}
    assert len(reduced) > 30
    assert [name for name, text in reduced.items() if "    reduction: " not in text] == []
