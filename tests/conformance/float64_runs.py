"""What tests of mixed precision compare with: the same computation in float64."""

from collections.abc import Callable
from functools import partial

import ml_dtypes
import numpy as np

from lamina import ops
from lamina.base.shapes import Array, DType, bfloat16, float16, float32, float64, static
from lamina.compiler.unroll import unroll
from lamina.graph import CONSTANT, LEAF, Graph, Tensor, leaf, reached_ends, rebuild, rewrite
from lamina.ops.lowering_rules import Generator, Movement

Noise = Callable[[np.random.Generator], Array]

# By the type: the largest relative error of one rounding, half a unit in the last place of 1.
UNITS = {bfloat16: 2.0**-8, float16: 2.0**-11, float32: 2.0**-24}


def in_float64(graph: Graph) -> Graph:
    """The graph with all float32 numbers in float64, but for random numbers, which keep their bits.

    It is fed the same arrays: `evaluate` converts them.
    """
    inputs: list[Tensor] = []

    def wide(dtype: DType) -> DType:
        return float64 if dtype == float32 else dtype

    def rule(node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        if node.op is LEAF:
            name, role = node.attributes["name"], node.attributes["role"]
            inputs.append(leaf(name, role, node.shape, wide(node.dtype)))
            return inputs[-1]
        is_given = node.op is CONSTANT or isinstance(node.op.lowering, Generator)
        if is_given and node.dtype.is_float:
            # Random numbers as a float32 graph has them.
            narrow = node.op is not CONSTANT and "dtype" in node.attributes
            return ops.cast(
                rebuild(node, operands, **({"dtype": float32} if narrow else {})), float64
            )
        types = {name: float64 for name, value in node.attributes.items() if value == float32}
        return rebuild(node, operands, **types)

    simple = unroll(graph)
    # The leaves that are replaced are no inputs while the graph is rewritten.
    outputs = rewrite(Graph((), simple.outputs), rule).outputs
    return Graph(tuple(x for x in inputs if x.attributes["role"] == "input"), outputs)


def root_mean_square(x: Array) -> float:
    """Of all elements; 0 if there are none."""
    return float(np.sqrt(np.mean(np.square(x.astype("float64"))))) if x.size else 0.0


def with_noise(graph: Graph, half: DType) -> tuple[Graph, dict[str, Noise]]:
    """A float64 graph in which the operands of products are changed at random, by up to a rounding.

    A computed operand is changed once for all of its users, below movements; a parameter or an
    input where it is multiplied.

    Returns:
        The graph, and for each of its new leaves a function that draws a value.
    """
    noises: dict[str, Noise] = {}
    noisy: dict[Tensor, Tensor] = {}

    def changed(x: Tensor) -> Tensor:
        if x not in noisy:
            name, shape = f"noise{len(noises)}", static(x.shape)
            noises[name] = partial(_drawn, shape=shape, half=half)
            least = float(ml_dtypes.finfo(half.numpy).tiny)
            size = ops.where(ops.equal(x, 0.0), 0.0, ops.maximum(ops.abs(x), least))
            noisy[x] = x + size * leaf(name, "input", shape, float64)
        return noisy[x]

    chosen = {
        source
        for node in graph.nodes()
        if node.op.multiplies
        for source in reached_ends(node.operands, lambda x: not _moves(x), lambda x: x.operands)
        if source.op not in (LEAF, CONSTANT)
    }

    def rule(node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        if node.op.multiplies:
            pairs = zip(node.operands, operands, strict=True)
            operands = tuple(changed(new) if _has_leaves(old) else new for old, new in pairs)
        new = rebuild(node, operands)
        return changed(new) if node in chosen else new

    outputs = rewrite(Graph((), graph.outputs), rule).outputs
    return Graph((), outputs), noises


def _drawn(generator: np.random.Generator, shape: tuple[int, ...], half: DType) -> Array:
    return UNITS[half] * generator.uniform(-1, 1, shape)


def _moves(x: Tensor) -> bool:
    return isinstance(x.op.lowering, Movement) and all(y.dtype.is_float for y in x.operands)


def _has_leaves(x: Tensor) -> bool:
    ends = reached_ends([x], lambda one: not _moves(one), lambda one: one.operands)
    return any(one.op in (LEAF, CONSTANT) for one in ends)
