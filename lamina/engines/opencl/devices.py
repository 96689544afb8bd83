"""Platforms and devices of OpenCL: which there are, whether they can be used, and opening one."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from threading import Lock
from typing import final

import pyopencl as cl

from lamina.engines import machine_memory
from lamina.engines.engine import Device
from lamina.engines.gpu.launches import Traits
from lamina.engines.opencl.requirements import no_device
from lamina.errors import EngineError
from lamina.records import frozen_dataclass

_LEAST_VERSION = (1, 2)


@frozen_dataclass
class Found:
    """A device, whether or not it can be used.

    Attributes:
        record: what it is, for people.
        handle: the driver's own object.
    """

    record: Device
    handle: cl.Device


@final
class OpenDevice:
    """A device in use: its context, its queue, and how much memory was taken.

    All commands go into one queue, which runs them in order: whoever reads a memory sees what all
    programs before have written.
    """

    def __init__(self, found: Found) -> None:
        _require_own_process()
        self.record, self.handle = found.record, found.handle
        self.traits = _traits(found.handle)
        self.allocated_bytes = 0
        self._lock = Lock()
        with driver_errors(self, "opening the device"):
            self.context = cl.Context([found.handle])
            self._queue = cl.CommandQueue(self.context)

    @property
    def queue(self) -> cl.CommandQueue:
        """Where commands go.

        Raises:
            EngineError: in a process that was forked from the one that has opened the device.
        """
        _require_own_process()
        return self._queue

    def available_bytes(self) -> int:
        """How much memory can still be taken."""
        left = self.handle.global_mem_size - self.allocated_bytes
        of_machine = machine_memory.available_bytes()
        if self.handle.host_unified_memory and of_machine is not None:
            left = min(left, of_machine)
        return max(left, 0)

    def count(self, size: int) -> None:
        """Notes that so many bytes were taken, or given back if it is negative."""
        with self._lock:
            self.allocated_bytes += size


@cache
def open_device(name: str) -> OpenDevice:
    """The device of that name: `"opencl"` (the first that works), `"opencl:1"`, `"opencl:radeon"`.

    It is opened once, and stays open until the process ends.

    Raises:
        EngineError: if there is none, or it cannot be used.
    """
    return _opened(chosen(name, found_devices()))


_opened = cache(OpenDevice)


def chosen(name: str, found: Sequence[Found]) -> Found:
    """The device that a name means, as for `open_device`."""
    wanted = name.partition(":")[2].lower()
    if wanted.isdecimal():
        named = [one for one in found if one.record.engine == f"opencl:{int(wanted)}"]
    else:
        named = [one for one in found if wanted in one.record.description.lower()]
    for one in named:
        if not one.record.problem:
            return one
    rows = [one.record for one in named or found]
    raise EngineError(
        "this OpenCL device cannot be used" if named else f"no OpenCL device is named {wanted!r}",
        facts=tuple(
            (row.engine, row.description + (f": {row.problem}" if row.problem else ""))
            for row in rows
        ),
        where=name,
        advice="lamina.devices() lists what there is; docs/opencl.md says what hardware needs.",
    )


def found_devices() -> tuple[Found, ...]:
    """Every device of every platform: GPUs first, processors last.

    Raises:
        EngineError: if there is none, or in a process that was forked from one that has asked.
    """
    _require_own_process()
    return _found()


@cache
def _found() -> tuple[Found, ...]:
    # Drivers start threads as soon as they are asked for devices; a forked child has none of them.
    _fork.matters = True
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        raise no_device(f"no platform ({_status(error)})") from error
    handles = [handle for platform in platforms for handle in _devices_of(platform)]
    if not handles:
        raise no_device(f"drivers without one: {', '.join(one.name for one in platforms)}")
    kinds = cl.device_type
    handles.sort(key=lambda one: (not one.type & kinds.GPU, bool(one.type & kinds.CPU)))
    return tuple(Found(_record(n, handle), handle) for n, handle in enumerate(handles))


def _devices_of(platform: cl.Platform) -> Iterator[cl.Device]:
    # A platform without devices says so by an error; so does one that is broken.
    with suppress(cl.Error):
        yield from platform.get_devices()


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
    if not handle.available:
        return "the driver says that it is not available"
    if not handle.compiler_available:
        return "the driver has no compiler"
    if not handle.endian_little:
        return "its numbers are big-endian"
    if handle.profile != "FULL_PROFILE":
        return f"needs the full profile of OpenCL, the driver has {handle.profile}"
    return ""


def _traits(handle: cl.Device) -> Traits:
    kinds = cl.device_fp_config
    return Traits(
        has_float64=bool(handle.double_fp_config),
        largest_group=handle.max_work_group_size,
        local_bytes=handle.local_mem_size,
        lanes=handle.preferred_vector_width_float,
        fused=bool(handle.single_fp_config & kinds.FMA),
        exact_division=bool(handle.single_fp_config & kinds.CORRECTLY_ROUNDED_DIVIDE_SQRT),
        alignment_bytes=handle.mem_base_addr_align // 8,
        largest_block_bytes=handle.max_mem_alloc_size,
        is_cpu=bool(handle.type & cl.device_type.CPU),
    )


@contextmanager
def driver_errors(device: OpenDevice, doing: str, *facts: tuple[str, str]) -> Generator[None]:
    """Turns what the driver refuses into errors that say what Lamina was doing."""
    try:
        yield
    except cl.Error as error:
        raise EngineError(
            f"the OpenCL driver failed at {doing}",
            facts=(("driver said", _status(error)), *facts, ("device", device.record.description)),
            where=device.record.engine,
            advice="If it is memory that lacks, take a smaller batch; otherwise update the driver.",
        ) from error


def _status(error: cl.Error) -> str:
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


def _require_own_process() -> None:
    if _fork.happened:
        raise EngineError(
            "OpenCL cannot be used in a process that was forked from one that has used it",
            where="opencl",
            advice="Start processes afresh: multiprocessing.get_context('spawn'); or use OpenCL "
            "in the children alone.",
        )
