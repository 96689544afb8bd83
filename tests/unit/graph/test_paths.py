"""Patterns of names: optimizers for some parameters, and parameters that are not trained."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from error_texts import error_text
from test_fit import TRAIN, fit, network
from test_network import Centred

import lamina as lm
from lamina.errors import DefinitionError
from lamina.program.steps import Contraction

Array = np.ndarray
LOSS = lm.CrossEntropy()


def after(steps: int, optimizer: Any, **how: Any) -> dict[str, Array]:
    model = lm.Model(network())
    with model.training(LOSS, optimizer, 8, **how) as training:
        training.run(TRAIN, steps=steps)
    return model.parameters()


def test_each_parameter_follows_its_own_optimizer():
    # One training step: later gradients depend on the updates of all parameters.
    optimizer = lm.ByPath({"1.*": lm.SGD(0.1), "*.bias": lm.Adam(0.01)}, default=lm.Lion(0.02))
    parameters = after(1, optimizer)
    optimizers = lm.SGD(0.1), lm.Adam(0.01), lm.Lion(0.02)
    by_sgd, by_adam, by_lion = (after(1, alone) for alone in optimizers)
    expected = {
        "1.weight": by_sgd["1.weight"],
        "1.bias": by_sgd["1.bias"],  # the first pattern that fits decides
        "4.weight": by_lion["4.weight"],
        "4.bias": by_adam["4.bias"],
    }
    assert list(parameters) == list(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(parameters[name], value, rtol=1e-6, atol=1e-7)


def test_rates_by_path_may_depend_on_the_step():
    # From the third training step on the first layer does not change.
    rate = lm.schedules.PiecewiseConstant(boundaries=[2], rates=[0.1, 0.0])
    optimizer = lm.ByPath({"1.*": lm.SGD(rate)}, default=lm.SGD(lambda step: 0.1 / (step + 1)))
    second, fifth = after(2, optimizer), after(5, optimizer)
    still = [name for name in second if (second[name] == fifth[name]).all()]
    assert still == ["1.weight", "1.bias"]


def test_paths_within_paths_and_averages_are_resolved():
    inner = lm.ByPath({"*.bias": lm.SGD(0.1, momentum=0.9)}, default=lm.SGD(0.1))
    optimizer = lm.EMA(lm.ByPath({"1.*": inner}, default=lm.Adam(0.1)))
    with lm.Model(network()).training(LOSS, optimizer, 8) as training:
        names = set(training.state())
    assert names == {
        *("1.weight/average", "1.bias/average", "1.bias/momentum", "4.weight/average"),
        *("4.weight/mean", "4.weight/square_mean", "4.bias/average", "4.bias/mean"),
        *("4.bias/square_mean", "seed", "step"),
    }


def test_an_optimizer_that_is_no_subclass_is_accepted():
    class Bare:
        def slots(self):
            return {}

        def update(self, parameter, gradient, slots, step):
            return parameter - gradient * 0.1, {}

    parameters = after(3, lm.ByPath({"4.*": Bare()}, default=Bare()))
    for name, value in after(3, lm.SGD(0.1)).items():
        np.testing.assert_allclose(parameters[name], value, rtol=1e-6, atol=1e-7)


def test_an_earlier_pattern_that_leaves_nothing_is_refused():
    optimizer = lm.ByPath({"*": lm.SGD(0.1), "*.bias": lm.SGD(0.2)}, default=lm.SGD(0.3))
    text = error_text(DefinitionError, lambda: network().plan(8, LOSS, optimizer))
    assert text.startswith("in ByPath (test_paths.py:")
    assert text.endswith(
        "earlier patterns leave no parameter to this one\n"
        "  pattern  '*.bias'\n"
        "  fits     1.bias, 4.bias\n"
        "  The first pattern that fits a name decides: put this one before them."
    )


@pytest.mark.parametrize("patterns", [[lm.SGD(0.1)], {1: lm.SGD(0.1)}])
def test_optimizers_by_path_are_a_dict(patterns):
    text = error_text(DefinitionError, lambda: lm.ByPath(patterns, default=lm.SGD(0.1)))
    assert "the optimizers are given as a dict, by patterns" in text
    assert 'expected  {"*.bias": lm.Adam(1e-3)}' in text


@pytest.mark.parametrize("wrong", [0.1, lm.Adam])
def test_a_pattern_with_anything_but_an_optimizer_is_refused(wrong):
    for how in ({"patterns": {"1.*": wrong}, "default": lm.Adam()}, {"default": wrong}):
        with pytest.raises(DefinitionError, match=r"in ByPath .*: this is not an optimizer"):
            lm.ByPath(**{"patterns": {}, **how})


@pytest.mark.cases(
    ("frozen", "names"),
    (["1.*"], ["1.weight", "1.bias"]),
    (("4.weight",), ["4.weight"]),
    (["*.bias"], ["1.bias", "4.bias"]),
    (["1.*", "*.weight"], ["1.weight", "1.bias", "4.weight"]),
)
def test_frozen_parameters_keep_their_bits_and_have_no_state(frozen, names, model):
    before = model.parameters()
    with model.training(LOSS, lm.AdamW(0.1), 8, frozen=frozen) as training:
        owners = {name.split("/")[0] for name in training.state()} - {"step", "seed"}
        training.run(TRAIN, steps=5)
    trained = model.parameters()
    assert [name for name in before if before[name].tobytes() == trained[name].tobytes()] == names
    assert owners == set(before) - set(names)


def contractions(frozen: Any) -> tuple[int, int]:
    """How many steps of a training are contractions, and the bytes of its state."""
    net = lm.Sequential(lm.Input(32), lm.Linear(64), lm.ReLU(), lm.Linear(10))
    bill = net.plan(64, LOSS, lm.Adam(0.1), frozen=frozen)
    found = [step for step in bill.program.steps if isinstance(step, Contraction)]
    return len(found), bill.state_bytes


def test_gradients_of_frozen_parameters_are_not_computed():
    first, last, weights = 4 * (32 * 64 + 64), 4 * (64 * 10 + 10), 4 * (32 * 64 + 64 * 10)
    scalars = 8 + 4 * 7  # the number of the training step, and the formulas of Adam's numbers
    # Forward 2; backward the gradient of each weight, and of the activations between them.
    assert contractions([]) == (5, 2 * (first + last) + scalars)
    assert contractions(["1.*"]) == (3, 2 * last + scalars)
    assert contractions(["3.*"]) == (4, 2 * first + scalars)
    assert contractions(["*.weight"]) == (3, 2 * (first + last - weights) + scalars)


def test_a_frozen_penalty_stays_in_the_loss():
    net = lm.Sequential(lm.Input(4), lm.Linear(3, weight_regularizer=lm.L2(10.0)))
    losses: list[float] = []
    for frozen in ([], ["1.weight"]):
        with lm.Model(net).training(LOSS, lm.SGD(0.1), 8, frozen=frozen) as training:
            losses.append(float(training.run(TRAIN, steps=1)[0]))
    assert losses[0] == pytest.approx(losses[1])


def test_states_of_a_frozen_layer_still_move():
    model = lm.Model(lm.Sequential(lm.Input(4), Centred(), lm.Linear(3)))
    before = model.predict(TRAIN.inputs)
    with model.training(LOSS, lm.SGD(1e-30), 8, frozen=["1.*"]) as training:
        training.run(TRAIN, steps=1)
    assert (model.predict(TRAIN.inputs) != before).any()


@pytest.mark.sampled
def test_explanations_and_profiles_leave_out_gradients_of_frozen_parameters(model):
    explained = [model.explain(8, LOSS, lm.Adam(), frozen=frozen) for frozen in ([], ["1.*"])]
    assert len(explained[1].costs) < len(explained[0].costs)
    profile = model.profile(8, LOSS, lm.Adam(), frozen=["1.*"], data=TRAIN, seconds=0.01)
    assert len(profile.seconds) == len(explained[1].costs)


def test_a_layer_applied_twice_is_frozen_as_one():
    shared, x = lm.Linear(4), lm.Input(4)
    net = lm.Network(x, lm.Linear(3)(lm.Tanh()(shared(lm.Tanh()(shared(x))))))
    model = lm.Model(net)
    before = model.parameters()
    first = next(iter(before)).split(".")[0]
    with model.training(LOSS, lm.SGD(0.1), 8, frozen=[f"{first}.*"]) as training:
        training.run(TRAIN, steps=3)
    same_bits = [name for name, old in before.items() if (model.parameters()[name] == old).all()]
    assert same_bits == [f"{first}.weight", f"{first}.bias"]


NET = network()
USES: dict[str, Callable[[Any], object]] = {
    "training": lambda frozen: lm.Model(NET).training(LOSS, lm.SGD(0.1), 8, frozen=frozen),
    "fit": lambda frozen: fit(lm.Model(NET), frozen=frozen),
    "plan": lambda frozen: NET.plan(8, LOSS, lm.SGD(0.1), frozen=frozen),
    "max_batch_size": lambda frozen: NET.max_batch_size("1 MiB", LOSS, lm.SGD(0.1), frozen=frozen),
    "explain": lambda frozen: lm.Model(NET).explain(8, LOSS, lm.SGD(0.1), frozen=frozen),
    "profile": lambda frozen: lm.Model(NET).profile(8, LOSS, lm.SGD(0.1), frozen=frozen),
}


@pytest.mark.parametrize("use", USES)
def test_a_pattern_that_freezes_nothing_is_refused(use):
    assert error_text(DefinitionError, lambda: USES[use](["1.*", "2.*"])) == (
        "in frozen: a pattern fits no parameter\n"
        "  pattern     '2.*'\n"
        "  parameters  1.weight, 1.bias, 4.weight, 4.bias\n"
        "  A star stands for any text: '1.*' is all of layer 1, '*.bias' every bias."
    )


def test_a_pattern_that_chooses_no_parameter_is_refused():
    optimizer = lm.ByPath({"linear": lm.SGD(0.1)}, default=lm.SGD(0.2))
    text = error_text(DefinitionError, lambda: lm.Model(network()).training(LOSS, optimizer, 8))
    assert text.startswith("in ByPath (test_paths.py:")
    assert text.endswith(
        "a pattern fits no parameter\n"
        "  pattern     'linear'\n"
        "  parameters  1.weight, 1.bias, 4.weight, 4.bias\n"
        "  A star stands for any text: '1.*' is all of layer 1, '*.bias' every bias."
    )


@pytest.mark.parametrize("frozen", ["1.*", None, [1], 3])
@pytest.mark.parametrize("use", USES)
def test_frozen_values_that_are_no_list_of_patterns_are_refused(frozen, use):
    assert error_text(DefinitionError, lambda: USES[use](frozen)) == (
        "in frozen: the frozen parameters are given as a list of patterns\n"
        "  expected  ['0.*', '2.weight']\n"
        f"  found     {frozen!r}"
    )


def test_freezing_everything_leaves_nothing_to_train():
    with pytest.raises(DefinitionError) as error:
        network().plan(8, LOSS, lm.SGD(0.1), frozen=["1.*", "4.*"])
    assert str(error.value) == (
        "there is nothing to train: all parameters on which the loss depends are frozen\n"
        "  frozen      '1.*', '4.*'\n"
        "  parameters  1.weight, 1.bias, 4.weight, 4.bias\n"
        "  Leave some parameters out of `frozen`."
    )
