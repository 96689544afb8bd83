"""The buffers of a program, while they are named."""

from __future__ import annotations

from typing import final

from lamina.graph import CONSTANT, LEAF, ConstantValue, Graph, Tensor
from lamina.program.program import Buffer
from lamina.shapes import Array, size_of, static


@final
class Buffers:
    """Gives buffers names that people understand, each of them once.

    Args:
        graph: its leaves and constant arrays have buffers from the start.

    Attributes:
        buffers: all of them, by name.
        constants: the values of those that hold constants.
        homes: the buffer of each tensor that has one.
    """

    def __init__(self, graph: Graph) -> None:
        self.buffers: dict[str, Buffer] = {}
        self.constants: dict[str, Array] = {}
        self.homes: dict[Tensor, str] = {}
        # How many buffers wanted a name.
        self._wishes: dict[str, int] = {}
        self._of_value: dict[ConstantValue, str] = {}
        for node in graph.nodes():
            if node.op is LEAF:
                role: str = node.attributes["role"]
                self.homes[node] = self._add(node, role, node.attributes["name"])
            elif _is_constant_array(node):
                self.homes[node] = self._constant(node)

    def of_constants(self, graph: Graph) -> dict[Tensor, str]:
        """The buffers of the constant arrays of another graph, whose leaves lie elsewhere."""
        return {node: self._constant(node) for node in graph.nodes() if _is_constant_array(node)}

    def _constant(self, node: Tensor) -> str:
        """The buffer of a constant array, which equal ones share."""
        value: ConstantValue = node.attributes["value"]
        if value not in self._of_value:
            self._of_value[value] = name = self._add(node, "constant", "constant")
            self.constants[name] = value.array
        return self._of_value[value]

    def temporary(self, node: Tensor, shape: tuple[int, ...] | None = None) -> str:
        """A new buffer in the arena, by default for the tensor alone."""
        return self._add(node, "temporary", readable_name(node), shape)

    def _add(
        self, node: Tensor, kind: str, wanted: str, shape: tuple[int, ...] | None = None
    ) -> str:
        unique, number = wanted, self._wishes.get(wanted, 1)
        while unique in self.buffers:
            number += 1
            unique = f"{wanted}#{number}"
        self._wishes[wanted] = number
        extents = static(node.shape) if shape is None else shape
        self.buffers[unique] = Buffer(unique, kind, extents, node.dtype)
        return unique


def is_leaf(node: Tensor) -> bool:
    """Whether the tensor is a buffer from the start: an input, parameter, state or constant."""
    return node.op is LEAF or node.op is CONSTANT


def _is_constant_array(node: Tensor) -> bool:
    """Whether a tensor is a constant that no expression holds as a number."""
    return node.op is CONSTANT and size_of(static(node.shape)) != 1


def readable_name(node: Tensor) -> str:
    """A name for what computes a tensor."""
    return f"{node.origin.path}.{node.op.name}" if node.origin.path else node.op.name
