"""Helpers of the tests of recurrences."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lamina import ops
from lamina.base.shapes import Array, DType, as_dtype, float64, static
from lamina.graph import Graph, Tensor, constant, leaf
from lamina.ops.differentiate import gradients

Tensors = Sequence[Tensor]


Step = tuple[Tensors, Tensors]


class Leaves:
    """Makes leaves with values from a fixed seed."""

    def __init__(self, dtype: DType = float64) -> None:
        self.dtype = dtype
        self.tensors: list[Tensor] = []
        self.feeds: dict[str, Array] = {}
        self.generator = np.random.default_rng(0)

    def add(self, *shape: int, role: str = "input") -> Tensor:
        values = self.generator.normal(0.2, 0.7, shape)
        return self.of(np.asarray(values, self.dtype.numpy), role)

    def of(self, array: Array, role: str = "input") -> Tensor:
        name = f"x{len(self.tensors)}"
        self.tensors.append(leaf(name, role, array.shape, as_dtype(array.dtype)))
        self.feeds[name] = array
        return self.tensors[-1]


LENGTH = 5


def lstm(
    x: Leaves, length: int = LENGTH, features: int = 4, batch: int = 3, **options: Any
) -> Tensors:
    """Both states after each iteration, and a further result."""

    def step(states: Tensors, elements: Tensors, constants: Tensors) -> Step:
        weight, bias = constants
        total = elements[0] + states[0] @ weight + bias
        let_in, keep, new, let_out = ops.split(total, 4, -1)
        cell = ops.sigmoid(keep) * states[1] + ops.sigmoid(let_in) * ops.tanh(new)
        return [ops.sigmoid(let_out) * ops.tanh(cell), cell], [ops.sum(total, 1)]

    states = [x.add(batch, features), x.add(batch, features)]
    gates = 4 * features
    constants = [x.add(features, gates, role="parameter"), x.add(gates, role="parameter")]
    sequences = [x.add(length, batch, gates)]
    final, further = ops.recurrence(step, states, sequences, constants, **options)
    return [*final, *further]


MASK = np.linspace(0.25, 1.0, 6).reshape(2, 3)


MIXING = np.linspace(-0.5, 0.5, 9).reshape(3, 3)


def with_arrays(x: Leaves) -> Tensors:
    """Arrays inside an iteration: a factor, an operand of a product, a result, and a new state."""

    def step(states: Tensors, elements: Tensors, constants: Tensors) -> Step:
        mixed = states[0] @ MIXING + elements[0] * MASK
        return [ops.tanh(mixed @ constants[0]), constant(MASK)], [constant(MASK), states[1] * 2]

    initial = [x.add(2, 3), x.add(2, 3)]
    states, further = ops.recurrence(step, initial, [x.add(LENGTH, 2, 3)], [x.add(3, 3)])
    return [*states, *further, further[0] * MASK]


def graph_of(outputs: Tensors, leaves: Leaves) -> Graph:
    inputs = tuple(x for x in leaves.tensors if x.attributes["role"] == "input")
    return Graph(inputs, tuple((f"y{n}", tensor) for n, tensor in enumerate(outputs)))


def gradients_of(graph: Graph, leaves: Leaves) -> Graph:
    """The gradients of a weighted sum of all results."""
    total = ops.sum(ops.full((1,), 0.0, float64))
    generator = np.random.default_rng(1)
    for _, tensor in graph.outputs:
        if tensor.dtype.is_float:
            weights = generator.uniform(0.5, 1.5, static(tensor.shape))
            total = total + ops.sum(ops.cast(tensor, "float64") * weights)
    floats = [x for x in leaves.tensors if x.dtype.is_float]
    slopes = gradients(total, floats)
    return Graph(graph.inputs, tuple((f"d{n}", x) for n, x in enumerate(slopes)))
