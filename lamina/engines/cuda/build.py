"""From text in CUDA C++ to machine code for a device, by NVRTC, through the cache on disk."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

from lamina.base.cache import find, keep, key_of
from lamina.base.garbage import without_collections
from lamina.codegen.cuda_words import CUDA
from lamina.engines.cuda.calls import Cuda, CudaError
from lamina.engines.cuda.requirements import no_package, without_library
from lamina.engines.gpu.driver import refused_kernel

# Multiplications and additions are rounded separately, except in fma. Divisions and square roots
# are correctly rounded, and subnormal numbers are kept, unless other options ask for it. Textures
# and CUDA's runtime are left out, whose declarations take a third of the time of a small program.
OPTIONS = ("--std=c++17", "--fmad=false", "--minimal")

# The first line of a kernel, with its name.
_KERNEL = re.compile(r'^extern "C" __global__ .*?\bvoid (\w+)\(', re.MULTILINE)
# A function that kernels call, with its name, or its declaration. The head of texts has others.
_CALLED = re.compile(
    rf"^{re.escape(CUDA.inlined)} [^\n]*?(\w+)\([^\n]*(?:;\n|\{{\n.*?^\}}\n+)",
    re.MULTILINE | re.DOTALL,
)


@without_collections
def build(api: Cuda, capability: tuple[int, int], text: str) -> dict[str, bytes]:
    """The machine code of each kernel of a text: cubins, or PTX if NVRTC does not know the device.

    Each kernel is a program of its own. So NVRTC compiles several at a time, in threads of its
    callers, and the cache has the kernels of other texts, too.
    """
    architecture = architecture_of(capability, _architectures(api))
    version = ".".join(map(str, api.nvrtc.nvrtcVersion()))
    texts = programs_of(text)
    keys = {name: key_of(("cuda", texts[name], architecture, *OPTIONS, version)) for name in texts}
    machine_code = {name: find(key) for name, key in keys.items()}
    missing = [name for name, code in machine_code.items() if code is None]
    # The longest one would end last if it began last.
    missing.sort(key=lambda name: len(texts[name]), reverse=True)

    compile_ = partial(compiled, api, architecture)
    with ThreadPoolExecutor() as pool:
        codes = pool.map(compile_, map(texts.__getitem__, missing))
        for name, code in zip(missing, codes, strict=True):
            keep(keys[name], code)
            machine_code[name] = code
    return {name: code for name, code in machine_code.items() if code is not None}


def programs_of(text: str) -> dict[str, str]:
    """A text for each kernel of a text, by its name: it, after what stands before all.

    Of the functions that stand there for kernels, it has those that it calls, directly or not.
    """
    kernels = [*_KERNEL.finditer(text)]
    begins = [match.start() for match in kernels]
    ends = [*begins[1:], len(text)]
    head = text[: begins[0]] if begins else ""
    called = {match[1]: match[0] for match in _CALLED.finditer(head)}

    def program(kernel: str) -> str:
        needed, left = set[str](), [kernel]
        while left:
            source = left.pop()
            functions = {name for name in called.keys() - needed if f"{name}(" in source}
            needed.update(functions)
            left += (called[name] for name in functions)
        kept = _CALLED.sub(lambda match: match[0] if match[1] in needed else "", head)
        return f"{kept}{kernel.rstrip()}\n"

    return {
        match[1]: program(text[begin:end])
        for match, begin, end in zip(kernels, begins, ends, strict=False)
    }


def architecture_of(capability: tuple[int, int], architectures: tuple[int, ...]) -> str:
    """The architecture for which a device's kernels are compiled, among those that NVRTC knows.

    Machine code runs on devices of the same major version and a later minor version. For others
    the driver compiles PTX. Instructions of warpgroups are in machine code for one version only.

    Returns:
        `"sm_86"`, for machine code; `"compute_121"`, for PTX.
    """
    major, minor = capability
    if capability == (9, 0) and 90 in architectures:
        return "sm_90a"
    same = [number for number in architectures if number // 10 == major and number % 10 <= minor]
    return f"sm_{max(same)}" if same else f"compute_{max(architectures)}"


@cache
def _architectures(api: Cuda) -> tuple[int, ...]:
    """The capabilities that NVRTC knows."""
    try:
        return tuple(api.nvrtc.nvrtcGetSupportedArchs())
    except CudaError:
        raise
    # The package raises different exceptions if the library is missing.
    except Exception as error:
        raise no_package("nvidia-cuda-nvrtc", without_library(error)) from error


def compiled(api: Cuda, architecture: str, text: str) -> bytes:
    """The machine code of a text, compiled now; InternalError, with the log, if it is refused."""
    nvrtc = api.nvrtc
    program = nvrtc.nvrtcCreateProgram(text.encode(), b"lamina.cu", 0, [], [])
    try:
        options = [option.encode() for option in (f"--gpu-architecture={architecture}", *OPTIONS)]
        try:
            nvrtc.nvrtcCompileProgram(program, len(options), options)
        except CudaError as error:
            if error.status != "NVRTC_ERROR_COMPILATION":
                raise
            log = bytes(nvrtc.nvrtcGetProgramLogSize(program))
            nvrtc.nvrtcGetProgramLog(program, log)
            messages = log.rstrip(b"\0").decode(errors="replace")
            fact = ("architecture", architecture)
            raise refused_kernel("NVRTC", fact, text, messages, r"\((\d+)\)", "cuda") from error
        kind = "CUBIN" if architecture.startswith("sm_") else "PTX"
        code = bytes(getattr(nvrtc, f"nvrtcGet{kind}Size")(program))
        # The package writes to these bytes.
        getattr(nvrtc, f"nvrtcGet{kind}")(program, code)
        return code
    finally:
        nvrtc.nvrtcDestroyProgram(program)
