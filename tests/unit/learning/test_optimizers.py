"""Optimizers, clipping and averages of parameters against PyTorch and written-out formulas."""

import dataclasses
import inspect
from pathlib import Path

import numpy as np
import pytest
from test_fit import TRAIN, fit, network, same
from test_network import Centred

import lamina as lm
from lamina import ops
from lamina.base.shapes import as_dtype, float32, float64, int64
from lamina.graph import Graph, evaluate, leaf, verify
from lamina.learning import clipping, optimizers, schedules
from lamina.learning.protocols import PerParameter

generator = np.random.default_rng(0)
START = generator.normal(size=(3, 4))
GRADIENTS = [generator.normal(size=(3, 4)) for _ in range(12)]
GRADIENTS[4] = np.zeros((3, 4))


def first_of(value):
    return value.first if isinstance(value, PerParameter) else value


def train(optimizer, gradients=GRADIENTS, dtype=float64, start=START, shown="w"):
    """The parameter after each training step, or a state of the optimizer."""
    parameter = leaf("w", "parameter", START.shape, dtype)
    gradient = leaf("g", "input", START.shape, dtype)
    step = leaf("step", "state", (), int64)
    first = {
        name: np.full(() if isinstance(value, PerParameter) else START.shape, first_of(value))
        for name, value in optimizer.slots().items()
    }
    slots = {name: leaf(name, "state", array.shape, dtype) for name, array in first.items()}
    new, new_slots = optimizer.update(parameter, gradient, slots, step)
    updates = [(parameter, new), *((slots[name], new_slots[name]) for name in slots)]
    assert set(new_slots) == set(slots)
    graph = Graph((gradient,), (), tuple(updates))
    verify(graph)
    values = {"w": start.astype(dtype.numpy)}
    values |= {name: array.astype(dtype.numpy) for name, array in first.items()}
    trajectory = []
    for number, array in enumerate(gradients):
        feeds = {**values, "g": array.astype(dtype.numpy), "step": np.int64(number)}
        values |= evaluate(graph, feeds)[1]
        trajectory.append(values[shown])
    return trajectory


def test_lion_is_its_formula():
    # Chen et al. 2023, algorithm 2; PyTorch has no Lion.
    w, m = START, np.zeros_like(START)
    expected = []
    for gradient in GRADIENTS:
        update = np.sign(0.8 * m + (1 - 0.8) * gradient)
        w = w - 0.1 * (update + 0.3 * w)
        m = 0.95 * m + (1 - 0.95) * gradient
        expected.append(w)
    weights = train(optimizers.Lion(0.1, beta1=0.8, beta2=0.95, weight_decay=0.3))
    np.testing.assert_allclose(weights, expected, rtol=1e-12)


def lamb_steps(start, gradients, weight_decay):
    """You et al. 2020, algorithm 2, with a rate of 0.1; PyTorch has no LAMB."""
    w, m, v = start, np.zeros_like(start), np.zeros_like(start)
    expected = []
    for t, gradient in enumerate(gradients, 1):
        m = 0.8 * m + (1 - 0.8) * gradient
        v = 0.95 * v + (1 - 0.95) * gradient**2
        ratio = (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.95**t)) + 1e-6)
        direction = ratio + weight_decay * w
        size, length = np.linalg.norm(w), np.linalg.norm(direction)
        w = w - 0.1 * (size / length if size > 0 and length > 0 else 1.0) * direction
        expected.append(w)
    return expected


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_lamb_is_its_formula(weight_decay):
    found = train(optimizers.LAMB(0.1, beta1=0.8, beta2=0.95, weight_decay=weight_decay))
    expected = lamb_steps(START, GRADIENTS, weight_decay)
    np.testing.assert_allclose(found, expected, rtol=1e-11)


