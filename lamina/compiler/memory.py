"""Memory planning: a place in one arena for every temporary.

Each temporary is alive from the step that writes it to the last one that reads it. A result may
take over the place of an operand that dies in the same step, if every element is read only where
it is written. The rest is packing of rectangles (bytes by time): several greedy orders are tried,
then, if the largest live set is not met, a bounded search from a fixed seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import numpy as np

from lamina.program.index import Axis, axes_of
from lamina.program.program import Allocation, Buffer, Plan, Repeat
from lamina.program.scalar import loads
from lamina.program.steps import Contraction, Step, loads_of, reads_of, stores_of, writes_of
from lamina.records import frozen_dataclass

# Large buffers start at cache lines; small ones need no more than their elements do.
CACHE_LINE_BYTES = 64
LARGE_BYTES = 4096
# When the greedy orders leave gaps: how many other orders are tried, and how many pairs of blocks
# may be compared for that.
SEARCH_ROUNDS = 400
SEARCH_EFFORT = 4_000_000
# So many blocks are placed by lists; arrays are faster for more.
MOST_IN_LISTS = 128


@frozen_dataclass
class _Lifetime:
    buffer: Buffer
    first: int
    last: int


@dataclass
class _Block:
    """Buffers of equal size that follow one another in one place."""

    lifetimes: list[_Lifetime]
    bytes: int
    alignment: int

    @property
    def first(self) -> int:
        return self.lifetimes[0].first

    @property
    def last(self) -> int:
        return self.lifetimes[-1].last


def plan_memory(
    buffers: Mapping[str, Buffer],
    steps: Sequence[Step],
    outputs: Sequence[str],
    repeats: Sequence[Repeat] = (),
) -> Plan:
    """Places every temporary buffer.

    Args:
        buffers: all buffers of the program, by name.
        steps: in the order in which they run.
        outputs: buffers that callers read after the last step.
        repeats: which steps are repeated.
    """
    lifetimes = _lifetimes(buffers, steps, outputs, repeats)
    blocks = _blocks(lifetimes, steps)
    largest = _largest_alive(blocks, len(steps))
    offsets, size = _pack(blocks, largest)
    allocations: list[Allocation] = []
    for block, offset in zip(blocks, offsets, strict=True):
        taken_over = ""
        for lifetime in block.lifetimes:
            name = lifetime.buffer.name
            allocations.append(
                Allocation(name, offset, block.bytes, lifetime.first, lifetime.last, taken_over)
            )
            taken_over = name
    allocations.sort(key=lambda a: (a.first, a.offset))
    return Plan(size, largest, tuple(allocations))


def _largest_alive(blocks: Sequence[_Block], steps: int) -> int:
    """The most bytes that are alive in any step."""
    changes = [0] * (steps + 2)
    for block in blocks:
        changes[block.first] += block.bytes
        changes[min(block.last, steps - 1) + 1] -= block.bytes
    return max(accumulate(changes))


def _lifetimes(
    buffers: Mapping[str, Buffer],
    steps: Sequence[Step],
    outputs: Sequence[str],
    repeats: Sequence[Repeat],
) -> dict[str, _Lifetime]:
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for number, step in enumerate(steps):
        for name in writes_of(step):
            first.setdefault(name, number)
            last[name] = number
        for name in reads_of(step):
            last[name] = number
    for repeat in repeats:
        inside = range(repeat.first, repeat.last)
        lasting = _by_turns(steps[repeat.first : repeat.last], repeat.axis)
        for name in first:
            # What one turn leaves for another, or for what comes after, must stay all the time.
            outside = first[name] not in inside or last[name] not in inside
            if (outside and _meets(first[name], last[name], inside)) or name in lasting:
                first[name] = min(first[name], inside.start)
                last[name] = max(last[name], inside.stop - 1)
    last.update(dict.fromkeys(outputs, len(steps)))
    return {
        name: _Lifetime(buffer, first[name], last[name])
        for name, buffer in buffers.items()
        if buffer.kind == "temporary"
    }


def _meets(first: int, last: int, steps: range) -> bool:
    return first < steps.stop and last >= steps.start


def _by_turns(steps: Sequence[Step], axis: Axis) -> set[str]:
    """The buffers of which each turn uses another part."""
    used = [(store.buffer, store.index) for step in steps for store in stores_of(step)]
    used += [(load.buffer, load.index) for step in steps for load in loads_of(step)]
    return {buffer for buffer, index in used if axis in axes_of(index)}


def _blocks(lifetimes: Mapping[str, _Lifetime], steps: Sequence[Step]) -> list[_Block]:
    block_of: dict[str, _Block] = {}
    blocks: list[_Block] = []
    for lifetime in sorted(lifetimes.values(), key=lambda one: one.first):
        name = lifetime.buffer.name
        for operand in sorted(_replaceable(lifetime, steps[lifetime.first], lifetimes)):
            block = block_of[operand]
            if block.lifetimes[-1].buffer.name == operand:
                block.lifetimes.append(lifetime)
                block_of[name] = block
                break
        else:
            itemsize = lifetime.buffer.dtype.itemsize
            large = lifetime.buffer.bytes >= LARGE_BYTES
            block = _Block(
                [lifetime], lifetime.buffer.bytes, CACHE_LINE_BYTES if large else itemsize
            )
            block_of[name] = block
            blocks.append(block)
    return blocks


def _replaceable(result: _Lifetime, step: Step, lifetimes: Mapping[str, _Lifetime]) -> list[str]:
    """The operands of a step whose place the result may take over."""
    stores = [store for store in stores_of(step) if store.buffer == result.buffer.name]
    if len(stores) != 1 or stores[0].accumulate:
        return []
    places: dict[str, set[object]] = {}
    for load in loads_of(step):
        places.setdefault(load.buffer, set()).add((load.index, load.bounds))
    views = set[str]()
    if isinstance(step, Contraction):
        views = {load.buffer for load in loads(step.left, step.right)}
    size = result.buffer.bytes
    return [
        name
        for name, reads in places.items()
        if name in lifetimes
        and name not in views
        and name != result.buffer.name
        and lifetimes[name].last == result.first
        and lifetimes[name].buffer.bytes == size
        and lifetimes[name].buffer.dtype.itemsize == result.buffer.dtype.itemsize
        and reads == {(stores[0].index, ())}
    ]


def _pack(blocks: Sequence[_Block], target: int) -> tuple[list[int], int]:
    """Offsets for the blocks, and the size of the arena that holds them."""
    numbers = range(len(blocks))
    keys: list[Callable[[int], tuple[int, ...]]] = [
        lambda n: (-blocks[n].bytes, blocks[n].first),
        lambda n: (-(blocks[n].last - blocks[n].first + 1) * blocks[n].bytes,),
        lambda n: (blocks[n].first, -blocks[n].bytes),
        lambda n: (-(blocks[n].last - blocks[n].first), -blocks[n].bytes),
    ]
    place = _placing(blocks)
    best_order: Sequence[int] = ()
    best: tuple[list[int], int] = [], 0
    for key in keys:
        order = sorted(numbers, key=key)
        placed = place(order)
        if not best_order or placed[1] < best[1]:
            best_order, best = order, placed
        # No order can do with less.
        if best[1] <= target:
            break
    generator = random.Random(0)
    for _ in range(min(SEARCH_ROUNDS, SEARCH_EFFORT // (len(blocks) + 1) ** 2)):
        if best[1] <= target or len(blocks) < 2:
            break
        order = list(best_order)
        moved = order.pop(generator.randrange(len(order)))
        order.insert(generator.randrange(len(order) + 1), moved)
        candidate = place(order)
        if candidate[1] <= best[1]:
            best_order, best = order, candidate
    return best


# An order in which blocks are placed -> the offset of each block, and the size of the arena.
_Placing = Callable[[Sequence[int]], tuple[list[int], int]]


def _placing(blocks: Sequence[_Block]) -> _Placing:
    """Each block in turn at the lowest offset where it meets no block alive at the same time."""
    if len(blocks) > MOST_IN_LISTS:
        return partial(_placed_in_arrays, blocks)
    meeting = [
        [
            other
            for other, one in enumerate(blocks)
            if other != number and one.first <= block.last and block.first <= one.last
        ]
        for number, block in enumerate(blocks)
    ]
    return partial(_placed_in_lists, blocks, meeting)


def _placed_in_lists(
    blocks: Sequence[_Block], meeting: Sequence[Sequence[int]], order: Sequence[int]
) -> tuple[list[int], int]:
    """For few blocks; `meeting` says for each which ones are alive at the same time."""
    places: dict[int, tuple[int, int]] = {}
    size = 0
    for number in order:
        length, alignment = blocks[number].bytes, blocks[number].alignment
        offset = 0
        for start, end in sorted(places[other] for other in meeting[number] if other in places):
            if offset + length <= start:
                break
            if end > offset:
                offset = -(-end // alignment) * alignment
        places[number] = (offset, offset + length)
        size = max(size, offset + length)
    return [places[number][0] for number in range(len(blocks))], size


def _placed_in_arrays(blocks: Sequence[_Block], order: Sequence[int]) -> tuple[list[int], int]:
    """The same for many blocks: thousands may be alive at the same time as each of them."""
    # What was placed, by offset: from and to which step it is alive, where it starts and ends.
    placed = np.zeros((4, len(blocks)), np.int64)
    offsets = [0] * len(blocks)
    size = 0
    for count, number in enumerate(order):
        block = blocks[number]
        length, alignment = block.bytes, block.alignment
        first, last, starts, ends = placed[:, :count]
        alive = (first <= block.last) & (last >= block.first)
        # The ends of all that starts below each of them, as the block could begin there.
        below = np.maximum.accumulate(ends[alive], dtype=np.int64)
        begins = np.concatenate(((0,), -(-below // alignment) * alignment))
        fits = begins[:-1] + length <= starts[alive]
        gap = int(fits.argmax()) if fits.any() else -1
        offset = int(begins[gap])
        offsets[number] = offset
        size = max(size, offset + length)
        position = int(starts.searchsorted(offset, "right"))
        placed[:, position + 1 : count + 1] = placed[:, position:count]
        placed[:, position] = block.first, block.last, offset, offset + length
    return offsets, size
