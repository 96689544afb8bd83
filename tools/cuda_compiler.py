"""Compiles CUDA C++ for Nvidia's GPUs without a GPU, and reads what the compilers say.

NVRTC compiles it to PTX; ptxas, of the package nvidia-cuda-nvcc, compiles PTX to machine code and
counts registers and spills; nvdisasm prints that.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from cuda_devices import Architecture

from lamina.base.records import frozen_dataclass
from lamina.engines.cuda.build import architecture_of
from lamina.engines.cuda.build import compiled as compiled_by_nvrtc
from lamina.engines.cuda.calls import Cuda, made_of
from lamina.engines.cuda.requirements import cublaslt_library, packages
from lamina.errors import EngineError

# Instructions of tensor cores in machine code.
_TENSOR = re.compile(r"\b(HMMA|HGMMA)\b")
_HOW = "pip install '.[cuda-compiler]'"


@frozen_dataclass
class Compiled:
    """What ptxas says of a kernel.

    Attributes:
        name: of the kernel.
        registers: of a work item, 32 bits each.
        stack: bytes of local memory of a work item.
        spill_stores, spill_loads: bytes that a work item writes there and reads from there,
            because registers do not suffice.
        shared_bytes: of a work group.
        is_serialized: whether each product of a warpgroup waits for the one before it.
    """

    name: str
    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared_bytes: int
    is_serialized: bool

    @property
    def spills(self) -> bool:
        """Whether registers do not suffice."""
        return bool(self.spill_stores or self.spill_loads)


@frozen_dataclass
class Compilation:
    """A text that was compiled for an architecture.

    Attributes:
        ptx: by NVRTC.
        kernels: what ptxas says of them.
        loops: by kernel, the instructions of its shortest loop with some of tensor cores, in
            machine code, and how many these are.
        nvrtc_seconds, ptxas_seconds: how long they took.
    """

    ptx: str
    kernels: tuple[Compiled, ...]
    loops: Mapping[str, tuple[int, int]]
    nvrtc_seconds: float
    ptxas_seconds: float


def missing() -> str:
    """What is not installed, and how to install it; "" if nothing is missing."""
    try:
        _nvrtc().nvrtc.nvrtcVersion()
    except EngineError as error:
        return f"{error.problem}. Install it: {_HOW}"
    # The package raises different exceptions if the library is missing.
    except Exception as error:
        return f"NVRTC cannot be loaded: {error}. Install it: {_HOW}"
    lacking = [name for name in ("ptxas", "nvdisasm") if program(name) is None]
    return f"{lacking[0]} is not installed. Install it: {_HOW}" if lacking else ""


@cache
def _nvrtc() -> Cuda:
    """The functions of NVRTC; the driver's functions need not work.

    Raises:
        EngineError: if cuda-bindings is missing.
    """
    return made_of(*packages(), cublaslt_library)


@cache
def program(name: str) -> Path | None:
    """A program in a folder of Nvidia's namespace package, `nvidia/cu13/bin`."""
    try:
        folders = importlib.import_module("nvidia").__path__
    except ImportError:
        return None
    paths = (path for folder in folders for path in sorted(Path(folder).glob(f"cu*/bin/{name}*")))
    return next((path for path in paths if path.stem == name), None)


def compilation_of(text: str, architecture: Architecture) -> Compilation:
    """Compiles kernels.

    Args:
        text: in CUDA C++.
        architecture: for which.

    Raises:
        InternalError: if NVRTC refuses the text.
        SystemExit: if ptxas refuses the PTX.
    """
    begin = time.perf_counter()
    number = architecture.capability
    name = architecture_of((number // 10, number % 10), (number,))
    code = compiled_by_nvrtc(_nvrtc(), name.replace("sm_", "compute_"), text)
    # NVRTC ends it with a zero, as strings of C end.
    ptx = code.rstrip(b"\0").decode()
    middle = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder) / "kernels.ptx", Path(folder) / "kernels.cubin"
        source.write_text(ptx, encoding="utf-8")
        log = _said("ptxas", "-v", f"-arch={name}", "-o", str(binary), str(source))
        end = time.perf_counter()
        loops = dict(loops_in(_said("nvdisasm", "-c", str(binary))))
    return Compilation(ptx, tuple(kernels_in(log)), loops, middle - begin, end - middle)


def _said(name: str, *arguments: str) -> str:
    """What a program prints."""
    path = program(name)
    assert path is not None
    done = subprocess.run([str(path), *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit((done.stderr + done.stdout)[:4000])
    return done.stderr + done.stdout


def loops_in(text: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Of each kernel with some: the shortest loop with instructions of tensor cores.

    Args:
        text: the output of `nvdisasm -c`.
    """
    _, *sections = re.split(r"\.section\s+\.text\.(\w+)", text)
    for name, body in zip(sections[::2], sections[1::2], strict=True):
        labels: dict[str, int] = {}
        lines: list[str] = []
        loops: list[tuple[int, int]] = []
        for label, line in re.findall(r"^(\.L_x_\d+):|^\s*/\*[0-9a-f]+\*/\s+(.*?);", body, re.M):
            if label:
                labels[label] = len(lines)
                continue
            lines.append(line)
            target = re.search(r"BRA.*?(\.L_x_\d+)", line)
            if target and target[1] in labels:
                loop = lines[labels[target[1]] :]
                loops.append((len(loop), sum(bool(_TENSOR.search(line)) for line in loop)))
        loops = [(length, count) for length, count in loops if count]
        if loops:
            yield name, min(loops)


def kernels_in(log: str) -> Iterator[Compiled]:
    """What ptxas says of each kernel.

    Args:
        log: the output of `ptxas -v`.
    """
    beginning = r"Compiling entry function '(\w+)' for '\w+'\n"
    _, *sections = re.split(beginning, log)
    for name, lines in zip(sections[::2], sections[1::2], strict=True):

        def figure(words: str, lines: str = lines) -> int:
            match = re.search(rf"(\d+) {words}", lines)
            return int(match[1]) if match else 0

        yield Compiled(
            name,
            figure("registers"),
            figure("bytes stack frame"),
            figure("bytes spill stores"),
            figure("bytes spill loads"),
            figure("bytes smem"),
            re.search(rf"serialized .* in the function '{name}'", log) is not None,
        )
