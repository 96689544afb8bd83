"""Cases of integer and bit instructions, in Python's integers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import product

import numpy as np
from cuda_forms import Case, Modifiers, cases_of, full

_SPECIAL = (0, 1, 2, 3, 7, -1, -2, -3, 100, -100, 12345)
Function = Callable[..., int]


def dtype_of(type: str) -> str:
    """The NumPy type of integers or bits."""
    return f"{'i' if type[0] == 's' else 'u'}{int(type[1:]) // 8}"


def values(dtype: str) -> list[int]:
    """Integers with the extremes of a type."""
    info = np.iinfo(dtype)
    chosen = [value for value in _SPECIAL if info.min <= value <= info.max]
    return [*chosen, info.min, info.min + 1, info.max, info.max - 1, info.max // 3,
            info.max // 2 + 1]  # fmt: skip


@lru_cache
def tuples(*dtypes: str, zeros: bool = True) -> tuple[np.ndarray, ...]:
    """All combinations of values, the same arrays each time; `zeros` are allowed at the end."""
    rows = [row for row in product(*map(values, dtypes)) if zeros or row[-1]]
    if len(rows) > 1000:
        # Triples: a share of them, with all pairs.
        rows = rows[:: 1 + len(rows) // 1000]
    return tuple(np.array([row[n] for row in rows], dtype) for n, dtype in enumerate(dtypes))


@lru_cache
def columns(dtypes: tuple[str, ...], *choices: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """All combinations of chosen integers, the same arrays each time."""
    rows = list(product(*choices))
    return tuple(np.array([row[n] for row in rows], dtype) for n, dtype in enumerate(dtypes))


def expected(function: Function, inputs: tuple[np.ndarray, ...], result: str) -> np.ndarray:
    """What a function makes of integers, as the low bits of a type."""
    bits = 8 * np.dtype(result).itemsize
    rows = zip(*(one.tolist() for one in inputs), strict=True)
    found = [function(*row) % (1 << bits) for row in rows]
    return np.array(found, f"u{bits // 8}").view(result)


def case(code: str, function: Function, inputs: tuple[np.ndarray, ...], result: str) -> Case:
    return Case(code, inputs, expected(function, inputs, result))


def is_float(type: str) -> bool:
    return "f" in type


def quotient(a: int, b: int) -> int:
    """Rounded toward zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_BINARY: dict[str, Function] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "min": min,
    "max": max,
    "div": quotient,
    "rem": lambda a, b: a - quotient(a, b) * b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}


@cases_of(*_BINARY)
def _binary(name: str, modifiers: Modifiers) -> Iterator[Case]:
    type = modifiers[-1]
    if is_float(type):
        return
    function = _BINARY[name]
    if type == "pred":
        code = f"""setp.ne.u32 p, a, 0; setp.ne.u32 q, b, 0; {name}.pred p, p, q;
            selp.u32 d, 1, 0, p;"""
        yield case(code, lambda a, b: function(a != 0, b != 0), tuples("u4", "u4"), "u4")
        return
    kind = dtype_of(type)
    inputs = tuples(kind, kind, zeros=name not in ("div", "rem"))
    yield case(f"{full(name, modifiers)} d, a, b;", function, inputs, kind)


@cases_of("not", "abs", "neg", "popc", "clz", "brev")
def _unary(name: str, modifiers: Modifiers) -> Iterator[Case]:
    type = modifiers[-1]
    if is_float(type):
        return
    if type == "pred":
        code = "setp.ne.u32 p, a, 0; not.pred p, p; selp.u32 d, 1, 0, p;"
        yield case(code, lambda a: a == 0, tuples("u4"), "u4")
        return
    kind = dtype_of(type)
    bits = int(type[1:])
    function: Function = {
        "not": lambda a: ~a,
        "abs": abs,
        "neg": lambda a: -a,
        "popc": int.bit_count,
        "clz": lambda a: bits - a.bit_length(),
        "brev": lambda a: int(f"{a:0{bits}b}"[::-1], 2),
    }[name]
    inputs = columns((kind,), (*values(kind), *_powers(kind)))
    result = "u4" if name in ("popc", "clz") else kind
    yield case(f"{full(name, modifiers)} d, a;", function, inputs, result)


def _powers(kind: str) -> tuple[int, ...]:
    info = np.iinfo(kind)
    return tuple(1 << n for n in range(info.bits) if 1 << n <= info.max)


def _product(half: str, bits: int, a: int, b: int) -> int:
    return a * b >> bits if half == "hi" else a * b


@cases_of("mul", "mad")
def _products(name: str, modifiers: Modifiers) -> Iterator[Case]:
    half, type = modifiers[0], modifiers[-1]
    if is_float(type):
        return
    kind, bits = dtype_of(type), int(type[1:])
    result = f"{kind[0]}{2 * int(kind[1])}" if half == "wide" else kind

    def exact(a: int, b: int, c: int = 0) -> int:
        return _product(half, bits, a, b) + c

    if name == "mul":
        inputs = tuples(kind, kind)
        yield case(f"{full(name, modifiers)} d, a, b;", exact, inputs, result)
    else:
        inputs = tuples(kind, kind, result)
        yield case(f"{full(name, modifiers)} d, a, b, c;", exact, inputs, result)


