"""Gradients through layers: derivatives of any order as outputs of networks, and their training."""

from dataclasses import dataclass

import numpy as np
import pytest
from error_texts import error_text
from layer_cases import LAYERS, network_of, values_for
from random_arrays import normal, normal64

import lamina as lm
from lamina import ops
from lamina.base.shapes import float64
from lamina.errors import DefinitionError, GradientError, ShapeError
from lamina.graph import Graph, Op, apply, bind_batch, evaluate
from lamina.ops import differentiate
from lamina.ops.lowering_rules import Elementwise


def body(*layers):
    return lm.Sequential(lm.Input(2), *(layers or (lm.Linear(6), lm.Tanh(), lm.Linear(1))))


def with_slopes(of):
    """The values, their slopes, and the slopes of the first slope."""
    x = lm.Input(2)
    y = of(x)
    (slope,) = lm.gradients(ops.sum(y), [x])
    (curve,) = lm.gradients(ops.sum(slope[:, 0]), [x])
    return lm.Network(x, [y, slope, curve])


def residual(outputs, target):
    y, slope, curve = outputs
    return ops.mean((y - target) ** 2) + ops.mean((curve + slope) ** 2)


X, Y = normal(24, 2, seed=1), normal(24, 1, seed=2)


def trained(network, engine="cpu", **options):
    model = lm.Model(network, engine=engine, seed=0, dtype=options.pop("dtype", "float32"))
    how = {"loss": residual, "optimizer": lm.Adam(1e-2), "batch_size": 12, "epochs": 3}
    return model.fit((X, Y), **how, progress=False, **options)["loss"]


@pytest.mark.sampled
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("name", [name for name, case in LAYERS.items() if not case.indices])
def test_every_layer_has_gradients_that_are_trained(name, training):
    case = LAYERS[name]
    plain = network_of(case)
    (y,), x = plain.outputs, plain.inputs[0]
    (slope,) = lm.gradients(y * y, [x])
    (curve,) = lm.gradients(ops.sum(slope * slope), [x])
    trace = lm.Network(plain.inputs, [slope, curve]).trace(dtype=float64, training=training)
    total = ops.mean(ops.sin(trace.outputs[0])) + ops.mean(ops.sin(trace.outputs[1] * 1e-3))
    parameters = [variable.tensor for variable in trace.record.parameters.values()]
    flows = differentiate.gradients(total, parameters)
    outputs = (("slope", trace.outputs[0]), ("total", total))
    named = tuple((f"flow{n}", flow) for n, flow in enumerate(flows))
    graph = bind_batch(Graph(trace.inputs, (*outputs, *named)), 4)
    values = {key: np.asarray(feed, _wide(feed)) for key, feed in values_for(case, graph).items()}
    results, _ = evaluate(graph, values)

    # The gradient of the traced network, which has no layers.
    alone = plain.trace(dtype=float64, training=training)
    (expected,) = differentiate.gradients(alone.outputs[0] * alone.outputs[0], alone.inputs[:1])
    without = bind_batch(Graph(alone.inputs, (("slope", expected),)), 4)
    assert np.array_equal(results["slope"], evaluate(without, values)[0]["slope"])

    generator = np.random.default_rng(0)
    names = [leaf.attributes["name"] for leaf in parameters]
    along = {n: generator.normal(size=values[n].shape) for n in names if n in values}

    def total_at(step):
        moved = {n: values[n] + step * direction for n, direction in along.items()}
        return float(evaluate(graph, {**values, **moved})[0]["total"])

    difference = (total_at(1e-6) - total_at(-1e-6)) / 2e-6
    slopes = {name: results[f"flow{n}"] for n, name in enumerate(names)}
    derivative = sum(float(np.sum(slopes[n] * direction)) for n, direction in along.items())
    assert derivative == pytest.approx(difference, rel=1e-5, abs=1e-7)


def _wide(array):
    return np.dtype("float64") if array.dtype.kind == "f" else array.dtype


@pytest.mark.cases("engine", "interpreter", "cpu")
def test_slopes_and_curvatures_of_a_network_are_those_of_its_formula(engine):
    model = lm.Model(with_slopes(body(lm.Linear(5), lm.Tanh(), lm.Linear(1))), engine=engine)
    first, bias, second, _ = map(np.float64, model.parameters().values())
    hidden = np.tanh(X @ first.T + bias)
    slope = (second * (1 - hidden**2)) @ first
    curve = (second * (-2 * hidden * (1 - hidden**2)) * first[:, 0]) @ first
    _, *derivatives = model.predict(X)
    np.testing.assert_allclose(derivatives[0], slope, atol=1e-6)
    np.testing.assert_allclose(derivatives[1], curve, atol=1e-6)


