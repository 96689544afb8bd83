"""Compiles OpenCL C for AMD's GPUs with clang, and reads what the compiler says of each kernel.

Clang's own headers declare OpenCL's functions; a library that is often missing defines them. The
prelude defines those that generated kernels use, by functions of the compiler.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lamina.base.records import frozen_dataclass

COMPILER = "clang-16"
PROCESSORS = ("gfx906", "gfx90a", "gfx1030", "gfx1100")
_OPTIONS = ("-x", "cl", "-cl-std=CL1.2", "-target", "amdgcn-amd-amdhsa", "-nogpulib", "-O3")
_OPTIONS += ("-Xclang", "-finclude-default-header", "-S", "-o", "-", "-Wno-everything")


@frozen_dataclass
class Compiled:
    """What the compiler says of a kernel.

    Attributes:
        name: of the kernel.
        vector_registers, scalar_registers: that a work item, and a wavefront, use.
        spills: bytes of private memory for values that do not fit into registers.
        local_bytes: of a work group.
        occupancy: the wavefronts that a SIMD unit can run at the same time.
    """

    name: str
    vector_registers: int
    scalar_registers: int
    spills: int
    local_bytes: int
    occupancy: int


def prelude() -> str:
    """Definitions of OpenCL's functions that generated kernels use."""
    lines = [
        "#define get_group_id(n) ((size_t)__builtin_amdgcn_workgroup_id_x())",
        "#define get_local_id(n) ((size_t)__builtin_amdgcn_workitem_id_x())",
        "#define GROUP_SIZE __builtin_amdgcn_workgroup_size_x()",
        "#define get_global_id(n) (get_group_id(0) * GROUP_SIZE + get_local_id(0))",
        '#define FENCE __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup")',
        "#define barrier(f) { FENCE; __builtin_amdgcn_s_barrier(); FENCE; }",
        "#define select(no, yes, mask) ((mask) ? (yes) : (no))",
        "#define OWN __attribute__((overloadable, always_inline)) static",
    ]
    for type, suffix in (("float", "f"), ("double", "")):
        for name in ("fma", "sqrt", "fabs", "copysign"):
            lines += _function(name, type, suffix)
    lines += [f"#define {name} own_{name}" for name in ("fma", "sqrt", "fabs", "copysign")]
    elements = ("uchar", "char", "ushort", "short", "uint", "int", "ulong", "long")
    for element in (*elements, "float", "double"):
        for lanes in (2, 3, 4, 8, 16):
            vector = f"{element}{lanes}"
            lines.append(f"#define convert_{vector}(x) __builtin_convertvector(x, {vector})")
    lines += _saturating()
    lines += _halves()
    for lanes in (2, 3, 4, 8, 16):
        lines += _memory(lanes)
    return "\n".join(lines) + "\n"


def _function(name: str, type: str, suffix: str) -> Iterator[str]:
    count = {"fma": 3, "copysign": 2}.get(name, 1)
    names = "xyz"[:count]
    parameters = ", ".join(f"{type} {letter}" for letter in names)
    called = f"__builtin_{name}{suffix}({', '.join(names)})"
    yield f"OWN {type} own_{name}({parameters}) {{ return {called}; }}"
    for lanes in (2, 3, 4, 8, 16):
        vector = f"{type}{lanes}"
        parameters = ", ".join(f"{vector} {letter}" for letter in names)
        each = ", ".join(
            f"__builtin_{name}{suffix}({', '.join(f'{letter}.s{lane:x}' for letter in names)})"
            for lane in range(lanes)
        )
        yield f"OWN {vector} own_{name}({parameters}) {{ return ({vector})({each}); }}"


def _saturating() -> Iterator[str]:
    """Conversions of floats to the nearest integer."""
    ends = {"int": ("-0x1p31", "0x1p31"), "long": ("-0x1p63", "0x1p63")}
    ends |= {"uint": ("0.0", "0x1p32"), "ulong": ("0.0", "0x1p64"), "uchar": ("0.0", "0x1p8")}
    ends |= {"char": ("-0x1p7", "0x1p7")}
    for integer, (low, high) in ends.items():
        limit = integer.lstrip("u").upper()
        least, most = (f"U{limit}_MAX * 0", f"U{limit}_MAX")
        if not integer.startswith("u"):
            least, most = f"{limit}_MIN", f"{limit}_MAX"
        for kind in ("float", "double"):
            yield (
                f"OWN {integer} nearest_{integer}({kind} x) {{ return x >= ({kind}){high} ? {most} "
                f": x > ({kind}){low} ? ({integer})x : {least}; }}"
            )
            for lanes in (2, 3, 4, 8, 16):
                each = ", ".join(f"nearest_{integer}(x.s{lane:x})" for lane in range(lanes))
                yield (
                    f"OWN {integer}{lanes} nearest_{integer}{lanes}({kind}{lanes} x) "
                    f"{{ return ({integer}{lanes})({each}); }}"
                )
        yield f"#define convert_{integer}_sat nearest_{integer}"
        yield from (
            f"#define convert_{integer}{lanes}_sat nearest_{integer}{lanes}"
            for lanes in (2, 3, 4, 8, 16)
        )


