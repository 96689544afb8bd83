"""Graphs: their text, their type check, their value, their batch, and how they are rewritten."""

import dataclasses
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from error_texts import error_text, refused
from network_cases import here

from lamina import ops
from lamina.base.shapes import BATCH, float32, float64
from lamina.checks.origin import Origin, labelled
from lamina.errors import InternalError, LaminaError, ShapeError
from lamina.graph import (
    OPS,
    ConstantValue,
    Graph,
    Op,
    Tensor,
    bind_batch,
    constant,
    described,
    evaluate,
    leaf,
    rebuild,
    rewrite,
    show,
    topological,
    verify,
)

pytestmark = pytest.mark.each_case


def data(*shape: int, name: str = "x") -> Tensor:
    return leaf(name, "input", (BATCH, *shape), float32)


def value_of(tensor: Tensor, **feeds: np.ndarray) -> np.ndarray:
    leaves = [node for node in topological([tensor]) if node.op.name == "leaf"]
    batch = len(next(iter(feeds.values())))
    graph = bind_batch(Graph(tuple(leaves), (("y", tensor),)), batch)
    return evaluate(graph, feeds)[0]["y"]


def test_a_graph_is_shown_one_tensor_a_line():
    x = data(4)
    w = leaf("w", "parameter", (4,), float32)
    with labelled(Origin("net/1:Scale")):
        y = ops.tanh(x * w)
    graph = Graph((x,), (("y", y),), ((w, w + w),))
    assert show(graph) == (
        "x = input : f32[batch, 4]\n"
        "w = parameter : f32[4]\n"
        "%2 = mul(x, w) : f32[batch, 4]  # net/1:Scale\n"
        "%3 = tanh(%2) : f32[batch, 4]  # net/1:Scale\n"
        "%4 = add(w, w) : f32[4]\n"
        "return y = %3\n"
        "update w = %4"
    )


def test_constants_and_attributes_are_shown():
    x = data(2, 3)
    text = show(Graph((x,), (("y", ops.sum(x * constant(2.0, float32), 2)),)))
    assert "constant(2.0) : f32[]" in text
    assert "axes=(2)" in text


def test_a_tensor_is_shown_with_shape_dtype_and_op():
    assert repr(ops.tanh(data(4))) == "Tensor(f32[batch, 4], tanh)"


def test_a_tensor_is_described_with_the_layer_it_comes_from():
    with labelled(Origin("net/3:Conv2d")):
        assert described(data(4)) == "f32[batch, 4]   from net/3:Conv2d"


X, W = data(4), leaf("w", "parameter", (4,), float32)
TANH = ops.tanh(X)
UNSOUND = {
    "a shape": (
        Graph((X,), (("y", dataclasses.replace(TANH, shape=(BATCH, 5))),)),
        "tanh has f32[batch, 5], its shape rule gives f32[batch, 4]",
    ),
    "a dtype": (
        Graph((X,), (("y", dataclasses.replace(TANH, dtype=float64)),)),
        "tanh has f64[batch, 4], its shape rule gives f32[batch, 4]",
    ),
    "a name": (Graph((X,), (("y", X + data(4)),)), "two leaves are named x"),
    "an update": (Graph((), (), ((W, ops.sum(W)),)), "w f32[4] is updated with f32[]"),
}


@pytest.mark.cases("graph, problem", UNSOUND)
def test_faults_of_graphs_are_found(graph, problem):
    verify(Graph((X,), (("y", TANH),)))
    assert refused(InternalError, lambda: verify(graph)).problem == problem


def test_evaluating_gives_outputs_by_name():
    x = data(2)
    outputs, _ = evaluate(
        bind_batch(Graph((x,), (("twice", x + x), ("square", x * x))), 1),
        {"x": np.array([[3.0, 4.0]], "float32")},
    )
    assert {name: array.tolist() for name, array in outputs.items()} == {
        "twice": [[6, 8]],
        "square": [[9, 16]],
    }


def test_updates_are_functions_of_the_old_values():
    a, b = (leaf(name, "parameter", (), float32) for name in "ab")
    _, updates = evaluate(
        Graph((), (), ((a, b + 0.0), (b, a + 0.0))), {"a": np.float32(1), "b": np.float32(2)}
    )
    assert (float(updates["a"]), float(updates["b"])) == (2.0, 1.0)


def test_a_bound_graph_has_no_open_dimension():
    x = data(4)
    y = ops.broadcast_to(ops.sum(ops.reshape(x, (BATCH, 2, 2)), 0), (BATCH, 2, 2))
    bound = bind_batch(Graph((x,), (("y", y),)), 3)
    assert "batch" not in show(bound)
    verify(bound)