@cases_of("shl", "shr")
def _shifts(name: str, modifiers: Modifiers) -> Iterator[Case]:
    """PTX ISA, shl and shr: shift amounts greater than the register width are clamped to it."""
    (type,) = modifiers
    kind, bits = dtype_of(type), int(type[1:])
    amounts = (0, 1, 5, bits - 1, bits, bits + 1, 255, 256, 2**32 - 1)
    inputs = columns((kind, "u4"), tuple(values(kind)), amounts)
    left = name == "shl"

    def shifted(a: int, n: int) -> int:
        return a << min(n, bits) if left else a >> min(n, bits)

    yield case(f"{full(name, modifiers)} d, a, b;", shifted, inputs, kind)
    for amount in (3, bits, bits + 7):
        code = f"{full(name, modifiers)} d, a, {amount};"
        yield case(code, lambda a, _, amount=amount: shifted(a, amount), inputs, kind)


@cases_of("shf")
def _funnel_shifts(name: str, modifiers: Modifiers) -> Iterator[Case]:
    direction, mode, _ = modifiers
    some = tuple(values("u4"))
    inputs = columns(("u4",) * 3, some, some, (0, 1, 31, 32, 33, 64, 2**32 - 1))

    def shifted(a: int, b: int, c: int) -> int:
        count = min(c, 32) if mode == "clamp" else c & 31
        both = b << 32 | a
        return both << count >> 32 if direction == "l" else both >> count

    yield case(f"{full(name, modifiers)} d, a, b, c;", shifted, inputs, "u4")


@cases_of("bfe")
def _bit_fields(name: str, modifiers: Modifiers) -> Iterator[Case]:
    type = modifiers[-1]
    kind, bits = dtype_of(type), int(type[1:])

    def extracted(a: int, b: int, c: int) -> int:
        """The semantics of the PTX ISA, bfe, bit by bit."""
        a, position, length = a % (1 << bits), b & 255, c & 255
        sign = 0
        if type[0] == "s" and length:
            sign = a >> min(position + length - 1, bits - 1) & 1
        result = 0
        for i in range(bits):
            inside = i < length and position + i < bits
            result |= (a >> (position + i) & 1 if inside else sign) << i
        return result

    positions, lengths = (0, 1, 7, 31, 33, 64, 255, 257), (0, 1, 8, 32, 64, 255, 256)
    inputs = columns((kind, "u4", "u4"), tuple(values(kind)[::3]), positions, lengths)
    yield case(f"{full(name, modifiers)} d, a, b, c;", extracted, inputs, kind)


@cases_of("bfi")
def _inserted_bit_fields(name: str, modifiers: Modifiers) -> Iterator[Case]:
    kind = dtype_of(modifiers[0])
    bits = 8 * int(kind[1])
    some = tuple(values(kind))
    choices = (some[::4], some[::5], (0, 3, 31, 70, 258), (0, 1, 9, 32, 64, 257))
    inputs = columns((kind, kind, "u4", "u4"), *choices)

    def inserted(a: int, b: int, position: int, length: int) -> int:
        mask = ((1 << (length & 255)) - 1) << (position & 255) & ((1 << bits) - 1)
        return b & ~mask | a << (position & 255) & mask

    yield case(f"{full(name, modifiers)} d, a, b, c, e;", inserted, inputs, kind)


@cases_of("prmt")
def _permuted_bytes(name: str, modifiers: Modifiers) -> Iterator[Case]:
    selectors = (0x3210, 0x7654, 0x0123, 0xFEDC, 0x8C4B, 0x9A3C, 0x12340000)
    some = (*values("u4"), 0x80FF017F, 0x12F4A680)
    inputs = columns(("u4",) * 3, some, some, selectors)

    def permuted(x: int, y: int, s: int) -> int:
        octets = (y << 32 | x).to_bytes(8, "little")
        chosen = [(octets[s >> 4 * n & 7], s >> 4 * n & 8) for n in range(4)]
        return int.from_bytes([(255 * (o >> 7) if sign else o) for o, sign in chosen], "little")

    yield case(f"{full(name, modifiers)} d, a, b, c;", permuted, inputs, "u4")


@cases_of("lop3")
def _looked_up(name: str, modifiers: Modifiers) -> Iterator[Case]:
    inputs = columns(("u4",) * 3, *[(0, 2**32 - 1, 0x0F1E2D3C, 0xFF00AA55)] * 3)
    for table in (0, 1, 0x40, 0x96, 0xE8, 0xCA, 0xFE, 0xFF):

        def looked_up(x: int, y: int, z: int, table: int = table) -> int:
            bits = [(x >> n & 1) * 4 + (y >> n & 1) * 2 + (z >> n & 1) for n in range(32)]
            return sum((table >> bit & 1) << n for n, bit in enumerate(bits))

        yield case(f"{full(name, modifiers)} d, a, b, c, {table};", looked_up, inputs, "u4")


def _divided(value: int, count: int, type: str) -> list[int]:
    """The integers of so many bytes that a 32-bit one consists of, the low one first."""
    octets = (value % 2**32).to_bytes(4, "little")
    pieces = [octets[n : n + count] for n in range(0, 4, count)]
    return [int.from_bytes(one, "little", signed=type[0] == "s") for one in pieces]


@cases_of("dp4a", "dp2a")
def _products_of_bytes(name: str, modifiers: Modifiers) -> Iterator[Case]:
    """PTX ISA, dp2a: .lo and .hi choose two bytes of b; c is signed if a or b is."""
    *half, left, right = modifiers
    kind = "i4" if "s32" in (left, right) else "u4"
    count = 1 if name == "dp4a" else 2

    def dot(x: int, y: int, z: int) -> int:
        others = _divided(y, 1, right)[2 * (half == ["hi"]) :]
        pairs = zip(_divided(x, count, left), others, strict=False)
        return z + sum(p * q for p, q in pairs)

    some = (*values("u4"), 0x80FF017F, 0x7F80FE01)
    inputs = columns(("u4", "u4", kind), some, some, tuple(values(kind)[::4]))
    yield case(f"{full(name, modifiers)} d, a, b, c;", dot, inputs, kind)
