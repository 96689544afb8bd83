"""Signatures of parts of a graph: equal ones are computed in equal ways.

A deep network consists of equal blocks. What was found out about a part of one of them, by trying,
is known for the same part of all others.
"""

from __future__ import annotations

from collections.abc import Container, Hashable
from typing import cast, final

from lamina.graph import Tensor


@final
class Signatures:
    """Makes signatures; those of one such object can be compared.

    Args:
        given: stored tensors that none other stands for, whatever its shape.
    """

    def __init__(self, given: Container[Tensor] = ()) -> None:
        self._given = given
        self._kinds: dict[Hashable, int] = {}
        self._kind_of: dict[Tensor, int] = {}
        self._signatures: dict[Hashable, int] = {}

    def of(self, root: Tensor, stored: Container[Tensor]) -> tuple[int, tuple[Tensor, ...]]:
        """The signature of how a tensor is computed, and what is read for that, in order.

        Args:
            root: what is computed.
            stored: the tensors that are read where they are stored.
        """
        # None stands above a tensor whose operands come first.
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
        """A number for all that a tensor says itself."""
        if node not in self._kind_of:
            attributes = sorted((name, exact(value)) for name, value in node.attributes.items())
            kind = (node.op, node.shape, node.dtype, *attributes)
            self._kind_of[node] = self._kinds.setdefault(kind, len(self._kinds))
        return self._kind_of[node]


def exact(value: Hashable) -> Hashable:
    """Tells what is equal and not the same: 0.0 and -0.0, 1 and True."""
    if isinstance(value, tuple):
        return tuple(exact(item) for item in cast(tuple[Hashable, ...], value))
    return (type(value), repr(value)) if isinstance(value, bool | float) else value