LEFT = np.array([[1.0, -2.0, 3.5], [0.5, 4.0, -1.0]], "float32")
RIGHT = np.array([[2.0, -2.0, 0.5], [1.0, 2.0, 3.0]], "float32")
OPERATORS: dict[str, Callable] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "less": lambda a, b: a < b,
    "less or equal": lambda a, b: a <= b,
    "greater": lambda a, b: a > b,
    "greater or equal": lambda a, b: a >= b,
    "power": lambda a, b: abs(a) ** abs(b),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_of_tensors_numbers_and_arrays_equal_numpy(name):
    operator, x, number = OPERATORS[name], data(3), np.float32(2)
    result = value_of(operator(x, data(3, name="b")), x=LEFT, b=RIGHT)
    np.testing.assert_array_equal(result, operator(LEFT, RIGHT))
    for made, expected in (
        (operator(x, 2.0), operator(LEFT, number)),
        (operator(2.0, x), operator(number, LEFT)),
        (operator(number, x), operator(number, LEFT)),
        (operator(RIGHT[0], x), operator(RIGHT[0], LEFT)),
    ):
        np.testing.assert_allclose(value_of(made, x=LEFT), expected, rtol=1e-6)


def test_products_slices_negation_and_absolute_values():
    w = np.arange(6, dtype="float32").reshape(3, 2)
    for tensor, expected in (
        (data(3) @ constant(w), LEFT @ w),
        (data(3)[:, 1:], LEFT[:, 1:]),
        (abs(-data(3)), abs(LEFT)),
    ):
        np.testing.assert_allclose(value_of(tensor, x=LEFT), expected)


@pytest.mark.parametrize("number", [1, 1.5, True, np.float64(2.5), np.int32(3)])
def test_numbers_take_the_dtype_of_the_tensor(number):
    assert (data(3) * number).dtype == float32


@pytest.mark.cases(
    ("call", "problem", "advice"),
    (np.exp, "exp() needs numbers, but a tensor holds no data yet", ": lm.ops.exp."),
    (np.mean, "mean() needs numbers", ": lm.ops.mean."),
    (lambda x: np.clip(x, 0, 1), "clip() needs numbers", ": lm.ops.clip."),
    (lambda x: np.concatenate([x, x]), "concatenate() needs numbers", ": lm.ops.concat."),
    (np.abs, "absolute() needs numbers", ": lm.ops.abs."),
    (np.negative, "negative() needs numbers", ": lm.ops.neg."),
    (np.square, "square() needs numbers", "in lm.ops."),
    (np.add.reduce, "add() needs numbers", ": lm.ops.add."),
    (np.asarray, "array() needs numbers", "in lm.ops."),
    (math.exp, "float() needs numbers", "in lm.ops."),
    (lambda x: bool(x > 0), "a tensor has no truth value: it holds no data yet", "between values."),
    (list, "a tensor cannot be iterated over", "ops.unstack(x, axis) or x[i]."),
)
def test_what_needs_the_numbers_of_a_tensor_is_refused(call, problem, advice):
    error = refused(LaminaError, lambda: call(data(3)))
    assert str(error).startswith("in test_graph.py:")
    assert error.problem.startswith(problem)
    assert error.advice.endswith(advice)


@pytest.mark.cases(
    "compare",
    lambda x: x == 0,
    lambda x: x != 2.5,
    lambda x: x == np.zeros(3, "float32"),
    lambda x: x in [1, 2],
)
def test_comparing_a_tensor_with_numbers_names_the_op(compare):
    assert re.sub(r"py:\d+", "py:N", error_text(LaminaError, lambda: compare(data(3)))) == (
        "in test_graph.py:N: == and != do not compare the elements of a tensor\n"
        "  Use lm.ops.equal(x, y) or lm.ops.not_equal(x, y)."
    )


def test_tensors_are_compared_and_hashed_by_identity():
    x, y = data(3), data(3)
    assert (x == y, x != y, x in (y, None, "x"), x in (y, x)) == (False, True, False, True)
    assert {x: 1, y: 2}[x] == 1


def test_an_open_batch_size_is_no_number():
    x = leaf("x", "input", (BATCH, 3), float32)
    with pytest.raises(LaminaError) as caught:
        x / cast(Any, x.shape[0])
    assert re.sub(r"py:\d+", "py:N", str(caught.value)) == (
        "in test_graph.py:N: the batch size is not known while a network is defined\n"
        "  ops.mean(x, 0) averages over the batch; ops.element_count(x, 0, 'float32') is the batch "
        "size as a tensor."
    )


