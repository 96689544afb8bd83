"""Loads, stores and addresses (PTX ISA, Data Movement and Conversion Instructions)."""

from __future__ import annotations

import re

import numpy as np

from cuda_machine.syntax import (
    BITS,
    Address,
    Immediate,
    Instruction,
    Operand,
    Register,
    Symbol,
    Vector,
)
from cuda_machine.threads import LOCAL_WINDOW, SHARED_WINDOW
from cuda_machine.writer import DTYPES, Writer, instruction, unknown

SPACES = ("global", "shared", "local", "const", "param")
# Hints for caches change no result, nor does .nc: it only promises that nobody writes there. A
# plain access of this machine is volatile, relaxed, acquire and release at once: every access is
# done when the instruction is executed, in one order that all threads see. (.volatile and .relaxed
# are not atomic in the sense of the race checks: threads that communicate through them are found.)
_HINTS = re.compile(
    r"weak|volatile|relaxed|acquire|release|cta|gpu|sys|cluster|ca|cg|cs|lu|cv|wb|wt|nc"
    r"|L1::(evict_\w+|no_allocate)|L2::(evict_\w+|(64|128|256)B)"
)


def space_of(one: Instruction, modifiers: tuple[str, ...]) -> tuple[str, list[str]]:
    """The state space among modifiers, "generic" if there is none; and the other modifiers."""
    spaces = [name for name in modifiers if name.partition("::")[0] in SPACES]
    if len(spaces) > 1 or (spaces and spaces[0] not in (*SPACES, "shared::cta")):
        unknown(one)
    rest = [name for name in modifiers if name not in spaces]
    return (spaces[0].partition("::")[0] if spaces else "generic"), rest


def address_code(writer: Writer, address: Operand, space: str) -> str:
    """The addresses of all lanes, as int64 within the space."""
    if not isinstance(address, Address):
        raise ValueError("an operand that is no address")
    offset = writer.constant(np.int64(address.offset))
    match address.base:
        case Register(_, type):
            signed = BITS[type] == 64
            value = writer.read(address.base, "s64" if signed else "u32")
            if not signed:
                # The sum has the width of the register: NVRTC relies on a negative base.
                if address.offset:
                    value = f"{value} + {writer.constant(np.uint32(address.offset % (1 << 32)))}"
                return writer.temporary(f"({value}).astype({writer.type('i8')})")
            if not address.offset:
                return writer.temporary(value)
            return writer.temporary(f"{value} + {offset}")
        case Symbol(name, own):
            known = writer.addresses.get(name)
            if known is None:
                raise ValueError(f"unknown variable {name}")
            if known[0] != space and {known[0], space} != {"global", "const"}:
                raise ValueError(f"{name} is no variable in {space} memory")
            return _constant_addresses(writer, known[1] + own + address.offset)
        case Immediate(bits, _):
            return _constant_addresses(writer, bits + address.offset)


def _constant_addresses(writer: Writer, value: int) -> str:
    return writer.temporary(f"np.full(n, {writer.constant(np.int64(value))})")


def _access(one: Instruction) -> tuple[str, int, str]:
    """The space, the number of elements and the type of a load or store."""
    space, rest = space_of(one, one.modifiers[:-1])
    type = one.modifiers[-1]
    count = 1
    if rest and re.fullmatch(r"v[248]", rest[-1]):
        count = int(rest.pop()[1:])
    if not all(_HINTS.fullmatch(name) for name in rest):
        unknown(one)
    if type not in BITS or type in ("pred", "bf16", "tf32", "f16x2", "bf16x2", "f16"):
        unknown(one)
    # PTX ISA, ld: 256 bits only with .v4.b64 or .v8.b32 of newer processors.
    if BITS[type] * count > 256:
        unknown(one)
    return space, count, type


@instruction("ld")
def _ld(writer: Writer, one: Instruction) -> None:
    space, count, type = _access(one)
    result, address = one.operands
    elements = result.elements if isinstance(result, Vector) else (result,)
    if len(elements) != count:
        raise ValueError(f"{len(elements)} registers for {count} elements")
    dtype = DTYPES[type]
    if space == "param" and isinstance(address, Address) and isinstance(address.base, Symbol):
        begin, size = writer.offsets[address.base.name]
        first = address.offset + address.base.offset
        if first < 0 or first + BITS[type] // 8 * count > size:
            raise ValueError("a read beyond a parameter")
        for number, element in enumerate(elements):
            at = begin + first + number * BITS[type] // 8
            code = f"np.full(n, m.parameter({at}, {writer.type(dtype)}))"
            writer.write(element, type, code)
        return
    addresses = address_code(writer, address, space)
    call = f"m.load({space!r}, {addresses}, {BITS[type]}, {count}, {writer.location(one)})"
    loaded = [f"l{number}_{one.line}" for number in range(count)]
    writer.emit(f"{', '.join(loaded)}, = {call}")
    for element, name in zip(elements, loaded, strict=True):
        writer.write(element, type, f"{name}.view({writer.type(dtype)})")


@instruction("ld.float")
def _ld_float(writer: Writer, one: Instruction) -> None:
    _ld(writer, one)


@instruction("st")
def _st(writer: Writer, one: Instruction) -> None:
    space, count, type = _access(one)
    if space in ("const", "param"):
        unknown(one)
    address, value = one.operands
    elements = value.elements if isinstance(value, Vector) else (value,)
    if len(elements) != count:
        raise ValueError(f"{len(elements)} registers for {count} elements")
    addresses = address_code(writer, address, space)
    bits = BITS[type]
    # The value of a float register is stored as its bits.
    kind = type if any(isinstance(one, Immediate) for one in elements) else f"b{bits}"
    values = ", ".join(writer.array(element, kind) for element in elements)
    if kind != f"b{bits}":
        values = ", ".join(
            f"{one}.view({writer.type(f'u{bits // 8}')})" for one in values.split(", ")
        )
    writer.emit(f"m.store({space!r}, {addresses}, [{values}], {bits}, {writer.location(one)})")


@instruction("cvta")
def _cvta(writer: Writer, one: Instruction) -> None:
    to = one.modifiers[0] == "to"
    space, type = one.modifiers[int(to) :]
    if type != "u64" or space not in ("global", "const", "shared", "local"):
        unknown(one)
    result, address = one.operands
    window = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(space, 0)
    shift = writer.constant(np.uint64((-window if to else window) % (1 << 64)))
    value = writer.array(address, "u64")
    # An address of another space becomes one that no memory has.
    writer.write(result, "u64", f"{value} + {shift}")


@instruction("isspacep")
def _isspacep(writer: Writer, one: Instruction) -> None:
    (space,) = one.modifiers
    result, address = one.operands
    if space not in ("global", "shared", "local"):
        unknown(one)
    number = {"global": 0, "shared": 1, "local": 2}[space]
    writer.write(result, "pred", f"m.windows({writer.array(address, 's64')}) == {number}")


@instruction("prefetch", "prefetchu")
def _prefetch(writer: Writer, one: Instruction) -> None:
    """Moves data to a cache: no result."""


@instruction("membar", "fence")
def _fence(writer: Writer, one: Instruction) -> None:
    """Orders accesses: all accesses of this machine are ordered already.

    No fence is a barrier: accesses of other threads may still be races.
    """
    allowed = ("cta", "gl", "sys", "gpu", "cluster", "sc", "acq_rel", "acquire", "release")
    if not all(name in allowed for name in one.modifiers):
        unknown(one)
