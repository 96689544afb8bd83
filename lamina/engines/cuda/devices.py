"""The devices of CUDA, and whether they can be used."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from lamina.base.records import frozen_dataclass
from lamina.engines.cuda.calls import Cuda, CudaError, cuda
from lamina.engines.cuda.requirements import (
    INSTALL,
    LEAST_CAPABILITY,
    LEAST_CUDA,
    no_device,
    too_old,
)
from lamina.engines.engine import Device
from lamina.engines.gpu.selection import FoundDevice, OwnProcess, chosen_device

# The first compute capabilities whose tensor cores multiply float16, bfloat16 and TF32.
_FLOAT16, _BFLOAT16, _TF32 = (7, 5), (8, 0), (8, 0)

# Begins the problem of devices without packages.
MISSING = "missing packages"

own_process = OwnProcess("CUDA", "cuda")


@frozen_dataclass
class Found(FoundDevice[Any]):
    """A device of a compute capability, (8, 0)."""

    capability: tuple[int, int]


def found_devices() -> tuple[Found, ...]:
    """Every device, in the driver's order.

    Raises:
        EngineError: if a package, the driver or a device is missing, the driver is too old, or the
            process was forked from one that has used CUDA.
    """
    with own_process.listing():
        return _found(cuda())


@cache
def _found(api: Cuda) -> tuple[Found, ...]:
    version = int(api.driver.cuDriverGetVersion())
    if version // 1000 < LEAST_CUDA:
        raise too_old(_cuda_text(version))
    count = int(api.driver.cuDeviceGetCount())
    if count == 0:
        raise no_device("none")
    missing = api.missing()
    return tuple(_device(api, number, version, missing) for number in range(count))


def _cuda_text(version: int) -> str:
    """The version of CUDA that a driver supports: 12040 is "CUDA 12.4"."""
    return f"CUDA {version // 1000}.{version % 1000 // 10}"


def _device(api: Cuda, number: int, version: int, missing: Sequence[str]) -> Found:
    engine = f"cuda:{number}"
    try:
        handle = api.driver.cuDeviceGet(number)
        name = api.driver.cuDeviceGetName(256, handle).split(b"\0")[0].decode(errors="replace")
        capability = (
            attribute(api, handle, "COMPUTE_CAPABILITY_MAJOR"),
            attribute(api, handle, "COMPUTE_CAPABILITY_MINOR"),
        )
        text = ".".join(map(str, capability))
        driver = _cuda_text(version)
        record = Device(
            engine,
            f"{name} (compute capability {text}, {driver})",
            int(api.driver.cuDeviceTotalMem(handle)),
            *_problem(api, handle, capability, missing),
            name=name,
            platform="Nvidia CUDA",
            driver=driver,
            version=f"compute capability {text}",
            local_memory_bytes=attribute(api, handle, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            compute_units=attribute(api, handle, "MULTIPROCESSOR_COUNT"),
            has_bfloat16=capability >= _BFLOAT16,
            has_float16=capability >= _FLOAT16,
            has_float64=True,
            has_tf32=capability >= _TF32,
            shares_memory=bool(attribute(api, handle, "INTEGRATED")),
        )
    except CudaError as error:
        remedy = "Restart the machine."
        record = Device(engine, "", None, f"the driver fails: {error}", remedy)
        return Found(record, None, (0, 0))
    return Found(record, handle, capability)


def _problem(
    api: Cuda, handle: Any, capability: tuple[int, int], missing: Sequence[str]
) -> tuple[str, str]:
    """Why a device cannot be used, and what to do about it; "" and "" if it can."""
    if capability < LEAST_CAPABILITY:
        required, provided = (f"{major}.{minor}" for major, minor in (LEAST_CAPABILITY, capability))
        return (
            f"needs compute capability {required}, the device has {provided}",
            "Use the opencl engine, which runs on older GPUs.",
        )
    # CU_COMPUTEMODE_PROHIBITED
    if attribute(api, handle, "COMPUTE_MODE") == 2:
        return (
            "its compute mode prohibits programs",
            "An administrator can change it: nvidia-smi --compute-mode=DEFAULT.",
        )
    if missing:
        return f"{MISSING}: {', '.join(missing)}", INSTALL
    return "", ""


def attribute(api: Cuda, handle: Any, name: str) -> int:
    """An attribute of a device, by its name without `CU_DEVICE_ATTRIBUTE_`."""
    kinds = api.driver.module.CUdevice_attribute
    return int(
        api.driver.cuDeviceGetAttribute(getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{name}"), handle)
    )


def chosen(name: str, devices: Sequence[Found]) -> Found:
    """The device of a name, among the found devices: `"cuda"`, `"cuda:1"`, or `"cuda:a100"`."""
    return chosen_device(
        name,
        devices,
        language="CUDA",
        text_of=lambda record: record.name,
        nearest=lambda _, rows: next((row.engine for row in rows if not row.problem), ""),
    )
