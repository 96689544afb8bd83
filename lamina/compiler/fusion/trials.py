"""Trials: whether one step can compute some anchors, and that step.

Lowering decides, once for each signature. The step that it gives becomes the step of every group
of that signature: it calls its buffers by numbers, and each group puts its own in their place.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import final

from lamina.compiler.fusion.signature import Signatures
from lamina.compiler.lowering.lower import lower_group
from lamina.compiler.lowering.pull import Location, NotOneStep, Row
from lamina.graph import Tensor
from lamina.ops.lowering import Repeating
from lamina.program.index import Index
from lamina.program.rewrite import Rewrite
from lamina.program.steps import Step
from lamina.records import frozen_dataclass

# What the names of buffers begin with that have one before a group is lowered.
_NAMED = "="


def named(buffer: str) -> str:
    """A buffer's own name as it is used where others are called by numbers."""
    return _NAMED + buffer


@frozen_dataclass
class UnnamedStep:
    """The step of a group before its buffers have names.

    Attributes:
        step: calls buffers by the numbers of their places.
        places: the tensors that lie there.
    """

    step: Step
    places: tuple[Tensor, ...]

    def written(self, locations: Mapping[Tensor, str | Row], name: str) -> Step:
        """The step with buffers at its places.

        Args:
            locations: where tensors lie.
            name: of the step.
        """
        rows = {
            str(number): location
            if isinstance(location := locations[one], Row)
            else Row(location, Index())
            for number, one in enumerate(self.places)
        }

        def row(buffer: str) -> Row:
            return rows[buffer] if buffer in rows else Row(buffer.removeprefix(_NAMED), Index())

        rewrite = Rewrite(
            buffer=lambda buffer: row(buffer).buffer, start=lambda buffer: row(buffer).start
        )
        return replace(rewrite.step(self.step), name=name)


@final
class Trials:
    """Lowers groups, those of one signature once.

    Args:
        sources: for each anchor, the stored tensors that it is made of.
        in_place: the anchors that overwrite a leaf's buffer, and that leaf.
        given: leaves that have no buffer of their own, and what stands at their coordinates.
    """

    def __init__(
        self,
        sources: Mapping[Tensor, Collection[Tensor]],
        in_place: Mapping[Tensor, Tensor],
        given: Mapping[Tensor, Location],
    ) -> None:
        self._sources = sources
        self._in_place = in_place
        self._given = given
        self._signatures = Signatures(given)
        self._alone: dict[Tensor, tuple[int, tuple[Tensor, ...]]] = {}
        self._steps: dict[Hashable, Step | None] = {}

    def lowered(self, members: Sequence[Tensor], stored: Sequence[Tensor]) -> UnnamedStep | None:
        """One step that computes the members and stores some; None where there is none."""
        if any(isinstance(member.op.lowering, Repeating) for member in members):
            return None
        signature, places = self._signature(members, stored)
        if signature not in self._steps:
            self._steps[signature] = self._tried(members, stored, places)
        step = self._steps[signature]
        return None if step is None else UnnamedStep(step, tuple(places))

    def _tried(
        self, members: Sequence[Tensor], stored: Sequence[Tensor], places: Mapping[Tensor, int]
    ) -> Step | None:
        inside = set(members)
        buffers: dict[Tensor, Location] = {
            one: self._given[one] if one in self._given else str(places[self._buffer(one)])
            for member in members
            for one in self._sources[member]
            if one not in inside
        }
        locations = {one: str(places[self._buffer(one)]) for one in stored}
        try:
            return lower_group(members, locations, buffers, "")
        except NotOneStep:
            return None

    def _signature(
        self, members: Sequence[Tensor], stored: Sequence[Tensor]
    ) -> tuple[Hashable, dict[Tensor, int]]:
        """All that decides the step, and the numbers of the places of its buffers.

        It is made of what each of the members is by itself, and of what they read and write in
        common.
        """
        # Members by numbers from the front, places in memory from the end.
        numbers = {member: number for number, member in enumerate(members)}
        written = set(stored)
        places: dict[Tensor, int] = {}
        rows: list[Hashable] = []
        for member in members:
            if member not in self._alone:
                self._alone[member] = self._signatures.of(member, self._sources[member])
            alone, read = self._alone[member]
            row: list[Hashable] = [alone, None]
            if member in written:
                row[1] = places.setdefault(self._buffer(member), len(places))
            for one in read:
                if one in numbers:
                    row.append(numbers[one])
                elif one not in self._given:
                    row.append(-1 - places.setdefault(self._buffer(one), len(places)))
            rows.append(tuple(row))
        return tuple(rows), places

    def _buffer(self, node: Tensor) -> Tensor:
        """Whose buffer a tensor is stored in."""
        return self._in_place.get(node, node)