def test_an_array_cannot_be_changed_by_a_tensor():
    x, array = data(3), np.full(3, 2.0, "float32")
    with pytest.raises(LaminaError) as caught:
        array += x
    assert caught.value.problem.startswith("array += tensor would write numbers")
    assert caught.value.advice == "It makes a tensor: array = array + tensor."
    with pytest.raises(LaminaError, match=r"array = array / tensor"):
        array /= x


def test_a_tensor_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        data(3).shape = (1,)


def test_an_op_remembers_the_line_that_made_it():
    x = data(3)
    y, line = ops.tanh(x), here()
    assert y.origin.source == f"test_graph.py:{line}"


def test_an_error_names_the_op_and_the_line_that_made_it():
    a, b = data(3, name="a"), data(4, name="b")
    with pytest.raises(ShapeError) as caught:
        a + b
    line = caught.traceback[0].lineno + 1
    assert caught.value.where == f"net/2:Add (test_graph.py:{line})"


def test_a_label_changes_the_origin_and_nothing_else():
    x = data(3)
    with labelled(Origin("net/1:Own", "file.py:1")):
        y = ops.tanh(x)
    assert y.origin == Origin("net/1:Own", "file.py:1")
    assert (y.shape, y.dtype) == (x.shape, x.dtype)


def test_a_label_ends_with_its_block_even_after_an_error():
    with pytest.raises(ShapeError), labelled(Origin("net/1:Own")):
        data(3) + data(4)
    assert ops.tanh(data(3)).origin.path == ""


def test_rewriting_with_the_same_operands_keeps_the_tensors():
    x = data(3)
    graph = Graph((x,), (("y", ops.tanh(x * 2.0)),))
    again = rewrite(graph, rebuild)
    assert again == graph


def test_tensors_made_by_a_rule_take_the_origin_of_the_tensor_they_replace():
    x = data(3)
    with labelled(Origin("net/1:Own", "file.py:1")):
        y = ops.tanh(x)
    graph = rewrite(
        Graph((x,), (("y", y),)),
        lambda node, operands: ops.exp(operands[0]) if node.op.name == "tanh" else node,
    )
    assert graph.outputs[0][1].op.name == "exp"
    assert graph.outputs[0][1].origin == y.origin


def test_unused_inputs_belong_to_a_graph():
    x, unused = data(3), data(3, name="unused")
    assert unused in Graph((x, unused), (("y", ops.tanh(x)),)).nodes()


def test_constants_are_equal_if_shape_dtype_and_bytes_are():
    one, same = ConstantValue(np.arange(3)), ConstantValue(np.arange(3))
    assert one == same
    assert hash(one) == hash(same)
    assert one != ConstantValue(np.arange(3).astype("int32"))
    assert one != ConstantValue(np.arange(3)[None])


def test_a_constant_is_a_copy():
    array = np.zeros(3)
    value = ConstantValue(array)
    array[0] = 1
    assert value.array[0] == 0


def source_from(filename: str) -> str:
    """The source of a tensor that code in a file of that name makes."""
    names: dict[str, object] = {"ops": ops, "x": data(3)}
    exec(compile("\n\ny = ops.tanh(x)", filename, "exec"), names)
    made = names["y"]
    assert isinstance(made, Tensor)
    return made.origin.source


def test_code_in_a_folder_named_like_the_package_is_the_users():
    package = Path(ops.__file__).parents[1]
    assert source_from(f"{package}_experiments/train.py") == "train.py:3"


@pytest.mark.parametrize("name", ["<stdin>", "<ipython-input-7-abc>", "<python-input-2>"])
def test_interactive_code_has_source_lines(name):
    assert source_from(name) == f"{name}:3"


def test_generated_code_is_not_the_users():
    assert source_from("<string>").startswith("test_graph.py:")


def record(name: str) -> Op:
    known = OPS["exp"]
    return Op(name, known.infer, known.gradient, known.reference, known.lowering)


def test_no_record_takes_the_name_of_an_op_of_lamina():
    known = OPS["exp"]
    another = record("exp")
    assert OPS["exp"] is known
    assert OPS.own("exp") is known is not another


def test_of_user_records_with_one_name_the_newest_is_found():
    record("squared_in_a_notebook")
    newest = record("squared_in_a_notebook")
    assert OPS["squared_in_a_notebook"] is newest
    assert OPS.own("squared_in_a_notebook") is None
