"""Pulling: the scalar of a tensor at coordinates, made of those of its operands, down to locations.

A tensor is pulled at a place of the loop nest; where its own elements are computed is found here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from lamina.graph import CONSTANT, Tensor
from lamina.ops.lowering import Coordinates, Elementwise, Generator, Movement, Sliding
from lamina.program.index import Axis, Index, axis_index, flatten, unflatten
from lamina.program.scalar import Literal, Load, Local, Scalar
from lamina.records import frozen_dataclass
from lamina.shapes import size_of, static

# Expressions deeper than this are cut, so that neither engines nor people drown in them.
DEEPEST_EXPRESSION = 96

# Pulling calls itself so often at most; what lies deeper is pulled first, by itself. So neither the
# depth of a graph nor that of an expression takes more of Python's stack.
MOST_NESTED_PULLS = 12


class NotOneStep(Exception):
    """The group cannot be one step; fusion then leaves it in parts."""


class _NestedTooDeepError(Exception):
    """A scalar must be pulled before those that are being pulled."""

    def __init__(self, node: Tensor, coordinates: Coordinates) -> None:
        super().__init__()
        self.wanted = node, coordinates


@frozen_dataclass
class Row:
    """Where a tensor lies in a larger buffer, which holds it for every turn of a recurrence.

    Attributes:
        buffer: its name.
        start: where the tensor begins.
    """

    buffer: str
    start: Index

    def index(self, coordinates: Coordinates, shape: tuple[int, ...]) -> Index:
        """The place of an element."""
        return self.start + flatten(coordinates, shape)


# Where a tensor lies: a buffer of its own, a row of one, or what stands at its coordinates.
Location = str | Row | Callable[[Coordinates], Scalar]


class Puller:
    """Scalars of tensors at coordinates, down to loads and the group's own results."""

    def __init__(
        self,
        locations: Mapping[Tensor, Location],
    ) -> None:
        self.computed_at: dict[Tensor, Coordinates] = {}
        self.locations = locations
        self.locals: dict[Tensor, Local] = {}
        # Each scalar, and how many are inside one another in it; so many in what is being pulled.
        self._known: dict[tuple[Tensor, Coordinates], tuple[Scalar, int]] = {}
        self._height = 0
        # How many pulls are under way, one inside the other.
        self._nested = 0
        # The windows that were come across, each once.
        self.slidings: dict[Sliding, None] = {}

    def pull(self, node: Tensor, coordinates: Coordinates) -> Scalar:
        """The scalar of a tensor at coordinates.

        Raises:
            NotOneStep: if it needs a result of this group from another iteration, or grows too
                deep.
        """
        return self._from_below(lambda: self._pull(node, coordinates))

    def expression(self, node: Tensor, coordinates: Coordinates) -> Scalar:
        """The same, computed here even if it is stored elsewhere."""
        return self._from_below(lambda: self._expression(node, coordinates))

    def _from_below(self, pulling: Callable[[], Scalar]) -> Scalar:
        """What a function gives that pulls; what lies too deep for it is pulled before."""
        waiting = [pulling]
        while True:
            self._height = self._nested = 0
            try:
                scalar = waiting[-1]()
            except _NestedTooDeepError as deeper:
                waiting.append(partial(self._pull, *deeper.wanted))
                continue
            waiting.pop()
            if not waiting:
                return scalar

    def _pull(self, node: Tensor, coordinates: Coordinates) -> Scalar:
        if node in self.computed_at:
            shape, place = static(node.shape), self.computed_at[node]
            if coordinates != place and flatten(coordinates, shape) != flatten(place, shape):
                raise NotOneStep
            if node in self.locals:
                return self.locals[node]
        elif node in self.locations:
            location = self.locations[node]
            if isinstance(location, str | Row):
                return Load(
                    *buffer_and_index(location, coordinates, static(node.shape)), node.dtype
                )
            return location(coordinates)
        key = (node, coordinates)
        if key not in self._known:
            if self._nested == MOST_NESTED_PULLS:
                raise _NestedTooDeepError(node, coordinates)
            outside, self._height = self._height, 0
            self._nested += 1
            self._known[key] = self._expression(node, coordinates), self._height + 1
            self._nested -= 1
            self._height = outside
        scalar, height = self._known[key]
        if height > DEEPEST_EXPRESSION:
            raise NotOneStep
        self._height = max(self._height, height)
        return scalar

    def choose_coordinates(self, member: Tensor, axes: Sequence[Axis]) -> None:
        """Finds the place at which a member can be computed, of as many elements as points.

        Raises:
            NotOneStep: if there is none.
        """
        for place in candidate_coordinates(member, axes, self.locations):
            self.computed_at[member] = place
            try:
                self.pull(member, place)
            except NotOneStep:
                del self.computed_at[member]
            else:
                return
        raise NotOneStep

    def _expression(self, node: Tensor, coordinates: Coordinates) -> Scalar:
        if size_of(static(node.shape)) == 0:
            # Never computed; what it is made of need not even have an element at such a place.
            return Literal(0, node.dtype)
        lowering = node.op.lowering
        if isinstance(lowering, Elementwise):
            operands = tuple(
                self._pull(operand, broadcast_coordinates(coordinates, static(operand.shape)))
                for operand in node.operands
            )
            return lowering.scalar(node, operands)
        if isinstance(lowering, Movement) and lowering.slides is not None:
            self.slidings |= dict.fromkeys(lowering.slides(node, coordinates))
        if isinstance(lowering, Movement | Generator):
            return lowering.scalar(
                node, coordinates, lambda operand, at: self._pull(node.operands[operand], at)
            )
        if node.op is CONSTANT and size_of(static(node.shape)) == 1:
            return Literal(node.attributes["value"].array.reshape(()).item(), node.dtype)
        # A reduction or contraction that its group has not computed yet, out of order.
        raise NotOneStep


