"""Layers that mix the examples of a batch: values, the distribution of shares, and the loss."""

from dataclasses import dataclass

import numpy as np
import pytest
from harness import numbers_of
from layer_values import run, traced
from random_arrays import normal64

import lamina as lm
from lamina import ops
from lamina.base.shapes import float64, int64
from lamina.graph import Graph, bind_batch, constant, evaluate
from lamina.layers.mixing import beta_quantiles
from lamina.learning.protocols import TrainingOptions
from lamina.step.derive import BatchSpecs, evaluation_graph, training_graph

KEYS = {"seed": np.int64(1), "step": np.int64(2)}


def drawn(stream, step=2):
    keys = (constant(1, int64), constant(step, int64))
    found, _ = evaluate(Graph((), (("y", ops.uniform((), *keys, stream=stream)),)), {})
    return float(found["y"])


def share_of(layer, *shape, step=2):
    """The share that the layer tells its scope."""
    x = lm.Input(*shape)
    mixture = traced([x], layer(x), training=True).record.mixture
    graph = Graph((), (("share", mixture.share),))
    return float(evaluate(graph, {**KEYS, "step": np.int64(step)})[0]["share"])


def test_quantiles_of_distributions_with_a_formula():
    probability = np.linspace(0, 1, 1025)
    np.testing.assert_allclose(beta_quantiles(1.0, 1024), probability, atol=1e-15)
    arcsine = np.sin(np.pi / 2 * probability) ** 2
    np.testing.assert_allclose(beta_quantiles(0.5, 1024), arcsine, atol=1e-8)
    x = beta_quantiles(2.0, 1024)
    np.testing.assert_allclose(3 * x**2 - 2 * x**3, probability, atol=1e-8)


@pytest.mark.parametrize("alpha", [0.01, 0.2, 0.9, 1.5, 30.0])
def test_quantiles_have_the_variance_of_the_distribution(alpha):
    x = beta_quantiles(alpha, 4096)
    assert (np.diff(x) >= 0).all()
    np.testing.assert_allclose(x + x[::-1], 1.0, atol=1e-15)
    middles = (x[1:] + x[:-1]) / 2
    np.testing.assert_allclose(middles.var(), 1 / (4 * (2 * alpha + 1)), rtol=0.01)


@pytest.mark.parametrize("alpha", [1e-300, 1e300])
def test_quantiles_at_the_ends_of_the_range_are_finite(alpha):
    x = beta_quantiles(alpha, 8)
    assert np.isfinite(x).all()
    assert set(x[1:-1].round(3)) == ({0.0, 0.5, 1.0} if alpha < 1 else {0.5})


def test_mixup_takes_means_with_the_example_before():
    x = normal64(5, 3, 2)
    share = share_of(lm.Mixup(alpha=0.5), 3, 2)
    np.testing.assert_allclose(share, np.sin(np.pi / 2 * drawn(0)) ** 2, atol=1e-5)
    y = run(lm.Mixup(alpha=0.5), x, training=True)
    np.testing.assert_allclose(y, share * x + (1 - share) * np.roll(x, 1, 0), rtol=1e-6)


