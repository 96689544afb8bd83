"""Lowering: a group of tensors becomes one step of the program.

A group computes some *anchors* (reductions, contractions and whatever must be stored) in one loop
nest. All other tensors are folded into the expressions that use them: a tensor's scalar at given
coordinates is pulled from its operands, down to buffers. A group is legal exactly if it lowers,
so fusion tries and this file decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from lamina.compiler.sliding import windows_of
from lamina.errors import InternalError
from lamina.graph import CONSTANT, LEAF, Tensor
from lamina.ops.lowering import (
    Contracting,
    Coordinates,
    Elementwise,
    Generator,
    Movement,
    Reduction,
    Repeating,
    Scanning,
    Scattering,
    Sliding,
)
from lamina.program.index import (
    Axis,
    Gathered,
    Index,
    Quotient,
    axes_of,
    axis_index,
    flatten,
    unflatten,
)
from lamina.program.scalar import Apply, Literal, Load, Local, Scalar
from lamina.program.steps import (
    Contraction,
    Loop,
    Reduce,
    Scan,
    Stage,
    Step,
    Store,
    Write,
    loads_of,
    stores_of,
)
from lamina.records import frozen_dataclass
from lamina.shapes import size_of, static

# Expressions deeper than this are cut, so that neither engines nor people drown in them.
DEEPEST_EXPRESSION = 96

# Pulling calls itself so often at most; what lies deeper is pulled first, by itself. So neither the
# depth of a graph nor that of an expression takes more of Python's stack.
MOST_NESTED_PULLS = 12

# What is joined is stored part by part if at least so many elements of a part lie side by side.
SHORTEST_RUN = 16


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
Home = str | Row | Callable[[Coordinates], Scalar]


@frozen_dataclass
class Space:
    """The iteration space of a group.

    Attributes:
        outer: the parallel axes.
        inner: the axes that its reductions combine; empty if there are none.
        full: the anchors that are computed at every inner point. Reductions and anchors as small
            as they are computed once for each outer point.
    """

    outer: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    full: frozenset[Tensor]


def lower_group(
    members: Sequence[Tensor],
    stored: Mapping[Tensor, str | Row],
    buffers: Mapping[Tensor, Home],
    name: str,
) -> Step:
    """The step that computes a group.

    Args:
        members: the group's anchors, operands before users.
        stored: the members that must be stored, and the buffers that take them.
        buffers: where anchors of other groups, leaves and array constants lie.
        name: of the step.

    Raises:
        NotOneStep: where one loop nest cannot compute all members.
    """
    if any(isinstance(m.op.lowering, Repeating) for m in members):
        raise NotOneStep
    special = [m for m in members if isinstance(m.op.lowering, Scanning | Scattering)]
    if special:
        if len(members) > 1:
            raise NotOneStep
        lowered = _lower_special(special[0], _Puller(buffers), stored[special[0]], name)
    else:
        contractions = [m for m in members if isinstance(m.op.lowering, Contracting)]
        if contractions:
            lowered = _lower_contraction(members, contractions, stored, buffers, name)
        else:
            lowered = _lower_parts(members, stored, buffers, name)
    _check_own_reads(lowered)
    return lowered


def _check_own_reads(step: Step) -> None:
    """A step may read what it overwrites only at the very place that it writes.

    What it adds to it must not read at all.
    """
    places: dict[str, set[Index]] = {}
    for store in stores_of(step):
        if not store.accumulate:
            places.setdefault(store.buffer, set()).add(store.index)
    added = {store.buffer for store in stores_of(step) if store.accumulate}
    for load in loads_of(step):
        if load.buffer in added:
            raise NotOneStep
        if load.buffer in places and (load.bounds or {load.index} != places[load.buffer]):
            raise NotOneStep
    if isinstance(step, Contraction):
        from_views = {load.buffer for view in (step.left, step.right) for load in [_view(view)]}
        if from_views & places.keys():
            raise NotOneStep


class _Puller:
    """Scalars of tensors at coordinates, down to loads and the group's own results."""

    def __init__(
        self,
        buffers: Mapping[Tensor, Home],
    ) -> None:
        self.places: dict[Tensor, Coordinates] = {}
        self.buffers = buffers
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
        if node in self.places:
            shape, place = static(node.shape), self.places[node]
            if coordinates != place and flatten(coordinates, shape) != flatten(place, shape):
                raise NotOneStep
            if node in self.locals:
                return self.locals[node]
        elif node in self.buffers:
            home = self.buffers[node]
            if isinstance(home, str | Row):
                return Load(*_element(home, coordinates, static(node.shape)), node.dtype)
            return home(coordinates)
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

    def settle(self, member: Tensor, axes: Sequence[Axis]) -> None:
        """Finds the place at which a member can be computed, of as many elements as points.

        Raises:
            NotOneStep: if there is none.
        """
        for place in _places(member, axes, self.buffers):
            self.places[member] = place
            try:
                self.pull(member, place)
            except NotOneStep:
                del self.places[member]
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


