"""Products of matrices by warpgroups (PTX ISA, Asynchronous Warpgroup Level Matrix Instructions).

A warpgroup is four warps. It adds products of 64 x K and K x n numbers to 64 x n float32: warp `w`
has rows 16 w to 16 w + 15, in the registers of mma.m16n8k16 for one eight of columns after the
other. Both matrices are in shared memory, where descriptors say.

Registers of sums belong to a product from its instruction to the wait for its group. No other
instruction may read or write them. The text alone says so: `check_sums`.
"""

from dataclasses import dataclass, field

import numpy as np

from cuda_machine.blocks import read_and_written, registers_in
from cuda_machine.faults import Fault
from cuda_machine.matrices import as_floats, check_tf32
from cuda_machine.syntax import Immediate, Vector
from cuda_machine.writer import helper, unknown, writes

_WIDTHS = (64, 128, 256)
_THREADS = np.arange(128)
# The row of a thread's first sums, and their column among eight.
_ROW = _THREADS // 32 * 16 + _THREADS % 32 // 4
_COLUMN = _THREADS % 4 * 2


def _product(type, k):
    shapes = "|".join(f"m64n{width}k{k}" for width in _WIDTHS)
    return f"mma_async sync aligned {shapes} f32 {type} {type}"


@writes("wgmma", forms=_product("bf16", 16), since=90)
@writes("wgmma", forms=_product("f16", 16), since=90)
@writes("wgmma", forms=_product("tf32", 8), since=90)
@writes("wgmma", forms="fence|commit_group|wait_group sync aligned", since=90)
def _wgmma(writer, instruction):
    """Scales of operands are 1, and the product is added to the sums."""
    if writer.kernel.module.target != "sm_90a":
        unknown(instruction, "only sm_90a has it")
    location = writer.located(instruction)
    match instruction.modifiers[0], instruction.operands:
        case "fence", ():
            writer.emit(f"m.products.warpgroups({location})")
        case "commit_group", ():
            writer.emit(f"m.products.commit({location})")
        case "wait_group", (Immediate(count, _),):
            writer.emit(f"m.products.wait({count}, {location})")
        case "mma_async", (Vector(sums), left, right, *numbers):
            shape, _, type = instruction.modifiers[3:6]
            width = int(shape[4:].partition("k")[0])
            bits = [each.bits for each in numbers if isinstance(each, Immediate)]
            # Only operands of 16 bits can be transposed.
            bits += [0, 0] if type == "tf32" else []
            if len(sums) != width // 2 or len(bits) != 5 or bits[:3] != [1, 1, 1]:
                unknown(instruction)
            descriptors = ", ".join(writer.array(each, "b64") for each in (left, right))
            values = ", ".join(writer.array(each, "f32") for each in sums)
            across = bool(bits[3]), bool(bits[4])
            results = writer.temporary(
                f"warpgroups_multiplied(m, {type!r}, {across}, {descriptors}, [{values}], "
                f"{location})"
            )
            for number, register in enumerate(sums):
                writer.write(register, "f32", f"{results}[{number}]")
        case _:
            unknown(instruction)


@writes("fence", forms="proxy async shared::cta", since=90)
def _fence(writer, one):
    """What the thread has written is visible to the asynchronous proxy."""
    writer.emit("m.make_visible(idx)")