def test_a_gradient_reads_the_mask_that_dropout_has_drawn():
    x = lm.Input(50)
    y = lm.Dropout(0.5)(x)
    net = lm.Network(x, [y, *lm.gradients(y, [x])])
    trace = net.trace(dtype=float64, training=True)
    outputs = tuple((str(n), tensor) for n, tensor in enumerate(trace.outputs))
    graph = bind_batch(Graph(trace.inputs, outputs), 3)
    operand = normal64(3, 50)
    results, _ = evaluate(graph, {"input0": operand, "seed": np.int64(1), "step": np.int64(2)})
    assert set(results["1"].ravel()) == {0.0, 2.0}
    assert np.array_equal(results["0"], operand * results["1"])


def test_the_result_of_a_layer_that_changes_nothing_has_a_gradient_of_its_own():
    # In inference mode, Dropout gives its operand itself.
    x = lm.Input(2)
    y = lm.Dropout(0.5)(x)
    (slope,) = lm.gradients(ops.sum(lm.Identity()(y) * y) + ops.sum(x * x * x), [y])
    (total,) = lm.gradients(ops.sum(lm.Identity()(y) * y) + ops.sum(x * x * x), [x])
    slopes = lm.Model(lm.Network(x, [slope, total])).predict(X)
    np.testing.assert_allclose(slopes[0], 2 * X)
    np.testing.assert_allclose(slopes[1], 2 * X + 3 * X * X, rtol=1e-6)


def test_equal_gradients_are_different_tensors_for_further_gradients():
    a, b = lm.Input(1), lm.Input(1)
    first, second = lm.gradients(ops.exp(lm.Add()(a, b)), [a, b])
    (slope,) = lm.gradients(ops.sum(first * second * second), [first])
    found = lm.Model(lm.Network([a, b], [slope])).predict((Y, Y))
    np.testing.assert_allclose(found, np.exp(4 * Y), rtol=1e-5)


def test_a_seed_and_a_tensor_without_influence():
    x, seed = lm.Input(2), lm.Input(3)
    y = lm.Linear(3)(x)
    # It and its layers do not enter the network.
    without = lm.Linear(4)(lm.Input(5))
    along, none = lm.gradients(y, [x, without], seed)
    # The same tensors, without a seed.
    of_seed, of_x = lm.gradients(y, [seed, x])
    model = lm.Model(lm.Network([x, seed], [along, none, of_seed, of_x]))
    seeds, weight = normal(24, 3), model.parameters()["2.weight"]
    slopes = model.predict((X, seeds))
    np.testing.assert_allclose(slopes[0], seeds @ weight, atol=1e-6)
    np.testing.assert_allclose(slopes[3], np.ones((24, 3)) @ weight, atol=1e-6)
    assert not slopes[1].any()
    assert not slopes[2].any()


@dataclass(frozen=True)
class Ranked(lm.Layer):
    """Its first result has no gradient, the second one has."""

    def forward(self, scope, x):
        return ops.argmax(x, 1), x * x * x


def test_gradients_pass_a_layer_whose_first_result_is_an_integer():
    x = lm.Input(2)
    y = lm.Linear(2, bias=False)(x)
    _, cubes = Ranked()(y)
    (slope,) = lm.gradients(cubes, [y])
    results = lm.Model(lm.Network(x, [y, slope])).predict(X)
    np.testing.assert_allclose(results[1], 3 * results[0] ** 2, rtol=1e-5)


def product_and_slope():
    a, b = lm.Input(2), lm.Input(2)
    y = lm.Multiply()(a, ops.exp(b))
    return lm.Network([a, b], [y, *lm.gradients(ops.sum(y), [a])])


@dataclass(frozen=True)
class Within(lm.Layer):
    """Applies a network to operands that depend on each other."""

    network: lm.Network
    named: bool

    def forward(self, scope, x):
        operands = x, ops.tanh(x)
        return (
            scope.layer("net", self.network, *operands) if self.named else self.network(*operands)
        )


@pytest.mark.parametrize("how", ["applied", "called in forward", "in scope.layer"])
def test_the_gradients_of_an_applied_network_are_those_of_the_network_alone(how):
    network, x = product_and_slope(), lm.Input(2)
    if how == "applied":
        results = network(x, ops.tanh(x))
    else:
        results = Within(network, named=how == "in scope.layer")(x)
    (further,) = lm.gradients(ops.sum(results[1]), [x])
    model = lm.Model(lm.Network(x, [*results, further]))
    y, slope, curve = model.predict(X)
    squashed = np.tanh(X)
    np.testing.assert_allclose(y, X * np.exp(squashed), rtol=1e-5)
    np.testing.assert_allclose(slope, np.exp(squashed), rtol=1e-5)
    np.testing.assert_allclose(curve, np.exp(squashed) * (1 - squashed**2), rtol=1e-5, atol=1e-6)


def test_two_applications_share_parameters_and_have_their_own_slopes():
    shared, x = with_slopes(body()), lm.Input(2)
    model = lm.Model(lm.Network(x, [*shared(x), *shared(x * 2.0)]), seed=0)
    assert len(model.parameters()) == 4
    alone = model.part(shared)
    results, doubled = model.predict(X), alone.predict(X * 2)
    for result, expected in zip(results, [*alone.predict(X), *doubled], strict=True):
        np.testing.assert_allclose(result, expected, atol=1e-6)


