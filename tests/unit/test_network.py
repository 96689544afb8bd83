"""Networks: how they are written down, numbered and shown, and what is refused, at which line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

import lamina as lm
from lamina import ops, shapes
from lamina.errors import DefinitionError, DTypeError, LaminaError, ShapeError
from lamina.shapes import BATCH

FILE = "test_network.py"


def here() -> int:
    """The number of the line that calls this."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def raised_line(caught: pytest.ExceptionInfo) -> int:
    """The line of the test that raised."""
    return caught.traceback[0].lineno + 1


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
        "  A layer that is used twice shares its parameters; make two layers."
    )


# Networks within networks -------------------------------------------------------------------------


def test_a_network_can_be_a_part_of_another() -> None:
    inner = lm.Sequential(lm.Input(4), lm.Linear(3), lm.ReLU())
    net = lm.Sequential(lm.Input(4), inner, lm.Linear(2))
    assert parameter_names(net) == ["1.weight", "1.bias", "3.weight", "3.bias"]


def test_a_network_that_is_applied_twice_shares_its_parameters() -> None:
    inner = lm.Sequential(lm.Input(4), lm.Linear(3), lm.ReLU())
    a, b = lm.Input(4), lm.Input(4)
    net = lm.Network([a, b], lm.Add()(inner(a), inner(b)))
    assert parameter_names(net) == ["2.weight", "2.bias"]


def test_an_applied_network_computes_what_it_computes_alone() -> None:
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
        "input 0 of the network that is applied has another shape\n"
        "  expected  [batch, 4]\n"
        "  found     f32[batch, 5]   from net/0:Input\n"
        f"  It was made at {FILE}:{line}; its layers hold for that shape."
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
    """Keeps a mean of what an inner layer gives."""

    def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
        h = lm.Linear(3)(x)
        mean = scope.state("mean", (3,), lm.init.Zeros())
        if scope.training:
            scope.update("mean", ops.mean(h, 0))
        return h - mean


def test_layers_in_a_layer_are_named_after_their_place_in_it() -> None:
    net = lm.Sequential(lm.Input(4), Residual(3))
    assert parameter_names(net) == ["1.0.weight", "1.0.bias", "1.2.weight", "1.2.bias"]


def test_layers_may_be_nested_deeply() -> None:
    net = lm.Sequential(lm.Input(4), Nested())
    assert parameter_names(net) == [
        *("1.0.0.weight", "1.0.0.bias", "1.0.2.weight", "1.0.2.bias"),
        *("1.1.0.weight", "1.1.0.bias", "1.1.2.weight", "1.1.2.bias"),
    ]


def test_a_layer_of_layers_computes_what_its_parts_do() -> None:
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


def test_a_state_may_take_its_new_value_from_a_layer_within() -> None:
    model = lm.Model(lm.Sequential(lm.Input(4), Centred()))
    p = model.parameters()
    x = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    before = model.predict(x)
    with model.training(lm.MSE(), lm.SGD(1e-30), batch_size=5) as training:
        training.step(x, np.zeros((5, 3), "float32"))
    mean = (x @ p["1.0.weight"].T + p["1.0.bias"]).mean(axis=0)
    np.testing.assert_allclose(model.predict(x), before - mean, rtol=1e-5, atol=1e-6)


def test_a_regulariser_in_a_layer_within_counts() -> None:
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


def test_the_parameters_of_a_shared_layer_stand_at_its_first_place() -> None:
    a, b = lm.Input(4), lm.Input(4)
    shared = lm.Linear(3)
    rows = str(lm.Network([a, b], [shared(a), shared(b)])).splitlines()
    assert [row.split()[3] for row in rows if "Linear" in row] == ["15", "0"]


def test_layers_within_a_layer_count_for_it() -> None:
    rows = str(lm.Sequential(lm.Input(4), Residual(3))).splitlines()
    assert rows[3].split() == ["1:Residual", "f32[batch,", "4]", "31", "62"]


