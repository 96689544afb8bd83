"""The platforms and devices of OpenCL, and whether they can be used."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cache
from threading import Lock
from typing import final

import pyopencl as cl

from lamina.engines.engine import LISTING, Device
from lamina.engines.opencl.requirements import no_device
from lamina.errors import EngineError
from lamina.records import frozen_dataclass

_LEAST_VERSION = (1, 2)
# Drivers with wrong results, by prefixes of the device's name and of the driver's version.
_FAULTY = (("llvmpipe", "22.3."),)


@frozen_dataclass
class Found:
    """A device that was found, whether or not it can be used.

    Attributes:
        record: its description.
        handle: the driver's object; None for a driver that fails to list its devices.
    """

    record: Device
    handle: cl.Device | None


def chosen(name: str, found: Sequence[Found]) -> Found:
    """The device of that name, among the found devices.

    Raises:
        EngineError: if there is none, or it cannot be used.
    """
    wanted = name.partition(":")[2].lower()
    if wanted.isdecimal():
        missing = f"there is no OpenCL device number {wanted}"
        named = [one for one in found if one.record.engine == f"opencl:{wanted}"]
    else:
        missing = f"no OpenCL device is named {wanted!r}"
        named = [one for one in found if wanted in one.record.description.lower()]
    for one in named:
        if not one.record.problem:
            return one
    rows = [one.record for one in named or found]
    raise EngineError(
        "this OpenCL device cannot be used" if named else missing,
        facts=tuple(
            (row.engine, row.description + (f": {row.problem}" if row.problem else ""))
            for row in rows
        ),
        where=name,
        advice=f"{LISTING} all devices; docs/opencl.md lists the drivers that hardware needs.",
    )


def found_devices() -> tuple[Found, ...]:
    """Every device of every platform: GPUs first, processors last.

    Raises:
        EngineError: if there is none, or in a process forked from one that has used OpenCL.
    """
    require_own_process()
    # Drivers start threads when devices are listed. A forked child lacks these threads.
    _fork.matters = True
    with _asking:
        return _found()


_asking = Lock()


@cache
def _found() -> tuple[Found, ...]:
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        raise no_device(f"no platform ({status_text(error)})") from error
    handles: list[cl.Device] = []
    broken: list[tuple[str, str]] = []
    for platform in platforms:
        try:
            handles += platform.get_devices()
        except cl.Error as error:
            # This error code means that a platform has no device.
            if error.code != cl.status_code.DEVICE_NOT_FOUND:
                broken.append((platform.name, f"the driver fails: {status_text(error)}"))
    if not handles and not broken:
        raise no_device(f"drivers without one: {', '.join(one.name for one in platforms)}")
    kinds = cl.device_type
    handles.sort(key=lambda one: (not one.type & kinds.GPU, bool(one.type & kinds.CPU)))
    found = [Found(_record(number, handle), handle) for number, handle in enumerate(handles)]
    for number, (name, problem) in enumerate(broken, len(handles)):
        found.append(Found(Device(f"opencl:{number}", name, None, problem), None))
    return tuple(found)


def _record(number: int, handle: cl.Device) -> Device:
    texts = (handle.name, handle.platform.name, handle.driver_version)
    name, platform, driver = (" ".join(text.split()) for text in texts)
    description = f"{name} ({platform}, {driver})"
    return Device(f"opencl:{number}", description, handle.global_mem_size, _problem(handle))


def _problem(handle: cl.Device) -> str:
    """Why a device cannot be used; "" if it can."""
    found = re.match(r"OpenCL (\d+)\.(\d+)", handle.version)
    if found is None or (int(found[1]), int(found[2])) < _LEAST_VERSION:
        return f"needs OpenCL 1.2, the driver has {handle.version.strip()}"
    if any(
        handle.name.startswith(device) and handle.driver_version.startswith(version)
        for device, version in _FAULTY
    ):
        return f"driver {handle.driver_version} has wrong results; docs/opencl.md lists them"
    if not handle.available:
        return "the driver reports that it is not available"
    if not handle.compiler_available:
        return "the driver has no compiler"
    if not handle.endian_little:
        return "its numbers are big-endian"
    if handle.profile != "FULL_PROFILE":
        return f"needs the full profile of OpenCL, the driver has {handle.profile}"
    return ""


def status_text(error: cl.Error) -> str:
    """The status of an error, and the function of OpenCL that failed."""
    return f"{cl.status_code.to_string(error.code)} in {error.routine}"


@final
class _Fork:
    """Whether this process was forked from one that has used OpenCL."""

    def __init__(self) -> None:
        self.matters = self.happened = False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._note)

    def _note(self) -> None:
        self.happened = self.matters


_fork = _Fork()


def require_own_process() -> None:
    """Refuses a process that was forked from one that has used OpenCL.

    Raises:
        EngineError: with the alternatives.
    """
    if _fork.happened:
        raise EngineError(
            "OpenCL cannot be used in a process that was forked from one that has used it",
            where="opencl",
            advice="Start new processes: multiprocessing.get_context('spawn'); or use OpenCL in "
            "the children only.",
        )
