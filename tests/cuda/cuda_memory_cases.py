"""Cases of loads, stores, addresses, atomic instructions and asynchronous copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
from cuda_exact import as_bits, exactly, flushed
from cuda_float_cases import bits, wide
from cuda_forms import SCRATCH, TABLE, Case, Modifiers, cases_of, full
from cuda_integer_cases import columns, dtype_of, expected, is_float, tuples, values

from cuda_machine.syntax import BITS

# Where a thread's memory of each space is; "mixed" is global or shared memory, by the thread.
_OWN = {"global": "mine", "shared": "s", "local": "own", "const": "table", "param": "block"}
_GENERIC = {
    "global": "cvta.global.u64 u, mine;",
    "shared": "cvt.u64.u32 u, s; cvta.shared.u64 u, u;",
    "local": "cvta.local.u64 u, own;",
}
_MIXED = f"""{_GENERIC["shared"]} cvta.global.u64 v, mine; and.b32 x, i, 1; setp.eq.u32 p, x, 0;
    selp.b64 u, u, v, p;"""


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
    """The space ("" for generic addresses), how many elements, and their type."""
    *rest, type = modifiers
    count = next((int(one[1:]) for one in rest if one[0] == "v"), 1)
    space = next((one.partition("::")[0] for one in rest if one.partition("::")[0] in _OWN), "")
    return space, count, type


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
    if space:
        yield Case(code(_filled(space), _OWN[space]), _words(), want)
    else:
        for one, address in _GENERIC.items():
            yield Case(code(f"{_filled(one)} {address}", "u"), _words(), want)
        both = f"{_filled('global')} {_filled('shared')} {_MIXED}"
        yield Case(code(both, "u"), _words(), want)
    if modifiers == ("global", "u32"):
        for hinted, since in _HINTED_LOADS.items():
            hint = f"{_filled('global')} {hinted} x, [mine]; cvt.u64.u32 d, x;"
            yield Case(hint, _words(), _octets().view("u4")[:, 0].astype("u8"), since=since)


# Each ignored modifier, where PTX allows it, and the first architecture that has it.
_HINTED_LOADS = {
    "ld.weak.global.u32": 75,
    "ld.volatile.global.u32": 75,
    **{f"ld.relaxed.{scope}.global.u32": 75 for scope in ("cta", "gpu", "sys")},
    "ld.relaxed.cluster.global.u32": 90,
    "ld.acquire.gpu.global.u32": 75,
    **{f"ld.global.{cache}.u32": 75 for cache in ("ca", "cg", "cs", "lu", "cv", "nc")},
    **{f"ld.global.L1::evict_{how}.u32": 75 for how in ("normal", "unchanged", "first", "last")},
    "ld.global.L1::no_allocate.u32": 75,
    "ld.global.L2::64B.u32": 75,
    "ld.global.L2::128B.u32": 75,
    "ld.global.L2::256B.u32": 80,
}
_HINTED_STORES = {
    "st.weak.global.u32": 75,
    "st.volatile.global.u32": 75,
    **{f"st.relaxed.{scope}.global.u32": 75 for scope in ("cta", "gpu", "sys")},
    "st.relaxed.cluster.global.u32": 90,
    "st.release.gpu.global.u32": 75,
    **{f"st.global.{cache}.u32": 75 for cache in ("wb", "cg", "cs", "wt")},
    **{f"st.global.L1::evict_{how}.u32": 75 for how in ("normal", "unchanged", "first", "last")},
    "st.global.L1::no_allocate.u32": 75,
}


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
    want = _summed(octets.view("u8"))
    spaces = [space] if space else ["global", "shared", "local"]
    for one in spaces:
        address = _OWN[one] if space else "u"
        before = f"{_filled(one)} {'' if space else _GENERIC[one]} {declared} {' '.join(taken)}"
        after = " ".join(loads.format(one, _OWN[one], 8 * n) for n in range(4))
        code = f"{before} {full(name, modifiers)} [{address}], {operand}; mov.u64 d, 0; {after}"
        yield Case(code, _words(), want)
    if modifiers == ("global", "u32"):
        for hinted, since in _HINTED_STORES.items():
            code = (
                f"cvt.u32.u64 x, a; {hinted} [mine], x; ld.global.u32 y, [mine]; cvt.u64.u32 d, y;"
            )
            yield Case(code, _words(), _octets().view("u4")[:, 0].astype("u8"), since=since)
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
    """There and back, and by a generic access."""
    *to, space, _ = modifiers
    if space == "const":
        start = "mov.u64 v, table; cvta.const.u64 u, v;"
        want = np.full(128, int.from_bytes(TABLE[:8], "little"), "u8")
    else:
        start, want = f"{_filled(space)} {_GENERIC[space]}", _words()[0]
    if not to:
        yield Case(f"{start} ld.u64 d, [u];", _words(), want)
        return
    narrow = "cvt.u32.u64 x, u; ld.shared.u64 d, [x];"
    load = narrow if space == "shared" else f"ld.{space}.u64 d, [u];"
    yield Case(f"{start} {full(name, modifiers)} u, u; {load}", _words(), want)


@cases_of("isspacep")
def _spaces(name: str, modifiers: Modifiers) -> Iterator[Case]:
    for space, address in _GENERIC.items():
        code = f"{address} isspacep.{modifiers[0]} p, u; selp.u32 d, 1, 0, p;"
        yield Case(code, _words(), np.full(128, space == modifiers[0], "u4"))


@cases_of("membar", "fence", "prefetch", "nanosleep")
def _without_result(name: str, modifiers: Modifiers) -> Iterator[Case]:
    operand = {"prefetch": " [mine]", "nanosleep": " 20"}.get(name, "")
    if name == "prefetch" and modifiers[0] == "local":
        operand = " [own]"
    between = f"{full(name, modifiers)}{operand};"
    code = f"st.global.u64 [mine], a; {between} ld.global.u64 d, [mine];"
    yield Case(code, _words(), _words()[0])


# PTX ISA, atom, Semantics.
_UPDATES: dict[str, Callable[..., int]] = {
    "add": lambda old, b: old + b,
    "min": min,
    "max": max,
    "inc": lambda old, b: 0 if old >= b else old + 1,
    "dec": lambda old, b: b if old == 0 or old > b else old - 1,
    "and": lambda old, b: old & b,
    "or": lambda old, b: old | b,
    "xor": lambda old, b: old ^ b,
    "exch": lambda old, b: b,
    "cas": lambda old, b, c: c if old == b else old,
}
# What changes no result, with the first architecture that has it.
_HINTED_ATOMICS = {
    "relaxed": 75,
    "release": 75,
    "relaxed.cta": 75,
    "relaxed.gpu": 75,
    "relaxed.sys": 75,
    "relaxed.cluster": 90,
}


def _sums_of_floats(type: str, space: str) -> np.ndarray:
    """PTX ISA, atom: .add.f32 flushes subnormal inputs and results in global memory, not in shared
    memory; additions of other types keep them."""
    each = type.removesuffix("x2")
    inputs = wide(each, 2)
    flush = type == "f32" and space == "global"
    if flush:
        inputs = tuple(flushed(one, each) for one in inputs)
    rows = zip(*(one.tolist() for one in inputs), strict=True)
    want = np.array([exactly("add", each, "rn", *row) for row in rows])
    return as_bits(flushed(want, each) if flush else want, each)


@lru_cache
def _atomic(operation: str, type: str, space: str) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """The inputs of an atomic instruction, and what is in memory after it."""
    if is_float(type):
        paired = type.endswith("x2")
        want = _sums_of_floats(type, space)
        if paired:
            want = want[: len(want) // 2 * 2].view("u4")
        return bits(type.removesuffix("x2"), 2, paired), want
    kind = dtype_of(type)
    inputs = tuples(kind, kind)
    if operation == "cas":
        some = tuple(values(kind))
        inputs = columns((kind,) * 3, some[:6], some[:6], some[6:9])
    return inputs, expected(_UPDATES[operation], inputs, kind)


@cases_of("atom", "red")
def _atomics(name: str, modifiers: Modifiers) -> Iterator[Case]:
    type = modifiers[-1]
    space = next(
        (one.partition("::")[0] for one in modifiers if one.partition("::")[0] in _OWN), ""
    )
    operation = next(one for one in modifiers if one in _UPDATES)
    width = BITS[type]
    operands = "b, c" if operation == "cas" else "b"
    for own in [space] if space else ["global", "shared"]:
        inputs, after = _atomic(operation, type, own)
        where, address = ("", _OWN[own]) if space else (_GENERIC[own], "u")
        start = f".reg .b{width} z; st.{own}.b{width} [{_OWN[own]}], a; {where}"
        result = f"ld.{own}.b{width} d, [{_OWN[own]}];"
        kind = type if is_float(type) else ""
        if name == "red":
            yield Case(f"{start} {full(name, modifiers)} [{address}], {operands}; {result}",
                       inputs, after, kind)  # fmt: skip
            continue
        code = f"{start} {full(name, modifiers)} z, [{address}], {operands};"
        yield Case(f"{code} {result}", inputs, after, kind)
        yield Case(f"{code} mov.b{width} d, z;", inputs, inputs[0])
    if modifiers == ("global", "add", "u32"):
        hints = dict(_HINTED_ATOMICS)
        if name == "atom":
            hints |= {"acquire": 75, "acq_rel": 75}
        for hint, since in hints.items():
            inputs, after = _atomic("add", "u32", "global")
            result = "x, " if name == "atom" else ""
            code = f"st.global.u32 [mine], a; {name}.{hint}.global.add.u32 {result}[mine], b;"
            yield Case(f"{code} ld.global.u32 d, [mine];", inputs, after, since=since)


@cases_of("cp")
def _copies(name: str, modifiers: Modifiers) -> Iterator[Case]:
    """The copied bytes of each size, and zeros after the first bytes of the source."""
    octets = _octets()
    start, load = _filled("global"), "ld.shared.{0} {1}, [s];"
    if modifiers[1] in ("ca", "cg"):
        copy = full(name, modifiers)
        for size in (4, 8, 16) if modifiers[1] == "ca" else (16,):
            hints = ("", ".L2::64B", ".L2::128B", ".L2::256B") if size == 16 else ("",)
            for hint in hints:
                code = f"{start} st.shared.v2.b64 [s], {{c, e}}; {copy}{hint} [s], [mine], {size};"
                after = "ld.shared.v2.b64 {u, v}, [s]; mad.lo.u64 d, u, 31, v;"
                kept = octets[:, 16:].copy()
                kept[:, :size] = octets[:, :size]
                yield Case(f"{code} cp.async.wait_all; {after}", _words(), _summed(kept.view("u8")))
        code = f"""{start} and.b32 x, lane, 7; shl.b32 x, x, 1; {copy} [s], [mine], 16, x;
            cp.async.wait_all; ld.shared.v2.b64 {{u, v}}, [s]; mad.lo.u64 d, u, 31, v;"""
        read = np.arange(128) % 8 * 2
        kept = np.where(np.arange(16) < read[:, None], octets[:, :16], 0).astype("u1")
        yield Case(code, _words(), _summed(np.ascontiguousarray(kept).view("u8")))
        return
    # Two groups, of which the first one arrives, or both.
    last = {"wait_group": "wait_group 1", "commit_group": "wait_group 1"}
    code = f"""{start} cp.async.ca.shared.global [s], [mine+8], 8; cp.async.commit_group;
        cp.async.ca.shared.global [s+8], [mine], 8; cp.async.commit_group;
        cp.async.{last.get(modifiers[1], "wait_all")}; {load.format("b64", "d")}
        cp.async.wait_group 0;"""
    yield Case(code, _words(), _words()[1])
