"""Networks: definition, numbers of layers, text, and errors with their source lines."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from network_cases import here, raised_line

import lamina as lm
from lamina import ops
from lamina.base import shapes
from lamina.base.shapes import BATCH
from lamina.errors import DefinitionError, ShapeError

FILE = "test_network.py"


def parameter_names(net: lm.Network) -> list[str]:
    return list(net.trace(dtype=shapes.float32, training=False).record.parameters)


# Definitions --------------------------------------------------------------------------------------


def test_a_sequential_network_has_its_layers_one_after_the_other() -> None:
    net = lm.Sequential(lm.Input(4), lm.Linear(3), lm.ReLU(), lm.Linear(2))
    assert [net.path(node) for node in net.nodes] == [
        "net/0:Input",
        "net/1:Linear",
        "net/2:ReLU",
        "net/3:Linear",
    ]
    assert net.outputs[0].shape == (BATCH, 2)


def test_parameters_are_named_after_the_number_of_their_layer() -> None:
    net = lm.Sequential(lm.Input(4), lm.Linear(3), lm.ReLU(), lm.Linear(2, bias=False))
    assert parameter_names(net) == ["1.weight", "1.bias", "3.weight"]


def test_the_parameters_are_counted() -> None:
    net = lm.Sequential(lm.Input(784), lm.Linear(500), lm.ReLU(), lm.Linear(10))
    assert net.parameter_count() == 785 * 500 + 501 * 10


def test_an_input_alone_is_a_network() -> None:
    net = lm.Sequential(lm.Input(4))
    assert net.outputs == net.inputs


def test_branches_are_numbered_in_the_order_in_which_they_are_written() -> None:
    a, b = lm.Input(4), lm.Input(3)
    left = lm.Linear(5)(a)
    right = lm.Linear(5)(b)
    net = lm.Network([a, b], lm.Add()(lm.ReLU()(right), left))
    assert [net.path(node) for node in net.nodes] == [
        "net/0:Input",
        "net/1:Input",
        "net/2:Linear",
        "net/3:Linear",
        "net/4:ReLU",
        "net/5:Add",
    ]


def test_ops_between_layers_are_numbered_like_layers_and_constants_are_not() -> None:
    a = lm.Input(4)
    net = lm.Network(a, lm.ReLU()(a * 2.0 + 1.0))
    paths = ["net/0:Input", "net/1:Mul", "net/2:Add", "net/3:ReLU"]
    assert [net.path(node) for node in net.nodes if node.op.name != "constant"] == paths


def test_a_network_may_have_several_outputs() -> None:
    a = lm.Input(4)
    h = lm.ReLU()(a)
    net = lm.Network(a, [lm.Linear(2)(h), lm.Linear(3)(h)])
    assert [output.shape for output in net.outputs] == [(BATCH, 2), (BATCH, 3)]


def test_an_input_that_is_not_used_may_be_listed() -> None:
    a, unused = lm.Input(4), lm.Input(2)
    net = lm.Network([a, unused], lm.Linear(2)(a))
    assert len(net.inputs) == 2


def test_a_function_of_tensors_may_stand_among_the_layers() -> None:
    net = lm.Sequential(lm.Input(4), lm.Linear(3), lambda x: x * x, lm.Linear(2))
    x = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    model = lm.Model(net)
    p = model.parameters()
    hidden = x @ p["1.weight"].T + p["1.bias"]
    expected = hidden**2 @ p["3.weight"].T + p["3.bias"]
    np.testing.assert_allclose(model.predict(x), expected, rtol=1e-5, atol=1e-6)


# Sharing ------------------------------------------------------------------------------------------


def test_a_layer_that_is_applied_twice_shares_its_parameters() -> None:
    a, b = lm.Input(4), lm.Input(4)
    shared = lm.Linear(3)
    net = lm.Network([a, b], [shared(a), shared(b)])
    assert parameter_names(net) == ["2.weight", "2.bias"]
    x = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    one, other = lm.Model(net).predict((x, x))
    np.testing.assert_array_equal(one, other)


def test_two_equal_layers_have_parameters_of_their_own() -> None:
    a = lm.Input(4)
    net = lm.Network(a, [lm.Linear(3)(a), lm.Linear(3)(a)])
    assert parameter_names(net) == ["1.weight", "1.bias", "2.weight", "2.bias"]


def test_the_penalty_of_a_shared_layer_is_counted_once() -> None:
    a, b = lm.Input(4), lm.Input(4)
    shared = lm.Linear(3, weight_regularizer=lm.L2(1.0))
    net = lm.Network([a, b], [shared(a), shared(b)])
    assert len(net.trace(dtype=shapes.float32, training=True).record.penalties) == 1


def test_a_layer_that_is_applied_to_two_shapes_is_refused_when_written_down() -> None:
    a, b = lm.Input(4), lm.Input(5)
    shared, line = lm.Linear(3), here()
    with pytest.raises(DefinitionError) as caught:
        lm.Network([a, b], [shared(a), shared(b)])
    assert str(caught.value) == (
        f"in net/3:Linear ({FILE}:{line}): the parameter 'weight' is used in two shapes\n"
        "  first  [3, 4]\n"
        "  now    [3, 5]\n"
        "  A layer that is used twice has one set of parameters: make two layers."
    )


# Networks within networks -------------------------------------------------------------------------


def test_a_network_can_be_a_layer_of_another() -> None:
    inner = lm.Sequential(lm.Input(4), lm.Linear(3), lm.ReLU())
    net = lm.Sequential(lm.Input(4), inner, lm.Linear(2))
    assert parameter_names(net) == ["1.weight", "1.bias", "3.weight", "3.bias"]


def test_a_network_that_is_applied_twice_shares_its_parameters() -> None:
    inner = lm.Sequential(lm.Input(4), lm.Linear(3), lm.ReLU())
    a, b = lm.Input(4), lm.Input(4)
    net = lm.Network([a, b], lm.Add()(inner(a), inner(b)))
    assert parameter_names(net) == ["2.weight", "2.bias"]


def test_an_applied_network_computes_the_same_as_alone() -> None:
    inner = lm.Sequential(lm.Input(4), lm.Linear(3), lambda x: ops.tanh(x) * 2.0)
    outer = lm.Model(lm.Sequential(lm.Input(4), inner))
    alone = lm.Model(inner)
    alone.set_parameters(outer.parameters())
    x = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    np.testing.assert_array_equal(alone.predict(x), outer.predict(x))


def test_an_applied_network_of_several_outputs_gives_a_tuple() -> None:
    a = lm.Input(4)
    inner = lm.Network(a, [lm.Linear(2)(a), lm.Linear(3)(a)])
    one, other = inner(lm.Input(4))
    assert (one.shape, other.shape) == ((BATCH, 2), (BATCH, 3))


def test_a_network_applied_to_another_number_of_tensors_is_refused() -> None:
    inner = lm.Sequential(lm.Input(4), lm.Linear(3))
    with pytest.raises(DefinitionError) as caught:
        inner(lm.Input(4), lm.Input(4))
    assert caught.value.facts == (("expected", "1"), ("found", "2"))
    assert caught.value.where == f"{FILE}:{raised_line(caught)}"


def test_a_network_applied_to_another_shape_is_refused() -> None:
    inner, line = lm.Sequential(lm.Input(4), lm.Linear(3)), here()
    with pytest.raises(ShapeError) as caught:
        inner(lm.Input(5))
    assert str(caught.value) == (
        f"in {FILE}:{raised_line(caught)}: "
        "input 0 of the applied network has another shape\n"
        "  expected  [batch, 4]\n"
        "  found     f32[batch, 5]   from net/0:Input\n"
        f"  The network was defined for that shape, at {FILE}:{line}."
    )


# Layers within layers -----------------------------------------------------------------------------


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


def test_layers_in_a_layer_are_numbered_within_it() -> None:
    net = lm.Sequential(lm.Input(4), Residual(3))
    assert parameter_names(net) == ["1.0.weight", "1.0.bias", "1.2.weight", "1.2.bias"]


def test_layers_may_be_nested_deeply() -> None:
    net = lm.Sequential(lm.Input(4), Nested())
    assert parameter_names(net) == [
        *("1.0.0.weight", "1.0.0.bias", "1.0.2.weight", "1.0.2.bias"),
        *("1.1.0.weight", "1.1.0.bias", "1.1.2.weight", "1.1.2.bias"),
    ]


def test_a_layer_of_layers_equals_numpy() -> None:
    model = lm.Model(lm.Sequential(lm.Input(4), Residual(3)))
    p = model.parameters()
    x = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    hidden = np.maximum(x @ p["1.0.weight"].T + p["1.0.bias"], 0)
    expected = x + hidden @ p["1.2.weight"].T + p["1.2.bias"]
    np.testing.assert_allclose(model.predict(x), expected, rtol=1e-5, atol=1e-6)


def test_a_layer_of_layers_that_is_applied_twice_shares_all_parameters() -> None:
    a, b = lm.Input(4), lm.Input(4)
    shared = Residual(3)
    net = lm.Network([a, b], [shared(a), shared(b)])
    assert parameter_names(net) == ["2.0.weight", "2.0.bias", "2.2.weight", "2.2.bias"]


def test_a_layer_in_a_field_that_is_applied_twice_shares_its_parameters() -> None:
    net = lm.Sequential(lm.Input(4), Twice())
    assert parameter_names(net) == ["1.0.weight", "1.0.bias"]


def test_a_state_may_take_its_new_value_from_an_inner_layer() -> None:
    model = lm.Model(lm.Sequential(lm.Input(4), Centred()))
    p = model.parameters()
    x = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    before = model.predict(x)
    with model.training(lm.MSE(), lm.SGD(1e-30), batch_size=5) as training:
        training.step(x, np.zeros((5, 3), "float32"))
    mean = (x @ p["1.0.weight"].T + p["1.0.bias"]).mean(axis=0)
    np.testing.assert_allclose(model.predict(x), before - mean, rtol=1e-5, atol=1e-6)


def test_a_regulariser_of_an_inner_layer_is_applied() -> None:
    @dataclass(frozen=True)
    class Own(lm.Layer):
        def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
            return lm.Linear(3, weight_regularizer=lm.L1(0.5))(x)

    net = lm.Sequential(lm.Input(4), Own())
    assert len(net.trace(dtype=shapes.float32, training=True).record.penalties) == 1


# The table ----------------------------------------------------------------------------------------


def test_a_network_is_shown_as_a_table() -> None:
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


def test_the_table_counts_the_parameters_of_a_shared_layer_at_its_first_use() -> None:
    a, b = lm.Input(4), lm.Input(4)
    shared = lm.Linear(3)
    rows = str(lm.Network([a, b], [shared(a), shared(b)])).splitlines()
    assert [row.split()[3] for row in rows if "Linear" in row] == ["15", "0"]


def test_the_table_counts_inner_layers_with_their_outer_layer() -> None:
    rows = str(lm.Sequential(lm.Input(4), Residual(3))).splitlines()
    assert rows[3].split() == ["1:Residual", "f32[batch,", "4]", "31", "62"]


def test_the_text_of_a_network_in_an_expression_is_short() -> None:
    x = lm.Input(3)
    assert repr(lm.Sequential(lm.Input(3), lm.Linear(2))) == (
        "Network(f32[batch, 3] -> f32[batch, 2], 8 parameters)"
    )
    several = lm.Network([x, lm.Input(2, dtype="int64")], [x * 2, lm.Linear(500)(x)], name="both")
    assert repr(several) == (
        "Network('both', f32[batch, 3], i64[batch, 2] -> f32[batch, 3], f32[batch, 500], "
        "2,000 parameters)"
    )


def test_a_shape_shows_the_batch_by_its_name() -> None:
    x = lm.Input(3, 4)
    assert repr(x.shape) == "(batch, 3, 4)"
    joined = lm.ops.concat([x, x, x[:1]], 0)
    assert repr(joined.shape) == "(2*batch+1, 3, 4)"