def _element(
    home: str | Row, coordinates: Coordinates, shape: tuple[int, ...]
) -> tuple[str, Index]:
    """The buffer and the place of an element."""
    if isinstance(home, Row):
        return home.buffer, home.index(coordinates, shape)
    return home, flatten(coordinates, shape)


def pulled(node: Tensor, coordinates: Coordinates, buffers: Mapping[Tensor, Home]) -> Scalar:
    """The scalar of a tensor at coordinates, down to loads."""
    return _Puller(buffers).pull(node, coordinates)


def broadcast_coordinates(coordinates: Coordinates, shape: tuple[int, ...]) -> Coordinates:
    """Where an operand of the shape is read, for a point of the broadcast result."""
    own = coordinates[len(coordinates) - len(shape) :]
    return tuple(
        Index() if extent == 1 else place for place, extent in zip(own, shape, strict=True)
    )


def _axes(prefix: str, extents: Iterable[int]) -> tuple[Axis, ...]:
    return tuple(Axis(f"{prefix}{number}", extent) for number, extent in enumerate(extents))


def _indices(axes: Iterable[Axis]) -> Coordinates:
    return tuple(axis_index(axis) for axis in axes)


def _real(axes: Iterable[Axis]) -> tuple[Axis, ...]:
    """The axes that iterate: those of extent 1 do not appear in any index."""
    return tuple(axis for axis in axes if axis.extent != 1)


def _place(node: Tensor, axes: Sequence[Axis]) -> Coordinates:
    """Coordinates of a tensor with as many elements as the axes have points, in their order."""
    shape = static(node.shape)
    extents = tuple(axis.extent for axis in axes)
    if shape == extents:
        return _indices(axes)
    return unflatten(flatten(_indices(axes), extents), shape)


def _places(
    member: Tensor, axes: Sequence[Axis], buffers: Mapping[Tensor, Home]
) -> Iterator[Coordinates]:
    """Where a tensor may be computed: in order, and where movements below it are in order."""
    yield _place(member, axes)
    seen: set[Tensor] = set()
    # Tensors, and the movements by which the member's place follows from theirs, the lowest first.
    pending: list[tuple[Tensor, tuple[Tensor, ...]]] = [(member, ())]
    while pending:
        node, movements = pending.pop()
        # What is stored has its order; that of what it was made of does not matter.
        if node in seen or node in buffers:
            continue
        seen.add(node)
        if node.op.name in ("transpose", "reshape"):
            (below,) = node.operands
            pending.append((below, (node, *movements)))
            yield _moved(_place(below, axes), (node, *movements))
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


def _lower_parts(
    members: Sequence[Tensor],
    stored: Mapping[Tensor, str | Row],
    buffers: Mapping[Tensor, Home],
    name: str,
) -> Loop:
    """A loop in which each point computes an element of every part of what is joined, if it can.

    Otherwise each point of the whole has to choose among the parts.
    """
    joined = frozenset(m for m in members if m in stored and _has_equal_parts(m))
    if joined:
        try:
            return _lower_loop(members, stored, buffers, name, joined)
        except NotOneStep:
            pass
    return _lower_loop(members, stored, buffers, name)


def _has_equal_parts(node: Tensor) -> bool:
    """Whether the tensor is made of tensors of one shape, end to end, in long enough runs."""
    if node.op.name != "concat" or len({part.shape for part in node.operands}) > 1:
        return False
    return size_of(static(node.operands[0].shape)[node.attributes["axis"] :]) >= SHORTEST_RUN


