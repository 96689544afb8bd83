"""Losses against PyTorch: values and gradients, for each option.

Values and sizes of gradients are also recorded, for where there is no PyTorch:
`python tests/golden/record.py losses`.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.base.shapes import BATCH, as_dtype
from lamina.graph import Graph, bind_batch, evaluate, leaf
from lamina.ops.differentiate import gradients

pytestmark = [
    pytest.mark.filterwarnings("ignore:reduction:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*reduction.*:UserWarning"),
]
RECORDED = Path(__file__).with_name("losses.json")

generator = np.random.default_rng(0)
X = generator.normal(size=(6, 4))
OTHER = generator.normal(size=(6, 4))
IMAGES = generator.normal(size=(6, 4, 3, 2)) * 3
LABELS = np.array([0, 3, 1, 1, 2, 3])
PIXELS = generator.integers(0, 4, size=(6, 3, 2))
SHARES = np.exp(OTHER) / np.exp(OTHER).sum(1, keepdims=True)
SIGNS = np.where(OTHER < 0, -1.0, 1.0)
WEIGHTS, OTHER_WEIGHTS = (0.5, 2.0, 1.0, 0.0), (1.0, 0.5, 3.0, 2.0)
LOG_X, LOG_IMAGES = (a - np.log(np.exp(a).sum(1, keepdims=True)) for a in (X, IMAGES))
SOFT_IMAGES = np.exp(LOG_IMAGES[::-1])
POSITIVE = np.abs(X) + 0.1
COUNTS = np.floor(np.abs(OTHER) * 4)
IGNORED = np.array([0, -1, 1, 1, -1, 3])
SOME_PIXELS = np.where(PIXELS == 2, -7, PIXELS)
SETS = np.array(
    [[0, 3, -1, 1], [1, -1, -1, -1], [-1, 0, 1, 2], [3, 2, 1, 0], [2, 2, -1, 0], [1, 3, 0, -1]]
)
BITS = (OTHER > 0).astype(float)

# A loss, its predictions and target, and the name of PyTorch's function with its options; or
# (torch, tensors..., reduction=, options) -> the same.
Case = tuple[Any, Sequence[np.ndarray], Any, Any, dict[str, Any]]


def _cross_entropies():
    cases = []
    for smoothing in (0.0, 0.3):
        for weights in (None, WEIGHTS):
            loss = lm.CrossEntropy(label_smoothing=smoothing, class_weights=weights)
            how = {"label_smoothing": smoothing, "weight": weights}
            for x, y in ((X, LABELS), (X, SHARES), (IMAGES, PIXELS), (IMAGES, SOFT_IMAGES)):
                cases.append((loss, [x], y, "cross_entropy", how))
            for x, y, ignored in ((X, IGNORED, -1), (IMAGES, SOME_PIXELS, -7), (X, LABELS, 1)):
                ignoring, more = replace(loss, ignore_index=ignored), {"ignore_index": ignored}
                cases.append((ignoring, [x], y, "cross_entropy", how | more))
    return cases


def _reduced(each, reduction):
    return each if reduction == "none" else getattr(each, reduction)()


def _focal(torch, x, y, reduction, alpha, gamma):
    """As torchvision.ops.sigmoid_focal_loss."""
    p, function = torch.sigmoid(x), torch.nn.functional.binary_cross_entropy_with_logits
    right = p * y + (1 - p) * (1 - y)
    each = function(x, y, reduction="none") * (1 - right) ** gamma
    each = each if alpha < 0 else (alpha * y + (1 - alpha) * (1 - y)) * each
    return _reduced(each, reduction)


def _focal_of_classes(torch, x, y, reduction, gamma, weight=None):
    """Lin et al. (2017), with a softmax."""
    own = torch.nn.functional.cross_entropy(x, y, reduction="none")
    each = own * (1 - torch.exp(-own)) ** gamma
    return _reduced(each if weight is None else each * weight[y], reduction)


def _dice(torch, p, y, reduction, squared, smoothing):
    """Milletari, Navab, Ahmadi (2016), with their squares or without."""
    if y.dim() < p.dim():
        y = torch.nn.functional.one_hot(y, p.shape[1]).movedim(-1, 1).to(p.dtype)
    power = 2 if squared else 1
    shared, p, y = (t.flatten(2).sum(2) for t in (p * y, p**power, y**power))
    return _reduced(1 - (2 * shared + smoothing) / (p + y + smoothing), reduction)


def _pinball(torch, x, y, reduction, levels):
    """Koenker, Bassett (1978)."""
    difference = (y if y.dim() == x.dim() else y[:, None]) - x
    return _reduced(torch.maximum(levels * difference, (levels - 1) * difference), reduction)


def _distance(a, b):
    return ((a - b) ** 4).sum(-1)


def _gaussian(torch, x, variance, y, **options):
    return torch.nn.functional.gaussian_nll_loss(x, y, variance, **options)


MARGIN, SMOOTH, LOGITS = "margin_ranking_loss", "smooth_l1_loss", "binary_cross_entropy_with_logits"
SOFT, COSINE, POISSON = "multilabel_soft_margin_loss", "cosine_embedding_loss", "poisson_nll_loss"
BCE, TRIPLET = "binary_cross_entropy", [X, OTHER, SHARES]
LEVELS = (0.1, 0.5, 0.8, 0.9)
# Some variances are below epsilon.
VARIANCE = POSITIVE * (np.arange(6)[:, None] != 2) + 1e-4
CASES = [
    *_cross_entropies(),
    (lm.CrossEntropy(), [X * 1e4], LABELS, "cross_entropy", {}),
    (lm.MSE(), [X], OTHER, "mse_loss", {}),
    (lm.MAE(), [X], OTHER, "l1_loss", {}),
    (lm.MAE(), [X], X, "l1_loss", {}),
    (lm.Huber(), [X], OTHER, "huber_loss", {}),
    (lm.Huber(delta=0.7), [X], OTHER, "huber_loss", {"delta": 0.7}),
    (lm.SmoothL1(), [X], OTHER, SMOOTH, {}),
    (lm.SmoothL1(beta=0.4), [X], OTHER, SMOOTH, {"beta": 0.4}),
    (lm.SmoothL1(beta=0.0), [X], OTHER, SMOOTH, {"beta": 0.0}),
    (lm.NLL(), [LOG_X], LABELS, "nll_loss", {}),
    (lm.NLL(class_weights=WEIGHTS), [LOG_IMAGES], PIXELS, "nll_loss", {"weight": WEIGHTS}),
    (
        lm.NLL(class_weights=WEIGHTS, ignore_index=-7),
        *([LOG_IMAGES], SOME_PIXELS, "nll_loss", {"weight": WEIGHTS, "ignore_index": -7}),
    ),
    (lm.BCE(), [SHARES], BITS, BCE, {}),
    (lm.BCE(class_weights=WEIGHTS), [SHARES], BITS, BCE, {"weight": WEIGHTS}),
    (lm.BCEWithLogits(), [X * 50], SHARES, LOGITS, {}),
    (lm.BCEWithLogits(positive_weight=3.0), [X], SHARES, LOGITS, {"pos_weight": (3.0,)}),
    (
        lm.BCEWithLogits(positive_weight=WEIGHTS, class_weights=OTHER_WEIGHTS),
        *([X], SHARES, LOGITS, {"pos_weight": WEIGHTS, "weight": OTHER_WEIGHTS}),
    ),
    (lm.BinaryFocal(), [X], BITS, _focal, {"alpha": 0.25, "gamma": 2.0}),
    (lm.BinaryFocal(focus=1.5, balance=None), [X], BITS, _focal, {"alpha": -1, "gamma": 1.5}),
    (lm.Focal(), [X], LABELS, _focal_of_classes, {"gamma": 2.0}),
    (
        lm.Focal(focus=0.5, class_weights=WEIGHTS),
        *([IMAGES], PIXELS, _focal_of_classes, {"gamma": 0.5, "weight": WEIGHTS}),
    ),
    *(
        (lm.Dice(**how), [np.exp(LOG_IMAGES)], target, _dice, how)
        for target in (SOFT_IMAGES, PIXELS)
        for how in ({"squared": False, "smoothing": 1e-5}, {"squared": True, "smoothing": 1.0})
    ),
    (lm.Quantile(0.3), [X], OTHER, _pinball, {"levels": 0.3}),
    (lm.Quantile(LEVELS), [X], OTHER[:, 0], _pinball, {"levels": LEVELS}),
    (lm.KLDivergence(), [LOG_X], np.where(SHARES > 0.2, SHARES, 0), "kl_div", {}),
    (lm.KLDivergence(log_target=True), [LOG_X], np.log(SHARES), "kl_div", {"log_target": True}),
    (lm.PoissonNLL(), [X], COUNTS, POISSON, {}),
    (lm.PoissonNLL(full=True), [X], COUNTS, POISSON, {"full": True}),
    (
        lm.PoissonNLL(log_input=False, epsilon=1e-3),
        *([POSITIVE], COUNTS, POISSON, {"log_input": False, "eps": 1e-3}),
    ),
    *(
        (lm.GaussianNLL(full=full, epsilon=1e-2), [X, variance], OTHER, _gaussian, how)
        for full in (False, True)
        for variance in (VARIANCE, VARIANCE[:, :1])
        for how in [{"full": full, "eps": 1e-2}]
    ),
    (lm.SoftMargin(), [X], SIGNS, "soft_margin_loss", {}),
    (lm.HingeEmbedding(), [X], SIGNS, "hinge_embedding_loss", {}),
    (lm.HingeEmbedding(margin=0.3), [X], SIGNS, "hinge_embedding_loss", {"margin": 0.3}),
    (lm.MultiMargin(), [X], LABELS, "multi_margin_loss", {}),
    (
        lm.MultiMargin(power=2, margin=0.5, class_weights=WEIGHTS),
        *([X], LABELS, "multi_margin_loss", {"p": 2, "margin": 0.5, "weight": WEIGHTS}),
    ),
    (lm.MultiLabelMargin(), [X], SETS, "multilabel_margin_loss", {}),
    (lm.MultiLabelSoftMargin(), [X], BITS, SOFT, {}),
    (lm.MultiLabelSoftMargin(class_weights=WEIGHTS), [X], BITS, SOFT, {"weight": WEIGHTS}),
    (lm.MarginRanking(), [X, OTHER], SIGNS, MARGIN, {}),
    (lm.MarginRanking(margin=0.4), [X, OTHER], SIGNS, MARGIN, {"margin": 0.4}),
    (lm.CosineEmbedding(), [X, OTHER], SIGNS[:, 0], COSINE, {}),
    (lm.CosineEmbedding(margin=0.2), [X, OTHER], SIGNS[:, 1], COSINE, {"margin": 0.2}),
    (lm.Triplet(margin=0.5), TRIPLET, None, "triplet_margin_loss", {"margin": 0.5}),
    (lm.Triplet(swap=True), TRIPLET, None, "triplet_margin_loss", {"swap": True}),
    (
        lm.TripletWithDistance(lambda a, b: ops.sum((a - b) ** 4, -1), swap=True),
        *(TRIPLET, None, "triplet_margin_with_distance_loss"),
        {"distance_function": _distance, "swap": True},
    ),
]


def found_by(loss, predictions, target=None, weights=None):
    """The loss of a batch, or of each element, and its gradients."""
    feeds = {f"x{n}": array for n, array in enumerate(predictions)}
    feeds |= {name: array for name, array in (("y", target), ("w", weights)) if array is not None}
    leaves = {
        name: leaf(name, "input", (BATCH, *array.shape[1:]), as_dtype(array.dtype))
        for name, array in feeds.items()
    }
    x = [leaves[f"x{n}"] for n in range(len(predictions))]
    weighting = [] if weights is None else [leaves["w"]]
    value = loss(x if len(x) > 1 else x[0], leaves.get("y"), *weighting)
    assert value.dtype == x[0].dtype
    slopes = gradients(ops.sum(value), x)
    outputs = (("value", value), *((f"slope{n}", slope) for n, slope in enumerate(slopes)))
    graph = bind_batch(Graph(tuple(leaves.values()), outputs), len(predictions[0]))
    return evaluate(graph, feeds)[0]


def pytorchs(case, reduction):
    """PyTorch's loss as a function of predictions and target."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    _, _, _, function, options = case
    arguments = {
        name: torch.tensor(option, dtype=torch.float64) if isinstance(option, tuple) else option
        for name, option in options.items()
    }
    if not isinstance(function, str):
        return lambda *tensors: function(torch, *tensors, reduction=reduction, **arguments)
    made = getattr(torch.nn.functional, function)
    return lambda *tensors: made(*tensors, reduction=reduction, **arguments)


