"""Failures and kernels of OpenCL devices; tests that import this are skipped without pyopencl."""

from collections.abc import Callable
from typing import Any

import pytest

from lamina.engines.gpu.gpus import GpuFamily

pytest.importorskip("pyopencl", reason="needs pyopencl: pip install 'lamina[opencl]'")

import pyopencl as cl


def failure(status: str, routine: str, kind: Any = cl.RuntimeError) -> Exception:
    """An error of a function of the driver."""
    code = getattr(cl.status_code, status)
    return kind(cl._cl._ErrorRecord(msg="", code=code, routine=routine))


def for_gpus(driver: Any) -> GpuFamily:
    """The kernels for GPUs, also for a processor."""
    return GpuFamily(driver.traits, driver.words, driver.record.engine)


def refusing(status: str, routine: str, kind: Any = cl.RuntimeError) -> Callable[..., Any]:
    """A function of the driver that fails."""

    def refuse(*_: Any, **__: Any) -> None:
        raise failure(status, routine, kind)

    return refuse