def _lower_loop(
    members: Sequence[Tensor],
    stored: Mapping[Tensor, str | Row],
    buffers: Mapping[Tensor, Home],
    name: str,
    joined: frozenset[Tensor] = frozenset(),
) -> Loop:
    """A loop that computes all members.

    Args:
        members, stored, buffers, name: as for `lower_group`.
        joined: members that are stored part by part.
    """
    space = _loop_space([m.operands[0] if m in joined else m for m in members])
    puller = _Puller(buffers)
    used = {operand for member in members for operand in _inlined_operands(member, buffers)}
    stages: list[Stage] = []
    for member in members:
        if member in joined:
            continue
        label = f"r{len(puller.locals)}"
        lowering = member.op.lowering
        if isinstance(lowering, Reduction):
            puller.places[member] = _place(member, space.outer)
            (operand,) = member.operands
            inner = _real(space.inner)
            if not inner and lowering.combine in ("argmax", "argmin"):
                value: Scalar = Literal(0, member.dtype)
            else:
                value = puller.pull(operand, _reduced_places(member, space))
            stages.append(Reduce(label, lowering.combine, inner, value, member.dtype))
        elif member in space.full:
            puller.settle(member, (*space.outer, *space.inner))
            continue
        else:
            puller.settle(member, space.outer)
            if not space.inner or member not in used:
                continue
            # Computed once for each outer point, not again at every inner point.
            value = puller.expression(member, puller.places[member])
            stages.append(Reduce(label, "sum", (), value, member.dtype))
        puller.locals[member] = Local(label, member.dtype)
    writes = {True: list[Store](), False: list[Store]()}
    for member in members:
        if member in joined:
            part = member.operands[0]
            axes = (*space.outer, *space.inner) if part in space.full else space.outer
            writes[part in space.full] += _parts_stored(member, stored[member], axes, puller)
        elif member in stored:
            place = puller.places[member]
            value = puller.pull(member, place)
            store = Store(*_element(stored[member], place, static(member.shape)), value)
            writes[member in space.full].append(store)
    if writes[True]:
        stages.append(Write(_real(space.inner), tuple(writes[True])))
    if writes[False]:
        stages.append(Write((), tuple(writes[False])))
    return Loop(name, _real(space.outer), tuple(stages))


def _parts_stored(
    member: Tensor, home: str | Row, axes: Sequence[Axis], puller: _Puller
) -> list[Store]:
    """One element of each part of a joined tensor."""
    axis: int = member.attributes["axis"]
    place = _place(member.operands[0], axes)
    (extent,) = static(member.operands[0].shape[axis : axis + 1])
    stores: list[Store] = []
    for number, part in enumerate(member.operands):
        moved = (*place[:axis], place[axis] + number * extent, *place[axis + 1 :])
        value = puller.pull(part, place)
        stores.append(Store(*_element(home, moved, static(member.shape)), value))
    return stores


def _inlined_operands(member: Tensor, buffers: Mapping[Tensor, Home]) -> set[Tensor]:
    """Every tensor that computing the member here looks at, down to stored ones."""
    found: set[Tensor] = set()
    pending = list(member.operands)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            if node not in buffers:
                pending.extend(node.operands)
    return found


def _loop_space(members: Sequence[Tensor]) -> Space:
    reductions = [m for m in members if isinstance(m.op.lowering, Reduction)]
    if not reductions:
        largest = max(members, key=lambda m: m.rank)
        outer = _axes("i", static(largest.shape))
        return _space(members, outer, ())
    source = reductions[0].operands[0]
    shape, reduced = static(source.shape), set[int](reductions[0].attributes["axes"])
    outer = _axes("i", (shape[axis] for axis in range(len(shape)) if axis not in reduced))
    inner = _axes("k", (shape[axis] for axis in range(len(shape)) if axis in reduced))
    pattern = _pattern(reductions[0])
    if any(_pattern(other) != pattern for other in reductions):
        raise NotOneStep
    return _space(members, outer, inner)


def _pattern(reduction: Tensor) -> tuple[tuple[int, bool], ...]:
    """The extents of a reduction's operand, axes of extent 1 aside, and which are combined."""
    shape = static(reduction.operands[0].shape)
    axes: tuple[int, ...] = reduction.attributes["axes"]
    return tuple((extent, axis in axes) for axis, extent in enumerate(shape) if extent != 1)


