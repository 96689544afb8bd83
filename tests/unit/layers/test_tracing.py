"""Tracing: how often the `forward` of layers runs."""

from dataclasses import dataclass

import numpy as np
import pytest

import lamina as lm

calls: list[bool] = []


@pytest.fixture(autouse=True)
def no_calls():
    calls.clear()
    yield
    calls.clear()


@dataclass(frozen=True)
class Counted(lm.Layer):
    """A layer that notes each run of `forward`, and its mode."""

    def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
        calls.append(scope.training)
        return x * scope.parameter("scale", (), lm.init.Constant(1.0))


def examples() -> tuple[np.ndarray, np.ndarray]:
    return np.ones((4, 3), "float32"), np.zeros((4, 3), "float32")


def test_forward_runs_once_for_each_mode_of_a_model():
    net = lm.Sequential(lm.Input(3), Counted())
    calls.clear()
    model = lm.Model(net, engine="interpreter")
    assert sorted(calls) == [False, True]
    model.fit(examples(), validation=examples(), loss=lm.MSE(), optimizer=lm.SGD(0.1))
    model.predict(examples()[0])
    model.evaluate(examples(), loss=lm.MSE())
    assert net.parameter_count() == 1
    assert "Counted" in str(net)
    assert len(calls) == 2


def test_another_float_type_is_traced_anew_and_kept():
    net = lm.Sequential(lm.Input(3), Counted())
    lm.Model(net, engine="interpreter")
    calls.clear()
    for _ in range(2):
        lm.Model(net, engine="interpreter", dtype="float64")
    assert sorted(calls) == [False, True]


def test_layers_within_layers_run_once_for_each_mode():
    @dataclass(frozen=True)
    class Inner(lm.Layer):
        def forward(self, scope, x):
            return Counted()(x)

    @dataclass(frozen=True)
    class Outer(lm.Layer):
        inner: Inner

        def forward(self, scope, x):
            return self.inner(x) + 1.0

    net = lm.Sequential(lm.Input(3), Outer(Inner()))
    assert calls == [True]
    model = lm.Model(net, engine="interpreter")
    model.fit(examples(), loss=lm.MSE(), optimizer=lm.SGD(0.1))
    assert sorted(calls) == [False, True, True]


def test_forward_runs_once_for_a_definition_even_if_an_equal_layer_was_applied():
    for _ in range(2):
        lm.Sequential(lm.Input(3), Counted())
    assert calls == [True, True]
