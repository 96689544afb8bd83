"""Memory planning: a place in one arena for every temporary.

Each temporary is alive from the step that writes it to the last one that reads it. A result may
take over the place of an operand that dies in the same step, if every element is read only where
it is written. The rest is packing of rectangles (bytes by time): several greedy orders are tried,
then, if the largest live set is not met, a bounded search from a fixed seed.

Where a device limits how much one allocation may hold, the arena is cut into blocks. They are
planned in one range of addresses that has an edge at every multiple of the limit; no buffer lies
across an edge.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import numpy as np

from lamina.errors import LargestBlockError
from lamina.program.index import Axis, axes_of
from lamina.program.program import Allocation, Buffer, Plan, Repeat
from lamina.program.scalar import loads
from lamina.program.steps import Contraction, Sort, Step, loads_of, reads_of, stores_of, writes_of
from lamina.records import frozen_dataclass

# Large buffers start at cache lines; small ones need no more than their elements do.
CACHE_LINE_BYTES = 64
LARGE_BYTES = 4096
# When the greedy orders leave gaps: how many other orders are tried, and how many pairs of slots
# may be compared for that.
SEARCH_ROUNDS = 400
SEARCH_EFFORT = 4_000_000
# So many slots are placed by lists; arrays are faster for more.
MOST_IN_LISTS = 128
# The edge of an arena in one block: beyond all that is ever placed.
_NO_EDGE = 1 << 62


@frozen_dataclass
class _Lifetime:
    buffer: Buffer
    first: int
    last: int


@dataclass
class _Slot:
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
    *,
    alignment: int = 1,
    largest_block: int | None = None,
) -> Plan:
    """Places every temporary buffer.

    Args:
        buffers: all buffers of the program, by name.
        steps: in the order in which they run.
        outputs: buffers that callers read after the last step.
        repeats: which steps are repeated.
        alignment: every buffer begins at a multiple of so many bytes; where its own elements or
            cache lines ask for more, of theirs.
        largest_block: the most bytes that one block of the arena may have; without it, there is
            one block.

    Raises:
        LargestBlockError: if an input or a temporary does not fit into the largest block.
    """
    lifetimes = _lifetimes(buffers, steps, outputs, repeats)
    # Blocks are whole units, so that they can lie one behind the other.
    unit = math.lcm(alignment, CACHE_LINE_BYTES)
    edge = _NO_EDGE if largest_block is None else largest_block // unit * unit
    for name, buffer in buffers.items():
        limit = largest_block if buffer.kind == "input" else edge if name in lifetimes else None
        if limit is not None and buffer.bytes > limit:
            raise _too_large(buffer, limit)
    slots = _slots(lifetimes, steps, alignment)
    largest = _largest_alive(slots, len(steps))
    offsets, blocks = _pack(_Range(tuple(slots), max(edge, unit), unit), largest)
    allocations: list[Allocation] = []
    for slot, place in zip(slots, offsets, strict=True):
        taken_over = ""
        block, offset = divmod(place, max(edge, unit))
        for lifetime in slot.lifetimes:
            name, first, last = lifetime.buffer.name, lifetime.first, lifetime.last
            allocations.append(Allocation(name, offset, slot.bytes, first, last, taken_over, block))
            taken_over = name
    allocations.sort(key=lambda a: (a.first, a.block, a.offset))
    return Plan(blocks, largest, tuple(allocations))


def _too_large(buffer: Buffer, limit: int) -> LargestBlockError:
    return LargestBlockError(
        f"{buffer.name} is larger than the largest block of memory on this device",
        facts=(
            ("buffer", f"{buffer}, {buffer.bytes:,} bytes"),
            ("limit", f"{limit:,} bytes in one block"),
        ),
        advice="Take a smaller batch (Network.max_batch_size says which one fits), or another "
        "engine: not all have such a limit.",
    )


def _largest_alive(slots: Sequence[_Slot], steps: int) -> int:
    """The most bytes that are alive in any step."""
    changes = [0] * (steps + 2)
    for slot in slots:
        changes[slot.first] += slot.bytes
        changes[min(slot.last, steps - 1) + 1] -= slot.bytes
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
    last.update(dict.fromkeys(outputs, len(steps)))
    for repeat in repeats:
        inside = range(repeat.first, repeat.last)
        lasting = _by_turns(steps[repeat.first : repeat.last], repeat.axis)
        for name in first:
            # What one turn leaves for another, or for what comes after, must stay all the time.
            outside = first[name] not in inside or last[name] not in inside
            if (outside and _meets(first[name], last[name], inside)) or name in lasting:
                first[name] = min(first[name], inside.start)
                last[name] = max(last[name], inside.stop - 1)
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


def _slots(
    lifetimes: Mapping[str, _Lifetime], steps: Sequence[Step], alignment: int
) -> list[_Slot]:
    slot_of: dict[str, _Slot] = {}
    slots: list[_Slot] = []
    for lifetime in sorted(lifetimes.values(), key=lambda one: one.first):
        name = lifetime.buffer.name
        for operand in sorted(_replaceable(lifetime, steps[lifetime.first], lifetimes)):
            slot = slot_of[operand]
            if slot.lifetimes[-1].buffer.name == operand:
                slot.lifetimes.append(lifetime)
                slot_of[name] = slot
                break
        else:
            large = lifetime.buffer.bytes >= LARGE_BYTES
            natural = CACHE_LINE_BYTES if large else lifetime.buffer.dtype.itemsize
            slot = _Slot([lifetime], lifetime.buffer.bytes, math.lcm(alignment, natural))
            slot_of[name] = slot
            slots.append(slot)
    return slots


def _replaceable(result: _Lifetime, step: Step, lifetimes: Mapping[str, _Lifetime]) -> list[str]:
    """The operands of a step whose place the result may take over."""
    stores = [store for store in stores_of(step) if store.buffer == result.buffer.name]
    if len(stores) != 1 or stores[0].accumulate:
        return []
    places: dict[str, set[object]] = {}
    for load in loads_of(step):
        places.setdefault(load.buffer, set()).add((load.index, load.bounds))
    # What other points read as well.
    views = set[str]()
    if isinstance(step, Contraction):
        views = {load.buffer for load in loads(step.left, step.right)}
    else:
        keys = [stage.key for stage in step.stages if isinstance(stage, Sort)]
        views = {load.buffer for load in loads(*keys)}
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


@frozen_dataclass
class _Range:
    """The addresses in which slots are placed.

    Attributes:
        slots: what is placed.
        edge: no slot lies across a multiple of this; between two of them lies a block.
        unit: blocks that others follow are multiples of this.
    """

    slots: tuple[_Slot, ...]
    edge: int
    unit: int

    def blocks(self, offsets: Sequence[int]) -> tuple[int, ...]:
        """How large each block is."""
        sizes: list[int] = []
        for slot, offset in zip(self.slots, offsets, strict=True):
            number, start = divmod(offset, self.edge)
            sizes += [0] * (number + 1 - len(sizes))
            sizes[number] = max(sizes[number], start + slot.bytes)
        return (*(-(-size // self.unit) * self.unit for size in sizes[:-1]), *sizes[-1:])


def _pack(places: _Range, target: int) -> tuple[list[int], tuple[int, ...]]:
    """Offsets for the slots, and the sizes of the blocks that hold them."""
    slots = places.slots
    numbers = range(len(slots))
    keys: list[Callable[[int], tuple[int, ...]]] = [
        lambda n: (-slots[n].bytes, slots[n].first),
        lambda n: (-(slots[n].last - slots[n].first + 1) * slots[n].bytes,),
        lambda n: (slots[n].first, -slots[n].bytes),
        lambda n: (-(slots[n].last - slots[n].first), -slots[n].bytes),
    ]
    place = _placing(places)
    best_order: Sequence[int] = ()
    best: tuple[int, list[int]] = 0, []
    for key in keys:
        order = sorted(numbers, key=key)
        offsets = place(order)
        size = sum(places.blocks(offsets))
        if not best_order or size < best[0]:
            best_order, best = order, (size, offsets)
        # No order can do with less.
        if best[0] <= target:
            break
    generator = random.Random(0)
    for _ in range(min(SEARCH_ROUNDS, SEARCH_EFFORT // (len(slots) + 1) ** 2)):
        if best[0] <= target or len(slots) < 2:
            break
        order = list(best_order)
        moved = order.pop(generator.randrange(len(order)))
        order.insert(generator.randrange(len(order) + 1), moved)
        offsets = place(order)
        size = sum(places.blocks(offsets))
        if size <= best[0]:
            best_order, best = order, (size, offsets)
    return best[1], places.blocks(best[1])


# An order in which slots are placed -> the offset of each slot.
_Placing = Callable[[Sequence[int]], list[int]]


def _placing(places: _Range) -> _Placing:
    """Each slot in turn at the lowest offset where it meets no slot alive at the same time."""
    slots = places.slots
    if len(slots) > MOST_IN_LISTS:
        return partial(_placed_in_arrays, places)
    meeting = [
        [
            other
            for other, one in enumerate(slots)
            if other != number and one.first <= slot.last and slot.first <= one.last
        ]
        for number, slot in enumerate(slots)
    ]
    return partial(_placed_in_lists, places, meeting)


def _placed_in_lists(
    places: _Range, meeting: Sequence[Sequence[int]], order: Sequence[int]
) -> list[int]:
    """For few slots; `meeting` says for each which ones are alive at the same time."""
    placed: dict[int, tuple[int, int]] = {}
    edge = places.edge
    for number in order:
        slot = places.slots[number]
        length, alignment = slot.bytes, slot.alignment
        offset = 0
        for start, end in sorted(placed[other] for other in meeting[number] if other in placed):
            if offset + length <= start:
                break
            if end > offset:
                offset = -(-end // alignment) * alignment
                if offset % edge + length > edge:
                    offset += edge - offset % edge
        placed[number] = (offset, offset + length)
    return [placed[number][0] for number in range(len(places.slots))]


def _placed_in_arrays(places: _Range, order: Sequence[int]) -> list[int]:
    """The same for many slots: thousands may be alive at the same time as each of them."""
    slots, edge = places.slots, places.edge
    # What was placed, by offset: from and to which step it is alive, where it starts and ends.
    placed = np.zeros((4, len(slots)), np.int64)
    offsets = [0] * len(slots)
    for count, number in enumerate(order):
        slot = slots[number]
        length, alignment = slot.bytes, slot.alignment
        first, last, starts, ends = placed[:, :count]
        alive = (first <= slot.last) & (last >= slot.first)
        # The ends of all that starts below each of them, as the slot could begin there.
        below = np.maximum.accumulate(ends[alive], dtype=np.int64)
        begins = np.concatenate(((0,), -(-below // alignment) * alignment))
        begins += np.where(begins % edge + length > edge, edge - begins % edge, 0)
        fits = begins[:-1] + length <= starts[alive]
        gap = int(fits.argmax()) if fits.any() else -1
        offset = int(begins[gap])
        offsets[number] = offset
        position = int(starts.searchsorted(offset, "right"))
        placed[:, position + 1 : count + 1] = placed[:, position:count]
        placed[:, position] = slot.first, slot.last, offset, offset + length
    return offsets
