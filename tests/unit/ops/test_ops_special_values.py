"""Zeros, ties, infinities and NaN: values and gradients equal PyTorch's."""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from lamina import ops
from lamina.base.shapes import BATCH, Array, as_dtype, bool_, float32, float64, int32, int64, uint8
from lamina.graph import Graph, Tensor, constant, evaluate, leaf
from lamina.ops.differentiate import gradients

INF, NAN = math.inf, math.nan
EDGE = [0.0, -0.0, 1.0, -1.0, 0.5, 3.0, -3.0, INF, -INF, NAN, 100.0, -100.0]


def values_and_slopes(
    function: Callable[..., Tensor], *arrays: Array
) -> tuple[Array, tuple[Array, ...]]:
    leaves = [leaf(f"x{n}", "input", a.shape, as_dtype(a.dtype)) for n, a in enumerate(arrays)]
    y = function(*leaves)
    slopes = gradients(y, leaves) if y.dtype.is_float else ()
    graph = Graph(tuple(leaves), (("y", y), *((f"g{n}", g) for n, g in enumerate(slopes))))
    values = evaluate(graph, {f"x{n}": a for n, a in enumerate(arrays)})[0]
    return values["y"], tuple(values[f"g{n}"] for n in range(len(slopes)))


def value(function: Callable[..., Tensor], *arrays: Any) -> Array:
    return values_and_slopes(function, *(np.asarray(a) for a in arrays))[0]


def slopes(function: Callable[..., Tensor], *arrays: Any) -> list[Any]:
    return [g.tolist() for g in values_and_slopes(function, *map(np.asarray, arrays))[1]]


UNARY = [
    "neg", "abs", "exp", "log", "log1p", "expm1", "sqrt", "reciprocal", "sin", "cos", "tanh",
    "erf", "sigmoid", "softplus", "relu", "floor", "ceil", "round", "trunc", "tan", "asin", "acos",
    "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "log2", "log10", "exp2", "erfc", "rsqrt",
    "nan_to_num",
]  # fmt: skip
BINARY = [
    "add", "sub", "mul", "div", "maximum", "minimum", "pow", "atan2", "fmod", "remainder", "hypot",
    "logaddexp", "xlogy", "copysign",
]  # fmt: skip
REDUCTIONS: list[tuple[str, Callable[[Tensor], Tensor], Callable[[Any], Any]]] = [
    ("amax", lambda x: ops.max(x, 1), lambda t: t.amax(1)),
    ("amin", lambda x: ops.min(x, 1), lambda t: t.amin(1)),
    ("logsumexp", lambda x: ops.logsumexp(x, 1), lambda t: t.logsumexp(1)),
    ("prod", lambda x: ops.prod(x, 1), lambda t: t.prod(1)),
    ("softmax", lambda x: ops.softmax(x), lambda t: t.softmax(-1)),
    ("log_softmax", lambda x: ops.log_softmax(x), lambda t: t.log_softmax(-1)),
    ("var", lambda x: ops.variance(x, 1, 1), lambda t: t.var(1)),
    ("std", lambda x: ops.std(x, 1, 1), lambda t: t.std(1)),
    ("cumsum", lambda x: ops.cumsum(x, 1), lambda t: t.cumsum(1)),
    ("cumprod", lambda x: ops.cumprod(x, 1), lambda t: t.cumprod(1)),
    ("cummax", lambda x: ops.cummax(x, 1), lambda t: t.cummax(1)[0]),
    ("cummin", lambda x: ops.cummin(x, -1), lambda t: t.cummin(1)[0]),
]
ROWS = np.array(
    [
        [1.0, 2.0, 2.0, -1.0],
        [0.0, 3.0, 0.0, 2.0],
        [0.0, 3.0, -2.0, 2.0],
        [1e4, -1e4, 1e4, 0.0],
        [5.0, 5.0, 5.0, 5.0],
        [2.0, -INF, 1.0, 0.0],
    ]
)


class Case(NamedTuple):
    """A function in Lamina, torch -> the same in PyTorch, and the operands."""

    ours: Callable[..., Tensor]
    theirs: Callable[[Any], Callable[..., Any]]
    operands: list[tuple[Array, ...]]