def _halves() -> Iterator[str]:
    """Conversions of float16, by OpenCL's functions and by its type."""
    yield "#pragma OPENCL EXTENSION cl_khr_fp16 : enable"
    yield "#define convert_float(x) ((float)(x))"
    for lanes in ("", 2, 3, 4, 8, 16):
        converted = "__builtin_convertvector({}, {})" if lanes else "({1})({0})"
        single = converted.format(f"as_half{lanes}(*p)", f"float{lanes}")
        half = converted.format("x", f"half{lanes}")
        bits, floats = f"ushort{lanes}", f"float{lanes}"
        yield (
            f"OWN {floats} own_load_half{lanes}(const __private {bits} *p) {{ return {single}; }}"
        )
        yield (
            f"OWN void own_store_half{lanes}({floats} x, __private {bits} *p) "
            f"{{ *p = as_ushort{lanes}({half}); }}"
        )
        yield f"#define vload_half{lanes}(n, p) own_load_half{lanes}((const __private {bits} *)(p))"
        yield (
            f"#define vstore_half{lanes}_rte(x, n, p) own_store_half{lanes}(x, (__private {bits} "
            "*)(p))"
        )
        yield f"OWN half{lanes} own_to_half{lanes}({floats} x) {{ return {half}; }}"
        yield f"#define convert_half{lanes}_rte own_to_half{lanes}"


def _memory(lanes: int) -> Iterator[str]:
    """Loads and stores of vectors that are aligned to their elements only."""
    for element, size in (("uchar", 1), ("ushort", 2), ("uint", 4), ("ulong", 8)):
        vector = f"{element}{lanes}"
        yield f"typedef {vector} packed_{vector} __attribute__((aligned({size})));"
        for space in ("__global", "__local"):
            yield (
                f"OWN {vector} own_vload{lanes}(size_t n, {space} const {element} *p) "
                f"{{ return *({space} const packed_{vector} *)p; }}"
            )
            yield (
                f"OWN void own_vstore{lanes}({vector} x, size_t n, {space} {element} *p) "
                f"{{ *({space} packed_{vector} *)p = x; }}"
            )
    yield f"#define vload{lanes} own_vload{lanes}"
    yield f"#define vstore{lanes} own_vstore{lanes}"


def is_installed() -> bool:
    """Whether the compiler is on this machine."""
    return shutil.which(COMPILER) is not None


def compiled(text: str, processor: str) -> list[Compiled]:
    """Compiles kernels; returns what the compiler says of each of them.

    Args:
        text: in OpenCL C.
        processor: a name of `PROCESSORS`.

    Raises:
        SystemExit: if the compiler refuses the text, or does not know a function.
    """
    return list(_kernels_in(assembly_of(text, processor)))


def assembly_of(text: str, processor: str) -> str:
    """Compiles kernels to assembly language; arguments and errors as of `compiled`."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernels.cl"
        source.write_text(prelude() + text, encoding="utf-8")
        command = [COMPILER, *_OPTIONS, f"-mcpu={processor}", str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[:4000])
    missing = set(re.findall(r"(\w+)@(?:rel32|gotpcrel32)@lo", done.stdout))
    if missing:
        raise SystemExit(f"the prelude does not define {', '.join(sorted(missing))}")
    return done.stdout


def _kernels_in(assembly: str) -> Iterator[Compiled]:
    """The kernels of a text in assembly language, whose comments have these figures."""
    pattern = r"^(\w+):\s+; @\1\n(.*?)^; Occupancy: (\d+)"
    for match in re.finditer(pattern, assembly, re.MULTILINE | re.DOTALL):
        name, body, occupancy = match.groups()

        def figure(word: str, body: str = body) -> int:
            found = re.findall(rf"^; {word}: (\d+)", body, re.MULTILINE)
            return int(found[-1]) if found else 0

        yield Compiled(
            name,
            max(figure("NumVgprs"), figure("TotalNumVgprs")),
            figure("NumSgprs"),
            figure("ScratchSize"),
            figure("LDSByteSize"),
            int(occupancy),
        )