def expected_of(case, reduction):
    """PyTorch's value and gradients."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    _, predictions, target, *_ = case
    x = [torch.tensor(a.copy(), requires_grad=True) for a in predictions]
    y = [] if target is None else [torch.tensor(target.copy())]
    value = pytorchs(case, reduction)(*x, *y)
    slopes = torch.autograd.grad(value.sum(), x)
    values = {"value": value.detach().numpy()}
    return values | {f"slope{n}": slope.numpy() for n, slope in enumerate(slopes)}


def ids(case):
    return re.sub(" at 0x[0-9a-f]+| ", "", f"{case[0]!r}-{case[1][0].shape}")


def figures(found):
    """The value of a loss, and the lengths of its gradients."""
    lengths = [float(np.linalg.norm(a)) for name, a in found.items() if name.startswith("slope")]
    return [float(found["value"]), *lengths]


def recorded():
    """For each loss what PyTorch gives for each of its cases."""
    rows = {}
    for case in CASES:
        found = figures(expected_of(case, "mean"))
        rows.setdefault(type(case[0]).__name__, []).append(found)
    return rows


def test_losses_have_the_recorded_values_and_gradients():
    rows = json.loads(RECORDED.read_text())
    for case in CASES:
        loss, predictions, target, *_ = case
        expected = rows[type(loss).__name__].pop(0)
        values = figures(found_by(replace(loss, reduction="mean"), predictions, target))
        np.testing.assert_allclose(values, expected, rtol=1e-9, atol=1e-12, err_msg=ids(case))
    assert not any(rows.values())


@pytest.mark.torch
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("case", CASES, ids=ids)
def test_losses_have_the_values_and_gradients_of_pytorch(case, reduction):
    loss, predictions, target, *_ = case
    found = found_by(replace(loss, reduction=reduction), predictions, target)
    for name, array in expected_of(case, reduction).items():
        np.testing.assert_allclose(found[name], array, rtol=1e-9, atol=1e-12, err_msg=name)


TIMES = generator.normal(size=(5, 7, 4))
SEQUENCES = np.array([[1, 1, 2], [1, -1, -1], [-1, -1, -1], [3, 2, 3], [2, 2, 2]])
TARGET_LENGTHS = (SEQUENCES >= 0).sum(1)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("lengths", [(7, 7, 7, 7, 7), (7, 5, 4, 6, 4), (5, 1, 0, 3, 5)])
def test_ctc_agrees_with_pytorch(reduction, lengths, torch):
    # Repeated labels, an empty target, and targets that are too long for the prediction.
    x = torch.tensor(TIMES, requires_grad=True)
    expected = torch.nn.functional.ctc_loss(
        x.log_softmax(-1).transpose(0, 1),
        torch.tensor(np.maximum(SEQUENCES, 1)),
        *(torch.tensor(lengths), torch.tensor(TARGET_LENGTHS)),
        reduction=reduction,
        zero_infinity=True,
    )
    (slopes,) = torch.autograd.grad(expected.sum(), x)
    scores, labels = lm.Input(7, 4, dtype="float64"), lm.Input(3, dtype="int64")
    inputs, targets = lm.Input(dtype="int64"), lm.Input(dtype="int64")
    loss = lm.CTC(reduction=reduction, zero_infinity=True)
    for target in ((labels, inputs), (labels, inputs, targets)):
        value = loss(ops.log_softmax(scores), target)
        (slope,) = lm.gradients(ops.sum(value), [scores])
        compiled = lm.compile([scores, *target], [value, slope], engine="interpreter")
        arrays = (SEQUENCES, np.array(lengths), TARGET_LENGTHS)[: len(target)]
        results = compiled(TIMES, *arrays)
        np.testing.assert_allclose(results[0], expected.detach(), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(results[1], slopes, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(
    ("labels", "count", "blank", "reduction"),
    [(SEQUENCES, 4, 0, "none"), (np.array([[0, 1, 2]] * 5), 7, 3, "mean")],
    ids=["too few times", "another blank"],
)
def test_ctc_without_zero_infinity_agrees_with_pytorch(labels, count, blank, reduction, torch):
    expected = torch.nn.functional.ctc_loss(
        torch.tensor(TIMES).log_softmax(-1).transpose(0, 1),
        torch.tensor(np.maximum(labels, 1 - blank // 3)),
        *(torch.tensor([count] * 5), torch.tensor((labels >= 0).sum(1))),
        blank=blank,
        reduction=reduction,
    )
    scores, y = lm.Input(7, 4, dtype="float64"), lm.Input(3, dtype="int64")
    lengths = lm.Input(dtype="int64")
    value = lm.CTC(blank=blank, reduction=reduction)(ops.log_softmax(scores), (y, lengths))
    compiled = lm.compile([scores, y, lengths], value, engine="interpreter")
    (result,) = compiled(TIMES, labels, np.full(5, count))
    assert np.isinf(result).any() == (count == 4)
    np.testing.assert_allclose(result, expected.numpy(), rtol=1e-12)


def test_weighted_means_divide_by_the_weights_of_examples_and_classes(torch):
    weights, w = generator.random(6), torch.tensor(WEIGHTS, dtype=torch.float64)
    x = torch.tensor(X, requires_grad=True)
    each = torch.nn.functional.cross_entropy(x, torch.tensor(LABELS), weight=w, reduction="none")
    of_examples = torch.tensor(weights)
    expected = (each * of_examples).sum() / (w[torch.tensor(LABELS)] * of_examples).sum()
    expected.backward()
    scores, labels = lm.Input(4, dtype="float64"), lm.Input(dtype="int64")
    weighting = lm.Input(dtype="float64")
    value = lm.CrossEntropy(class_weights=WEIGHTS)(scores, labels, weighting)
    (slope,) = lm.gradients(value, [scores])
    compiled = lm.compile([scores, labels, weighting], [value, slope], engine="interpreter")
    results = compiled(X, LABELS, weights)
    np.testing.assert_allclose(results[0], expected.item(), rtol=1e-12)
    np.testing.assert_allclose(results[1], x.grad.numpy(), rtol=1e-9, atol=1e-14)
