"""Opening a device by its name: each device once in a process, and only after its self-test."""

from __future__ import annotations

from functools import cache
from threading import Lock

from lamina.engines.opencl.devices import Found, chosen, found_devices
from lamina.engines.opencl.driver import OpenClDriver
from lamina.engines.opencl.verdicts import verdict_of


def open_device(name: str) -> OpenClDriver:
    """The driver of a device: `"opencl"` (the first usable one), `"opencl:1"`, `"opencl:radeon"`.

    It is opened once, and stays open until the process ends. Before its first use the self-test is
    run, unless its verdict is on disk.

    Raises:
        EngineError: if there is none, or it cannot be used.
    """
    with _opening:
        while True:
            found = chosen(name, found_devices())
            assert found.handle is not None
            if verdict_of(found.handle) is not None:
                return _opened(found)
            # Imported only here: later processes find the verdict on disk.
            from lamina.engines.opencl.selftest import run_selftest

            # A device that fails is not chosen again.
            run_selftest(found)


@cache
def _opened(found: Found) -> OpenClDriver:
    # `chosen` returns no device without a handle, and `open_device` one with a verdict.
    assert found.handle is not None
    verdict = verdict_of(found.handle)
    assert verdict is not None
    return OpenClDriver(found, verdict)


# Without it, threads that call at the same time would get different drivers.
_opening = Lock()
