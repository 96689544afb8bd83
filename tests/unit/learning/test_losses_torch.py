"""Losses against PyTorch: values, gradients and second derivatives, for each option."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.base.shapes import BATCH, as_dtype
from lamina.graph import Graph, bind_batch, evaluate, leaf
from lamina.learning import losses
from lamina.ops.differentiate import gradients

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
F = torch.nn.functional
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:reduction:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*reduction.*:UserWarning"),
]

generator = np.random.default_rng(0)
X = generator.normal(size=(6, 4))
OTHER = generator.normal(size=(6, 4))
IMAGES = generator.normal(size=(6, 4, 3, 2)) * 3
LABELS = np.array([0, 3, 1, 1, 2, 3])
PIXELS = generator.integers(0, 4, size=(6, 3, 2))
SHARES = np.exp(OTHER) / np.exp(OTHER).sum(1, keepdims=True)
SIGNS = np.where(OTHER < 0, -1.0, 1.0)
WEIGHTS = (0.5, 2.0, 1.0, 0.0)
W = torch.tensor(WEIGHTS, dtype=torch.float64)
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

# Lamina's class and options; predictions and target; PyTorch's function and options.
Case = tuple[type[losses.Loss], dict[str, Any], Sequence[np.ndarray], Any, Any, dict[str, Any]]


def _cross_entropies() -> list[Case]:
    cases: list[Case] = []
    for smoothing in (0.0, 0.3):
        for weights, weight in ((None, None), (WEIGHTS, W)):
            own = {"label_smoothing": smoothing, "class_weights": weights}
            theirs = {"label_smoothing": smoothing, "weight": weight}
            for x, y in ((X, LABELS), (X, SHARES), (IMAGES, PIXELS), (IMAGES, SOFT_IMAGES)):
                cases.append((lm.CrossEntropy, own, [x], y, F.cross_entropy, theirs))
            for x, y, ignored in ((X, IGNORED, -1), (IMAGES, SOME_PIXELS, -7), (X, LABELS, 1)):
                ours, other = own | {"ignore_index": ignored}, theirs | {"ignore_index": ignored}
                cases.append((lm.CrossEntropy, ours, [x], y, F.cross_entropy, other))
    return cases


def _soft_margin(x: Any, y: Any, reduction: str, **options: Any) -> Any:
    return F.multilabel_soft_margin_loss(x, y, reduction=reduction, **options)


def _focal(x: Any, y: Any, reduction: str, alpha: float, gamma: float) -> Any:
    """As torchvision.ops.sigmoid_focal_loss."""
    p = torch.sigmoid(x)
    right = p * y + (1 - p) * (1 - y)
    each = F.binary_cross_entropy_with_logits(x, y, reduction="none") * (1 - right) ** gamma
    each = each if alpha < 0 else (alpha * y + (1 - alpha) * (1 - y)) * each
    return _reduced(each, reduction)


def _reduced(each: Any, reduction: str) -> Any:
    return each if reduction == "none" else getattr(each, reduction)()


def _focal_of_classes(x: Any, y: Any, reduction: str, gamma: float, weight: Any = None) -> Any:
    """Lin et al. (2017), with a softmax."""
    own = F.cross_entropy(x, y, reduction="none")
    each = own * (1 - torch.exp(-own)) ** gamma
    return _reduced(each if weight is None else each * weight[y], reduction)


def _dice(p: Any, y: Any, reduction: str, squared: bool, smoothing: float) -> Any:
    """Milletari, Navab, Ahmadi (2016), with their squares or without."""
    if y.dim() < p.dim():
        y = F.one_hot(y, p.shape[1]).movedim(-1, 1).to(p.dtype)
    power = 2 if squared else 1
    shared, p, y = (t.flatten(2).sum(2) for t in (p * y, p**power, y**power))
    return _reduced(1 - (2 * shared + smoothing) / (p + y + smoothing), reduction)


def _pinball(x: Any, y: Any, reduction: str, levels: Any) -> Any:
    """Koenker, Bassett (1978)."""
    levels = torch.tensor(levels, dtype=x.dtype)
    difference = (y if y.dim() == x.dim() else y[:, None]) - x
    return _reduced(torch.maximum(levels * difference, (levels - 1) * difference), reduction)


def _distance(a: Any, b: Any) -> Any:
    return ((a - b) ** 4).sum(-1)


CASES: list[Case] = [
    *_cross_entropies(),
    (lm.CrossEntropy, {}, [X * 1e4], LABELS, F.cross_entropy, {}),
    (lm.MSE, {}, [X], OTHER, F.mse_loss, {}),
    (lm.MAE, {}, [X], OTHER, F.l1_loss, {}),
    (lm.MAE, {}, [X], X, F.l1_loss, {}),
    (lm.Huber, {"delta": 0.7}, [X], OTHER, F.huber_loss, {"delta": 0.7}),
    (lm.SmoothL1, {}, [X], OTHER, F.smooth_l1_loss, {}),
    (lm.SmoothL1, {"beta": 0.4}, [X], OTHER, F.smooth_l1_loss, {"beta": 0.4}),
    (lm.SmoothL1, {"beta": 0.0}, [X], OTHER, F.smooth_l1_loss, {"beta": 0.0}),
    (lm.NLL, {}, [LOG_X], LABELS, F.nll_loss, {}),
    (lm.NLL, {"class_weights": WEIGHTS}, [LOG_IMAGES], PIXELS, F.nll_loss, {"weight": W}),
    (
        lm.NLL,
        {"class_weights": WEIGHTS, "ignore_index": -7},
        [LOG_IMAGES],
        SOME_PIXELS,
        F.nll_loss,
        {"weight": W, "ignore_index": -7},
    ),
    (lm.BCE, {}, [SHARES], BITS, F.binary_cross_entropy, {}),
    (lm.BCE, {"class_weights": WEIGHTS}, [SHARES], BITS, F.binary_cross_entropy, {"weight": W}),
    (lm.BCEWithLogits, {}, [X * 50], SHARES, F.binary_cross_entropy_with_logits, {}),
    (
        lm.BCEWithLogits,
        {"positive_weight": 3.0},
        [X],
        SHARES,
        F.binary_cross_entropy_with_logits,
        {"pos_weight": torch.tensor(3.0, dtype=torch.float64)},
    ),
    (
        lm.BCEWithLogits,
        {"positive_weight": WEIGHTS, "class_weights": (1.0, 0.5, 3.0, 2.0)},
        [X],
        SHARES,
        F.binary_cross_entropy_with_logits,
        {"pos_weight": W, "weight": torch.tensor([1.0, 0.5, 3.0, 2.0], dtype=torch.float64)},
    ),
    (lm.BinaryFocal, {}, [X], BITS, _focal, {"alpha": 0.25, "gamma": 2.0}),
    (
        lm.BinaryFocal,
        {"focus": 1.5, "balance": None},
        [X],
        BITS,
        _focal,
        {"alpha": -1, "gamma": 1.5},
    ),
    (lm.Focal, {}, [X], LABELS, _focal_of_classes, {"gamma": 2.0}),
    (
        lm.Focal,
        {"focus": 0.5, "class_weights": WEIGHTS},
        [IMAGES],
        PIXELS,
        _focal_of_classes,
        {"gamma": 0.5, "weight": W},
    ),
    *(
        (
            lm.Dice,
            {"squared": squared, "smoothing": smoothing},
            [np.exp(LOG_IMAGES)],
            target,
            _dice,
            {"squared": squared, "smoothing": smoothing},
        )
        for target in (SOFT_IMAGES, PIXELS)
        for squared, smoothing in ((False, 1e-5), (True, 1.0))
    ),
    (lm.Quantile, {"quantiles": 0.3}, [X], OTHER, _pinball, {"levels": 0.3}),
    (
        lm.Quantile,
        {"quantiles": (0.1, 0.5, 0.8, 0.9)},
        [X],
        OTHER[:, 0],
        _pinball,
        {"levels": (0.1, 0.5, 0.8, 0.9)},
    ),
    (lm.KLDivergence, {}, [LOG_X], np.where(SHARES > 0.2, SHARES, 0), F.kl_div, {}),
    (
        lm.KLDivergence,
        {"log_target": True},
        [LOG_X],
        np.log(SHARES),
        F.kl_div,
        {"log_target": True},
    ),
    (lm.PoissonNLL, {}, [X], COUNTS, F.poisson_nll_loss, {}),
    (lm.PoissonNLL, {"full": True}, [X], COUNTS, F.poisson_nll_loss, {"full": True}),
    (
        lm.PoissonNLL,
        {"log_input": False, "epsilon": 1e-3},
        [POSITIVE],
        COUNTS,
        F.poisson_nll_loss,
        {"log_input": False, "eps": 1e-3},
    ),
    (lm.SoftMargin, {}, [X], SIGNS, F.soft_margin_loss, {}),
    (lm.HingeEmbedding, {}, [X], SIGNS, F.hinge_embedding_loss, {}),
    (lm.HingeEmbedding, {"margin": 0.3}, [X], SIGNS, F.hinge_embedding_loss, {"margin": 0.3}),
    (lm.MultiMargin, {}, [X], LABELS, F.multi_margin_loss, {}),
    (
        lm.MultiMargin,
        {"power": 2, "margin": 0.5, "class_weights": WEIGHTS},
        [X],
        LABELS,
        F.multi_margin_loss,
        {"p": 2, "margin": 0.5, "weight": W},
    ),
    (lm.MultiLabelMargin, {}, [X], SETS, F.multilabel_margin_loss, {}),
    (lm.MultiLabelSoftMargin, {}, [X], BITS, _soft_margin, {}),
    (lm.MultiLabelSoftMargin, {"class_weights": WEIGHTS}, [X], BITS, _soft_margin, {"weight": W}),
    (lm.MarginRanking, {}, [X, OTHER], SIGNS, F.margin_ranking_loss, {}),
    (lm.MarginRanking, {"margin": 0.4}, [X, OTHER], SIGNS, F.margin_ranking_loss, {"margin": 0.4}),
    (lm.CosineEmbedding, {}, [X, OTHER], SIGNS[:, 0], F.cosine_embedding_loss, {}),
    (
        lm.CosineEmbedding,
        {"margin": 0.2},
        [X, OTHER],
        SIGNS[:, 1],
        F.cosine_embedding_loss,
        {"margin": 0.2},
    ),
    (lm.Triplet, {"margin": 0.5}, [X, OTHER, SHARES], None, F.triplet_margin_loss, {"margin": 0.5}),
    (lm.Triplet, {"swap": True}, [X, OTHER, SHARES], None, F.triplet_margin_loss, {"swap": True}),
    (
        lm.TripletWithDistance,
        {"distance": lambda a, b: ops.sum((a - b) ** 4, -1), "swap": True},
        [X, OTHER, SHARES],
        None,
        F.triplet_margin_with_distance_loss,
        {"distance_function": _distance, "swap": True},
    ),
]
# PyTorch has no second derivative of these: differences of gradients stand in.
ONCE = (lm.MultiMargin, lm.MultiLabelMargin)


def ids(case: Case) -> str:
    return f"{case[0].__name__}-{sorted(case[1])}-{case[2][0].ndim}"


def found_by(
    loss: losses.Loss, predictions: Sequence[np.ndarray], target: np.ndarray | None
) -> dict[str, np.ndarray]:
    """Value, gradients, and the gradients of the sum of the squared gradients."""
    leaves = [
        leaf(f"x{n}", "input", (BATCH, *a.shape[1:]), as_dtype(a.dtype))
        for n, a in enumerate(predictions)
    ]
    feeds = {f"x{n}": a for n, a in enumerate(predictions)}
    wanted = None
    if target is not None:
        wanted = leaf("y", "input", (BATCH, *target.shape[1:]), as_dtype(target.dtype))
        feeds["y"] = target
    value = loss(leaves if len(leaves) > 1 else leaves[0], wanted)
    slopes = gradients(ops.sum(value), leaves)
    total = sum((ops.sum(slope * slope) for slope in slopes[1:]), ops.sum(slopes[0] * slopes[0]))
    curvatures = gradients(total, leaves)
    outputs = [("value", value)]
    outputs += [(f"slope{n}", one) for n, one in enumerate(slopes)]
    outputs += [(f"curvature{n}", one) for n, one in enumerate(curvatures)]
    inputs = (*leaves, *(() if wanted is None else (wanted,)))
    return evaluate(bind_batch(Graph(inputs, tuple(outputs)), len(predictions[0])), feeds)[0]


def expected_of(
    function: Callable[..., Any],
    predictions: Sequence[np.ndarray],
    target: np.ndarray | None,
    options: dict[str, Any],
    *,
    twice: bool,
) -> dict[str, np.ndarray]:
    """PyTorch's value, gradients, and gradients of the sum of the squared gradients."""
    x = [torch.tensor(a.copy(), requires_grad=True) for a in predictions]
    wanted = [] if target is None else [torch.tensor(target.copy())]
    value = function(*x, *wanted, **options)
    slopes = torch.autograd.grad(value.sum(), x, create_graph=twice)
    found = {"value": value.detach().numpy()}
    found |= {f"slope{n}": one.detach().numpy() for n, one in enumerate(slopes)}
    if twice and any(one.requires_grad for one in slopes):
        total = sum((one * one).sum() for one in slopes)
        curvatures = torch.autograd.grad(total, x, allow_unused=True, materialize_grads=True)
        found |= {f"curvature{n}": one.numpy(force=True) for n, one in enumerate(curvatures)}
    return found


