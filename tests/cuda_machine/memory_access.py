"""Loads, stores and addresses (PTX ISA, Data Movement and Conversion Instructions)."""

import numpy as np

from cuda_machine.memory import SHARED_WINDOW
from cuda_machine.syntax import BITS, Address, Immediate, Register, Vector
from cuda_machine.writer import DTYPES, unknown, writes

_SMALL = "b8|u8|s8|b16|u16|s16|b32|u32|s32|f32"
_LARGE = "b64|u64|s64|f64"


def _accesses(spaces):
    """The forms of loads or stores of at most 128 bits."""
    return f"{spaces} {_SMALL}|{_LARGE}", f"{spaces} v2 {_SMALL}|{_LARGE}", f"{spaces} v4 {_SMALL}"


def address_code(writer, address, space):
    """The addresses of all lanes, as int64 within the space."""
    if not isinstance(address, Address):
        raise ValueError("an operand that is no address")
    base, bits = address.base, 64
    if isinstance(base, Register):
        bits = BITS[base.type]
        value = writer.read(base, "s64" if bits == 64 else "u32")
    else:
        of, at = writer.address(base.name)
        if of != space and {of, space} != {"global", "const"}:
            raise ValueError(f"{base.name} is no variable in {space} memory")
        value = f"np.full(n, {writer.constant(np.int64(at))})"
    if address.offset:
        # The sum has the width of the register: NVRTC relies on a negative base.
        offset = np.int64(address.offset) if bits == 64 else np.uint32(address.offset % (1 << 32))
        value = f"{value} + {writer.constant(offset)}"
    return writer.temporary(value if bits == 64 else f"({value}).astype({writer.type('i8')})")


def _access(instruction, operand):
    """The space, the bits of an element, its type, and the registers of its operand."""
    space, *vector, type = instruction.modifiers
    count = int(vector[0][1:]) if vector else 1
    elements = operand.elements if isinstance(operand, Vector) else (operand,)
    if len(elements) != count:
        raise ValueError(f"{len(elements)} registers for {count} elements")
    return space, BITS[type], type, elements


@writes("ld", forms=_accesses("global|shared|const|param"))
def _ld(writer, instruction):
    result, address = instruction.operands
    space, bits, type, elements = _access(instruction, result)
    dtype = writer.type(DTYPES[type])
    if space == "param":
        if not isinstance(address, Address) or isinstance(address.base, Register):
            raise ValueError("an operand that is no parameter")
        begin, size = writer.offsets[address.base.name]
        if address.offset < 0 or address.offset + bits // 8 * len(elements) > size:
            raise ValueError("a read beyond a parameter")
        for number, element in enumerate(elements):
            at = begin + address.offset + number * bits // 8
            writer.write(element, type, f"np.full(n, m.parameter({at}, {dtype}))")
        return
    addresses = address_code(writer, address, space)
    call = f"m.load({space!r}, {addresses}, {bits}, {len(elements)}, {writer.located(instruction)})"
    loaded = [f"l{number}_{instruction.line}" for number in range(len(elements))]
    writer.emit(f"{', '.join(loaded)}, = {call}")
    for element, name in zip(elements, loaded, strict=True):
        writer.write(element, type, f"{name}.view({dtype})")


@writes("st", forms=_accesses("global|shared"))
def _st(writer, instruction):
    address, value = instruction.operands
    space, bits, type, elements = _access(instruction, value)
    addresses = address_code(writer, address, space)
    # The value of a float register is stored as its bits.
    kind = type if any(isinstance(element, Immediate) for element in elements) else f"b{bits}"
    bits_of = "" if kind == f"b{bits}" else f".view({writer.type(f'u{bits // 8}')})"
    values = ", ".join(writer.array(element, kind) + bits_of for element in elements)
    writer.emit(f"m.store({space!r}, {addresses}, [{values}], {writer.located(instruction)})")


@writes("cp", forms=("async commit_group|wait_group", "async cg shared global"), since=80)
def _cp(writer, instruction):
    location = writer.located(instruction)
    match instruction.modifiers[1], instruction.operands:
        case "commit_group", ():
            writer.emit("m.copies.commit(idx)")
        case "wait_group", (Immediate(count, _),):
            writer.emit(f"m.copies.wait({count}, {location})")
        case "cg", (to, source, Immediate(16, _), read):
            target = address_code(writer, to, "shared")
            begin = address_code(writer, source, "global")
            count = writer.array(read, "u32")
            writer.emit(f"m.copies.begin({target}, {begin}, 16, {count}, {location})")
        case _:
            unknown(instruction)


@writes("cvta", forms="to? global|shared u64")
def _cvta(writer, instruction):
    result, address = instruction.operands
    window = SHARED_WINDOW if "shared" in instruction.modifiers else 0
    distance = -window if "to" in instruction.modifiers else window
    shift = writer.constant(np.uint64(distance % (1 << 64)))
    # An address of another space becomes one that no memory has.
    writer.write(result, "u64", f"{writer.array(address, 'u64')} + {shift}")


@writes("prefetch", forms="global? L2")
def _prefetch(writer, one):
    """Moves data to a cache: no result."""


@writes("griddepcontrol", forms="wait|launch_dependents", since=90)
def _griddepcontrol(writer, instruction):
    """Without a wait before it, later kernels could run before the end of earlier ones."""
    if instruction.modifiers == ("wait",):
        writer.emit("m.wait_for_earlier_kernels(idx)")
    else:
        writer.emit(f"m.require_wait('a launch of dependents', {writer.located(instruction)})")
