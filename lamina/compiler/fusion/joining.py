"""Joining: groups are joined wherever the result is a legal group.

A join repeats no operation and saves a launch, so it never costs more. The passes only differ in
the order in which they try joins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lamina.base.shapes import size_of, static
from lamina.compiler.fusion.groups import Groups, bytes_of
from lamina.graph import Tensor
from lamina.ops.lowering_rules import Contracting, Reduction, Repeating

# The number of following groups, over equally many points, with which each group is tried.
SIBLINGS_TRIED = 8


def join_producers(groups: Groups) -> None:
    """Joins each anchor's group with those of its sources, the latest source first.

    A join saves the bytes that one group writes for the other.
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
    """Joins groups over equally many points that read a tensor in common.

    A join saves the bytes of the second read.
    """
    _join_over_same_points(groups, _share_input)


def join_small(groups: Groups) -> None:
    """Joins groups over equally many points that share no tensor, if one of them is small.

    A join saves a launch, and keeps the bytes that the smaller group writes alive for longer. The
    launch must cost more than these bytes.
    """
    _join_over_same_points(groups, _writes_less_than_a_launch)


def _join_over_same_points(
    groups: Groups, is_worth_joining: Callable[[Groups, int, int], bool]
) -> None:
    """Tries joins of groups over equally many points, where a predicate of both groups holds."""
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
    """The number of points of a group's step."""
    return max(
        size_of(static(m.operands[0].shape if isinstance(m.op.lowering, Reduction) else m.shape))
        for m in members
    )


def _share_input(groups: Groups, first: int, second: int) -> bool:
    return not groups.large_sources[first].isdisjoint(groups.large_sources[second])


def _writes_less_than_a_launch(groups: Groups, first: int, second: int) -> bool:
    written = (sum(map(bytes_of, groups.stored(groups.members[n]))) for n in (first, second))
    return min(written) <= groups.target.launch_bytes
