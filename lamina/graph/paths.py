"""Paths and descriptions of tensors, for errors: `"f32[batch, 10]   from net/3:Linear"`."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from weakref import WeakKeyDictionary

from lamina.base.shapes import shape_text
from lamina.graph.graph import topological
from lamina.graph.leaves import CONSTANT
from lamina.graph.tensor import Tensor


def path_after(operands: Sequence[Tensor], label: str, name: str | None = None) -> str:
    """`"net/4:Add"`: the path of a tensor made from these; its number counts its ancestors.

    A tensor with a name has that instead: `"net/head:Linear"`.
    """
    return f"net/{_count_before(operands) if name is None else name}:{label}"


# Kept for a tensor on all paths to a later one: the number of tensors up to and including it,
# without constants and leaves, and the leaves among its ancestors.
_counted: WeakKeyDictionary[Tensor, tuple[int, frozenset[Tensor]]] = WeakKeyDictionary()


def _count_before(operands: Sequence[Tensor]) -> int:
    """The number of these tensors and their ancestors, without constants.

    It is called for each layer of a network. So the search ends at the last tensor that is on all
    remaining paths, and adds the count that is kept for that tensor.
    """
    count = 0
    leaves: set[Tensor] = set()
    seen: set[Tensor] = set()
    # The latest first, so that a tensor is visited after all its users.
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
        counted = _counted.get(node) if not waiting else None
        if counted is not None:
            count += counted[0]
            leaves |= counted[1]
            break
        count += not _is_further(node)
        add(node.operands)
    if alone is not None:
        _counted[alone] = count, frozenset(leaves)
    return count + len(leaves)


def _is_further(tensor: Tensor) -> bool:
    """Whether it is a further result of a layer, which has the layer's number."""
    return tensor.op.name == "result"


class Described(str):
    """The description of a tensor, for the facts of an error; keeps the tensor."""

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
    """Facts with the numbers that the tensors would have in a network of all operands.

    While a network is being defined, the number in a tensor's path counts its own ancestors only,
    not other branches. Where branches meet, all are known.
    """
    ancestors = sorted(
        (node for node in topological(operands) if node.op is not CONSTANT),
        key=lambda node: node.number,
    )
    counted = [node for node in ancestors if not _is_further(node)]
    numbers = {node: number for number, node in enumerate(counted)}
    numbers |= {node: numbers[node.operands[0]] for node in ancestors if _is_further(node)}

    def renamed(value: str) -> str:
        if not isinstance(value, Described) or value.tensor not in numbers:
            return value
        before, colon, label = value.tensor.origin.path.partition(":")
        if not before.removeprefix("net/").isdigit():
            return value
        path = f"net/{numbers[value.tensor]}:{label}" if colon else ""
        return described(value.tensor, path)

    return tuple((name, renamed(value)) for name, value in facts)