@helper
def warpgroups_multiplied(m, type, across, left, right, sums, idx):
    """The registers of products plus sums."""
    width = 2 * len(sums)
    lanes = m.products.warpgroups(idx)
    addresses = [
        _chunks(m, descriptor, extent, turned)
        for descriptor, extent, turned in zip((left, right), (64, width), across, strict=True)
    ]
    chunks = m.products.begin(lanes, addresses)
    if type == "tf32":
        left_bits, right_bits = (
            list(each.reshape(len(lanes), -1).view(np.uint32).T) for each in chunks
        )
        check_tf32(m, left_bits, right_bits, lanes)
    a, b = (_matrix(data, type, turned) for data, turned in zip(chunks, across, strict=True))
    each = np.stack(sums).reshape(width // 8, 2, 2, len(lanes), 128)
    total = np.empty((len(lanes), 64, width), np.float32)
    places = [
        (eight, half, odd, _ROW + 8 * half, 8 * eight + _COLUMN + odd)
        for eight in range(width // 8) for half in range(2) for odd in range(2)
    ]  # fmt: skip
    for eight, half, odd, row, column in places:
        total[:, row, column] = each[eight, half, odd]
    for k in range(a.shape[2]):
        total = total + a[:, :, None, k] * b[:, None, :, k]
    return [
        np.ascontiguousarray(total[:, row, column]).reshape(-1) for _, _, _, row, column in places
    ]


def _chunks(m, descriptors, extent, across):
    """The addresses of the chunks of a matrix of each warpgroup: (warpgroups, chunks).

    PTX ISA, Matrix Descriptor Format, and Canonical Layouts, for swizzling of 128 bytes: rows of
    128 bytes run along K, where the stride spans eight m or n; or along m or n, where the
    stride spans eight k, and the leading offset spans 64 m or n. Bits 7 to 9 of an address
    are xored into bits 4 to 6.
    """
    each = descriptors.reshape(-1, 128)
    if (each != each[:, :1]).any():
        m.fault("descriptors that differ in a warpgroup")
    descriptor = each[:, :1].astype(np.int64)
    begin, leading, stride = (((descriptor >> at) & 0x3FFF) << 4 for at in (0, 16, 32))
    named = 0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 1 << 62
    if ((descriptor & ~named) != 0).any() or (descriptor >> 62 != 1).any():
        m.fault("a descriptor of another layout than that of 128 bytes without an offset")
    if not across and (leading != 16).any():
        m.fault("a descriptor whose leading offset is not 1 along K")
    if across:
        k, at = np.arange(16)[:, None], np.arange(extent // 8)
        place = (at // 8)[None, None] * leading[..., None] + (k // 8)[None] * stride[..., None]
        place = place + (k % 8 * 128 + at % 8 * 16)[None]
    else:
        row, at = np.arange(extent)[:, None], np.arange(2)
        place = (row // 8)[None] * stride[..., None] + (row % 8 * 128 + at * 16)[None]
    linear = begin + place.reshape(len(descriptor), -1)
    return linear ^ (linear >> 7 & 7) << 4


def _matrix(data, type, across):
    """Bytes of chunks as float32: (warpgroups, m or n, k)."""
    bits = np.ascontiguousarray(data).reshape(len(data), -1).view(np.uint16)
    if type == "tf32":
        return bits.view(np.float32).reshape(len(data), -1, 8)
    numbers = as_floats(bits, type)
    if across:
        return numbers.reshape(len(data), 16, -1).transpose(0, 2, 1)
    return numbers.reshape(len(data), -1, 16)


@dataclass
class _Sums:
    """What may have happened to registers before an instruction.

    Attributes:
        begun: how many groups were committed since a product with that register began, at least.
        touched: those that other instructions have read or written since the last fence.
        is_fenced: whether there was a fence.
    """

    begun: dict[str, int] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)
    is_fenced: bool = False

    def joined(self, other):
        begun = dict(self.begun)
        for name, groups in other.begun.items():
            begun[name] = min(groups, begun.get(name, groups))
        fenced = self.is_fenced and other.is_fenced
        return _Sums(begun, self.touched | other.touched, fenced)

    def after(self, instruction):
        """The state after an instruction, and what is wrong with it; "" if nothing is."""
        read, written = read_and_written(instruction)
        names = {register.name for register in read | written}
        begun, touched, fenced, wrong = self.begun, self.touched, self.is_fenced, ""
        kind = instruction.modifiers[0] if instruction.name == "wgmma" else ""
        if kind == "mma_async":
            sums = {register.name for register in registers_in(instruction.operands[0])}
            if not fenced or sums & touched:
                wrong = "a product without wgmma.fence after other accesses of its sums"
            begun, names = begun | dict.fromkeys(sums, 0), names - sums
        elif kind == "fence":
            touched, fenced = set(), True
        elif kind == "commit_group":
            begun = {name: groups + 1 for name, groups in begun.items()}
        elif kind == "wait_group":
            (count,) = instruction.operands
            begun = {name: at for name, at in begun.items() if not at or at <= count.bits}
        if names & self.begun.keys():
            wrong = "an access of sums before the wait for their product"
        return _Sums(begun, touched | names, fenced), wrong


def check_sums(kernel, blocks):
    """Raises a fault if an instruction may access sums of a product before its end."""
    if not any(instruction.name == "wgmma" for block in blocks for instruction in block.all()):
        return
    states = [None] * len(blocks)
    states[0] = _Sums()
    waiting = [0]
    while waiting:
        number = waiting.pop()
        state = states[number]
        for instruction in blocks[number].all():
            state, wrong = state.after(instruction)
            if wrong:
                raise Fault(wrong, kernel=kernel, line=instruction.line, text=instruction.text)
        for successor in blocks[number].successors:
            earlier = states[successor]
            joined = state if earlier is None else earlier.joined(state)
            if joined != earlier:
                states[successor] = joined
                waiting.append(successor)
