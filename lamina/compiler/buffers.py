"""The buffers of a program, while they are named."""

from __future__ import annotations

from typing import final

from lamina.graph import CONSTANT, LEAF, Graph, Tensor
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
        for node in graph.nodes():
            if node.op is LEAF:
                role: str = node.attributes["role"]
                self.homes[node] = self._add(node, role, node.attributes["name"])
            elif node.op is CONSTANT and size_of(static(node.shape)) != 1:
                self.homes[node] = self._add(node, "constant", "constant")
                self.constants[self.homes[node]] = node.attributes["value"].array

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


def readable_name(node: Tensor) -> str:
    """A name for what computes a tensor."""
    return f"{node.origin.path}.{node.op.name}" if node.origin.path else node.op.name
