"""Layers of bags, pairs and channels, and options of normalisations: what PyTorch's lack or refuse.

Values and gradients are compared with PyTorch's in test_layers_torch*.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina.base.shapes import float64
from lamina.graph import Graph, bind_batch, evaluate

X = np.random.default_rng(0).normal(size=(6, 4, 3)).astype("float32")


# Bags ---------------------------------------------------------------------------------------------

BAGS = np.array([[1, 2, 3], [4, 4, 0], [5, 1, 2]])
COUNTED = np.array([[True, True, False], [True, True, True], [False, False, False]])


def bag_of(mode: Any, second: lm.Tensor, **options: Any) -> lm.Model:
    x = lm.Input(3, dtype="int64")
    layer = lm.EmbeddingBag(6, 4, mode=mode, **options)
    return lm.Model(lm.Network([x, second], layer(x, second)), seed=0)


@pytest.mark.parametrize("mode", ["mean", "sum", "max"])
@pytest.mark.parametrize("padding", [None, 2])
def test_a_mask_chooses_the_indices_that_count(mode: str, padding: int | None) -> None:
    model = bag_of(mode, lm.Input(3, dtype="bool"), padding=padding)
    (table,) = model.parameters().values()
    found = model.predict((BAGS, COUNTED))
    for row, bag, counted in zip(found, BAGS, COUNTED, strict=True):
        rows = table[bag[counted & (bag != padding)]]
        expected = getattr(np, mode)(rows, 0) if len(rows) else np.zeros(4)
        np.testing.assert_allclose(row, expected, rtol=1e-5, atol=1e-6)


def test_weights_of_a_bag_multiply_its_rows() -> None:
    model = bag_of("sum", lm.Input(3))
    (table,) = model.parameters().values()
    weights = np.random.default_rng(1).normal(size=(3, 3)).astype("float32")
    expected = np.einsum("bl,blf->bf", weights, table[BAGS])
    np.testing.assert_allclose(model.predict((BAGS, weights)), expected, rtol=1e-5, atol=1e-6)


# Random layers ------------------------------------------------------------------------------------


def in_training(net: lm.Network, x: np.ndarray) -> np.ndarray:
    """The result in float64, with random numbers of the training."""
    trace = net.trace(dtype=float64, training=True)
    graph = bind_batch(Graph(trace.inputs, (("y", trace.outputs[0]),)), len(x))
    feeds = {"input0": x.astype(float), "seed": np.int64(1), "step": np.int64(2)}
    return evaluate(graph, feeds)[0]["y"]


@pytest.mark.parametrize("whole", [False, True])
def test_alpha_dropout_keeps_mean_and_variance(whole: bool) -> None:
    x = np.random.default_rng(2).normal(size=(200, 50, 8)).astype("float32")
    layer = lm.AlphaDropout(0.3, whole_channels=whole)
    net = lm.Sequential(lm.Input(50, 8), layer)
    y = in_training(net, x)
    assert abs(y.mean()) < 0.03
    assert abs(y.var() - 1) < 0.05
    same = (y == y[:, :, :1]).all(2)
    assert (same.mean() > 0.2) == whole
    np.testing.assert_array_equal(lm.Model(net).predict(x), x)


@pytest.mark.torch
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_alpha_dropout_gives_the_two_values_of_pytorch(probability: float, whole: bool) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    torch.manual_seed(0)
    x = np.full((400, 50, 2), 0.7)
    kind = torch.nn.FeatureAlphaDropout if whole else torch.nn.AlphaDropout
    expected = kind(probability)(torch.tensor(x)).numpy()
    layer = lm.AlphaDropout(probability, whole_channels=whole)
    found = in_training(lm.Sequential(lm.Input(50, 2), layer), x)
    # One for the elements that are dropped, and one for those that stay.
    mine, theirs = (np.unique(y.round(9)) for y in (found, expected))
    assert len(mine) == 2
    np.testing.assert_allclose(mine, theirs, atol=1e-8)
    for y in (found, expected):
        assert abs((y < 0).mean() - probability) < 0.02
        assert (y[..., 0] == y[..., 1]).all() == whole


# Normalisation ------------------------------------------------------------------------------------


def test_without_momentum_the_averages_are_those_of_all_batches() -> None:
    model = lm.Model(lm.Sequential(lm.Input(4, 3), lm.BatchNorm(momentum=None)))
    batches = [X + n for n in range(3)]
    with model.training(loss=lm.MSE(), optimizer=lm.SGD(0.0), batch_size=6) as training:
        for batch in batches:
            training.step(batch, batch)
    states = model.states()
    assert states["1.batches"] == 3
    means = [batch.mean((0, 2)) for batch in batches]
    variances = [batch.var((0, 2), ddof=1) for batch in batches]
    np.testing.assert_allclose(states["1.running_mean"], np.mean(means, 0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(states["1.running_variance"], np.mean(variances, 0), rtol=1e-5)


def test_without_running_averages_there_are_no_states() -> None:
    model = lm.Model(lm.Sequential(lm.Input(4, 3), lm.BatchNorm(running=False)))
    assert not model.states()
    np.testing.assert_allclose(model.predict(X).mean((0, 2)), np.zeros(4), atol=1e-6)


@pytest.mark.parametrize("layer", [lm.BatchNorm, lm.InstanceNorm, lambda **o: lm.GroupNorm(2, **o)])
def test_a_weight_without_a_bias(layer: Callable[..., lm.Layer]) -> None:
    model = lm.Model(lm.Sequential(lm.Input(4, 3), layer(affine=True, bias=False)))
    assert list(model.parameters()) == ["1.weight"]


# Pairs --------------------------------------------------------------------------------------------


def test_a_tensor_of_zeros_has_the_similarity_zero_and_finite_gradients() -> None:
    a, b = lm.Input(3), lm.Input(3)
    y = lm.CosineSimilarity()(a, b)
    model = lm.Model(lm.Network([a, b], y))
    assert model.predict((np.zeros((1, 3), "float32"), np.ones((1, 3), "float32"))) == 0
    report = lm.verify(lm.Network([a, b], lm.CosineSimilarity()(lm.Linear(3)(a), b)), loss=lm.MSE())
    assert report.passed