def _space(members: Sequence[Tensor], outer: tuple[Axis, ...], inner: tuple[Axis, ...]) -> Space:
    outer_size = size_of([axis.extent for axis in outer])
    full_size = outer_size * size_of([axis.extent for axis in inner])
    reductions = [m for m in members if isinstance(m.op.lowering, Reduction)]
    full: set[Tensor] = set()
    for member in members:
        size = size_of(static(member.shape))
        if isinstance(member.op.lowering, Reduction) or size == outer_size:
            continue
        if size != full_size or not all(_combines_last_axes(r) for r in reductions):
            raise NotOneStep
        full.add(member)
    return Space(outer, inner, frozenset(full))


def _combines_last_axes(reduction: Tensor) -> bool:
    flags = [combined for _, combined in _pattern(reduction)]
    return flags == sorted(flags)


def _reduced_places(reduction: Tensor, space: Space) -> Coordinates:
    """Where a reduction reads its operand: outer axes and inner axes in the operand's order."""
    shape = static(reduction.operands[0].shape)
    axes: tuple[int, ...] = reduction.attributes["axes"]
    outer, inner = iter(_real(space.outer)), iter(_real(space.inner))
    return tuple(
        Index() if extent == 1 else axis_index(next(inner if axis in axes else outer))
        for axis, extent in enumerate(shape)
    )


def _lower_contraction(
    members: Sequence[Tensor],
    contractions: Sequence[Tensor],
    stored: Mapping[Tensor, str | Row],
    buffers: Mapping[Tensor, Home],
    name: str,
) -> Contraction:
    node = contractions[0]
    if len(contractions) > 1 or any(isinstance(m.op.lowering, Reduction) for m in members):
        raise NotOneStep
    left_names: tuple[str, ...] = node.attributes["left"]
    right_names: tuple[str, ...] = node.attributes["right"]
    output_names: tuple[str, ...] = node.attributes["output"]
    left, right = node.operands
    if output_names and output_names[-1] not in right_names:
        # Columns are what lies side by side in the result.
        left, right, left_names, right_names = right, left, right_names, left_names
    extents = dict(zip(left_names, static(left.shape), strict=True))
    extents |= dict(zip(right_names, static(right.shape), strict=True))
    axes = {label: Axis(f"i{n}", extents[label]) for n, label in enumerate(output_names)}
    inner_names = [label for label in left_names if label not in axes]
    axes |= {label: Axis(f"k{n}", extents[label]) for n, label in enumerate(inner_names)}
    output_axes = tuple(axes[label] for label in output_names)
    size = size_of([axis.extent for axis in output_axes])
    puller = _Puller(buffers)
    result = Local("sum", node.dtype)
    for member in members:
        if size_of(static(member.shape)) != size:
            raise NotOneStep
        if member is node:
            puller.places[node], puller.locals[node] = _indices(output_axes), result
        else:
            puller.settle(member, output_axes)
    stores = tuple(
        Store(
            *_element(stored[member], puller.places[member], static(member.shape)),
            puller.pull(member, puller.places[member]),
        )
        for member in members
        if member in stored
    )

    def group(wanted: Iterable[str]) -> tuple[Axis, ...]:
        return _real(axes[label] for label in wanted)

    def view(operand: Tensor, names: tuple[str, ...]) -> tuple[Scalar, Iterable[Sliding]]:
        puller = _Puller(buffers)
        scalar = puller.pull(operand, _indices(axes[label] for label in names))
        _view(scalar)
        return scalar, puller.slidings

    left_view, left_slidings = view(left, left_names)
    right_view, right_slidings = view(right, right_names)
    strides = _strides(_view(left_view).index)
    # Sums run through the left operand as it lies.
    inner = sorted(group(inner_names), key=lambda axis: -abs(strides.get(axis, 0)))
    return Contraction(
        name=name,
        batch=group(n for n in output_names if n in left_names and n in right_names),
        rows=group(n for n in output_names if n not in right_names),
        columns=group(n for n in output_names if n not in left_names),
        inner=tuple(inner),
        left=left_view,
        right=right_view,
        result=result.name,
        dtype=node.dtype,
        stores=stores,
        windows=(
            *windows_of("left", left_view, left_slidings, axes.values(), inner),
            *windows_of("right", right_view, right_slidings, axes.values(), inner),
        ),
    )


