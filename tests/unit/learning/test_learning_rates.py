"""Schedules: formulas, the same on the device and for plots."""

import math
import re
import warnings
from functools import partial

import numpy as np
import pytest

import lamina as lm
from lamina.base.shapes import float32
from lamina.errors import LaminaWarning
from lamina.graph import Graph, evaluate, leaf
from lamina.learning import schedules

STEPS = [0, 1, 2, 9, 10, 11, 49, 50, 99, 100, 101, 1000]


def half_cosine(share):
    return (1 + math.cos(math.pi * share)) / 2


def restarts(step, growth):
    begin, length = 0, 10
    while step >= begin + length:
        begin, length = begin + length, length * growth
    return 0.1 + 0.2 * half_cosine((step - begin) / length)


def cyclic(step, factor):
    cycle, position = divmod(step, 20)
    return 0.1 + 0.2 * (1 - abs(position / 10 - 1)) * factor**cycle


def one_cycle(step):
    top, last = 0.25 * 100 - 1, 99
    if step <= top:
        return 0.012 + (0.3 - 0.012) * half_cosine(1 - step / top)
    return 0.012 / 100 + (0.3 - 0.012 / 100) * half_cosine(min((step - top) / (last - top), 1))


of = schedules
FORMULAS = [
    (of.Constant(0.3), lambda step: 0.3),
    (of.StepDecay(0.3, every=10, factor=0.5), lambda step: 0.3 * 0.5 ** (step // 10)),
    (of.Exponential(0.3, factor=0.99), lambda step: 0.3 * 0.99**step),
    (of.Exponential(0.3, factor=0.5, every=25), lambda step: 0.3 * 0.5 ** (step / 25)),
    (of.Cosine(0.3, 100, final=0.1), lambda n: 0.1 + 0.2 * half_cosine(min(n, 100) / 100)),
    (of.Linear(0.3, 100, final=0.1), lambda step: 0.3 - 0.2 * min(step, 100) / 100),
    (
        of.Polynomial(0.3, 100, power=1.5, final=0.1),
        lambda step: 0.1 + 0.2 * (1 - min(step, 100) / 100) ** 1.5,
    ),
    (
        of.PiecewiseConstant([10, 50], [0.3, 0.2, 0.1]),
        lambda step: 0.3 if step < 10 else 0.2 if step < 50 else 0.1,
    ),
    (
        of.Warmup(10, of.Exponential(0.3, factor=0.9)),
        lambda step: 0.3 * (step + 1) / 10 if step < 10 else 0.3 * 0.9 ** (step - 10),
    ),
    (of.Warmup(10, 0.3), lambda step: 0.3 * min((step + 1) / 10, 1)),
    *(
        (of.CosineRestarts(0.3, 10, growth=growth, final=0.1), partial(restarts, growth=growth))
        for growth in (1, 2, 3)
    ),
    *(
        (of.Cyclic(0.3, 10, least=0.1, factor=factor), partial(cyclic, factor=factor))
        for factor in (1.0, 0.5)
    ),
    (of.OneCycle(0.3, 100, rise=0.25, start=25, end=100), one_cycle),
    (
        of.Chain([10, 50], [0.1, of.Linear(0.3, 40), of.Constant(0.2)]),
        lambda step: 0.1 if step < 10 else 0.3 * (1 - (step - 10) / 40) if step < 50 else 0.2,
    ),
]


def in_float32(schedule, steps):
    """The rates that programs compute."""
    rate = schedule(leaf("step", "state", (), float32))
    assert (rate.shape, rate.dtype) == ((), float32)
    graph = Graph((), (("rate", rate),))
    return [evaluate(graph, {"step": np.float32(step)})[0]["rate"] for step in steps]


@pytest.mark.parametrize(("schedule", "formula"), FORMULAS)
def test_a_schedule_is_its_formula(schedule, formula):
    expected = [formula(step) for step in STEPS]
    np.testing.assert_allclose([schedule.at(s) for s in STEPS], expected, rtol=1e-12, atol=1e-16)
    np.testing.assert_allclose(in_float32(schedule, STEPS), expected, rtol=1e-4, atol=1e-8)


def test_step_decay_changes_exactly_at_the_step_in_float32():
    rates = in_float32(schedules.StepDecay(1.0, every=49, factor=0.5), range(49 * 12))
    assert rates == [0.5 ** (step // 49) for step in range(49 * 12)]


@pytest.mark.sampled
def test_cosine_restarts_begin_exactly_at_the_step_in_float32():
    begins = {7 * (2**n - 1) for n in range(12)}
    rates = in_float32(schedules.CosineRestarts(1.0, 7, growth=2), range(7 * (2**9 - 1) + 2))
    for step, rate in enumerate(rates):
        assert (rate > 0.999999) == (step in begins) or step - 1 in begins


CYCLE = schedules.OneCycle(0.1, steps=10)
ENDS = {
    "OneCycle": (CYCLE, 10),
    "Cosine": (schedules.Cosine(0.1, steps=10), 10),
    "Linear": (schedules.Linear(0.1, steps=10), 10),
    "Polynomial": (schedules.Polynomial(0.1, steps=10), 10),
    "Warmup": (schedules.Warmup(4, then=CYCLE), 14),
    "Chain": (schedules.Chain([3, 5], [CYCLE, 0.1, CYCLE]), 15),
    "Cosine with a last rate": (schedules.Cosine(0.1, steps=10, final=0.01), None),
    "Linear with a last rate": (schedules.Linear(0.1, steps=10, final=0.01), None),
    "Warmup to a constant rate": (schedules.Warmup(4, then=0.1), None),
    "Chain to a constant rate": (schedules.Chain([10], [CYCLE, 0.1]), None),
    "CosineRestarts": (schedules.CosineRestarts(0.1, steps=10), None),
    "Exponential": (schedules.Exponential(0.1, factor=0.5), None),
}


@pytest.mark.cases("schedule, end", ENDS)
def test_a_schedule_knows_its_end(schedule, end):
    assert schedule.ends_after == end
    if end is not None:
        assert schedule.at(end) == schedule.at(10 * end) < 1e-6 < schedule.at(end - 2)


X, Y = np.eye(4, dtype="float32")[np.arange(20) % 4], np.arange(20) % 4


def shown_by_fit(optimizer, data=(X, Y), **how):
    """The warnings of a fit of 3 epochs of 5 training steps."""
    model = lm.Model(lm.Sequential(lm.Input(4), lm.Linear(4)), engine="interpreter")
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        usual = {"epochs": 3, "batch_size": 4, "loss": lm.CrossEntropy()}
        model.fit(data, optimizer=optimizer, **(usual | how))  # here
    assert all(warning.category is LaminaWarning for warning in shown)
    assert {warning.filename for warning in shown} <= {__file__}
    return [str(warning.message) for warning in shown]


def test_a_schedule_that_ends_before_the_fit_is_named():
    (text,) = shown_by_fit(lm.SGD(schedules.OneCycle(0.1, steps=10)))
    assert re.fullmatch(
        r"in OneCycle \(test_learning_rates\.py:\d+\): the learning-rate schedule ends after 10 "
        r"training steps, and the fit has 15\. The rate stays at 4e-07 in the others\. Lengthen it "
        r"by 5\.",
        text,
    )


@pytest.mark.cases(
    "optimizer",
    lm.EMA(lm.Adam(schedules.Cosine(0.1, steps=11)), decay=0.9),
    lm.ByPath({"*.bias": lm.SGD(schedules.Linear(0.1, steps=11))}, default=lm.SGD(0.1)),
    lm.SGD(schedules.Warmup(4, then=schedules.Linear(0.1, steps=7))),
)
def test_schedules_of_all_optimizers_are_looked_at(optimizer):
    (text,) = shown_by_fit(optimizer)
    assert "ends after 11 training steps, and the fit has 15. The rate stays at 0 in" in text


def without_end():
    while True:
        yield X, Y


def test_the_length_of_streams_and_sparse_matrices_counts():
    sparse = pytest.importorskip("scipy.sparse")
    for steps, data, how, length in (
        (10, lm.data.Stream(without_end, steps_per_epoch=7), {}, "21."),
        (10, [(X, Y)], {}, "15, if all epochs are as long as the first. The rate"),
        (15, [(X, Y)], {}, ""),
        (5, (sparse.csr_array(X), Y), {"batch_size": 8}, "9."),
        (5, (sparse.csr_array(X), Y), {"batch_size": 8, "drop_last": True}, ""),
    ):
        texts = shown_by_fit(lm.SGD(schedules.OneCycle(0.1, steps=steps)), data, **how)
        assert [f"and the fit has {length}" in text for text in texts] == [True] * bool(length)


def test_a_schedule_as_long_as_the_fit_gives_no_warning():
    for schedule in (
        schedules.OneCycle(0.1, steps=15),
        # One training step of each epoch does not count.
        schedules.OneCycle(0.1, steps=12),
        schedules.Cosine(0.1, steps=15),
        schedules.Cosine(0.1, steps=3, final=0.01),
        lambda step: 0.1 / (1.0 + step),
    ):
        assert shown_by_fit(lm.SGD(schedule)) == []
