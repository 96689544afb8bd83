"""Atomic instructions (PTX ISA, atom and red): lanes apply them one after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cuda_machine.halves import half_result
from cuda_machine.memory_access import address_code, space_of
from cuda_machine.moves import flushed
from cuda_machine.syntax import BITS, Instruction
from cuda_machine.writer import Writer, helper, instruction, unknown

_HALVES = ("f16", "f16x2", "bf16", "bf16x2")
# Each access is done at once, in one order that all threads see: orders and scopes are the same.
_MEANINGLESS = ("relaxed", "release", "cta", "gpu", "sys", "cluster")
_SPACE = "global|shared|shared::cta?"
_REDUCTIONS = (
    f"{_SPACE} add u32|s32|u64|f32|f64",
    f"{_SPACE} min|max u32|s32|u64|s64",
    f"{_SPACE} inc|dec u32",
    f"{_SPACE} and|or|xor b32|b64",
    f"{_SPACE} add noftz f16|f16x2",
)
_BFLOATS = f"{_SPACE} add noftz bf16|bf16x2"
_EXCHANGES = (f"{_SPACE} exch b32|b64", f"{_SPACE} cas b16|b32|b64")

Update = Callable[[Any, Any, Any], Any]
_UPDATES: dict[str, Update] = {
    "add": lambda old, b, _: old + b,
    "min": lambda old, b, _: np.minimum(old, b),
    "max": lambda old, b, _: np.maximum(old, b),
    "inc": lambda old, b, _: np.where(old >= b, np.uint32(0), old + np.uint32(1)),
    "dec": lambda old, b, _: np.where((old == 0) | (old > b), b, old - np.uint32(1)),
    "and": lambda old, b, _: old & b,
    "or": lambda old, b, _: old | b,
    "xor": lambda old, b, _: old ^ b,
    "exch": lambda _, b, __: b,
    "cas": lambda old, b, c: np.where(old == b, c, old),
}


@instruction("atom", "red", forms=_REDUCTIONS, ignoring=_MEANINGLESS)
@instruction("atom", "red", forms=_BFLOATS, since=90)
@instruction("atom", forms=_EXCHANGES, ignoring=("acquire", "acq_rel"))
def _atom(writer: Writer, one: Instruction) -> None:
    space, (operation, *_, type) = space_of(one.modifiers)
    operands = list(one.operands)
    result = operands.pop(0) if one.name == "atom" else None
    address = address_code(writer, operands[0], space)
    kind = f"b{BITS[type]}" if type in _HALVES else type
    values = [writer.array(operand, kind) for operand in operands[1:]]
    if len(values) != (2 if operation == "cas" else 1):
        unknown(one)
    name = f"{operation}.{type}" if type in _HALVES else operation
    arguments = f"{values[0]}, {values[1] if len(values) > 1 else values[0]}"
    code = f"atomic(m, {space!r}, {name!r}, {address}, {arguments}, {writer.location(one)})"
    if result is None:
        writer.emit(code)
    else:
        writer.write(result, kind, code)


@helper
def atomic(
    m: Any, space: str, name: str, addresses: Any, b: Any, c: Any, line: int, idx: Any
) -> Any:
    """Updates memory, lane by lane in the order of the launch; returns the values before."""
    if space == "generic":
        result = np.empty_like(b)
        for own, chosen, at, lanes in m.spaces(addresses, idx):
            if chosen is None:
                return atomic(m, own, name, at, b, c, line, lanes)
            result[chosen] = atomic(m, own, name, at, b[chosen], c[chosen], line, lanes)
        return result
    size = b.dtype.itemsize
    offsets, data = m.writable(space, addresses, size, line, idx, atomic=True)
    memory = data[size].view(b.dtype)
    positions = offsets // size
    order = m.order(len(positions))
    # How many lanes before it, in this order, have the same address.
    sorted_order = order[np.argsort(positions[order], kind="stable")]
    at = positions[sorted_order]
    first = np.flatnonzero(np.concatenate([[True], at[1:] != at[:-1]]))
    rank = np.arange(len(at)) - np.repeat(first, np.diff(np.append(first, len(at))))
    rounds = np.argsort(rank, kind="stable")
    ends = np.cumsum(np.bincount(rank))
    result = np.empty_like(b)
    update = _update(name, b.dtype, space)
    begin = 0
    for end in ends:
        lanes = sorted_order[rounds[begin:end]]
        where = positions[lanes]
        result[lanes] = old = memory[where]
        memory[where] = update(old, b[lanes], c[lanes])
        begin = end
    return result


def _update(name: str, dtype: Any, space: str) -> Update:
    operation, _, half = name.partition(".")
    if half:
        return lambda old, b, _: half_result("add", half.startswith("bf16"), [], old, b)
    if operation == "add" and dtype == np.float32 and space == "global":
        # PTX ISA, atom and red: .add.f32 flushes subnormal inputs and results in global memory, but
        # not in shared memory. All other additions keep them.
        return lambda old, b, _: flushed(flushed(old) + flushed(b))
    return _UPDATES[operation]
