"""What functions of `lamina.ops` refuse: each error states the expected and the found value."""

from typing import Any

import numpy as np
import pytest
from error_texts import check_refusal

import lamina as lm
from lamina import ops
from lamina.base.shapes import BATCH as B
from lamina.base.shapes import as_dtype
from lamina.errors import DefinitionError, DTypeError, LaminaError, ShapeError
from lamina.graph import Tensor, leaf
from lamina.ops.windows import Slope, shear, windows

pytestmark = pytest.mark.each_case


def t(*shape: Any, dtype: str = "float32") -> Tensor:
    return leaf("x", "input", shape, as_dtype(dtype))


X, IMAGES, WEIGHT = t(2, 3, 4), t(2, 2, 5, 5), t(3, 2, 2, 2)
LARGE, NONE = t(2, 4, 6, 6), ((0, 0), (0, 0))
WHOLE, QUERIES, KEYS = t(2, 3, 4, dtype="int64"), t(2, 3, 5, 4), t(2, 3, 6, 4)
SQUARE = "the last two axes must be a square"
UNEQUAL = "two axes that must be equal differ,"


def attend(queries: Tensor, keys: Tensor, values: Tensor, **others: Any) -> Tensor:
    """Attention with masks, factors and biases of these shapes."""
    dtypes = {"mask": "bool", "factors": "float32", "bias": "float32"}
    given = {name: t(*shape, dtype=dtypes[name]) for name, shape in others.items()}
    return ops.attention(queries, keys, values, **given)


