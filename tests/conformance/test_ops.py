"""Every op on the engine under test: alone, differentiated, fused with others, and on views.

Generated from the samples of `lamina.ops.ALL`. All samples of an op are one program, whose results
are compared with `graph.evaluate`, within the tolerances that `tolerances.py` states. A failure
names its case: `pytest tests/conformance/test_ops.py --engine=cpu -k softmax --case softmax-3-f32`
runs it alone.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from harness import Build, Leaves, check, values_of

from lamina import ops
from lamina.base.shapes import Array, DType, bfloat16, float16, float32, float64
from lamina.graph import Op, Sample, Tensor, apply
from lamina.ops.differentiate import gradients
from lamina.ops.lowering_rules import Elementwise

# (leaves, values of an operand, sample) -> a tensor with these values.
View = Callable[[Leaves, Array, Sample], Tensor]
# (the result of an op, its operands) -> what is computed of them.
Finish = Callable[[Tensor, list[Tensor]], list[Tensor]]


def _alone(result: Tensor, _: list[Tensor]) -> list[Tensor]:
    return [result]


def _leaf(leaves: Leaves, array: Array, _: Sample) -> Tensor:
    return leaves.add(array)


def value(
    op: Op, sample: Sample, dtype: DType, view: View = _leaf, finish: Finish = _alone
) -> Build:
    """What is computed of the op's result for a sample."""

    def build(leaves: Leaves) -> list[Tensor]:
        operands = [view(leaves, array, sample) for array in values_of(sample, dtype)]
        return finish(apply(op, *operands, **sample.attributes), operands)

    return build


def gradient(
    op: Op, sample: Sample, dtype: DType, view: View = _leaf, finish: Finish = _alone
) -> Build:
    """The gradients of a weighted sum of that."""

    def build(leaves: Leaves) -> list[Tensor]:
        first = len(leaves.tensors)
        (result,) = value(op, sample, dtype, view, finish)(leaves)
        sources = [x for x in leaves.tensors[first:] if x.attributes["role"] == "input"]
        derivatives = weighted_gradients(leaves, sources, result)
        return derivatives if finish is _alone else [result, *derivatives]

    return build


def weighted_gradients(leaves: Leaves, operands: list[Tensor], result: Tensor) -> list[Tensor]:
    """The gradients of a weighted sum of the result."""
    shape = tuple(dim for dim in result.shape if isinstance(dim, int))
    weights = np.random.default_rng(1).uniform(0.5, 1.5, shape)
    weighted = result * leaves.add(np.asarray(weights, result.dtype.numpy))
    floats = [x for x in operands if x.dtype.is_float]
    return list(gradients(ops.sum(weighted), floats))


# Cases of an op -----------------------------------------------------------------------------------

Cases = Iterator[tuple[str, Build]]


def samples_of(op: Op) -> Iterator[tuple[str, Sample]]:
    for number, sample in enumerate(op.samples):
        yield f"{op.name}-{number}", sample


def _in_types(op: Op, types: tuple[DType, ...]) -> Cases:
    """The values and gradients of each sample in the next of the types."""
    for number, (name, sample) in enumerate(samples_of(op)):
        dtype = types[number % len(types)]
        if dtype.is_half and not (sample.shapes and "float" in (sample.dtypes or ("float",))):
            continue
        yield f"{name}-{dtype}", value(op, sample, dtype)
        if sample.differentiable:
            yield f"{name}-gradient-{dtype}", gradient(op, sample, dtype)


def _between_elementwise_ops(op: Op) -> Cases:
    for name, sample in samples_of(op):
        if sample.shapes:
            yield f"{name}-between", value(op, sample, float32, _neutral, _followed)
        if sample.differentiable:
            yield f"{name}-gradient-between", gradient(op, sample, float64, _neutral, _followed)


def _with_several_users(op: Op) -> Cases:
    for name, sample in samples_of(op):
        if sample.shapes:
            yield f"{name}-users", value(op, sample, float32, _neutral, _several)


def _viewed(op: Op) -> Cases:
    for name, sample in samples_of(op):
        yield f"{name}-viewed", value(op, sample, float32, _leaf, _views)


def _neutral(leaves: Leaves, array: Array, _: Sample) -> Tensor:
    """The same values, after arithmetic that the compiler cannot simplify."""
    x = leaves.add(array)
    add = partial(leaves.add, role="parameter")
    shape = (1,) * x.rank
    if x.dtype.kind == "bool":
        return ops.logical_and(x, add(np.ones(shape, bool)))
    if x.dtype.kind == "int":
        return ops.add(x, add(np.zeros(shape, x.dtype.numpy)))
    return x * add(np.ones(shape, x.dtype.numpy))