# Shape mistakes: the path, the user's own line, both shapes, the fix ------------------------------


def test_branches_that_differ_are_named_with_the_layers_they_come_from() -> None:
    x = lm.Input(4)
    left = lm.ReLU()(lm.Linear(3)(x))
    right = lm.Linear(5)(x)
    add, line = lm.Add(), here()
    with pytest.raises(ShapeError) as caught:
        add(left, right)
    assert str(caught.value) == (
        f"in net/4:Add ({FILE}:{line}): the two branches differ in shape\n"
        "  left   f32[batch, 3]   from net/2:ReLU\n"
        "  right  f32[batch, 5]   from net/3:Linear\n"
        "  Axis 1 differs, 3 against 5: give both branches the same number of features."
    )


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "a layer in a Sequential": (
        lambda: lm.Sequential(lm.Input(), lm.Linear(3)),
        "net/1:Linear",
    ),
    "a layer after others": (
        lambda: lm.Sequential(lm.Input(4), lm.ReLU(), lm.Reshape(3)),
        "net/2:Reshape",
    ),
    "a join": (
        lambda: lm.concat([lm.Input(4, 2), lm.Input(4, 3)]),
        "net/2:Concat",
    ),
    "a sum of tensors": (
        lambda: lm.Input(4) + lm.Input(5),
        "net/2:Add",
    ),
    "a sum with an array": (
        lambda: lm.Input(4) + np.zeros(5, "float32"),
        "net/1:Add",
    ),
    "a matrix product": (
        lambda: lm.Input(4) @ np.zeros((5, 3), "float32"),
        "net/1:Matmul",
    ),
    "a reshape": (
        lambda: ops.reshape(lm.Input(4), (BATCH, 5)),
        "net/1:Reshape",
    ),
    "an axis that is not there": (
        lambda: ops.sum(lm.Input(4), 7),
        "",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_shape_mistake_names_the_path_and_the_users_line(name: str) -> None:
    make, path = MISTAKES[name]
    line = inspect.getsourcelines(make)[1]
    with pytest.raises(ShapeError) as caught:
        make()
    expected = f"{path} ({FILE}:{line})" if path else f"{FILE}:{line}"
    assert caught.value.where == expected


@pytest.mark.parametrize("name", MISTAKES)
def test_a_shape_mistake_shows_what_was_found_and_the_fix(name: str) -> None:
    make, _ = MISTAKES[name]
    with pytest.raises(ShapeError) as caught:
        make()
    assert any("[batch" in value or "batch" in value for _, value in caught.value.facts)
    assert caught.value.advice


def test_the_line_is_where_the_layer_was_made_not_where_it_was_applied() -> None:
    layer, line = lm.Reshape(3), here()
    with pytest.raises(ShapeError) as caught:
        lm.Sequential(lm.Input(4), layer)
    assert caught.value.where == f"net/1:Reshape ({FILE}:{line})"


def test_a_layer_on_a_line_of_its_own_is_named_with_that_line() -> None:
    start = here()
    with pytest.raises(ShapeError) as caught:
        lm.Sequential(
            lm.Input(4),
            lm.ReLU(),
            lm.Reshape(3),
        )
    assert caught.value.where == f"net/2:Reshape ({FILE}:{start + 5})"


def test_a_wrong_dtype_is_named_with_its_place() -> None:
    with pytest.raises(DTypeError) as caught:
        lm.Linear(3)(lm.Input(4, dtype="int64"))
    assert caught.value.where == f"net/1:Linear ({FILE}:{raised_line(caught)})"


def test_a_mistake_within_a_users_layer_is_named_with_the_layer() -> None:
    @dataclass(frozen=True)
    class Own(lm.Layer):
        def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
            return x + lm.Linear(5)(x)

    layer, line = Own(), here()
    with pytest.raises(ShapeError) as caught:
        layer(lm.Input(4))
    assert caught.value.where == f"net/1:Own ({FILE}:{line})"


def test_a_mistake_costs_no_memory() -> None:
    with pytest.raises(ShapeError):
        lm.Sequential(lm.Input(10**9), lm.Linear(10**9), lm.Reshape(3))


# Other mistakes -----------------------------------------------------------------------------------


def test_a_sequential_without_an_input_is_refused() -> None:
    with pytest.raises(DefinitionError) as caught:
        lm.Sequential(lm.Linear(3), lm.ReLU())
    assert str(caught.value) == (
        f"in Sequential ({FILE}:{raised_line(caught)}): a Sequential begins with an Input\n"
        "  expected  Sequential(Input(784), Linear(10))\n"
        "  found     Linear"
    )


def test_an_empty_sequential_is_refused() -> None:
    with pytest.raises(DefinitionError) as caught:
        lm.Sequential()
    assert caught.value.facts[1] == ("found", "nothing")


def test_a_second_input_in_a_sequential_is_refused() -> None:
    with pytest.raises(DefinitionError) as caught:
        lm.Sequential(lm.Input(4), lm.Linear(3), lm.Input(4))
    assert str(caught.value) == (
        f"in Sequential ({FILE}:{raised_line(caught)}): "
        "the elements after the Input of a Sequential are layers\n"
        "  position  2\n"
        "  found     Tensor(f32[batch, 4], leaf)\n"
        "  Several inputs or branches need lm.Network(inputs=[...], outputs=...)."
    )


@pytest.mark.parametrize("element", [5, "relu", None, [lm.ReLU()]])
def test_what_is_no_layer_is_refused_in_a_sequential(element: object) -> None:
    with pytest.raises(DefinitionError) as caught:
        lm.Sequential(lm.Input(4), element)
    assert caught.value.facts[0] == ("position", "1")


def test_the_class_of_a_layer_is_not_a_layer() -> None:
    with pytest.raises(DefinitionError) as caught:
        lm.Sequential(lm.Input(4), lm.ReLU)
    assert str(caught.value) == (
        f"in Sequential ({FILE}:{raised_line(caught)}): "
        "the elements after the Input of a Sequential are layers, and this is a class\n"
        "  position  1\n"
        "  found     the class ReLU\n"
        "  Make a layer of it: ReLU(...)."
    )


def test_an_array_given_to_a_layer_is_refused() -> None:
    with pytest.raises(DefinitionError) as caught:
        lm.Linear(3)(np.zeros((2, 4)))
    assert str(caught.value) == (
        f"in Linear ({FILE}:{raised_line(caught)}): a layer is applied to tensors\n"
        "  expected  Tensor\n"
        "  found     ndarray\n"
        "  Start from lm.Input(...); arrays go to Model.predict."
    )


def test_python_compares_tensors_by_identity_and_is_told_of_it() -> None:
    x, other = lm.Input(4), lm.Input(4)
    with pytest.raises(DefinitionError, match=r"compared by lm\.ops\.equal and lm\.ops\.not_equal"):
        lm.Linear(3)(x != other)


def test_a_tensor_given_to_a_layer_by_name_is_refused() -> None:
    x, mask = lm.Input(6, 8), lm.Input(6, dtype="bool")
    with pytest.raises(DefinitionError) as caught:
        lm.MultiHeadAttention(2)(x, mask=mask)
    assert str(caught.value) == (
        f"in MultiHeadAttention ({FILE}:{raised_line(caught)}): "
        "a layer takes its tensors as positional arguments\n"
        "  expected  layer(x, ...)\n"
        "  found     layer(..., mask=...)\n"
        "  Leave the name out, layer(x, mask), or give an option where the layer is made: "
        "MultiHeadAttention(...)."
    )


def test_an_input_that_is_not_listed_is_named_with_its_line() -> None:
    a, b, line = lm.Input(4), lm.Input(2), here()
    output = lm.Linear(3)(lm.concat([a, b]))
    with pytest.raises(DefinitionError) as caught:
        lm.Network(a, output)
    assert str(caught.value) == (
        f"in Network ({FILE}:{raised_line(caught)}): "
        "an output depends on an input that is not listed\n"
        f"  missing  Tensor(f32[batch, 2], leaf) made at {FILE}:{line}\n"
        "  Add it: Network(inputs=[...], outputs=...)."
    )


def test_a_tensor_made_by_a_layer_is_no_input() -> None:
    h = lm.ReLU()(lm.Input(4))
    with pytest.raises(DefinitionError, match=r"made by lm\.Input"):
        lm.Network(h, lm.Linear(3)(h))


def test_an_input_listed_twice_is_refused() -> None:
    a = lm.Input(4)
    with pytest.raises(DefinitionError, match="an input is listed twice"):
        lm.Network([a, a], lm.Linear(3)(a))


def test_a_network_without_outputs_is_refused() -> None:
    with pytest.raises(DefinitionError, match="needs at least one output"):
        lm.Network(lm.Input(4), [])


def test_a_layer_as_an_output_is_refused() -> None:
    with pytest.raises(DefinitionError) as caught:
        lm.Network(lm.Input(4), [lm.Linear(3)])
    assert caught.value.facts == (("expected", "Tensor"), ("found", "Linear"))
    assert caught.value.where == f"Network ({FILE}:{raised_line(caught)})"


@pytest.mark.parametrize("shape", [(0,), (-1, 3), (2.5,), (True,), ("a",), (None, 4)])
def test_dimensions_of_an_input_are_whole_numbers_above_zero(shape: tuple) -> None:
    with pytest.raises(ShapeError) as caught:
        lm.Input(*shape)
    assert caught.value.where == f"Input, shape ({FILE}:{raised_line(caught)})"
    assert caught.value.facts[1] == ("found", repr(shape[0]))
    assert "Leave the batch out" in caught.value.advice


def test_an_input_of_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(DTypeError, match="there is no dtype 'float16'"):
        lm.Input(4, dtype="float16")


def test_a_layer_whose_forward_gives_no_tensor_is_refused() -> None:
    @dataclass(frozen=True)
    class Own(lm.Layer):
        def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
            return None

    with pytest.raises(DefinitionError) as caught:
        Own()(lm.Input(4))
    assert caught.value.problem == "forward must return a tensor"
    assert caught.value.facts[1] == ("found", "NoneType")


def test_an_if_on_a_tensor_in_forward_is_refused_with_its_place() -> None:
    @dataclass(frozen=True)
    class Own(lm.Layer):
        def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
            return x if x > 0 else -x

    with pytest.raises(LaminaError) as caught:
        Own()(lm.Input(4))
    assert caught.value.where == f"net/1:Own ({FILE}:{raised_line(caught)})"


def test_a_state_that_was_never_made_cannot_be_updated() -> None:
    @dataclass(frozen=True)
    class Own(lm.Layer):
        def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
            scope.update("mean", ops.mean(x))
            return x

    with pytest.raises(DefinitionError) as caught:
        Own()(lm.Input(4))
    assert caught.value.problem == "there is no state 'mean' to update"
    assert caught.value.where.startswith("net/1:Own")


def test_a_parameter_whose_shape_depends_on_the_batch_is_refused() -> None:
    @dataclass(frozen=True)
    class Own(lm.Layer):
        def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
            return x * scope.parameter("w", x.shape, lm.init.Zeros())

    with pytest.raises(ShapeError) as caught:
        Own()(lm.Input(4))
    assert caught.value.facts == (("found", "[batch, 4]"),)


def test_an_initial_value_of_another_shape_is_refused() -> None:
    wrong = lm.Linear(3, weight_init=lambda shape, seed, stream: np.zeros(5))
    with pytest.raises(ShapeError) as caught:
        lm.Model(lm.Sequential(lm.Input(4), wrong))
    assert caught.value.problem == "the initial value of '1.weight' has another shape"
    assert caught.value.facts == (("expected", "[3, 4]"), ("found", "[5]"))
    assert caught.value.where.startswith("net/1:Linear")
