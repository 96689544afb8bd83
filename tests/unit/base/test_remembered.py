"""Results that are kept as long as what they were computed of."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import lamina as lm
from lamina.base.records import frozen_dataclass
from lamina.base.remembered import remembered
from lamina.step import micro_batches


class Holder:
    """Something with an identity."""


@frozen_dataclass
class Options:
    value: object


Options.__module__ = "lamina.options"


@pytest.fixture
def counted():
    calls = []

    @remembered()
    def function(holder, *values, **options):
        calls.append((values, options))
        return [len(calls)]

    function.calls = calls
    return function


def test_a_result_is_computed_once_for_each_holder_and_arguments(counted):
    one, other = Holder(), Holder()
    assert counted(one, Options((1, "a")), by=None) is counted(one, Options((1, "a")), by=None)
    assert counted(one) is not counted(other)
    assert len(counted.calls) == 3


@pytest.mark.parametrize("pair", [(1, True), (1, 1.0), (0.0, -0.0), ((1,), [1]), ("1", 1)])
def test_values_of_several_types_are_several_arguments(pair, counted):
    one = Holder()
    first, second = (counted(one, Options(value)) for value in pair)
    assert first is not second


def test_results_that_depend_on_somebodys_code_are_not_kept(counted):
    one = Holder()
    for value in (len, Holder(), np.zeros(2)):
        assert counted(one, value) is not counted(one, value)


def test_results_are_freed_with_their_holder(counted):
    class Result:
        pass

    made = remembered()(lambda _: Result())
    one = Holder()
    result = weakref.ref(made(one))
    assert result() is not None
    del one
    gc.collect()
    assert result() is None


def test_a_second_training_of_a_model_derives_no_graph(monkeypatch):
    derived = []
    original = micro_batches.training_graph

    def counting(*values):
        derived.append(values)
        return original(*values)

    monkeypatch.setattr(micro_batches, "training_graph", counting)
    model = lm.Model(lm.Sequential(lm.Input(3), lm.Linear(2)))
    for rate in (0.1, 0.1, 0.2):
        model.training(lm.MSE(), lm.SGD(rate), 4).release()
    assert len(derived) == 2
    factors, losses = [], []

    def own_loss(output, target):
        return lm.ops.mean(factors[-1] * (output - target) ** 2)

    for factor in (1.0, 2.0):
        factors.append(factor)
        with lm.Model(model.network).training(own_loss, lm.SGD(0.0), 4) as training:
            x = np.ones((4, 3), "float32")
            losses.append(training.step(x, np.zeros((4, 2), "float32")))
    assert losses[1] == 2 * losses[0]


def test_one_record_twice_differs_from_two_equal_ones(counted):
    holder, one, other = Holder(), Options(1), Options(1)
    assert counted(holder, one, one) is not counted(holder, one, other)
    assert counted(holder, one, other) is counted(holder, other, one)
    network = lm.Sequential(lm.Input(3), lm.Linear(2))
    x, y = np.eye(3, dtype="float32"), np.ones((3, 2), "float32")

    def loss_of(optimizer, network):
        model = lm.Model(network)
        how = {"loss": lm.MSE(), "optimizer": optimizer, "epochs": 3, "batch_size": 3}
        return model.fit((x, y), progress=False, **how)["loss"][-1]

    shared, alone = lm.LBFGS(), lm.LBFGS()
    together = loss_of(lm.ByPath({"*.weight": shared}, shared), network)
    apart = lm.ByPath({"*.weight": shared}, alone)
    assert loss_of(apart, network) == loss_of(apart, lm.Sequential(lm.Input(3), lm.Linear(2)))
    assert loss_of(apart, network) != together


def test_threads_may_share_a_holder(counted):
    holder = Holder()
    with ThreadPoolExecutor(8) as pool:
        for result in pool.map(lambda n: counted(holder, n % 20), range(2000)):
            assert result
