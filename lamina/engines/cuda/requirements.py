"""The requirements of the CUDA engine, and errors for missing ones. Imports no driver."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
        "update: restart the machine. In a container, update the machine's driver."
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
# Where Linux shows the loaded driver of the kernel.
_KERNEL_DRIVER = Path("/proc/driver/nvidia/version")


def packages() -> tuple[Any, Any]:
    """The modules of `cuda-bindings`: the functions of the driver, and those of NVRTC.

    Raises:
        EngineError: with the package to install.
    """
    try:
        driver = importlib.import_module("cuda.bindings.driver")
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
    except ImportError as error:
        advice = f"{INSTALL} It also needs Nvidia's driver, but no CUDA toolkit."
        hiding = getattr(sys.modules.get("cuda"), "__file__", None)
        if "is not a package" in str(error) and hiding:
            advice = "Rename that module, or start Python in another folder."
        raise EngineError(
            "the cuda engine needs the package cuda-bindings",
            facts=(
                ("expected", f"cuda-bindings {LEAST_CUDA}.0 or later"),
                ("found", _found(error, "cuda", "cuda.bindings", "cuda.bindings.driver")),
                *([("module cuda", hiding)] if hiding else []),
            ),
            where="cuda",
            advice=advice,
        ) from error
    return driver, nvrtc


def _found(error: ImportError, *modules: str) -> str:
    """What was found instead of a package with these modules."""
    is_missing = isinstance(error, ModuleNotFoundError) and error.name in modules
    if is_missing and "is not a package" not in str(error):
        return "none"
    return f"one that cannot be imported: {error}"


def missing_packages(nvrtc: Any) -> list[str]:
    """The packages, other than cuda-bindings, that are not installed.

    Args:
        nvrtc: the module of `cuda-bindings` with the functions of NVRTC.
    """
    missing: list[str] = []
    try:
        nvrtc.nvrtcVersion()
    # The package raises different exceptions if the library is missing.
    except Exception:
        missing.append("nvidia-cuda-nvrtc")
    if importlib.util.find_spec("nvmath") is None:
        missing.append("nvmath-python")
    return missing


def no_compiler(error: Exception) -> EngineError:
    """The error if the library of NVRTC cannot be loaded.

    Args:
        error: what the package raises.
    """
    # The package lists all folders in which it has looked.
    is_missing = type(error).__name__ == "DynamicLibNotFoundError"
    found = "none" if is_missing else str(error).partition("\n")[0]
    return EngineError(
        "the cuda engine needs the package nvidia-cuda-nvrtc, the compiler of its kernels",
        facts=(("expected", f"nvidia-cuda-nvrtc {LEAST_CUDA}.0 or later"), ("found", found)),
        where="cuda",
        advice=INSTALL,
    )


def cublaslt_package() -> Any:
    """The module of `nvmath-python` that has the functions of cuBLASLt.

    Raises:
        EngineError: with the package to install.
    """
    try:
        return importlib.import_module("nvmath.bindings.cublasLt")
    except ImportError as error:
        found = _found(error, "nvmath", "nvmath.bindings", "nvmath.bindings.cublasLt")
        raise _no_products("nvmath-python", "0.6", found) from error


def no_cublaslt(found: str) -> EngineError:
    """The error if the library cuBLASLt cannot be loaded.

    Args:
        found: what the package says.
    """
    return _no_products("nvidia-cublas", f"{LEAST_CUDA}.0", found)


def _no_products(package: str, version: str, found: str) -> EngineError:
    return EngineError(
        f"the cuda engine needs the package {package}, for products of large matrices",
        facts=(("expected", f"{package} {version} or later"), ("found", found)),
        where="cuda",
        advice=INSTALL,
    )


def no_library(missing: Sequence[str]) -> EngineError:
    """The error for a machine on which the library of CUDA's driver cannot be loaded.

    Args:
        missing: packages that are not installed either.
    """
    facts = [
        ("expected", "libcuda.so.1 or nvcuda.dll"),
        ("found", "none that can be loaded"),
    ]
    advice = f"{UPDATE} Without an Nvidia GPU, use the cpu engine or the opencl engine."
    if _KERNEL_DRIVER.exists():
        version = _KERNEL_DRIVER.read_text(encoding="utf-8", errors="replace").splitlines()[0]
        facts.append(("driver of the kernel", version.strip()))
        advice = (
            "The kernel has the driver, but its library cannot be found. In a container, give "
            "it the GPU: docker run --gpus all. Otherwise install the driver's library: "
            "libcuda1 on Debian."
        )
    if missing:
        facts.append(("missing packages", ", ".join(missing)))
        advice = f"{advice} {INSTALL}"
    return EngineError(
        "the library of Nvidia's driver is missing",
        facts=tuple(facts),
        where="cuda",
        advice=advice,
    )


def old_library() -> EngineError:
    """The error for a driver that lacks functions with which packages begin."""
    return EngineError(
        "the CUDA driver is too old",
        facts=(
            ("expected", f"one that supports CUDA {LEAST_CUDA}.0 or later"),
            ("found", "one that cannot tell which functions it has (cuGetProcAddress_v2)"),
        ),
        where="cuda",
        advice=UPDATE,
    )


def no_device() -> EngineError:
    """The error for a driver that shows no device."""
    return EngineError(
        "there is no CUDA device on this machine",
        facts=(("expected", "a GPU that the driver shows"), ("found", "none")),
        where="cuda",
        advice=_ADVICE["CUDA_ERROR_NO_DEVICE"],
    )


def no_start(found: str, status: str) -> EngineError:
    """The error for a driver that does not start.

    Args:
        found: what the driver says.
        status: its status, `"CUDA_ERROR_UNKNOWN"`.
    """
    return EngineError(
        "the CUDA driver does not start",
        facts=(("expected", "a driver and a GPU that work"), ("driver reported", found)),
        where="cuda",
        advice=_ADVICE.get(status, UPDATE),
    )


def too_old(found: int) -> EngineError:
    """The error for a driver that supports only older versions of CUDA.

    Args:
        found: its version, 12040 for 12.4.
    """
    return EngineError(
        "the CUDA driver is too old",
        facts=(
            ("expected", f"one that supports CUDA {LEAST_CUDA}.0 or later"),
            ("found", f"CUDA {found // 1000}.{found % 1000 // 10}"),
        ),
        where="cuda",
        advice=UPDATE,
    )
