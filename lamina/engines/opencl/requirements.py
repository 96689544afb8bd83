"""The requirements of the OpenCL engine, and errors for missing ones. Imports no driver."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from lamina.errors import EngineError

# The names of Debian's packages.
_DRIVERS = (
    "a driver: for AMD mesa-opencl-icd, or ROCm; for Intel intel-opencl-icd; for Nvidia "
    "nvidia-opencl-icd; for ARM mesa-opencl-icd; for any processor pocl-opencl-icd. "
    "docs/opencl.md has details."
)

_DEV = Path("/dev")
# The name of the platform of Mesa's driver.
RUSTICL = "rusticl"
# What to do if Mesa's driver shows no device.
RUSTICL_ADVICE = (
    "Mesa shows only the devices of drivers that RUSTICL_ENABLE names: set it to radeonsi for "
    "AMD, iris for Intel, panfrost for ARM."
)


def require_package() -> None:
    """Raises EngineError, with the package to install, if pyopencl cannot be imported."""
    try:
        import pyopencl as pyopencl
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "pyopencl"
        package = "none" if missing else f"one that cannot be imported: {error}"
        raise EngineError(
            "the opencl engine needs the package pyopencl",
            facts=(("expected", "pyopencl 2024.1 or later"), ("found", package)),
            where="opencl",
            advice=f"Install it with: pip install 'lamina[opencl]'. It also needs {_DRIVERS}",
        ) from error


def no_device(description: str, platforms: Sequence[str] = ()) -> EngineError:
    """The error for a machine without OpenCL devices, whose drivers are described and named."""
    facts = [
        ("expected", "a driver, listed in /etc/OpenCL/vendors or named by OCL_ICD_VENDORS"),
        ("found", description),
    ]
    advice = f"Install {_DRIVERS}"
    # Drivers do not list GPUs whose device files this user may not open.
    files = sorted(map(str, (*_DEV.glob("dri/renderD*"), *_DEV.glob("kfd"))))
    closed = [file for file in files if not os.access(file, os.R_OK | os.W_OK)]
    named = os.environ.get("OCL_ICD_VENDORS")
    if closed:
        facts.append(("no permission", ", ".join(closed)))
        advice = (
            "Add this user to the group that owns the GPU's device file, and log in again: "
            f"sudo usermod -aG render $USER. Or install {_DRIVERS}"
        )
    elif RUSTICL in platforms:
        facts.append(("RUSTICL_ENABLE", os.environ.get("RUSTICL_ENABLE") or "not set"))
        advice = f"{RUSTICL_ADVICE} Or install {_DRIVERS}"
    elif named is not None:
        facts.append(("OCL_ICD_VENDORS", named))
        advice = (
            "OCL_ICD_VENDORS hides all other drivers: unset it, or name a driver that can be "
            f"loaded. Or install {_DRIVERS}"
        )
    return EngineError(
        "there is no OpenCL device on this machine",
        facts=tuple(facts),
        where="opencl",
        advice=advice,
    )
