"""Cases of instructions of warps and blocks: shuffles, votes, reductions, barriers, matrices."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from cuda_forms import SCRATCH, Case, Modifiers, cases_of, full
from cuda_integer_cases import dtype_of

_COUNT = 384
_LANES = np.arange(_COUNT) % 32
_BITS = np.uint32(1) << np.arange(32, dtype="u4")


@lru_cache
def _shuffled() -> tuple[np.ndarray, ...]:
    """Values, lanes or offsets, and segments with clamps, all random."""
    generator = np.random.default_rng(0)
    a, b, c = (generator.integers(0, most, _COUNT).astype("u4") for most in (2**32, 64, 2**13))
    return a, b, c


@cases_of("shfl")
def _shuffles(name: str, modifiers: Modifiers) -> Iterator[Case]:
    """The semantics of the PTX ISA, shfl.sync, for each lane."""
    a, b, c = _shuffled()
    found, inside = np.zeros(_COUNT, "u4"), np.zeros(_COUNT, bool)
    for thread in range(_COUNT):
        lane, step = thread % 32, int(b[thread]) & 31
        clamp, segment = int(c[thread]) & 31, int(c[thread]) >> 8 & 31
        most = (lane & segment) | (clamp & ~segment)
        j = {
            "up": lane - step,
            "down": lane + step,
            "bfly": lane ^ step,
            "idx": (lane & segment) | (step & ~segment),
        }[modifiers[1]]
        inside[thread] = j >= most if modifiers[1] == "up" else j <= most
        found[thread] = a[thread - lane + (j if inside[thread] else lane)]
    code = f"{full(name, modifiers)} {{}}, a, b, c, 0xffffffff;"
    yield Case(code.format("d"), _shuffled(), found)
    yield Case(code.format("d|p"), _shuffled(), found)
    yield Case(f"{code.format('x|p')} selp.u32 d, 1, 0, p;", _shuffled(), inside.astype("u4"))


@lru_cache
def _masked(kind: str) -> tuple[np.ndarray, ...]:
    """A few values, and masks: the lanes of some warps are in two groups."""
    generator = np.random.default_rng(1)
    few = generator.integers(np.iinfo(kind).min, np.iinfo(kind).max, 5, kind)
    values = generator.choice(few, _COUNT)
    # Warps in which all lanes, or all of a group, have the same value.
    values[32:96] = few[0]
    warps = generator.integers(1, 2**32 - 1, _COUNT // 32, "u4")
    warps[::3] = 2**32 - 1
    own = warps.repeat(32)
    mask = np.where(own & _BITS[_LANES], own, ~own)
    values[96:128] = np.where(mask[96:128] == own[96:128], few[0], values[96:128])
    return values, mask.astype("u4")


def _groups(values: np.ndarray, mask: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Each thread, and the values of the lanes that its mask names."""
    for thread in range(_COUNT):
        named = (mask[thread] & _BITS) != 0
        yield thread, values[thread // 32 * 32 :][:32][named]


def _bits(chosen: np.ndarray) -> int:
    return int(_BITS[chosen].sum())


@cases_of("vote")
def _votes(name: str, modifiers: Modifiers) -> Iterator[Case]:
    values, mask = inputs = _masked("u4")
    true = values == values[40]
    found = np.zeros(_COUNT, "u4")
    for thread, group in _groups(true, mask):
        named = (mask[thread] & _BITS) != 0
        found[thread] = {
            "all": group.all(),
            "any": group.any(),
            "uni": len(set(group.tolist())) == 1,
            "ballot": _bits(named & true[thread // 32 * 32 :][:32]),
        }[modifiers[1]]
    code = f"setp.eq.u32 q, a, {values[40]}; {full(name, modifiers)} {{}}, q, b;"
    if modifiers[1] == "ballot":
        yield Case(code.format("d"), inputs, found)
    else:
        yield Case(f"{code.format('p')} selp.u32 d, 1, 0, p;", inputs, found)
    opposite = f"setp.ne.u32 q, a, {values[40]}; {full(name, modifiers)} {{}}, !q, b;"
    if modifiers[1] == "ballot":
        yield Case(opposite.format("d"), inputs, found)
    else:
        yield Case(f"{opposite.format('p')} selp.u32 d, 1, 0, p;", inputs, found)


@cases_of("match")
def _matches(name: str, modifiers: Modifiers) -> Iterator[Case]:
    """PTX ISA, match.sync: the mask of equal lanes; .all gives 0 unless all lanes are equal."""
    values, mask = inputs = _masked(dtype_of(modifiers[-1]))
    found, same = np.zeros(_COUNT, "u4"), np.zeros(_COUNT, "u4")
    for thread, group in _groups(values, mask):
        named = (mask[thread] & _BITS) != 0
        equal = values[thread // 32 * 32 :][:32] == values[thread]
        same[thread] = (group == values[thread]).all()
        found[thread] = _bits(named & equal)
    if modifiers[0] == "all":
        found = np.where(same == 1, found, np.uint32(0))
        code = f"{full(name, modifiers)} x|p, a, b; selp.u32 d, 1, 0, p;"
        yield Case(code, inputs, same)
    yield Case(f"{full(name, modifiers)} d, a, b;", inputs, found)


@cases_of("redux")
def _reductions(name: str, modifiers: Modifiers) -> Iterator[Case]:
    kind = dtype_of(modifiers[-1])
    values, mask = inputs = _masked(kind)
    function = {
        "add": np.add,
        "min": np.minimum,
        "max": np.maximum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
    }[modifiers[1]]
    found = np.array([function.reduce(group, dtype=kind) for _, group in _groups(values, mask)])
    yield Case(f"{full(name, modifiers)} d, a, b;", inputs, found.astype(kind))


@cases_of("bar", "barrier")
def _barriers(name: str, modifiers: Modifiers) -> Iterator[Case]:
    """Values of other threads are read after the barrier, or predicates are combined."""
    values, _ = inputs = _masked("u4")
    blocks = values.reshape(-1, 128)
    if modifiers[0] == "red":
        true = values == values[40]
        few = np.where(np.arange(_COUNT) < 128, True, true)
        found = {
            "popc": few.reshape(blocks.shape).sum(1),
            "and": few.reshape(blocks.shape).all(1),
            "or": few.reshape(blocks.shape).any(1),
        }[modifiers[1]].repeat(128)
        start = f"""setp.eq.u32 q, a, {values[40]}; setp.lt.u32 p, i, 128; or.pred q, q, p;"""
        for operands in ("2, q", "3, 128, q", "2, !q"):
            true_of = found
            if operands == "2, !q":
                true_of = {
                    "popc": 128 - few.reshape(blocks.shape).sum(1),
                    "and": ~few.reshape(blocks.shape).any(1),
                    "or": ~few.reshape(blocks.shape).all(1),
                }[modifiers[1]].repeat(128)
            result = "d" if modifiers[1] == "popc" else "p"
            last = "" if modifiers[1] == "popc" else "selp.u32 d, 1, 0, p;"
            code = f"{start} {full(name, modifiers)} {result}, {operands}; {last}"
            yield Case(code, inputs, true_of.astype("u4"))
        return
    warp = modifiers[0] == "warp"
    distance = 5 if warp else 37
    spellings = [full(name, modifiers)]
    if not warp:
        spellings.append(f"{name}.cta.{'.'.join(modifiers)}")
    if name == "barrier":
        spellings.append(f"{full(name, modifiers)}.aligned")
    want = blocks[:, np.arange(128) ^ distance].reshape(-1)
    for spelling in spellings:
        for operands in ("0xffffffff",) if warp else ("0", "1, 128"):
            code = f"""st.shared.u32 [s], a; {spelling} {operands}; xor.b32 x, s,
                {distance * SCRATCH}; ld.shared.u32 d, [x]; bar.sync 0;"""
            yield Case(code, inputs, want)


@lru_cache
def _rows() -> tuple[np.ndarray, ...]:
    """A row of a matrix for each thread, as two words."""
    generator = np.random.default_rng(2)
    return tuple(generator.integers(0, 2**64, 128, "u8", endpoint=False) for _ in range(2))


@cases_of("ldmatrix")
def _matrices(name: str, modifiers: Modifiers) -> Iterator[Case]:
    """PTX ISA, ldmatrix: lane 8 i + r has the address of row r of matrix i.

    Lane l receives two neighbours of row l / 4, from 2 (l % 4) on, or with .trans of that column.
    """
    count = int(next(one for one in modifiers if one[0] == "x")[1:])
    matrices = np.stack(_rows(), 1).view("u2").reshape(4, 4, 8, 8)
    if "trans" in modifiers:
        matrices = matrices.transpose(0, 1, 3, 2)
    # (warp, matrix, lane)
    registers = np.ascontiguousarray(matrices).reshape(4, 4, 64).view("u4")
    generic = not any(one.startswith("shared") for one in modifiers)
    names = ", ".join(f"r{n}" for n in range(count))
    address = "cvt.u64.u32 u, s; cvta.shared.u64 u, u;" if generic else ""
    start = f"""bar.sync 0; .reg .b32 {names}; {address} st.shared.v2.b64 [s], {{a, b}}; bar.sync 0;
        {full(name, modifiers)} {{{names}}}, [{"u" if generic else "s"}]; bar.sync 0;"""
    for number in range(count):
        want = registers[:, number].reshape(-1)
        yield Case(f"{start} mov.u32 d, r{number};", _rows(), want)


def _halves(value: np.ndarray, type: str) -> np.ndarray:
    """Small integers as the bits of an operand's elements."""
    if type == "f16":
        return value.astype("f2").view("u2")
    whole = value.astype("f4").view("u4")
    return (whole >> np.uint32(16)).astype("u2") if type == "bf16" else whole


@lru_cache
def _operands(k: int, type: str, sums: str) -> tuple[tuple[np.ndarray, ...], list[np.ndarray]]:
    """The inputs of a product of matrices for four warps, and its result registers.

    PTX ISA, Matrix Fragments for mma.m16n8k4 to mma.m16n8k16: the thread is lane % 4, the group
    lane / 4. A register holds neighbours along k.
    """
    generator = np.random.default_rng(3)
    # Small integers are exact in every type.
    a, b, c = (generator.integers(-8, 9, (4, *shape)) for shape in ((16, k), (k, 8), (16, 8)))
    each = 1 if type == "tf32" else 2
    lane = np.arange(32)
    group, thread = lane // 4, lane % 4

    def packed(columns: list[np.ndarray]) -> np.ndarray:
        """Registers (warp, lane) of elements (warp, lane), as 32 bits."""
        kept = np.stack([_halves(one, type) for one in columns], -1)
        return np.ascontiguousarray(kept).view("u4").reshape(-1)

    left = [
        packed([a[:, group + 8 * (n % 2), thread * each + half + n // 2 * 4 * each]
                for half in range(each)])
        for n in range(16 * k // 32 // each)
    ]  # fmt: skip
    right = [
        packed([b[:, thread * each + half + n * 4 * each, group] for half in range(each)])
        for n in range(8 * k // 32 // each)
    ]

    def accumulators(matrix: np.ndarray) -> list[np.ndarray]:
        elements = [matrix[:, group + 8 * (n // 2), thread * 2 + n % 2] for n in range(4)]
        if sums == "f32":
            return [one.astype("f4").view("u4").reshape(-1) for one in elements]
        return [
            np.stack([elements[n].astype("f2"), elements[n + 1].astype("f2")], -1)
            .view("u4")
            .reshape(-1)
            for n in (0, 2)
        ]

    given = [*left, *right, *accumulators(c)]
    words = [np.stack([given[n], given[n + 1] if n + 1 < len(given) else given[n]], 1).reshape(-1)
             .view("u8") for n in range(0, len(given), 2)]  # fmt: skip
    return tuple(words), accumulators(np.matmul(a, b) + c)


@cases_of("mma")
def _products(name: str, modifiers: Modifiers) -> Iterator[Case]:
    k, sums, type = int(modifiers[2].removeprefix("m16n8k")), modifiers[5], modifiers[6]
    each = 1 if type == "tf32" else 2
    inputs, results = _operands(k, type, sums)
    counts = (16 * k // 32 // each, 8 * k // 32 // each, len(results))
    names = [f"r{n}" for n in range(2 * len(inputs))]
    unpacked = " ".join(
        f"mov.b64 {{r{2 * n}, r{2 * n + 1}}}, {'abcefg'[n]};" for n in range(len(inputs))
    )
    operands, first = [], 0
    for count in counts:
        operands.append(f"{{{', '.join(names[first : first + count])}}}")
        first += count
    found = [f"t{n}" for n in range(counts[2])]
    declared = f".reg .b32 {', '.join((*names, *found))};"
    code = f"{full(name, modifiers)} {{{', '.join(found)}}}, {', '.join(operands)};"
    for register, want in zip(found, results, strict=True):
        yield Case(f"{declared} {unpacked} {code} mov.b32 d, {register};", inputs, want)
