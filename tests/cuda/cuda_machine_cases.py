"""Runs snippets of PTX, and kernels of CUDA C, on the machine in tests/cuda_machine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from cuda_machine.counts import Counts
from cuda_machine.machine import Checks, Machine
from cuda_machine.memory import Memory
from cuda_machine.ptx import parse

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_120")
HEADER = ".version 8.5\n.target {target}\n.address_size 64\n"
_LETTERS = "abce"
_BITS = {1: "b16", 2: "b16", 4: "b32", 8: "b64"}


class Bench:
    """A machine with the arrays of a kernel."""

    def __init__(self, text: str, **options: Any) -> None:
        self.memory = Memory(1 << 26)
        self.machine = Machine(self.memory, **options)
        self.loaded = self.machine.load(parse(text))

    def array(self, values: np.ndarray) -> int:
        """The address of a copy of an array."""
        address = self.memory.allocate(values.nbytes)
        self.memory.write(address, values.tobytes())
        return address

    def read(self, address: int, like: np.ndarray) -> np.ndarray:
        """An array of the device."""
        data = self.memory.read(address, like.nbytes)
        return np.frombuffer(data, like.dtype).reshape(like.shape).copy()

    def launch(
        self,
        name: str,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        *parameters: Any,
        shared: int = 0,
    ) -> Counts:
        """Launches a kernel; a Python int is a 64-bit address or number, others have their type."""
        data = [
            one.to_bytes(8, "little") if isinstance(one, int) else one.tobytes()
            for one in parameters
        ]
        kernel = self.loaded.kernels[name]
        return self.machine.launch(kernel, _three(grid), _three(block), data, shared_bytes=shared)


def _three(extents: int | tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*((extents,) if isinstance(extents, int) else extents), 1, 1)[:3]
    return x, y, z


def kernel(
    body: str, parameters: Sequence[str] = (), *, target: str = "sm_80", before: str = ""
) -> str:
    """The PTX text of a kernel `k`, with each statement in its own line."""
    body = body.replace("; ", ";\n").replace(": ", ":\n")
    listed = ", ".join(f".param .{type} p{number}" for number, type in enumerate(parameters))
    return f"{HEADER.format(target=target)}{before}\n.visible .entry k({listed})\n{{\n{body}\n}}\n"


def calculate(
    code: str, *inputs: np.ndarray, result: Any, target: str = "sm_80", threads: int = 128
) -> np.ndarray:
    """What instructions make of values.

    Args:
        code: reads registers a, b, c and e, and writes d; p and q are predicates, x and y 32 bits.
        inputs: the values of a, b, c and e for each thread.
        result: the type of d.
    """
    dtype = np.dtype(result)
    count = len(inputs[0])
    lines = [".reg .pred p, q;", ".reg .b32 n, i, x, y;", ".reg .b16 h, l;", ".reg .b64 at, base;"]
    lines += [f".reg .{_BITS[dtype.itemsize]} d;"]
    lines += ["mov.u32 i, %ctaid.x; mov.u32 n, %ntid.x; mad.lo.u32 n, i, n, 0;"]
    lines += ["mov.u32 i, %tid.x; add.u32 i, i, n;", f"setp.ge.u32 p, i, {count}; @p exit;"]
    for number, one in enumerate(inputs):
        name = _LETTERS[number]
        lines += [
            f".reg .{_BITS[one.itemsize]} {name};",
            f"ld.param.u64 base, [p{number}]; mad.wide.u32 at, i, {one.itemsize}, base;",
            f"ld.global.u{8 * one.itemsize} {name}, [at];",
        ]
    lines += [
        code,
        f"ld.param.u64 base, [p{len(inputs)}]; mad.wide.u32 at, i, {dtype.itemsize}, base;",
        f"st.global.b{8 * dtype.itemsize} [at], d;",
    ]
    bench = Bench(kernel("\n".join(lines), ["u64"] * (len(inputs) + 1), target=target))
    output = np.zeros(count, dtype)
    addresses = [bench.array(np.ascontiguousarray(one)) for one in (*inputs, output)]
    bench.launch("k", -(-count // threads), threads, *addresses)
    return bench.read(addresses[-1], output)


@lru_cache(maxsize=64)
def compiled(source: str, target: str) -> str:
    """The PTX that NVRTC makes of CUDA C, with the options of the CUDA engine."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed")

    def checked(results: Any) -> Any:
        if int(results[0]):
            raise RuntimeError(str(results[0]))
        return results[1] if len(results) > 1 else None

    program = checked(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    options = [f"--gpu-architecture={target}".encode(), b"--fmad=false", b"--std=c++17"]
    outcome = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(outcome[0]):
        log = b" " * checked(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.decode())
    text = b" " * checked(nvrtc.nvrtcGetPTXSize(program))
    checked(nvrtc.nvrtcGetPTX(program, text))
    nvrtc.nvrtcDestroyProgram(program)
    return text.rstrip(b"\0").decode()


__all__ = ["ARCHITECTURES", "Bench", "Checks", "calculate", "compiled", "kernel"]
