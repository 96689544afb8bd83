"""Cases of loads, stores, addresses, atomic instructions and asynchronous copies."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from cuda_forms import SCRATCH, TABLE, Case, Modifiers, cases_of, full
from cuda_integer_cases import dtype_of, is_float

from cuda_machine.syntax import BITS

# Where a thread's memory of each space is.
_OWN = {"global": "mine", "shared": "s", "local": "own", "const": "table", "param": "block"}
_GENERIC = {
    "global": "cvta.global.u64 u, mine;",
    "shared": "cvt.u64.u32 u, s; cvta.shared.u64 u, u;",
    "local": "cvta.local.u64 u, own;",
}


@lru_cache
def _words() -> tuple[np.ndarray, ...]:
    """32 bytes for each thread."""
    generator = np.random.default_rng(0)
    return tuple(generator.integers(0, 2**64, 128, "u8", endpoint=False) for _ in range(4))


def _octets() -> np.ndarray:
    return np.stack(_words(), 1).view("u1")


def _filled(space: str) -> str:
    """Stores that fill the thread's memory with its words."""
    own = _OWN[space]
    stores = [f"st.{space}.b64 [{own}+{8 * n}], {name};" for n, name in enumerate("abce")]
    return " ".join(stores)


def _sum(count: int, kinds: str) -> str:
    """Sums up registers r0, r1, ... in d, each with another factor."""
    widened = f"cvt.u64.{kinds} v, r{{n}};" if kinds[1:] != "64" else "mov.b64 v, r{n};"
    return " ".join(
        ["mov.u64 d, 0;", *(f"{widened} mad.lo.u64 d, d, 31, v;".format(n=n) for n in range(count))]
    )


def _summed(elements: np.ndarray) -> np.ndarray:
    """The same sum of elements (thread, number), extended by their sign."""
    total = np.zeros(len(elements), "u8")
    wide_type = f"{elements.dtype.kind}8"
    for number in range(elements.shape[1]):
        element = elements[:, number].astype(wide_type).view("u8")
        total = total * np.uint64(31) + element
    return total


def _access(modifiers: Modifiers) -> tuple[str, int, str]:
    """The space, how many elements, and their type."""
    space, *vector, type = modifiers
    return space, int(vector[0][1:]) if vector else 1, type


def _elements(type: str, octets: np.ndarray, count: int) -> np.ndarray:
    kind = f"u{BITS[type] // 8}" if is_float(type) else dtype_of(type)
    return np.ascontiguousarray(octets).view(kind)[:, :count]


def _registers(type: str, count: int) -> tuple[str, str, str]:
    """Their declaration, the operand, and the type they are read as.

    PTX ISA, ld: registers of integers may be wider than the type; the value is extended.
    """
    bits_of = BITS[type] if is_float(type) else 64
    names = ", ".join(f"r{n}" for n in range(count))
    operand = f"{{{names}}}" if count > 1 else names
    return f".reg .b{bits_of} {names};", operand, f"u{bits_of}"


@cases_of("ld")
def _loads(name: str, modifiers: Modifiers) -> Iterator[Case]:
    space, count, type = _access(modifiers)
    declared, operand, kind = _registers(type, count)

    def code(before: str, address: str) -> str:
        load = f"{full(name, modifiers)} {operand}, [{address}];"
        return f"{declared} {before} {load} {_sum(count, kind)}"

    if space in ("const", "param"):
        octets = np.broadcast_to(np.frombuffer(TABLE, "u1"), (128, SCRATCH))
        yield Case(code("", _OWN[space]), _words(), _summed(_elements(type, octets, count)))
        return
    want = _summed(_elements(type, _octets(), count))
    yield Case(code(_filled(space), _OWN[space]), _words(), want)
    if modifiers == ("global", "u32"):
        for hint in ("ld.volatile.global.u32", "ld.global.nc.u32"):
            code = f"{_filled('global')} {hint} x, [mine]; cvt.u64.u32 d, x;"
            yield Case(code, _words(), _octets().view("u4")[:, 0].astype("u8"))


