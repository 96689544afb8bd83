"""The requirements of the CUDA engine, and errors for missing ones. Imports no driver."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from lamina.errors import EngineError

# The first compute capability for which NVRTC 13 compiles, and the version of CUDA.
LEAST_CAPABILITY = (7, 5)
LEAST_CUDA = 13
_INSTALL = "Install the packages with: pip install 'lamina[cuda]'."
UPDATE = (
    "Install Nvidia's driver of release 580 or later, which supports CUDA 13: "
    "docs/cuda.md says how."
)
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
        missing = isinstance(error, ModuleNotFoundError)
        raise EngineError(
            "the cuda engine needs the package cuda-bindings",
            facts=(
                ("expected", f"cuda-bindings {LEAST_CUDA}.0 or later"),
                ("found", "none" if missing else f"one that cannot be imported: {error}"),
            ),
            where="cuda",
            advice=f"{_INSTALL} It also needs Nvidia's driver, but no CUDA toolkit.",
        ) from error
    return driver, nvrtc


def no_compiler(found: str) -> EngineError:
    """The error if the library of NVRTC cannot be loaded.

    Args:
        found: what the package says.
    """
    return EngineError(
        "the cuda engine needs the package nvidia-cuda-nvrtc, the compiler of its kernels",
        facts=(("expected", f"nvidia-cuda-nvrtc {LEAST_CUDA}.0 or later"), ("found", found)),
        where="cuda",
        advice=_INSTALL,
    )


def cublaslt_package() -> Any:
    """The module of `nvmath-python` that has the functions of cuBLASLt.

    Raises:
        EngineError: with the package to install.
    """
    try:
        return importlib.import_module("nvmath.bindings.cublasLt")
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError)
        found = "none" if missing else f"one that cannot be imported: {error}"
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
        advice=_INSTALL,
    )


def no_driver(found: str, status: str) -> EngineError:
    """The error for a machine on which CUDA's driver does not start.

    Args:
        found: what the driver says, or the package that loads it.
        status: the driver's status; "" if its library cannot be loaded.
    """
    facts = [("expected", "the library of Nvidia's driver, libcuda.so.1 or nvcuda.dll")]
    advice = f"{UPDATE} Without an Nvidia GPU, use the cpu engine or the opencl engine."
    if not status:
        facts.append(("found", "none that can be loaded"))
    else:
        facts[:] = [("expected", "a driver and a GPU that work"), ("driver reported", found)]
    if _KERNEL_DRIVER.exists():
        version = _KERNEL_DRIVER.read_text(encoding="utf-8", errors="replace").splitlines()[0]
        facts.append(("driver of the kernel", version.strip()))
        if not status:
            advice = (
                "The kernel has the driver, but its library cannot be found. In a container, give "
                "it the GPU: docker run --gpus all. Otherwise install the driver's library: "
                "libcuda1 on Debian."
            )
    if status == "CUDA_ERROR_NO_DEVICE":
        advice = (
            "If CUDA_VISIBLE_DEVICES hides the GPU, change it. Otherwise nvidia-smi shows whether "
            "the driver sees it."
        )
    return EngineError(
        "there is no CUDA device on this machine"
        if status in ("", "CUDA_ERROR_NO_DEVICE")
        else "the CUDA driver does not start",
        facts=tuple(facts),
        where="cuda",
        advice=advice,
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