def test_lamb_updates_zero_parameters_and_does_nothing_without_a_gradient():
    nothing = np.zeros((3, 4))
    gradients = [nothing, *GRADIENTS[:2]]
    weights = train(optimizers.LAMB(0.1, beta1=0.8, beta2=0.95), gradients, start=nothing)
    np.testing.assert_allclose(weights, lamb_steps(nothing, gradients, 0.01), rtol=1e-11)
    np.testing.assert_array_equal(weights[0], nothing)
    assert (weights[1] != 0).all()


OF_PYTORCH = [
    lm.SGD(),
    lm.SGD(0.1, weight_decay=0.1),
    lm.SGD(0.1, momentum=0.9),
    lm.SGD(0.1, momentum=0.9, dampening=0.3, weight_decay=0.01),
    lm.SGD(0.1, momentum=0.9, nesterov=True),
    lm.Adagrad(),
    lm.Adagrad(0.1, rate_decay=0.2, weight_decay=0.1, initial_sum=0.5, epsilon=1e-3),
    lm.RMSProp(),
    lm.RMSProp(0.1, decay=0.9, epsilon=1e-3, weight_decay=0.1, momentum=0.5, centered=True),
    lm.Adam(),
    lm.Adam(0.1, beta1=0.8, beta2=0.9, epsilon=1e-3, weight_decay=0.1, amsgrad=True),
    lm.Adam(0.1, beta1=0.0, beta2=0.0),
    lm.Adadelta(),
    lm.Adadelta(0.5, decay=0.8, epsilon=1e-3, weight_decay=0.1),
    lm.Rprop(),
    lm.Rprop(0.1, decrease=0.6, increase=1.5, shortest=0.05, longest=0.2),
    lm.Adamax(),
    lm.Adamax(0.1, beta1=0.8, beta2=0.9, epsilon=1e-3, weight_decay=0.1),
    lm.NAdam(),
    lm.NAdam(0.1, beta1=0.8, beta2=0.9, epsilon=1e-3, weight_decay=0.1, momentum_decay=0.5),
    lm.NAdam(0.1, weight_decay=0.3, decoupled_weight_decay=True),
    lm.AdamW(),
    lm.AdamW(0.1, weight_decay=0.3, amsgrad=True),
]
# What PyTorch calls options: one for one, and two in a tuple.
RENAMED = {"rate": "lr", "epsilon": "eps", "rate_decay": "lr_decay"}
RENAMED |= {"initial_sum": "initial_accumulator_value"}
PAIRS = {"betas": "beta1 beta2", "etas": "decrease increase", "step_sizes": "shortest longest"}


def in_pytorch(optimizer):
    """PyTorch's name of the class, and its options, without those that have their default."""
    name = type(optimizer).__name__.replace("RMSProp", "RMSprop")
    changed = {
        field.name: getattr(optimizer, field.name)
        for field in dataclasses.fields(optimizer)
        if field.init and getattr(optimizer, field.name) != field.default
    }
    changed = {option: value for option, value in changed.items() if not option.startswith("_")}
    options = {}
    for theirs, ours in PAIRS.items():
        if [changed.pop(option) for option in ours.split() if option in changed]:
            options[theirs] = tuple(getattr(optimizer, option) for option in ours.split())
    decay = {"RMSprop": "alpha", "Adadelta": "rho"}.get(name, "decay")
    renamed = {**RENAMED, "decay": decay}
    return name, options | {renamed.get(option, option): value for option, value in changed.items()}


