"""Movement with open dimensions, indexing as in NumPy, and the texts of errors."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lamina import ops
from lamina.base.shapes import BATCH, Array, Shape, Size, float32
from lamina.errors import DefinitionError, DTypeError, ShapeError
from lamina.graph import Graph, Tensor, bind_batch, evaluate, leaf, verify
from lamina.ops.differentiate import gradients

B = BATCH


def tensor(*shape: Any) -> Tensor:
    return leaf("x", "input", shape, float32)


def run(x: Tensor, y: Tensor, value: Array, batch: int) -> Array:
    graph = Graph((x,), (("y", y),))
    verify(graph)
    bound = bind_batch(graph, batch)
    verify(bound)
    return evaluate(bound, {"x": value})[0]["y"]


Move = Callable[[Tensor], Tensor]

OPEN: list[tuple[str, Shape, Move, Shape, Callable[[Array], Array]]] = [
    ("reshape", (B, 2, 3), lambda x: ops.reshape(x, (B, 6)), (B, 6), lambda a: a.reshape(-1, 6)),
    (
        "reshape -1",
        (B, 2, 3),
        lambda x: ops.reshape(x, (-1, 3)),
        (Size(2), 3),
        lambda a: a.reshape(-1, 3),
    ),
    (
        "reshape inner",
        (B, 2, 3),
        lambda x: ops.reshape(x, (B, -1)),
        (B, 6),
        lambda a: a.reshape(len(a), -1),
    ),
    (
        "transpose",
        (B, 2, 3),
        lambda x: ops.transpose(x, (2, 0, 1)),
        (3, B, 2),
        lambda a: a.transpose(2, 0, 1),
    ),
    (
        "expand_dims",
        (B, 2),
        lambda x: ops.expand_dims(x, (0, -1)),
        (1, B, 2, 1),
        lambda a: a[None, :, :, None],
    ),
    ("squeeze", (B, 1, 2), lambda x: ops.squeeze(x), (B, 2), lambda a: a[:, 0]),
    ("first rows", (B, 2), lambda x: x[:3], (3, 2), lambda a: a[:3]),
    ("last rows", (B, 2), lambda x: x[-2:], (2, 2), lambda a: a[-2:]),
    ("all but the first", (B, 2), lambda x: x[1:], (Size(1, -1), 2), lambda a: a[1:]),
    ("one row", (B, 2), lambda x: x[-1, 1:], (1,), lambda a: a[-1, 1:]),
    ("reversed", (B, 3), lambda x: x[::-1, ::-2], (B, 2), lambda a: a[::-1, ::-2]),
    ("every second", (Size(2), 3), lambda x: x[::2], (B, 3), lambda a: a[::2]),
    (
        "pad",
        (B, 2),
        lambda x: ops.pad(x, [(1, 2), 1], 3.0),
        (Size(1, 3), 4),
        lambda a: np.pad(a, [(1, 2), (1, 1)], constant_values=3.0),
    ),
    (
        "concat",
        (B, 2),
        lambda x: ops.concat([x, x * 2], 0),
        (Size(2), 2),
        lambda a: np.concatenate([a, a * 2]),
    ),
    (
        "stack",
        (B, 2),
        lambda x: ops.stack([x, x * 2], 1),
        (B, 2, 2),
        lambda a: np.stack([a, a * 2], 1),
    ),
    ("split", (Size(2), 2), lambda x: ops.split(x, 2, 0)[1], (B, 2), lambda a: a[len(a) // 2 :]),
    ("split sizes", (B, 5), lambda x: ops.split(x, [2, 3], -1)[1], (B, 3), lambda a: a[:, 2:]),
    ("unstack", (B, 3), lambda x: ops.unstack(x, 1)[2], (B,), lambda a: a[:, 2]),
    ("flip", (B, 3), lambda x: ops.flip(x, 0), (B, 3), lambda a: a[::-1]),
    (
        "broadcast_to",
        (B, 1),
        lambda x: ops.broadcast_to(x, (2, B, 3)),
        (2, B, 3),
        lambda a: np.broadcast_to(a, (2, len(a), 3)),
    ),
    ("sum_to", (B, 3), lambda x: ops.sum_to(x, (1, 3)), (1, 3), lambda a: a.sum(0, keepdims=True)),
    ("mean", (B, 3), lambda x: ops.mean(x, 0), (3,), lambda a: a.mean(0)),
    ("variance", (B, 3), lambda x: ops.variance(x, correction=1), (), lambda a: a.var(ddof=1)),
    ("matmul", (B, 3), lambda x: x @ ops.transpose(x), (B, B), lambda a: a @ a.T),
    ("prod", (B, 2), lambda x: ops.prod(x), (), lambda a: a.prod()),
    ("cumsum", (B, 2), lambda x: ops.cumsum(x, 0), (B, 2), lambda a: a.cumsum(0)),
    ("full", (B, 2), lambda x: ops.ones_like(x) + x, (B, 2), lambda a: a + 1),
    (
        "arange",
        (B, 2),
        lambda x: x[:, 0] * ops.arange(B, float32),
        (B,),
        lambda a: a[:, 0] * np.arange(len(a)),
    ),
]


@pytest.mark.parametrize(
    ("shape", "move", "expected", "oracle"), [pytest.param(*row[1:], id=row[0]) for row in OPEN]
)
def test_open_dimensions_are_bound_later(
    shape: Shape, move: Move, expected: Shape, oracle: Callable[[Array], Array]
) -> None:
    x = tensor(*shape)
    y = move(x)
    assert y.shape == expected
    (slope,) = gradients(y * y, [x])
    assert slope.shape == x.shape
    for batch in (4, 5):
        bound = tuple(batch * d.coefficient if isinstance(d, Size) else d for d in shape)
        value = np.random.default_rng(0).normal(size=bound).astype(np.float32)
        np.testing.assert_allclose(run(x, y, value, batch), oracle(value), rtol=1e-5, atol=1e-5)
        # sum(y * y) grows by 2 * sum(y * dy): check against a difference in float64-free terms.
        direction = np.random.default_rng(1).normal(size=bound).astype(np.float32)
        step = 1e-3
        sides = [
            float(np.sum(oracle((value + s * direction).astype(np.float64)) ** 2))
            for s in (step, -step)
        ]
        found = float(np.sum(run(x, slope, value, batch) * direction))
        assert found == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=2e-3, abs=2e-2)


KEYS = [
    0,
    -1,
    (1, 2),
    (-2, -3),
    slice(1, 3),
    slice(None, None, 2),
    slice(None, None, -1),
    slice(3, 0, -2),
    slice(-1, -10, -3),
    slice(5, 1),
    slice(2, 2, -1),
    slice(-100, 100),
    Ellipsis,
    (Ellipsis, 0),
    (0, Ellipsis, 1),
    (None, 1),
    (slice(None), None, 2, None),
    (Ellipsis, None),
    (slice(1, None), slice(None, None, -2), slice(0, 1)),
    (),
    None,
    (np.int64(1), slice(np.int64(1), None)),
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_getitem_equals_numpy(key: Any) -> None:
    value = np.arange(60, dtype=np.float32).reshape(4, 3, 5)
    x = tensor(4, 3, 5)
    found = run(x, x[key], value, 1)
    assert found.shape == value[key].shape
    assert np.array_equal(found, value[key])


def random_key(generator: random.Random, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """A key with arrays, masks and `...` in any order, in which each entry fits its axis."""
    entries: list[Any] = []
    axes = list(shape)
    # Before `...` entries are for the first axes, and after it for the last ones.
    before = generator.randrange(4)
    for number in range(before + generator.randrange(4)):
        kind = generator.choice(["none", "slice", "int", "list", "array", "mask"])
        if kind == "none" or not axes:
            entries.append(None)
            continue
        extent = axes.pop(0 if number < before else -1)
        entries.append(
            {
                "slice": slice(generator.choice([None, 0, 1, -2]), None, generator.choice([1, -1])),
                "int": generator.randrange(-extent, extent),
                "list": [generator.randrange(extent) for _ in range(2)],
                "array": np.array([[0, -1], [generator.randrange(-extent, extent), 1]]),
                "mask": np.arange(extent) < 2,
            }[kind]
        )
    last = entries[before:][::-1]
    return (*entries[:before], Ellipsis, *last)


def test_getitem_of_arrays_around_an_ellipsis_equals_numpy() -> None:
    value = np.arange(72, dtype=np.float32).reshape(2, 3, 4, 3)
    x = tensor(*value.shape)
    generator = random.Random(0)
    keys: list[Any] = [
        (slice(None), [0, 2], ...),
        (np.eye(2, 3, dtype=bool), ...),
        (slice(None), np.eye(3, 4, dtype=bool), [0, 1, 2]),
        (0, [0, 1], ..., slice(None), [1, 2]),
    ]
    for key in keys + [random_key(generator, value.shape) for _ in range(200)]:
        expected = value[key]
        found = run(x, x[key], value, 1)
        assert found.shape == expected.shape, key
        assert np.array_equal(found, expected), key


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_gradient_of_getitem_is_one_at_the_read_elements(key: Any) -> None:
    x = tensor(4, 3, 5)
    (slope,) = gradients(x[key], [x])
    expected = np.zeros((4, 3, 5), np.float32)
    expected[key] = 1
    assert np.array_equal(run(x, slope, expected, 1), expected)


def test_movements_without_effect_add_no_op() -> None:
    x = tensor(B, 3)
    moved = (
        ops.reshape(x, (B, 3)),
        ops.transpose(x, (0, 1)),
        x[:],
        x[...],
        ops.pad(x, [0, 0]),
        ops.concat([x], 0),
        ops.broadcast_to(x, (B, 3)),
        ops.flip(x, ()),
        ops.sum_to(x, x.shape),
    )
    assert all(y is x for y in moved)


ERRORS: list[tuple[Callable[[], Any], type[Exception], list[str]]] = [
    (
        lambda: ops.reshape(tensor(B, 6), (B, 5)),
        ShapeError,
        ["reshape: the shapes hold different numbers of elements", "f32[batch, 6]", "[batch, 5]"],
    ),
    (
        lambda: ops.reshape(tensor(B, 6), (-1, 4)),
        ShapeError,
        ["the dimension -1 cannot be inferred", "f32[batch, 6]", "[-1, 4]"],
    ),
    (
        lambda: ops.sum(tensor(B, 6), 2),
        ShapeError,
        ["there is no axis 2", "tensor    f32[batch, 6]", "an axis from -2 to 1"],
    ),
    (
        lambda: ops.transpose(tensor(2, 3), (0, 0)),
        ShapeError,
        ["the axes are not a permutation", "(0, 0)"],
    ),
    (
        lambda: tensor(2, 3) + tensor(2, 4),
        ShapeError,
        [
            "add: the shapes differ in axis -1, 3 against 4",
            "left   f32[2, 3]",
            "right  f32[2, 4]",
            "Dimensions must be equal, or one of them 1",
        ],
    ),
    (lambda: tensor(2, 3)[2], ShapeError, ["index 2 does not fit axis 0, which has extent 2"]),
    (lambda: tensor(2, 3)[0, 0, 0], ShapeError, ["too many indices", "3 indices"]),
    (
        lambda: tensor(2, 3)[[0.5, 1]],
        DTypeError,
        ["slices, ..., None, and arrays of ints or bools", "found   ndarray", "np.asarray(indices"],
    ),
    (
        lambda: tensor(2, 3)[tensor(2, 3) > 0],
        DTypeError,
        ["arrays of ints or bools", "found   bool[2, 3]", "ops.where(condition, a, b)"],
    ),
    (
        lambda: tensor(2, 3)[:, [0, 3]],
        ShapeError,
        ["index 3 does not fit axis 1, which has extent 3", "tensor  f32[2, 3]"],
    ),
    (lambda: tensor(B, 3)[[0, -1]], ShapeError, ["index -1 does not fit axis 0"]),
    (
        lambda: tensor(B, 3)[np.ones(2, bool)],
        ShapeError,
        ["the mask does not have the shape of its axes", "expected  [batch]", "found     [2]"],
    ),
    (
        lambda: tensor(4, 3)[[0, 1], [0, 1, 2]],
        ShapeError,
        ["the arrays of indices do not fit together", "axis 0  i64[2]", "axis 1  i64[3]"],
    ),
    (lambda: tensor(B, 3)[::2], ShapeError, ["slice: axis 0 has no range 0:batch:2"]),
    (
        lambda: ops.concat([tensor(2, 3), tensor(3, 3)], 1),
        ShapeError,
        [
            *("differ in an axis other than 1", "tensor 0  f32[2, 3]", "tensor 1  f32[3, 3]"),
            "Axis 0 differs, 2 against 3: only axis 1 may differ.",
        ],
    ),
    (
        lambda: ops.split(tensor(2, 5), 2, 1),
        ShapeError,
        ["axis 1 of extent 5 cannot be split into these sizes"],
    ),
    (lambda: ops.squeeze(tensor(2, 5), 1), ShapeError, ["axis 1 does not have extent 1"]),
    (lambda: ops.expand_dims(tensor(2), 3), ShapeError, ["the new axes do not fit"]),
    (
        lambda: ops.pad(tensor(2, 5), [1]),
        DefinitionError,
        ["widths must be a whole number, or a pair", "of 2 axes", "found     [1]"],
    ),
    (
        lambda: ops.broadcast_to(tensor(2, 5), (5, 2)),
        ShapeError,
        ["cannot be repeated to this shape", "[5, 2]"],
    ),
    (lambda: ops.unstack(tensor(B, 5)), ShapeError, ["the extent of axis 0 depends on the batch"]),
    (lambda: ops.max(tensor(2, 0), 1), ShapeError, ["axis 1 is empty"]),
    (
        lambda: tensor(B, 3) @ tensor(4, 5),
        ShapeError,
        [
            "matmul: two axes that must be equal differ, 3 against 4",
            "left   f32[batch, 3]",
            "right  f32[4, 5]",
            "ops.transpose",
        ],
    ),
    (lambda: ops.outer(tensor(2, 2), tensor(2)), ShapeError, ["outer: two tensors with one axis"]),
    (
        lambda: ops.einsum("ij->ii", tensor(2, 2)),
        ShapeError,
        ["einsum: a letter occurs twice in the result", "ij->ii"],
    ),
    (
        lambda: ops.einsum("..i->i", tensor(2, 2)),
        ShapeError,
        ["einsum: only letters, and ... once in each tensor, may name axes"],
    ),
    (
        lambda: ops.einsum("ij,jk->ik", tensor(2, 3), tensor(4, 5)),
        ShapeError,
        ["einsum: two axes that must be equal differ, 3 against 4"],
    ),
    (
        lambda: ops.take(tensor(2, 3), tensor(2)),
        DTypeError,
        ["take: indices must be integers", "f32[2]", "ops.cast(x, 'int64')"],
    ),
]


@pytest.mark.parametrize(("call", "kind", "texts"), ERRORS)
def test_errors_state_the_expected_and_the_found_value(
    call: Callable[[], Any], kind: type[Exception], texts: list[str]
) -> None:
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    assert all(text in message for text in texts), message
    assert "test_ops_movement.py:" in message.splitlines()[0]