# Calls, and parts of the texts of their errors in their order.
Rows = list[tuple[Any, ...]]
DEFINITIONS: Rows = [
    (lambda: ops.gelu(X, "none"), "gelu: approximate must be True or False"),
    (lambda: ops.pad_with(X, 1, "around"), "mode must be one of 'constant', "),
    (lambda: ops.sum(X, 0, "no"), "keepdims must be True or False"),
    (lambda: ops.one_hot(WHOLE, -1), "one_hot: depth must be a whole number of at least 0"),
    (lambda: ops.argmax(X, None), "axis must be a whole number"),
    (lambda: ops.cumsum(X, None), "axis must be a whole number"),
    (lambda: ops.softmax(X, (1,)), "axis must be a whole number"),
    (lambda: ops.sum(X, 1.0), "axes must be one axis, or several in a tuple"),
    (lambda: ops.reshape(X, (3.0,)), "shape[0] must be a whole number"),
    (lambda: ops.reshape(X, (2, -3, -4)), "shape[1] must be a whole number of at least -1"),
    (lambda: ops.split(X, "a", 1), "sizes must be"),
    (lambda: ops.arange(2.5), "arange: n must be a whole number"),
    (lambda: ops.full((-2,), 1), "shape[0] must be a whole number of at least 0"),
    (lambda: ops.full((2,), 1.5, "int32"), "a number that int32 holds"),
    (lambda: ops.clip(X, "0"), "low must be a number"),
    (lambda: ops.hardtanh(X, 1.0, 1.0), "hardtanh: low must be below high"),
    (lambda: ops.hardtanh(X, 0.0, float("nan")), "low must be below high"),
    (lambda: ops.Window(2, 0), "Window.stride must be a whole number of at least 1, at most "),
    (lambda: ops.Window(2, before=-1), "Window.before must be a whole number of at least 0"),
    (lambda: ops.conv(IMAGES, WEIGHT, 0, 0, 1), "strides must be a whole number of at least 1"),
    (lambda: ops.conv(IMAGES, WEIGHT, 1, -1, 1), "padding must be a whole number of at least 0"),
    (lambda: ops.conv(IMAGES, WEIGHT, 1, 0, (1, -1)), "dilations[1] must be a whole number of at "),
    (
        lambda: ops.conv(LARGE, t(4, 4, 3, 3), (1,), ((0, 0),), (1,)),
        *("strides must be one for all axes", "one for all axes, or one for each of 2"),
    ),
    (lambda: ops.cast(X, "uint32"), "dtype must be one of float32, "),
    (lambda: ops.argmax(X, dim=1), "Here it is called axis."),
    (lambda: ops.top_k(t(3), k=2), "Here it is called count."),
    (lambda: ops.softmax(), "missing a required argument: 'x'"),
    (lambda: ops.bincount(lm.Input(3, dtype="int64"), 0), "size"),
    (lambda: ops.bernoulli((3,), 1.5, 0, 0, 0), "expected  0 <= p <= 1"),
    (lambda: ops.scatter(t(3), [1], 1.0, 0, "max"), "one of 'set', 'add'"),
    (lambda: ops.roll(t(2, 3), (1, 2, 3), (0, 1)), "one for each of 2"),
    (
        lambda: ops.pad(t(2, 5), [1]),
        *("widths must be a whole number, or a pair", "of 2 axes", "found     [1]"),
    ),
    (lambda: ops.pad_with(t(B, 3), [0, -1], "replicate"), "found     [0, -1]"),
    (lambda: ops.pad_with(t(B, 3), [1], "reflect"), "found     [1]"),
]
DTYPES: Rows = [
    (lambda: ops.bitwise_and(X, 1), "bitwise_and: floats have no bits here"),
    (lambda: ops.left_shift(X > 0, X > 0), "left_shift: the dtype does not fit"),
    (lambda: ops.round_to_tf32(t(3, dtype="float64")), "only float32 is rounded to TF32"),
    (lambda: ops.exp(None), "expected a tensor, a number or an array of numbers"),
    (lambda: ops.cast(X, None), "there is no dtype 'None'"),
    (lambda: ops.bincount(lm.Input(3), 4), "bincount: indices must be integers"),
    (lambda: ops.normal((3,), 0, 0, 0, "int64"), "expected  a float type"),
    (lambda: ops.scatter(t(3), [0.5], 1.0, 0), "indices must be integers"),
    (
        lambda: ops.take(t(2, 3), t(2)),
        *("take: indices must be integers", "f32[2]", "ops.cast(x, 'int64')"),
    ),
    (lambda: t(3) + t(3, dtype="float64"), "float32 and float64 are mixed"),
    (lambda: t(3) + np.ones(3), "float32 and float64 are mixed"),
    (lambda: t(3, dtype="uint8") + 300, "the number 300 does not fit into uint8"),
    (
        lambda: t(2, 3)[[0.5, 1]],
        *("slices, ..., None, and arrays of ints or bools", "found   ndarray"),
        "np.asarray(indices",
    ),
    (
        lambda: t(2, 3)[t(2, 3) > 0],
        *("arrays of ints or bools", "found   bool[2, 3]", "ops.where(condition, a, b)"),
    ),
    (
        lambda: ops.conv(LARGE, t(4, 4, 3, 3, dtype="float64"), (1, 1), NONE, (1, 1)),
        "conv: the dtypes do not fit",
    ),
    (
        lambda: ops.attention(QUERIES, KEYS, KEYS, KEYS),
        "attention: the mask must be bool",
        "Compare for a mask, as in tokens > 0; numbers that are added",
    ),
    (lambda: ops.attention(QUERIES, KEYS, KEYS, factors=np.ones(6)), "the factors must be f32"),
    (lambda: ops.attention(QUERIES, KEYS, KEYS, bias=np.ones(6)), "the bias must be f32"),
    (
        lambda: ops.attention(*[t(2, 3, 6, 4, dtype="int64")] * 3),
        "queries, keys and values must be of one float dtype",
    ),
]
SHAPES: Rows = [
    # Axes, shapes, and parts.
    (
        lambda: ops.reshape(t(B, 6), (B, 5)),
        *("reshape: the shapes hold different numbers of elements", "f32[batch, 6]", "[batch, 5]"),
    ),
    (
        lambda: ops.reshape(t(B, 6), (-1, 4)),
        *("the dimension -1 cannot be inferred", "f32[batch, 6]", "[-1, 4]"),
    ),
    (
        lambda: ops.sum(t(B, 6), 2),
        *("there is no axis 2", "tensor    f32[batch, 6]", "an axis from -2 to 1"),
    ),
    (lambda: ops.transpose(t(2, 3), (0, 0)), "the axes are not a permutation", "(0, 0)"),
    (lambda: ops.transpose(X, 1), "transpose: the axes are not a permutation"),
    (
        lambda: t(2, 3) + t(2, 4),
        *("add: the shapes differ in axis -1, 3 against 4", "left   f32[2, 3]"),
        *("right  f32[2, 4]", "Dimensions must be equal, or one of them 1"),
    ),
    (lambda: ops.full((2**40, 2**40), 1), "the result is larger than any memory"),
    (lambda: t(B, 3)[::2], "slice: axis 0 has no range 0:batch:2"),
    (
        lambda: ops.concat([t(2, 3), t(3, 3)], 1),
        *("differ in an axis other than 1", "tensor 0  f32[2, 3]", "tensor 1  f32[3, 3]"),
        "Axis 0 differs, 2 against 3: only axis 1 may differ.",
    ),
    (lambda: ops.split(t(2, 5), 2, 1), "axis 1 of extent 5 cannot be split into these sizes"),
    (lambda: ops.squeeze(t(2, 5), 1), "axis 1 does not have extent 1"),
    (lambda: ops.expand_dims(t(2), 3), "the new axes do not fit"),
    (lambda: ops.broadcast_to(t(2, 5), (5, 2)), "cannot be repeated to this shape", "[5, 2]"),
    (lambda: ops.unstack(t(B, 5)), "the extent of axis 0 depends on the batch"),
    (lambda: ops.max(t(2, 0), 1), "axis 1 is empty: there is no largest or smallest element"),
    (lambda: ops.argmax(t(0, 3), 0), "axis 0 is empty"),
    (lambda: ops.softmax(ops.sum(X), 0), "there is no axis 0"),
    (
        lambda: ops.pad_with(t(B, 3), [0, 3], "reflect"),
        "expected  at most 2 on each side for mode 'reflect'",
    ),
    (lambda: ops.pad_with(t(B, 3), [0, (0, 4)], "circular"), "found     0 before, 4 after"),
    (lambda: ops.pad_with(t(B, 3), [1, 0], "reflect"), "a fixed shape is needed here"),
    (
        lambda: ops.uniform((3,), np.zeros(2, int), 0, 0),
        "the seed of random numbers must be one int64 number",
    ),
    # Indices.
    (lambda: t(2, 3)[2], "index 2 does not fit axis 0, which has extent 2"),
    (lambda: t(2, 3)[0, 0, 0], "too many indices", "3 indices"),
    (
        lambda: t(2, 3)[:, [0, 3]],
        *("index 3 does not fit axis 1, which has extent 3", "tensor  f32[2, 3]"),
    ),
    (lambda: t(B, 3)[[0, -1]], "index -1 does not fit axis 0"),
    (
        lambda: t(B, 3)[np.ones(2, bool)],
        *("the mask does not have the shape of its axes", "expected  [batch]", "found     [2]"),
    ),
    (
        lambda: t(4, 3)[[0, 1], [0, 1, 2]],
        *("the arrays of indices do not fit together", "axis 0  i64[2]", "axis 1  i64[3]"),
    ),
    (lambda: ops.take(X, [-1], 1), "take: index -1 is out of range"),
    (lambda: ops.take(X, [3], 1), "below the extent 3 of the axis"),
    (lambda: ops.take_along_axis(X, np.full((2, 1, 4), -1), 1), "index -1 is out of range"),
    (lambda: ops.scatter_add(t(3), [0, 1, 9], 4), "scatter_add: index 9 is out of range"),
    (lambda: ops.take(t(0), [0]), "an axis of extent 0 cannot be indexed"),
    (lambda: ops.gather(t(2, 3), t(3, 1, dtype="int64"), 1), "gather: the indices do"),
    (lambda: ops.gather(t(2, 3), [[3], [0]], 1), "index 3 is out of range"),
    (lambda: ops.scatter(t(2, 3), [[3]], 1.0, 1), "index 3 is out of range"),
    (lambda: ops.scatter(t(2, 3), [[1]], t(2), 1), "there is not a value for each"),
    # Products and matrices.
    (
        lambda: t(B, 3) @ t(4, 5),
        *(f"matmul: {UNEQUAL} 3 against 4", "left   f32[batch, 3]", "right  f32[4, 5]"),
        "ops.transpose",
    ),
    (lambda: ops.matmul(X[:, :, :1], X[0]), "must be equal differ, 1 against 3"),
    (lambda: ops.dot(X[0, :, :1], t(3)), "must be equal differ, 1 against 3"),
    (lambda: ops.outer(t(2, 2), t(2)), "outer: two tensors with one axis"),
    (
        lambda: ops.einsum("ij->ii", t(2, 2)),
        *("einsum: a letter occurs twice in the result", "ij->ii"),
    ),
    (
        lambda: ops.einsum("..i->i", t(2, 2)),
        "einsum: only letters, and ... once in each tensor, may name axes",
    ),
    (lambda: ops.einsum("ij,jk->ik", t(2, 3), t(4, 5)), f"einsum: {UNEQUAL} 3 against 4"),
    (lambda: ops.einsum("ij,jk", t(2, 3)), "2 operands are named and 1 given"),
    (lambda: ops.einsum("ij->k", t(2, 3)), "the result has a letter that no"),
    (lambda: ops.einsum("ijk", t(2, 3)), "the number of letters of an operand"),
    (lambda: ops.einsum("ii", t(2, 3)), f"{UNEQUAL} 2 against"),
    (lambda: ops.cholesky(t(2, 3)), f"cholesky: {SQUARE}"),
    (lambda: ops.inverse(t(2, 3)), f"inverse: {SQUARE}"),
    (lambda: ops.det(t(3)), f"det: {SQUARE} matrix"),
    (lambda: ops.solve(t(2, 2), t(3, 1)), "solve: the matrix and the right side do"),
    (lambda: ops.solve(t(2), t(2)), "a matrix needs two axes"),
    (lambda: ops.solve_triangular(t(2, 3), t(2, 1)), "must be a square matrix"),
    (lambda: ops.tril(t(3)), "a matrix needs two axes"),
    (lambda: ops.diagonal(lm.Input(3), 0, (0, 1)), "an axis depends on the batch"),
    (lambda: ops.diag_embed(ops.transpose(lm.Input(3))), "diag_embed: the last axis"),
    (lambda: ops.cdist(t(2, 3), t(2, 4)), "cdist: the vectors do not fit together"),
    (lambda: ops.cross(t(2, 4), t(2, 4)), "cross: axis 1 does not have extent 3"),
    # Order, and Fourier transforms.
    (lambda: ops.top_k(t(2, 3), 4), "top_k: axis 1 has fewer than 4 elements"),
    (lambda: ops.top_k(t(0, 3), 1, 0), "top_k: axis 0 has fewer than 1 elements"),
    (lambda: ops.median(lm.Input(3), 0), "median: axis 0 needs a fixed extent"),
    (lambda: ops.median(t(0, 3), 0), "median: axis 0 needs a fixed extent of at least 1"),
    (lambda: ops.rot90(t(2, 3), 1, (0, 0)), "rot90: two different axes are needed"),
    (lambda: ops.moveaxis(t(2, 3), (0, 1), 0), "moveaxis: the axes do not fit"),
    (lambda: ops.repeat(t(2, 3), [1], 1), "a count for each element along axis 1"),
    (lambda: ops.meshgrid([t(2, 3)]), "meshgrid: each tensor needs one axis"),
    (lambda: ops.fft(lm.Input(8)), "needs complex numbers as pairs of floats"),
    (lambda: ops.irfft(lm.Input(4, 2), 9), "9 real numbers have 5 complex numbers"),
    (lambda: ops.rfft(lm.Input()), "or depends on the batch"),
    # Windows and grids.
    (lambda: ops.unfold(t(2, 3), ops.Window(2)), "a window for each axis after"),
    (lambda: ops.fold(t(1, 5, 2), ops.Window(2), 3), "expected  [batch, channels * 2"),
    (lambda: ops.grid_sample(t(1, 2, 3, 3), t(1, 2, 2)), "images and the grid do not"),
    (lambda: ops.grid_sample(t(1, 2, 3), t(1, 4, 1), "bicubic"), "takes no other number of axes"),
    (lambda: ops.affine_grid(t(2, 2, 2), 3), "must be [batch, axes, axes + 1]"),
    (
        lambda: windows(LARGE, [2], [ops.Window(7)]),
        *("no window fits", "axis    2, 0 + 6 + 0 elements"),
    ),
    (lambda: ops.window_sum(LARGE, [ops.Window(9)]), "no window fits", "axis    3"),
    (
        lambda: ops.conv(LARGE, t(4, 4), (), (), ()),
        *("the numbers of axes do not fit", "[outputs, inp"),
    ),
    (
        lambda: ops.conv(LARGE, t(4, 4, 3, 3), (1, 1), NONE, (1, 1), 3),
        *("conv: 4 outputs cannot be divided into 3 groups", "groups  3"),
    ),
    (
        lambda: ops.conv(LARGE, t(4, 3, 3, 3), (1, 1), NONE, (1, 1)),
        *("conv: expected 3 channels, found 4", "weight  f32[4, 3, 3, 3]"),
    ),
    (
        lambda: ops.conv_transpose(LARGE, t(5, 4, 3, 3), (8, 8), (1, 1), NONE, (1, 1)),
        "conv_transpose: expected 5 channels, found 4",
    ),
    (
        lambda: ops.conv_transpose(LARGE, t(4, 4, 3, 3), (8, 9), (1, 1), NONE, (1, 1)),
        "the convolution of the result does not have the shape of the tensor",
        *("extents of the result  (8, 9)", "a convolution of it    (6, 7)"),
        "and up to stride - 1 more.",
    ),
    (
        lambda: ops.window_max(LARGE, [ops.Window(2, before=2)]),
        *("window_max: a window may contain nothing but padding", "padding  2 before and 0 after"),
        "Pad by at most half of the window.",
    ),
    # Attention.
    (lambda: attend(QUERIES, t(2, 3, 6, 3), KEYS), "the shapes do not fit", "queries  f32["),
    (lambda: attend(QUERIES, KEYS, t(2, 3, 5, 4)), "keys and values the same length"),
    (lambda: attend(QUERIES, t(2, 2, 6, 4), KEYS), "All are [batch, heads, length, features]"),
    (lambda: attend(t(3, 5, 4), t(3, 6, 4), t(3, 6, 4)), "the shapes do not fit"),
    (lambda: attend(QUERIES, *[t(2, 3, 0, 4)] * 2), "there are no keys"),
    (lambda: attend(QUERIES, KEYS, KEYS, mask=(2, 6)), "the mask cannot be repeated"),
    (lambda: attend(QUERIES, KEYS, KEYS, mask=(1, 2, 3, 5, 6)), "the mask cannot be repeated"),
    (lambda: attend(QUERIES, KEYS, KEYS, factors=(4, 6)), "the factors cannot be repeated"),
    (
        lambda: attend(QUERIES, KEYS, KEYS, bias=(4, 6)),
        *("the bias cannot be repeated", "queries  f32["),
    ),
    (
        lambda: attend(QUERIES, KEYS, KEYS, mask=(2, 5, 6)),
        "insert the heads: ops.expand_dims(x, 1).",
    ),
]
OTHERS: Rows = [
    (lambda: ops.exp([X, X]), "a tensor holds no data yet"),
    (
        lambda: shear(LARGE, [Slope(1, 2, 3), Slope(3, 1, 2)]),
        *("shear: each axis may occur only once in the slopes", "[1, 2, 3, 1]"),
        "from 0 to 3 at most",
    ),
    (lambda: shear(LARGE, [Slope(1, 4, 3)]), "slopes[0].element must be an axis from 0 to 3"),
]
REFUSED = [
    (kind, call, parts)
    for kind, rows in (
        *((DefinitionError, DEFINITIONS), (DTypeError, DTYPES), (ShapeError, SHAPES)),
        (LaminaError, OTHERS),
    )
    for call, *parts in rows
]


@pytest.mark.parametrize(("kind", "call", "parts"), REFUSED)
def test_meaningless_calls_are_refused(kind, call, parts):
    assert "test_ops_errors.py:" in check_refusal(kind, call, *parts)
