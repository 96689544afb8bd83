"""The named buffers of a program under construction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from lamina.base.shapes import Array, size_of, static
from lamina.graph import CONSTANT, LEAF, ConstantValue, Graph, Tensor
from lamina.program.program import Buffer


@final
class Buffers:
    """Creates buffers, each with a readable and unique name.

    Args:
        graph: the graph; its leaves and constant arrays get buffers at once.
        leaves: further leaves that get buffers.

    Attributes:
        buffers: all buffers by name.
        constants: the values of the constant buffers by name.
        buffer_of: the buffer name of each tensor that has a buffer.
    """

    def __init__(self, graph: Graph, leaves: Iterable[Tensor] = ()) -> None:
        self.buffers: dict[str, Buffer] = {}
        self.constants: dict[str, Array] = {}
        self.buffer_of: dict[Tensor, str] = {}
        # The last number given to each base name.
        self._last_number: dict[str, int] = {}
        self._constant_buffers: dict[ConstantValue, str] = {}
        for node in dict.fromkeys((*graph.nodes(), *leaves)):
            if node.op is LEAF:
                role: str = node.attributes["role"]
                self.buffer_of[node] = self._add(node, role, node.attributes["name"])
            elif node.op is CONSTANT and not is_number(node):
                self.buffer_of[node] = self._constant(node)

    def of_constants(self, graph: Graph) -> dict[Tensor, str]:
        """The buffers of another graph's constant arrays. Its leaves get no buffers here."""
        arrays = (node for node in graph.nodes() if node.op is CONSTANT and not is_number(node))
        return {node: self._constant(node) for node in arrays}

    def _constant(self, node: Tensor) -> str:
        """The buffer of a constant array. Equal arrays share one buffer."""
        value: ConstantValue = node.attributes["value"]
        if value not in self._constant_buffers:
            self._constant_buffers[value] = name = self._add(node, "constant", "constant")
            self.constants[name] = value.array
        return self._constant_buffers[value]

    def temporary(self, node: Tensor, shape: tuple[int, ...] | None = None) -> str:
        """A new buffer in the arena, named after a tensor and by default of its shape."""
        return self._add(node, "temporary", readable_name(node), shape)

    def _add(
        self, node: Tensor, kind: str, base_name: str, shape: tuple[int, ...] | None = None
    ) -> str:
        unique, number = base_name, self._last_number.get(base_name, 1)
        while unique in self.buffers:
            number += 1
            unique = f"{base_name}#{number}"
        self._last_number[base_name] = number
        extents = static(node.shape) if shape is None else shape
        self.buffers[unique] = Buffer(unique, kind, extents, node.dtype)
        return unique


def is_leaf(node: Tensor) -> bool:
    """Whether the tensor is not computed: an input, parameter, state or constant."""
    return node.op is LEAF or node.op is CONSTANT


def is_number(node: Tensor) -> bool:
    """Whether the tensor is a constant that becomes a literal in expressions and has no buffer."""
    return node.op is CONSTANT and size_of(static(node.shape)) == 1


def readable_name(node: Tensor) -> str:
    """The path of the layer that made a tensor, and the name of its op."""
    return f"{node.origin.path}.{node.op.name}" if node.origin.path else node.op.name