def followed(result: Tensor) -> Tensor:
    """An elementwise function of the result."""
    if result.dtype.kind == "bool":
        return ops.where(result, 2.5, -1.5)
    return result * 3 - result if result.dtype.kind == "int" else ops.neg(result * 0.5 - 0.25)


def _followed(result: Tensor, _: list[Tensor]) -> list[Tensor]:
    return [followed(result)]


def _several(result: Tensor, operands: list[Tensor]) -> list[Tensor]:
    return [followed(result), result, ops.sum(followed(result)), *operands]


def _views(result: Tensor, _: list[Tensor]) -> list[Tensor]:
    flat = ops.reshape(result, (-1,)) if 0 not in result.shape else result
    return [
        ops.transpose(result),
        ops.flip(followed(flat)),
        followed(ops.pad(flat, [(1, 2)] * flat.rank)),
        ops.concat([flat, flat], 0)[::2],
    ]


# Views of operands --------------------------------------------------------------------------------


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
    first = array[tuple(slice(0, 1) for _ in array.shape)] if array.size else array
    return ops.broadcast_to(leaves.add(first), array.shape)


def _windowed(leaves: Leaves, array: Array, _: Sample) -> Tensor:
    """A reshape that splits and joins axes, after a slice: quotients and remainders."""
    flat = np.concatenate([array.reshape(-1), array.reshape(-1)])
    rows = leaves.add(flat.reshape(2, -1))
    return ops.reshape(ops.transpose(ops.transpose(rows)[:, ::-1], (1, 0))[1], array.shape)


VIEWS: tuple[View, ...] = (
    *(_reshaped, _transposed, _flipped, _sliced, _padded, _joined, _repeated, _windowed),
)


def _views_of_operands() -> dict[str, list[tuple[str, Build]]]:
    """By op: its samples on the next views, so that each op is tested with all of them."""
    of_values, of_gradients = itertools.cycle(VIEWS), itertools.cycle(VIEWS)
    builds: dict[str, list[tuple[str, Build]]] = {op.name: [] for op in ops.ALL}
    for op in ops.ALL:
        for name, sample in samples_of(op):
            for view in itertools.islice(of_values, 3 * bool(sample.shapes)):
                case = f"{name}-{view.__name__.strip('_')}"
                builds[op.name].append((case, value(op, sample, float32, view)))
            for view in itertools.islice(of_gradients, 1 * sample.differentiable):
                case = f"{name}-gradient-{view.__name__.strip('_')}"
                builds[op.name].append((case, gradient(op, sample, float64, view)))
    return builds


ON_VIEWS = _views_of_operands()

# By name: (op) -> its cases. The first always run.
SETTINGS: dict[str, Callable[[Op], Any]] = {
    "alone": lambda op: _in_types(op, (float32, float64)),
    "in the other type": lambda op: _in_types(op, (float64, float32)),
    "bfloat16": lambda op: _in_types(op, (bfloat16,)),
    "float16": lambda op: _in_types(op, (float16,)),
    "between": _between_elementwise_ops,
    "users": _with_several_users,
    "on views": lambda op: ON_VIEWS[op.name],
    "viewed": _viewed,
}


@pytest.mark.parametrize(
    ("op", "setting"),
    [
        pytest.param(
            *(op, setting),
            id=f"{op.name}-{setting}",
            marks=() if setting == "alone" else pytest.mark.sampled,
        )
        for op in ops.ALL
        for setting, cases_of in SETTINGS.items()
        if next(iter(cases_of(op)), None)
    ],
)
def test_op_and_gradient(op, setting, check_cases):
    check_cases(SETTINGS[setting](op))


# Special cases ------------------------------------------------------------------------------------


def test_position_of_the_only_element_is_0(engine, leaves):
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


@pytest.mark.parametrize("op", ELEMENTWISE, ids=lambda op: op.name)
def test_op_at_special_values(op, check_cases):
    """Infinities, NaN, both zeros, denormals, the largest numbers: the results are NumPy's."""

    def build(dtype, leaves):
        limits = ml_dtypes.finfo(dtype.numpy)
        strange = [*SPECIAL, *LIMITS.get(dtype.name, ()), 1e4, -1e4]
        strange = [dtype.numpy.type(number) for number in strange]
        tiny = limits.tiny
        strange += [limits.smallest_subnormal * dtype.numpy.type(3), tiny, -tiny, limits.eps]
        if op.name not in ("sin", "cos", "tan"):
            strange += [limits.max, limits.min]
        values = np.array(strange, dtype.numpy)
        operands = [leaves.add(values)]
        if len(op.samples[0].shapes) == 2:
            operands = [leaves.add(values[:, None]), *operands]
        return [apply(op, *operands, **op.samples[0].attributes)]

    check_cases((float32, float64, bfloat16, float16), build)