def named(name: str, **options: Any) -> Callable[[Any], Callable[..., Any]]:
    path = {"softplus": "nn.functional.", "relu": "nn.functional."}.get(name, "") + name
    return lambda torch: partial(operator.attrgetter(path)(torch), **options)


def _at_edges() -> Iterator[tuple[str, Case]]:
    edge, normal = np.array(EDGE), np.random.default_rng(0).normal
    # PyTorch's softplus is the identity above 20, off by 2e-9; its gradient of |NaN| is 0.
    left_out = {"softplus": edge != 100.0, "abs": ~np.isnan(edge)}
    for name in UNARY:
        kept = left_out.get(name, np.full(edge.shape, True))
        yield name, Case(getattr(ops, name), named(name), [(edge[kept],)])
    for name in BINARY:
        # Elsewhere PyTorch's gradient to the exponent is infinite or NaN at base 0.
        some = [0.0, 1.0, -1.0, 2.0, 0.5, -2.0, INF, NAN]
        some = np.array([0.0, 1.0, 2.0, 0.5, 3.0] if name == "pow" else some)
        pairs = tuple(np.meshgrid(some, some, indexing="ij"))
        yield name, Case(getattr(ops, name), named(name), [pairs])
    for name, ours, theirs in REDUCTIONS:
        # PyTorch's gradient of cumprod divides by the elements.
        rows = [(row[None],) for row in ROWS if name != "cumprod" or np.isfinite(row).all()]
        yield name, Case(ours, lambda _, f=theirs: f, rows)
    values = np.array([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0])
    x, low, high = np.meshgrid(values, values, values)
    limits = [(x, low, high), (x, low[:1, :1]), (edge, edge[::-1].copy(), edge)]
    yield (
        "clip to a tensor above",
        Case(
            lambda x, high: ops.clip(x, None, high),
            lambda torch: lambda x, high: torch.clamp(x, max=high),
            [(x, high)],
        ),
    )
    yield "clip to tensors", Case(ops.clip, named("clamp"), limits)
    for ends in ((-1.0, 0.5), (None, 1.0), (0.0, None)):
        ours = partial(ops.clip, low=ends[0], high=ends[1])
        clamp = {"min": ends[0], "max": ends[1]}
        theirs = named("clamp", **clamp)
        yield f"clip to {ends}", Case(ours, theirs, [(edge,)])
    points = np.array([0.1, -3.0, 1e8])[:, None], np.array([0.7, 2.0, -1.0])[:, None]
    weight = np.array([[-1.0, 0.0, 0.3, 0.5, 0.7, 1.0, 2.0]])
    yield "lerp", Case(ops.lerp, named("lerp"), [(*points, weight)])
    rows = [(np.array(row),) for row in ([0.0, 3, 4], [0.0, 0, 0], [3.0, -4, 1], [INF, 1, 2])]
    for order in (-INF, -2.0, -1.0, -0.5, 0.5, 1.0, 2.0, 3.0, INF):
        theirs = named("linalg.vector_norm", ord=order)
        yield f"norm {order}", Case(partial(ops.norm, order=order), theirs, rows)
    shapes = (((3, 4), (3, 1)), ((1, 4), (3, 1)), ((4,), (3, 1)), ((2, 3, 4), (4,)))
    vectors = [(normal(size=left), normal(size=right)) for left, right in shapes]
    theirs = named("cosine_similarity", dim=-1)
    yield "cosine_similarity", Case(ops.cosine_similarity, theirs, vectors)


CASES = dict(_at_edges())


def gradients_in_torch(torch: Any, y: Any, x: Sequence[Any]) -> Any:
    return torch.autograd.grad(y, x, create_graph=True, materialize_grads=True)


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_at_edges_agree_with_torch(name, torch):
    ours, theirs, operands = CASES[name]
    for arrays in operands:
        tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
        y = theirs(torch)(*tensors)
        expected = [y, *gradients_in_torch(torch, y.sum(), tensors)]
        result, derivatives = values_and_slopes(ours, *arrays)
        for mine, other in zip((result, *derivatives), expected, strict=True):
            np.testing.assert_allclose(mine, other.numpy(force=True), rtol=1e-12, atol=1e-12)
    if name.startswith("norm"):
        assert np.isnan(value(ours, [0.0, NAN, 1.0]))


