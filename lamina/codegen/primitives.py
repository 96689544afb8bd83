"""The scalar primitives of `lamina.program.scalar` as vector instructions.

Values of a dtype have the LLVM type of the same width; bools have one bit, and are stored as
bytes. Floats of 16 bits are integers of 16 bits, which are only moved and converted. Signed and
unsigned integers share a type, so the dtype is passed to every emitter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from lamina.base.shapes import DType, converted, float32
from lamina.codegen import circular, division, floats, functions, halves, powers
from lamina.codegen.builder import Builder
from lamina.codegen.values import Type, Value, constants
from lamina.program.philox import KEY_INCREMENTS, MULTIPLIERS, ROUNDS
from lamina.program.scalar import Apply, Literal
from lamina.program.tf32 import HALF_DIGIT, KEPT_BITS, QUIET

_BOOL_IN_MEMORY = "i8"

# (code, dtype, operands...) -> the result.
Emitter = Callable[..., Value]


def element(dtype: DType) -> str:
    """The LLVM element that holds a value of the dtype in registers."""
    if dtype.is_float and not dtype.is_half:
        return {4: "float", 8: "double"}[dtype.itemsize]
    return "i1" if dtype.kind == "bool" else f"i{8 * dtype.itemsize}"


def memory_element(dtype: DType) -> str:
    """The LLVM element that holds a value of the dtype in memory."""
    return _BOOL_IN_MEMORY if dtype.kind == "bool" else element(dtype)


def literal(code: Builder, scalar: Literal) -> Value:
    """The constant of a literal."""
    type = Type(element(scalar.dtype))
    if not scalar.dtype.is_half:
        return code.constant(scalar.value, type)
    with np.errstate(over="ignore"):
        number = converted(np.asarray(scalar.value, np.float64), scalar.dtype.numpy)
    return code.constant(int(number.view(np.uint16)), type)


def is_unsigned(dtype: DType) -> bool:
    """Whether integers of the dtype have no sign; true for bools."""
    return dtype.limits[0] == 0


def from_memory(code: Builder, value: Value, dtype: DType) -> Value:
    """A loaded value, converted to its element in registers."""
    return value.differs(0) if dtype.kind == "bool" else value


def to_memory(code: Builder, value: Value, dtype: DType) -> Value:
    """A value, converted to its element in memory."""
    return code.convert("zext", value, _BOOL_IN_MEMORY) if dtype.kind == "bool" else value


def cast(code: Builder, value: Value, source: DType, target: DType) -> Value:
    """A conversion between any two dtypes; floats to integers saturate."""
    lane_type = element(target)
    if source == target:
        return value
    if source.is_half:
        if target.kind == "bool":
            return (value & 0x7FFF).differs(0)
        return cast(code, halves.to_float(code, value, source), float32, target)
    if target.is_half:
        return halves.rounded_to_half(code, value, source, target)
    if target.kind == "bool":
        return code.compare("une" if source.is_float else "ne", value, 0)
    if source.is_float and target.is_float:
        return code.convert("fpext" if target.itemsize > 4 else "fptrunc", value, lane_type)
    if source.is_float:
        return code.convert("fptoui.sat" if is_unsigned(target) else "fptosi.sat", value, lane_type)
    if target.is_float:
        return code.convert("uitofp" if is_unsigned(source) else "sitofp", value, lane_type)
    wider = target.itemsize - (source.itemsize if source.kind != "bool" else 0)
    if wider == 0:
        return value
    operation = "trunc" if wider < 0 else "zext" if is_unsigned(source) else "sext"
    return code.convert(operation, value, lane_type)


def conversion(code: Builder, scalar: Apply, value: Value) -> Value:
    """A primitive of `lamina.program.scalar.CONVERSIONS`, applied to the value of its operand."""
    if scalar.primitive == "cast":
        return cast(code, value, scalar.operands[0].dtype, scalar.dtype)
    return EMITTERS[scalar.primitive](code, scalar.dtype, value)


def _arithmetic(operation: str, code: Builder, dtype: DType, left: Value, right: Value) -> Value:
    return code.binary(f"f{operation}" if dtype.is_float else operation, left, right)


def _bitwise(operation: str, code: Builder, dtype: DType, left: Value, right: Value) -> Value:
    return code.binary(operation, left, right)


def _instruction(name: str, code: Builder, dtype: DType, *operands: Value) -> Value:
    """An instruction of the builder that is the same for all dtypes."""
    return getattr(code, name)(*operands)


def _intrinsic(name: str, code: Builder, dtype: DType, *operands: Value) -> Value:
    return code.intrinsic(name, *operands)


def _function(emit: Callable[..., Value], code: Builder, dtype: DType, *operands: Value) -> Value:
    """A function that is the same for all dtypes."""
    return code.applied(emit, *operands)


def _extreme(relation: str, code: Builder, dtype: DType, left: Value, right: Value) -> Value:
    if not dtype.is_float:
        order = ("u" if is_unsigned(dtype) else "s") + relation
        return code.select(code.compare(order, left, right), left, right)
    if left.is_number:
        left, right = right, left
    # If the comparison with a NaN on the left fails, the NaN is chosen.
    chosen = code.select(code.compare(f"o{relation}", right, left), right, left)
    if right.is_number:
        return chosen
    return code.select(code.compare("uno", right, right), right, chosen)


def _compare(ordered: str, code: Builder, dtype: DType, left: Value, right: Value) -> Value:
    """A comparison of operands of a dtype."""
    if dtype.is_float:
        relation = "une" if ordered == "ne" else f"o{ordered}"
    elif ordered in ("eq", "ne"):
        relation = ordered
    else:
        relation = ("u" if is_unsigned(dtype) else "s") + ordered
    return code.compare(relation, left, right)


def _reciprocal(code: Builder, dtype: DType, value: Value) -> Value:
    return 1 / value


def _logical_not(code: Builder, dtype: DType, value: Value) -> Value:
    return value ^ 1


def _absolute(code: Builder, dtype: DType, value: Value) -> Value:
    if dtype.is_float:
        return code.intrinsic("fabs", value)
    if is_unsigned(dtype):
        return value
    return code.select(value < 0, -value, value)


def _sign(code: Builder, dtype: DType, value: Value) -> Value:
    zero = code.constant(0, value.type)
    if not dtype.is_float and is_unsigned(dtype):
        return code.select(value.differs(0), 1, zero)
    middle = zero
    if dtype.is_float:
        middle = code.select(code.compare("uno", value, value), value, 0)
    negative = code.select(value < 0, -1, middle)
    return code.select(value > 0, 1, negative)


def _floor(code: Builder, dtype: DType, value: Value) -> Value:
    return floats.floor(code, value) if dtype.is_float else value


def _power(code: Builder, dtype: DType, left: Value, right: Value) -> Value:
    if dtype.is_float:
        return powers.power(code, left, right)
    return powers.integer_power(code, left, right, signed=not is_unsigned(dtype))


def _quotient(code: Builder, dtype: DType, left: Value, right: Value) -> Value:
    return division.quotient(code, left, right, signed=not is_unsigned(dtype))


def _shift_right(code: Builder, dtype: DType, value: Value, count: Value) -> Value:
    if is_unsigned(dtype):
        return _shifted("lshr", code, dtype, value, count)
    most = value.type.bits - 1
    count = code.select(code.compare("ult", count, most), count, most)
    return code.binary("ashr", value, count)


def _shifted(operation: str, code: Builder, dtype: DType, value: Value, count: Value) -> Value:
    """The shifted value; 0 if the count is negative, or not below the number of bits."""
    bits = value.type.bits
    if isinstance(count.number, int) and 0 <= count.number < bits:
        return code.binary(operation, value, count)
    # The instruction is undefined for other counts.
    inside = code.compare("ult", count, bits)
    low = count & (bits - 1)
    return code.select(inside, code.binary(operation, value, low), 0)


def _rounded_to_tf32(code: Builder, dtype: DType, value: Value) -> Value:
    """Rounding as integers, as `lamina.program.tf32` defines it."""
    bits = code.convert("bitcast", value, "i32")
    nearest = bits + HALF_DIGIT
    # The carry could make a NaN a number.
    is_nan = code.compare("uno", value, value)
    nearest = code.select(is_nan, bits | QUIET, nearest)
    return code.convert("bitcast", nearest & KEPT_BITS, "float")


def _sort_key(code: Builder, dtype: DType, value: Value) -> Value:
    """An integer that orders floats as `sort_key` in `lamina.program.definitions` does."""
    bits = code.convert("bitcast", value, element(dtype))
    sign = code.binary("ashr", bits, bits.type.bits - 1)
    ordered = bits ^ (sign >> 1)
    ordered = code.select(value.equals(0), 0, ordered)
    largest = (1 << (bits.type.bits - 1)) - 1
    return code.select(code.compare("uno", value, value), largest, ordered)


def _random_bits(
    code: Builder, dtype: DType, seed: Value, step: Value, position: Value, stream: Value
) -> Value:
    """Philox 4x32-10 as in `lamina.program.philox`: one word of one block in each lane."""
    words = _philox(position >> 2, seed, step, stream)
    word = position & 3
    result = words[0]
    for number in (1, 2, 3):
        result = code.select(word.equals(number), words[number], result)
    return code.convert("trunc", result, "i32")


def random_words(
    code: Builder, start: Value, lanes: int, seed: Value, step: Value, stream: Value
) -> Value:
    """Random bits at consecutive positions from a multiple of four on: all words of each block."""
    blocks = -(-lanes // 4)
    # A power of two, because halves are joined by shuffles.
    width = 1 << (blocks - 1).bit_length() if blocks > 1 else 2
    block = code.splat(start >> 2, width) + constants(range(width), "i64")
    spread = [code.splat(value, width) for value in (seed, step, stream)]
    words = [code.convert("trunc", word, "i32") for word in _philox(block, *spread)]
    pairs = [code.shuffle(words[number], words[number + 1], range(2 * width)) for number in (0, 2)]
    picks = [lane % 4 * width + lane // 4 for lane in range(lanes)]
    return code.shuffle(pairs[0], pairs[1], picks)


def _philox(block: Value, seed: Value, step: Value, stream: Value) -> list[Value]:
    """The four words of each block, in the low halves of integers of 64 bits."""
    low = 0xFFFFFFFF
    counter = [block & low, step & low, step >> 32, stream & low]
    keys = [seed & low, seed >> 32]
    for number in range(ROUNDS):
        if number:
            keys = [
                (key + increment) & low for key, increment in zip(keys, KEY_INCREMENTS, strict=True)
            ]
        left = counter[0] * MULTIPLIERS[0]
        right = counter[2] * MULTIPLIERS[1]
        counter = [
            (right >> 32) ^ counter[1] ^ keys[0],
            right & low,
            (left >> 32) ^ counter[3] ^ keys[1],
            left & low,
        ]
    return counter


def _unchanged(code: Builder, dtype: DType, value: Value) -> Value:
    return value


# The primitives that compare, and the relations of integers without a sign.
COMPARISONS = (
    {"equal": "eq", "not_equal": "ne"}
    | {"less": "lt", "less_equal": "le"}
    | {"greater": "gt", "greater_equal": "ge"}
)

# Every primitive of lamina.program.scalar except "cast". Emitters of comparisons get the dtype of
# the operands, all others the dtype of the result.
EMITTERS: Mapping[str, Emitter] = {
    "add": partial(_arithmetic, "add"),
    "subtract": partial(_arithmetic, "sub"),
    "multiply": partial(_arithmetic, "mul"),
    "multiply_add": partial(_instruction, "multiply_add"),
    "divide": partial(_arithmetic, "div"),
    "quotient": _quotient,
    "fmod": partial(_function, division.remainder),
    "power": _power,
    "atan2": partial(_function, circular.atan2),
    "maximum": partial(_extreme, "gt"),
    "minimum": partial(_extreme, "lt"),
    "negative": partial(_instruction, "negate"),
    "absolute": _absolute,
    "sign": _sign,
    "floor": _floor,
    "round": partial(_function, floats.round_half_even),
    "copysign": partial(_intrinsic, "copysign"),
    "square_root": partial(_intrinsic, "sqrt"),
    "reciprocal": _reciprocal,
    **{name: partial(_function, emit) for name, emit in functions.FUNCTIONS.items()},
    **{name: partial(_compare, relation) for name, relation in COMPARISONS.items()},
    "logical_and": partial(_bitwise, "and"),
    "logical_or": partial(_bitwise, "or"),
    "logical_not": _logical_not,
    "select": partial(_instruction, "select"),
    "random_bits": _random_bits,
    "bitwise_and": partial(_bitwise, "and"),
    "bitwise_or": partial(_bitwise, "or"),
    "bitwise_xor": partial(_bitwise, "xor"),
    "shift_left": partial(_shifted, "shl"),
    "shift_right": _shift_right,
    "round_to_tf32": _rounded_to_tf32,
    "as_tf32": _unchanged,
    "sort_key": _sort_key,
}
