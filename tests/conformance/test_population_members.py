"""Members of a population become the networks that are trained alone, on the engine under test."""

import numpy as np
import pytest
from layer_cases import random_network

import lamina as lm
from lamina.base.shapes import float32
from lamina.engines.host import HostEngine
from lamina.runtime import Parameters
from lamina.step.precision import Precision

MEMBERS, EXAMPLES, BATCH = 5, 13, 4
SEEDS = [pytest.param(n, marks=pytest.mark.sampled if n >= 2 else ()) for n in range(50)]
# Of a member with a number, each with other numbers.
OPTIMIZERS = (
    lambda k: lm.SGD(0.02 / (k + 1)),
    lambda k: lm.SGD(0.01, momentum=0.5 + 0.1 * k, weight_decay=0.01 * (k + 1)),
    lambda k: lm.Adam(0.002 * (k + 1), beta1=0.9 - 0.02 * k),
    lambda k: lm.AdamW(lm.schedules.Cosine(0.01 * (k + 1), 10 + k), weight_decay=0.1 / (k + 1)),
    lambda k: lm.EMA(lm.RMSProp(0.003 * (k + 1)), decay=0.9 - 0.01 * k),
)


def assert_equal(got, expected, engine, what):
    """Engines in the host's memory give the same bits; kernels for GPUs may split a sum."""
    if isinstance(engine, HostEngine):
        np.testing.assert_array_equal(got, expected, err_msg=what)
    else:
        scale = max(float(np.abs(expected).max(initial=0)), 1e-3)
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-4 * scale, err_msg=what)


def parameters(network, engine, seed, **options):
    if isinstance(seed, np.ndarray):
        options["seeds"], seed = seed, 0
    return Parameters(network, engine, Precision(float32), seed, **options)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_member_is_the_network_trained_alone(seed, engine):
    network, _ = random_network(seed)
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((EXAMPLES, *network.inputs[0].shape[1:]), np.float32)
    y = generator.standard_normal((EXAMPLES, *network.outputs[0].shape[1:]), np.float32)
    made = OPTIMIZERS[seed % len(OPTIMIZERS)]
    optimizers = [made(k) for k in range(MEMBERS)]
    clips = [lm.ClipGlobalNorm(0.5 + k) for k in range(MEMBERS)] if seed % 2 else [None] * MEMBERS
    # Samples with repetition, of two lengths, or none.
    lengths = generator.integers(9, 11, MEMBERS)
    subsets = [generator.integers(0, EXAMPLES, n) for n in lengths] if seed % 3 else None
    seeds = generator.integers(0, 1000, MEMBERS)
    population = lm.Population.of_parameters(
        parameters(network, engine, seeds, may_use_lanes=False)
    )
    options = {"loss": lm.MSE(), "epochs": 2, "batch_size": BATCH, "progress": False}
    clip = clips if seed % 2 else None
    histories = population.fit(
        (x, y), optimizer=optimizers, subsets=subsets, validation=(x, y), clip=clip, **options
    )
    outputs = population.predict(x)
    for k in range(MEMBERS):
        alone = lm.Model.of_parameters(parameters(network, engine, int(seeds[k])))
        own = slice(None) if subsets is None else subsets[k]
        history = alone.fit(
            (x[own], y[own]), optimizer=optimizers[k], clip=clips[k], validation=(x, y), **options
        )
        for name, values in history.values.items():
            assert_equal(np.array(histories[k][name]), np.array(values), engine, name)
        member = population[k]
        expected = alone.parameters() | alone.states() | history.averaged_parameters
        got = member.parameters() | member.states() | histories[k].averaged_parameters
        for name, value in expected.items():
            # The gradient of the bias of attention's keys is 0 but for rounding, which optimizers
            # that divide by its size amplify.
            if isinstance(engine, HostEngine) or not name.endswith("keys.bias"):
                assert_equal(got[name], value, engine, name)
        assert_equal(outputs[k], alone.predict(x), engine, "predictions")
        assert_equal(member.predict(x), outputs[k], engine, "predictions of the member")


