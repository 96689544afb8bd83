"""Cases for each form of each instruction that the PTX machine knows.

Files named `cuda_*_cases.py` register functions that make the cases of instructions. All cases of
an instruction run in few kernels: each has a scope of its own, and a thread for each value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cuda_exact import NUMPY, as_floats
from cuda_machine_cases import Bench

from cuda_machine.writer import FORMS

THREADS = 128
# Bytes of memory of each space that a thread of a case has.
SCRATCH = 32
LETTERS = "abcefg"
# What is in the constant variable `table`, and in the parameter `block`.
TABLE = bytes((37 * n + 130) % 256 for n in range(SCRATCH))


@dataclass(frozen=True, eq=False)
class Case:
    """Code, and what it must make of values.

    Attributes:
        code: reads registers a, b, c, e, f and g, and writes d. It may use predicates p and q, and
            x and y of 32, h and l of 16, u and v of 64 bits. The thread's own memory is at [mine]
            in global memory, at [s] in shared memory (32 bits), and at [own] in local memory; `i`
            is its number in the grid and `lane` that in the warp.
        inputs: the values of a, b, c, ... for each thread.
        want: d for each thread.
        type: of d, if it is a float, or two of them, whose NaN may have any bits.
        signed_zeros: whether the sign of a zero is checked.
        since: the first architecture that has the code, if that is a later one than the form's.
    """

    code: str
    inputs: tuple[np.ndarray, ...]
    want: np.ndarray
    type: str = ""
    signed_zeros: bool = True
    since: int = 0


Modifiers = tuple[str, ...]
# Makes the cases of a form; none, if another function makes them.
Maker = Callable[[str, Modifiers], Iterable[Case]]
MAKERS: dict[str, list[Maker]] = {}


def cases_of(*names: str) -> Callable[[Maker], Maker]:
    """Registers the function that makes cases of instructions of these names."""

    def register(maker: Maker) -> Maker:
        for name in names:
            MAKERS.setdefault(name, []).append(maker)
        return maker

    return register


def full(name: str, modifiers: Modifiers) -> str:
    """The instruction as it is written."""
    return ".".join((name, *modifiers))


def cases_by_target(name: str) -> dict[int, list[Case]]:
    """The cases of all forms of an instruction, by the first architecture that has them.

    Raises:
        AssertionError: a form has no case.
    """
    found: dict[int, list[Case]] = {}
    missing: list[str] = []
    for modifiers, known in FORMS[name].items():
        cases = [one for maker in MAKERS.get(name, ()) for one in maker(name, modifiers)]
        if not cases:
            missing.append(full(name, modifiers))
        for one in cases:
            found.setdefault(max(known.since, one.since), []).append(one)
    assert not missing, f"no case of {', '.join(missing[:20])}"
    return found


def groups(cases: Sequence[Case], most: int = 200) -> list[list[Case]]:
    """Cases with the same inputs, at most so many together."""
    same: dict[tuple[Any, ...], list[Case]] = {}
    for one in cases:
        same.setdefault(tuple(id(values) for values in one.inputs), []).append(one)
    return [
        one[first : first + most] for one in same.values() for first in range(0, len(one), most)
    ]


def module_of(kernels: Sequence[str], target: str) -> str:
    """The PTX text of kernels."""
    version = "8.8" if int(target.removeprefix("sm_")) >= 100 else "8.5"
    table = ", ".join(map(str, TABLE))
    return f""".version {version}
.target {target}
.address_size 64
.const .align 32 .b8 table[{SCRATCH}] = {{{table}}};
{"".join(kernels)}"""


def kernel_of(cases: Sequence[Case], name: str = "k") -> str:
    """A kernel of cases with the same inputs."""
    inputs = cases[0].inputs
    lines = [
        ".reg .pred p, q; .reg .b32 n, i, x, y, s, lane; .reg .b16 h, l;",
        ".reg .b64 at, base, mine, own, u, v;",
        f".shared .align 32 .b8 sharing[{SCRATCH * THREADS}];",
        f".local .align 32 .b8 kept[{SCRATCH}];",
        "mov.u32 i, %ctaid.x; mov.u32 n, %ntid.x; mov.u32 x, %tid.x; mov.u32 lane, %laneid;",
        f"mad.lo.u32 i, i, n, x; mov.u32 s, sharing; mad.lo.u32 s, x, {SCRATCH}, s;",
        f"mov.u64 own, kept; ld.param.u64 base, [p0]; mad.wide.u32 mine, i, {SCRATCH}, base;",
    ]
    for number, one in enumerate(inputs):
        letter, size = LETTERS[number], one.itemsize
        lines += [
            f".reg .b{8 * max(size, 2)} {letter};",
            f"ld.param.u64 base, [p{number + 2}]; mad.wide.u32 at, i, {size}, base;",
            f"ld.global.u{8 * size} {letter}, [at];",
        ]
    lines.append("ld.param.u64 base, [p1];")
    begin = 0
    for one in cases:
        size, count = one.want.itemsize, _lanes(one)
        lines += [
            f"{{ .reg .b{8 * max(size, 2)} d;",
            one.code,
            f"mad.wide.u32 at, i, {size}, base; st.global.b{8 * size} [at+{begin}], d; }}",
        ]
        begin += size * count
    body = "\n".join(lines).replace("; ", ";\n")
    pointers = ", ".join(f".param .u64 p{number}" for number in range(len(inputs) + 2))
    return f""".visible .entry {name}({pointers}, .param .align 32 .b8 block[{SCRATCH}])
{{
{body}
}}
"""


def _lanes(case: Case) -> int:
    """The threads of a case: whole blocks."""
    return -(-len(case.want) // THREADS) * THREADS


def failures(cases: Sequence[Case], target: str) -> list[str]:
    """What is wrong with cases that have the same inputs."""
    bench = Bench(module_of([kernel_of(cases)], target))
    count = _lanes(cases[0])
    # Threads beyond the last value repeat the first ones.
    inputs = [bench.array(np.resize(one, count)) for one in cases[0].inputs]
    results = np.zeros(sum(one.want.itemsize * count for one in cases), np.uint8)
    scratch, output = bench.array(np.zeros(count * SCRATCH, np.uint8)), bench.array(results)
    bench.launch("k", count // THREADS, THREADS, scratch, output, *inputs,
                 np.frombuffer(TABLE, np.uint8))  # fmt: skip
    results = bench.read(output, results)
    found: list[str] = []
    begin = 0
    for one in cases:
        size = one.want.itemsize * count
        got = results[begin : begin + size].view(one.want.dtype)[: len(one.want)]
        begin += size
        bad = np.flatnonzero(_differ(one, got))
        if len(bad):
            at = int(bad[0])
            given = ", ".join(str(values[at]) for values in one.inputs)
            expected = f"{got[at]!r}, {one.want[at]!r} is expected"
            found.append(f"{one.code} of {given}: {expected} ({len(bad)} of {len(got)} differ)")
    return found


def _differ(case: Case, got: np.ndarray) -> np.ndarray:
    want = case.want
    each = case.type.removesuffix("x2")
    if each != case.type:
        got, want = got.view(NUMPY[each]), want.view(NUMPY[each])
    bits = f"u{want.itemsize}"
    differ = got.view(bits) != want.view(bits)
    if case.type:
        one, other = as_floats(got, each), as_floats(want, each)
        differ &= ~(np.isnan(one) & np.isnan(other))
        if not case.signed_zeros:
            differ &= ~((one == 0) & (other == 0))
    return differ.reshape(len(case.want), -1).any(1)