@pytest.mark.parametrize("step", range(6))
def test_cutmix_takes_a_rectangle_of_the_example_before(step):
    x = np.random.default_rng(0).random((5, 2, 9, 13))
    image = lm.Input(2, 9, 13)
    result = traced([image], lm.CutMix()(image), training=True)
    graph = bind_batch(Graph(result.inputs, (("y", result.outputs[0]),)), 5)
    outputs, _ = evaluate(graph, {"input0": x, "seed": np.int64(1), "step": np.int64(step)})
    root = np.sqrt(np.float32(1 - drawn(0, step)))
    mask = np.zeros((9, 13), bool)
    (top, bottom), (left, right) = (
        (max(centre - half, 0), min(centre + half, extent))
        for extent, stream in ((9, 1), (13, 2))
        for centre, half in [(int(drawn(stream, step) * extent), int(root * extent) // 2)]
    )
    mask[top:bottom, left:right] = True
    np.testing.assert_array_equal(outputs["y"], np.where(mask, np.roll(x, 1, 0), x))
    share = share_of(lm.CutMix(), 2, 9, 13, step=step)
    np.testing.assert_allclose(share, 1 - mask.mean(), rtol=1e-6)


def test_a_batch_of_one_is_its_own_partner():
    x = normal64(1, 3, 4, 4)
    np.testing.assert_allclose(run(lm.Mixup(), x, training=True), x, rtol=1e-6)
    np.testing.assert_array_equal(run(lm.CutMix(alpha=9.0), x, training=True), x)


def trained(layer, loss, target, feeds):
    """Loss, metrics and new weights of a training step of a linear network."""
    layers = [] if layer is None else [layer]
    network = lm.Sequential(lm.Input(4), *layers, lm.Linear(3, bias=False))
    metrics = (lm.Accuracy(),) if target[1] == int64 else ()
    options = TrainingOptions(loss, lm.SGD(1.0), metrics=metrics)
    made = training_graph(BatchSpecs(network, float64, targets=[target]), options)
    weight = "2.weight" if layers else "1.weight"
    fed = {
        **KEYS,
        **numbers_of(made),
        **{weight if n == "weight" else n: a for n, a in feeds.items()},
    }
    outputs, after = evaluate(bind_batch(made.graph, 6), fed)
    return {**outputs, "weight": after[weight]}


@pytest.mark.parametrize(
    ("loss", "classes"),
    [(lm.CrossEntropy(), True), (lm.CrossEntropy(reduction="sum"), True), (lm.MAE(), False)],
    ids=repr,
)
def test_the_loss_takes_both_targets_by_their_shares(loss, classes):
    x, weight = normal64(6, 4), normal64(3, 4)
    target = np.array([0, 2, 1, 1, 0, 2]) if classes else normal64(6, 3)
    spec = (lm.Input(3).shape[:1], int64) if classes else (lm.Input(3).shape, float64)
    share = share_of(lm.Mixup(), 4)
    assert 0.05 < share < 0.95
    feeds = {"input0": x, "target0": target, "weight": weight}
    results = trained(lm.Mixup(), loss, spec, feeds)
    mixed = share * x + (1 - share) * np.roll(x, 1, 0)
    with_targets = trained(None, loss, spec, {**feeds, "input0": mixed})
    partners = np.roll(target, 1, 0)
    with_partners = trained(None, loss, spec, {**feeds, "input0": mixed, "target0": partners})
    for name in ("loss", "weight"):
        expected = share * with_targets[name] + (1 - share) * with_partners[name]
        np.testing.assert_allclose(results[name], expected, rtol=1e-6)
    for name in results.keys() - {"loss", "weight"}:
        # The metrics are of the example's own target.
        np.testing.assert_array_equal(results[name], with_targets[name])


def loss_of(network, loss, feeds, targets=(), weights=()):
    """The loss of a batch in training mode."""
    batch = BatchSpecs(network, float64, targets=targets, weights=weights)
    graph = evaluation_graph(batch, loss, training=True).graph
    return float(evaluate(bind_batch(graph, 6), {**KEYS, **feeds})[0]["loss"])


def test_targets_keep_the_weights_of_their_examples():
    x, target = normal64(6, 3), np.array([0, 2, 1, 1, 0, 2])
    weights = np.array([0.0, 1.0, 2.0, 0.5, 3.0, 1.5])
    batch = lm.Input(3).shape[:1]

    def weighted(x, shift, *layers):
        feeds = {"target0": np.roll(target, shift), "weight0": np.roll(weights, shift)}
        network = lm.Sequential(lm.Input(3), *layers, lm.Identity())
        specs = [(batch, int64)], [(batch, float64)]
        return loss_of(network, lm.CrossEntropy(), {"input0": x, **feeds}, *specs)

    share = share_of(lm.Mixup(), 3)
    mixed = share * x + (1 - share) * np.roll(x, 1, 0)
    expected = share * weighted(mixed, 0) + (1 - share) * weighted(mixed, 1)
    np.testing.assert_allclose(weighted(x, 0, lm.Mixup()), expected, rtol=1e-6)


def test_several_targets_are_mixed_together():
    def loss(outputs, targets):
        return sum((ops.mean(ops.abs(a - b)) for a, b in zip(outputs, targets, strict=True)), 0.0)

    x = lm.Input(4)
    y = lm.Mixup()(x)
    data, first, second = normal64(6, 4), normal64(6, 4) * 3, normal64(6, 4) + 1
    feeds = {"input0": data, "target0": first, "target1": second}
    network = lm.Network(x, [lm.Identity()(y), y * 2.0])
    result = loss_of(network, loss, feeds, [(x.shape, float64)] * 2)
    share = share_of(lm.Mixup(), 4)
    mixed = share * data + (1 - share) * np.roll(data, 1, 0)

    def value(shift):
        targets = np.roll(first, shift, 0), np.roll(second, shift, 0)
        return float(np.abs(mixed - targets[0]).mean() + np.abs(2 * mixed - targets[1]).mean())

    np.testing.assert_allclose(result, share * value(0) + (1 - share) * value(1), rtol=1e-6)


def test_a_loss_without_targets_is_as_it_was():
    @dataclass(frozen=True)
    class Size:
        def target(self, prediction):
            return None

        def __call__(self, prediction, target):
            return ops.mean(prediction * prediction)

    x = normal64(6, 4)
    result = loss_of(lm.Sequential(lm.Input(4), lm.Mixup()), Size(), {"input0": x})
    np.testing.assert_allclose(result, (run(lm.Mixup(), x, training=True) ** 2).mean())
