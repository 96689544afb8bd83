"""Memory planning: an offset in the arena for every temporary.

A temporary is alive from the step that writes it first to the step that reads it last. A result
may take over the memory of an operand whose last reader is the same step, if the step loads every
element only at the index at which it stores the result (in place). The rest is packing of
rectangles (bytes by time). Several greedy orders are tried. If the arena is still larger than the
largest live set, a bounded random search from a fixed seed follows.

If a device limits the size of one allocation, the arena is divided into blocks. They are planned in
one range of addresses: a new block begins at every multiple of the limit, and no buffer crosses
such a boundary.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import numpy as np

from lamina.base.records import frozen_dataclass
from lamina.errors import LargestBlockError
from lamina.program.index import axes_of
from lamina.program.program import Allocation, Buffer, Plan, Repeat
from lamina.program.scalar import loads
from lamina.program.steps import Chain, Contraction, Sort, Step, reads_of, stores_of, writes_of

# Buffers of at least this size start at cache lines. Smaller ones are aligned to their elements.
CACHE_LINE_BYTES = 64
LARGE_BYTES = 4096
# The search after the greedy orders: the most orders that are tried, and the most pairs of regions
# that are compared.
SEARCH_ROUNDS = 400
SEARCH_EFFORT = 4_000_000
# Up to this number of regions, lists are faster than arrays.
MOST_IN_LISTS = 128
# The span of a block if the device has no limit: larger than any offset.
_UNLIMITED_SPAN = 1 << 62


@frozen_dataclass
class _Lifetime:
    """The first step that writes a buffer and the last step that reads it."""

    buffer: Buffer
    first: int
    last: int


@dataclass
class _Region:
    """Memory of one size, and the buffers that take it over from each other, in place."""

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
    """The plan of the arena: a block and an offset for every temporary buffer.

    Callers read the outputs after the last step. Every buffer has the alignment, in bytes; its
    elements or cache lines may need more. `largest_block` is the most bytes in one block of the
    arena; None for one block of any size.
    """
    lifetimes = _lifetimes(buffers, steps, outputs, repeats)
    # Block sizes are multiples of this, so that each block can directly follow the previous one.
    granularity = math.lcm(alignment, CACHE_LINE_BYTES)
    span = _UNLIMITED_SPAN if largest_block is None else largest_block // granularity * granularity
    for name, buffer in buffers.items():
        limit = largest_block if buffer.kind == "input" else span if name in lifetimes else None
        if limit is not None and buffer.bytes > limit:
            raise LargestBlockError(
                f"{buffer.name} is larger than the largest block of memory on this device",
                facts=(
                    ("buffer", f"{buffer}, {buffer.bytes:,} bytes"),
                    ("limit", f"{limit:,} bytes in one block"),
                ),
                advice="Take a smaller batch (Network.max_batch_size returns the largest that "
                "fits), or another engine: some have no such limit.",
            )
    regions = _regions(lifetimes, steps, alignment)
    # The most bytes that are alive in any one step.
    changes = [0] * (len(steps) + 2)
    for region in regions:
        changes[region.first] += region.bytes
        changes[min(region.last, len(steps) - 1) + 1] -= region.bytes
    largest = max(accumulate(changes))
    span = max(span, granularity)
    addresses, blocks = _pack(regions, span, granularity, largest)
    allocations: list[Allocation] = []
    for region, address in zip(regions, addresses, strict=True):
        taken_over = ""
        block, offset = divmod(address, span)
        for lifetime in region.lifetimes:
            name, first, last = lifetime.buffer.name, lifetime.first, lifetime.last
            allocations.append(
                Allocation(name, offset, region.bytes, first, last, taken_over, block)
            )
            taken_over = name
    allocations.sort(key=lambda a: (a.first, a.block, a.offset))
    return Plan(blocks, largest, tuple(allocations))


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
        repeated = steps[repeat.first : repeat.last]
        used = [(store.buffer, store.index) for step in repeated for store in stores_of(step)]
        used += [(load.buffer, load.index) for step in repeated for load in step.loads]
        lasting = {buffer for buffer, index in used if repeat.axis in axes_of(index)}
        for name in first:
            # A buffer lives during all iterations if one iteration leaves it for another, or if it
            # is also alive before or after the repeated steps.
            outside = first[name] not in inside or last[name] not in inside
            overlaps = first[name] < inside.stop and last[name] >= inside.start
            if (outside and overlaps) or name in lasting:
                first[name] = min(first[name], inside.start)
                last[name] = max(last[name], inside.stop - 1)
    return {
        name: _Lifetime(buffer, first[name], last[name])
        for name, buffer in buffers.items()
        if buffer.kind == "temporary"
    }


def _regions(
    lifetimes: Mapping[str, _Lifetime], steps: Sequence[Step], alignment: int
) -> list[_Region]:
    region_of: dict[str, _Region] = {}
    regions: list[_Region] = []
    for name in sorted(lifetimes, key=lambda buffer: lifetimes[buffer].first):
        lifetime = lifetimes[name]
        for operand in sorted(_replaceable(lifetime, steps[lifetime.first], lifetimes)):
            region = region_of[operand]
            if region.lifetimes[-1].buffer.name == operand:
                region.lifetimes.append(lifetime)
                region_of[name] = region
                break
        else:
            large = lifetime.buffer.bytes >= LARGE_BYTES
            natural = CACHE_LINE_BYTES if large else lifetime.buffer.dtype.itemsize
            region = _Region([lifetime], lifetime.buffer.bytes, math.lcm(alignment, natural))
            region_of[name] = region
            regions.append(region)
    return regions


def _replaceable(result: _Lifetime, step: Step, lifetimes: Mapping[str, _Lifetime]) -> list[str]:
    """The operands of a step whose memory the result may take over."""
    stores = [store for store in stores_of(step) if store.buffer == result.buffer.name]
    if isinstance(step, Chain) or len(stores) != 1 or stores[0].accumulate:
        return []
    load_indices: dict[str, set[object]] = {}
    for load in step.loads:
        load_indices.setdefault(load.buffer, set()).add((load.index, load.bounds))
    # Buffers that other points read too.
    if isinstance(step, Contraction):
        read_by_others = [step.left, step.right]
    else:
        read_by_others = [stage.key for stage in step.stages if isinstance(stage, Sort)]
    shared = {load.buffer for load in loads(*read_by_others)}
    size = result.buffer.bytes
    return [
        name
        for name, indices in load_indices.items()
        if name in lifetimes
        and name not in shared
        and name != result.buffer.name
        and lifetimes[name].last == result.first
        and lifetimes[name].buffer.bytes == size
        and lifetimes[name].buffer.dtype.itemsize == result.buffer.dtype.itemsize
        and indices == {(stores[0].index, ())}
    ]


def _pack(
    regions: Sequence[_Region], span: int, granularity: int, lower_bound: int
) -> tuple[list[int], tuple[int, ...]]:
    """Addresses for the regions, and the bytes of each block.

    Block number n has the addresses from n * span on, and no region crosses a multiple of the span.
    The sizes of all blocks but the last are multiples of the granularity. The search ends early at
    an arena of `lower_bound` bytes, because no order needs fewer.
    """

    def blocks(addresses: Sequence[int]) -> tuple[int, ...]:
        sizes: list[int] = []
        for region, address in zip(regions, addresses, strict=True):
            number, start = divmod(address, span)
            sizes += [0] * (number + 1 - len(sizes))
            sizes[number] = max(sizes[number], start + region.bytes)
        return *(-(-size // granularity) * granularity for size in sizes[:-1]), *sizes[-1:]

    numbers = range(len(regions))
    keys: list[Callable[[int], tuple[int, ...]]] = [
        lambda n: (-regions[n].bytes, regions[n].first),
        lambda n: (-(regions[n].last - regions[n].first + 1) * regions[n].bytes,),
        lambda n: (regions[n].first, -regions[n].bytes),
        lambda n: (-(regions[n].last - regions[n].first), -regions[n].bytes),
    ]
    # First fit: each region gets the lowest address that no region alive at the same time has.
    if len(regions) > MOST_IN_LISTS:
        pack: Callable[[Sequence[int]], list[int]] = partial(_first_fit_with_arrays, regions, span)
    else:
        concurrent = [
            [
                n
                for n, other in enumerate(regions)
                if n != number and other.first <= region.last and region.first <= other.last
            ]
            for number, region in enumerate(regions)
        ]
        pack = partial(_first_fit_with_lists, regions, span, concurrent)
    best_order: Sequence[int] = ()
    best: tuple[int, list[int]] = 0, []
    for key in keys:
        order = sorted(numbers, key=key)
        addresses = pack(order)
        size = sum(blocks(addresses))
        if not best_order or size < best[0]:
            best_order, best = order, (size, addresses)
        if best[0] <= lower_bound:
            break
    generator = random.Random(0)
    for _ in range(min(SEARCH_ROUNDS, SEARCH_EFFORT // (len(regions) + 1) ** 2)):
        if best[0] <= lower_bound or len(regions) < 2:
            break
        order = list(best_order)
        moved = order.pop(generator.randrange(len(order)))
        order.insert(generator.randrange(len(order) + 1), moved)
        addresses = pack(order)
        size = sum(blocks(addresses))
        if size <= best[0]:
            best_order, best = order, (size, addresses)
    return best[1], blocks(best[1])


def _first_fit_with_lists(
    regions: Sequence[_Region], span: int, concurrent: Sequence[Sequence[int]], order: Sequence[int]
) -> list[int]:
    """First fit for few regions. `concurrent` lists, for each region, those alive at once."""
    ranges: dict[int, tuple[int, int]] = {}
    for number in order:
        region = regions[number]
        length, alignment = region.bytes, region.alignment
        address = 0
        for start, end in sorted(ranges[other] for other in concurrent[number] if other in ranges):
            if address + length <= start:
                break
            if end > address:
                address = -(-end // alignment) * alignment
                if address % span + length > span:
                    address += span - address % span
        ranges[number] = (address, address + length)
    return [ranges[number][0] for number in range(len(regions))]


def _first_fit_with_arrays(
    regions: Sequence[_Region], span: int, order: Sequence[int]
) -> list[int]:
    """First fit for many regions: thousands may be alive at the same time as each of them."""
    # A column for each region allocated so far, by address: first step, last step, start and end.
    allocated = np.zeros((4, len(regions)), np.int64)
    addresses = [0] * len(regions)
    for count, number in enumerate(order):
        region = regions[number]
        length, alignment = region.bytes, region.alignment
        first, last, starts, ends = allocated[:, :count]
        alive = (first <= region.last) & (last >= region.first)
        # Candidates: after the largest end of all regions up to each one, in order of addresses.
        ends_so_far = np.maximum.accumulate(ends[alive], dtype=np.int64)
        candidates = np.concatenate(((0,), -(-ends_so_far // alignment) * alignment))
        candidates += np.where(candidates % span + length > span, span - candidates % span, 0)
        fits = candidates[:-1] + length <= starts[alive]
        gap = int(fits.argmax()) if fits.any() else -1
        address = int(candidates[gap])
        addresses[number] = address
        column = int(starts.searchsorted(address, "right"))
        allocated[:, column + 1 : count + 1] = allocated[:, column:count]
        allocated[:, column] = region.first, region.last, address, address + length
    return addresses
