"""Command buffers: launches that are recorded once, and enqueued by one call.

The extension cl_khr_command_buffer of OpenCL. pyopencl does not wrap it, so its functions are
called by ctypes, with the handles of pyopencl's objects. Functions of the extension have changed
between its versions, so only `_VERSIONS` are used. The functions called here are the same in all of
them.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

import numpy as np
import pyopencl as cl

from lamina.base.records import frozen_dataclass
from lamina.engines.opencl.direct import failed, function, require_success

_NAME = "cl_khr_command_buffer"
# From the first version to before the last one: (major, minor).
_VERSIONS = (0, 9), (2, 0)
# Its runtime for processors never releases the programs of recorded kernels, and runs recorded
# launches slower than single ones.
_LEAKING_VENDOR = "Intel"
# Constants of the extension.
_CAPABILITIES, _REQUIRED_QUEUE_PROPERTIES = 0x12A9, 0x12AA
_CAN_BE_ENQUEUED_AGAIN = 1 << 2
_FLAGS, _IS_ENQUEUED_AGAIN = 0x1293, 1


@frozen_dataclass
class Kernel:
    """A kernel that has its arguments: blocks, then numbers, and one that launches set.

    The numbers begin with the offsets of its buffers in the blocks.

    Its size is the number of work items, including those without work.
    """

    handle: cl.Kernel
    size: tuple[int]
    group: tuple[int]
    blocks: tuple[cl.Buffer | None, ...]
    numbers: tuple[int, ...]

    def number_setter(self, number: int) -> Callable[[], object]:
        """A call that sets the argument that differs between launches."""
        return argument_setter(self.handle, len(self.blocks) + len(self.numbers), number)


def argument_setter(kernel: Any, position: int, number: int) -> Callable[[], object]:
    """A call that sets an argument of a kernel, an int."""
    # The function below the public `set_arg`, which takes 50 times as long for a number.
    return partial(kernel._set_arg_buf, position, np.int32(number))


@final
class CommandBuffers:
    """The functions of the extension, found by name, and OpenCL's own functions for kernels."""

    def __init__(self, address: Callable[[str], int]) -> None:
        pointer, number, size = ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t

        def typed(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
            return ctypes.CFUNCTYPE(result, *arguments)(address(name))

        code = ctypes.c_int
        sizes = ctypes.POINTER(size)
        self._create = typed("clCreateCommandBufferKHR", pointer, number, *(pointer,) * 3)
        self._launch = typed(
            "clCommandNDRangeKernelKHR",
            code,
            *(*(pointer,) * 4, number, *(sizes,) * 3, number, *(pointer,) * 3),
        )
        self._finalize = typed("clFinalizeCommandBufferKHR", code, pointer)
        self._release = typed("clReleaseCommandBufferKHR", code, pointer)
        self._enqueue = typed(
            "clEnqueueCommandBufferKHR", code, number, pointer, pointer, number, pointer, pointer
        )
        text = ctypes.c_char_p
        self._create_kernel: Any = function("clCreateKernel", pointer, pointer, text, pointer)
        self._set_argument: Any = function("clSetKernelArg", code, pointer, number, size, pointer)
        self._release_kernel: Any = function("clReleaseKernel", code, pointer)

    def record(
        self, queue: cl.CommandQueue, launches: Sequence[tuple[Kernel, int | None]]
    ) -> CommandBuffer:
        """Records launches, with their numbers; pyopencl.Error if the driver refuses them."""
        queues = (ctypes.c_void_p * 1)(queue.int_ptr)
        flags = (ctypes.c_uint64 * 3)(_FLAGS, _IS_ENQUEUED_AGAIN, 0)
        status = ctypes.c_int()
        handle: int | None = self._create(1, queues, flags, ctypes.byref(status))
        if handle is None:
            raise failed(status.value, "clCreateCommandBufferKHR")
        made = CommandBuffer(partial(self._enqueue, 0, None, handle, 0, None, None), launches)
        made.when_released(self._release, handle)
        for kernel, number in launches:
            kernel_handle = kernel.handle.int_ptr
            if number is not None:
                kernel_handle = self._numbered(kernel, number, made)
            size, group = ((ctypes.c_size_t * 1)(*extent) for extent in (kernel.size, kernel.group))
            code = self._launch(
                *(handle, None, None, kernel_handle, 1, None, size, group), *(0, None, None, None)
            )
            require_success(code, "clCommandNDRangeKernelKHR")
        require_success(self._finalize(handle), "clFinalizeCommandBufferKHR")
        return made

    def _numbered(self, kernel: Kernel, number: int, made: CommandBuffer) -> int:
        """A kernel object with a number of its own, which is released with a command buffer.

        The values of arguments should be recorded, but PoCL 3.1 reads them when a command buffer is
        enqueued. Making these objects with pyopencl takes ten times as long.
        """
        program, name = kernel.handle.program.int_ptr, kernel.handle.function_name
        status = ctypes.c_int()
        handle: int | None = self._create_kernel(program, name.encode(), ctypes.byref(status))
        if handle is None:
            raise failed(status.value, "clCreateKernel")
        made.when_released(self._release_kernel, handle)
        blocks = [None if block is None else block.int_ptr for block in kernel.blocks]
        numbers = (*kernel.numbers, number)
        arguments = (*map(ctypes.c_void_p, blocks), *map(ctypes.c_int32, numbers))
        for position, value in enumerate(arguments):
            code = self._set_argument(handle, position, ctypes.sizeof(value), ctypes.byref(value))
            require_success(code, "clSetKernelArg")
        return handle


@final
class CommandBuffer:
    """Recorded launches, which keep their kernels; released with its last reference."""

    def __init__(
        self, enqueue: Callable[[], int], launches: Sequence[tuple[Kernel, int | None]]
    ) -> None:
        self._enqueue, self._launches = enqueue, launches

    def when_released(self, function: Callable[[int], int], handle: int) -> None:
        """Gives a handle back to the driver when this object is released."""
        # At the end of the process the driver may be gone.
        weakref.finalize(self, function, handle).atexit = False

    def enqueue(self) -> None:
        """Enqueues all launches. It is one call of the driver, so no signal comes in between.

        Raises:
            pyopencl.Error: if the driver refuses it.
        """
        require_success(self._enqueue(), "clEnqueueCommandBufferKHR")


def command_buffers(device: cl.Device) -> CommandBuffers | None:
    """The functions of the extension; None if they cannot or should not be used.

    They are used if a command buffer can be enqueued again while its earlier runs are on the
    device, in a queue without further properties.
    """
    if _NAME not in device.extensions.split() or not _has_known_version(device):
        return None
    if device.type & cl.device_type.CPU and _LEAKING_VENDOR in device.platform.vendor:
        return None
    try:
        return _command_buffers(device)
    except cl.Error:
        # The driver names the extension, but lacks a part of it.
        return None


def _command_buffers(device: cl.Device) -> CommandBuffers | None:
    """The functions of the extension; None if it has other limits."""
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    lookup = function("clGetExtensionFunctionAddressForPlatform", pointer, pointer, ctypes.c_char_p)
    types = (pointer, ctypes.c_uint, size, pointer, pointer)
    information = function("clGetDeviceInfo", ctypes.c_int, *types)
    if lookup is None or information is None:
        return None

    def property_of(name: int) -> int:
        value = ctypes.c_uint64()
        code = information(device.int_ptr, name, ctypes.sizeof(value), ctypes.byref(value), None)
        require_success(code, "clGetDeviceInfo")
        return value.value

    if not property_of(_CAPABILITIES) & _CAN_BE_ENQUEUED_AGAIN:
        return None
    if property_of(_REQUIRED_QUEUE_PROPERTIES):
        return None

    def address(name: str) -> int:
        entry_point: int | None = lookup(device.platform.int_ptr, name.encode())
        if entry_point is None:
            raise failed(cl.status_code.INVALID_VALUE, name)
        return entry_point

    return CommandBuffers(address)


def _has_known_version(device: cl.Device) -> bool:
    try:
        versions = {pair.name: pair.version for pair in device.extensions_with_version}
    except cl.Error:
        return False  # Before OpenCL 3.0 devices do not say.
    version = versions.get(_NAME, 0)
    least, end = _VERSIONS
    return least <= (version >> 22, version >> 12 & 0x3FF) < end
