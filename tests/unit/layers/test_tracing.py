"""Tracing: how often the `forward` of layers runs, and the results that it returns."""

import json
import pickle
from dataclasses import dataclass

import numpy as np
import pytest

import lamina as lm
from lamina.errors import LaminaError, ShapeError
from lamina.files.decode import decode
from lamina.files.encode import encode

calls = []


@pytest.fixture(autouse=True)
def no_calls():
    calls.clear()
    yield
    calls.clear()


@dataclass(frozen=True)
class Counted(lm.Layer):
    """A layer that notes each run of `forward`, and its mode."""

    def forward(self, scope, x):
        calls.append(scope.training)
        return x * scope.parameter("scale", (), lm.init.Constant(1.0))


def examples():
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
    # Another float type is traced anew and kept.
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


X = np.random.default_rng(0).standard_normal((5, 4)).astype("float32")


@dataclass(frozen=True)
class Parts(lm.Layer):
    """Three results of different shapes, with one parameter."""

    def forward(self, scope, x):
        scale = scope.parameter("scale", (), lm.init.Constant(2.0))
        return x * scale, lm.ops.sum(x, 1), lm.ops.less(x, scale)


@dataclass(frozen=True)
class Outer(lm.Layer):
    """Applies layers with several results in both manners, and has two results itself."""

    def forward(self, scope, x):
        scaled, total, _ = Parts()(x)
        again, other, _ = scope.layer("inner", Parts(), scaled)
        return lm.Linear(2)(again), total + other


def network():
    x = lm.Input(4)
    first, total, below = Parts()(x)
    found, sums = Outer()(first)
    return lm.Network(x, [found, sums, total, below])


@dataclass(frozen=True)
class One(lm.Layer):
    def forward(self, scope, x):
        return (x + 1,)


def test_a_layer_with_a_tuple_gives_a_tuple_of_tensors():
    first, total, below = Parts()(lm.Input(4))
    assert [(str(x.dtype), x.rank) for x in (first, total, below)] == [
        *(("f32", 2), ("f32", 1), ("bool", 2))
    ]
    (result,) = One()(lm.Input(4))
    np.testing.assert_allclose(lm.Model(lm.Network(result.operands, result)).predict(X), X + 1)
    assert len(lm.Sequential(lm.Input(4), lm.Linear(4), Parts()).outputs) == 3


def test_values_of_all_results():
    model = lm.Model(network(), engine="interpreter", seed=0)
    values = {name.removeprefix("2."): array for name, array in model.parameters().items()}
    linear, sums, total, below = model.predict(X)
    np.testing.assert_allclose(total, X.sum(1), rtol=1e-5)
    np.testing.assert_array_equal(below, X < 2)
    np.testing.assert_allclose(sums, 2 * X.sum(1) + 4 * X.sum(1), rtol=1e-5)
    expected = 8 * X @ values["1.weight"].T + values["1.bias"]
    np.testing.assert_allclose(linear, expected, rtol=1e-5, atol=1e-6)


def test_parameters_keep_their_names_whichever_results_are_used():
    x = lm.Input(4)
    first, total, _ = Parts()(x)
    end = lm.Linear(3)(first)
    alone = list(lm.Model(lm.Network(x, end)).parameters())
    assert alone == ["1.scale", "2.weight", "2.bias"]
    assert list(lm.Model(lm.Network(x, [end, total])).parameters()) == alone


def test_the_summary_and_paths_show_each_result():
    net = network()
    rows = [line.split()[0] for line in str(net).splitlines()[2:8]]
    assert rows == ["0:Input", "1:Parts", "1:Parts[1]", "1:Parts[2]", "2:Outer", "2:Outer[1]"]
    assert net.path(net.outputs[2]) == "net/1:Parts[1]"
    assert str(net).count(" 1 ") == 1, "the parameter is counted once"


def test_errors_number_layers_as_the_network_does():
    x = lm.Input(4)
    first, total, _ = Parts()(x)
    wide = lm.Linear(3)(first)
    with pytest.raises(ShapeError) as caught:
        lm.concat([wide, lm.ops.reshape(total, (-1, 1, 1))])
    assert "net/1:Parts" in str(lm.Network(x, wide).path(first))
    assert any("net/2:Linear" in value for _, value in caught.value.facts)


def test_gradients_of_all_results_train_the_parameters():
    x = lm.Input(4)
    first, total, _ = Parts()(x)
    scaled, sums = Outer()(first)
    net = lm.Network(x, lm.ops.sum(scaled, 1) + sums * total)
    report = lm.verify(net, loss=lm.MSE())
    assert report.passed
    assert [finding.what for finding in report.findings[:4]] == [
        *("gradient of 1.scale", "gradient of 2.inner.scale", "gradient of 2.0.scale"),
        "gradient of 2.1.weight",
    ]


def test_a_network_with_such_layers_is_applied_as_a_part_of_another():
    inner = network()
    y = lm.Input(4)
    net = lm.Network(y, inner(y))
    expected = lm.Model(inner, seed=3).predict(X)
    for result, right in zip(lm.Model(net, seed=3).predict(X), expected, strict=True):
        np.testing.assert_array_equal(result, right)


def test_results_are_saved_loaded_and_pickled(tmp_path):
    model = lm.Model(network(), seed=1)
    expected = model.predict(X)
    model.save(tmp_path / "several.safetensors")
    loaded = lm.load(tmp_path / "several.safetensors", layers=[Parts, Outer])
    again = lm.Model(pickle.loads(pickle.dumps(network())), seed=1)
    for other in (loaded, again):
        for result, right in zip(other.predict(X), expected, strict=True):
            np.testing.assert_array_equal(result, right)


def test_a_file_with_a_result_that_the_layer_lacks_is_refused():
    definition, arrays = encode(network())
    changed = json.loads(json.dumps(definition).replace('"result": 2', '"result": 3'))
    assert changed != definition
    with pytest.raises(LaminaError, match="the layer has no such result"):
        decode(changed, arrays, [Parts, Outer])


def test_each_result_is_computed_in_mixed_precision():
    model = lm.Model(network(), dtype="mixed-bfloat16", engine="interpreter", seed=0)
    exact = lm.Model(network(), engine="interpreter", seed=0).predict(X)
    for found, right in zip(model.predict(X)[:3], exact[:3], strict=True):
        np.testing.assert_allclose(found, right, rtol=0.05, atol=0.05)
