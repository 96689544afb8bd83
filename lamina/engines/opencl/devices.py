"""The platforms and devices of OpenCL, and whether they can be used.

Listing devices runs nothing on them; the verdict of an earlier self-test is shown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pyopencl as cl

from lamina.engines.engine import Device
from lamina.engines.gpu.selection import FoundDevice, OwnProcess, chosen_device
from lamina.engines.opencl.requirements import RUSTICL, RUSTICL_ADVICE, no_device
from lamina.engines.opencl.verdicts import HALF_TYPE, verdict_of
from lamina.foreign import nearest

_LEAST_VERSION = (1, 2)
_UPDATE = "Update the driver, or install another one: docs/opencl.md lists them by hardware."

# A driver that fails to list its devices has no handle.
Found = FoundDevice[cl.Device | None]


def chosen(name: str, devices: Sequence[Found]) -> Found:
    """The device of that name, among the found devices."""
    return chosen_device(
        name,
        devices,
        language="OpenCL",
        text_of=lambda record: record.description,
        nearest=_nearest,
        more="; docs/opencl.md lists the drivers that hardware needs",
    )


def _nearest(text: str, rows: Sequence[Device]) -> str:
    """The name of a usable device that is similar to a number or text; "" for none."""
    usable = [row for row in rows if not row.problem]
    if text.isdecimal() and usable:
        return min(
            usable, key=lambda row: abs(int(row.engine.partition(":")[2]) - int(text))
        ).engine
    texts = " ".join(row.description for row in usable).lower()
    near = nearest(text, re.findall(r"[a-z][a-z0-9]+", texts))
    return f"opencl:{near}" if near else ""


def found_devices() -> tuple[Found, ...]:
    """Every device of every platform: GPUs first, processors last.

    Raises:
        EngineError: if there is none, or in a process forked from one that has used OpenCL.
    """
    # Drivers start threads when devices are listed. A forked child lacks these threads.
    with own_process.listing():
        return tuple(map(_with_verdict, _found()))


@cache
def _found() -> tuple[Found, ...]:
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        raise no_device(f"no platform ({status_text(error)})") from error
    handles: list[cl.Device] = []
    broken: list[tuple[str, str, str]] = []
    hidden: list[tuple[str, str, str]] = []
    for platform in platforms:
        try:
            available = platform.get_devices()
        except cl.Error as error:
            # This error code means that a platform has no device.
            if error.code != cl.status_code.DEVICE_NOT_FOUND:
                broken.append((platform.name, f"the driver fails: {status_text(error)}", _UPDATE))
                continue
            available = []
        handles += available
        if not available and platform.name == RUSTICL:
            hidden.append((platform.name, "Mesa's driver shows no device", RUSTICL_ADVICE))
    if not handles and not broken:
        names = [platform.name for platform in platforms]
        raise no_device(f"drivers without one: {', '.join(names)}", names)
    kinds = cl.device_type
    handles.sort(key=lambda handle: (not handle.type & kinds.GPU, bool(handle.type & kinds.CPU)))
    devices = [Found(_record(number, handle), handle) for number, handle in enumerate(handles)]
    for number, (name, problem, remedy) in enumerate((*broken, *hidden), len(handles)):
        devices.append(Found(Device(f"opencl:{number}", name, None, problem, remedy), None))
    return tuple(devices)


def _with_verdict(device: Found) -> Found:
    """The device with the verdict of its self-test, if there is one."""
    handle, record = device.handle, device.record
    if handle is None or record.problem:
        return device
    verdict = verdict_of(handle)
    if verdict is None:
        return Found(replace(record, self_test="not run yet"), handle)
    notes = tuple(
        f"{fault.what}: {fault.workaround}" for fault in verdict.faults if fault.workaround
    )
    has_type = record.has_float16 and HALF_TYPE not in verdict.faults
    record = replace(record, self_test="passed", notes=notes, has_float16=has_type)
    if verdict.refused:
        what = "; ".join(fault.what for fault in verdict.refused)
        record = replace(
            record,
            self_test="failed",
            problem=f"the self-test found faults of its driver: {what}",
            remedy=f"{_UPDATE} Until then take another device, or the cpu engine.",
        )
    return Found(record, handle)


def _record(number: int, handle: cl.Device) -> Device:
    engine = f"opencl:{number}"
    try:
        texts = (handle.name, handle.platform.name, handle.driver_version, handle.version)
        name, platform, driver, version = (" ".join(text.split()) for text in texts)
        problem, remedy = _problem(handle)
        return Device(
            engine,
            f"{name} ({platform}, {driver})",
            handle.global_mem_size,
            problem,
            remedy,
            name=name,
            platform=platform,
            driver=driver,
            version=version,
            largest_allocation_bytes=handle.max_mem_alloc_size,
            local_memory_bytes=handle.local_mem_size,
            compute_units=handle.max_compute_units,
            has_bfloat16=False,
            has_float16=has_float16(handle),
            has_float64=bool(handle.double_fp_config),
            shares_memory=bool(handle.host_unified_memory),
        )
    except cl.Error as error:
        return Device(engine, "", None, f"the driver fails: {status_text(error)}", _UPDATE)


def has_float16(handle: cl.Device) -> bool:
    """Whether the device says that it computes with float16, and rounds to the nearest number.

    The self-test finds out about subnormal numbers: some devices keep them, and do not say so.
    """
    nearest = cl.device_fp_config.ROUND_TO_NEAREST
    return "cl_khr_fp16" in handle.extensions.split() and bool(handle.half_fp_config & nearest)


def _problem(handle: cl.Device) -> tuple[str, str]:
    """Why a device cannot be used, and what to do about it; "" and "" if it can."""
    version = re.match(r"OpenCL (\d+)\.(\d+)", handle.version)
    if version is None or (int(version[1]), int(version[2])) < _LEAST_VERSION:
        return f"needs OpenCL 1.2, the driver has {handle.version.strip()}", _UPDATE
    if not handle.available:
        return (
            "the driver reports that it is not available",
            "Stop the program that holds the device, or restart the machine.",
        )
    if not handle.compiler_available:
        return (
            "the driver has no compiler",
            "Install the driver's compiler, or another driver: docs/opencl.md lists them.",
        )
    if not handle.endian_little:
        return "its numbers are big-endian", "Use another device, or the cpu engine."
    if handle.profile != "FULL_PROFILE":
        return f"needs the full profile of OpenCL, the driver has {handle.profile}", _UPDATE
    return "", ""


def status_text(error: cl.Error) -> str:
    """The status of an error, and the function of OpenCL that failed."""
    return f"{cl.status_code.to_string(error.code)} in {error.routine}"


own_process = OwnProcess("OpenCL", "opencl")
