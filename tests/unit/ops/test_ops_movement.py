"""Movement with open dimensions, padding and indexing as in NumPy."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.base.shapes import BATCH, Array, Shape, Size, float32
from lamina.graph import CONSTANT, Graph, Tensor, bind_batch, evaluate, leaf, verify
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

PADDINGS: dict[str, Any] = {
    "constant": "constant",
    "reflect": "reflect",
    "replicate": "edge",
    "circular": "wrap",
}
IMAGES = (B, 3, 4)
OPEN: dict[str, tuple[Shape, Move, Callable[[Array], Any]]] = {
    "reshape": ((B, 2, 3), lambda x: ops.reshape(x, (B, 6)), lambda a: a.reshape(-1, 6)),
    "reshape -1": ((B, 2, 3), lambda x: ops.reshape(x, (-1, 3)), lambda a: a.reshape(-1, 3)),
    "reshape inner": ((B, 2, 3), lambda x: ops.reshape(x, (B, -1)), lambda a: a.reshape(-1, 6)),
    "transpose": ((B, 2, 3), lambda x: ops.transpose(x, (2, 0, 1)), lambda a: a.transpose(2, 0, 1)),
    "expand_dims": ((B, 2), lambda x: ops.expand_dims(x, (0, -1)), lambda a: a[None, :, :, None]),
    "squeeze": ((B, 1, 2), lambda x: ops.squeeze(x), lambda a: a[:, 0]),
    "first rows": ((B, 2), lambda x: x[:3], lambda a: a[:3]),
    "last rows": ((B, 2), lambda x: x[-2:], lambda a: a[-2:]),
    "all but the first": ((B, 2), lambda x: x[1:], lambda a: a[1:]),
    "one row": ((B, 2), lambda x: x[-1, 1:], lambda a: a[-1, 1:]),
    "reversed": ((B, 3), lambda x: x[::-1, ::-2], lambda a: a[::-1, ::-2]),
    "every second": ((Size(2), 3), lambda x: x[::2], lambda a: a[::2]),
    "pad": (
        (B, 2),
        lambda x: ops.pad(x, [(1, 2), 1], 3.0),
        lambda a: np.pad(a, [(1, 2), (1, 1)], constant_values=3.0),
    ),
    **{
        f"pad_with {mode}": (
            (B, 3),
            lambda x, mode=mode: ops.pad_with(x, [0, (1, 2)], mode),
            lambda a, theirs=theirs: np.pad(a, [(0, 0), (1, 2)], theirs),
        )
        for mode, theirs in PADDINGS.items()
    },
    "concat": ((B, 2), lambda x: ops.concat([x, x * 2], 0), lambda a: np.concatenate([a, a * 2])),
    "stack": ((B, 2), lambda x: ops.stack([x, x * 2], 1), lambda a: np.stack([a, a * 2], 1)),
    "split": ((Size(2), 2), lambda x: ops.split(x, 2, 0)[1], lambda a: a[len(a) // 2 :]),
    "split sizes": ((B, 5), lambda x: ops.split(x, [2, 3], -1)[1], lambda a: a[:, 2:]),
    "unstack": ((B, 3), lambda x: ops.unstack(x, 1)[2], lambda a: a[:, 2]),
    "flip": ((B, 3), lambda x: ops.flip(x, 0), lambda a: a[::-1]),
    "broadcast_to": (
        (B, 1),
        lambda x: ops.broadcast_to(x, (2, B, 3)),
        lambda a: np.broadcast_to(a, (2, len(a), 3)),
    ),
    "sum_to": ((B, 3), lambda x: ops.sum_to(x, (1, 3)), lambda a: a.sum(0, keepdims=True)),
    "mean": ((B, 3), lambda x: ops.mean(x, 0), lambda a: a.mean(0)),
    "variance": ((B, 3), lambda x: ops.variance(x, correction=1), lambda a: a.var(ddof=1)),
    "matmul": ((B, 3), lambda x: x @ ops.transpose(x), lambda a: a @ a.T),
    "prod": ((B, 2), lambda x: ops.prod(x), lambda a: a.prod()),
    "cumsum": ((B, 2), lambda x: ops.cumsum(x, 0), lambda a: a.cumsum(0)),
    "full": ((B, 2), lambda x: ops.ones_like(x) + x, lambda a: a + 1),
    "arange": (
        (B, 2),
        lambda x: x[:, 0] * ops.arange(B, float32),
        lambda a: a[:, 0] * np.arange(len(a)),
    ),
}
OPEN |= {
    name: (IMAGES, *functions)
    for name, functions in {
        "sort": (lambda x: ops.sort(x, 0), lambda x: np.sort(x, 0)),
        "argsort": (lambda x: ops.argsort(x, 0), lambda x: np.argsort(x, 0, kind="stable")),
        "top_k": (lambda x: ops.top_k(x, 2, 0)[0], lambda x: -np.sort(-x, 0)[:2]),
        "roll": (lambda x: ops.roll(x, 2, 0), lambda x: np.roll(x, 2, 0)),
        "roll backwards": (lambda x: ops.roll(x, -2, 0), lambda x: np.roll(x, -2, 0)),
        "roll as a row": (lambda x: ops.roll(x, 2), lambda x: np.roll(x, 2)),
        "rot90": (lambda x: ops.rot90(x), np.rot90),
        "tile": (lambda x: ops.tile(x, (2, 1, 2)), lambda x: np.tile(x, (2, 1, 2))),
        "repeat": (lambda x: ops.repeat(x, 2, 0), lambda x: np.repeat(x, 2, 0)),
        "tril": (
            lambda x: ops.tril(ops.moveaxis(x, 0, 2)),
            lambda x: np.tril(np.moveaxis(x, 0, 2)),
        ),
        "an array": (lambda x: x[[0, 2, 2]], lambda x: x[[0, 2, 2]]),
        "two arrays": (lambda x: x[[0, 2], [1, -1]], lambda x: x[[0, 2], [1, -1]]),
        "a row for each": (
            lambda x: x[ops.arange(x.shape[0]), :, ops.cast(x[:, 0, 0] > 0, "int32")],
            lambda x: x[np.arange(len(x)), :, (x[:, 0, 0] > 0).astype(int)],
        ),
        "scatter": (
            lambda x: ops.scatter(x, np.array([[[3, 1]], [[1, 1]]]), 9.0, 0),
            lambda x: np.where(
                (np.arange(len(x))[:, None, None] == [3, 1, -1, -1]) & (np.arange(3)[:, None] == 0)
                | ((np.arange(len(x))[:, None, None] == 1) & (np.indices((3, 4)) == 0).all(0)),
                9,
                x,
            ),
        ),
        "pad that crops": (
            lambda x: ops.pad(x, [(1, -2), 0, 0]),
            lambda x: np.concatenate([0 * x[:1], x[:-2]]),
        ),
        "einsum": (lambda x: ops.einsum("b...,b...", x, x), lambda x: np.einsum("b...,b...", x, x)),
        "det": (lambda x: ops.det(x[:, :, :3]), lambda x: np.linalg.det(x[:, :, :3])),
        "solve": (lambda x: ops.solve(np.eye(3, dtype="f4") * 2, x), lambda x: x / 2),
        "diagonal": (lambda x: ops.diagonal(x, 1), lambda x: np.diagonal(x, 1, -2, -1)),
        "norm": (lambda x: ops.norm(x, 2, (0, 1)), lambda x: np.sqrt((x * x).sum((0, 1)))),
    }.items()
}


def bound(shape: Shape, batch: int) -> tuple[int, ...]:
    return tuple(d.coefficient * batch + d.offset if isinstance(d, Size) else d for d in shape)


@pytest.mark.parametrize(("shape", "move", "oracle"), OPEN.values(), ids=OPEN)
def test_open_dimensions_are_bound_later(shape, move, oracle):
    x = tensor(*shape)
    y = move(x)
    slope = gradients(y * y, [x])[0] if y.dtype.is_float else None
    for batch in (4, 5):
        value = np.random.default_rng(0).normal(size=bound(shape, batch)).astype(np.float32)
        expected = oracle(value)
        assert bound(y.shape, batch) == expected.shape
        np.testing.assert_allclose(run(x, y, value, batch), expected, rtol=1e-5, atol=1e-5)
        if slope is None:
            continue
        assert slope.shape == x.shape
        # sum(y * y) grows by 2 * sum(y * dy): check against a difference in float64-free terms.
        direction = np.random.default_rng(1).normal(size=value.shape).astype(np.float32)
        step = 1e-3
        sides = [
            float(np.sum(oracle((value + s * direction).astype(np.float64)) ** 2))
            for s in (step, -step)
        ]
        derivative = float(np.sum(run(x, slope, value, batch) * direction))
        assert derivative == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=2e-3, abs=2e-2)


@pytest.mark.cases(
    "key",
    *(0, -1, (1, 2), (-2, -3), slice(1, 3), slice(None, None, 2), slice(None, None, -1)),
    *(slice(3, 0, -2), slice(-1, -10, -3), slice(5, 1), slice(2, 2, -1), slice(-100, 100)),
    *(Ellipsis, (Ellipsis, 0), (0, Ellipsis, 1), (None, 1), (slice(None), None, 2, None)),
    *((Ellipsis, None), (slice(1, None), slice(None, None, -2), slice(0, 1)), (), None),
    (np.int64(1), slice(np.int64(1), None)),
    ids=str,
)
def test_getitem_equals_numpy_and_its_gradient_is_one_at_the_read_elements(key):
    value = np.arange(60, dtype=np.float32).reshape(4, 3, 5)
    x = tensor(4, 3, 5)
    elements = run(x, x[key], value, 1)
    assert elements.shape == value[key].shape
    assert np.array_equal(elements, value[key])
    expected = np.zeros_like(value)
    expected[key] = 1
    (slope,) = gradients(x[key], [x])
    assert np.array_equal(run(x, slope, expected, 1), expected)


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


def test_getitem_of_arrays_around_an_ellipsis_equals_numpy():
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
        elements = run(x, x[key], value, 1)
        assert elements.shape == expected.shape, key
        assert np.array_equal(elements, expected), key


def test_movements_without_effect_add_no_op():
    x = tensor(B, 3)
    moved = [ops.reshape(x, (B, 3)), ops.transpose(x, (0, 1)), x[:], x[...], ops.pad(x, [0, 0])]
    moved += [ops.concat([x], 0), ops.broadcast_to(x, (B, 3)), ops.flip(x, ())]
    moved.append(ops.sum_to(x, x.shape))
    assert all(y is x for y in moved)


def test_constants_are_as_in_numpy():
    for ours, theirs in (
        (ops.eye(2, 3), np.eye(2, 3)),
        (ops.eye(3, dtype="bool"), np.eye(3, dtype=bool)),
        (ops.linspace(0.5, 2.0, 4), np.linspace(0.5, 2.0, 4)),
    ):
        (array,) = lm.compile([], [ours])()
        np.testing.assert_array_equal(array, theirs)


def test_an_einsum_of_several_tensors_takes_the_cheapest_order():
    shapes = [(100, 2), (2, 100), (100, 3)]
    x = [leaf(f"x{n}", "input", shape, float32) for n, shape in enumerate(shapes)]
    (first, _) = [
        node.attributes["spec"]
        for node in Graph(tuple(x), (("y", ops.einsum("ij,jk,kl->il", *x)),)).nodes()
        if node.op.name == "einsum"
    ]
    assert first == "jk,kl->jl"


def test_a_scatter_at_known_indices_sorts_nothing():
    x = lm.Input(3)
    graph = Graph((x,), (("y", ops.scatter(x, [[0, 0]], [[1.0, 2.0]], 1)),))
    assert all(node.op.name != "order" for node in graph.nodes())
    assert any(node.op is CONSTANT for node in graph.nodes())
