"""Instructions on bfloat16 that a processor does not have, as functions by their definition.

So code for processors with AVX512-BF16 or AMX is tested on others. The package writes and assembles
it as for such a processor. Here the text that goes to LLVM gets functions in place of these
instructions, and LLVM makes code for the processor that is there: it splits vectors that are too
wide.

The definitions come from Intel's Software Developer's Manual, volume 2: operands and results
that are subnormal become zero, numbers are rounded to the nearest, to even if two are equally
near. One difference: a sum just below the smallest normal number, which rounding makes that number,
is kept. Tiles are memory: 64 bytes of configuration, then eight tiles of 16 rows of 64 bytes. All
tiles have rows of 64 bytes here; some have fewer than 16 rows.
"""

import re
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest

from lamina.codegen.builder import Builder, Module
from lamina.codegen.halves import bfloat16_bits
from lamina.codegen.llvm import _TILE_INSTRUCTIONS
from lamina.codegen.llvm import Module as LlvmModule
from lamina.codegen.values import I8, I32, I64, POINTER, Type, Value, constant
from lamina.engines.cpu import llvm, processor
from lamina.engines.cpu.llvm import Target
from lamina.engines.cpu.processor import _VECTORS

# At the end of a processor's name. Caches find the code of another version of this file no more.
_MARK = f"+emulated-{crc32(Path(__file__).read_bytes()):08x}"
_host_target, _assemble, _listing = llvm.host_target, llvm.assemble, llvm.listing


def can_emulate() -> bool:
    """Whether this processor has the instructions that the functions consist of."""
    _, flags, _ = _host_target()
    return bool(flags.get("avx2") and flags.get("fma"))


def emulate(monkeypatch: pytest.MonkeyPatch, vectors: str) -> None:
    """The cpu engine finds a processor with `"amx"`, or with `"avx512"` and AVX512-BF16."""
    if not can_emulate():
        pytest.skip("emulated instructions need AVX2")
    name, flags, triple = _host_target()
    has = dict.fromkeys([*_VECTORS[vectors][0], "avx512bf16"], True)
    monkeypatch.setenv("LAMINA_VECTORS", vectors)
    monkeypatch.setattr(llvm, "host_target", lambda: (name + _MARK, flags | has, triple))
    monkeypatch.setattr(processor, "tile_refusal", lambda: "")
    monkeypatch.setattr(llvm, "assemble", lambda *of: _assemble(*_emulated(*of)))
    monkeypatch.setattr(llvm, "listing", lambda *of: _listing(*_emulated(*of)))


def _emulated(text: str, target: Target) -> tuple[str, Target]:
    """The text with functions in place of instructions, and the processor that is there."""
    if not target.name.endswith(_MARK):
        return text, target
    name, flags, triple = _host_target()
    there = {flag for flag, value in flags.items() if value and not flag.startswith(_BEYOND)}
    features = ",".join(f"{'+' if flag in there else '-'}{flag}" for flag in flags)
    return with_functions(text), Target(name, triple, features)


# The first letters of the features that are emulated.
_BEYOND = ("avx512", "avx10", "evex", "amx")


def with_functions(text: str) -> str:
    """A module's text with functions in place of the instructions on bfloat16 and on tiles."""
    module = LlvmModule(fused=True)
    wrappers: list[str] = []
    for name in sorted(set(re.findall(r"^declare .*@llvm\.x86\.([\w.]+)", text, re.MULTILINE))):
        wrapper = _wrapper(module, name)
        if wrapper:
            wrappers.append(wrapper)
            text = re.sub(rf"^declare .*@llvm\.x86\.{re.escape(name)}\(.*\n", "", text, flags=re.M)
            text = text.replace(f"@llvm.x86.{name}(", f"@emulated.{name}(")
    if any("@emulated_tile_" in wrapper for wrapper in wrappers):
        wrappers.append(_MEMORY)
    declared = {line for line in text.splitlines() if line.startswith("declare")}
    functions = [line for line in module.text().splitlines() if line not in declared]
    return "\n".join([text, *functions, *wrappers]) + "\n"


