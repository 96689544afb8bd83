"""From text in CUDA C++ to machine code for a device, by NVRTC, through the cache on disk."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from lamina.base.cache import find, keep, key_of
from lamina.base.garbage import without_collections
from lamina.engines.cuda.calls import Cuda, CudaError
from lamina.engines.cuda.requirements import no_compiler
from lamina.errors import InternalError

# Multiplications and additions are rounded separately, except in fma. Divisions and square roots
# are correctly rounded, and subnormal numbers are kept, unless other options ask for it.
OPTIONS = ("--std=c++17", "--fmad=false")
# The most lines of a compiler's log in an error.
_LOG_LINES = 20


@without_collections
def build(api: Cuda, capability: tuple[int, int], text: str) -> bytes:
    """The machine code of a text: a cubin, or PTX if NVRTC does not know the device.

    Args:
        api: compiles.
        capability: of the device.
        text: in CUDA C++.

    Raises:
        EngineError: if NVRTC is missing.
        InternalError: with the compiler's log, if it refuses the text.
    """
    architecture = architecture_of(capability, _known(api))
    version = ".".join(map(str, api.nvrtc.nvrtcVersion()))
    key = key_of(("cuda", text, architecture, *OPTIONS, version))
    kept = find(key)
    if kept is None:
        kept = compiled(api, architecture, text)
        keep(key, kept)
    return kept


def architecture_of(capability: tuple[int, int], known: tuple[int, ...]) -> str:
    """The architecture for which a device's kernels are compiled.

    Machine code runs on devices of the same major version and a later minor version. For others
    the driver compiles PTX.

    Args:
        capability: of the device.
        known: the capabilities that NVRTC knows, (8, 6) as 86.

    Returns:
        `"sm_86"`, for machine code; `"compute_121"`, for PTX.
    """
    major, minor = capability
    same = [one for one in known if one // 10 == major and one % 10 <= minor]
    return f"sm_{max(same)}" if same else f"compute_{max(known)}"


@cache
def _known(api: Cuda) -> tuple[int, ...]:
    """The capabilities that NVRTC knows.

    Raises:
        EngineError: if NVRTC is missing.
    """
    try:
        return tuple(api.nvrtc.nvrtcGetSupportedArchs())
    except CudaError:
        raise
    # The package raises different exceptions if the library is missing.
    except Exception as error:
        raise no_compiler(error) from error


def compiled(api: Cuda, architecture: str, text: str) -> bytes:
    """The machine code of a text, compiled now.

    Args:
        api: compiles.
        architecture: as `architecture_of` returns it.
        text: in CUDA C++.

    Raises:
        InternalError: with the compiler's log, if it refuses the text.
    """
    nvrtc = api.nvrtc
    program = nvrtc.nvrtcCreateProgram(text.encode(), b"lamina.cu", 0, [], [])
    try:
        options = [one.encode() for one in (f"--gpu-architecture={architecture}", *OPTIONS)]
        try:
            nvrtc.nvrtcCompileProgram(program, len(options), options)
        except CudaError as error:
            if error.status != "NVRTC_ERROR_COMPILATION":
                raise
            raise _refused(api, program, architecture, text) from error
        kind = "CUBIN" if architecture.startswith("sm_") else "PTX"
        size = getattr(nvrtc, f"nvrtcGet{kind}Size")(program)
        code = bytes(size)
        # The package writes to these bytes.
        getattr(nvrtc, f"nvrtcGet{kind}")(program, code)
        return code
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _refused(api: Cuda, program: Any, architecture: str, text: str) -> InternalError:
    """The error for a text that NVRTC refuses, with the source lines named in its log."""
    log = bytes(api.nvrtc.nvrtcGetProgramLogSize(program))
    api.nvrtc.nvrtcGetProgramLog(program, log)
    messages = log.rstrip(b"\0").decode(errors="replace").strip().splitlines()
    shown = [line for line in messages if re.search(r"\berror\b", line)] or messages
    lines = text.splitlines()
    facts = [("architecture", architecture)]
    for line in shown[:_LOG_LINES]:
        facts.append(("compiler", line.strip()))
        location = re.search(r"\((\d+)\)", line)
        if location is not None and 0 < int(location[1]) <= len(lines):
            facts.append((f"line {location[1]}", lines[int(location[1]) - 1].strip()))
    return InternalError("NVRTC refuses a kernel", facts=tuple(facts), where="cuda")
