"""Every function of `lamina.ops` with floats of 16 bits: the numbers of float32, rounded once.

Squares, sums and what a gradient multiplies are float32 inside, so that they neither overflow nor
lose digits. Generated from the calls of `test_ops_arguments`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from test_ops_arguments import CALLS, called

from lamina import ops
from lamina.base.shapes import (
    Array,
    DType,
    Shape,
    as_dtype,
    bfloat16,
    converted,
    float16,
    float32,
    static,
)
from lamina.errors import GradientError
from lamina.graph import LEAF, Graph, Tensor, evaluate, leaf, rebuild, rewrite
from lamina.ops.differentiate import gradients

pytestmark = pytest.mark.each_case

# In units of the type, of the largest element, or of a small number: a gradient that follows from a
# rounded result may cancel.
ALLOWED, SMALL = 3.0, 0.2


def with_leaves(value: Any, made: Mapping[Tensor, Tensor], dtype: DType) -> Any:
    """An argument that depends on other leaves, of a float type."""
    if isinstance(value, Tensor):

        def rule(node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
            return made[node] if node.op is LEAF else rebuild(node, operands)

        return rewrite(Graph((), (("y", value),)), rule).outputs[0][1]
    if type(value) in (list, tuple):
        return type(value)(with_leaves(part, made, dtype) for part in value)
    return dtype if isinstance(value, str) and value == "float32" else value


def leaves_of(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [x for x in Graph((), (("y", value),)).nodes() if x.op is LEAF]
    rows: Any = value if isinstance(value, list | tuple) else ()
    return [x for one in rows for x in leaves_of(one)]


def results(
    name: str, dtype: DType, largest: float, half: DType
) -> tuple[list[Array], list[Array]]:
    """What a function and its gradients give for numbers that a float of 16 bits holds."""
    generator = np.random.default_rng(0)
    made: dict[Tensor, Tensor] = {}
    feeds: dict[str, Array] = {}

    def add(shape: Shape, element_type: DType, low: float, high: float) -> Tensor:
        """A leaf; its floats are random numbers that have 16 bits."""
        array = generator.uniform(low, high, static(shape))
        narrow = half if element_type.is_float else element_type
        feeds[f"x{len(feeds)}"] = converted(converted(array, narrow.numpy), element_type.numpy)
        return leaf(f"x{len(feeds) - 1}", "input", shape, element_type)

    for x in dict.fromkeys(leaves_of([*CALLS[name].values()])):
        low, high = (-largest, largest) if x.dtype.is_float and largest > 2 else (0.1, 2.0)
        made[x] = add(x.shape, dtype if x.dtype.is_float else x.dtype, low, high)
    values = {label: with_leaves(value, made, dtype) for label, value in CALLS[name].items()}
    outputs = called(getattr(ops, name), values)
    floats = [x for x in made.values() if x.dtype.is_float]
    slopes: list[Tensor] = []
    for y in [y for y in outputs if y.dtype.is_float and floats]:
        try:
            slopes += gradients(y, floats, add(y.shape, dtype, 0.5, 1.5))
        except GradientError:
            break
    leaves = [leaf(label, "input", x.shape, as_dtype(x.dtype)) for label, x in feeds.items()]
    graph = Graph(tuple(leaves), tuple((str(n), y) for n, y in enumerate([*outputs, *slopes])))
    with np.errstate(all="ignore"):
        every = [*evaluate(graph, feeds)[0].values()]
    return every[: len(outputs)], every[len(outputs) :]


# It takes no other type than float32, and says so.
REFUSED = {"round_to_tf32"}


# Squares of 300 overflow in float16.
@pytest.mark.parametrize("name", sorted(CALLS.keys() - REFUSED))
def test_numbers_are_rounded_once(name):
    check_rounding(name, bfloat16, 2.0)
    check_rounding(name, float16, 300.0)


def check_rounding(name: str, half: DType, largest: float) -> None:
    narrow, wide = (results(name, dtype, largest, half) for dtype in (half, float32))
    # The gradient of a function whose result overflows need not be finite.
    is_finite = all(np.isfinite(converted(y, np.dtype("float64"))).all() for y in narrow[0])
    pairs = [*zip(narrow[0], wide[0], strict=True)]
    for result, expected in pairs + [*zip(narrow[1], wide[1], strict=True)] * is_finite:
        if not as_dtype(result.dtype).is_half:
            np.testing.assert_array_equal(result, expected)
            continue
        rounded = converted(converted(expected, half.numpy), np.dtype("float64"))
        inside = np.isfinite(rounded)
        widened = converted(result, np.dtype("float64"))
        assert np.array_equal(np.isfinite(widened), inside)
        if inside.any():
            scale = max(np.abs(expected[inside]).max(), SMALL)
            error = np.abs(widened[inside] - expected[inside]).max()
            assert error <= ALLOWED * half.epsilon * scale