WHOLE = ("remainder", "fmod", "floor_divide", "pow", "bitwise_and", "bitwise_or", "bitwise_xor")


@pytest.mark.parametrize("name", [*WHOLE, "left_shift", "right_shift"])
def test_integers_agree_with_torch(name, torch):
    theirs = getattr(torch, name if name in WHOLE else f"bitwise_{name}")
    for dtype in ("uint8", "int32", "int64"):
        limits = np.iinfo(dtype)
        some = np.array([1, 2, 3, 7, 13, limits.max, limits.max // 2], dtype)
        if limits.min:
            some = np.concatenate([some, -some, np.array([limits.min], dtype)])
        left, right = (grid.ravel() for grid in np.meshgrid(some, some))
        if name in WHOLE[:3]:
            # The smallest number divided by -1 stops PyTorch.
            kept = (left != limits.min) | (right != -1) if limits.min else left == left
            left, right = left[kept], right[kept]
        expected = theirs(torch.tensor(left), torch.tensor(right)).numpy()
        result = value(getattr(ops, name), left, right)
        np.testing.assert_array_equal(result, expected, err_msg=dtype, strict=True)


@pytest.mark.parametrize("name", ["floor_divide", "isnan", "isinf", "isfinite", "logical_xor"])
def test_values_without_gradients_agree_with_torch(name, torch):
    arrays = (np.array(EDGE),)
    if name in ("floor_divide", "logical_xor"):
        arrays = tuple(grid.ravel() for grid in np.meshgrid(EDGE, EDGE))
    expected = getattr(torch, name)(*map(torch.tensor, arrays)).numpy()
    np.testing.assert_array_equal(value(getattr(ops, name), *arrays), expected)


def test_subgradients():
    at_zero = np.zeros(1)
    assert slopes(ops.relu, at_zero) == [[0.0]]
    assert slopes(ops.abs, at_zero) == [[0.0]]
    assert slopes(ops.sqrt, at_zero) == [[INF]]
    assert slopes(ops.sign, np.array([2.0])) == [[0.0]]
    assert slopes(ops.floor, np.array([2.5])) == [[0.0]]
    assert slopes(ops.floor_divide, np.array([7.5]), np.array([2.0])) == [[0.0], [0.0]]
    assert slopes(lambda x: ops.clip(x, -1.0, 1.0), np.array([-1.0, 1.0, 1.5])) == [[1, 1, 0]]
    assert slopes(ops.hardtanh, np.array([-1.0, 0.5, 1.0, 1.5])) == [[0, 1, 0, 0]]
    assert slopes(ops.maximum, np.array([1.0]), np.array([1.0])) == [[0.5], [0.5]]
    assert slopes(ops.minimum, np.array([1.0]), np.array([1.0])) == [[0.5], [0.5]]
    assert slopes(lambda x: ops.max(x), np.array([1.0, 3.0, 3.0])) == [[0, 0.5, 0.5]]
    assert slopes(lambda x: ops.stop_gradient(x) * x, np.array([3.0])) == [[3.0]]


def test_gradients_of_powers_at_zero():
    base, exponent = np.zeros(4), np.array([0.0, 1.0, 2.0, 3.0])
    assert slopes(ops.pow, base, exponent) == [[0, 1, 0, 0], [0, 0, 0, 0]]

    def second(a, b):
        return gradients(ops.pow(a, b), [a])[0]

    assert slopes(second, base, exponent)[0] == [0, 0, 2, 0]


def test_gradient_of_the_gradient_of_a_product_with_zeros():
    def second(x):
        return gradients(ops.prod(x), [x])[0]

    # The sum over j of the products without i and j.
    assert slopes(second, np.array([0.0, 2.0, 3.0])) == [[5, 3, 2]]
    assert slopes(second, np.array([0.0, 0.0, 3.0])) == [[3, 3, 0]]


def test_sums_of_exponentials_do_not_overflow():
    def logsumexp(*row):
        return float(value(ops.logsumexp, np.array(row)))

    assert logsumexp(-INF, -INF) == -INF
    assert logsumexp(INF, 0.0) == INF
    assert logsumexp(1000.0, 1000.0) == pytest.approx(1000 + math.log(2))
    assert math.isnan(logsumexp(NAN, 0.0))
    assert slopes(ops.logsumexp, np.array([-INF, -INF])) == [[0, 0]]
    assert value(ops.softplus, np.array([1e4, -1e4])).tolist() == [1e4, 0.0]
    assert value(ops.sigmoid, np.array([-1e4, 1e4])).tolist() == [0.0, 1.0]
    assert value(ops.log_softmax, np.array([1e4, 0.0])).tolist() == [0.0, -1e4]


def test_gradient_of_a_sum_of_exponentials_with_infinities():
    """It is the limit: infinite elements share the gradient. With NaN it is NaN."""

    def logsumexp(x):
        return ops.logsumexp(x, 0)

    assert slopes(logsumexp, [1.0, INF, 2.0]) == [[0, 1, 0]]
    assert slopes(logsumexp, [INF, -INF, INF, 0.0]) == [[0.5, 0, 0.5, 0]]
    assert slopes(logsumexp, [-INF, 0.0]) == [[0, 1]]
    for with_nan in ([NAN, 1.0, 2.0], [NAN, INF, 1.0]):
        assert np.isnan(slopes(logsumexp, with_nan)).all()


def test_variance_of_large_numbers_is_exact():
    x = np.array([1e4, 1e4 + 1, 1e4 + 2], np.float32)
    assert value(ops.variance, x) == np.float32(2 / 3)


def test_nan_is_the_largest_and_the_smallest():
    x = np.array([[1.0, NAN, NAN, 3.0], [2.0, 2.0, 1.0, 1.0]])
    assert value(lambda x: ops.argmax(x, 1), x).tolist() == [1, 0]
    assert value(lambda x: ops.argmin(x, -1), x).tolist() == [1, 2]
    assert np.isnan(value(lambda x: ops.max(x, 1), x)).tolist() == [True, False]
    assert np.isnan(value(ops.relu, np.array([NAN]))).all()
    assert np.isnan(value(lambda x: ops.clip(x, 0.0, 1.0), np.array([NAN]))).all()
    assert np.isnan(value(ops.hardtanh, np.array([NAN]))).all()


def test_keepdims():
    x = leaf("x", "input", (2, 3, 4), float32)
    for reduction in (ops.sum, ops.mean, ops.max, ops.prod, ops.variance, ops.logsumexp):
        assert reduction(x, (0, -1)).shape == (3,)
        assert reduction(x, (0, -1), keepdims=True).shape == (1, 3, 1)
        assert reduction(x).shape == ()
    assert ops.argmax(x, 1, keepdims=True).shape == (2, 1, 4)
    assert ops.any(x, 1).dtype == bool_


def tensor(dtype: Any) -> Tensor:
    return leaf("x", "input", (3,), dtype)


def test_dtypes_of_results():
    small, plain, wide = tensor(uint8), tensor(int32), tensor(int64)
    single, double, truth = tensor(float32), tensor(float64), tensor(bool_)
    results: dict[Any, list[Tensor]] = {
        float64: [double * 2.5, 1 - double, ops.exp(double)],
        float32: [
            *(single + 1, plain + 1.5, truth * 0.5, wide + single, plain / 2, plain**-1),
            *(plain // 2.0, ops.clip(plain, 0, single), small**-1, truth ** np.int64(-2)),
            *(ops.atan2(plain, single), single ** np.float64(2), single + np.float64(2)),
            *(single + np.ones(3, np.float32), ops.exp(plain), ops.mean(plain), constant(1.5)),
            *(ops.where(truth, single, 0), ops.one_hot(small, 4), ops.maximum(1, 2.5)),
        ],
        int64: [
            *(truth + 1, plain**wide, truth**truth, wide ^ plain, ops.clip(plain, wide)),
            *(ops.cumprod(small, 0), ops.einsum("i->", small), ops.einsum("i->", truth)),
            *(ops.sum(small), ops.sum(truth), ops.argmax(single, 0), ops.cumsum(truth, 0)),
        ],
        int32: [
            *(plain + 1, small + plain, plain**2, plain**0, plain % small, plain << 2),
            ops.ceil(plain),
        ],
        uint8: [
            *(2**small, truth | small, ~small, ops.cummax(small, 0)),
            ops.einsum("i,i->", small, small),
        ],
        bool_: [
            *(single > 0, truth & truth, ops.cummax(truth, 0), ops.tril(truth[None])),
            *(ops.triu(truth[None]), ops.abs(truth), ops.floor(truth), ops.isnan(plain)),
            ops.einsum("i...->...i", truth[None]),
        ],
    }
    for dtype, tensors in results.items():
        assert {result.dtype for result in tensors} == {dtype}


def test_operators_are_those_of_python():
    x, y = np.array([7, -7, 100, 0]), np.array([3, 2, -9, 5])
    for function in (operator.mod, operator.floordiv, operator.and_, operator.or_, operator.xor):
        expected = function(x, y)
        assert value(function, x, y).tolist() == expected.tolist()
        # A number or an array comes first.
        assert value(lambda y, f=function: f(x, y), y).tolist() == expected.tolist()
        assert value(lambda y, f=function: f(7, y), y).tolist() == function(7, y).tolist()
    for exponent in (1, 2, 3, 5, 10):
        powers = value(lambda y, e=exponent: y**e, y)
        np.testing.assert_array_equal(powers, y**exponent, strict=True)
    assert value(lambda x: x << 2, x).tolist() == (x << 2).tolist()
    assert value(lambda x: x >> 1, x).tolist() == (x >> 1).tolist()
    assert value(lambda y: 2 << y, np.abs(y)).tolist() == (2 << np.abs(y)).tolist()
    assert value(lambda y: 999 >> y, np.abs(y)).tolist() == (999 >> np.abs(y)).tolist()
    assert value(lambda x: ~x, x).tolist() == (~x).tolist()
    assert value(lambda x: ~(x > 0) & (x < 0) ^ (x < -9), x).tolist() == (x < 0).tolist()


def test_bits_are_inverted_in_every_integer_type():
    for dtype in ("uint8", "int8", "uint16", "int16", "int32", "int64"):
        x = np.array([0, 1, 100, np.iinfo(dtype).max], dtype)
        np.testing.assert_array_equal(value(ops.bitwise_not, x), ~x, strict=True)


def test_divisions_of_integers_by_zero_are_zero():
    x, zero = np.array([7, -7, 0]), np.zeros(3, int)
    for function in (ops.remainder, ops.fmod, ops.floor_divide):
        assert value(function, x, zero).tolist() == [0, 0, 0]


def test_remainders_and_whole_quotients_of_floats_fit_together():
    x, y = np.array([5.5, -5.5, 1e20, -0.0]), np.array([2.0, 2.0, -3.0, 5.0])
    assert value(ops.remainder, x, y).tolist() == [1.5, 0.5, math.fmod(1e20, 3.0) - 3.0, 0.0]
    assert value(ops.fmod, x, y).tolist() == [1.5, -1.5, math.fmod(1e20, 3.0), 0.0]
    assert value(ops.floor_divide, x, y).tolist() == [2.0, -3.0, 1e20 // -3.0, 0.0]


def test_bounds_and_fills_near_the_limits_of_int64_are_exact():
    x = np.array([[0, 2**63 - 1, 2**53 + 1, -(2**63)]])
    for number in (2**53 + 1, 2**63 - 2, 1 - 2**63):
        full = np.full((2, 2), number)
        pairs: list[tuple[Array, Array]] = [
            (value(lambda x, n=number: ops.clip(x, n), x), np.maximum(x, number)),
            (value(lambda x, n=number: ops.clip(x, high=n), x), np.minimum(x, number)),
            (
                value(lambda x, n=number: ops.pad(x, 1, value=n), x),
                np.pad(x, 1, constant_values=number),
            ),
            (value(lambda x, n=number: ops.full((2, 2), n, "int64") + ops.sum(x) * 0, x), full),
            (value(lambda x, n=number: ops.where(x > n, n, x), x), np.where(x > number, number, x)),
        ]
        for result, expected in pairs:
            np.testing.assert_array_equal(result, expected, strict=True)


def test_element_count_waits_for_the_batch():
    x = leaf("x", "input", (BATCH, 3), float32)
    assert ops.element_count(x, 1, float32).op.name == "constant"
    assert ops.element_count(x, 0, float32).op.name == "element_count"
