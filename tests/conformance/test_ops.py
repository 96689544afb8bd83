"""Every op on the engine under test: alone, differentiated, fused with others, and on views.

Generated from the samples of `lamina.ops.ALL`. The compiled program is compared with
`graph.evaluate`, within the tolerances that `harness` states.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from _pytest.mark import ParameterSet
from harness import CASES, DIFFERENTIABLE, Leaves, check, values_of

from lamina import ops
from lamina.base.shapes import Array, DType, bfloat16, float16, float32, float64
from lamina.engines.engine import Engine
from lamina.graph import Op, Sample, Tensor, apply
from lamina.ops.differentiate import gradients
from lamina.ops.lowering_rules import Elementwise

WITH_OPERANDS = [case for case in CASES if case.values[1].shapes]
DTYPES = pytest.mark.parametrize("dtype", [float32, float64], ids=str)


@DTYPES
@pytest.mark.parametrize(("op", "sample"), CASES)
def test_op_equals_its_reference(op: Op, sample: Sample, dtype: DType, engine: Engine) -> None:
    leaves = Leaves()
    operands = [leaves.add(array) for array in values_of(sample, dtype)]
    result = apply(op, *operands, **sample.attributes)
    check(leaves.graph([result]), engine, leaves.feeds)


@DTYPES
@pytest.mark.parametrize(("op", "sample"), DIFFERENTIABLE)
def test_gradient_equals_its_evaluation(
    op: Op, sample: Sample, dtype: DType, engine: Engine
) -> None:
    leaves = Leaves()
    operands = [leaves.add(array) for array in values_of(sample, dtype)]
    result = apply(op, *operands, **sample.attributes)
    found = weighted_gradients(leaves, operands, result)
    check(leaves.graph(found), engine, leaves.feeds)


def weighted_gradients(leaves: Leaves, operands: list[Tensor], result: Tensor) -> list[Tensor]:
    """The gradients of a weighted sum of the result."""
    shape = tuple(dim for dim in result.shape if isinstance(dim, int))
    weights = np.random.default_rng(1).uniform(0.5, 1.5, shape)
    weighted = result * leaves.add(np.asarray(weights, result.dtype.numpy))
    floats = [x for x in operands if x.dtype.is_float]
    return list(gradients(ops.sum(weighted), floats))


# Between other ops --------------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "sample"), WITH_OPERANDS)
def test_op_between_elementwise_ops(op: Op, sample: Sample, engine: Engine) -> None:
    leaves = Leaves()
    operands = [neutral(leaves, leaves.add(array)) for array in values_of(sample, float32)]
    result = apply(op, *operands, **sample.attributes)
    check(leaves.graph([followed(result)]), engine, leaves.feeds)


@pytest.mark.parametrize(("op", "sample"), WITH_OPERANDS)
def test_op_with_several_users(op: Op, sample: Sample, engine: Engine) -> None:
    leaves = Leaves()
    operands = [neutral(leaves, leaves.add(array)) for array in values_of(sample, float32)]
    result = apply(op, *operands, **sample.attributes)
    outputs = [followed(result), result, ops.sum(followed(result)), *operands]
    check(leaves.graph(outputs), engine, leaves.feeds)


@pytest.mark.parametrize(("op", "sample"), DIFFERENTIABLE)
def test_gradient_between_elementwise_ops(op: Op, sample: Sample, engine: Engine) -> None:
    leaves = Leaves()
    inputs = [leaves.add(array) for array in values_of(sample, float64)]
    result = apply(op, *(neutral(leaves, x) for x in inputs), **sample.attributes)
    result = followed(result)
    found = weighted_gradients(leaves, inputs, result)
    check(leaves.graph([result, *found]), engine, leaves.feeds)


def neutral(leaves: Leaves, x: Tensor) -> Tensor:
    """The same values, after arithmetic that the compiler cannot simplify."""
    shape = (1,) * x.rank
    if x.dtype.kind == "bool":
        return ops.logical_and(x, leaves.add(np.ones(shape, bool)))
    if x.dtype.kind == "int":
        return ops.add(x, leaves.add(np.zeros(shape, x.dtype.numpy)))
    return x * leaves.add(np.ones(shape, x.dtype.numpy))


def followed(result: Tensor) -> Tensor:
    """An elementwise function of the result."""
    if result.dtype.kind == "bool":
        return ops.where(result, 2.5, -1.5)
    return result * 3 - result if result.dtype.kind == "int" else ops.neg(result * 0.5 - 0.25)


# On views -----------------------------------------------------------------------------------------

# (leaves, values of an operand, sample) -> a tensor with these values: a movement of a new leaf.
View = Callable[[Leaves, Array, Sample], Tensor]


def _reshaped(leaves: Leaves, array: Array, _: Sample) -> Tensor:
    return ops.reshape(leaves.add(array.reshape(-1)), array.shape)


def _transposed(leaves: Leaves, array: Array, _: Sample) -> Tensor:
    return ops.transpose(leaves.add(array.T))


def _flipped(leaves: Leaves, array: Array, _: Sample) -> Tensor:
    return ops.flip(leaves.add(np.flip(array)))


def _sliced(leaves: Leaves, array: Array, _: Sample) -> Tensor:
    """Every other element of a larger array, whose other elements must not be read."""
    larger = np.full([2 * n + 3 for n in array.shape], -100).astype(array.dtype)
    chosen = tuple(slice(1, 1 + 2 * n, 2) for n in array.shape)
    larger[chosen] = array
    return leaves.add(larger)[chosen]


def _padded(leaves: Leaves, array: Array, sample: Sample) -> Tensor:
    """The middle of the array, padded with a number in the range of the sample."""
    widths = [(1, 1) if n > 2 else (0, 0) for n in array.shape]
    slices = tuple(slice(low, n - high) for n, (low, high) in zip(array.shape, widths, strict=True))
    middle = leaves.add(array[slices])
    return ops.pad(middle, widths, float(array.dtype.type(sample.high)))


def _joined(leaves: Leaves, array: Array, _: Sample) -> Tensor:
    """Two halves, joined."""
    axis = array.ndim - 1
    if axis < 0:
        return ops.reshape(ops.concat([leaves.add(array.reshape(1))], 0), ())
    half = array.shape[axis] // 2
    return ops.concat([leaves.add(part) for part in np.split(array, [half], axis)], axis)


def _repeated(leaves: Leaves, array: Array, _: Sample) -> Tensor:
    """One row or number, repeated: other values than the sample's, in the same range."""
    own = array[tuple(slice(0, 1) for _ in array.shape)] if array.size else array
    return ops.broadcast_to(leaves.add(own), array.shape)


