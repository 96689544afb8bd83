"""Signatures of parts of a graph: equal ones are computed in equal ways.

A deep network consists of equal blocks. What was found out about a part of one of them, by trying,
is known for the same part of all others.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import cast, final

from lamina.graph import Tensor

Signature = tuple[Hashable, ...]


@final
class Signatures:
    """Makes signatures; those of one such object can be compared."""

    def __init__(self) -> None:
        self._kinds: dict[Hashable, int] = {}
        self._kind_of: dict[Tensor, int] = {}

    def of(self, roots: Iterable[Tensor], stored: Mapping[Tensor, Hashable]) -> Signature:
        """The signature of some tensors.

        Args:
            roots: what is computed.
            stored: the tensors that are read where they are stored, or are stored there
                themselves, if they are among the roots; equal values stand for one place.
        """
        # None stands above a tensor whose operands come first.
        pending: list[Tensor | None] = [*roots]
        inside = set(pending)
        pending.reverse()
        rows: list[Hashable] = []
        numbers: dict[Tensor, int] = {}
        places: dict[Hashable, int] = {}
        while pending:
            node = pending.pop()
            if node is None:
                node = cast(Tensor, pending.pop())
            elif node in numbers:
                continue
            elif node in stored and node not in inside:
                numbers[node] = len(rows)
                place = places.setdefault(stored[node], len(places))
                rows.append((place, node.shape, node.dtype))
                continue
            elif node.operands:
                pending += (node, None, *node.operands[::-1])
                continue
            place = -1
            if node in stored:
                place = places.setdefault(stored[node], len(places))
            numbers[node] = len(rows)
            operands = [numbers[operand] for operand in node.operands]
            rows.append((place, self._kind(node), node in inside, *operands))
        return tuple(rows)

    def _kind(self, node: Tensor) -> int:
        """A number for all that a tensor says itself."""
        if node not in self._kind_of:
            attributes = sorted((name, _exact(value)) for name, value in node.attributes.items())
            kind = (node.op, node.shape, node.dtype, *attributes)
            self._kind_of[node] = self._kinds.setdefault(kind, len(self._kinds))
        return self._kind_of[node]


def _exact(value: Hashable) -> Hashable:
    """Tells what is equal and not the same: 0.0 and -0.0, 1 and True."""
    if isinstance(value, tuple):
        return tuple(_exact(item) for item in cast(tuple[Hashable, ...], value))
    return (type(value), repr(value)) if isinstance(value, bool | float) else value
