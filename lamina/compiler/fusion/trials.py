"""Trials: lowering finds whether one step can compute some anchors, and returns that step.

Each signature is lowered once. All groups of a signature use the resulting step: a deep network
consists of equal blocks. The step names its buffers by numbers, which each group replaces by the
names of its own buffers.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import cast, final

from lamina.base.records import frozen_dataclass
from lamina.compiler.lowering.lower import lower_group
from lamina.compiler.lowering.pull import IterationRow, Location, NotOneStep
from lamina.compiler.simplify import attributes_key
from lamina.graph import Tensor
from lamina.ops.lowering_rules import Repeating
from lamina.program.index import Index
from lamina.program.rewrite import Rewrite
from lamina.program.steps import Step

# The prefix of buffers whose names are known before a group is lowered.
_NAMED = "="


def named(buffer: str) -> str:
    """A buffer's own name, for a step that names other buffers by numbers."""
    return _NAMED + buffer


@frozen_dataclass
class UnnamedStep:
    """The step of a group before its buffers have names: it names the buffer of `tensors[n]` n."""

    step: Step
    tensors: tuple[Tensor, ...]

    def written(self, locations: Mapping[Tensor, str | IterationRow], name: str) -> Step:
        """The step with its name and the names of buffers, from the locations of its tensors."""

        def row(buffer: str) -> IterationRow:
            location: str | IterationRow = buffer.removeprefix(_NAMED)
            if location == buffer:
                location = locations[self.tensors[int(buffer)]]
            return IterationRow(location, Index()) if isinstance(location, str) else location

        rewrite = Rewrite(
            buffer=lambda buffer: row(buffer).buffer,
            place=lambda buffer, index: index + row(buffer).start,
        )
        return replace(rewrite.record(self.step), name=name)


@final
class Trials:
    """Lowers groups, each signature once, down to the sources of each anchor."""

    def __init__(
        self,
        sources: Mapping[Tensor, Collection[Tensor]],
        in_place: Mapping[Tensor, Tensor],
        locations: Mapping[Tensor, Location],
    ) -> None:
        self._sources = sources
        self._in_place = in_place
        self._locations = locations
        self._signatures = SubgraphSignatures(locations)
        self._alone: dict[Tensor, tuple[int, tuple[Tensor, ...]]] = {}
        self._steps: dict[Hashable, Step | None] = {}

    def lowered(self, members: Sequence[Tensor], stored: Sequence[Tensor]) -> UnnamedStep | None:
        """The step that computes the members and stores some of them; None if none can."""
        if any(isinstance(member.op.lowering, Repeating) for member in members):
            return None
        signature, buffer_ids = self._signature(members, stored)
        if signature not in self._steps:
            self._steps[signature] = self._tried(members, stored, buffer_ids)
        step = self._steps[signature]
        return None if step is None else UnnamedStep(step, tuple(buffer_ids))

    def _tried(
        self, members: Sequence[Tensor], stored: Sequence[Tensor], buffer_ids: Mapping[Tensor, int]
    ) -> Step | None:
        inside, located = set(members), self._locations
        locations: dict[Tensor, Location] = {
            source: located[source] if source in located else str(buffer_ids[self._buffer(source)])
            for member in members
            for source in self._sources[member]
            if source not in inside
        }
        outputs = {tensor: str(buffer_ids[self._buffer(tensor)]) for tensor in stored}
        try:
            return lower_group(members, outputs, locations)
        except NotOneStep:
            return None

    def _signature(
        self, members: Sequence[Tensor], stored: Sequence[Tensor]
    ) -> tuple[Hashable, dict[Tensor, int]]:
        """A key of everything that determines the step, and the number of each tensor's buffer.

        Of each member it has the signature of its expression, the buffer that it writes, and the
        members and buffers that it reads.
        """
        # A row refers to a member by the member's number, and to buffer n that it reads by -1 - n.
        member_ids = {member: number for number, member in enumerate(members)}
        written = set(stored)
        buffer_ids: dict[Tensor, int] = {}
        rows: list[Hashable] = []
        for member in members:
            if member not in self._alone:
                self._alone[member] = self._signatures.of(member, self._sources[member])
            alone, read = self._alone[member]
            row: list[Hashable] = [alone, None]
            if member in written:
                row[1] = buffer_ids.setdefault(self._buffer(member), len(buffer_ids))
            for tensor in read:
                if tensor in member_ids:
                    row.append(member_ids[tensor])
                elif tensor not in self._locations:
                    row.append(-1 - buffer_ids.setdefault(self._buffer(tensor), len(buffer_ids)))
            rows.append(tuple(row))
        return tuple(rows), buffer_ids

    def _buffer(self, node: Tensor) -> Tensor:
        """The tensor that names the buffer: the leaf that a tensor overwrites, or itself."""
        return self._in_place.get(node, node)


@final
class SubgraphSignatures:
    """Signatures with tensors and locations in them; each is equal to itself only."""

    def __init__(self, locations: Container[Tensor] = ()) -> None:
        self._locations = locations
        self._kinds: dict[Hashable, int] = {}
        self._kind_of: dict[Tensor, int] = {}
        self._signatures: dict[Hashable, int] = {}

    def of(self, root: Tensor, stored: Container[Tensor]) -> tuple[int, tuple[Tensor, ...]]:
        """The signature of a tensor's expression, and the stored tensors it reads, in order."""
        # None on the stack marks that the tensor below it is visited again, after its operands.
        pending: list[Tensor | None] = [root]
        rows: list[Hashable] = []
        numbers: dict[Tensor, int] = {}
        read: list[Tensor] = []
        while pending:
            node = pending.pop()
            if node is None:
                node = cast(Tensor, pending.pop())
            elif node in numbers:
                continue
            elif node is not root and node in stored:
                numbers[node] = len(rows)
                rows.append((node.shape, node.dtype, node if node in self._locations else None))
                read.append(node)
                continue
            elif node.operands:
                pending += (node, None, *node.operands[::-1])
                continue
            operands = [numbers[operand] for operand in node.operands]
            numbers[node] = len(rows)
            rows.append((self._kind(node), *operands))
        return self._signatures.setdefault(tuple(rows), len(self._signatures)), tuple(read)

    def _kind(self, node: Tensor) -> int:
        """A number for a tensor's op, shape, dtype and attributes."""
        if node not in self._kind_of:
            kind = (node.op, node.shape, node.dtype, attributes_key(node))
            self._kind_of[node] = self._kinds.setdefault(kind, len(self._kinds))
        return self._kind_of[node]