def _windowed(leaves: Leaves, array: Array, _: Sample) -> Tensor:
    """A reshape that splits and joins axes, after a slice: quotients and remainders."""
    flat = np.concatenate([array.reshape(-1), array.reshape(-1)])
    rows = leaves.add(flat.reshape(2, -1))
    return ops.reshape(ops.transpose(ops.transpose(rows)[:, ::-1], (1, 0))[1], array.shape)


VIEWS: tuple[View, ...] = (
    *(_reshaped, _transposed, _flipped, _sliced, _padded, _joined, _repeated, _windowed),
)


def with_views(cases: list[ParameterSet], count: int) -> list[ParameterSet]:
    """Each case with the next `count` views, so that each op is tested with all of them."""
    views = itertools.cycle(VIEWS)
    return [
        pytest.param(*case.values, view, id=f"{case.id}-{view.__name__.strip('_')}")
        for case in cases
        for view in itertools.islice(views, count)
    ]


@pytest.mark.parametrize(("op", "sample", "view"), with_views(WITH_OPERANDS, 3))
def test_op_on_views(op: Op, sample: Sample, view: View, engine: Engine) -> None:
    leaves = Leaves()
    operands = [view(leaves, array, sample) for array in values_of(sample, float32)]
    result = apply(op, *operands, **sample.attributes)
    check(leaves.graph([result]), engine, leaves.feeds)


@pytest.mark.parametrize(("op", "sample", "view"), with_views(DIFFERENTIABLE, 1))
def test_gradient_on_views(op: Op, sample: Sample, view: View, engine: Engine) -> None:
    leaves = Leaves()
    operands = [view(leaves, array, sample) for array in values_of(sample, float64)]
    inputs = list(leaves.tensors)
    result = apply(op, *operands, **sample.attributes)
    found = weighted_gradients(leaves, inputs, result)
    check(leaves.graph(found), engine, leaves.feeds)


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_views_of_the_result(op: Op, sample: Sample, engine: Engine) -> None:
    leaves = Leaves()
    operands = [leaves.add(array) for array in values_of(sample, float32)]
    result = apply(op, *operands, **sample.attributes)
    flat = ops.reshape(result, (-1,)) if 0 not in result.shape else result
    outputs = [
        ops.transpose(result),
        ops.flip(followed(flat)),
        followed(ops.pad(flat, [(1, 2)] * flat.rank)),
        ops.concat([flat, flat], 0)[::2],
    ]
    check(leaves.graph(outputs), engine, leaves.feeds)


# Special cases ------------------------------------------------------------------------------------


def test_position_of_the_only_element_is_0(engine: Engine) -> None:
    leaves = Leaves()
    x = leaves.add(np.array([[5.5], [-3.0]]))
    outputs = [ops.argmax(x, 1), ops.argmin(ops.transpose(x), 0), ops.argmax(x, 1, keepdims=True)]
    check(leaves.graph(outputs), engine, leaves.feeds)


# Ops that compute floats from one or two floats, element by element.
ELEMENTWISE = [
    op
    for op in ops.ALL
    if isinstance(op.lowering, Elementwise)
    and len(op.samples[0].shapes) in (1, 2)
    and not op.samples[0].dtypes
    and op.name != "cast"
]
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, np.inf, -np.inf, np.nan)
# Beyond these exp over- or underflows.
LIMITS = {"float32": (80.0, 88.0, 89.0, -87.0, -103.0, -104.0), "float64": (700.0, 710.0, -746.0)}


@pytest.mark.parametrize("dtype", [float32, float64, bfloat16, float16], ids=str)
@pytest.mark.parametrize("op", ELEMENTWISE, ids=lambda op: op.name)
def test_op_at_special_values(op: Op, dtype: DType, engine: Engine) -> None:
    """Infinities, NaN, both zeros, denormals, the largest numbers: the results are NumPy's."""
    limits = ml_dtypes.finfo(dtype.numpy)
    strange = [*SPECIAL, *LIMITS.get(dtype.name, ()), 1e4, -1e4]
    strange = [dtype.numpy.type(number) for number in strange]
    tiny = limits.tiny
    strange += [limits.smallest_subnormal * dtype.numpy.type(3), tiny, -tiny, limits.eps]
    if op.name not in ("sin", "cos", "tan"):
        strange += [limits.max, limits.min]
    values = np.array(strange, dtype.numpy)
    leaves = Leaves()
    operands = [leaves.add(values)]
    if len(op.samples[0].shapes) == 2:
        operands = [leaves.add(values[:, None]), *operands]
    result = apply(op, *operands, **op.samples[0].attributes)
    check(leaves.graph([result]), engine, leaves.feeds)
