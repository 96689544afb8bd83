"""Signatures of subgraphs: subgraphs of equal signature are lowered equally.

A deep network consists of equal blocks. The lowering of a subgraph of one block is reused for the
same subgraph of all others.
"""

from __future__ import annotations

from collections.abc import Container, Hashable
from typing import cast, final

from lamina.graph import Tensor


@final
class SubgraphSignatures:
    """Computes signatures. Only those of one object can be compared.

    Args:
        given: stored tensors that are themselves part of the signature, not only their shapes.
    """

    def __init__(self, given: Container[Tensor] = ()) -> None:
        self._given = given
        self._kinds: dict[Hashable, int] = {}
        self._kind_of: dict[Tensor, int] = {}
        self._signatures: dict[Hashable, int] = {}

    def of(self, root: Tensor, stored: Container[Tensor]) -> tuple[int, tuple[Tensor, ...]]:
        """The signature of a tensor's expression, and the stored tensors it reads, in order."""
        # None on the stack marks that the tensor below it is visited again, after its operands.
        pending: list[Tensor | None] = [root]
        rows: list[Hashable] = []
        numbers: dict[Tensor, int] = {}
        read: list[Tensor] = []
        while pending:
            node = pending.pop()
            if node is None:
                node = cast(Tensor, pending.pop())
            elif node in numbers:
                continue
            elif node is not root and node in stored:
                numbers[node] = len(rows)
                rows.append((node.shape, node.dtype, node if node in self._given else None))
                read.append(node)
                continue
            elif node.operands:
                pending += (node, None, *node.operands[::-1])
                continue
            operands = [numbers[operand] for operand in node.operands]
            numbers[node] = len(rows)
            rows.append((self._kind(node), *operands))
        return self._signatures.setdefault(tuple(rows), len(self._signatures)), tuple(read)

    def _kind(self, node: Tensor) -> int:
        """A number for a tensor's op, shape, dtype and attributes."""
        if node not in self._kind_of:
            attributes = sorted((name, exact(value)) for name, value in node.attributes.items())
            kind = (node.op, node.shape, node.dtype, *attributes)
            self._kind_of[node] = self._kinds.setdefault(kind, len(self._kinds))
        return self._kind_of[node]


def exact(value: Hashable) -> Hashable:
    """A key that distinguishes equal values: 0.0 and -0.0, 1 and True."""
    if isinstance(value, tuple):
        return tuple(exact(item) for item in cast(tuple[Hashable, ...], value))
    return (type(value), repr(value)) if isinstance(value, bool | float) else value
