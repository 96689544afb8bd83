"""The verdicts of the self-test: the faults of each device's driver, kept on disk.

Listing devices reads them, and never runs the test.
"""

from __future__ import annotations

import json
import os

import pyopencl as cl

from lamina.base.cache import Sources, find, keep, key_of
from lamina.base.records import frozen_dataclass

# The code that decides the kernels of the test and their expected results.
SOURCES = Sources("lamina.base", "lamina.codegen", "lamina.engines.opencl")


@frozen_dataclass
class Fault:
    """A fault of a driver.

    Attributes:
        what: a phrase for the middle of a sentence that says what is wrong.
        workaround: the means by which the fault has no effect in Lamina; "" if there is none. A
            device with such a fault is refused.
    """

    what: str
    workaround: str = ""


@frozen_dataclass
class Verdict:
    """The result of the self-test of a device: the faults of its driver, none if it is sound."""

    faults: tuple[Fault, ...]

    @property
    def refused(self) -> tuple[Fault, ...]:
        """The faults for which the device cannot be used."""
        return tuple(fault for fault in self.faults if not fault.workaround)


BINARIES = Fault(
    "a program made of its binary fails, or computes something else",
    "Lamina keeps no binaries, and builds programs again in each process",
)

RECORDED = Fault(
    "recorded launches fail, or have other arguments",
    "Lamina records no launches, and enqueues each by a call",
)

# Mesa's llvmpipe reports a nanosecond for any launch.
TIMERS = Fault(
    "the driver reports wrong times of launches", "profiles measure each step with the host's clock"
)

HALF_FUNCTIONS = Fault(
    "vload_half or vstore_half are wrong", "float16 is converted by operations on integers"
)

HALF_TYPE = Fault(
    "cl_khr_fp16 fails, or computes something else",
    "float16 is converted to float32, and computed with in float32",
)

# Mesa's llvmpipe ends loops without an error.
MOST_ITERATIONS = 65_535
SHORT_LOOPS = Fault(
    f"the loops of a work item end after {MOST_ITERATIONS:,} iterations together",
    "programs whose work items have more are refused",
)

# The verdicts that this process knows.
_verdicts: dict[cl.Device, Verdict] = {}


def identity_of(handle: cl.Device) -> tuple[str, ...]:
    """The device and its driver, with everything about them that decides a program's binary."""
    platform = handle.platform
    return (
        *(platform.name, platform.version),
        *(handle.name, handle.version, handle.driver_version),
        *(cl.VERSION_TEXT, os.environ.get("PYOPENCL_BUILD_OPTIONS", "")),
    )


def verdict_of(handle: cl.Device) -> Verdict | None:
    """The verdict on a device, from this process or from the disk; None if there is none."""
    if handle not in _verdicts:
        entry = find(_key_of(handle)) if SOURCES.checksum else None
        if entry is None:
            return None
        _verdicts[handle] = Verdict(tuple(Fault(*row) for row in json.loads(entry)))
    return _verdicts[handle]


def remember(handle: cl.Device, verdict: Verdict, *, on_disk: bool) -> None:
    """Remembers a verdict in this process, and on disk for later ones."""
    _verdicts[handle] = verdict
    if on_disk and SOURCES.checksum and SOURCES.are_unchanged:
        rows = [(fault.what, fault.workaround) for fault in verdict.faults]
        keep(_key_of(handle), json.dumps(rows).encode())


def _key_of(handle: cl.Device) -> str:
    return key_of(("opencl self-test", SOURCES.checksum, *identity_of(handle)))
