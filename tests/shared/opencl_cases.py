"""Failures and kernels of OpenCL devices; tests that import this are skipped without pyopencl."""

import re
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


def with_offsets(text: str) -> str:
    """The text of kernels that are written by hand; they also take the offsets of their buffers."""

    def replaced(match: re.Match[str]) -> str:
        parameters = match[2].split(", ")
        buffers = [parameter.rpartition(" ") for parameter in parameters if "*" in parameter]
        numbers = [parameter for parameter in parameters if "*" not in parameter]
        words = [f"{type} {name}_block" for type, _, name in buffers]
        words += [f"uint {name}_offset" for _, _, name in buffers]
        declared = "".join(
            f"\n    {type} {name} = ({type})((global uchar*){name}_block + 128ul * {name}_offset);"
            for type, _, name in buffers
        )
        return f"kernel void {match[1]}({', '.join((*words, *numbers))}) {{{declared}"

    return re.sub(r"\bkernel void (\w+)\((.*)\) {", replaced, text)


def refusing(status: str, routine: str, kind: Any = cl.RuntimeError) -> Callable[..., Any]:
    """A function of the driver that fails."""

    def refuse(*_: Any, **__: Any) -> None:
        raise failure(status, routine, kind)

    return refuse
