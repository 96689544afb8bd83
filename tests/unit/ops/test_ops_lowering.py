"""The scalars that ops are lowered to, computed point by point, against the references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from samples_of_ops import for_each_op

from lamina import ops
from lamina.base.shapes import Array, as_dtype, converted, float32, int64, static
from lamina.graph import CONSTANT, LEAF, OPS, Graph, Op, Sample, Tensor, apply, evaluate, leaf
from lamina.ops.lowering_rules import (
    Coordinates,
    Decomposition,
    Elementwise,
    Generator,
    Movement,
    Scattering,
)
from lamina.program.index import (
    Axis,
    Gathered,
    Index,
    Quotient,
    Remainder,
    axis_index,
    constant_index,
    flatten,
)
from lamina.program.philox import random_bits
from lamina.program.scalar import (
    PRIMITIVES,
    Apply,
    Bound,
    Literal,
    Load,
    Position,
    Scalar,
    Within,
    postorder,
)
from lamina.program.sort_keys import sort_key

pytestmark = pytest.mark.each_case


def first(numbers: Array) -> int:
    return int(numbers.flat[0]) if numbers.size else 0


NUMPY: dict[str, Callable[..., Any]] = {
    **{op.name: op.reference for op in ops.ALL if op.name in PRIMITIVES},
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "power": OPS["pow"].reference,
    "negative": np.negative,
    "absolute": np.absolute,
    "square_root": np.sqrt,
    "select": np.where,
    "quotient": lambda a, b: np.floor_divide(a - np.fmod(a, b), b),
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
    "sort_key": sort_key,
    "random_bits": lambda seed, step, position, stream: random_bits(
        first(seed), first(step), position, first(stream)
    ),
}


class Points:
    """Computes scalars at all points of an iteration space at once."""

    def __init__(self, axes: tuple[Axis, ...], buffers: dict[str, Array]) -> None:
        self.shape = tuple(axis.extent for axis in axes)
        coordinates = np.indices(self.shape)
        self.axes = {axis: coordinates[number] for number, axis in enumerate(axes)}
        self.buffers = buffers
        self.known: dict[Scalar, Array] = {}

    def index(self, index: Index) -> Array:
        total = np.full(self.shape, index.constant)
        for atom, coefficient in index.terms:
            if isinstance(atom, Axis):
                value = self.axes[atom]
            elif isinstance(atom, Quotient):
                value = self.index(atom.index) // atom.divisor
            elif isinstance(atom, Remainder):
                value = self.index(atom.index) % atom.divisor
            else:
                assert isinstance(atom, Gathered)
                value = self.scalar(atom.value)
                assert np.all((value >= 0) & (value < atom.extent))
            total = total + coefficient * value
        return total

    def hold(self, bounds: tuple[Bound, ...]) -> Array:
        held = np.ones(self.shape, bool)
        for bound in bounds:
            index = self.index(bound.index)
            held &= (bound.low <= index) & (index < bound.high)
        return held

    def scalar(self, scalar: Scalar) -> Array:
        if scalar not in self.known:
            self.known[scalar] = self.computed(scalar)
        return self.known[scalar]

    def computed(self, scalar: Scalar) -> Array:
        if isinstance(scalar, Literal):
            return np.full(self.shape, scalar.value, scalar.dtype.numpy)
        if isinstance(scalar, Load):
            buffer = self.buffers[scalar.buffer].ravel()
            held = self.hold(scalar.bounds)
            index = self.index(scalar.index)
            inside = (index >= 0) & (index < buffer.size)
            assert np.all(inside[held]), f"{scalar} reaches outside its buffer"
            return np.where(held, buffer[np.where(held, index, 0)], np.zeros((), buffer.dtype))
        if isinstance(scalar, Position):
            return self.index(scalar.index)
        if isinstance(scalar, Within):
            return self.hold(scalar.bounds)
        assert isinstance(scalar, Apply)
        operands = [self.scalar(operand) for operand in scalar.operands]
        assert len(operands) == PRIMITIVES[scalar.primitive]
        if scalar.primitive == "cast":
            return converted(operands[0], scalar.dtype.numpy)
        result = np.asarray(NUMPY[scalar.primitive](*operands))
        assert result.dtype == scalar.dtype.numpy, scalar
        return result


def scalar_at(node: Tensor, coordinates: Coordinates) -> Scalar:
    """The scalar of a tensor, through all ops down to its leaves."""

    def pull(number: int, coordinates: Coordinates) -> Scalar:
        return scalar_at(node.operands[number], coordinates)

    lowering = node.op.lowering
    if node.op is LEAF:
        offset = flatten(coordinates, static(node.shape))
        return Load(node.attributes["name"], offset, node.dtype)
    if node.op is CONSTANT:
        return Literal(node.attributes["value"].array.item(), node.dtype)
    if isinstance(lowering, Elementwise):
        scalars = [
            pull(number, broadcast_coordinates(x, coordinates))
            for number, x in enumerate(node.operands)
        ]
        return lowering.scalar(node, tuple(scalars))
    assert isinstance(lowering, Movement | Generator)
    return lowering.scalar(node, coordinates, pull)


def broadcast_coordinates(x: Tensor, coordinates: Coordinates) -> Coordinates:
    last = coordinates[len(coordinates) - x.rank :]
    rows = zip(last, x.shape, strict=True)
    return tuple(constant_index(0) if dim == 1 else index for index, dim in rows)


def space(shape: tuple[int, ...]) -> tuple[tuple[Axis, ...], Coordinates]:
    axes = tuple(Axis(f"i{number}", extent) for number, extent in enumerate(shape))
    return axes, tuple(map(axis_index, axes))


def lowered_value(y: Tensor, feeds: dict[str, Array]) -> Array:
    axes, coordinates = space(static(y.shape))
    scalar = scalar_at(y, coordinates)
    assert scalar.dtype == y.dtype
    with np.errstate(all="ignore"):
        return Points(axes, feeds).scalar(scalar)


def sample_feeds(sample: Sample) -> dict[str, Array]:
    generator = np.random.default_rng(3)
    feeds: dict[str, Array] = {}
    for number, shape in enumerate(sample.shapes):
        name = sample.dtypes[number] if sample.dtypes else "float"
        dtype = float32 if name == "float" else as_dtype(name)
        array = generator.uniform(sample.low, sample.high, shape)
        if sample.diagonal and not number:
            array = array + sample.diagonal * np.eye(shape[-1])
        if dtype.kind == "bool":
            array = generator.random(shape) < 0.5
        feeds[f"x{number}"] = np.asarray(array, dtype.numpy)
    return feeds


def leaves(feeds: dict[str, Array]) -> list[Tensor]:
    return [leaf(name, "input", a.shape, as_dtype(a.dtype)) for name, a in feeds.items()]


def cases(*kinds: type) -> list[Any]:
    return [
        pytest.param(op, sample, id=f"{op.name}-{number}")
        for op in ops.ALL
        if isinstance(op.lowering, kinds)
        for number, sample in enumerate(op.samples)
    ]


# Formulas of functions that NumPy has itself: both results are rounded several times.
APPROXIMATED = ("asin", "acos", "atan", "asinh", "acosh", "atanh")


@for_each_op(cases(Elementwise, Movement, Generator))
def test_scalar_equals_the_reference(op: Op, sample: Sample) -> None:
    feeds = sample_feeds(sample)
    y = apply(op, *leaves(feeds), **sample.attributes)
    with np.errstate(all="ignore"):
        expected = np.asarray(op.reference(*feeds.values(), **sample.attributes))
    error = 4 * np.finfo(np.float32).eps if op.name in APPROXIMATED else 0.0
    np.testing.assert_allclose(lowered_value(y, feeds), expected, rtol=error)


@for_each_op(cases(Scattering))
def test_scatter_destination_equals_the_reference(op: Op, sample: Sample) -> None:
    feeds = sample_feeds(sample)
    values, indices = leaves(feeds)
    y = apply(op, values, indices, **sample.attributes)
    axes, coordinates = space(static(values.shape))
    destination = op.lowering.destination(y, coordinates, lambda n, c: scalar_at(y.operands[n], c))
    offsets = Points(axes, feeds).index(flatten(destination, static(y.shape)))
    found = np.zeros(static(y.shape), np.float32)
    np.add.at(found.reshape(-1), offsets.ravel(), feeds["x0"].ravel())
    expected = op.reference(feeds["x0"], feeds["x1"], **sample.attributes)
    np.testing.assert_array_equal(found, expected)


X = np.arange(24, dtype=np.float32).reshape(4, 6) + 1
INDICES = np.array([[3, 0], [2, 2]])

COMPOSED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "pad of a function": lambda x, i: ops.pad(ops.exp(x * 0.1), [(1, 2), (0, 3)]),
    "pad of a pad": lambda x, i: ops.pad(ops.pad(x, [(1, 0), (2, 1)]), [(0, 2), 1]),
    "pad of a filled pad": lambda x, i: ops.pad(ops.pad(x, [(1, 0), (2, 1)], 5.0), [(0, 2), 1]),
    "slice of a pad": lambda x, i: ops.pad(x, [2, 2], 7.0)[1:-1:2, ::3],
    "pad of a concat": lambda x, i: ops.pad(ops.concat([x, x * 2, x[:1]], 0), [1, 1]),
    "concat of pads": lambda x, i: ops.concat([ops.pad(x, [1, 0]), ops.exp(x)], 0),
    "concat of a reshape": lambda x, i: ops.concat([ops.reshape(x, (6, 4)), x[:, :4]], 0)[::-1],
    "pad of a reshape": lambda x, i: ops.pad(ops.reshape(ops.transpose(x), (3, 8)), [1, 1]),
    "reshape of a pad": lambda x, i: ops.reshape(ops.pad(x, [(1, 1), (0, 2)]), (-1, 3)),
    "pad of a take": lambda x, i: ops.pad(ops.take(x, i, 0), [1, 0, (2, 0)]),
    "take of a pad": lambda x, i: ops.take(ops.pad(x, [1, 1]), i, 1),
    "take by a range": lambda x, i: ops.take(x, ops.arange(3) + 1, 0),
    "pad of a one_hot": lambda x, i: ops.pad(ops.one_hot(i, 4), [1, 1, 1], 2.0),
    "pad of random numbers": lambda x, i: ops.pad(ops.uniform((3, 4), 1, 2, 3), [1, 1]),
    "flip of a broadcast": lambda x, i: ops.flip(ops.broadcast_to(x[:, :1], (2, 4, 3)), 1),
    "pad of a cast": lambda x, i: ops.pad(ops.cast(x, int64), [1, 1]),
    "pad with gaps of a slice": lambda x, i: gap(x[::2]),
}


def gap(x: Tensor) -> Tensor:
    return apply(OPS["pad"], x, low=(0, 1), high=(1, 0), interior=(1, 2), value=0.0)


@pytest.mark.parametrize("name", COMPOSED)
def test_composed_scalars_equal_the_reference(name: str) -> None:
    feeds: dict[str, Array] = {"x": X, "i": INDICES}
    x, i = leaves(feeds)
    y = COMPOSED[name](x, i)
    expected = evaluate(Graph((x, i), (("y", y),)), feeds)[0]["y"]
    np.testing.assert_array_equal(lowered_value(y, feeds), expected)


@pytest.mark.parametrize(
    "name", ["pad of a pad", "pad of a reshape", "pad of a cast", "pad with gaps of a slice"]
)
def test_padding_with_zeros_is_a_view(name: str) -> None:
    x, i = leaves({"x": X, "i": INDICES})
    y = COMPOSED[name](x, i)
    scalar = scalar_at(y, space(static(y.shape))[1])
    assert not any(isinstance(p, Apply) and p.primitive == "select" for p in postorder(scalar))


def test_a_take_by_a_range_is_a_view() -> None:
    x, _ = leaves({"x": X, "i": INDICES})
    y = ops.take(x, ops.arange(4), 0)
    assert str(scalar_at(y, space((4, 6))[1])) == "x[6*i0 + i1]"


def test_every_lowering_is_of_a_known_kind() -> None:
    assert {type(op.lowering).__name__ for op in ops.ALL} == {
        "Elementwise",
        "Movement",
        "Generator",
        "Reduction",
        "Repeating",
        "Contracting",
        "Scanning",
        "Scattering",
        "Sorting",
        "Decomposition",
    }


def test_decompositions_end_in_other_ops() -> None:
    for op in ops.ALL:
        if isinstance(op.lowering, Decomposition):
            sample = op.samples[0]
            node = apply(op, *leaves(sample_feeds(sample)), **sample.attributes)
            assert op.lowering.build(node).op is not op