def difference_of_gradients(gradient: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> Any:
    """The gradient of the sum of the squared gradient: a difference along the gradient."""
    step = 1e-4
    slope = gradient(x)
    return (gradient(x + step * slope) - gradient(x - step * slope)) / step


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("case", CASES, ids=ids)
def test_losses_have_the_values_and_derivatives_of_pytorch(case: Case, reduction: str) -> None:
    make, own, predictions, target, function, options = case
    expected = expected_of(
        function, predictions, target, {**options, "reduction": reduction}, twice=make not in ONCE
    )
    found = found_by(make(**own, reduction=reduction), predictions, target)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-9, atol=1e-12, err_msg=name)
    if make in ONCE:
        options = {**options, "reduction": reduction}
        curvature = difference_of_gradients(
            lambda x: expected_of(function, [x], target, options, twice=False)["slope0"],
            predictions[0],
        )
        np.testing.assert_allclose(found["curvature0"], curvature, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("columns", [4, 1])
def test_gaussian_nll_agrees_with_pytorch(reduction: str, full: bool, columns: int) -> None:
    # Some variances are below epsilon.
    variance = POSITIVE[:, :columns] * (np.arange(6)[:, None] != 2) + 1e-4
    options = {"full": full, "eps": 1e-2, "reduction": reduction}
    expected = expected_of(
        lambda x, v, y, **options: F.gaussian_nll_loss(x, y, v, **options),
        [X, variance],
        OTHER,
        options,
        twice=True,
    )
    loss = lm.GaussianNLL(full=full, epsilon=1e-2, reduction=reduction)
    found = found_by(loss, [X, variance], OTHER)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-9, atol=1e-12, err_msg=name)