def test_members_in_lanes_are_the_networks_trained_alone_but_for_rounding(engine):
    network = lm.Sequential(lm.Input(2), lm.Linear(20), lm.Tanh(), lm.Dropout(0.1), lm.Linear(1))
    x = np.random.default_rng(0).standard_normal((24, 2), np.float32)
    y = np.sin(x.sum(1, keepdims=True))
    members = 37
    population = lm.Population.of_parameters(parameters(network, engine, np.arange(members)))
    rates = [0.01 + 0.001 * k for k in range(members)]
    stopped = [lm.callbacks.EarlyStopping("validation_loss", patience=1, least_change=1e-3)]
    options = {"loss": lm.MSE(), "epochs": 6, "batch_size": 8, "validation": (x, y)}
    histories = population.fit(
        (x, y), optimizer=[lm.SGD(rate) for rate in rates], callbacks=stopped, **options
    )
    for k in range(0, members, 4):
        alone = lm.Model.of_parameters(parameters(network, engine, k))
        stop = [lm.callbacks.EarlyStopping("validation_loss", patience=1, least_change=1e-3)]
        history = alone.fit((x, y), optimizer=lm.SGD(rates[k]), callbacks=stop, **options)
        np.testing.assert_allclose(histories[k]["loss"], history["loss"], 1e-5)
        for name, value in alone.parameters().items():
            np.testing.assert_allclose(population[k].parameters()[name], value, 1e-3, 1e-5)


def test_a_training_step_takes_common_batches_and_batches_of_each_member(engine):
    network = lm.Sequential(lm.Input(3), lm.Linear(4), lm.Tanh(), lm.Linear(2))
    population = lm.Population.of_parameters(
        parameters(network, engine, np.arange(3), may_use_lanes=False)
    )
    generator = np.random.default_rng(0)
    common = [generator.standard_normal((4, n), np.float32) for n in (3, 2)]
    own = [generator.standard_normal((3, 4, n), np.float32) for n in (3, 2)]
    with population.training(lm.MSE(), lm.SGD(0.1), 4) as training:
        losses = [
            training.step(*common),
            training.step(own[0], common[1]),
            training.step(common[0], own[1]),
            training.step(*own),
        ]
        assert training.steps_done.tolist() == [4, 4, 4]
        training.set_rates({"rate": [0.1, 0.2, 0.3]})
        np.testing.assert_allclose(training.rates["rate"], [0.1, 0.2, 0.3], 1e-6)
    for k in range(3):
        alone = lm.Model.of_parameters(parameters(network, engine, k))
        with alone.training(lm.MSE(), lm.SGD(0.1), 4, seed=k) as training:
            batches = [common, (own[0][k], common[1]), (common[0], own[1][k]), (a[k] for a in own)]
            expected = [float(training.step(*batch)) for batch in batches]
        assert_equal(np.array([step[k] for step in losses]), np.array(expected), engine, "losses")


def test_members_learn_from_a_stream_as_models_do(engine):
    network = lm.Sequential(lm.Input(3), lm.Linear(4), lm.Tanh(), lm.Linear(2))
    generator = np.random.default_rng(0)
    x, y = (generator.standard_normal((21, n), np.float32) for n in (3, 2))
    batches = [(x[:9], y[:9]), (x[9:11], y[9:11]), (x[11:], y[11:])]
    optimizers = [lm.SGD(0.05), lm.SGD(0.1)]
    options = {"loss": lm.MSE(), "epochs": 3, "batch_size": 4, "validation": batches}
    population = lm.Population.of_parameters(
        parameters(network, engine, np.arange(2), may_use_lanes=False)
    )
    histories = population.fit(batches, optimizer=optimizers, **options)
    measured = population.evaluate(batches, lm.MSE(), [lm.MAE()])
    outputs = population.predict(batches)
    with population.training(lm.MSE(), lm.SGD(0.1), 4) as training:
        losses = [training.run(batches, steps) for steps in (4, 5)]
    for k in range(2):
        alone = lm.Model.of_parameters(parameters(network, engine, k))
        history = alone.fit(batches, optimizer=optimizers[k], **options)
        for name, values in history.values.items():
            assert_equal(np.array(histories[k][name]), np.array(values), engine, name)
        for name, value in alone.evaluate(batches, lm.MSE(), [lm.MAE()]).items():
            assert_equal(measured[name][k], np.array(value), engine, name)
        assert_equal(outputs[k], alone.predict(x), engine, "predictions")
        with alone.training(lm.MSE(), lm.SGD(0.1), 4, seed=k) as training:
            for run in losses:
                expected = training.run(batches, run.shape[1])
                assert_equal(run[k], expected, engine, "losses")