@pytest.mark.parametrize("optimizer", OF_PYTORCH, ids=repr)
@pytest.mark.parametrize("dtype", [float64, float32], ids=str)
def test_optimizer_agrees_with_pytorch(optimizer, dtype, torch):
    name, options = in_pytorch(optimizer)
    # With a divisor near 0, a zero gradient in float32 leaves nothing but rounding.
    gradients = GRADIENTS if dtype == float64 else GRADIENTS[:4]
    w = torch.tensor(START.astype(dtype.numpy), requires_grad=True)
    theirs = getattr(torch.optim, name)([w], **options)
    mine = train(optimizer, gradients, dtype)
    # NAdam keeps the product of its momenta in the default dtype.
    usual = torch.get_default_dtype()
    torch.set_default_dtype(w.dtype)
    try:
        for gradient, weights in zip(gradients, mine, strict=True):
            w.grad = torch.tensor(gradient.astype(dtype.numpy))
            theirs.step()
            tolerance = 1e-12 if dtype == float64 else 2e-6
            assert weights.dtype == dtype.numpy
            np.testing.assert_allclose(weights, w.detach().numpy(), rtol=tolerance, atol=tolerance)
    finally:
        torch.set_default_dtype(usual)


def test_adam_bias_correction_is_accurate_in_float32():
    gradients = [np.ones((3, 4))] * 5
    found = train(optimizers.Adam(0.1, epsilon=0.0, beta2=0.999999), gradients, float32)
    for number, w in enumerate(found):
        moved = (START.astype(np.float32) - w) / (number + 1)
        np.testing.assert_allclose(moved, 0.1, rtol=2e-5)


