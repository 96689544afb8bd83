"""Functions of OpenCL that are called without pyopencl, because it lacks them or takes longer."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import pyopencl as cl
import pyopencl._cl as wrapped

from lamina.base.shapes import Array


@cache
def loader() -> ctypes.CDLL:
    """The loader that pyopencl uses: systems look up names in the libraries that it needs too."""
    return ctypes.CDLL(wrapped.__file__)


def function(name: str, result: Any, *arguments: Any) -> Callable[..., Any] | None:
    """A function of OpenCL; None on Windows, which does not look for it in other libraries."""
    try:
        return ctypes.CFUNCTYPE(result, *arguments)((name, loader()))
    except AttributeError:
        return None


@cache
def _writing() -> Callable[..., int] | None:
    pointer, number, size = ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t
    types = (pointer, pointer, number, size, size, pointer, number, pointer, pointer)
    return function("clEnqueueWriteBuffer", ctypes.c_int, *types)


def send(queue: cl.CommandQueue, buffer: cl.Buffer, array: Array, offset: int) -> cl.Event:
    """Enqueues a copy of a contiguous array to an offset in a buffer; does not keep the array.

    The array may be released only after the copy; an array that is memory of OpenCL is unmapped by
    a later command of the queue. pyopencl would keep the array, and wait for the copy when its
    event is released.

    Raises:
        pyopencl.Error: if the driver refuses it.
    """
    write = _writing()
    if write is None:
        return cl.enqueue_copy(queue, buffer, array, dst_offset=offset, is_blocking=False)
    event = ctypes.c_void_p()
    code = write(
        *(queue.int_ptr, buffer.int_ptr, 0, offset, array.nbytes, array.ctypes.data),
        *(0, None, ctypes.byref(event)),
    )
    require_success(code, "clEnqueueWriteBuffer")
    assert event.value is not None
    return cl.Event.from_int_ptr(event.value, retain=False)


def require_success(code: int, routine: str) -> None:
    """Raises the error for a status, unless it is a success."""
    if code:
        raise failed(code, routine)


def failed(code: int, routine: str) -> cl.Error:
    """The error for a status of a function that pyopencl does not wrap."""
    # The constructor of pyopencl's errors takes this record.
    record = wrapped._ErrorRecord(msg="", code=code, routine=routine)  # pyright: ignore[reportPrivateUsage]
    return cl.RuntimeError(record)
