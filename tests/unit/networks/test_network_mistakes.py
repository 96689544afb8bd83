"""Mistakes in a network are refused where they are written, with the path and the user's line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from error_texts import error_text, refused
from network_cases import here, raised_line

import lamina as lm
from lamina import ops
from lamina.base.shapes import BATCH
from lamina.errors import DefinitionError, DTypeError, LaminaError, ShapeError

pytestmark = pytest.mark.each_case

FILE = "test_network_mistakes.py"

# Shape mistakes: the path, the user's own line, both shapes, the fix ------------------------------


def test_branches_that_differ_are_named_with_the_layers_they_come_from() -> None:
    x = lm.Input(4)
    left = lm.ReLU()(lm.Linear(3)(x))
    right = lm.Linear(5)(x)
    add, line = lm.Add(), here()
    assert error_text(ShapeError, lambda: add(left, right)) == (
        f"in net/4:Add ({FILE}:{line}): the two branches differ in shape\n"
        "  left   f32[batch, 3]   from net/2:ReLU\n"
        "  right  f32[batch, 5]   from net/3:Linear\n"
        "  Axis 1 differs, 3 against 5: give both branches the same number of features."
    )


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "a layer in a Sequential": (lambda: lm.Sequential(lm.Input(), lm.Linear(3)), "net/1:Linear"),
    "a layer after others": (
        lambda: lm.Sequential(lm.Input(4), lm.ReLU(), lm.Reshape(3)),
        "net/2:Reshape",
    ),
    "a join": (lambda: lm.concat([lm.Input(4, 2), lm.Input(4, 3)]), "net/2:Concat"),
    "a sum of tensors": (lambda: lm.Input(4) + lm.Input(5), "net/2:Add"),
    "a sum with an array": (lambda: lm.Input(4) + np.zeros(5, "float32"), "net/1:Add"),
    "a matrix product": (lambda: lm.Input(4) @ np.zeros((5, 3), "float32"), "net/1:Matmul"),
    "a reshape": (lambda: ops.reshape(lm.Input(4), (BATCH, 5)), "net/1:Reshape"),
    "an axis that is not there": (lambda: ops.sum(lm.Input(4), 7), ""),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_shape_mistake_names_the_path_and_the_users_line(name: str) -> None:
    make, path = MISTAKES[name]
    line = inspect.getsourcelines(make)[1]
    error = refused(ShapeError, make)
    expected = f"{path} ({FILE}:{line})" if path else f"{FILE}:{line}"
    assert error.where == expected


@pytest.mark.parametrize("name", MISTAKES)
def test_a_shape_mistake_shows_the_found_shape_and_the_fix(name: str) -> None:
    make, _ = MISTAKES[name]
    error = refused(ShapeError, make)
    assert any("[batch" in value or "batch" in value for _, value in error.facts)
    assert error.advice


def test_an_error_names_the_line_where_the_layer_was_made() -> None:
    layer, line = lm.Reshape(3), here()
    error = refused(ShapeError, lambda: lm.Sequential(lm.Input(4), layer))
    assert error.where == f"net/1:Reshape ({FILE}:{line})"


def test_a_layer_on_a_line_of_its_own_is_named_with_that_line() -> None:
    start = here()
    with pytest.raises(ShapeError) as caught:
        lm.Sequential(
            lm.Input(4),  # The comment keeps each layer on its line.
            lm.ReLU(),
            lm.Reshape(3),
        )
    assert caught.value.where == f"net/2:Reshape ({FILE}:{start + 5})"


def test_a_wrong_dtype_is_named_with_its_location() -> None:
    with pytest.raises(DTypeError) as caught:
        lm.Linear(3)(lm.Input(4, dtype="int64"))
    assert caught.value.where == f"net/1:Linear ({FILE}:{raised_line(caught)})"


def test_a_mistake_within_a_users_layer_is_named_with_the_layer() -> None:
    @dataclass(frozen=True)
    class Own(lm.Layer):
        def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
            return x + lm.Linear(5)(x)

    layer, line = Own(), here()
    error = refused(ShapeError, lambda: layer(lm.Input(4)))
    assert error.where == f"net/1:Own ({FILE}:{line})"


def test_a_shape_mistake_allocates_no_memory() -> None:
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


def test_a_list_of_layers_or_tensors_is_to_be_unpacked() -> None:
    x = lm.Input(3)
    error = refused(DefinitionError, lambda: lm.Sequential([x, lm.Linear(3)]))
    assert error.advice == "Unpack the list: Sequential(*layers)."
    with pytest.raises(DefinitionError) as caught:
        lm.Add()([x, x])
    assert caught.value.advice == "Pass the tensors one by one: layer(a, b)."


def test_an_empty_sequential_is_refused() -> None:
    error = refused(DefinitionError, lambda: lm.Sequential())
    assert error.facts[1] == ("found", "nothing")


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
def test_elements_that_are_no_layers_are_refused_in_a_sequential(element: object) -> None:
    error = refused(DefinitionError, lambda: lm.Sequential(lm.Input(4), element))
    assert error.facts[0] == ("position", "1")


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


def test_a_comparison_of_tensors_by_identity_is_refused_as_an_operand() -> None:
    x, other = lm.Input(4), lm.Input(4)
    with pytest.raises(DefinitionError, match=r"with lm\.ops\.equal and lm\.ops\.not_equal"):
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
        "  Pass tensors without names, layer(x, mask), and options when the layer is made: "
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


@pytest.mark.parametrize("shape", [(1, 8, 8), [None, 1, 8, 8]])
def test_a_tuple_of_dimensions_is_shown_as_dimensions(shape: object) -> None:
    error = refused(ShapeError, lambda: lm.Input(shape))
    assert error.advice == "Write Input(1, 8, 8), without the batch."


def test_an_input_of_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(DTypeError, match="there is no dtype 'float8'"):
        lm.Input(4, dtype="float8")


def test_a_layer_whose_forward_gives_no_tensor_is_refused() -> None:
    @dataclass(frozen=True)
    class Own(lm.Layer):
        def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
            return None

    error = refused(DefinitionError, lambda: Own()(lm.Input(4)))
    assert error.problem == "forward must return a tensor, or a tuple of tensors"
    assert error.facts[1] == ("found", "NoneType")


def test_an_if_on_a_tensor_in_forward_is_refused_with_its_location() -> None:
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

    error = refused(DefinitionError, lambda: Own()(lm.Input(4)))
    assert error.problem == "there is no state 'mean' to update"
    assert error.where.startswith("net/1:Own")


def test_a_parameter_whose_shape_depends_on_the_batch_is_refused() -> None:
    @dataclass(frozen=True)
    class Own(lm.Layer):
        def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
            return x * scope.parameter("w", x.shape, lm.init.Zeros())

    error = refused(ShapeError, lambda: Own()(lm.Input(4)))
    assert error.facts == (("found", "[batch, 4]"),)


def test_an_initial_value_of_another_shape_is_refused() -> None:
    wrong = lm.Linear(3, weight_init=lambda shape, seed, stream: np.zeros(5))
    error = refused(ShapeError, lambda: lm.Model(lm.Sequential(lm.Input(4), wrong)))
    assert error.problem == "the initial value of '1.weight' has another shape"
    assert error.facts == (("expected", "[3, 4]"), ("found", "[5]"))
    assert error.where.startswith("net/1:Linear")


# The forward of a user's layer --------------------------------------------------------------------


@dataclass(frozen=True)
class WithoutScope(lm.Layer):
    def forward(self, x):
        return x * 2


@dataclass(frozen=True)
class OfTwo(lm.Layer):
    def forward(self, a, b):
        return a + b


SCOPE_FIRST = (
    "The first argument of forward is the scope, which creates parameters and states: "
    "def forward(self, scope, x)."
)


@pytest.mark.parametrize(
    ("layer", "parameters"), [(WithoutScope(), ["x"]), (OfTwo(), ["a", "b"])], ids=["one", "two"]
)
def test_a_forward_without_the_scope_is_refused(layer: lm.Layer, parameters: list[str]) -> None:
    error = refused(DefinitionError, lambda: layer(*[lm.Input(3) for _ in parameters]))
    assert error.problem == "forward does not take the scope"
    assert error.facts == (
        ("expected", f"def forward({', '.join(['self', 'scope', *parameters])})"),
        ("found", f"def forward({', '.join(['self', *parameters])})"),
    )
    assert error.advice == SCOPE_FIRST
    assert f"/{len(parameters)}:{type(layer).__name__} ({FILE}:" in error.where


def test_a_scope_in_place_of_a_tensor_is_refused() -> None:
    error = refused(DTypeError, lambda: OfTwo()(lm.Input(3)))
    assert error.facts[-1] == ("found", "Scope")
    assert error.advice == SCOPE_FIRST


@pytest.mark.parametrize(("count", "found"), [(0, "0 tensors"), (2, "2 tensors")])
def test_another_number_of_tensors_is_refused(count: int, found: str) -> None:
    layer = lm.Linear(3)
    error = refused(DefinitionError, lambda: layer(*[lm.Input(3) for _ in range(count)]))
    assert error.problem == "the layer is applied to another number of tensors"
    assert error.facts == (("expected", "layer(x)"), ("found", found))


def test_a_type_error_within_forward_is_passed_on() -> None:
    @dataclass(frozen=True)
    class Broken(lm.Layer):
        def forward(self, scope, x):
            return len(3)

    with pytest.raises(TypeError, match="object of type 'int' has no len"):
        Broken()(lm.Input(3))
