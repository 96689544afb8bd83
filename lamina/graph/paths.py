"""Paths and descriptions of tensors, for errors: `"f32[batch, 10]   from net/3:Linear"`."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from weakref import WeakKeyDictionary

from lamina.graph.graph import topological
from lamina.graph.leaves import CONSTANT
from lamina.graph.tensor import Tensor
from lamina.shapes import shape_text


def path_after(operands: Sequence[Tensor], label: str) -> str:
    """`"net/4:Add"`: the path of a tensor made from these, counting what comes before it."""
    return f"net/{_count_before(operands)}:{label}"


# For a tensor that all that comes before another one leads through: how many tensors there are up
# to it, constants and leaves aside, and the leaves among them.
_counted: WeakKeyDictionary[Tensor, tuple[int, frozenset[Tensor]]] = WeakKeyDictionary()


def _count_before(operands: Sequence[Tensor]) -> int:
    """How many tensors these are made of, constants aside, themselves included.

    It is asked at each layer of a network: the count goes back no further than to the last tensor
    on which everything else depends, and goes on from what was counted there.
    """
    count = 0
    leaves: set[Tensor] = set()
    seen: set[Tensor] = set()
    # The latest first, so that all users of a tensor are there before it is.
    waiting: list[tuple[int, Tensor]] = []

    def add(tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            if tensor in seen or tensor.op is CONSTANT:
                continue
            seen.add(tensor)
            if tensor.operands:
                heappush(waiting, (-tensor.number, tensor))
            else:
                leaves.add(tensor)

    add(operands)
    alone = waiting[0][1] if len(waiting) == 1 and not leaves else None
    while waiting:
        _, node = heappop(waiting)
        known = _counted.get(node) if not waiting else None
        if known is not None:
            count += known[0]
            leaves |= known[1]
            break
        count += 1
        add(node.operands)
    if alone is not None:
        _counted[alone] = count, frozenset(leaves)
    return count + len(leaves)


class Described(str):
    """A tensor as text, for the facts of an error; remembers which tensor it is about."""

    tensor: Tensor


def described(tensor: Tensor, path: str = "") -> Described:
    """`"f32[batch, 10]   from net/3:Linear"`, for the facts of an error."""
    text = shape_text(tensor.shape, tensor.dtype)
    path = path or tensor.origin.path
    result = Described(f"{text}   from {path}" if path else text)
    result.tensor = tensor
    return result


def with_final_paths(
    facts: tuple[tuple[str, str], ...], operands: Sequence[Tensor]
) -> tuple[tuple[str, str], ...]:
    """Facts in which tensors have the numbers that a network of all operands would give them.

    While a network is written down, a tensor knows what it was made from, but not the branches
    beside it; where they meet, all are known.
    """
    known = sorted(
        (node for node in topological(operands) if node.op is not CONSTANT),
        key=lambda node: node.number,
    )
    numbers = {node: number for number, node in enumerate(known)}

    def renamed(value: str) -> str:
        if not isinstance(value, Described) or value.tensor not in numbers:
            return value
        _, colon, label = value.tensor.origin.path.partition(":")
        path = f"net/{numbers[value.tensor]}:{label}" if colon else ""
        return described(value.tensor, path)

    return tuple((name, renamed(value)) for name, value in facts)