def buffer_and_index(
    location: str | Row, coordinates: Coordinates, shape: tuple[int, ...]
) -> tuple[str, Index]:
    """The buffer and the place of an element."""
    if isinstance(location, Row):
        return location.buffer, location.index(coordinates, shape)
    return location, flatten(coordinates, shape)


def pulled(node: Tensor, coordinates: Coordinates, locations: Mapping[Tensor, Location]) -> Scalar:
    """The scalar of a tensor at coordinates, down to loads."""
    return Puller(locations).pull(node, coordinates)


def broadcast_coordinates(coordinates: Coordinates, shape: tuple[int, ...]) -> Coordinates:
    """Where an operand of the shape is read, for a point of the broadcast result."""
    own = coordinates[len(coordinates) - len(shape) :]
    return tuple(
        Index() if extent == 1 else place for place, extent in zip(own, shape, strict=True)
    )


def numbered_axes(prefix: str, extents: Iterable[int]) -> tuple[Axis, ...]:
    """Axes of these extents, called by their numbers."""
    return tuple(Axis(f"{prefix}{number}", extent) for number, extent in enumerate(extents))


def axis_indices(axes: Iterable[Axis]) -> Coordinates:
    """The point of a loop over some axes."""
    return tuple(axis_index(axis) for axis in axes)


def iterating(axes: Iterable[Axis]) -> tuple[Axis, ...]:
    """The axes that iterate: those of extent 1 do not appear in any index."""
    return tuple(axis for axis in axes if axis.extent != 1)


def coordinates_in_order(node: Tensor, axes: Sequence[Axis]) -> Coordinates:
    """Coordinates of a tensor with as many elements as the axes have points, in their order."""
    shape = static(node.shape)
    extents = tuple(axis.extent for axis in axes)
    if shape == extents:
        return axis_indices(axes)
    return unflatten(flatten(axis_indices(axes), extents), shape)


def candidate_coordinates(
    member: Tensor, axes: Sequence[Axis], locations: Mapping[Tensor, Location]
) -> Iterator[Coordinates]:
    """Where a tensor may be computed: in order, and where movements below it are in order."""
    yield coordinates_in_order(member, axes)
    seen: set[Tensor] = set()
    # Tensors, and the movements by which the member's place follows from theirs, the lowest first.
    pending: list[tuple[Tensor, tuple[Tensor, ...]]] = [(member, ())]
    while pending:
        node, movements = pending.pop()
        # What is stored has its order; that of what it was made of does not matter.
        if node in seen or node in locations:
            continue
        seen.add(node)
        if node.op.name in ("transpose", "reshape"):
            (below,) = node.operands
            pending.append((below, (node, *movements)))
            yield _moved(coordinates_in_order(below, axes), (node, *movements))
        elif isinstance(node.op.lowering, Elementwise):
            same = [operand for operand in node.operands if operand.shape == node.shape]
            pending += [(operand, movements) for operand in reversed(same)]


def _moved(place: Coordinates, movements: Sequence[Tensor]) -> Coordinates:
    """The place in the result of transposes and reshapes that stands for one in their operand."""
    for node in movements:
        if node.op.name == "transpose":
            order: tuple[int, ...] = node.attributes["axes"]
            place = tuple(place[axis] for axis in order)
        else:
            before, after = static(node.operands[0].shape), static(node.shape)
            place = unflatten(flatten(place, before), after)
    return place
