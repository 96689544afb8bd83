"""The programs of the workloads: their costs, and checksums of their LLVM IR.

The costs are the steps of a program, their operations and bytes, and its arena. The IR has a
checksum for each vector extension. It is written for a made-up processor, so that it is the same on
every machine. The checksum ignores names of functions, tables, values and blocks.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from lamina.engines.cpu.native_program import write_program
from lamina.engines.cpu.processor import HostProcessor
from lamina.program.cost import cost_of
from lamina.program.program import Program
from lamina.program.steps import Contraction
from lamina.workloads import WORKLOADS

FIGURES = Path(__file__).parent / "workload_figures.txt"
CHECKSUMS = Path(__file__).parent / "workload_checksums.txt"
VECTORS: Mapping[str, tuple[int, int, bool]] = {
    "avx512": (64, 32, True),
    "avx2": (32, 16, True),
    "sse2": (16, 16, False),
}


def processor(vectors: str) -> HostProcessor:
    """A processor with two threads and caches of a common size."""
    vector_bytes, registers, fused = VECTORS[vectors]
    return HostProcessor(
        name="x86-64",
        triple="x86_64-unknown-linux-gnu",
        features="",
        description="made up",
        vectors=vectors,
        vector_bytes=vector_bytes,
        registers=registers,
        halves=vectors != "sse2",
        emulated=False,
        refusal="",
        fused=fused,
        bfloat16_pairs=False,
        bfloat16_tiles=False,
        level1_bytes=48 << 10,
        level2_bytes=1 << 20,
        level3_bytes=32 << 20,
        threads=2,
        registers_at_once=4,
        winograd_saving=0.0,
    )


@cache
def program_of(workload: str) -> Program:
    """The program that benchmarks time."""
    one = WORKLOADS[workload]
    return one.network().plan(one.batch, one.loss, one.optimizer).program


def figures(workload: str) -> str:
    """A line: the costs of the program."""
    program = program_of(workload)
    contractions = sum(isinstance(step, Contraction) for step in program.steps)
    moved = operations = 0
    for number, step in enumerate(program.steps):
        repeat = program.repeated(number)
        cost = cost_of(step, program.buffers, repeat.axis if repeat is not None else None)
        moved += cost.bytes
        operations += cost.operations
    return (
        f"{workload}: {len(program.steps)} steps, {contractions} contractions, "
        f"{operations} operations, {moved} bytes moved, {program.plan.arena_bytes} bytes of arena"
    )


def checksum(workload: str, vectors: str) -> str:
    """A line: a checksum of the program's LLVM IR."""
    text = _without_names(write_program(program_of(workload), processor(vectors)).text)
    return f"{workload} {vectors}: {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _without_names(text: str) -> str:
    """The text with functions, tables, and the values and blocks of each function numbered.

    The numbers follow the order of first use. Names of intrinsics stay.
    """
    functions: dict[str, str] = {}
    return "\ndefine".join(_numbered(one, functions) for one in text.split("\ndefine"))


def _numbered(text: str, functions: dict[str, str]) -> str:
    """The text of one function; `functions` has the numbers of those before."""
    values: dict[str, str] = {}

    def number(name: re.Match[str]) -> str:
        kind = name[0][0]
        if name[0].startswith("@llvm."):
            return name[0]
        if kind == "@":
            return functions.setdefault(name[0], f"@{len(functions)}")
        value = name[0] if kind == "%" else f"%{name[0]}"
        return values.setdefault(value, f"%{len(values)}")

    return re.sub(r"[@%][\w.]+|^\w+(?=:$)", number, text, flags=re.MULTILINE)