def test_parts_and_names_of_a_network_with_slopes():
    inner = body()
    network = with_slopes(inner)
    model = lm.Model(network, seed=0)
    np.testing.assert_array_equal(model.part(inner).predict(X), model.predict(X)[0])
    assert network.names_of(inner) == ["1.weight", "1.bias", "3.weight", "3.bias"]


@dataclass(frozen=True)
class Sloped(lm.Layer):
    network: lm.Network
    named: bool = True

    def forward(self, scope, x):
        y = scope.layer("body", self.network, x) if self.named else self.network(x)
        return y, lm.gradients(ops.sum(y), [x])[0]


@pytest.mark.cases(
    ("named", "names"),
    (True, ["1.body.2.weight", "1.body.2.bias", "1.body.4.weight", "1.body.4.bias"]),
    (False, ["1.0.weight", "1.0.bias", "1.2.weight", "1.2.bias"]),
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_layer_takes_gradients_through_a_network_in_it(tmp_path, named, names, dtype):
    x = lm.Input(2)
    scaled = lm.Input(2)
    inner = lm.Network(scaled, body()(scaled * 0.3))
    y, slope = Sloped(inner, named)(x)
    (curve,) = lm.gradients(ops.sum(slope[:, 0]), [x])
    model = lm.Model(lm.Network(x, [y, slope, curve]), seed=0, dtype=dtype)
    assert [*model.parameters()] == names
    direct = lm.Model(with_slopes(inner), seed=0, dtype=dtype)
    inputs = X.astype(dtype)
    for result, expected in zip(model.predict(inputs), direct.predict(inputs), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-7)
    model.save(tmp_path / "layer.safetensors")
    loaded = lm.load(tmp_path / "layer.safetensors", layers=[Sloped])
    assert [*loaded.parameters()] == names
    np.testing.assert_array_equal(loaded.predict(inputs)[2], model.predict(inputs)[2])


@pytest.mark.sampled
@pytest.mark.parametrize("engine", ["cpu", "opencl"])
def test_a_network_with_slopes_trains_alike_on_every_engine(engine):
    found = trained(with_slopes(body()), engine)
    assert found == pytest.approx(trained(with_slopes(body()), "interpreter"), rel=1e-5)
    assert found[-1] < found[0]


@pytest.mark.parametrize("dtype", ["float64", "mixed-bfloat16", "mixed-float16", "float16"])
def test_a_network_with_slopes_trains_in_every_float_type(dtype):
    tolerance = 1e-5 if dtype == "float64" else 1e-2
    expected = trained(with_slopes(body()))
    assert trained(with_slopes(body()), dtype=dtype) == pytest.approx(expected, rel=tolerance)


def test_micro_batches_and_recomputed_layers_change_nothing():
    expected = trained(with_slopes(body()))
    assert trained(with_slopes(body()), micro_batch=4) == pytest.approx(expected, rel=1e-5)
    again = lm.Recompute(lm.Linear(6), lm.Tanh())
    assert trained(with_slopes(body(again, lm.Linear(1)))) == pytest.approx(expected, rel=1e-5)


def test_compiled_functions_take_gradients_through_layers_without_parameters():
    x = lm.Input(3)
    (slope,) = lm.gradients(ops.sum(lm.Rescale(2.0)(lm.Tanh()(x))), [x])
    operand = normal(4, 3)
    expected = 1 / np.cosh(operand) ** 2 * 2
    np.testing.assert_allclose(lm.compile([x], [slope])(operand)[0], expected, rtol=1e-5)
    with pytest.raises(DefinitionError, match="a compiled function has no parameters"):
        lm.compile([x], lm.gradients(lm.Linear(2)(x), [x]))


ROUGH = Op(
    "rough_in_a_layer",
    lambda operands, _: (operands[0].shape, operands[0].dtype),
    None,
    np.round,
    Elementwise(lambda node, x: x[0]),
)


@dataclass(frozen=True)
class Rough(lm.Layer):
    def forward(self, scope, x):
        return apply(ROUGH, x)


def test_the_error_for_an_op_without_a_derivative_names_the_layer():
    x = lm.Input(3)
    slopes = lm.gradients(Rough()(lm.Linear(3)(x)), [x])
    text = error_text(GradientError, lambda: lm.Network(x, slopes))
    assert "rough_in_a_layer has no derivative, but the output depends on it" in text
    assert "net/2:Rough" in text


def test_wrong_tensors_are_refused_where_gradients_are_taken():
    x = lm.Input(3)
    y = lm.Linear(2)(x)
    with pytest.raises(ShapeError, match="the seed of a gradient must have the shape"):
        lm.gradients(y, [x], x)
    with pytest.raises(GradientError, match="only floating-point tensors have derivatives"):
        lm.gradients(y, [x, ops.argmax(y, 1)])