@cases_of("st")
def _stores(name: str, modifiers: Modifiers) -> Iterator[Case]:
    """The bytes that are stored, among others that are not."""
    space, count, type = _access(modifiers)
    size = BITS[type] // 8
    declared, operand, _ = _registers(type, count)
    # The elements are those of the words' bytes in the opposite order.
    first = "abce"[::-1]
    given = _octets().reshape(-1, 4, 8)[:, ::-1].reshape(128, -1)
    octets = _octets().copy()
    octets[:, : size * count] = given[:, : size * count]
    taken = [_element(first[n * size // 8], n * size % 8, type, n) for n in range(count)]
    loads = "ld.{0}.b64 v, [{1}+{2}]; mad.lo.u64 d, d, 31, v;"
    before = f"{_filled(space)} {declared} {' '.join(taken)}"
    after = " ".join(loads.format(space, _OWN[space], 8 * n) for n in range(4))
    code = f"{before} {full(name, modifiers)} [{_OWN[space]}], {operand}; mov.u64 d, 0; {after}"
    yield Case(code, _words(), _summed(octets.view("u8")))
    if modifiers == ("global", "u32"):
        code = "st.volatile.global.u32 [mine], x; ld.global.u32 y, [mine]; cvt.u64.u32 d, y;"
        low = _octets().view("u4")[:, 0].astype("u8")
        yield Case(f"cvt.u32.u64 x, a; {code}", _words(), low)
    if modifiers == ("global", "f32"):
        code = "st.global.f32 [mine], 0fC0490FDB; ld.global.u32 x, [mine]; cvt.u64.u32 d, x;"
        yield Case(code, _words(), np.full(128, 0xC0490FDB, "u8"))


def _element(word: str, position: int, type: str, number: int) -> str:
    """Takes bytes of a word into a register r0, r1, ..."""
    shifted = f"shr.u64 v, {word}, {8 * position};"
    if BITS[type] == 64 or not is_float(type):
        return f"{shifted} mov.b64 r{number}, v;"
    return f"{shifted} cvt.u32.u64 r{number}, v;"


@cases_of("cvta")
def _addresses(name: str, modifiers: Modifiers) -> Iterator[Case]:
    """There and back."""
    space = modifiers[-2]
    if space == "const":
        start = "mov.u64 v, table; cvta.const.u64 u, v;"
        want = np.full(128, int.from_bytes(TABLE[:8], "little"), "u8")
    else:
        start, want = f"{_filled(space)} {_GENERIC[space]}", _words()[0]
    narrow = "cvt.u32.u64 x, u; ld.shared.u64 d, [x];"
    load = narrow if space == "shared" else f"ld.{space}.u64 d, [u];"
    yield Case(f"{start} cvta.to.{space}.u64 u, u; {load}", _words(), want)


@cases_of("prefetch")
def _without_result(name: str, modifiers: Modifiers) -> Iterator[Case]:
    code = f"st.global.u64 [mine], a; {full(name, modifiers)} [mine]; ld.global.u64 d, [mine];"
    yield Case(code, _words(), _words()[0])


@cases_of("cp")
def _copies(name: str, modifiers: Modifiers) -> Iterator[Case]:
    """The copied bytes, with zeros after those that are read of the source."""
    octets, start = _octets(), _filled("global")
    if modifiers[1] == "cg":
        code = f"""{start} and.b32 x, lane, 7; shl.b32 x, x, 1;
            {full(name, modifiers)} [s], [mine], 16, x; cp.async.commit_group;
            cp.async.wait_group 0; ld.shared.v2.b64 {{u, v}}, [s]; mad.lo.u64 d, u, 31, v;"""
        read = np.arange(128) % 8 * 2
        kept = np.where(np.arange(16) < read[:, None], octets[:, :16], 0).astype("u1")
        yield Case(code, _words(), _summed(np.ascontiguousarray(kept).view("u8")))
        return
    # Two groups, of which the first one arrives.
    code = f"""{start} cp.async.cg.shared.global [s], [mine+16], 16, 16; cp.async.commit_group;
        cp.async.cg.shared.global [s+16], [mine], 16, 16; cp.async.commit_group;
        cp.async.wait_group 1; ld.shared.b64 d, [s]; cp.async.wait_group 0;"""
    yield Case(code, _words(), _words()[2])
