"""The requirements of the OpenCL engine, and errors for missing ones. Imports no driver."""

from __future__ import annotations

import os

from lamina.errors import EngineError

# The names are those of Debian's packages.
_DRIVERS = (
    "a driver: for AMD mesa-opencl-icd, or ROCm; for Intel intel-opencl-icd; for Nvidia "
    "nvidia-opencl-icd; for ARM mesa-opencl-icd; for any processor pocl-opencl-icd. "
    "docs/opencl.md has details."
)


def require_package() -> None:
    """Checks that pyopencl can be imported.

    Raises:
        EngineError: with the package to install.
    """
    try:
        import pyopencl as pyopencl
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "pyopencl"
        raise EngineError(
            "the opencl engine needs the package pyopencl",
            facts=(
                ("expected", "pyopencl 2024.1 or later"),
                ("found", "none" if missing else f"one that cannot be imported: {error}"),
            ),
            where="opencl",
            advice=f"Install it with: pip install 'lamina[opencl]'. It also needs {_DRIVERS}",
        ) from error


def no_device(found: str) -> EngineError:
    """The error for a machine without OpenCL devices; `found` describes the drivers that it has."""
    facts = [
        ("expected", "a driver, listed in /etc/OpenCL/vendors or named by OCL_ICD_VENDORS"),
        ("found", found),
    ]
    advice = f"Install {_DRIVERS}"
    named = os.environ.get("OCL_ICD_VENDORS")
    if named is not None:
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
