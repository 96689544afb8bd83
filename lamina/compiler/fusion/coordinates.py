"""Tensors that are stored, because one step reads them at several coordinates.

A step computes an expression again at each of the coordinates at which it reads it. Bilinear
sampling reads four elements of its operand for each element of its result, so a chain of three
samplings that are one expression computes the first one 4 * 4 * 4 times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from lamina.base.shapes import size_of, static
from lamina.compiler.buffers import is_leaf
from lamina.compiler.fusion.anchors import Anchors, PassContext
from lamina.compiler.fusion.costs import Operations, expression_of, is_worth_rereading, own_depth
from lamina.compiler.fusion.views import is_read_converted
from lamina.compiler.lowering.pull import axis_indices, broadcast_coordinates, numbered_axes
from lamina.graph import Tensor
from lamina.ops.joining import CONCAT
from lamina.ops.lowering_rules import Coordinates, Elementwise, Generator, Movement, read_operands
from lamina.program.scalar import Local, Scalar
from lamina.program.target import Target

# More coordinates at which a step reads a tensor are not counted.
_MOST_COORDINATES = 16

# A join that a step reads at so many coordinates is stored at any cost. In a chain of joins that
# each read one tensor several times, as `roll` does, an expression would have a condition for each
# pair of them.
_MOST_JOINED = 8

# Coordinates that are computed from a step's axes by more levels are replaced by new axes. They
# only have to be compared, and would double in size with each reshape.
_DEEPEST_COORDINATES = 40


def read_at_several_coordinates(context: PassContext, anchors: Anchors) -> Anchors:
    """Tensors that a step reads at several coordinates, if storing them costs less.

    Users are decided first, so it is known at how many coordinates each step reads a tensor. Then
    the stored tensors are compared again, operands first: one whose operands are stored as well
    may be cheap to compute.
    """
    anchors = dict(anchors)
    operations = Operations()
    reads = _Reads()
    evaluations: dict[Tensor, int] = {}
    for node in reversed(context.nodes):
        if is_leaf(node):
            continue
        # If its own op computes nothing, its operand may be stored instead.
        computes = not is_read_converted(node) and operations.with_gathers(node) > 0
        count = reads.count(node) if computes and node not in anchors else 0
        if node.op is CONCAT and reads.coordinates(node) >= _MOST_JOINED:
            anchors[node] = None
        elif count and _is_worth_storing(node, count, anchors, operations, context.target):
            anchors[node] = None
            evaluations[node] = count
        reads.propagate(node, node in anchors)
    for node in context.nodes:
        if node in evaluations:
            del anchors[node]
            if _is_worth_storing(node, evaluations[node], anchors, operations, context.target):
                anchors[node] = None
    return anchors


def _is_worth_storing(
    node: Tensor, evaluations: int, anchors: Anchors, operations: Operations, target: Target
) -> bool:
    expression, size = expression_of(node, anchors), size_of(static(node.shape))
    return not expression.takes_no_memory(node) and is_worth_rereading(
        target,
        elements=size,
        dtype=node.dtype,
        evaluations=evaluations,
        # Smaller tensors below it count by their size.
        operations=sum(
            min(size_of(static(tensor.shape)) / size, 1.0) * operations.with_gathers(tensor)
            for tensor in expression.computed
        ),
        reads_only_leaves=all(is_leaf(source) for source in expression.sources),
    )


@final
class _Reads:
    """The coordinates at which steps read tensors, while tensors are decided, users first."""

    def __init__(self) -> None:
        # For each tensor, the anchors that read it, and the different coordinates of each.
        self._read: dict[Tensor, dict[Tensor, dict[Coordinates, None]]] = {}
        # The levels of operations that the coordinates of each tensor have at most.
        self._depth: dict[Tensor, int] = {}
        self._numbers: dict[object, int] = {}

    def count(self, node: Tensor) -> int:
        """How many elements of a tensor a step computes if it reads it at several coordinates.

        An element that is computed several times counts as often. 0 if no step reads the tensor at
        several coordinates.
        """
        read = self._read.get(node, {})
        return max(
            (len(places) * _points(reader) for reader, places in read.items() if len(places) > 1),
            default=0,
        )

    def coordinates(self, node: Tensor) -> int:
        """The most coordinates at which a step reads a tensor."""
        return max(map(len, self._read.get(node, {}).values()), default=0)

    def propagate(self, node: Tensor, is_anchor: bool) -> None:
        """Adds what a tensor reads. All its users are decided; a step computes an anchor itself."""
        read, depth = self._read.pop(node, {}), self._depth.pop(node, 0) + own_depth(node)
        if is_anchor:
            read, depth = {node: {_own_coordinates(node): None}}, own_depth(node)
        for reader, places in read.items():
            for coordinates in places:
                for operand, at in self._pulled(node, coordinates):
                    self._add(operand, reader, at, depth)

    def _add(self, operand: Tensor, reader: Tensor, at: Coordinates, depth: int) -> None:
        if is_leaf(operand):
            return
        if depth > _DEEPEST_COORDINATES:
            number = self._number(at)
            at, depth = axis_indices(numbered_axes(f"c{number}.", static(operand.shape))), 0
        places = self._read.setdefault(operand, {}).setdefault(reader, {})
        if len(places) < _MOST_COORDINATES:
            places[at] = None
        self._depth[operand] = max(self._depth.get(operand, 0), depth)

    def _pulled(self, node: Tensor, coordinates: Coordinates) -> list[tuple[Tensor, Coordinates]]:
        """The operands that an element reads, each with its coordinates."""
        lowering, operands = node.op.lowering, read_operands(node)
        if isinstance(lowering, Elementwise):
            return [
                (tensor, broadcast_coordinates(coordinates, static(tensor.shape)))
                for tensor in operands
            ]
        if not isinstance(lowering, Movement | Generator):
            return [(tensor, _own_coordinates(tensor)) for tensor in operands]
        if not size_of(static(node.shape)):
            return []
        reads: list[tuple[Tensor, Coordinates]] = []

        def pull(operand: int, at: Coordinates) -> Scalar:
            tensor = node.operands[operand]
            reads.append((tensor, at))
            # Equal names stand for equal scalars, in indices that are read from data.
            return Local(f"r{self._number((tensor, at))}", tensor.dtype)

        lowering.scalar(node, coordinates, pull)
        return reads

    def _number(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


def _own_coordinates(node: Tensor) -> Coordinates:
    return axis_indices(numbered_axes("i", static(node.shape)))


def _points(reader: Tensor) -> int:
    """The number of points at which a step computes an anchor, or reads its operands."""
    shapes: Sequence[Tensor] = (reader,)
    if not isinstance(reader.op.lowering, Elementwise | Movement | Generator):
        shapes = read_operands(reader)
    return max(size_of(static(tensor.shape)) for tensor in shapes)