# Sequences ----------------------------------------------------------------------------------------

TIMES = generator.normal(size=(5, 7, 4))
SEQUENCES = np.array([[1, 1, 2], [1, -1, -1], [-1, -1, -1], [3, 2, 3], [2, 2, 2]])
TARGET_LENGTHS = (SEQUENCES >= 0).sum(1)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("lengths", [(7, 7, 7, 7, 7), (7, 5, 4, 6, 4), (5, 1, 0, 3, 5)])
def test_ctc_agrees_with_pytorch(reduction: str, lengths: tuple[int, ...]) -> None:
    # Repeated labels, an empty target, and targets that are too long for the prediction.
    def expected_at(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = torch.tensor(scores, requires_grad=True)
        value = F.ctc_loss(
            x.log_softmax(-1).transpose(0, 1),
            torch.tensor(np.maximum(SEQUENCES, 1)),
            torch.tensor(lengths),
            torch.tensor(TARGET_LENGTHS),
            reduction=reduction,
            zero_infinity=True,
        )
        (slope,) = torch.autograd.grad(value.sum(), x)
        return value.detach().numpy(), slope.numpy()

    expected, slopes = expected_at(TIMES)
    # PyTorch has no second derivative.
    curvatures = difference_of_gradients(lambda x: expected_at(x)[1], TIMES)
    scores, labels = lm.Input(7, 4, dtype="float64"), lm.Input(3, dtype="int64")
    inputs, targets = lm.Input(dtype="int64"), lm.Input(dtype="int64")
    loss = lm.CTC(reduction=reduction, zero_infinity=True)
    for target in ((labels, inputs), (labels, inputs, targets)):
        value = loss(ops.log_softmax(scores), target)
        (slope,) = lm.gradients(ops.sum(value), [scores])
        (curvature,) = lm.gradients(ops.sum(slope * slope), [scores])
        found = lm.compile([scores, *target], [value, slope, curvature], engine="interpreter")
        arrays = (SEQUENCES, np.array(lengths), TARGET_LENGTHS)[: len(target)]
        results = found(TIMES, *arrays)
        np.testing.assert_allclose(results[0], expected, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(results[1], slopes, rtol=1e-9, atol=1e-14)
        np.testing.assert_allclose(results[2], curvatures, rtol=1e-6, atol=1e-8)


def test_ctc_without_zero_infinity_is_infinite_as_in_pytorch() -> None:
    expected = F.ctc_loss(
        torch.tensor(TIMES).log_softmax(-1).transpose(0, 1),
        torch.tensor(np.maximum(SEQUENCES, 1)),
        torch.tensor([4] * 5),
        torch.tensor(TARGET_LENGTHS),
        reduction="none",
    )
    scores, labels = lm.Input(7, 4, dtype="float64"), lm.Input(3, dtype="int64")
    lengths = lm.Input(dtype="int64")
    value = lm.CTC(reduction="none")(ops.log_softmax(scores), (labels, lengths))
    found = lm.compile([scores, labels, lengths], value, engine="interpreter")
    (result,) = found(TIMES, SEQUENCES, np.full(5, 4))
    assert np.isinf(result[4])
    np.testing.assert_allclose(result, expected.numpy(), rtol=1e-12)


def test_a_blank_that_is_not_the_first_class_agrees_with_pytorch() -> None:
    labels = np.array([[0, 1, 2]] * 5)
    expected = F.ctc_loss(
        torch.tensor(TIMES).log_softmax(-1).transpose(0, 1),
        torch.tensor(labels),
        torch.tensor([7] * 5),
        torch.tensor([3] * 5),
        blank=3,
    )
    x, y = lm.Input(7, 4, dtype="float64"), lm.Input(3, dtype="int64")
    found = lm.compile([x, y], lm.CTC(blank=3)(ops.log_softmax(x), y), engine="interpreter")
    np.testing.assert_allclose(found(TIMES, labels)[0], expected.item(), rtol=1e-12)


# Weights of examples ------------------------------------------------------------------------------


def test_weighted_means_divide_by_the_weights_of_examples_and_classes() -> None:
    weights = generator.random(6)
    x = torch.tensor(X, requires_grad=True)
    each = F.cross_entropy(x, torch.tensor(LABELS), weight=W, reduction="none")
    own = torch.tensor(weights)
    expected = (each * own).sum() / (W[torch.tensor(LABELS)] * own).sum()
    expected.backward()
    assert x.grad is not None
    scores, labels = lm.Input(4, dtype="float64"), lm.Input(dtype="int64")
    given = lm.Input(dtype="float64")
    value = lm.CrossEntropy(class_weights=WEIGHTS)(scores, labels, given)
    (slope,) = lm.gradients(value, [scores])
    found = lm.compile([scores, labels, given], [value, slope], engine="interpreter")
    results = found(X, LABELS, weights)
    np.testing.assert_allclose(results[0], expected.item(), rtol=1e-12)
    np.testing.assert_allclose(results[1], x.grad.numpy(), rtol=1e-9, atol=1e-14)
