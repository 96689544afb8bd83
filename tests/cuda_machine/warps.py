"""Instructions of the lanes of a warp (PTX ISA, Parallel Synchronization; shfl.sync).

`Schedule` has waited until all lanes that a mask names are here. Reading a lane that is not among
them is undefined, and a fault.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cuda_machine.syntax import Instruction, Pair
from cuda_machine.writer import Writer, helper, instruction


@instruction("shfl", forms="sync up|down|bfly|idx b32")
def _shfl(writer: Writer, one: Instruction) -> None:
    _, mode, _ = one.modifiers
    result, *operands = one.operands
    values = ", ".join(writer.array(operand, "u32") for operand in operands)
    both = writer.temporary(f"shuffled(m, {mode!r}, {values}, {writer.location(one)})")
    if isinstance(result, Pair):
        writer.write(result.first, "u32", f"{both}[0]")
        writer.write(result.second, "pred", f"{both}[1]")
    else:
        writer.write(result, "u32", f"{both}[0]")


@helper
def shuffled(
    m: Any, mode: str, a: Any, b: Any, c: Any, mask: Any, line: int, idx: Any
) -> tuple[Any, Any]:
    """Values of other lanes, and whether these were within the segment."""
    lane = (m.laneid if idx is None else m.laneid[idx]).astype(np.int64)
    step, clamp, segment = ((one & 31).astype(np.int64) for one in (b, c, c >> np.uint32(8)))
    low = lane & segment
    high = low | (clamp & ~segment)
    other = {
        "up": lane - step,
        "down": lane + step,
        "bfly": lane ^ step,
        "idx": low | (step & ~segment),
    }[mode]
    inside = other >= high if mode == "up" else other <= high
    other = np.where(inside, other, lane)
    table, present = in_warps(m, a, idx)
    warps = m.warp_of_lane if idx is None else m.warp_of_lane[idx]
    known = present[warps, other] & ((mask >> other.astype(np.uint32) & np.uint32(1)) == 1)
    if not known.all():
        m.fault_where("a read of a lane that does not take part", line, ~known, idx)
    return table[warps, other], inside


def in_warps(m: Any, values: Any, idx: Any) -> tuple[Any, Any]:
    """A table (warp, lane) of values, and which of them are there."""
    count = m.warps * len(m.blocks)
    table = np.zeros((count, 32), values.dtype)
    present = np.zeros((count, 32), np.bool_)
    warps = m.warp_of_lane if idx is None else m.warp_of_lane[idx]
    lanes = m.laneid if idx is None else m.laneid[idx]
    table[warps, lanes] = values
    present[warps, lanes] = True
    return table, present


def named(m: Any, values: Any, mask: Any, idx: Any) -> tuple[Any, Any]:
    """For each lane, the values of all lanes of its warp, and which of them its mask names."""
    table, present = in_warps(m, values, idx)
    warps = m.warp_of_lane if idx is None else m.warp_of_lane[idx]
    bits = (mask[:, None] >> np.arange(32, dtype=np.uint32)) & np.uint32(1)
    return table[warps], present[warps] & (bits == 1)


def _as_mask(chosen: Any) -> Any:
    return (chosen * (np.uint32(1) << np.arange(32, dtype=np.uint32))).sum(1, dtype=np.uint32)


@instruction("vote", forms=("sync all|any|uni pred", "sync ballot b32"))
def _vote(writer: Writer, one: Instruction) -> None:
    _, mode, type = one.modifiers
    result, a, mask = one.operands
    values = f"{writer.array(a, 'pred')}, {writer.array(mask, 'u32')}"
    writer.write(result, type, f"voted(m, {mode!r}, {values}, idx)")


@helper
def voted(m: Any, mode: str, a: Any, mask: Any, idx: Any) -> Any:
    """What the named lanes say together."""
    values, chosen = named(m, a, mask, idx)
    if mode == "ballot":
        return _as_mask(values & chosen)
    every, some = (values | ~chosen).all(1), (values & chosen).any(1)
    return {"all": every, "any": some, "uni": every | ~some}[mode]


@instruction("match", forms="any|all sync b32|b64")
def _match(writer: Writer, one: Instruction) -> None:
    mode, _, type = one.modifiers
    result, a, mask = one.operands
    values = f"{writer.array(a, type)}, {writer.array(mask, 'u32')}"
    both = writer.temporary(f"matched(m, {mode == 'all'}, {values}, idx)")
    first = result.first if isinstance(result, Pair) else result
    writer.write(first, "u32", f"{both}[0]")
    if isinstance(result, Pair):
        writer.write(result.second, "pred", f"{both}[1]")


@helper
def matched(m: Any, every: bool, a: Any, mask: Any, idx: Any) -> tuple[Any, Any]:
    """The named lanes with the same value, and whether all have it."""
    values, chosen = named(m, a, mask, idx)
    equal = _as_mask((values == a[:, None]) & chosen)
    full = equal == _as_mask(chosen)
    return (np.where(full, equal, np.uint32(0)) if every else equal), full


@instruction("redux", forms=("sync add|min|max u32|s32", "sync and|or|xor b32"), since=80)
def _redux(writer: Writer, one: Instruction) -> None:
    _, operation, type = one.modifiers
    result, a, mask = one.operands
    values = f"{writer.array(a, type)}, {writer.array(mask, 'u32')}"
    writer.write(result, type, f"reduced(m, {operation!r}, {values}, idx)")


_REDUCTIONS = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@helper
def reduced(m: Any, operation: str, a: Any, mask: Any, idx: Any) -> Any:
    """The values of the named lanes combined."""
    values, chosen = named(m, a, mask, idx)
    info = np.iinfo(a.dtype)
    neutral = {"min": info.max, "max": info.min, "and": info.max}.get(operation, 0)
    kept = np.where(chosen, values, a.dtype.type(neutral))
    return _REDUCTIONS[operation].reduce(kept, axis=1, dtype=a.dtype)
