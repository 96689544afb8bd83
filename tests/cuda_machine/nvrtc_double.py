"""The double of cuda.bindings.nvrtc: the real compiler, whose binaries are PTX.

The machine runs PTX. So a compilation's "binary" is the PTX of the same compilation, and all that
is done with binaries, such as keeping them on disk, is done with these bytes.

Making the real binary too checks what only the assembler checks, for example that the device has
all instructions. It takes about a third of the time.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from cuda.bindings import nvrtc

# Functions that the real compiler answers.
REAL = (
    *("nvrtcVersion", "nvrtcGetSupportedArchs", "nvrtcGetErrorString", "nvrtcCreateProgram"),
    *("nvrtcGetProgramLogSize", "nvrtcGetProgramLog", "nvrtcGetPTXSize", "nvrtcGetPTX"),
    "nvrtcDestroyProgram",
)


class NvrtcDouble:
    """Has the functions that are named here, and all classes of the real module.

    Args:
        counts: counts compilations.
        assembles: whether real binaries are made of the PTX.
    """

    def __init__(self, counts: Counter[str], *, assembles: bool = True) -> None:
        self._counts, self._assembles = counts, assembles

    def __getattr__(self, name: str) -> Any:
        real = getattr(nvrtc, name)
        if name in REAL or isinstance(real, type):
            return real
        raise AttributeError(f"the double of cuda.bindings.nvrtc has no {name}")

    def nvrtcCompileProgram(self, prog: Any, count: int, options: list[bytes]) -> tuple[Any, ...]:
        """Compiles, to PTX only if binaries are not made."""
        self._counts["nvrtcCompileProgram"] += 1
        if not self._assembles:
            real, virtual = b"--gpu-architecture=sm_", b"--gpu-architecture=compute_"
            options = [one.replace(real, virtual) for one in options]
        return nvrtc.nvrtcCompileProgram(prog, count, options)

    def nvrtcGetCUBINSize(self, prog: Any) -> tuple[Any, ...]:
        """The size of the PTX; that of the real binary, where there should be one and is none."""
        if self._assembles:
            result, size = nvrtc.nvrtcGetCUBINSize(prog)
            if result != nvrtc.nvrtcResult.NVRTC_SUCCESS or size == 0:
                return result, size
        return nvrtc.nvrtcGetPTXSize(prog)

    def nvrtcGetCUBIN(self, prog: Any, cubin: Any) -> tuple[Any, ...]:
        """Writes the PTX to a buffer of `nvrtcGetCUBINSize` bytes."""
        return nvrtc.nvrtcGetPTX(prog, cubin)
