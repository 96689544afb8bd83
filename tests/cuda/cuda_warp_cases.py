"""Cases of instructions of warps and blocks: shuffles, votes, reductions, barriers, matrices."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from cuda_forms import SCRATCH, Case, Modifiers, cases_of, full

_COUNT = 384


@cases_of("bar", "barrier")
def _barriers(name: str, modifiers: Modifiers) -> Iterator[Case]:
    """Values of other threads are read after the barrier."""
    inputs = (np.random.default_rng(1).integers(0, 2**32, _COUNT, "u4"),)
    warp = modifiers[0] == "warp"
    distance, operand = (5, "0xffffffff") if warp else (37, "0")
    want = inputs[0].reshape(-1, 128)[:, np.arange(128) ^ distance].reshape(-1)
    spellings = [full(name, modifiers)]
    if name == "barrier":
        spellings.append(f"{full(name, modifiers)}.aligned")
    for spelling in spellings:
        code = f"""st.shared.u32 [s], a; {spelling} {operand}; xor.b32 x, s,
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
    matrices = np.stack(_rows(), 1).view("u2").reshape(4, 4, 8, 8)
    if "trans" in modifiers:
        matrices = matrices.transpose(0, 1, 3, 2)
    # (warp, matrix, lane)
    registers = np.ascontiguousarray(matrices).reshape(4, 4, 64).view("u4")
    names = ", ".join(f"r{n}" for n in range(4))
    start = f"""bar.sync 0; .reg .b32 {names}; st.shared.v2.b64 [s], {{a, b}}; bar.sync 0;
        {full(name, modifiers)} {{{names}}}, [s]; bar.sync 0;"""
    for number in range(4):
        want = registers[:, number].reshape(-1)
        yield Case(f"{start} mov.u32 d, r{number};", _rows(), want)


def _halves(value: np.ndarray, type: str) -> np.ndarray:
    """Small integers as the bits of an operand's elements."""
    if type == "f16":
        return value.astype("f2").view("u2")
    whole = value.astype("f4").view("u4")
    return (whole >> np.uint32(16)).astype("u2") if type == "bf16" else whole


@lru_cache
def _operands(k: int, type: str) -> tuple[tuple[np.ndarray, ...], list[np.ndarray]]:
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
        return [one.astype("f4").view("u4").reshape(-1) for one in elements]

    given = [*left, *right, *accumulators(c)]
    words = [np.stack([given[n], given[n + 1] if n + 1 < len(given) else given[n]], 1).reshape(-1)
             .view("u8") for n in range(0, len(given), 2)]  # fmt: skip
    return tuple(words), accumulators(np.matmul(a, b) + c)


@cases_of("mma")
def _products(name: str, modifiers: Modifiers) -> Iterator[Case]:
    k, type = int(modifiers[2].removeprefix("m16n8k")), modifiers[6]
    each = 1 if type == "tf32" else 2
    inputs, results = _operands(k, type)
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
