"""From text in OpenCL C to a program of the driver, through the cache on disk.

Drivers that have a build cache use that one. PoCL compiles a kernel at its first launch, for the
sizes of that launch; making a binary would compile all kernels once more.
"""

from __future__ import annotations

import ctypes
import warnings
from threading import Lock

import pyopencl as cl
from pyopencl.characterize import has_src_build_cache

from lamina.base.cache import find, keep, key_of
from lamina.base.garbage import without_collections
from lamina.engines.gpu.driver import refused_kernel
from lamina.engines.opencl.verdicts import identity_of
from lamina.errors import EngineError

# No option for fast mathematics: results must follow the program's text.
_OPTIONS = "-cl-std=CL1.2"
_EXACT_DIVISION = "-cl-fp32-correctly-rounded-divide-sqrt"
# Filters of warnings are global to the process.
_filters = Lock()


@without_collections
def build(context: cl.Context, handle: cl.Device, text: str, *, keeps: bool) -> cl.Program:
    """The program of a text in OpenCL C; `keeps` says whether Lamina's cache keeps binaries."""
    options = _options_for(handle)
    is_kept = keeps and not has_src_build_cache(handle)
    key = key_of(("opencl", text, options, *identity_of(handle)))
    kept = find(key) if is_kept else None
    if kept is not None:
        try:
            return _built(cl.Program(context, [handle], [kept]), options)
        except cl.Error:
            pass  # The driver refuses its own binary: the text is built again, the entry replaced.
    program = cl.Program(context, text)
    try:
        _built(program, options)
    except cl.RuntimeError as error:
        if error.code != cl.status_code.BUILD_PROGRAM_FAILURE:
            raise
        fact = ("device", f"{handle.name} ({handle.platform.name}, {handle.driver_version})")
        log = str(error).partition("\n\n")[2]
        raise refused_kernel(
            "the OpenCL compiler", fact, text, log, r":(\d+):\d+:", "opencl"
        ) from error
    except MemoryError as error:
        # PoCL then keeps a lock of the program, and would wait for it when the program is released.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(program))
        raise EngineError(
            "the OpenCL compiler has too little memory",
            facts=(("device", f"{handle.name} ({handle.platform.name})"),),
            where="opencl",
            advice="Close other programs, or raise the limit of the process's memory.",
        ) from error
    if is_kept:
        keep(key, program.binaries[0])
    return program


def loaded_again(context: cl.Context, handle: cl.Device, program: cl.Program) -> cl.Program | None:
    """The program made of another one's binary; None if Lamina keeps no binaries of that driver.

    Raises:
        pyopencl.Error: if the driver does not load its own binary.
    """
    if has_src_build_cache(handle):
        return None
    binary = program.binaries[0]
    return _built(cl.Program(context, [handle], [binary]), _options_for(handle))


def _options_for(handle: cl.Device) -> str:
    exact = handle.single_fp_config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
    return f"{_OPTIONS} {_EXACT_DIVISION}" if exact else _OPTIONS


def _built(program: cl.Program, options: str) -> cl.Program:
    with _filters, warnings.catch_warnings():
        # Compilers write to the log also for programs that they accept.
        warnings.simplefilter("ignore", cl.CompilerWarning)
        # False turns off pyopencl's own cache, which other users may be able to change.
        return program.build(options, cache_dir=False)  # pyright: ignore[reportArgumentType]
