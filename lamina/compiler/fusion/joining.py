"""Joining: groups become larger wherever that is one legal step.

No operation is repeated by a join, and a launch is saved. So a join never costs more, and what is
left to decide is the order in which joins are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lamina.compiler.fusion.groups import Groups, bytes_of
from lamina.graph import Tensor
from lamina.ops.lowering_rules import Contracting, Reduction, Repeating
from lamina.shapes import size_of, static

# How many of the following groups over as many points are tried as siblings of each group.
SIBLINGS_TRIED = 8


def join_producers(groups: Groups) -> None:
    """Joins anchors with what they are made of, the latest first.

    Saves the bytes that pass from one to the other.
    """
    for anchor in groups.anchors:
        producers = sorted(
            (source for source in groups.sources[anchor] if source in groups.anchors),
            key=groups.order.__getitem__,
            reverse=True,
        )
        for producer in producers:
            groups.join(groups.group_of[producer], groups.group_of[anchor])


def join_siblings(groups: Groups) -> None:
    """Joins groups that do not use each other, but run over the same points and read the same.

    Saves the bytes of what both read.
    """
    _join_beside(groups, _share_input)


def join_small(groups: Groups) -> None:
    """Joins groups that only run over the same points, if one of them is small.

    Saves a launch, which must cost more than the bytes that are held longer for it: what the
    smaller group writes.
    """
    _join_beside(groups, _costs_a_launch)


def _join_beside(groups: Groups, is_worth_joining: Callable[[Groups, int, int], bool]) -> None:
    """Tries joins of groups over as many points."""
    by_points: dict[int, list[int]] = {}
    for number, members in groups.members.items():
        if not any(isinstance(m.op.lowering, Contracting | Repeating) for m in members):
            by_points.setdefault(_points(members), []).append(number)
    for numbers in by_points.values():
        for position, first in enumerate(numbers):
            for second in numbers[position + 1 : position + 1 + SIBLINGS_TRIED]:
                if (
                    first in groups.members
                    and second in groups.members
                    and is_worth_joining(groups, first, second)
                ):
                    groups.join(first, second)


def _points(members: Sequence[Tensor]) -> int:
    """How many points a step runs over."""
    return max(
        size_of(static(m.operands[0].shape if isinstance(m.op.lowering, Reduction) else m.shape))
        for m in members
    )


def _share_input(groups: Groups, first: int, second: int) -> bool:
    return not groups.larger[first].isdisjoint(groups.larger[second])


def _costs_a_launch(groups: Groups, first: int, second: int) -> bool:
    written = (sum(map(bytes_of, groups.stored(groups.members[n]))) for n in (first, second))
    return min(written) <= groups.target.launch_bytes
