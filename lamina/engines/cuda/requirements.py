"""The requirements of the CUDA engine, and errors for missing ones. Imports no driver."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lamina.engines.cuda.cublaslt_functions import functions_of
from lamina.errors import EngineError

# The first compute capability for which NVRTC 13 compiles, and the version of CUDA.
LEAST_CAPABILITY = (7, 5)
LEAST_CUDA = 13
INSTALL = "Install the packages with: pip install 'lamina[cuda]'."
UPDATE = (
    "Install Nvidia's driver of release 580 or later, which supports CUDA 13: "
    "docs/cuda.md says how."
)
# What to do, by the status with which the driver does not start.
_ADVICE: Mapping[str, str] = {
    "CUDA_ERROR_NO_DEVICE": (
        "If CUDA_VISIBLE_DEVICES hides the GPU, change it. Otherwise nvidia-smi shows whether the "
        "driver sees it."
    ),
    "CUDA_ERROR_SYSTEM_NOT_READY": (
        "Start the services of the driver: nvidia-fabricmanager on machines with NVSwitch."
    ),
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": (
        "The driver's library and the kernel's driver are of different releases, as after an "
        "update: restart the machine, or the container."
    ),
    "CUDA_ERROR_STUB_LIBRARY": (
        "The library is one for linkers: remove the toolkit's folder stubs from LD_LIBRARY_PATH."
    ),
    "CUDA_ERROR_DEVICE_UNAVAILABLE": (
        "nvidia-smi shows which processes use the GPU, and whether its compute mode is exclusive."
    ),
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": (
        "A cuda-compat library is found before the driver's own, and this GPU cannot use it: "
        "remove its folder from LD_LIBRARY_PATH, or install the driver of release 580 or later."
    ),
    "CUDA_ERROR_UNKNOWN": (
        "nvidia-smi shows whether the driver works. After an update or a suspension, load the "
        "module nvidia_uvm again, or restart the machine."
    ),
}
# The least version of each package, and its purpose unless everything needs it.
_PACKAGES: Mapping[str, tuple[str, str]] = {
    "cuda-bindings": (f"{LEAST_CUDA}.0", ""),
    "nvidia-cuda-nvrtc": (f"{LEAST_CUDA}.0", ", the compiler of its kernels"),
    "nvidia-cublas": (f"{LEAST_CUDA}.0", ", for products of matrices"),
}
# The libraries of packages, as cuda-pathfinder names them.
_LIBRARIES = (("nvrtc", "nvidia-cuda-nvrtc"), ("cublasLt", "nvidia-cublas"))
# What is raised if one of them cannot be loaded.
_UNLOADED = (ImportError, OSError, RuntimeError)
# Where Linux shows the loaded driver of the kernel.
_KERNEL_DRIVER = Path("/proc/driver/nvidia/version")


def packages() -> tuple[Any, Any]:
    """The modules of `cuda-bindings` for driver and NVRTC; EngineError if a package is missing."""
    _refuse_other_module()
    try:
        driver = importlib.import_module("cuda.bindings.driver")
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
    except ImportError as error:
        modules = "cuda", "cuda.bindings", "cuda.bindings.driver"
        is_missing = isinstance(error, ModuleNotFoundError) and error.name in modules
        installed = "none" if is_missing else f"one that cannot be imported: {error}"
        advice = f"{INSTALL} It also needs Nvidia's driver, but no CUDA toolkit."
        raise no_package("cuda-bindings", installed, advice) from error
    return driver, nvrtc


def _refuse_other_module() -> None:
    """Refuses a module `cuda` that hides the packages of cuda-bindings. It is not run."""
    module = importlib.util.find_spec("cuda")
    # The packages of cuda-bindings share a folder without a file of its own.
    if module is None or module.origin is None:
        return
    advice = (
        "Rename that module, or start Python in another folder. An old cuda-python has one too: "
        "pip uninstall cuda-python."
    )
    try:
        importlib.metadata.distribution("cuda-bindings")
    except importlib.metadata.PackageNotFoundError:
        advice = f"{advice} {INSTALL}"
    raise no_package("cuda-bindings", f"another module cuda: {module.origin}", advice)


def no_package(package: str, found: str, advice: str = INSTALL) -> EngineError:
    """The error for a package of the engine, and what was found instead."""
    version, purpose = _PACKAGES[package]
    expected = f"{package} {version} or later"
    return _error(
        f"the cuda engine needs the package {package}{purpose}", advice, expected, ("found", found)
    )


def missing_packages() -> list[str]:
    """The packages of the engine, other than cuda-bindings, that cannot be loaded."""
    problems = {package: _problem_of(library) for library, package in _LIBRARIES}
    return [
        package if problem == "none" else f"{package} ({problem})"
        for package, problem in problems.items()
        if problem
    ]


def _problem_of(library: str) -> str:
    """Why a library of CUDA cannot be loaded: "none" if it is not found; "" if it can be."""
    try:
        _path_of(library)
    except _UNLOADED as error:
        return without_library(error)
    return ""


def without_library(error: Exception) -> str:
    """What is found instead of a library: "none", or why it cannot be loaded."""
    # The package's error lists all folders in which it has looked.
    kinds = [kind.__name__ for kind in type(error).__mro__]
    return "none" if "DynamicLibNotFoundError" in kinds else str(error).partition("\n")[0]


def _path_of(library: str) -> str:
    """The file of a library of CUDA, from Nvidia's packages, or where the system has it."""
    return str(importlib.import_module("cuda.pathfinder").load_nvidia_dynamic_lib(library).abs_path)