def _wrapper(module: LlvmModule, name: str) -> str:
    """A function with the operands of an instruction of LLVM; "" for other instructions."""
    operation = {name: operation for operation, (name, _) in _TILE_INSTRUCTIONS.items()}.get(name)
    if operation is not None:
        function = emulated_tile_instruction(module, operation)
        types = [type.element for type in _OPERATIONS[operation][0]]
        operands = [f"{type} %x{number}" for number, type in enumerate(types)]
        return (
            f"define internal void @emulated.{name}({', '.join(operands)}) nounwind {{\n"
            "  %memory = call ptr @emulated_memory()\n"
            f"  call void @{function}({', '.join(['ptr %memory', *operands])})\n"
            "  ret void\n}"
        )
    instruction, _, bits = name.rpartition(".")
    if instruction not in ("avx512bf16.dpbf16ps", "avx512bf16.cvtne2ps2bf16"):
        return ""
    lanes = int(bits) // 32
    sums, pairs, halves = f"<{lanes} x float>", f"<{lanes} x i32>", f"<{2 * lanes} x bfloat>"
    if instruction == "avx512bf16.dpbf16ps":
        function = emulated_products(module, lanes)
        return (
            f"define internal {sums} @emulated.{name}({sums} %sum, {halves} %right, {halves} %left)"
            " nounwind {\n"
            f"  %r = bitcast {halves} %right to {pairs}\n"
            f"  %l = bitcast {halves} %left to {pairs}\n"
            f"  %v = call {sums} @{function}({sums} %sum, {pairs} %r, {pairs} %l)\n"
            f"  ret {sums} %v\n}}"
        )
    function, rounded = emulated_rounding(module, lanes), f"<{2 * lanes} x i16>"
    return (
        f"define internal {halves} @emulated.{name}({sums} %second, {sums} %first) nounwind {{\n"
        f"  %v = call {rounded} @{function}({sums} %second, {sums} %first)\n"
        f"  %h = bitcast {rounded} %v to {halves}\n"
        f"  ret {halves} %h\n}}"
    )


# The tiles of a thread: the first ones that belong to it, or to no thread yet. The thread is known
# by the address of its own data.
_MEMORY = """
@emulated_owners = internal global [64 x i64] zeroinitializer
@emulated_tiles = internal global [64 x [8256 x i8]] zeroinitializer, align 64
declare ptr @llvm.thread.pointer.p0()
define internal ptr @emulated_memory() nounwind {
entry:
  %thread = call ptr @llvm.thread.pointer.p0()
  %own = ptrtoint ptr %thread to i64
  br label %try
try:
  %n = phi i64 [ 0, %entry ], [ %next, %taken ]
  %owner = getelementptr [64 x i64], ptr @emulated_owners, i64 0, i64 %n
  %result = cmpxchg ptr %owner, i64 0, i64 %own seq_cst seq_cst
  %before = extractvalue { i64, i1 } %result, 0
  %free = extractvalue { i64, i1 } %result, 1
  %mine = icmp eq i64 %before, %own
  %found = or i1 %free, %mine
  br i1 %found, label %done, label %taken
taken:
  %following = add i64 %n, 1
  %next = and i64 %following, 63
  br label %try
done:
  %tiles = getelementptr [64 x [8256 x i8]], ptr @emulated_tiles, i64 0, i64 %n
  ret ptr %tiles
}
"""

# Instructions on pairs ----------------------------------------------------------------------------

# Bits of float32.
_SIGN, _EXPONENT, _UPPER_HALF = 0x80000000, 0x7F800000, 0xFFFF0000


def emulated_products(module: Module, lanes: int) -> str:
    """VDPBF16PS as a function `(added, right, left)`, whose pairs are i32; gives its name.

    The second numbers of the pairs are multiplied and added first.
    """
    name = f"emulated_dpbf16ps_{lanes}"
    if module.has(name):
        return name
    sums, pairs = Type("float", lanes), Type("i32", lanes)
    parameters = (("added", sums), ("right", pairs), ("left", pairs))
    code = module.function(name, parameters, result=sums)
    added, right, left = code.parameters
    for number in (1, 0):
        wide_left, wide_right = (bfloat16_of_pairs(code, pair, number) for pair in (left, right))
        added = code.multiply_add(wide_left, wide_right, without_subnormals(code, added))
        added = without_subnormals(code, added)
    code.finish(added)
    return name


def emulated_rounding(module: Module, lanes: int) -> str:
    """VCVTNE2PS2BF16 as a function `(second, first)` to vectors of i16; gives its name."""
    name = f"emulated_cvtne2ps2bf16_{lanes}"
    if module.has(name):
        return name
    floats = Type("float", lanes)
    parameters = (("second", floats), ("first", floats))
    code = module.function(name, parameters, result=Type("i16", 2 * lanes))
    second, first = (without_subnormals(code, value) for value in code.parameters)
    halves = [
        code.convert("trunc", code.binary("lshr", bits, 16), "i16")
        for bits in (bfloat16_bits(code, first), bfloat16_bits(code, second))
    ]
    code.finish(code.shuffle(halves[0], halves[1], range(2 * lanes)))
    return name


def bfloat16_of_pairs(code: Builder, pairs: Value, number: int) -> Value:
    """The first (0) or second (1) numbers of pairs as floats, without subnormal ones."""
    bits = pairs & _UPPER_HALF if number == 1 else pairs << 16
    return without_subnormals(code, code.convert("bitcast", bits, "float"))


