"""Mistakes in a network are refused where they are written, with the path and the user's line."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from error_texts import check_refusal, error_text, refused
from network_cases import here

import lamina as lm
from lamina import ops
from lamina.base.shapes import BATCH
from lamina.errors import DefinitionError, DTypeError, LaminaError, ShapeError

pytestmark = pytest.mark.each_case

FILE = "test_network_mistakes.py"

# Shape mistakes: the path, the user's own line, both shapes, the fix ------------------------------

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


@pytest.mark.cases("make, path", MISTAKES)
def test_a_shape_mistake_names_path_line_shape_and_fix(make, path):
    line = inspect.getsourcelines(make)[1]
    error = refused(ShapeError, make)
    assert error.where == (f"{path} ({FILE}:{line})" if path else f"{FILE}:{line}")
    assert any("batch" in value for _, value in error.facts)
    assert error.advice


@dataclass(frozen=True)
class Widening(lm.Layer):
    def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
        return x + lm.Linear(5)(x)


def test_an_error_names_the_line_where_the_layer_was_made():
    layers, line = [lm.Reshape(3), Widening()], here()
    for layer in layers:
        error = refused(ShapeError, lambda layer=layer: lm.Sequential(lm.Input(4), layer))
        assert error.where == f"net/1:{type(layer).__name__} ({FILE}:{line})"


def test_branches_that_differ_are_named_with_the_layers_they_come_from():
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


def test_a_layer_on_a_line_of_its_own_is_named_with_that_line():
    start = here()
    with pytest.raises(ShapeError) as caught:
        lm.Sequential(
            lm.Input(4),  # The comment keeps each layer on its line.
            lm.ReLU(),
            lm.Reshape(3),
        )
    assert caught.value.where == f"net/2:Reshape ({FILE}:{start + 5})"


# Other mistakes -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Nothing(lm.Layer):
    def forward(self, scope: lm.Scope, x: lm.Tensor) -> Any:
        return None


@dataclass(frozen=True)
class Deciding(lm.Layer):
    def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
        return x if x > 0 else -x


@dataclass(frozen=True)
class Updating(lm.Layer):
    def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
        scope.update("mean", ops.mean(x))
        return x


@dataclass(frozen=True)
class OfBatch(lm.Layer):
    def forward(self, scope: lm.Scope, x: lm.Tensor) -> lm.Tensor:
        return x * scope.parameter("w", x.shape, lm.init.Zeros())


@dataclass(frozen=True)
class WithoutScope(lm.Layer):
    def forward(self, x):
        return x * 2


@dataclass(frozen=True)
class OfTwo(lm.Layer):
    def forward(self, a, b):
        return a + b


@dataclass(frozen=True)
class Broken(lm.Layer):
    def forward(self, scope, x):
        return len(3)


A, ACTIVATED = lm.Input(4), lm.ReLU()(lm.Input(4))


def applied(layer: lm.Layer, *inputs: lm.Tensor) -> lm.Network:
    return lm.Network(inputs, [layer(x) for x in inputs])


def wrong(shape: tuple[int, ...], seed: int, stream: int) -> np.ndarray:
    return np.zeros(5)


ELEMENTS = "the elements after the Input of a Sequential are layers"
NUMBER = "the layer is applied to another number of tensors\n  expected  layer(x)\n  found     "
SCOPE_FIRST = (
    "The first argument of forward is the scope, which creates parameters and states: "
    "def forward(self, scope, x)."
)


# Calls, and parts of the texts of their errors in their order.
@pytest.mark.cases(
    "row",  # Nothing is allocated.
    (lambda: lm.Sequential(lm.Input(10**9), lm.Linear(10**9), lm.Reshape(3)), ShapeError),
    # Sequential.
    (
        lambda: lm.Sequential(lm.Linear(3), lm.ReLU()),
        *(DefinitionError, "in Sequential (", "): a Sequential begins with an Input\n"),
        "  expected  Sequential(Input(784), Linear(10))\n  found     Linear",
    ),
    (lambda: lm.Sequential(), DefinitionError, "found     nothing"),
    (
        lambda: lm.Sequential([A, lm.Linear(3)]),
        *(DefinitionError, "Unpack the list: Sequential(*layers)."),
    ),
    (
        lambda: lm.Sequential(lm.Input(4), lm.Linear(3), lm.Input(4)),
        *(DefinitionError, "in Sequential (", f"): {ELEMENTS}\n"),
        "  position  2\n  found     Tensor(f32[batch, 4], leaf)\n",
        "  Several inputs or branches need lm.Network(inputs=[...], outputs=...).",
    ),
    *(
        (lambda layer=layer: lm.Sequential(lm.Input(4), layer), DefinitionError, "  position  1\n")
        for layer in (5, "relu", None, [lm.ReLU()])
    ),
    (
        lambda: lm.Sequential(lm.Input(4), lm.ReLU),
        *(DefinitionError, "in Sequential (", f"): {ELEMENTS}, and this is a class\n"),
        "  position  1\n  found     the class ReLU\n  Make a layer of it: ReLU(...).",
    ),
    # What layers are applied to.
    (lambda: lm.Linear(3)(lm.Input(4, dtype="int64")), *(DTypeError, "in net/1:Linear (")),
    (
        lambda: lm.Linear(3)(np.zeros((2, 4))),
        *(DefinitionError, "in Linear (", "): a layer is applied to tensors\n"),
        "  expected  Tensor\n  found     ndarray\n",
        "  Start from lm.Input(...); arrays go to Model.predict.",
    ),
    (lambda: lm.Add()([A, A]), DefinitionError, "Pass the tensors one by one: layer(a, b)."),
    (
        lambda: lm.Linear(3)(ACTIVATED != A),
        *(DefinitionError, "with lm.ops.equal and lm.ops.not_equal"),
    ),
    (
        lambda: lm.MultiHeadAttention(2)(lm.Input(6, 8), mask=lm.Input(6, dtype="bool")),
        *(DefinitionError, "in MultiHeadAttention ("),
        "): a layer takes its tensors as positional arguments\n",
        "  expected  layer(x, ...)\n  found     layer(..., mask=...)\n",
        "  Pass tensors without names, layer(x, mask), and options when the layer is made: ",
        "MultiHeadAttention(...).",
    ),
    (lambda: lm.Linear(3)(), DefinitionError, f"{NUMBER}0 tensors"),
    (lambda: lm.Linear(3)(A, A), DefinitionError, f"{NUMBER}2 tensors"),
    (
        lambda: applied(lm.Linear(3), A, lm.Input(5)),
        *(
            *(DefinitionError, "in net/3:Linear ("),
            "): the parameter 'weight' is used in two shapes\n",
        ),
        "  first  [3, 4]\n  now    [3, 5]\n",
        "  A layer that is used twice has one set of parameters: make two layers.",
    ),
    # Applied networks.
    (
        lambda: lm.Sequential(A, lm.Linear(3))(A, A),
        *(DefinitionError, f"in {FILE}:", "expected  1\n  found     2"),
    ),
    (
        lambda: lm.Sequential(A, lm.Linear(3))(lm.Input(5)),
        *(ShapeError, f"in {FILE}:", ": input 0 of the applied network has another shape\n"),
        "  expected  [batch, 4]\n  found     f32[batch, 5]   from net/0:Input\n",
        f"  The network was defined for that shape, at {FILE}:",
    ),
    # Inputs and outputs.
    (
        lambda: lm.Network(A, lm.Linear(3)(lm.concat([A, lm.Input(2)]))),
        *(DefinitionError, "in Network ("),
        "): an output depends on an input that is not listed\n",
        f"  missing  Tensor(f32[batch, 2], leaf) made at {FILE}:",
        "  Add it: Network(inputs=[...], outputs=...).",
    ),
    (lambda: lm.Network(ACTIVATED, lm.Linear(3)(ACTIVATED)), DefinitionError, "made by lm.Input"),
    (lambda: lm.Network([A, A], lm.Linear(3)(A)), DefinitionError, "an input is listed twice"),
    (lambda: lm.Network(A, []), DefinitionError, "needs at least one output"),
    (
        lambda: lm.Network(A, [lm.Linear(3)]),
        *(DefinitionError, "in Network (", "  expected  Tensor\n  found     Linear"),
    ),
    *(
        (
            lambda shape=shape: lm.Input(*shape),
            *(
                *(ShapeError, "in Input, shape (", f"  found     {shape[0]!r}\n"),
                "Leave the batch out",
            ),
        )
        for shape in ((0,), (-1, 3), (2.5,), (True,), ("a",), (None, 4))
    ),
    *(
        (
            lambda shape=shape: lm.Input(shape),
            *(ShapeError, "Write Input(1, 8, 8), without the batch."),
        )
        for shape in ((1, 8, 8), [None, 1, 8, 8])
    ),
    (lambda: lm.Input(4, dtype="float8"), DTypeError, "there is no dtype 'float8'"),
    # The forward of a user's layer.
    (
        lambda: Nothing()(A),
        *(DefinitionError, "forward must return a tensor, or a tuple of tensors"),
        "found     NoneType",
    ),
    (lambda: Deciding()(A), LaminaError, "in net/1:Deciding ("),
    (
        lambda: Updating()(A),
        *(DefinitionError, "in net/1:Updating", "there is no state 'mean' to update"),
    ),
    (lambda: OfBatch()(A), ShapeError, "  found  [batch, 4]"),
    (
        lambda: lm.Model(lm.Sequential(A, lm.Linear(3, weight_init=wrong))),
        *(ShapeError, "in net/1:Linear", "the initial value of '1.weight' has another shape\n"),
        "  expected  [3, 4]\n  found     [5]",
    ),
    (
        lambda: WithoutScope()(A),
        *(DefinitionError, "in net/1:WithoutScope (", "forward does not take the scope\n"),
        "  expected  def forward(self, scope, x)\n  found     def forward(self, x)\n",
        f"  {SCOPE_FIRST}",
    ),
    (
        lambda: OfTwo()(lm.Input(3), lm.Input(3)),
        *(DefinitionError, "in net/2:OfTwo (", "forward does not take the scope\n"),
        "  expected  def forward(self, scope, a, b)\n  found     def forward(self, a, b)\n",
        f"  {SCOPE_FIRST}",
    ),
    (lambda: OfTwo()(A), DTypeError, "found     Scope\n", SCOPE_FIRST),
)
def test_a_mistake_is_refused_at_the_users_line(row):
    call, kind, *parts = row
    line = inspect.getsourcelines(call)[1]
    assert re.search(rf"{FILE}:{line}\b", check_refusal(kind, call, *parts))


def test_a_type_error_within_forward_is_passed_on():
    with pytest.raises(TypeError, match="object of type 'int' has no len"):
        Broken()(lm.Input(3))