@pytest.mark.parametrize("dtype", [float64, float32], ids=str)
def test_rate_may_be_a_function_of_the_training_step(dtype):
    for rate in (
        schedules.StepDecay(0.1, every=2, factor=0.5),
        lambda step: ops.pow(0.5, ops.floor(step / 2.0)) * 0.1,
        lambda step: 0.1 * 0.5 ** (step // 2),
    ):
        w = START
        for number, weights in enumerate(train(optimizers.SGD(rate), dtype=dtype)):
            w = w - 0.1 * 0.5 ** (number // 2) * GRADIENTS[number]
            np.testing.assert_allclose(weights, w, rtol=1e-5 if dtype == float32 else 1e-12)


@pytest.mark.cases(
    "make",
    *(optimizers.Adagrad, optimizers.Adadelta, optimizers.RMSProp, optimizers.Lion),
    *(optimizers.Adam, optimizers.Adamax, optimizers.NAdam, optimizers.LAMB),
)
def test_a_constant_function_is_the_same_as_a_number(make):
    by_number = train(make(0.25))
    np.testing.assert_array_equal(train(make(lambda step: 0.25)), by_number)
    np.testing.assert_allclose(train(make(schedules.Constant(0.25))), by_number, rtol=1e-14)


def clip(rule, *arrays):
    leaves = [leaf(f"{n}", "input", a.shape, as_dtype(a.dtype)) for n, a in enumerate(arrays)]
    outputs = tuple((f"{n}", tensor) for n, tensor in enumerate(rule(leaves)))
    found, _ = evaluate(Graph(tuple(leaves), outputs), {f"{n}": a for n, a in enumerate(arrays)})
    return [found[f"{n}"] for n in range(len(arrays))]


def test_clip_global_norm_limits_all_together():
    first, second = clip(clipping.ClipGlobalNorm(1.0), START, GRADIENTS[0])
    norm = np.sqrt((START**2).sum() + (GRADIENTS[0] ** 2).sum())
    np.testing.assert_allclose(first, START / (norm + 1e-6), rtol=1e-12)
    np.testing.assert_allclose(second, GRADIENTS[0] / (norm + 1e-6), rtol=1e-12)
    np.testing.assert_array_equal(clip(clipping.ClipGlobalNorm(100.0), START)[0], START)
    assert clipping.ClipGlobalNorm(1.0)([]) == ()
    (zeros,) = clip(clipping.ClipGlobalNorm(1.0), np.zeros((2, 2)))
    np.testing.assert_array_equal(zeros, np.zeros((2, 2)))


def test_lbfgs_minimises_a_quadratic_form():
    """From the second step on, the length comes from the curvature: the rate needs no search."""
    factors = np.linspace(1.0, 30.0, 12).reshape(3, 4)
    x, y = np.zeros((1, 1)), np.zeros((1, 3, 4))

    def loss(prediction, target):
        return ops.sum((prediction - target) * (prediction - target) * factors)

    model = lm.Model(lm.Sequential(lm.Input(1), lm.Linear(12), lm.Reshape(3, 4)), dtype="float64")
    model.set_parameters({"1.bias": START.reshape(-1)})
    training = model.training(
        loss=loss, optimizer=lm.LBFGS(history=12), batch_size=1, data=(x, y), frozen=["1.weight"]
    )
    losses = [float(training.step(x, y)) for _ in range(60)]
    assert losses[-1] < 1e-9 < losses[0]
    # Without a gradient nothing moves, and nothing is NaN.
    before = model.parameters()["1.bias"]
    for _ in range(20):
        training.step(x, y)
    assert np.isfinite(model.parameters()["1.bias"]).all()
    assert np.abs(model.parameters()["1.bias"] - before).max() < 1e-6


def joined_training(optimizer, **options):
    network = lm.Sequential(lm.Input(3), lm.Linear(4), lm.Tanh(), lm.Linear(2))
    model = lm.Model(network, dtype="float64", seed=0)
    return model.training(loss=lm.MSE(), optimizer=optimizer, batch_size=8, **options)


X, Y = generator.normal(size=(8, 3)), generator.normal(size=(8, 2))


def test_states_of_lbfgs_are_vectors_of_the_parameters_that_a_pattern_leaves_to_it():
    first, second = lm.LBFGS(0.5, history=2), lm.LBFGS(0.25, history=1)
    chosen = lm.ByPath({"1.*": first, "3.weight": second}, default=lm.SGD(0.1, momentum=0.9))
    training = joined_training(chosen, frozen=["1.bias"])
    training.step(X, Y)
    assert {name: slot.shape for name, slot in training.state().items() if slot.ndim} == {
        **{f"joined/{name}": (12,) for name in first.slots()},
        **{f"joined1/{name}": (8,) for name in second.slots()},
        "3.bias/momentum": (2,),
    }


@pytest.mark.sampled
def test_lbfgs_of_micro_batches_is_that_of_the_batch():
    whole, divided = joined_training(lm.LBFGS()), joined_training(lm.LBFGS(), micro_batch=3)
    for _ in range(8):
        assert float(divided.step(X, Y)) == pytest.approx(float(whole.step(X, Y)), rel=1e-9)


PAGE = (Path(__file__).parents[3] / "docs" / "optimizers.md").read_text()


def call_of(cls):
    """The call of a class with all options, as the page writes it."""
    written = []
    for option in inspect.signature(cls).parameters.values():
        if option.kind is option.KEYWORD_ONLY and "*" not in written:
            written.append("*")
        has_default = option.default is not option.empty
        written.append(f"{option.name}={option.default!r}" if has_default else option.name)
    return f"`{cls.__name__}({', '.join(written)})`"


@pytest.mark.cases(
    ("module", "bases"),
    (optimizers, {"Optimizer", "Averaging", "PerParameter"}),
    (schedules, {"Schedule"}),
    (clipping, set()),
)
def test_the_page_of_optimizers_shows_every_option(module, bases):
    rows = {line.split(" | ")[0].removeprefix("| ") for line in PAGE.splitlines()}
    public = [getattr(module, name) for name in dir(module) if name not in bases]
    classes = [cls for cls in public if isinstance(cls, type) and not cls.__name__.startswith("_")]
    defined = [cls for cls in classes if cls.__module__.startswith(module.__name__)]
    calls = {call_of(cls) for cls in defined}
    assert calls
    assert not calls - rows


def trainer(model, optimizer):
    return model.training(lm.CrossEntropy(), optimizer, 8)


def courses(optimizer):
    """The parameter and its average after each of twelve training steps, which change nothing."""
    parameters = train(optimizer)
    np.testing.assert_array_equal(parameters, train(optimizer.optimizer))
    return parameters, train(optimizer, shown="average")


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
    seen = []
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
