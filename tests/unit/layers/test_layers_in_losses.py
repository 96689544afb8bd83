"""Layers that are applied outside of networks: in losses, metrics, regularizers and clipping."""

import numpy as np
import pytest
from random_arrays import normal

import lamina as lm
from lamina import ops

X, Y = normal(16, 3), normal(16, 2, seed=1)


def network(**options):
    return lm.Sequential(lm.Input(3), lm.Linear(4), lm.Tanh(), lm.Linear(2, **options))


def losses_of(net, engine="cpu", **options):
    how = {"loss": lm.MSE(), "optimizer": lm.SGD(0.1), "batch_size": 8, "epochs": 3, **options}
    return lm.Model(net, engine=engine, seed=0).fit((X, Y), **how, progress=False)["loss"]


def halves():
    x = lm.Input(2)
    return lm.Network(x, lm.ReLU()(x) * 0.5)


def with_layer(y, t):
    return ops.mean(halves()(lm.Add()(y, -t)))


def with_ops(y, t):
    return ops.mean(ops.relu(y - t) * 0.5)


@pytest.mark.parametrize("engine", ["interpreter", "cpu"])
@pytest.mark.parametrize("micro_batch", [None, 4])
def test_a_loss_of_layers_trains_like_one_of_ops(engine, micro_batch):
    found = losses_of(network(), engine, loss=with_layer, micro_batch=micro_batch)
    assert found == losses_of(network(), engine, loss=with_ops, micro_batch=micro_batch)


def test_layers_are_applied_in_losses_and_metrics_of_an_evaluation():
    def rectified(y, t):
        return with_layer(y, t)

    model = lm.Model(network(), seed=0)
    results = model.evaluate((X, Y), loss=with_layer, metrics=[rectified])
    expected = np.maximum(model.predict(X) - Y, 0).mean() / 2
    assert results["loss"] == pytest.approx(expected, rel=1e-6)
    assert results["rectified"] == pytest.approx(expected, rel=1e-6)


def test_layers_are_applied_to_parameters_and_gradients():
    def regularized(function):
        return losses_of(network(weight_regularizer=lambda w: 0.01 * ops.sum(function(w))))

    def clipped(function):
        return losses_of(network(), clip=lambda flows: [function(flow) for flow in flows])

    assert regularized(lm.ReLU()) == regularized(ops.relu)
    assert clipped(lm.Tanh()) == clipped(ops.tanh)


def test_a_rate_is_computed_by_layers():
    def rate(step):
        return 0.5 * lm.Tanh()(ops.cast(step, "float32") + 1.0)

    model = lm.Model(network(), seed=0)
    before = model.parameters()["3.bias"]
    with model.training(ops_loss, lm.SGD(rate), batch_size=16) as training:
        assert training.rate == pytest.approx(0.5 * np.tanh(1.0), rel=1e-6)
        training.step(X, Y)
        assert training.rate == pytest.approx(0.5 * np.tanh(2.0), rel=1e-6)
    moved = before - 0.5 * np.tanh(1.0)
    np.testing.assert_allclose(model.parameters()["3.bias"], moved, rtol=1e-5)


def ops_loss(y, t):
    return ops.sum(ops.mean(y - t, 0))


def test_a_random_layer_in_a_loss_draws_numbers_in_training_and_none_in_evaluation():
    def noisy(y, t):
        return ops.mean(lm.Dropout(0.5)(y - t) ** 2)

    model = lm.Model(network(), seed=0)
    plain = model.evaluate((X, Y), loss=lm.MSE())["loss"]
    assert model.evaluate((X, Y), loss=noisy)["loss"] == pytest.approx(plain, rel=1e-6)
    still = lm.SGD(0.0)
    losses = losses_of(network(), loss=noisy, optimizer=still, batch_size=16)
    assert len(set(losses)) == 3
    assert losses == losses_of(network(), loss=noisy, optimizer=still, batch_size=16)
