"""Arguments of functions of `lamina.ops`: a right result or one clear error, for every argument.

Each public function has a right call, made from its annotations. Each of its arguments is replaced
by wrong values, one at a time.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from error_texts import error_text
from harness import run_program

import lamina as lm
from lamina import ops
from lamina.base.shapes import Array, as_dtype, size_of, static
from lamina.compiler.pipeline import compile_graph
from lamina.engines.engine import Engine
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.errors import DataError, DTypeError, InternalError, LaminaError
from lamina.graph import Graph, Tensor, evaluate, leaf

pytestmark = pytest.mark.each_case

X = leaf("x", "input", (2, 3, 4), as_dtype("float64"))
IMAGES = leaf("images", "input", (2, 2, 5, 5), as_dtype("float64"))
WEIGHT = leaf("weight", "input", (3, 2, 2, 2), as_dtype("float64"))
WHOLE = leaf("whole", "input", (2, 3, 4), as_dtype("int64"))
ROW = leaf("row", "input", (3,), as_dtype("float64"))
SINGLE = leaf("single", "input", (2, 3), as_dtype("float32"))
MATRICES = leaf("matrices", "input", (2, 3, 3), as_dtype("float64"))
PAIRS = leaf("pairs", "input", (2, 3, 2), as_dtype("float64"))
OUTPUTS = leaf("y", "input", (2, 3, 5, 5), as_dtype("float64"))
COLUMNS = leaf("z", "input", (4, 2), as_dtype("float64"))
LEAVES = (PAIRS, X, IMAGES, WEIGHT, WHOLE, ROW, SINGLE, MATRICES, OUTPUTS, COLUMNS)
WINDOWS = [ops.Window(2), ops.Window(2, 2)]


def step(states: Any, elements: Any, constants: Any) -> Any:
    return [state + elements[0] for state in states], [elements[0] * 2]


# The usual arguments by their name; tensors are X, and flags are set.
USUAL = {"axis": 1, "axes": (0, 2), "step": 4, "stream": 5, "dtype": "float32", "offset": 1}
_MATRICES, _SYSTEM = {"x": MATRICES}, {"matrix": MATRICES, "right": MATRICES}
_WHOLE = {"left": WHOLE, "right": WHOLE}
_ROWS = {"left": ROW, "right": ROW}
_KEYED = {"shape": (2, 3), "seed": 3, "step": 4}
_CONV = {"strides": (1, 1), "padding": ((1, 0), (0, 1)), "dilations": (1, 1), "groups": 1}
_WINDOWED = {"x": IMAGES, "along": WINDOWS}
_SCALES = {"x": PAIRS, "norm": "ortho"}
# What else functions are called with.
UNUSUAL: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), _WHOLE),
    **dict.fromkeys(("left_shift", "right_shift"), _WHOLE),
    **dict.fromkeys(("cholesky", "det", "inverse", "slogdet"), _MATRICES),
    **dict.fromkeys(("dot", "outer"), _ROWS),
    **dict.fromkeys(("uniform", "normal"), _KEYED),
    **dict.fromkeys(("window_argmax", "window_max", "window_sum", "unfold"), _WINDOWED),
    **{name: {"tensors": [X, X]} for name in ("concat", "stack")},
    **{name: {"correction": 1} for name in ("std", "variance")},
    **{name: {"low": -0.5, "high": 0.5} for name in ("clip", "hardtanh")},
    "affine_grid": {"matrices": MATRICES[:, :2], "extents": (2, 3)},
    "arange": {"n": 5},
    "attention": {
        **dict.fromkeys(("queries", "keys", "values"), IMAGES),
        "mask": None,
        "scale": 0.5,
        "factors": None,
        "blocks": 2,
        "bias": None,
    },
    "bernoulli": {"p": 0.5, **_KEYED},
    "bincount": {"x": WHOLE, "size": 5},
    "bitwise_not": {"x": WHOLE},
    "broadcast_to": {"x": ROW, "shape": (2, 3)},
    "cast": {"dtype": "int32"},
    "cdist": {"order": 1.0},
    "chunk": {"count": 2, "axis": 2},
    "constant": {"value": 2.5},
    "contract": {"left": ("a", "b", "c"), "right": ("a", "b", "c"), "output": ("a",)},
    "conv": {"x": IMAGES, "weight": WEIGHT, **_CONV},
    "conv_transpose": {"y": OUTPUTS, "weight": WEIGHT, "extents": (5, 5), **_CONV},
    "einsum": {"spec": "abc->ca"},
    "element_count": {"axes": (0, 1), "dtype": "int64"},
    "eye": {"rows": 2, "columns": 3},
    "fft": _SCALES,
    "fold": {"y": ops.unfold(IMAGES, WINDOWS), "along": WINDOWS, "extents": (5, 5)},
    "full": {"shape": (2, 3), "value": 1.5},
    "gather": {"indices": np.array([[[0, 2]]])},
    "getitem": {"key": (0, slice(1, 3))},
    "grid_sample": {"x": IMAGES, "grid": IMAGES[:, :, :, :2]},
    "ifft": {"x": PAIRS, "norm": "forward"},
    "irfft": {"count": 5, **_SCALES},
    "lerp": {"weight": 0.5},
    "linspace": {"start": 0.5, "stop": 2.0, "count": 4},
    "masked_fill": {"mask": np.ones((3, 4), bool), "value": 2.5},
    "matmul": {"right": COLUMNS},
    "meshgrid": {"tensors": [ROW, ROW]},
    "moveaxis": {"source": 0, "destination": 2},
    "multiply_add": {"added": 0.5},
    "nan_to_num": {"nan": 1.0, "posinf": 2.0, "neginf": -2.0},
    "one_hot": {"indices": WHOLE, "depth": 3, "dtype": "int32"},
    "pad": {"widths": [0, 1, (1, 2)], "value": 1.5},
    "pad_with": {"widths": [0, 1, (1, 2)], "value": 1.5},
    "polygamma": {"order": 1},
    "recurrence": {
        "step": step,
        "initial": [ROW],
        "sequences": [X[0, :, :3]],
        "constants": [],
        "truncate": 2,
    },
    "repeat": {"counts": 2},
    "reshape": {"shape": (6, -1)},
    "rfft": {"norm": "forward"},
    "roll": {"shifts": 2, "axes": 1},
    "round_to_tf32": {"x": SINGLE},
    "rounded": {"to": "bfloat16"},
    "scatter": {"indices": np.array([[[0, 2]]]), "values": 1.5},
    "scatter_add": {"indices": np.array([0, 2, 0]), "size": 3},
    "scatter_along_axis": {"indices": WHOLE, "size": 3},
    "solve": _SYSTEM,
    "solve_triangular": {**_SYSTEM, "unit_diagonal": False},
    "split": {"sizes": 2, "axis": 2},
    "squeeze": {"x": X[:1], "axes": 0},
    "sum_to": {"shape": (3, 1)},
    "swapaxes": {"first": 0, "second": 2},
    "take": {"indices": [0, 2]},
    "take_along_axis": {"indices": WHOLE},
    "tile": {"counts": (2, 1, 3)},
    "top_k": {"count": 2},
    "transpose": {"axes": (2, 0, 1)},
    "triu": {"offset": -1},
    "where": {"b": 2.5},
}


def public_functions() -> dict[str, Callable[..., Any]]:
    return {
        name: getattr(ops, name)
        for name in dir(ops)
        if inspect.isfunction(getattr(ops, name)) and not name.startswith("_")
    }


def right_call(name: str) -> dict[str, Any]:
    """A right call of a function, from the annotations of its parameters."""
    values: dict[str, Any] = {}
    for parameter in inspect.signature(public_functions()[name]).parameters.values():
        annotation, label = str(parameter.annotation), parameter.name
        if label in UNUSUAL.get(name, ()):
            values[label] = UNUSUAL[name][label]
        elif annotation == "bool":
            values[label] = True
        elif "Tensor" in annotation and label not in ("after", "sources"):
            values[label] = X
        elif label in USUAL or parameter.default is not parameter.empty:
            values[label] = USUAL.get(label, parameter.default)
    return values


CALLS = {name: right_call(name) for name in public_functions()}
WRONG: tuple[Any, ...] = (
    *(None, "a", -1, 0, 1.5, math.nan, (), (1.0,), [1, 2], (-2, 3), object(), np.zeros(3)),
    *(2**70, True, {"a": 1}, [[0]], lm.ReLU(), 1j, np.array("a"), slice(1.5), X, float("inf")),
    np.int64(1),
)


def called(function: Callable[..., Any], values: Mapping[str, Any]) -> list[Tensor]:
    """The tensors that a function gives."""
    positional: list[Any] = []
    names: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in values:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_OR_KEYWORD):
                positional.append(values[name])
            else:
                names[name] = values[name]
    return list(_tensors(function(*positional, **names)))


def _tensors(found: Any) -> Iterator[Tensor]:
    if isinstance(found, Tensor):
        yield found
    else:
        for one in found:
            yield from _tensors(one)


def feeds() -> dict[str, Array]:
    generator = np.random.default_rng(0)
    arrays: dict[str, Array] = {}
    for tensor in LEAVES:
        array = generator.uniform(0.1, 2.0, static(tensor.shape))
        arrays[tensor.attributes["name"]] = array.astype(tensor.dtype.numpy)
    return arrays


def test_every_function_has_a_right_call():
    """Functions that do not take X, and those with other parameters, are in UNUSUAL."""
    for name, function in public_functions().items():
        left_out = set(inspect.signature(function).parameters) - set(CALLS[name])
        assert left_out <= {"after", "sources"}, name
        assert UNUSUAL.get(name, {}).keys() <= CALLS[name].keys(), name
        called(function, CALLS[name])


def with_wrong_values(name: str, parameter: str) -> list[Tensor]:
    """The results of calls with all wrong values of a parameter that are not refused."""
    results: list[Tensor] = []
    for wrong in WRONG:
        try:
            results += called(public_functions()[name], {**CALLS[name], parameter: wrong})
        except InternalError:
            raise
        except LaminaError as error:
            if "test_ops_arguments.py:" not in error.where:
                raise AssertionError(f"{parameter}={wrong!r}: {error}") from error
    return results


def test_wrong_values_of_each_parameter_are_refused_clearly():
    """Of one function with the parameter; wider runs have all."""
    functions = {parameter: name for name, call in CALLS.items() for parameter in call}
    for parameter, name in functions.items():
        with_wrong_values(name, parameter)


@pytest.mark.sampled
@pytest.mark.parametrize("name", CALLS)
def test_wrong_values_are_refused_or_agree_with_the_oracle(name):
    results = called(public_functions()[name], CALLS[name])
    for parameter in CALLS[name]:
        results += with_wrong_values(name, parameter)
    small = [x for x in results if size_of(static(x.shape)) < 10_000]
    compare(small, InterpreterEngine(poison=True))


def compare(tensors: list[Tensor], engine: Engine) -> None:
    """Compares the results of an engine with the references."""
    inputs = feeds()
    outputs = tuple((f"y{n}", tensor) for n, tensor in enumerate(tensors))
    graph = Graph((), outputs)
    used = tuple(node for node in graph.nodes() if node.op.name == "leaf")
    graph = Graph(used, outputs)
    with np.errstate(all="ignore"):
        expected, _ = evaluate(graph, inputs)
        program = compile_graph(graph, batch=1, name="test", target=engine.target)
        computed, _ = run_program(program, engine, inputs)
        for output, value in expected.items():
            np.testing.assert_allclose(computed[output], value, 1e-6, 1e-6, err_msg=output)


# Indices by data into x of shape (batch, 4).
INDEXING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "take": lambda x, i: ops.take(x, i[:, 0], 1),
    "take_along_axis": lambda x, i: ops.take_along_axis(x, i, 1),
    "scatter_add": lambda x, i: ops.scatter_add(x[:, 0], i[:, 0], 4),
    "scatter_along_axis": lambda x, i: ops.scatter_along_axis(x[:, :1], i, 4, 1),
}


@pytest.mark.parametrize("wrong", [-1, 4])
@pytest.mark.parametrize("name", INDEXING)
def test_indices_outside_are_refused_when_data_arrives(name, wrong):
    x, indices = lm.Input(4), lm.Input(1, dtype="int64")
    function = lm.compile([x, indices], INDEXING[name](x, indices), "interpreter")
    values = np.arange(8, dtype="float32").reshape(2, 4)
    function(values, np.array([[0], [3]]))
    with pytest.raises(DataError, match=f"found     {wrong} at example 1 of input 1"):
        function(values, np.array([[0], [wrong]]))


def test_one_number_stands_for_one_axis_or_for_all_of_them():
    assert ops.reshape(X, 24).shape == (24,)
    assert ops.reshape(X, -1).shape == (24,)
    assert ops.full(3, 1).shape == ops.broadcast_to(ROW, 3).shape == (3,)
    assert ops.uniform(3, 1, 2, 3).shape == (3,)
    assert ops.transpose(ROW, 0) is ROW
    assert ops.pad(X, 1).shape == (4, 5, 6)
    by_number = ops.conv(IMAGES, WEIGHT, 1, 1, 1)
    by_pair = ops.conv(IMAGES, WEIGHT, (1, 1), ((1, 1), (1, 1)), (1, 1))
    assert (by_number.shape, by_number.attributes) == (by_pair.shape, by_pair.attributes)
    along = ops.window_sum(ROW, ops.Window(2))
    assert along.shape == (2,)


def test_numbers_of_numpy_count_as_whole_numbers():
    i64, i32 = np.int64(1), np.int32(2)
    assert ops.sum(X, i64).shape == (2, 4)
    assert ops.argmax(X, i64, keepdims=np.bool_(True)).shape == (2, 1, 4)
    assert ops.reshape(X, (i32, np.int64(-1))).shape == (2, 12)
    assert ops.transpose(X, np.array([2, 0, 1])).shape == (4, 2, 3)
    assert ops.one_hot(WHOLE, i32).shape == (2, 3, 4, 2)
    assert [x.shape for x in ops.split(X, [i64, i32], 1)] == [(2, 1, 4), (2, 2, 4)]
    attributes = [
        *(ops.cumsum(X, i64).attributes["axis"], ops.arange(i32).attributes["n"]),
        *ops.reshape(X, (i32, np.int64(12))).attributes["shape"],
        *ops.Window(i32, i64),
    ]
    assert all(type(value) in (int, bool) for value in attributes)


def test_tensors_of_other_libraries_are_constants():
    class Foreign:
        def __array__(self, *_, **__):
            return np.arange(4.0)

    class Elsewhere:
        def __array__(self, *_, **__):
            raise TypeError("can't convert device tensor")

    compare([ops.mul(X, Foreign())], InterpreterEngine())
    assert "can't convert device tensor" in error_text(DTypeError, lambda: ops.mul(X, Elsewhere()))
    assert "found     uint64" in error_text(DTypeError, lambda: ops.exp(np.zeros(2, "uint64")))


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_product_with_a_number_that_is_known_compiles(shape, engine):
    labels = ("m", "k") if shape else ("m",)
    number = ops.constant(np.full(shape, 2.5))
    left = ops.reshape(ROW, (3, *shape)) * 2
    results = [
        ops.contract(left, number, labels, labels[1:], ("m",)),
        ops.contract(number, left, labels[1:], labels, labels),
    ]
    compare(results, engine)


# Conversion to integers ---------------------------------------------------------------------------

INTEGERS = {"uint8": (0, 255), "int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}


def hard_floats(dtype: str, low: int, high: int) -> Array:
    """Floats within, at and beyond the range of a type; enough for vectors and a remainder."""
    limits = [float(low), float(high), float(high) + 1.0]
    near = [np.nextafter(np.dtype(dtype).type(x), d) for x in limits for d in (-np.inf, np.inf)]
    strange = [0.0, -0.0, 0.5, -0.5, 0.99, -0.99, 1.5, -1.5, 254.9, 255.5, 1e20, -1e20, 3e38]
    strange += [math.nan, math.inf, -math.inf, *limits, *near]
    return np.array(strange * 3, dtype)


def truncated_and_clamped(value: float, low: int, high: int) -> int:
    if math.isfinite(value):
        return min(max(int(value), low), high)
    return 0 if math.isnan(value) else high if value > 0 else low


@pytest.mark.parametrize("source", ["float32", "float64"])
@pytest.mark.parametrize("target", INTEGERS)
def test_floats_become_the_nearest_integer_of_the_type_towards_zero(source, target, engine):
    low, high = INTEGERS[target]
    values = hard_floats(source, low, high)
    expected = np.array([truncated_and_clamped(float(v), low, high) for v in values], target)
    x = leaf("values", "input", values.shape, as_dtype(source))
    # Of data, of constants that are folded, and of a number.
    folded = [ops.cast(ops.constant(values[n : n + 7]), target) for n in range(3)]
    tensors = [ops.cast(x, target), *folded, ops.cast(1e20, target), ops.cast(math.nan, target)]
    graph = Graph((x,), tuple((f"y{n}", tensor) for n, tensor in enumerate(tensors)))
    references = [expected, *(expected[n : n + 7] for n in range(3)), np.array(high), np.array(0)]
    oracle, _ = evaluate(graph, {"values": values})
    program = compile_graph(graph, batch=1, name="test", target=engine.target)
    outputs, _ = run_program(program, engine, {"values": values})
    for number, value in enumerate(references):
        np.testing.assert_array_equal(oracle[f"y{number}"], value)
        np.testing.assert_array_equal(outputs[f"y{number}"], value)
