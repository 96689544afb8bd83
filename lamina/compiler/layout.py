"""Layouts: in which order the axes of a tensor lie in memory.

Tensors are computed in the order in which they are made, and a transpose only says how its users
see them. So transposes sink: through elementwise ops, windows, sums and the like, into the labels
of contractions, until nothing is left of them, or an op has to see the axes as they were written.
Where convolutions have their channels last, all that is computed from their results follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lamina import ops
from lamina.graph import Graph, Tensor, labelled, rebuild
from lamina.ops.lowering_rules import Contracting, Elementwise, Reduction
from lamina.ops.movement import reshaped_blocks
from lamina.ops.windows import Slope
from lamina.records import frozen_dataclass
from lamina.shapes import size_of, static


@frozen_dataclass
class _Seen:
    """A tensor and how its users see it.

    Attributes:
        tensor: as it is computed.
        axes: which of its axes each axis is that the users see.
    """

    tensor: Tensor
    axes: tuple[int, ...]

    @property
    def is_plain(self) -> bool:
        return self.axes == tuple(range(len(self.axes)))

    def shown(self) -> Tensor:
        """The tensor with its axes as users see them."""
        return ops.transpose(self.tensor, self.axes)

    def at(self, axes: Sequence[int]) -> tuple[int, ...]:
        """The tensor's own axes, in rising order."""
        return tuple(sorted(self.axes[axis] for axis in axes))


def _plain(tensor: Tensor) -> _Seen:
    return _Seen(tensor, tuple(range(tensor.rank)))


def sink_transposes(graph: Graph) -> Graph:
    """The graph with as few transposes between its ops as there can be."""
    seen: dict[Tensor, _Seen] = {}
    for node in graph.nodes():
        with labelled(node.origin):
            seen[node] = _sunk(node, [seen[operand] for operand in node.operands])

    def shown(node: Tensor) -> Tensor:
        with labelled(node.origin):
            return seen[node].shown()

    return Graph(
        tuple(seen[leaf].tensor for leaf in graph.inputs),
        tuple((name, shown(tensor)) for name, tensor in graph.outputs),
        tuple((seen[leaf].tensor, shown(tensor)) for leaf, tensor in graph.updates),
    )


def _sunk(node: Tensor, operands: list[_Seen]) -> _Seen:
    """The node on tensors in their own order, where that is possible."""
    if node.op.name == "transpose":
        (x,) = operands
        order: tuple[int, ...] = node.attributes["axes"]
        return _Seen(x.tensor, tuple(x.axes[axis] for axis in order))
    if all(x.is_plain for x in operands):
        return _plain(rebuild(node, tuple(x.tensor for x in operands)))
    lowering = node.op.lowering
    sunk: _Seen | None = None
    if isinstance(lowering, Elementwise):
        sunk = _elementwise(node, operands)
    elif isinstance(lowering, Contracting):
        sunk = _contraction(node, operands)
    elif isinstance(lowering, Reduction):
        sunk = _reduction(node, operands[0])
    elif node.op.name in _MOVEMENTS:
        sunk = _MOVEMENTS[node.op.name](node, operands[0])
    elif node.op.name == "concat":
        sunk = _concat(node, operands)
    return sunk or _plain(rebuild(node, tuple(x.shown() for x in operands)))


def _inverse(axes: Sequence[int]) -> list[int]:
    return sorted(range(len(axes)), key=axes.__getitem__)


def _ordered_as(x: _Seen, axes: tuple[int, ...]) -> Tensor:
    """A tensor that broadcasts, in the order in which a larger one is computed."""
    if x.axes == axes:
        return x.tensor
    if not x.axes:
        return x.tensor
    shown = x.shown()
    lead = len(axes) - shown.rank
    return ops.transpose(ops.reshape(shown, ((1,) * lead + shown.shape)), _inverse(axes))


def _elementwise(node: Tensor, operands: list[_Seen]) -> _Seen:
    """In the order of the largest operand; of equals, in that of the first that has one."""
    whole = [x for x in operands if len(x.axes) == len(node.shape)]
    if whole:
        axes = max(whole, key=lambda x: (size_of(static(x.tensor.shape)), not x.is_plain)).axes
        if axes != tuple(range(len(axes))):
            return _Seen(rebuild(node, tuple(_ordered_as(x, axes) for x in operands)), axes)
    return _plain(rebuild(node, tuple(x.shown() for x in operands)))