def cublaslt_library() -> ctypes.CDLL:
    """The library cuBLASLt; EngineError, with the package to install, if it is missing."""
    try:
        return functions_of(ctypes.CDLL(_path_of("cublasLt")))
    except _UNLOADED as error:
        raise no_package("nvidia-cublas", without_library(error)) from error


def no_library(error: Exception, missing: Sequence[str]) -> EngineError:
    """The error for a machine on which the library of CUDA's driver cannot be loaded."""
    facts = [("found", without_library(error))]
    advice = f"{UPDATE} Without an Nvidia GPU, use the cpu engine or the opencl engine."
    kernel = _kernel_driver()
    if kernel:
        advice = (
            "The kernel has the driver, but its library cannot be found. In a container, give "
            "it the GPU: docker run --gpus all. Otherwise install the driver's library: "
            "libcuda1 on Debian."
        )
    facts += kernel
    if missing:
        facts.append(("missing packages", ", ".join(missing)))
        advice = f"{advice} {INSTALL}"
    problem = "the library of Nvidia's driver is missing"
    return _error(problem, advice, "libcuda.so.1 or nvcuda.dll", *facts)


def _kernel_driver() -> list[tuple[str, str]]:
    """The driver that Linux has loaded, as a fact; none if there is none."""
    if not _KERNEL_DRIVER.exists():
        return []
    version = _KERNEL_DRIVER.read_text(encoding="utf-8", errors="replace").splitlines()[0]
    return [("driver of the kernel", version.strip())]


def no_device(found: str) -> EngineError:
    """The error for a driver that shows no device."""
    problem, advice = "there is no CUDA device on this machine", _ADVICE["CUDA_ERROR_NO_DEVICE"]
    return _error(problem, advice, "a GPU that the driver shows", ("found", found))


def no_start(found: str, status: str) -> EngineError:
    """The error for a driver that does not start."""
    advice = _ADVICE.get(status, "nvidia-smi shows whether the driver works.")
    facts = ("driver reported", found), *_kernel_driver()
    return _error("the CUDA driver does not start", advice, "a driver and a GPU that work", *facts)


def too_old(found: str) -> EngineError:
    """The error for a driver that supports only older versions of CUDA."""
    expected = f"one that supports CUDA {LEAST_CUDA}.0 or later"
    return _error("the CUDA driver is too old", UPDATE, expected, ("found", found))


def _error(problem: str, advice: str, expected: str, *facts: tuple[str, str]) -> EngineError:
    return EngineError(problem, facts=(("expected", expected), *facts), where="cuda", advice=advice)
