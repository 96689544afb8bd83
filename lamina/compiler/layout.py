"""Layouts: the order of a tensor's axes in memory.

This pass moves transposes down the graph, through elementwise ops, windows, reductions and similar
ops, into the labels of contractions, where they vanish. A transpose remains only before an op that
needs the axes in the user's order. So tensors computed from the result of a convolution with
channels last have their channels last, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import size_of, static
from lamina.checks.origin import labelled
from lamina.graph import Graph, Op, Tensor, rebuild
from lamina.ops.broadcast import BROADCAST_TO
from lamina.ops.joining import CONCAT
from lamina.ops.lowering_rules import Contracting, Elementwise, Reduction
from lamina.ops.movement import FLIP, RESHAPE, TRANSPOSE, reshaped_blocks
from lamina.ops.reduce import ARGMAX, ARGMIN
from lamina.ops.slicing import PAD, SLICE
from lamina.ops.windows import SHEAR, Slope


@frozen_dataclass
class _Permuted:
    """A tensor with a transpose that is still to be applied: its axis `i` is axis `axes[i]`."""

    tensor: Tensor
    axes: tuple[int, ...]

    @property
    def is_identity(self) -> bool:
        return self.axes == tuple(range(len(self.axes)))

    def restored(self) -> Tensor:
        """The tensor with its axes in the original order."""
        return ops.transpose(self.tensor, self.axes)


def _unpermuted(tensor: Tensor) -> _Permuted:
    return _Permuted(tensor, tuple(range(tensor.rank)))


def sink_transposes(graph: Graph) -> Graph:
    """The graph with transposes moved towards its outputs as far as possible."""
    permuted: dict[Tensor, _Permuted] = {}
    for node in graph.nodes():
        with labelled(node.origin):
            permuted[node] = _sunk(node, [permuted[operand] for operand in node.operands])

    def restored(node: Tensor) -> Tensor:
        with labelled(node.origin):
            return permuted[node].restored()

    return Graph(
        tuple(permuted[leaf].tensor for leaf in graph.inputs),
        tuple((name, restored(tensor)) for name, tensor in graph.outputs),
        tuple((permuted[leaf].tensor, restored(tensor)) for leaf, tensor in graph.updates),
    )


def _sunk(node: Tensor, operands: list[_Permuted]) -> _Permuted:
    """The node on permuted operands; if it has no rule for that, on restored ones."""
    if node.op is TRANSPOSE:
        (x,) = operands
        order: tuple[int, ...] = node.attributes["axes"]
        return _Permuted(x.tensor, tuple(x.axes[axis] for axis in order))
    if all(x.is_identity for x in operands):
        return _unpermuted(rebuild(node, tuple(x.tensor for x in operands)))
    sunk: _Permuted | None = None
    lowering = node.op.lowering
    if isinstance(lowering, Elementwise):
        sunk = _elementwise(node, operands)
    elif isinstance(lowering, Contracting):
        sunk = _contraction(node, operands)
    elif isinstance(lowering, Reduction):
        sunk = _reduction(node, operands[0])
    elif node.op in _MOVEMENTS:
        sunk = _MOVEMENTS[node.op](node, operands[0])
    elif node.op is CONCAT:
        axes = next(x.axes for x in operands if not x.is_identity)
        tensors = tuple(_ordered_as(x, axes) for x in operands)
        sunk = _Permuted(rebuild(node, tensors, axis=axes[node.attributes["axis"]]), axes)
    return sunk or _unpermuted(rebuild(node, tuple(x.restored() for x in operands)))


def _inverse(axes: Sequence[int]) -> list[int]:
    return sorted(range(len(axes)), key=axes.__getitem__)


def _ordered_as(x: _Permuted, axes: tuple[int, ...]) -> Tensor:
    """An operand that broadcasts to a tensor with permuted axes, in the order of these axes."""
    if not x.axes or x.axes == axes:
        return x.tensor
    restored = x.restored()
    lead = len(axes) - restored.rank
    return ops.transpose(ops.reshape(restored, ((1,) * lead + restored.shape)), _inverse(axes))


def _elementwise(node: Tensor, operands: list[_Permuted]) -> _Permuted | None:
    """The result has the axes of the largest operand; of several, of the first permuted one."""
    of_rank = [x for x in operands if len(x.axes) == len(node.shape)]
    if of_rank:
        axes = max(of_rank, key=lambda x: (size_of(static(x.tensor.shape)), not x.is_identity)).axes
        if axes != tuple(range(len(axes))):
            return _Permuted(rebuild(node, tuple(_ordered_as(x, axes) for x in operands)), axes)
    return None


def _contraction(node: Tensor, operands: list[_Permuted]) -> _Permuted:
    """The labels of the operands are permuted like their axes."""
    names = (node.attributes["left"], node.attributes["right"])
    left, right = (
        tuple(labels[axis] for axis in _inverse(x.axes))
        for labels, x in zip(names, operands, strict=True)
    )
    tensors = tuple(x.tensor for x in operands)
    return _unpermuted(rebuild(node, tensors, left=left, right=right))


def _reduction(node: Tensor, x: _Permuted) -> _Permuted | None:
    reduced: tuple[int, ...] = node.attributes["axes"]
    axes = [x.axes[axis] for axis in reduced]
    if axes != sorted(axes) and node.op in (ARGMAX, ARGMIN):
        # The order of the axes decides which of several equal elements comes first.
        return None
    result = rebuild(node, (x.tensor,), axes=tuple(sorted(axes)))
    kept = [axis for number, axis in enumerate(x.axes) if number not in reduced]
    return _Permuted(result, tuple(sum(other < axis for other in kept) for axis in kept))


def _along_axes(*names: str) -> Callable[[Tensor, _Permuted], _Permuted]:
    """A rule for ops whose named attributes have an entry for each axis."""

    def rule(node: Tensor, x: _Permuted) -> _Permuted:
        order = _inverse(x.axes)
        changed: dict[str, Any] = {
            name: tuple(node.attributes[name][axis] for axis in order) for name in names
        }
        return _Permuted(rebuild(node, (x.tensor,), **changed), x.axes)

    return rule


def _flip(node: Tensor, x: _Permuted) -> _Permuted:
    axes: tuple[int, ...] = node.attributes["axes"]
    flipped = rebuild(node, (x.tensor,), axes=tuple(sorted(x.axes[axis] for axis in axes)))
    return _Permuted(flipped, x.axes)


def _shear(node: Tensor, x: _Permuted) -> _Permuted:
    slopes = tuple(
        slope._replace(position=x.axes[slope.position], element=x.axes[slope.element])
        for slope in (Slope(*numbers) for numbers in node.attributes["slopes"])
    )
    return _Permuted(rebuild(node, (x.tensor,), slopes=slopes), x.axes)


def _broadcast(node: Tensor, x: _Permuted) -> _Permuted:
    """New axes come first, as in the original order."""
    shape = static(node.shape)
    lead = len(shape) - len(x.axes)
    axes = (*range(lead), *(axis + lead for axis in x.axes))
    permuted = tuple(shape[axis] for axis in _inverse(axes))
    return _Permuted(ops.broadcast_to(x.tensor, permuted), axes)


def _reshape(node: Tensor, x: _Permuted) -> _Permuted | None:
    """Axes that are split or merged are made adjacent; the others keep their order."""
    old, new = static(node.operands[0].shape), static(node.shape)
    if 0 in old:
        return None
    blocks = reshaped_blocks(old, new)

    def first_axis(block: tuple[list[int], list[int]]) -> int:
        before, after = block
        # New axes of extent 1 come last.
        return min((x.axes[axis] for axis in before), default=len(old) + min(after, default=0))

    ordered = sorted(blocks, key=first_axis)
    adjacent = [x.axes[axis] for before, _ in ordered for axis in before]
    order = [axis for _, after in ordered for axis in after]
    moved = ops.transpose(x.tensor, adjacent)
    result = ops.reshape(moved, tuple(new[axis] for axis in order))
    return _Permuted(result, tuple(order.index(axis) for axis in range(len(new))))


_MOVEMENTS: dict[Op, Callable[[Tensor, _Permuted], _Permuted | None]] = {
    SLICE: _along_axes("starts", "stops", "steps"),
    PAD: _along_axes("low", "high", "interior"),
    FLIP: _flip,
    SHEAR: _shear,
    BROADCAST_TO: _broadcast,
    RESHAPE: _reshape,
}
