"""Loads, stores and addresses (PTX ISA, Data Movement and Conversion Instructions)."""

from __future__ import annotations

import numpy as np

from cuda_machine.memory import LOCAL_WINDOW, SHARED_WINDOW
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
from cuda_machine.writer import DTYPES, Writer, instruction

# .nc promises that nobody writes there, which changes no result.
_SMALL = "b8|u8|s8|b16|u16|s16|b32|u32|s32|f32"
_LARGE = "b64|u64|s64|f64"


def _accesses(spaces: str) -> tuple[str, ...]:
    """The forms of loads or stores of at most 128 bits."""
    return (
        f"{spaces} {_SMALL}|{_LARGE}",
        f"{spaces} v2 {_SMALL}|{_LARGE}",
        f"{spaces} v4 {_SMALL}",
    )


# PTX ISA, ld: 256 bits only of global memory, by newer processors.
_WIDE = ("global v4 b64|u64|s64|f64", "global v8 b32|u32|s32|f32")


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
    space, *vector, type = one.modifiers
    return space, int(vector[0][1:]) if vector else 1, type


@instruction("ld", forms=_accesses("global|shared|local|const|param"), ignoring=("volatile", "nc"))
@instruction("ld", forms=_WIDE, since=100)
def _ld(writer: Writer, one: Instruction) -> None:
    space, count, type = _access(one)
    result, address = one.operands
    elements = result.elements if isinstance(result, Vector) else (result,)
    if len(elements) != count:
        raise ValueError(f"{len(elements)} registers for {count} elements")
    dtype = DTYPES[type]
    if space == "param":
        if not isinstance(address, Address) or not isinstance(address.base, Symbol):
            raise ValueError("an operand that is no parameter")
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


@instruction("st", forms=_accesses("global|shared|local"), ignoring=("volatile",))
@instruction("st", forms=_WIDE, since=100)
def _st(writer: Writer, one: Instruction) -> None:
    space, count, type = _access(one)
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


@instruction("cvta", forms="to? global|const|shared|local u64")
def _cvta(writer: Writer, one: Instruction) -> None:
    to = one.modifiers[0] == "to"
    space = one.modifiers[-2]
    result, address = one.operands
    window = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(space, 0)
    shift = writer.constant(np.uint64((-window if to else window) % (1 << 64)))
    value = writer.array(address, "u64")
    # An address of another space becomes one that no memory has.
    writer.write(result, "u64", f"{value} + {shift}")


@instruction("prefetch", forms="global? L2")
def _prefetch(writer: Writer, one: Instruction) -> None:
    """Moves data to a cache: no result."""


@instruction("griddepcontrol", forms="wait|launch_dependents", since=90)
def _griddepcontrol(writer: Writer, one: Instruction) -> None:
    """Without a wait before it, later kernels could run before the end of earlier ones."""
    if one.modifiers == ("wait",):
        writer.emit("m.wait_for_earlier_kernels(idx)")
    else:
        writer.emit(f"m.require_wait('a launch of dependents', {writer.location(one)})")
