"""The methods of tensors are the functions of `lamina.ops`."""

import ast
import inspect
from functools import partial
from typing import Any

import numpy as np
import pytest
from error_texts import error_text, refused
from foreign_names import TABLES

import lamina as lm
from lamina.errors import DefinitionError, ShapeError
from lamina.graph import LEAF, methods

SOURCE = ast.parse(inspect.getsource(methods))
(CLASS,) = (
    node for node in SOURCE.body if isinstance(node, ast.ClassDef) and node.name == "Methods"
)
EVERY = {node.name: node for node in CLASS.body if isinstance(node, ast.FunctionDef)}
DECLARED = {name: node for name, node in EVERY.items() if not name.startswith("__")}
NAMES = {"astype": "cast", "var": "variance"}  # those that differ from the function's
NEEDED: dict[str, tuple[Any, ...]] = {
    "argmax": (1,),
    "argmin": (1,),
    "astype": ("float64",),
    "clip": (0.0, 1.0),
    "cumsum": (1,),
    "expand_dims": (1,),
    "reshape": ((-1, 4),),
}


def described(tensor: lm.Tensor) -> tuple[object, ...]:
    operands = tuple(one if one.op is LEAF else described(one) for one in tensor.operands)
    attributes = repr(tensor.attributes)
    return tensor.op, operands, attributes, tensor.shape, tensor.dtype


def test_every_method_is_declared_for_type_checkers():
    made = {name for name, one in vars(methods.Methods).items() if type(one).__name__ == "_Method"}
    alike = [node.targets for node in CLASS.body if isinstance(node, ast.Assign)]
    assert made == EVERY.keys() | {ast.unparse(one) for row in alike for one in row} - {"__slots__"}


@pytest.mark.parametrize("name", DECLARED)
def test_a_method_is_declared_with_the_parameters_of_its_function(name):
    function = inspect.signature(getattr(lm.ops, NAMES.get(name, name)))
    parameters = list(function.parameters.values())[1:]
    declared = DECLARED[name].args
    assert [arg.arg for arg in declared.args[1:]] == [parameter.name for parameter in parameters]
    values = [parameter.default for parameter in parameters]
    defaults = [value for value in values if value is not inspect.Parameter.empty]
    assert [ast.literal_eval(default) for default in declared.defaults] == defaults


@pytest.mark.parametrize("name", DECLARED)
def test_a_method_makes_the_tensor_of_its_function(name):
    x = lm.Input(4) > 0 if name in ("all", "any") else lm.Input(4)
    values: tuple[Any, ...] = NEEDED.get(name, ())
    if name in ("matmul", "dot"):
        values = (lm.ops.constant([1.0, 2.0, 3.0, 4.0]),)
    result = getattr(x, name)(*values)
    assert described(result) == described(getattr(lm.ops, NAMES.get(name, name))(x, *values))


def test_axes_are_counted_and_the_last_two_exchanged():
    x = lm.Input(3, 4)
    assert x.ndim == x.rank == 3
    assert x.mT.shape == (x.shape[0], 4, 3)


def test_mT_of_fewer_than_two_axes_is_refused():
    with pytest.raises(ShapeError) as caught:
        _ = lm.Input().mT
    assert "mT exchanges the last two axes, and there are fewer" in str(caught.value)
    assert "  expected  two axes or more\n  found     f32[batch]" in str(caught.value)
    assert "test_tensor_methods.py" in caught.value.where


def test_T_reverses_all_axes_as_in_numpy():
    x = lm.Input(3, 4)
    assert x.T.shape == (4, 3, x.shape[0])
    assert described(x.T) == described(lm.ops.transpose(x))
    array = np.arange(6.0, dtype="float32").reshape(2, 3)
    y = lm.Input(3)
    product = lm.compile(y, y.T @ y)
    np.testing.assert_array_equal(product(array)[0], array.T @ array)


def test_standard_deviation_and_variance_are_those_of_numpy():
    array = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
    x = lm.Input(3)
    outputs = [x.std(1), x.std(0, 1, True), x.var(1), x.var(0, correction=1), x.std()]
    expected = [array.std(1), array.std(0, ddof=1, keepdims=True), array.var(1)]
    expected += [array.var(0, ddof=1), array.std()]
    for result, reference in zip(lm.compile(x, outputs)(array), expected, strict=True):
        np.testing.assert_allclose(result, reference, rtol=1e-6)


@pytest.mark.cases(
    ("call", "advice"),
    (lambda x: x.sum(dim=1), "Here it is called axes."),
    (lambda x: x.mean(axis=1), "Here it is called axes."),
    (lambda x: x.softmax(dim=1), "Here it is called axis."),
    (lambda x: x.max(keepdim=True), "Here it is called keepdims."),
    (lambda x: x.clip(min=0.0), "Here it is called low."),
    (lambda x: x.transpose(1, 2), "Give all axes as one tuple: x.transpose((0, 2, 1))."),
    (lambda x: x.reshape(4, 3), "Give the shape as one tuple: x.reshape((2, 3))."),
)
def test_options_of_other_frameworks_get_advice(call, advice):
    error = refused(DefinitionError, lambda: call(lm.Input(3, 4)))
    assert error.advice == advice


@pytest.mark.cases(
    ("name", "text"),
    ("item", "A tensor is symbolic and holds no numbers; model.predict(inputs) computes them."),
    ("numpy", "A tensor is symbolic and holds no numbers; model.predict(inputs) computes them."),
    ("backward", "Here it is lm.gradients(y, [x])."),
    ("detach", "Here it is lm.ops.stop_gradient(x)."),
    ("view", "Here it is x.reshape(shape)."),
    ("round", "Here it is lm.ops.round(x)."),
    ("sort", "Here it is lm.ops.sort(x)."),
    ("topk", "Here it is lm.ops.top_k(x, count)."),
    ("add", "Here it is lm.ops.add(x, y)."),
    ("isnan", "Here it is lm.ops.isnan(x)."),
    ("tril", "Here it is lm.ops.tril(x)."),
    ("gather", "Here it is lm.ops.gather(x, indices, axis)."),
    ("masked_fill", "Here it is lm.ops.masked_fill(x, mask, value)."),
    ("chunk", "Here it is lm.ops.chunk(x, count)."),
    ("floor", "Here it is lm.ops.floor(x)."),
    ("erf", "Here it is lm.ops.erf(x)."),
    ("concat", "Here it is lm.ops.concat(tensors, axis)."),
    ("multiply", "Here it is lm.ops.mul(x, y)."),
    ("t", "x.transpose(axes), with all axes; x.mT exchanges the last two, x.T reverses all."),
)
def test_methods_that_a_symbolic_tensor_lacks_say_what_to_write(name, text):
    with pytest.raises(AttributeError) as error:
        getattr(lm.Input(3), name)
    assert str(error.value) == f"'Tensor' object has no attribute {name!r}. {text}"


def test_every_function_of_tensors_is_named_where_a_method_lacks():
    x = lm.Input(3)
    for name in dir(lm.ops):
        function = getattr(lm.ops, name)
        if name[0] == "_" or not inspect.isfunction(function) or hasattr(x, name):
            continue
        text = error_text(AttributeError, partial(getattr, x, name))
        assert f"lm.ops.{name}(" in text or name in TABLES["Tensor"]


def test_round_rounds_a_tensor():
    x = lm.Input(3)
    array = np.array([[0.5, 1.5, -1.2]], np.float32)
    (found,) = lm.compile([x], [round(x)])(array)
    assert found.tolist() == [[0.0, 2.0, -1.0]]