def _strides(index: Index) -> dict[Axis, float]:
    """How far apart the places of each axis lie; through quotients, where they are whole."""
    found: dict[Axis, float] = {}
    for atom, step in index.terms:
        if isinstance(atom, Axis):
            found[atom] = found.get(atom, 0) + step
        elif isinstance(atom, Quotient):
            for axis, inner in _strides(atom.index).items():
                found[axis] = found.get(axis, 0) + step * inner / atom.divisor
    return found


def _view(scalar: Scalar) -> Load:
    """The load behind a view.

    Raises:
        NotOneStep: if the scalar is more than a load with casts, or goes through it unevenly.
    """
    while isinstance(scalar, Apply) and scalar.primitive == "cast":
        scalar = scalar.operands[0]
    if not isinstance(scalar, Load) or not _is_even(scalar):
        raise NotOneStep
    return scalar


def _is_even(load: Load) -> bool:
    """Whether all axes go through the buffer in equal strides, apart from where it is not read.

    Reshapes that cut other axes than those of the buffer do not; a copy is read faster then.
    """
    atoms = [atom for atom, _ in load.index.terms]
    if not load.bounds:
        return all(isinstance(atom, Axis | Gathered) for atom in atoms)
    # With gaps between elements, quotients are whole where a bound says so.
    return all(isinstance(atom, Axis | Gathered | Quotient) for atom in atoms)


def is_view(node: Tensor, buffers: Mapping[Tensor, Home]) -> bool:
    """Whether a contraction can read the tensor where its source lies."""
    try:
        _view(_Puller(buffers).pull(node, _indices(_axes("i", static(node.shape)))))
    except NotOneStep:
        return False
    return True


def _lower_special(node: Tensor, puller: _Puller, home: str | Row, name: str) -> Loop:
    lowering = node.op.lowering
    shape = static(node.shape)
    if isinstance(lowering, Scanning):
        along: int = node.attributes["axis"]
        axes = _axes("i", shape)
        place = tuple(
            axis_index(axis) * -1 + (axis.extent - 1)
            if number == along and node.attributes["reverse"]
            else axis_index(axis)
            for number, axis in enumerate(axes)
        )
        scan = Scan(
            axes[along],
            lowering.combine,
            puller.pull(node.operands[0], place),
            *_element(home, place, shape),
            node.dtype,
        )
        others = (axis for number, axis in enumerate(axes) if number != along)
        return Loop(name, _real(others), (scan,))
    if not isinstance(lowering, Scattering):
        raise InternalError(f"{node.op.name} has no lowering")
    return _lower_scatter(node, lowering, puller, home, name)


def _lower_scatter(
    node: Tensor, lowering: Scattering, puller: _Puller, home: str | Row, name: str
) -> Loop:
    """Zeros first, then additions in order, side by side along the axes that stay in place."""
    shape = static(node.shape)
    values = node.operands[0]
    axes = _axes("k", static(values.shape))
    place = lowering.place(node, _indices(axes), lambda n, at: puller.pull(node.operands[n], at))
    shared: dict[int, Axis] = {}
    for number, coordinate in enumerate(place):
        for axis in _real(axes):
            alone = all(axis not in axes_of(c) for n, c in enumerate(place) if n != number)
            if coordinate == axis_index(axis) and axis.extent == shape[number] and alone:
                shared[number] = axis
    cleared = tuple(
        shared.get(number, Axis(f"i{number}", extent)) for number, extent in enumerate(shape)
    )
    outer = tuple(shared.values())
    zero = Store(*_element(home, _indices(cleared), shape), Literal(0, node.dtype))
    value = puller.pull(values, _indices(axes))
    addition = Store(*_element(home, place, shape), value, accumulate=True)
    return Loop(
        name,
        outer,
        (
            Write(tuple(a for a in _real(cleared) if a not in outer), (zero,)),
            Write(tuple(a for a in _real(axes) if a not in outer), (addition,), sequential=True),
        ),
    )


def is_leaf(node: Tensor) -> bool:
    """Whether the tensor is a buffer from the start: an input, parameter, state or constant."""
    return node.op is LEAF or node.op is CONSTANT