def without_subnormals(code: Builder, value: Value) -> Value:
    """Floats, with zero of the same sign for subnormal ones."""
    bits = code.convert("bitcast", value, "i32")
    is_small = (bits & _EXPONENT).equals(0)
    return code.convert("bitcast", code.select(is_small, bits & _SIGN, bits), "float")


# Instructions on tiles ----------------------------------------------------------------------------

# Of a tile register.
ROWS, ROW_BYTES, TILES = 16, 64, 8
_TILE_BYTES = ROWS * ROW_BYTES
# The offset of the tiles' rows in the configuration.
_ROWS_OFFSET = 48
_ROW = Type("i32", ROWS)
_SUMS = Type("float", ROWS)


def emulated_tile_instruction(module: Module, operation: str) -> str:
    """An instruction as a function `(memory, operands...)`; gives its name.

    Tiles are given by their numbers. The operations are named as in `Builder.tile_instruction`.
    """
    name = f"emulated_tile_{operation}"
    if module.has(name):
        return name
    types, write = _OPERATIONS[operation]
    parameters = [("memory", POINTER), *((f"x{n}", type) for n, type in enumerate(types))]
    code = module.function(name, parameters)
    write(code, *code.parameters)
    return name


def _configure(code: Builder, memory: Value, configuration: Value) -> None:
    code.store(code.load(configuration, _ROW), memory)
    tiles = code.offset(memory, ROW_BYTES, "i8")
    with code.loop(0, TILES * ROWS) as loop:
        code.store(constant(0, _ROW), _row(code, tiles, loop.index))


def _release(code: Builder, memory: Value) -> None:
    code.store(constant(0, _ROW), memory)


def _zero(code: Builder, memory: Value, tile: Value) -> None:
    target = _address(code, memory, tile)
    with code.loop(0, ROWS) as loop:
        code.store(constant(0, _ROW), _row(code, target, loop.index))


def _load(code: Builder, memory: Value, tile: Value, source: Value, stride: Value) -> None:
    _zero(code, memory, tile)
    target = _address(code, memory, tile)
    with code.loop(0, _rows(code, memory, tile)) as loop:
        row = code.load(code.offset(source, loop.index * stride, "i8"), _ROW, 1)
        code.store(row, _row(code, target, loop.index))


def _store(code: Builder, memory: Value, tile: Value, target: Value, stride: Value) -> None:
    source = _address(code, memory, tile)
    with code.loop(0, _rows(code, memory, tile)) as loop:
        row = code.load(_row(code, source, loop.index), _ROW)
        code.store(row, code.offset(target, loop.index * stride, "i8"), 1)


def _multiply(code: Builder, memory: Value, sums: Value, left: Value, right: Value) -> None:
    """TDPBF16PS: first and second numbers of pairs are summed separately, then both are added."""
    of_sums, of_left, of_right = (_address(code, memory, tile) for tile in (sums, left, right))
    pairs = _rows(code, memory, right)
    with code.loop(0, _rows(code, memory, sums)) as rows:
        row = _row(code, of_left, rows.index)
        zero = constant(0, _SUMS)
        loop = code.begin_loop(0, pairs, 1, [zero, zero])
        broadcast = code.splat(code.load(code.offset(row, loop.index, "i32"), I32), ROWS)
        others = code.load(_row(code, of_right, loop.index), _ROW)
        totals = list[Value]()
        for number, total in enumerate(loop.carried):
            left, right = (bfloat16_of_pairs(code, pair, number) for pair in (broadcast, others))
            totals.append(without_subnormals(code, code.multiply_add(left, right, total)))
        first, second = code.end_loop(loop, totals)
        target = _row(code, of_sums, rows.index)
        total = without_subnormals(code, code.load(target, _SUMS))
        added = code.add(total, without_subnormals(code, code.add(first, second)))
        code.store(without_subnormals(code, added), target)


def _address(code: Builder, memory: Value, tile: Value) -> Value:
    """Of a tile, in the memory of emulated tiles."""
    skipped = code.convert("zext", tile, "i64") * _TILE_BYTES
    return code.offset(code.offset(memory, ROW_BYTES, "i8"), skipped, "i8")


def _row(code: Builder, tile: Value, number: Value) -> Value:
    return code.offset(tile, number * ROW_BYTES, "i8")


def _rows(code: Builder, memory: Value, tile: Value) -> Value:
    """The configured number of rows of a tile."""
    all_rows = code.offset(memory, _ROWS_OFFSET, "i8")
    rows = code.load(code.offset(all_rows, code.convert("zext", tile, "i64"), "i8"), I8)
    return code.convert("zext", rows, "i64")


_OPERATIONS: dict[str, tuple[tuple[Type, ...], Callable[..., None]]] = {
    "configure": ((POINTER,), _configure),
    "release": ((), _release),
    "zero": ((I8,), _zero),
    "load": ((I8, POINTER, I64), _load),
    "store": ((I8, POINTER, I64), _store),
    "multiply": ((I8, I8, I8), _multiply),
}
