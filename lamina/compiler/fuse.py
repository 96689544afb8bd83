"""Fusion: which tensors are stored, and which are computed together in one step.

First the *anchors* are chosen: tensors that a loop nest must produce as such, because they are
reductions, contractions, results, operands of contractions, or too dear to compute twice. Every
other tensor is folded into its users. Then anchors are joined into groups, greedily, wherever one
loop nest can compute them together (`lower.lower_group` decides) and no cycle arises.

An updated parameter is written in place, so all who read its old value come first: these orders
count as dependencies when groups are joined and scheduled.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from heapq import heappop, heappush
from itertools import islice
from typing import final

from lamina.compiler.lower import (
    DEEPEST_EXPRESSION,
    Home,
    NotOneStep,
    Row,
    is_leaf,
    is_view,
    lower_group,
)
from lamina.compiler.precedence import Precedence, cycles
from lamina.compiler.signature import Signatures
from lamina.errors import InternalError
from lamina.graph import Graph, Tensor, apply
from lamina.ops.lowering import (
    Contracting,
    Elementwise,
    Generator,
    Movement,
    Reduction,
    Repeating,
    Scanning,
    Scattering,
    is_expensive,
    loop_of,
)
from lamina.ops.movement import RESHAPE
from lamina.program.index import Index
from lamina.program.scalar import Apply, Local, parts
from lamina.program.target import Target
from lamina.records import frozen_dataclass
from lamina.shapes import size_of, static

# What is so many times smaller than a tensor costs nothing to read beside it.
TINY = 64

# How many of the following groups over as many points are tried as siblings of each group.
SIBLINGS_TRIED = 8
# Steps that compute more anchors than this are not joined further.
MOST_MEMBERS = 64

# What makes index expressions deep counts as so many levels of an expression: a place that is read
# from data, and a reshape, each of whose places is made of all axes. Without a bound, a chain of
# reshapes and transposes would double an index with each of them.
GATHER_DEPTH, RESHAPE_DEPTH = 20, 12

Anchors = dict[Tensor, None]


@frozen_dataclass
class Group:
    """Anchors that one step computes.

    Attributes:
        members: operands before users.
        stored: the members that other groups, or callers, need.
    """

    members: tuple[Tensor, ...]
    stored: frozenset[Tensor]


@frozen_dataclass
class Fused:
    """A graph with its division into steps.

    Attributes:
        graph: with identities added where a result needs a buffer of its own.
        groups: in the order in which they run.
        in_place: the anchors that overwrite a leaf's buffer, and that leaf.
    """

    graph: Graph
    groups: tuple[Group, ...]
    in_place: Mapping[Tensor, Tensor]


def fuse(graph: Graph, target: Target) -> Fused:
    """Divides a simplified graph into groups and orders them."""
    copied: set[Tensor] = set()
    while True:
        prepared, in_place, forced = _with_own_results(graph, copied)
        joiner = _Joiner(prepared, _choose_anchors(prepared, forced, target), in_place)
        blocked = joiner.blocked()
        if not blocked:
            break
        copied |= blocked
    joiner.join()
    return Fused(prepared, joiner.schedule(), in_place)


def _identity(tensor: Tensor) -> Tensor:
    return apply(RESHAPE, tensor, shape=tensor.shape)


def _with_own_results(
    graph: Graph, copied: set[Tensor]
) -> tuple[Graph, dict[Tensor, Tensor], set[Tensor]]:
    """Gives every result that is a leaf, or that two leaves take, a tensor of its own.

    An update whose old value is still read by something that needs the new one gets one as well.

    Args:
        graph: a simplified graph.
        copied: the leaves whose new value must be computed elsewhere first, and then copied.

    Returns:
        The graph, the new values that are written in place with their leaves, and the new values
        that must be stored, to be copied.
    """
    outputs = tuple((n, _identity(t) if is_leaf(t) else t) for n, t in graph.outputs)
    in_place: dict[Tensor, Tensor] = {}
    forced: set[Tensor] = set()
    updates: list[tuple[Tensor, Tensor]] = []
    users = _users(graph.nodes())
    for target, value in graph.updates:
        elsewhere = is_leaf(value) or isinstance(value.op.lowering, Repeating)
        if elsewhere or value in in_place or _read_after(target, value, users):
            value = _identity(value)
        if target in copied:
            forced.add(value)
            value = _identity(value)
        in_place[value] = target
        updates.append((target, value))
    return Graph(graph.inputs, outputs, tuple(updates)), in_place, forced


def _users(nodes: Sequence[Tensor]) -> dict[Tensor, list[Tensor]]:
    users: dict[Tensor, list[Tensor]] = {node: [] for node in nodes}
    for node in nodes:
        for operand in dict.fromkeys(node.operands):
            users[operand].append(node)
    return users


def _read_after(target: Tensor, value: Tensor, users: Mapping[Tensor, list[Tensor]]) -> bool:
    """Whether something that needs the new value of a leaf may read the old one as well."""
    downstream = _reachable(users[value], users)
    if not downstream:
        return False
    from_old = _reachable((user for user in users[target] if user is not value), users, stop=value)
    return bool(downstream & from_old)


def _reachable(
    start: Iterable[Tensor],
    users: Mapping[Tensor, Sequence[Tensor]],
    stop: Tensor | None = None,
) -> set[Tensor]:
    """The tensors, and all that need them, not going beyond `stop`."""
    found: set[Tensor] = set()
    pending = list(start)
    while pending:
        node = pending.pop()
        if node not in found and node is not stop:
            found.add(node)
            pending.extend(users[node])
    return found


def _choose_anchors(graph: Graph, forced: set[Tensor], target: Target) -> Anchors:
    views = _Views()
    nodes = graph.nodes()
    users = _users(nodes)
    roots = forced.union(graph.roots)
    anchors: dict[Tensor, None] = {
        node: None
        for node in nodes
        if isinstance(node.op.lowering, Reduction | Contracting | Scanning | Scattering | Repeating)
        or (node in roots and not is_leaf(node))
    }
    consumers: dict[Tensor, set[Tensor]] = {}
    for node in reversed(nodes):
        if is_leaf(node):
            continue
        if node not in anchors:
            found = set[Tensor]().union(
                *({u} if u in anchors else consumers[u] for u in users[node])
            )
            # One, or several: more are not asked for, and might be as many as there are anchors.
            consumers[node] = set(islice(found, 2))
    anchors.update(dict.fromkeys(_partial_sums(nodes, users)))
    cut = _cut(nodes, users)
    # Operands first, so that costs are known down to the stored tensors.
    depth: dict[Tensor, int] = {}
    for node in nodes:
        depth[node] = 0
        # What is stored for a contraction is there for others, too.
        for operand in _viewed(node):
            below = views.behind(operand, anchors)
            if below is not None:
                anchors[below] = None
                if not views.is_readable(operand, anchors):
                    del anchors[below]
        if is_leaf(node) or node in anchors:
            continue
        depth[node] = _own_depth(node) + max(
            (depth[operand] for operand in node.operands), default=0
        )
        several = len(consumers[node]) > 1 and node not in cut
        shared = several or _is_repeated(node, users[node])
        stored = shared and not _is_cheap(node, anchors, target)
        if stored or depth[node] > DEEPEST_EXPRESSION // 2:
            anchors[node] = None
            depth[node] = 0
    for node in nodes:
        if _narrows(node, anchors) and users[node]:
            anchors[node] = None
        if node in anchors and node not in roots:
            _move_up(node, anchors, users)
    for node in nodes:
        for operand in _viewed(node):
            views.make(operand, anchors)
    order = {node: number for number, node in enumerate(nodes)}
    return dict.fromkeys(sorted(anchors, key=order.__getitem__))


def _own_depth(node: Tensor) -> int:
    """How many levels of an expression a tensor adds to those of its operands."""
    if node.op.name in ("take", "take_along_axis"):
        return GATHER_DEPTH
    if node.op is RESHAPE:
        before, after = ([n for n in x.shape if n != 1] for x in (node.operands[0], node))
        return RESHAPE_DEPTH if before != after else 1
    return 1


def _partial_sums(
    nodes: Sequence[Tensor], users: Mapping[Tensor, Sequence[Tensor]]
) -> list[Tensor]:
    """Sums of contractions to which more of them are added.

    Each contraction then adds to the sum so far, rather than keep its result until all are there.
    """
    terms: dict[Tensor, int] = {}
    for node in nodes:
        terms[node] = 0
        if isinstance(node.op.lowering, Contracting):
            terms[node] = 1
        elif isinstance(node.op.lowering, Movement) and len(node.operands) == 1:
            terms[node] = terms[node.operands[0]]
        elif node.op.name == "add" and all(terms[x] for x in node.operands):
            terms[node] = sum(terms[x] for x in node.operands)
    return [
        node
        for node in nodes
        if node.op.name == "add"
        and terms[node]
        and any(terms[user] > terms[node] for user in users[node])
    ]


def _narrows(node: Tensor, anchors: Anchors) -> bool:
    """Whether the tensor says in fewer bytes what would be stored otherwise."""
    if node.op.name != "cast" or node.operands[0] not in anchors:
        return False
    return node.dtype.itemsize < node.operands[0].dtype.itemsize


def _move_up(node: Tensor, anchors: Anchors, users: Mapping[Tensor, Sequence[Tensor]]) -> None:
    """What is only used in another order is stored in that order, if it can be."""
    last = node
    above = node
    while isinstance(above.op.lowering, Elementwise | Movement) and len(users[above]) == 1:
        (user,) = users[above]
        if user in anchors or user.op.name not in ("transpose", "reshape"):
            break
        above = user
        if user.op.name == "transpose":
            last = user
    if last is not node:
        del anchors[node]
        anchors[last] = None


def _is_repeated(node: Tensor, users: Sequence[Tensor]) -> bool:
    """Whether some user computes it several times, because it broadcasts it."""
    size = size_of(static(node.shape))
    # Those that are named read no element twice, whatever the size of their result.
    return any(
        isinstance(user.op.lowering, Elementwise | Movement)
        and size < size_of(static(user.shape))
        and user.op.name not in ("concat", "pad", "shear")
        for user in users
    )


def _cut(nodes: Sequence[Tensor], users: Mapping[Tensor, Sequence[Tensor]]) -> set[Tensor]:
    """The tensors that are only used in parts: each element is computed once without being stored.

    Those that such a tensor is made of, element by element, are among them.
    """
    found: set[Tensor] = set()
    for node in reversed(nodes):
        sizes = [size_of(static(user.shape)) for user in users[node]]
        size = size_of(static(node.shape))
        sliced = all(user.op.name == "slice" for user in users[node]) and sum(sizes) <= size
        passed_on = sizes == [size] and isinstance(users[node][0].op.lowering, Elementwise)
        if sizes and (sliced or (passed_on and users[node][0] in found)):
            found.add(node)
    return found


def _expression(node: Tensor, anchors: Anchors) -> tuple[set[Tensor], list[Tensor]]:
    """What an inlined tensor reads (stored tensors, but for tiny ones) and computes."""
    sources: set[Tensor] = set()
    tiny = size_of(static(node.shape)) // TINY
    inside: dict[Tensor, None] = {}
    pending = [node]
    while pending:
        one = pending.pop()
        if one is not node and (is_leaf(one) or one in anchors):
            if size_of(static(one.shape)) > max(tiny, 1):
                sources.add(one)
        elif one not in inside:
            inside[one] = None
            pending.extend(_read(one))
    return sources, list(inside)


def _read(node: Tensor) -> tuple[Tensor, ...]:
    """The operands that computing a tensor reads."""
    lowering = node.op.lowering
    ordered = isinstance(lowering, Movement) and lowering.ordered
    return node.operands[:1] if ordered else node.operands


def _is_cheap(node: Tensor, anchors: Anchors, target: Target) -> bool:
    """Whether computing it again costs no more than storing and loading it."""
    sources, inside = _expression(node, anchors)
    if size_of(static(node.shape)) == 1:
        # A single number: storing it is next to nothing, computing it for every element is not.
        return not any(_is_expensive(one, target) for one in inside)
    if not sources:
        return True
    computed = [one for one in inside if isinstance(one.op.lowering, Elementwise)]
    return (
        len(sources) == 1
        and len(computed) * target.simple_cost <= 1
        and not any(_is_expensive(one, target) for one in inside)
    )


def _is_expensive(node: Tensor, target: Target) -> bool:
    """Whether a point of it costs as much as a load; a comparison with a position does not."""
    lowering = node.op.lowering
    if isinstance(lowering, Generator):
        probes = tuple(Local("probe", operand.dtype) for operand in node.operands)
        place = (Index(),) * node.rank
        scalar = lowering.scalar(node, place, lambda operand, _: probes[operand])
        return sum(isinstance(p, Apply) for p in parts(scalar)) * target.simple_cost > 1
    return is_expensive(node, target)


def _viewed(node: Tensor) -> tuple[Tensor, ...]:
    """The operands that are read through views: those of contractions and of recurrences."""
    if isinstance(node.op.lowering, Contracting):
        return node.operands
    if isinstance(node.op.lowering, Repeating):
        return node.operands[node.attributes["states"] :]
    return ()


@final
class _Views:
    """Which operands can be read where something is stored; tried once for each signature."""

    def __init__(self) -> None:
        self._signatures = Signatures()
        self._tried: dict[int, bool] = {}

    def make(self, operand: Tensor, anchors: Anchors) -> None:
        """Stores whatever keeps an operand from being read where it lies."""
        below = self.behind(operand, anchors)
        if below is not None:
            anchors[below] = None
        if not self.is_readable(operand, anchors):
            anchors[operand] = None

    def behind(self, operand: Tensor, anchors: Anchors) -> Tensor | None:
        """What must be stored for an operand to be read; None if it can be read already."""
        below = operand
        while not self.is_readable(below, anchors):
            # Look below a movement: perhaps what it moves is what must be stored.
            if not isinstance(below.op.lowering, Movement) or len(below.operands) != 1:
                return below
            (source,) = below.operands
            if _is_number(source) or not self._is_view(below, [source]):
                return below
            below = source
        return None

    def is_readable(self, operand: Tensor, anchors: Anchors) -> bool:
        """Whether a contraction can read its operand from what is stored."""
        if is_leaf(operand) or operand in anchors:
            return True
        boundary = _boundary([operand], anchors)
        return self._is_view(operand, [node for node in boundary if not _is_number(node)])

    def _is_view(self, operand: Tensor, stored: Iterable[Tensor]) -> bool:
        homes: dict[Tensor, Home] = dict.fromkeys(stored, "")
        signature, _ = self._signatures.of(operand, homes)
        if signature not in self._tried:
            self._tried[signature] = is_view(operand, homes)
        return self._tried[signature]


def _boundary(nodes: Iterable[Tensor], anchors: Anchors) -> set[Tensor]:
    """The leaves and anchors that the expressions of some tensors end at."""
    found: set[Tensor] = set()
    seen: set[Tensor] = set()
    pending = list(nodes)
    while pending:
        one = pending.pop()
        if one in seen:
            continue
        seen.add(one)
        if is_leaf(one) or one in anchors:
            found.add(one)
        else:
            pending.extend(one.operands)
    return found


class _Joiner:
    """Joins anchors into groups; holds the groups and what must come before what."""

    def __init__(self, graph: Graph, anchors: Anchors, in_place: Mapping[Tensor, Tensor]) -> None:
        self.anchors = anchors
        self.in_place = in_place
        self.results = set(graph.roots)
        self.order = {node: number for number, node in enumerate(graph.nodes())}
        self.sources = {anchor: _boundary(anchor.operands, anchors) for anchor in anchors}
        # What is read from memory: not the numbers that are written into expressions.
        self.buffers = {
            anchor: {one: self._buffer_key(one) for one in sources if not _is_number(one)}
            for anchor, sources in self.sources.items()
        }
        self.users: dict[Tensor, set[Tensor]] = {anchor: set() for anchor in anchors}
        self.readers: dict[Tensor, set[Tensor]] = {}
        for anchor, sources in self.sources.items():
            for source in sources:
                self.users.setdefault(source, set()).add(anchor)
                if is_leaf(source):
                    self.readers.setdefault(source, set()).add(anchor)
        # Whether groups of a signature are one step.
        self.signatures = Signatures()
        self.tried: dict[Hashable, bool] = {}
        self.single: dict[Tensor, tuple[int, tuple[Tensor, ...]]] = {}
        self.group_of: dict[Tensor, int] = {}
        self.members: dict[int, tuple[Tensor, ...]] = {}
        # What the groups read that is more than one number.
        self.larger: dict[int, set[Tensor]] = {}
        # Several results of a recurrence are one loop from the start.
        recurrences: dict[object, int] = {}
        for number, anchor in enumerate(anchors):
            if isinstance(anchor.op.lowering, Repeating):
                number = recurrences.setdefault(loop_of(anchor), number)
            self.group_of[anchor] = number
            self.members[number] = (*self.members.get(number, ()), anchor)
            larger = {one for one in self.sources[anchor] if size_of(static(one.shape)) > 1}
            self.larger[number] = self.larger.get(number, set()) | larger
        # The groups that must come directly before each group.
        needs: dict[int, set[int]] = {number: set() for number in self.members}
        for anchor in anchors:
            number = self.group_of[anchor]
            needs[number] |= {self.group_of[one] for one in self._required(anchor)} - {number}
        self.needs: Mapping[int, AbstractSet[int]] = needs

    def _required(self, anchor: Tensor) -> set[Tensor]:
        """The anchors that must be computed before this one, or with it."""
        required = {source for source in self.sources[anchor] if source in self.anchors}
        if anchor in self.in_place:
            required |= self.readers.get(self.in_place[anchor], set()) - {anchor}
        return required

    def blocked(self) -> set[Tensor]:
        """Leaves that cannot be overwritten directly; none if all can.

        Either the new value reads the old one at other places, as in `p <- flip(p)`, or several
        leaves wait for each other, as in `p <- q, q <- p`; of those, it is the smallest one.
        """
        elsewhere = {
            target for anchor, target in self.in_place.items() if not self._lowers((anchor,))
        }
        if elsewhere:
            return elsewhere
        written = {self.group_of[anchor]: target for anchor, target in self.in_place.items()}
        return {
            min((written[number] for number in sorted(cycle) if number in written), key=_bytes)
            for cycle in cycles(self.needs)
        }

    def join(self) -> None:
        """Joins groups wherever that is one legal step; none may be blocked."""
        self.precedence = Precedence(self.needs)
        self.needs = self.precedence.needs
        for anchor in self.anchors:
            producers = sorted(
                (source for source in self.sources[anchor] if source in self.anchors),
                key=self.order.__getitem__,
                reverse=True,
            )
            for producer in producers:
                self._try(self.group_of[producer], self.group_of[anchor])
        self._join_siblings()

    def _join_siblings(self) -> None:
        """Joins groups that do not use each other but run over the same points."""
        by_size: dict[int, list[int]] = {}
        for number, members in self.members.items():
            if not any(isinstance(m.op.lowering, Contracting | Repeating) for m in members):
                by_size.setdefault(self._points(members), []).append(number)
        for points, numbers in by_size.items():
            for position, first in enumerate(numbers):
                for second in numbers[position + 1 : position + 1 + SIBLINGS_TRIED]:
                    if (
                        first in self.members
                        and second in self.members
                        and (points == 1 or self._share_input(first, second))
                    ):
                        self._try(first, second)

    def _points(self, members: Sequence[Tensor]) -> int:
        sizes = [
            size_of(static(m.operands[0].shape if _is_reduction(m) else m.shape)) for m in members
        ]
        return max(sizes)

    def _share_input(self, first: int, second: int) -> bool:
        return not self.larger[first].isdisjoint(self.larger[second])

    def _try(self, first: int, second: int) -> bool:
        """Joins two groups if that is one legal step; the group takes the first's number."""
        if first == second or self.precedence.has_between(first, second):
            return False
        both = (*self.members[first], *self.members[second])
        members = tuple(sorted(both, key=self.order.__getitem__))
        if len(members) > MOST_MEMBERS or not self._lowers(members):
            return False
        for member in members:
            self.group_of[member] = first
        self.members[first] = members
        del self.members[second]
        self.larger[first] |= self.larger.pop(second)
        self.precedence.join(first, second)
        return True

    def _lowers(self, members: tuple[Tensor, ...]) -> bool:
        """Whether one step can compute the members; tried once for each signature."""
        if any(isinstance(member.op.lowering, Repeating) for member in members):
            return False
        stored: dict[Tensor, str | Row] = {m: self._buffer_key(m) for m in self._stored(members)}
        signature = self._signature(members, stored)
        if signature not in self.tried:
            buffers: dict[Tensor, Home] = {}
            for member in members:
                buffers |= self.buffers[member]
            for member in members:
                buffers.pop(member, None)
            self.tried[signature] = _is_one_step(members, stored, buffers)
        return self.tried[signature]

    def _signature(
        self, members: tuple[Tensor, ...], stored: Mapping[Tensor, str | Row]
    ) -> Hashable:
        """All that decides whether one step can compute the members.

        It is made of what each of them is by itself, and of what they read and write in common.
        """
        # Members by numbers from the front, places in memory from the end.
        numbers: dict[Tensor, int] = {member: number for number, member in enumerate(members)}
        places: dict[object, int] = {}
        rows: list[Hashable] = []
        for member in members:
            if member not in self.single:
                self.single[member] = self.signatures.of(member, self.buffers[member])
            alone, read = self.single[member]
            home = stored.get(member)
            row = [alone, 0 if home is None else places.setdefault(home, -1 - len(places))]
            for one in read:
                number = numbers.get(one)
                if number is None:
                    number = places.setdefault(self.buffers[member][one], -1 - len(places))
                row.append(number)
            rows.append(tuple(row))
        return tuple(rows)

    def _buffer_key(self, node: Tensor) -> str:
        target = self.in_place.get(node, node)
        return str(id(target))

    def _stored(self, members: tuple[Tensor, ...]) -> list[Tensor]:
        inside = set(members)
        return [m for m in members if m in self.results or not self.users[m] <= inside]

    def schedule(self) -> tuple[Group, ...]:
        """The groups in an order that frees memory early, among those that are allowed."""
        groups = {
            number: Group(members, frozenset(self._stored(members)))
            for number, members in self.members.items()
        }
        sources = {
            number: {source for member in group.members for source in self.sources[member]}
            for number, group in groups.items()
        }
        missing = {number: set(needed) for number, needed in self.needs.items()}
        followers: dict[int, list[int]] = {number: [] for number in groups}
        for number, needed in self.needs.items():
            for one in needed:
                followers[one].append(number)
        # The groups that have yet to read what others store.
        unread = {
            anchor: {self.group_of[user] for user in self.users[anchor]} - {self.group_of[anchor]}
            for anchor in self.anchors
        }

        def cost(number: int) -> tuple[int, int]:
            """Bytes that a group adds less those it sets free; then the order of writing."""
            group = groups[number]
            grown = sum(_bytes(m) for m in group.stored if m not in self.in_place)
            freed = sum(
                _bytes(source)
                for source in sources[number] - set(group.members) - self.results
                if source in self.anchors and unread[source] <= {number}
            )
            return grown - freed, min(self.order[member] for member in group.members)

        # Costs only fall while others finish; a group is put in again each time that its does.
        heap: list[tuple[tuple[int, int], int]] = []
        ready: set[int] = set()

        def put(number: int) -> None:
            heappush(heap, (cost(number), number))

        for number, needed in missing.items():
            if not needed:
                ready.add(number)
                put(number)
        done: list[Group] = []
        while heap:
            _, best = heappop(heap)
            if best not in ready:
                continue
            ready.remove(best)
            done.append(groups[best])
            for source in sources[best]:
                readers = unread.get(source, set[int]())
                readers.discard(best)
                if len(readers) == 1:
                    (last,) = readers
                    if last in ready:
                        put(last)
            for follower in followers[best]:
                missing[follower].remove(best)
                if not missing[follower]:
                    ready.add(follower)
                    put(follower)
        if len(done) < len(groups):
            raise InternalError("the steps of a program wait for each other in a circle")
        return tuple(done)


def _is_one_step(
    members: Sequence[Tensor], stored: Mapping[Tensor, str | Row], buffers: Mapping[Tensor, Home]
) -> bool:
    try:
        lower_group(members, stored, buffers, "candidate")
    except NotOneStep:
        return False
    return True


def _bytes(node: Tensor) -> int:
    return size_of(static(node.shape)) * node.dtype.itemsize


def _is_reduction(node: Tensor) -> bool:
    return isinstance(node.op.lowering, Reduction)


def _is_number(node: Tensor) -> bool:
    """Whether the tensor is a constant that is written into expressions as a literal."""
    return is_leaf(node) and node.op.name == "constant" and size_of(static(node.shape)) == 1
