"""Normalisation layers: running averages over the life of a model."""

import numpy as np
import pytest

import lamina as lm
from lamina.program.steps import stores_of

MSE, SGD = lm.MSE(), lm.SGD(0.1, momentum=0.9)


def network():
    return lm.Sequential(
        lm.Input(3), lm.Linear(5), lm.BatchNorm(momentum=0.2), lm.ReLU(), lm.Linear(2)
    )


def examples(count=40):
    generator = np.random.default_rng(0)
    return generator.normal(1, 2, (count, 3)), generator.normal(size=(count, 2))


def fitted(engine="cpu", epochs=2, **options):
    model = lm.Model(network(), engine=engine, seed=1, dtype="float64")
    model.fit(examples(), loss=MSE, optimizer=SGD, epochs=epochs, batch_size=8, **options)
    return model


@pytest.mark.parametrize(
    ("before", "size"),
    [(lm.Conv2d(8, 3), (4, 9, 9)), (lm.Conv2d(8, 3, groups=8), (8, 9, 9)), (lm.Linear(32), (20,))],
)
def test_inference_fuses_normalisation_into_the_product_before_it(before, size):
    normalised = lm.Sequential(lm.Input(*size), before, lm.BatchNorm(), lm.ReLU())
    alone = lm.Sequential(lm.Input(*size), before, lm.ReLU())
    channels = before(lm.Input(*size)).shape[1]

    def large_steps(network):
        steps = network.plan(16).program.steps
        stores = [store for step in steps for store in stores_of(step)]
        buffers = network.plan(16).program.buffers
        return sum(buffers[store.buffer].bytes > 4 * channels for store in stores)

    # The other steps compute factors of channels only.
    assert large_steps(normalised) == large_steps(alone) == 1


def test_evaluation_within_a_fit_leaves_running_averages_alone():
    alone = fitted()
    watched = fitted(validation=examples(13))
    for name, value in alone.states().items():
        np.testing.assert_array_equal(watched.states()[name], value)


def test_a_batch_of_one_leaves_the_running_variance_as_it_is():
    x, y = examples(1)
    model = lm.Model(lm.Sequential(lm.Input(3), lm.BatchNorm(), lm.Linear(2)), dtype="float64")
    with model.training(loss=MSE, optimizer=SGD, batch_size=1) as training:
        assert np.isfinite(float(training.step(x, y)))
    np.testing.assert_array_equal(model.states()["1.running_variance"], np.ones(3))
    np.testing.assert_allclose(model.states()["1.running_mean"], 0.1 * x[0], rtol=1e-12)


def test_a_layer_that_is_applied_twice_averages_both_batches():
    norm = lm.BatchNorm(momentum=0.5, affine=False)
    a, b = lm.Input(3), lm.Input(3)
    weight = lm.Linear(1)
    net = lm.Network([a, b], weight(norm(a)) + weight(norm(b)))
    model = lm.Model(net, dtype="float64")
    x = examples(16)[0]
    with model.training(loss=MSE, optimizer=SGD, batch_size=8) as training:
        training.step((x[:8], x[8:]), np.zeros((8, 1)))
    (mean,) = (value for name, value in model.states().items() if "mean" in name)
    np.testing.assert_allclose(mean, 0.25 * x[:8].mean(0) + 0.5 * x[8:].mean(0), rtol=1e-12)


X = np.random.default_rng(0).normal(size=(6, 4, 3)).astype("float32")


def test_without_momentum_the_averages_are_those_of_all_batches():
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


def test_without_running_averages_there_are_no_states():
    model = lm.Model(lm.Sequential(lm.Input(4, 3), lm.BatchNorm(running=False)))
    assert not model.states()
    np.testing.assert_allclose(model.predict(X).mean((0, 2)), np.zeros(4), atol=1e-6)


@pytest.mark.parametrize("layer", [lm.BatchNorm, lm.InstanceNorm, lambda **o: lm.GroupNorm(2, **o)])
def test_a_weight_without_a_bias(layer):
    model = lm.Model(lm.Sequential(lm.Input(4, 3), layer(affine=True, bias=False)))
    assert list(model.parameters()) == ["1.weight"]
