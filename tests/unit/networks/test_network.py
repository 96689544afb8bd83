"""Networks: definition, numbers of layers, and text."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.base import shapes
from lamina.base.shapes import BATCH


def parameter_names(net: lm.Network) -> list[str]:
    return list(net.trace(dtype=shapes.float32, training=False).record.parameters)


def paths(net: lm.Network) -> str:
    """The layers and ops with their numbers."""
    found = [net.path(node) for node in net.nodes if node.op.name != "constant"]
    return " ".join(path.removeprefix("net/") for path in found)


def branches() -> lm.Network:
    a, b = lm.Input(4), lm.Input(3)
    left = lm.Linear(5)(a)
    right = lm.Linear(5)(b)
    return lm.Network([a, b], lm.Add()(lm.ReLU()(right), left))


def with_ops() -> lm.Network:
    a = lm.Input(4)
    return lm.Network(a, lm.ReLU()(a * 2.0 + 1.0))


def of_two_outputs() -> lm.Network:
    a = lm.Input(4)
    h = lm.ReLU()(a)
    return lm.Network(a, [lm.Linear(2)(h), lm.Linear(3)(h)])


# A network, and its layers in the order in which they are written; constants have no numbers.
@pytest.mark.cases(
    ("make", "expected"),
    (lambda: lm.Sequential(lm.Input(4)), "0:Input"),
    (
        lambda: lm.Sequential(lm.Input(4), lm.Linear(3), lm.ReLU(), lm.Linear(2)),
        "0:Input 1:Linear 2:ReLU 3:Linear",
    ),
    (branches, "0:Input 1:Input 2:Linear 3:Linear 4:ReLU 5:Add"),
    (with_ops, "0:Input 1:Mul 2:Add 3:ReLU"),
    (of_two_outputs, "0:Input 1:ReLU 2:Linear 3:Linear"),
)
def test_layers_are_numbered_in_the_order_in_which_they_are_written(make, expected):
    assert paths(make()) == expected


def test_outputs_have_the_shapes_of_their_layers():
    expected = [(BATCH, 2), (BATCH, 3)]
    assert [output.shape for output in of_two_outputs().outputs] == expected
    # An applied network of several outputs gives a tuple.
    assert [output.shape for output in of_two_outputs()(lm.Input(4))] == expected
    a, unused = lm.Input(4), lm.Input(2)
    assert len(lm.Network([a, unused], lm.Linear(2)(a)).inputs) == 2


def test_the_parameters_are_counted():
    net = lm.Sequential(lm.Input(784), lm.Linear(500), lm.ReLU(), lm.Linear(10))
    assert net.parameter_count() == 785 * 500 + 501 * 10


def test_a_function_of_tensors_may_stand_among_the_layers():
    net = lm.Sequential(lm.Input(4), lm.Linear(3), lambda x: x * x, lm.Linear(2))
    x = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    model = lm.Model(net)
    p = model.parameters()
    hidden = x @ p["1.weight"].T + p["1.bias"]
    expected = hidden**2 @ p["3.weight"].T + p["3.bias"]
    np.testing.assert_allclose(model.predict(x), expected, rtol=1e-5, atol=1e-6)


def test_a_layer_that_is_applied_twice_shares_its_parameters():
    net = twice(lm.Linear(3))
    x = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    one, other = lm.Model(net).predict((x, x))
    np.testing.assert_array_equal(one, other)


def test_the_penalty_of_a_shared_or_an_inner_layer_is_counted_once():
    @dataclass(frozen=True)
    class Own(lm.Layer):
        def forward(self, scope, x):
            return lm.Linear(3, weight_regularizer=lm.L1(0.5))(x)

    for layer in (lm.Linear(3, weight_regularizer=lm.L2(1.0)), Own()):
        record = twice(layer).trace(dtype=shapes.float32, training=True).record
        assert len(record.penalties) == 1


def test_an_applied_network_computes_the_same_as_alone():
    inner = lm.Sequential(lm.Input(4), lm.Linear(3), lambda x: ops.tanh(x) * 2.0)
    outer = lm.Model(lm.Sequential(lm.Input(4), inner))
    alone = lm.Model(inner)
    alone.set_parameters(outer.parameters())
    x = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    np.testing.assert_array_equal(alone.predict(x), outer.predict(x))


@dataclass(frozen=True)
class Residual(lm.Layer):
    """x + f(x), with layers applied in forward."""

    features: int

    def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
        hidden = lm.ReLU()(lm.Linear(self.features)(x))
        return x + lm.Linear(x.shape[-1])(hidden)


@dataclass(frozen=True)
class Nested(lm.Layer):
    """A layer of layers of layers."""

    def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
        return Residual(2)(Residual(3)(x))


@dataclass(frozen=True)
class Twice(lm.Layer):
    """Applies the layer in its field two times."""

    inner: lm.Layer = field(default_factory=lambda: lm.Linear(4))

    def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
        return self.inner(self.inner(x))


@dataclass(frozen=True)
class Centred(lm.Layer):
    """Keeps a mean of the results of an inner layer."""

    def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
        h = lm.Linear(3)(x)
        mean = scope.state("mean", (3,), lm.init.Zeros())
        if scope.training:
            scope.update("mean", ops.mean(h, 0))
        return h - mean


def twice(layer: Any, join: Any = lambda *results: list(results)) -> lm.Network:
    a, b = lm.Input(4), lm.Input(4)
    return lm.Network([a, b], join(layer(a), layer(b)))


def side_by_side(*layers: lm.Layer) -> lm.Network:
    a = lm.Input(4)
    return lm.Network(a, [layer(a) for layer in layers])


def inner() -> lm.Network:
    return lm.Sequential(lm.Input(4), lm.Linear(3), lm.ReLU())


# A network, and the layers that have parameters by their numbers.
@pytest.mark.cases(
    ("make", "layers"),
    (lambda: lm.Sequential(lm.Input(4), lm.Linear(3), lm.ReLU(), lm.Linear(2)), "1 3"),
    (lambda: side_by_side(lm.Linear(3), lm.Linear(3)), "1 2"),
    (lambda: twice(lm.Linear(3)), "2"),
    (lambda: lm.Sequential(lm.Input(4), inner(), lm.Linear(2)), "1 3"),
    (lambda: twice(inner(), lm.Add()), "2"),
    (lambda: lm.Sequential(lm.Input(4), Residual(3)), "1.0 1.2"),
    (lambda: lm.Sequential(lm.Input(4), Nested()), "1.0.0 1.0.2 1.1.0 1.1.2"),
    (lambda: twice(Residual(3)), "2.0 2.2"),
    (lambda: lm.Sequential(lm.Input(4), Twice()), "1.0"),
)
def test_parameters_are_named_after_the_number_of_their_layer(make, layers):
    expected = [f"{layer}.{kind}" for layer in layers.split() for kind in ("weight", "bias")]
    assert parameter_names(make()) == expected


def test_a_layer_of_layers_equals_numpy():
    model = lm.Model(lm.Sequential(lm.Input(4), Residual(3)))
    p = model.parameters()
    x = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    hidden = np.maximum(x @ p["1.0.weight"].T + p["1.0.bias"], 0)
    expected = x + hidden @ p["1.2.weight"].T + p["1.2.bias"]
    np.testing.assert_allclose(model.predict(x), expected, rtol=1e-5, atol=1e-6)


def test_a_state_may_take_its_new_value_from_an_inner_layer():
    model = lm.Model(lm.Sequential(lm.Input(4), Centred()))
    p = model.parameters()
    x = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    before = model.predict(x)
    with model.training(lm.MSE(), lm.SGD(1e-30), batch_size=5) as training:
        training.step(x, np.zeros((5, 3), "float32"))
    mean = (x @ p["1.0.weight"].T + p["1.0.bias"]).mean(axis=0)
    np.testing.assert_allclose(model.predict(x), before - mean, rtol=1e-5, atol=1e-6)


def test_a_network_is_shown_as_a_table():
    net = lm.Sequential(lm.Input(28, 28), lm.Flatten(), lm.Linear(500), lm.ReLU(), lm.Linear(10))
    assert str(net) == (
        "layer      output              parameters  FLOPs per example\n"
        "---------  ------------------  ----------  -----------------\n"
        "0:Input    f32[batch, 28, 28]           0                  0\n"
        "1:Flatten  f32[batch, 784]              0                  0\n"
        "2:Linear   f32[batch, 500]        392,500            784,500\n"
        "3:ReLU     f32[batch, 500]              0                500\n"
        "4:Linear   f32[batch, 10]           5,010             10,010\n"
        "---------  ------------------  ----------  -----------------\n"
        "total                             397,510            795,010"
    )


def test_the_table_counts_the_parameters_of_a_shared_layer_at_its_first_use():
    rows = str(twice(lm.Linear(3))).splitlines()
    assert [row.split()[3] for row in rows if "Linear" in row] == ["15", "0"]


def test_the_table_counts_inner_layers_with_their_outer_layer():
    rows = str(lm.Sequential(lm.Input(4), Residual(3))).splitlines()
    assert rows[3].split() == ["1:Residual", "f32[batch,", "4]", "31", "62"]


def test_the_text_of_a_network_in_an_expression_is_short():
    x = lm.Input(3)
    assert repr(lm.Sequential(lm.Input(3), lm.Linear(2))) == (
        "Network(f32[batch, 3] -> f32[batch, 2], 8 parameters)"
    )
    several = lm.Network([x, lm.Input(2, dtype="int64")], [x * 2, lm.Linear(500)(x)], name="both")
    assert repr(several) == (
        "Network('both', f32[batch, 3], i64[batch, 2] -> f32[batch, 3], f32[batch, 500], "
        "2,000 parameters)"
    )


def test_a_shape_shows_the_batch_by_its_name():
    x = lm.Input(3, 4)
    assert repr(x.shape) == "(batch, 3, 4)"
    joined = lm.ops.concat([x, x, x[:1]], 0)
    assert repr(joined.shape) == "(2*batch+1, 3, 4)"
