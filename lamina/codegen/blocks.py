"""Long sums of floats, in blocks.

Each addition to a running total is rounded, and the errors of equal terms have one sign. So a loop
that adds many terms becomes loops over blocks: a block begins at zero, and its sum is one term of
the block around it. An error then grows with the number of terms of a block, not of the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lamina.base.records import frozen_dataclass
from lamina.codegen.builder import Builder
from lamina.codegen.points import Points
from lamina.codegen.reductions import Combiner
from lamina.codegen.values import Integer, Value
from lamina.program.index import Axis

# A running total gets at most twice as many terms.
BLOCK = 128

Carried = tuple[Value, ...]
# A bound of a loop.
Bound = Integer


def blocks_of(iterations: int, terms: int = 1, block: int = BLOCK) -> list[int]:
    """The iterations in a block of each level, the innermost level first; none for short sums.

    An iteration adds `terms`; a block has `block` terms.
    """
    sizes: list[int] = []
    size = max(block // terms, 1)
    while size * 2 < iterations and iterations * terms > 2 * block:
        sizes.append(size)
        size *= block
    return sizes


@frozen_dataclass
class BlockedLoop:
    """A loop that is written in blocks.

    Attributes:
        points: the current point of a nest.
        step: the step of the loop.
        begin: a function of the totals before a block: the totals before its first term.
        merged: a function that adds the totals of a block to the totals before it.
        loop: a function that writes the loop from a start to a stop, with at most so many
            iterations, and gives its totals.
    """

    points: Points[Builder]
    step: int
    begin: Callable[[Carried], Carried]
    merged: Callable[[Carried, Carried], Carried]
    loop: Callable[[Bound, Bound, int, Carried], Carried]

    def write(
        self, blocks: Sequence[int], start: Bound, stop: Bound, most: int, carried: Carried
    ) -> Carried:
        """Writes the loop in blocks of these sizes; gives its totals, from those before it."""
        if not blocks:
            return self.loop(start, stop, most, carried)
        *inner, size = blocks
        points, code, step = self.points, self.points.code, size * self.step
        first, last = points.loop_bound(start), points.loop_bound(stop)
        opened = code.begin_loop(first, last, step, carried, most=-(-most // size))
        with points.bound(Axis("block", size), opened.index, before=opened.before):
            end = code.minimum(opened.index + points.position(step), opened.stop)
            of_block = self.write(inner, opened.index, end, size, self.begin(opened.carried))
            return code.end_loop(opened, self.merged(opened.carried, of_block))


def write_sums(
    points: Points[Builder],
    blocks: Sequence[int],
    most: int,
    zeros: Sequence[Value],
    loop: Callable[[Bound, Bound, int, Carried], Carried],
    step: int = 1,
) -> Carried:
    """Writes a loop of sums that begin at zero, and gives them.

    `blocks_of` gives the sizes of blocks; `most` are the iterations, and `loop` writes them
    as in `BlockedLoop`.
    """

    def merged(carried: Carried, block: Carried) -> Carried:
        return tuple(map(points.code.add, carried, block))

    start = tuple(zeros)
    blocked = BlockedLoop(points, step, lambda _: start, merged, loop)
    return blocked.write(blocks, 0, most * step, most, start)


def write_running(
    points: Points[Builder],
    combine: Combiner,
    axis: Axis,
    body: Callable[[Carried], tuple[Carried, Carried]],
    store: Callable[[Value], None],
) -> None:
    """Writes a loop over an axis, in order, that stores a running combination.

    `body` takes the totals before a point, and gives those at the point and those after it.
    """
    start = combine.start(points.lanes)

    def loop(first: Bound, last: Bound, most: int, carried: Carried) -> Carried:
        running, before = carried[:1], carried[1:]
        with points.loop(axis, running, first, last, most) as opened:
            here, after = body(opened.carried)
            store(combine.merged(before, here)[0] if before else here[0])
            return (*points.code.end_loop(opened, after), *before)

    def begin(carried: Carried) -> Carried:
        """What a block begins with: a total of zero, and the total of all blocks before it."""
        running, before = carried[:1], carried[1:]
        return (*start, *(combine.merged(before, running) if before else running))

    def merged(carried: Carried, block: Carried) -> Carried:
        return (*combine.merged(carried[:1], block[:1]), *carried[1:])

    blocks = blocks_of(axis.extent) if combine.sums_floats else []
    BlockedLoop(points, 1, begin, merged, loop).write(blocks, 0, axis.extent, axis.extent, start)
