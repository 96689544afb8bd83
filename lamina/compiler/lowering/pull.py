"""Pulling: the scalar of a tensor at coordinates, composed of its operands' scalars, down to loads.

This file also chooses the coordinates at which each member of a group is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import size_of, static
from lamina.compiler.buffers import is_number
from lamina.graph import Tensor
from lamina.ops.lowering_rules import Coordinates, Elementwise, Generator, Movement
from lamina.ops.movement import RESHAPE, TRANSPOSE
from lamina.program.index import Axis, Index, axis_index, flatten, unflatten
from lamina.program.scalar import Literal, Load, Local, Scalar
from lamina.program.windows import Sliding

# A tensor with a deeper expression is stored, so that kernels stay small and readable.
DEEPEST_EXPRESSION = 96

# The most transposes and reshapes through which candidates for coordinates are sought. Indices may
# double in size with each reshape.
MOST_MOVEMENTS = 8

# The most nested calls of pulling. A scalar at a greater depth is pulled separately before, so that
# the use of Python's stack does not grow with the depth of graphs and expressions.
MOST_NESTED_PULLS = 12


class NotOneStep(Exception):
    """The group cannot be one step. Fusion then keeps smaller groups."""


class _NestedTooDeepError(Exception):
    """Pulls are nested too deep; `request` is the tensor to pull first, and its coordinates."""

    def __init__(self, node: Tensor, coordinates: Coordinates) -> None:
        super().__init__()
        self.request = node, coordinates


@frozen_dataclass
class IterationRow:
    """A row of a buffer, one for each iteration; `start` is the index of its first element."""

    buffer: str
    start: Index

    def index(self, coordinates: Coordinates, shape: tuple[int, ...]) -> Index:
        """The index of an element in the buffer."""
        return self.start + flatten(coordinates, shape)


# A tensor's location: its own buffer, a row of a buffer, or a function from coordinates to scalars.
Location = str | IterationRow | Callable[[Coordinates], Scalar]


class Puller:
    """Pulls scalars of tensors at coordinates, down to loads and the group's own results.

    Quotients and remainders may be nested `most_nested` deep in coordinates; None: without limit.

    Attributes:
        locations: the locations of tensors stored by other groups, leaves and array constants.
        computed_at: the coordinates at which each member of the group is computed.
        locals: the local that holds the result of a member, for members that have one.
        windows: the windows through which tensors were pulled, in order, each once.
    """

    def __init__(
        self, locations: Mapping[Tensor, Location], most_nested: int | None = None
    ) -> None:
        self._most_nested = most_nested
        self.computed_at: dict[Tensor, Coordinates] = {}
        self.locations = locations
        self.locals: dict[Tensor, Local] = {}
        # The height of each scalar: the most operations nested in it. Then the height so far of the
        # scalar that is being pulled.
        self._expressions: dict[tuple[Tensor, Coordinates], tuple[Scalar, int]] = {}
        self._height = 0
        # The number of nested pulls at the moment.
        self._nested = 0
        self.windows: dict[Sliding, None] = {}

    def pull(self, node: Tensor, coordinates: Coordinates) -> Scalar:
        """The scalar of a tensor; refuses a result of this group from another point."""
        return self._deepest_first(lambda: self._pull(node, coordinates))

    def expression(self, node: Tensor, coordinates: Coordinates) -> Scalar:
        """The same scalar, computed even if the tensor itself is stored or has a local."""
        return self._deepest_first(lambda: self._expression(node, coordinates))

    def _deepest_first(self, pulling: Callable[[], Scalar]) -> Scalar:
        """The result of a function that pulls. Scalars nested too deep for it are pulled before."""
        waiting = [pulling]
        while True:
            self._height = self._nested = 0
            try:
                scalar = waiting[-1]()
            except _NestedTooDeepError as deeper:
                waiting.append(partial(self._pull, *deeper.request))
                continue
            waiting.pop()
            if not waiting:
                return scalar

    def _pull(self, node: Tensor, coordinates: Coordinates) -> Scalar:
        if node in self.computed_at:
            shape, at = static(node.shape), self.computed_at[node]
            if coordinates != at and flatten(coordinates, shape) != flatten(at, shape):
                raise NotOneStep
            if node in self.locals:
                return self.locals[node]
        elif node in self.locations:
            location, shape = self.locations[node], static(node.shape)
            if isinstance(location, str):
                return Load(location, flatten(coordinates, shape), node.dtype)
            if isinstance(location, IterationRow):
                return Load(location.buffer, location.index(coordinates, shape), node.dtype)
            return location(coordinates)
        key = (node, coordinates)
        if key not in self._expressions:
            if self._nested == MOST_NESTED_PULLS:
                raise _NestedTooDeepError(node, coordinates)
            outside, self._height = self._height, 0
            self._nested += 1
            self._expressions[key] = self._expression(node, coordinates), self._height + 1
            self._nested -= 1
            self._height = outside
        scalar, height = self._expressions[key]
        if height > DEEPEST_EXPRESSION:
            raise NotOneStep
        self._height = max(self._height, height)
        return scalar

    def choose_coordinates(self, member: Tensor, axes: Sequence[Axis]) -> None:
        """Decides which of its elements a member computes at each point of the axes."""
        for coordinates in candidate_coordinates(member, axes, self.locations):
            self.computed_at[member] = coordinates
            try:
                self.pull(member, coordinates)
            except NotOneStep:
                del self.computed_at[member]
            else:
                return
        raise NotOneStep

    def _expression(self, node: Tensor, coordinates: Coordinates) -> Scalar:
        if size_of(static(node.shape)) == 0:
            # It is never computed, and its operands may have no element to pull.
            return Literal(0, node.dtype)
        lowering = node.op.lowering
        if isinstance(lowering, Elementwise):
            operands = tuple(
                self._pull(operand, broadcast_coordinates(coordinates, static(operand.shape)))
                for operand in node.operands
            )
            return lowering.scalar(node, operands)
        if isinstance(lowering, Movement) and lowering.slides is not None:
            self.windows |= dict.fromkeys(filter(None, lowering.slides(node, coordinates)))
        most = self._most_nested
        if most is not None and any(index.nesting > most for index in coordinates):
            raise NotOneStep
        if isinstance(lowering, Movement | Generator):
            return lowering.scalar(
                node, coordinates, lambda operand, at: self._pull(node.operands[operand], at)
            )
        if is_number(node):
            return Literal(node.attributes["value"].array.reshape(()).item(), node.dtype)
        # This group computes the reduction or contraction later, or not at all.
        raise NotOneStep


def broadcast_coordinates(coordinates: Coordinates, shape: tuple[int, ...]) -> Coordinates:
    """The coordinates in an operand of the shape, for coordinates in the broadcast result."""
    last = coordinates[len(coordinates) - len(shape) :]
    return tuple(
        Index() if extent == 1 else index for index, extent in zip(last, shape, strict=True)
    )


def numbered_axes(prefix: str, extents: Iterable[int]) -> tuple[Axis, ...]:
    """Axes of these extents, named by the prefix and their numbers."""
    return tuple(Axis(f"{prefix}{number}", extent) for number, extent in enumerate(extents))


def axis_indices(axes: Iterable[Axis]) -> Coordinates:
    """The coordinates of a point of the axes."""
    return tuple(axis_index(axis) for axis in axes)


def iterating(axes: Iterable[Axis]) -> tuple[Axis, ...]:
    """The axes of an extent other than 1; axes of extent 1 appear in no index."""
    return tuple(axis for axis in axes if axis.extent != 1)


def coordinates_in_order(node: Tensor, axes: Sequence[Axis]) -> Coordinates:
    """The coordinates at which the points of the axes go through a tensor in row-major order.

    The tensor has as many elements as the axes have points.
    """
    shape = static(node.shape)
    extents = tuple(axis.extent for axis in axes)
    if shape == extents:
        return axis_indices(axes)
    return unflatten(flatten(axis_indices(axes), extents), shape)


def candidate_coordinates(
    member: Tensor, axes: Sequence[Axis], locations: Mapping[Tensor, Location]
) -> Iterator[Coordinates]:
    """Coordinates at which a member may be computed.

    The first ones are those in row-major order. Others are the coordinates at which a tensor below
    it, reached through transposes, reshapes and elementwise ops, is in row-major order.
    """
    yield coordinates_in_order(member, axes)
    seen: set[Tensor] = set()
    # Tensors, and the movements from each tensor up to the member, the lowest first.
    pending: list[tuple[Tensor, tuple[Tensor, ...]]] = [(member, ())]
    while pending:
        node, movements = pending.pop()
        # The order in which a stored tensor was computed does not matter here.
        if node in seen or node in locations or len(movements) == MOST_MOVEMENTS:
            continue
        seen.add(node)
        if node.op in (TRANSPOSE, RESHAPE):
            (below,) = node.operands
            pending.append((below, (node, *movements)))
            yield _after_movements(coordinates_in_order(below, axes), (node, *movements))
        elif isinstance(node.op.lowering, Elementwise):
            same = [operand for operand in node.operands if operand.shape == node.shape]
            pending += [(operand, movements) for operand in reversed(same)]


def _after_movements(coordinates: Coordinates, movements: Sequence[Tensor]) -> Coordinates:
    """An element's coordinates after transposes and reshapes, from those in their operand."""
    for node in movements:
        if node.op is TRANSPOSE:
            order: tuple[int, ...] = node.attributes["axes"]
            coordinates = tuple(coordinates[axis] for axis in order)
        else:
            before, after = static(node.operands[0].shape), static(node.shape)
            coordinates = unflatten(flatten(coordinates, before), after)
    return coordinates
