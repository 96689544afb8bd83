"""Barriers, and matrix instructions of warps (PTX ISA, Warp Level Matrix Instructions).

Lane `l` of a warp is in group `l / 4` and is thread `l % 4` of its group; the sections
"Matrix Fragments for mma.m16n8k4" to "mma.m16n8k16" define fragments.

A result is the accumulator plus the products in ascending k, each addition rounded to float32.
Products of two operands are exact. PTX leaves order and rounding of the sum open (mma, Precision
and rounding); GPUs add several products at once.
"""

import numpy as np

from cuda_machine.memory_access import address_code
from cuda_machine.syntax import Immediate, Vector
from cuda_machine.writer import helper, unknown, writes

_LANES = np.arange(32)
_GROUP = _LANES // 4
_THREAD = _LANES % 4


def _fragment(elements, row, column):
    zeros = np.zeros(32, np.int64)
    return [(row(i) + zeros, column(i) + zeros) for i in range(elements)]


# Operands of 16 bits: two neighbours along k in each register.
_A16 = {
    16: _fragment(
        8, lambda i: _GROUP + 8 * (i // 2 % 2), lambda i: _THREAD * 2 + i % 2 + 8 * (i // 4)
    ),
    8: _fragment(4, lambda i: _GROUP + 8 * (i // 2), lambda i: _THREAD * 2 + i % 2),
}
_B16 = {
    16: _fragment(4, lambda i: _THREAD * 2 + i % 2 + 8 * (i // 2), lambda i: _GROUP),
    8: _fragment(2, lambda i: _THREAD * 2 + i, lambda i: _GROUP),
}
# tf32: one element in each register.
_A32 = {8: _fragment(4, lambda i: _GROUP + 8 * (i % 2), lambda i: _THREAD + 4 * (i // 2))}
_B32 = {8: _fragment(2, lambda i: _THREAD + 4 * i, lambda i: _GROUP)}
# PTX ISA, shfl.sync: segments of 32 lanes, and the mask of all of them.
_EVERYONE = (Immediate(31, "integer"), Immediate(0xFFFFFFFF, "integer"))
_C = _fragment(4, lambda i: _GROUP + 8 * (i // 2), lambda i: _THREAD * 2 + i % 2)


def _registers(operand, count):
    if not isinstance(operand, Vector) or len(operand.elements) != count:
        raise ValueError(f"{count} registers are expected")
    return operand.elements


def _form(shape, type):
    """Products of a type whose sums are float32."""
    return f"sync aligned {shape} row col f32 {type} {type} f32"


# PTX ISA, mma, Target ISA Notes: Turing has only m16n8k8, of float16.
@writes("mma", forms=_form("m16n8k8", "f16"))
@writes("mma", forms=_form("m16n8k16", "f16"), since=80)
@writes("mma", forms=_form("m16n8k16", "bf16"), since=80)
@writes("mma", forms=_form("m16n8k8", "tf32"), since=80)
def _mma(writer, instruction):
    shape, left = instruction.modifiers[2], instruction.modifiers[6]
    k = int(shape.removeprefix("m16n8k"))
    a, b = (_A32[k], _B32[k]) if left == "tf32" else (_A16[k], _B16[k])
    each = 1 if left == "tf32" else 2
    d_operand, a_operand, b_operand, c_operand = instruction.operands
    codes = []
    for operand, count in (
        (a_operand, len(a) // each),
        (b_operand, len(b) // each),
        (c_operand, 4),
    ):
        values = [writer.array(register, "b32") for register in _registers(operand, count)]
        codes.append(f"[{', '.join(values)}]")
    if left == "tf32":
        writer.emit(f"check_tf32(m, {codes[0]}, {codes[1]}, {writer.located(instruction)})")
    results = writer.temporary(f"multiplied({k}, {left!r}, {', '.join(codes)})")
    for number, register in enumerate(_registers(d_operand, 4)):
        writer.write(register, "b32", f"{results}[{number}]")


@helper
def check_tf32(m, a, b, idx):
    """Operands of .tf32 are numbers of 11 bits, or NaN.

    PTX ISA, Alternate Floating-Point Data Formats: the layout is the implementation's, so
    nobody says what becomes of more bits.
    """
    for operand in (*a, *b):
        bad = ((operand & np.uint32(0x1FFF)) != 0) & ~np.isnan(operand.view(np.float32))
        if bad.any():
            m.fault_where("an operand of .tf32 that is not rounded to its bits", bad, idx)


def _elements(registers, kind):
    """The float32 of each element of a fragment, in the order of the elements."""
    if kind in ("tf32", "f32"):
        return [register.view(np.float32) for register in registers]
    halves = [register.view(np.uint16)[half::2] for register in registers for half in range(2)]
    return [as_floats(half, kind) for half in halves]


def as_floats(bits, kind):
    """The float32 of the bits of float16 or bfloat16."""
    if kind == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return bits.view(np.float16).astype(np.float32)


def _matrix(elements, fragment, rows, columns):
    warps = len(elements[0]) // 32
    matrix = np.empty((warps, rows, columns), np.float32)
    for element, (at_row, at_column) in zip(elements, fragment, strict=True):
        matrix[:, at_row, at_column] = element.reshape(warps, 32)
    return matrix


@helper
def multiplied(k, kind, a, b, c):
    """The registers of products of matrices plus accumulators."""
    fragments = (_A32[k], _B32[k]) if kind == "tf32" else (_A16[k], _B16[k])
    left = _matrix(_elements(a, kind), fragments[0], 16, k)
    right = _matrix(_elements(b, kind), fragments[1], k, 8)
    total = _matrix(_elements(c, "f32"), _C, 16, 8)
    for number in range(k):
        total = total + left[:, :, number, None] * right[:, number, None, :]
    return [
        np.ascontiguousarray(total[:, row, column]).reshape(-1).view(np.uint32)
        for row, column in _C
    ]


@writes("ldmatrix", forms="sync aligned m8n8 x4 trans? shared b16")
def _ldmatrix(writer, instruction):
    result, address = instruction.operands
    rows = address_code(writer, address, "shared")
    turned = "trans" in instruction.modifiers
    code = f"matrix_rows(m, {rows}, {turned}, {writer.located(instruction)})"
    values = writer.temporary(code)
    for position, register in enumerate(_registers(result, 4)):
        writer.write(register, "b32", f"{values}[{position}]")


@helper
def matrix_rows(m, addresses, transposed, idx):
    """The registers of 8x8 matrices; lane `8 i + r` has the address of row `r` of matrix `i`."""
    m.shared_offsets(addresses, 16, idx)
    rows = addresses.reshape(-1, 32)
    results = []
    for number in range(4):
        if not transposed:
            at = rows[:, 8 * number + _GROUP] + _THREAD * 4
            (value,) = m.load("shared", at.reshape(-1), 32, 1, idx)
        else:
            halves = []
            for half in range(2):
                at = rows[:, 8 * number + _THREAD * 2 + half] + _GROUP * 2
                halves += m.load("shared", at.reshape(-1), 16, 1, idx)
            value = halves[0] | halves[1].astype(np.uint32) << np.uint32(16)
        results.append(value)
    return results


@writes("shfl", forms="sync down b32")
def _shfl(writer, instruction):
    """From `distance` lanes above; the last lanes get their own values."""
    result, value, distance, last, members = instruction.operands
    if not isinstance(distance, Immediate) or (last, members) != _EVERYONE:
        unknown(instruction)
    writer.write(result, "b32", f"of_later_lanes({writer.array(value, 'b32')}, {distance.bits})")


@helper
def of_later_lanes(value, distance):
    """For each lane of whole warps the value of a later one."""
    warps = value.reshape(-1, 32)
    return np.concatenate([warps[:, distance:], warps[:, 32 - distance :]], 1).reshape(-1)


@writes("bar", forms="sync")
@writes("barrier", forms="sync aligned?")
def _barrier(writer, instruction):
    """Of all threads of the block; `Schedule` does the waiting."""
    if instruction.operands != (Immediate(0, "integer"),):
        unknown(instruction)
    writer.emit("None")
