"""The scalar primitives of `lamina.program.scalar` as vector instructions.

Values of a dtype have the LLVM type of the same width; bools have one bit, and are stored as
bytes. Floats of 16 bits are integers of 16 bits, which are only moved and converted. Signed and
unsigned integers share a type, so the dtype is passed to every emitter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from lamina.base.shapes import DType, converted, float32
from lamina.codegen import circular, division, floats, functions, halves, powers, tf32
from lamina.codegen.builder import Builder
from lamina.codegen.values import Type, Value, constant, constants
from lamina.program.philox import KEY_INCREMENTS, MULTIPLIERS, ROUNDS
from lamina.program.scalar import Apply, Literal

# The element in registers, and in memory where that differs.
_ELEMENTS = {
    "bool": "i1",
    "int8": "i8",
    "uint8": "i8",
    "int16": "i16",
    "uint16": "i16",
    "bfloat16": "i16",
    "float16": "i16",
    "int32": "i32",
    "uint32": "i32",
    "int64": "i64",
    "float32": "float",
    "float64": "double",
}
_BOOL_IN_MEMORY = "i8"

Emitter = Callable[[Builder, DType, tuple[Value, ...]], Value]


def element(dtype: DType) -> str:
    """The LLVM element that holds a value of the dtype."""
    return _ELEMENTS[dtype.name]


def memory_element(dtype: DType) -> str:
    """The LLVM element that holds a value of the dtype in memory."""
    return _BOOL_IN_MEMORY if dtype.kind == "bool" else element(dtype)


def literal(scalar: Literal) -> Value:
    """The constant of a literal."""
    type = Type(element(scalar.dtype))
    if not scalar.dtype.is_half:
        return constant(scalar.value, type)
    with np.errstate(over="ignore"):
        number = converted(np.asarray(scalar.value, np.float64), scalar.dtype.numpy)
    return constant(int(number.view(np.uint16)), type)


def is_unsigned(dtype: DType) -> bool:
    """Whether integers of the dtype have no sign; true for bools."""
    return dtype.limits[0] == 0


def from_memory(code: Builder, value: Value, dtype: DType) -> Value:
    """A loaded value, converted to its element in registers."""
    if dtype.kind != "bool":
        return value
    return code.compare("ne", value, constant(0, value.type))


def to_memory(code: Builder, value: Value, dtype: DType) -> Value:
    """A value, converted to its element in memory."""
    return code.convert("zext", value, _BOOL_IN_MEMORY) if dtype.kind == "bool" else value


def cast(code: Builder, value: Value, source: DType, target: DType) -> Value:
    """A conversion between any two dtypes; floats to integers saturate."""
    wanted = element(target)
    if source == target:
        return value
    if source.is_half:
        if target.kind == "bool":
            return halves.is_not_zero(code, value)
        return cast(code, halves.to_float(code, value, source), float32, target)
    if target.is_half:
        return halves.rounded(code, value, source, target)
    if target.kind == "bool":
        return code.compare("une" if source.is_float else "ne", value, constant(0, value.type))
    if source.is_float and target.is_float:
        return code.convert("fpext" if target.itemsize > 4 else "fptrunc", value, wanted)
    if source.is_float:
        return code.convert("fptoui.sat" if is_unsigned(target) else "fptosi.sat", value, wanted)
    if target.is_float:
        return code.convert("uitofp" if is_unsigned(source) else "sitofp", value, wanted)
    wider = target.itemsize - (source.itemsize if source.kind != "bool" else 0)
    if wider == 0:
        return value
    operation = "trunc" if wider < 0 else "zext" if is_unsigned(source) else "sext"
    return code.convert(operation, value, wanted)


def conversion(code: Builder, scalar: Apply, value: Value) -> Value:
    """A primitive of `lamina.program.scalar.CONVERSIONS`, applied to the value of its operand."""
    if scalar.primitive == "cast":
        return cast(code, value, scalar.operands[0].dtype, scalar.dtype)
    return EMITTERS[scalar.primitive](code, scalar.dtype, (value,))


def _arithmetic(operation: str) -> Emitter:
    def emit(code: Builder, dtype: DType, operands: tuple[Value, ...]) -> Value:
        return code.binary(f"f{operation}" if dtype.is_float else operation, *operands)

    return emit


def _function(emit: Callable[[Builder, Value], Value]) -> Emitter:
    return lambda code, dtype, operands: emit(code, operands[0])


def _extreme(relation: str) -> Emitter:
    def emit(code: Builder, dtype: DType, operands: tuple[Value, ...]) -> Value:
        left, right = operands
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

    return emit


def _compare(ordered: str) -> Emitter:
    """A comparison; the dtype is that of the operands."""

    def emit(code: Builder, dtype: DType, operands: tuple[Value, ...]) -> Value:
        if dtype.is_float:
            relation = "une" if ordered == "ne" else f"o{ordered}"
        elif ordered in ("eq", "ne"):
            relation = ordered
        else:
            relation = ("u" if is_unsigned(dtype) else "s") + ordered
        return code.compare(relation, *operands)

    return emit


def _absolute(code: Builder, dtype: DType, operands: tuple[Value, ...]) -> Value:
    (value,) = operands
    if dtype.is_float:
        return code.intrinsic("fabs", value)
    if is_unsigned(dtype):
        return value
    below = code.compare("slt", value, constant(0, value.type))
    return code.select(below, code.negate(value), value)


def _sign(code: Builder, dtype: DType, operands: tuple[Value, ...]) -> Value:
    (value,) = operands
    zero, one = constant(0, value.type), constant(1, value.type)
    if not dtype.is_float and is_unsigned(dtype):
        return code.select(code.compare("ne", value, zero), one, zero)
    above, below = ("ogt", "olt") if dtype.is_float else ("sgt", "slt")
    middle = zero
    if dtype.is_float:
        middle = code.select(code.compare("uno", value, value), value, zero)
    negative = code.select(code.compare(below, value, zero), constant(-1, value.type), middle)
    return code.select(code.compare(above, value, zero), one, negative)


def _floor(code: Builder, dtype: DType, operands: tuple[Value, ...]) -> Value:
    (value,) = operands
    return floats.floor(code, value) if dtype.is_float else value


def _power(code: Builder, dtype: DType, operands: tuple[Value, ...]) -> Value:
    if dtype.is_float:
        return powers.power(code, *operands)
    return powers.integer_power(code, *operands, signed=not is_unsigned(dtype))


def _quotient(code: Builder, dtype: DType, operands: tuple[Value, ...]) -> Value:
    return division.quotient(code, *operands, signed=not is_unsigned(dtype))


def _pair(emit: Callable[[Builder, Value, Value], Value]) -> Emitter:
    return lambda code, dtype, operands: emit(code, *operands)


def _bitwise(operation: str) -> Emitter:
    return lambda code, dtype, operands: code.binary(operation, *operands)


def _logical_not(code: Builder, dtype: DType, operands: tuple[Value, ...]) -> Value:
    (value,) = operands
    return code.binary("xor", value, constant(1, value.type))


def _shift_right(code: Builder, dtype: DType, operands: tuple[Value, ...]) -> Value:
    if is_unsigned(dtype):
        return _shifted(code, "lshr", *operands)
    value, count = operands
    most = constant(value.type.bits - 1, value.type)
    count = code.select(code.compare("ult", count, most), count, most)
    return code.binary("ashr", value, count)


def _shifted(code: Builder, operation: str, value: Value, count: Value) -> Value:
    """The shifted value; 0 if the count is negative, or not below the number of bits."""
    type = value.type
    if isinstance(count.number, int) and 0 <= count.number < type.bits:
        return code.binary(operation, value, count)
    # The instruction is undefined for other counts.
    inside = code.compare("ult", count, constant(type.bits, type))
    low = code.binary("and", count, constant(type.bits - 1, type))
    return code.select(inside, code.binary(operation, value, low), constant(0, type))


def _sort_key(code: Builder, dtype: DType, operands: tuple[Value, ...]) -> Value:
    """The key of `lamina.program.sort_keys`."""
    (value,) = operands
    bits = code.convert("bitcast", value, element(dtype))
    sign = code.binary("ashr", bits, constant(bits.type.bits - 1, bits.type))
    inverted = code.binary("lshr", sign, constant(1, bits.type))
    ordered = code.binary("xor", bits, inverted)
    is_zero = code.compare("oeq", value, constant(0, value.type))
    ordered = code.select(is_zero, constant(0, bits.type), ordered)
    largest = constant((1 << (bits.type.bits - 1)) - 1, bits.type)
    return code.select(code.compare("uno", value, value), largest, ordered)


def _random_bits(code: Builder, dtype: DType, operands: tuple[Value, ...]) -> Value:
    """Philox 4x32-10 as in `lamina.program.philox`: one word of one block in each lane."""
    seed, step, position, stream = operands
    wide = position.type
    block = code.binary("lshr", position, constant(2, wide))
    words = _philox(code, block, seed, step, stream)
    word = code.binary("and", position, constant(3, wide))
    result = words[0]
    for number in (1, 2, 3):
        chosen = code.compare("eq", word, constant(number, wide))
        result = code.select(chosen, words[number], result)
    return code.convert("trunc", result, "i32")


def random_words(
    code: Builder, start: Value, lanes: int, seed: Value, step: Value, stream: Value
) -> Value:
    """Random bits at consecutive positions from a multiple of four on: all words of each block."""
    blocks = -(-lanes // 4)
    # A power of two, because halves are joined by shuffles.
    width = 1 << (blocks - 1).bit_length() if blocks > 1 else 2
    first = code.binary("lshr", start, constant(2, start.type))
    block = code.add(code.splat(first, width), constants(range(width), "i64"))
    spread = [code.splat(value, width) for value in (seed, step, stream)]
    words = [code.convert("trunc", word, "i32") for word in _philox(code, block, *spread)]
    pairs = [code.shuffle(words[number], words[number + 1], range(2 * width)) for number in (0, 2)]
    picks = [lane % 4 * width + lane // 4 for lane in range(lanes)]
    return code.shuffle(pairs[0], pairs[1], picks)


def _philox(code: Builder, block: Value, seed: Value, step: Value, stream: Value) -> list[Value]:
    """The four words of each block, in the low halves of integers of 64 bits."""
    wide = block.type
    low = constant(0xFFFFFFFF, wide)
    shift = constant(32, wide)

    def low_word(value: Value) -> Value:
        return code.binary("and", value, low)

    def high_word(value: Value) -> Value:
        return code.binary("lshr", value, shift)

    counter = [low_word(block), low_word(step), high_word(step), low_word(stream)]
    keys = [low_word(seed), high_word(seed)]
    for number in range(ROUNDS):
        if number:
            keys = [
                low_word(code.add(key, constant(increment, wide)))
                for key, increment in zip(keys, KEY_INCREMENTS, strict=True)
            ]
        left = code.multiply(counter[0], constant(MULTIPLIERS[0], wide))
        right = code.multiply(counter[2], constant(MULTIPLIERS[1], wide))
        counter = [
            code.binary("xor", code.binary("xor", high_word(right), counter[1]), keys[0]),
            low_word(right),
            code.binary("xor", code.binary("xor", high_word(left), counter[3]), keys[1]),
            low_word(left),
        ]
    return counter


# Every primitive of lamina.program.scalar except "cast". Emitters of comparisons get the dtype of
# the operands, all others the dtype of the result.
EMITTERS: Mapping[str, Emitter] = {
    "add": _arithmetic("add"),
    "subtract": _arithmetic("sub"),
    "multiply": _arithmetic("mul"),
    "multiply_add": lambda code, dtype, operands: code.multiply_add(*operands),
    "divide": _arithmetic("div"),
    "quotient": _quotient,
    "fmod": _pair(division.remainder),
    "power": _power,
    "atan2": _pair(circular.atan2),
    "maximum": _extreme("gt"),
    "minimum": _extreme("lt"),
    "negative": lambda code, dtype, operands: code.negate(*operands),
    "absolute": _absolute,
    "sign": _sign,
    "floor": _floor,
    "round": _function(floats.round_half_even),
    "copysign": lambda code, dtype, operands: code.intrinsic("copysign", *operands),
    "square_root": lambda code, dtype, operands: code.intrinsic("sqrt", *operands),
    "reciprocal": _function(lambda code, x: code.divide(constant(1, x.type), x)),
    **{name: _function(emit) for name, emit in functions.FUNCTIONS.items()},
    "equal": _compare("eq"),
    "not_equal": _compare("ne"),
    "less": _compare("lt"),
    "less_equal": _compare("le"),
    "greater": _compare("gt"),
    "greater_equal": _compare("ge"),
    "logical_and": _bitwise("and"),
    "logical_or": _bitwise("or"),
    "logical_not": _logical_not,
    "select": lambda code, dtype, operands: code.select(*operands),
    "random_bits": _random_bits,
    "bitwise_and": _bitwise("and"),
    "bitwise_or": _bitwise("or"),
    "bitwise_xor": _bitwise("xor"),
    "shift_left": lambda code, dtype, operands: _shifted(code, "shl", *operands),
    "shift_right": _shift_right,
    "round_to_tf32": _function(tf32.rounded),
    "sort_key": _sort_key,
}
COMPARISONS = frozenset(("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"))
