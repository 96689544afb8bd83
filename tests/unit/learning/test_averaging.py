"""Averages of parameters: formulas, PyTorch's results, state, checkpoints and history."""

from typing import Any

import numpy as np
import pytest
from test_fit import TRAIN, fit, network, same
from test_network import Centred
from test_optimizers import train

import lamina as lm
from lamina.errors import DefinitionError
from lamina.learning import optimizers

Array = np.ndarray


def trainer(model: lm.Model, optimizer: Any) -> Any:
    return model.training(lm.CrossEntropy(), optimizer, 8)


def courses(optimizer: optimizers.Averaging) -> tuple[list[Array], list[Array]]:
    """The parameter and its average after each of twelve training steps."""
    return train(optimizer), train(optimizer, shown="average")


def test_averaging_does_not_change_the_training():
    plain = train(optimizers.Adam(0.1))
    for wrapper in (optimizers.EMA(lm.Adam(0.1)), optimizers.SWA(lm.Adam(0.1), start=3)):
        np.testing.assert_array_equal(train(wrapper), plain)


def test_ema_is_its_formula():
    parameters, averages = courses(optimizers.EMA(lm.SGD(0.1), decay=0.8))
    expected = parameters[0]
    np.testing.assert_array_equal(averages[0], expected)
    for parameter, average in zip(parameters[1:], averages[1:], strict=True):
        expected = 0.8 * expected + (1 - 0.8) * parameter
        np.testing.assert_allclose(average, expected, rtol=1e-12)


@pytest.mark.parametrize(("start", "every"), [(1, 1), (1, 3), (4, 1), (3, 2), (5, 4), (20, 1)])
def test_swa_is_the_mean_of_the_sampled_parameters(start, every):
    parameters, averages = courses(optimizers.SWA(lm.SGD(0.1), start=start, every=every))
    for number, average in enumerate(averages, 1):
        counted = parameters[start - 1 : number : every]
        expected = np.mean(counted, axis=0) if counted else parameters[number - 1]
        np.testing.assert_allclose(average, expected, rtol=1e-12)


def test_averaged_parameters_follow_the_formula(model):
    with trainer(model, lm.EMA(lm.Adam(0.1), decay=0.5)) as training:
        assert training.has_averages
        assert same(training.averaged_parameters(), model.parameters())
        training.run(TRAIN, steps=1)
        expected = model.parameters()
        assert same(training.averaged_parameters(), expected)
        training.run(TRAIN, steps=1)
        averaged = training.averaged_parameters()
        assert list(averaged) == list(model.parameters())
        for name, parameter in model.parameters().items():
            expected[name] = (expected[name] + parameter) / 2
            np.testing.assert_allclose(averaged[name], expected[name], rtol=1e-5, atol=1e-7)
    model.set_parameters(averaged)
    assert same(model.parameters(), averaged)


def test_parameters_without_an_average_are_read_as_they_are(model):
    optimizer = lm.ByPath({"1.*": lm.EMA(lm.SGD(0.1))}, default=lm.SGD(0.1))
    with trainer(model, optimizer) as training:
        training.run(TRAIN, steps=3)
        averaged, parameters = training.averaged_parameters(), model.parameters()
    equal = [name for name in parameters if (averaged[name] == parameters[name]).all()]
    assert equal == ["4.weight", "4.bias"]


def test_states_of_layers_are_not_averaged():
    model = lm.Model(lm.Sequential(lm.Input(4), Centred(), lm.Linear(3)))
    with trainer(model, lm.EMA(lm.SGD(0.1))) as training:
        training.run(TRAIN, steps=3)
        parameters = ["1.0.weight", "1.0.bias", "2.weight", "2.bias"]
        assert list(training.averaged_parameters()) == parameters
        averages = {f"{name}/average" for name in parameters}
        assert set(training.state()) == {*averages, "seed", "step"}


def test_averaged_parameters_of_a_training_without_averages_are_refused():
    with trainer(lm.Model(network()), lm.Adam(0.1)) as training:
        assert not training.has_averages
        with pytest.raises(DefinitionError) as error:
            training.averaged_parameters()
    assert str(error.value) == (
        "in averaged_parameters: the optimizer of this training keeps no averages\n"
        "  Wrap it in EMA or SWA: lm.EMA(lm.Adam(1e-3), decay=0.999)."
    )


def test_averages_count_as_state_in_the_memory_bill():
    net, loss = network(), lm.CrossEntropy()
    plain = net.plan(8, loss, lm.Adam(0.1))
    averaged = net.plan(8, loss, lm.EMA(lm.Adam(0.1)))
    # And 1 - decay.
    assert averaged.state_bytes == plain.state_bytes + plain.parameter_bytes + 4
    # The steps that update the parameters compute their averages too, without temporaries.
    assert averaged.arena_bytes - plain.arena_bytes < 64
    assert len(averaged.program.steps) - len(plain.program.steps) <= 1


def test_the_history_of_a_fit_has_the_averages(model):
    other = lm.Model(network())
    seen: list[dict[str, Array]] = []
    optimizer = lm.EMA(lm.Adam(0.01), decay=0.9)
    history = fit(
        model, optimizer=optimizer, callbacks=[lambda h: seen.append(h.averaged_parameters)]
    )
    with trainer(other, optimizer) as training:
        for epoch in range(3):
            training.run(TRAIN, steps=7)
            assert same(seen[epoch], training.averaged_parameters())
    assert same(history.averaged_parameters, seen[-1])
    assert same(model.parameters(), other.parameters())
    assert fit(lm.Model(network())).averaged_parameters == {}


@pytest.mark.parametrize("kind", [lm.EMA, lambda one: lm.SWA(one, start=5, every=3)])
def test_averages_are_resumed_with_the_same_bits(kind, model, path):
    optimizer = kind(lm.Adam(0.01))
    whole = fit(lm.Model(network()), optimizer=optimizer)
    fit(lm.Model(network()), optimizer=optimizer, epochs=1, checkpoint=path)
    rest = fit(model, optimizer=optimizer, checkpoint=path, resume=True)
    assert same(rest.averaged_parameters, whole.averaged_parameters)
    again = fit(model, optimizer=optimizer, checkpoint=path, resume=True)
    assert same(again.averaged_parameters, whole.averaged_parameters)


def test_averages_of_another_optimizer_are_not_resumed(path):
    fit(lm.Model(network()), optimizer=lm.EMA(lm.Adam(0.01)), checkpoint=path)
    with pytest.raises(DefinitionError) as error:
        fit(lm.Model(network()), optimizer=lm.EMA(lm.AdamW()), checkpoint=path, resume=True)
    assert "EMA(Adam) in the file, EMA(AdamW) here" in str(error.value)
