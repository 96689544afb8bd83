"""The ops of Lamina by their names."""

from __future__ import annotations

from lamina.graph import CONSTANT, LEAF, OPS, Op
from lamina.ops import ALL

_OWN = frozenset((LEAF, CONSTANT, *ALL))


def known(name: str) -> Op | None:
    """The op of Lamina that has a name; None if there is none, or it is somebody else's."""
    op = OPS.get(name)
    return op if op in _OWN else None