def _contraction(node: Tensor, operands: list[_Seen]) -> _Seen:
    """Labels move with their axes."""
    names = (node.attributes["left"], node.attributes["right"])
    left, right = (
        tuple(labels[axis] for axis in _inverse(x.axes))
        for labels, x in zip(names, operands, strict=True)
    )
    tensors = tuple(x.tensor for x in operands)
    return _plain(rebuild(node, tensors, left=left, right=right))


def _reduction(node: Tensor, x: _Seen) -> _Seen | None:
    reduced: tuple[int, ...] = node.attributes["axes"]
    own = [x.axes[axis] for axis in reduced]
    if own != sorted(own) and node.op.name in ("argmax", "argmin"):
        # Which position comes first depends on the order.
        return None
    result = rebuild(node, (x.tensor,), axes=tuple(sorted(own)))
    kept = [axis for number, axis in enumerate(x.axes) if number not in reduced]
    return _Seen(result, tuple(sum(other < axis for other in kept) for axis in kept))


def _concat(node: Tensor, operands: list[_Seen]) -> _Seen:
    axes = next(x.axes for x in operands if not x.is_plain)
    tensors = tuple(_ordered_as(x, axes) for x in operands)
    return _Seen(rebuild(node, tensors, axis=axes[node.attributes["axis"]]), axes)


# Movements ----------------------------------------------------------------------------------------


def _along_axes(*names: str) -> Callable[[Tensor, _Seen], _Seen]:
    """The rule of ops with attributes that have an entry for each axis."""

    def rule(node: Tensor, x: _Seen) -> _Seen:
        order = _inverse(x.axes)
        changed: dict[str, Any] = {
            name: tuple(node.attributes[name][axis] for axis in order) for name in names
        }
        return _Seen(rebuild(node, (x.tensor,), **changed), x.axes)

    return rule


def _flip(node: Tensor, x: _Seen) -> _Seen:
    return _Seen(rebuild(node, (x.tensor,), axes=x.at(node.attributes["axes"])), x.axes)


def _shear(node: Tensor, x: _Seen) -> _Seen:
    slopes: list[Slope] = []
    for numbers in node.attributes["slopes"]:
        one = Slope(*numbers)
        slopes.append(one._replace(place=x.axes[one.place], window=x.axes[one.window]))
    return _Seen(rebuild(node, (x.tensor,), slopes=tuple(slopes)), x.axes)


def _broadcast(node: Tensor, x: _Seen) -> _Seen:
    """New axes come first, as they are seen."""
    shape = static(node.shape)
    lead = len(shape) - len(x.axes)
    axes = (*range(lead), *(axis + lead for axis in x.axes))
    wanted = tuple(shape[axis] for axis in _inverse(axes))
    return _Seen(ops.broadcast_to(x.tensor, wanted), axes)


def _reshape(node: Tensor, x: _Seen) -> _Seen | None:
    """Axes that are cut or joined come to lie side by side; the rest lies as it did."""
    old, new = static(node.operands[0].shape), static(node.shape)
    if 0 in old:
        return None
    blocks = reshaped_blocks(old, new)

    def lies(block: tuple[list[int], list[int]]) -> int:
        before, after = block
        # New axes of extent 1 come last.
        return min((x.axes[axis] for axis in before), default=len(old) + min(after, default=0))

    lying = sorted(blocks, key=lies)
    together = [x.axes[axis] for before, _ in lying for axis in before]
    order = [axis for _, after in lying for axis in after]
    moved = ops.transpose(x.tensor, together)
    result = ops.reshape(moved, tuple(new[axis] for axis in order))
    return _Seen(result, tuple(order.index(axis) for axis in range(len(new))))


_MOVEMENTS: dict[str, Callable[[Tensor, _Seen], _Seen | None]] = {
    "slice": _along_axes("starts", "stops", "steps"),
    "pad": _along_axes("low", "high", "interior"),
    "flip": _flip,
    "shear": _shear,
    "broadcast_to": _broadcast,
    "reshape": _reshape,
}
