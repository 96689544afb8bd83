"""A device of OpenCL in use: its context, its queues, its memory and its kernels."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from operator import call
from typing import final

import numpy as np
import pyopencl as cl

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array
from lamina.codegen.words import NATIVE_HALF, OFFSET_BYTES, OPENCL
from lamina.engines import machine_memory
from lamina.engines.gpu.driver import Allocated, driver_failure
from lamina.engines.gpu.launches import Rates, Traits
from lamina.engines.gpu.nvidia_rates import rates_of_nvidia
from lamina.engines.opencl.build import build, loaded_again
from lamina.engines.opencl.command_buffer import Kernel, argument_setter, command_buffers
from lamina.engines.opencl.devices import Found, has_float16, own_process, status_text
from lamina.engines.opencl.direct import send
from lamina.engines.opencl.verdicts import (
    BINARIES,
    HALF_FUNCTIONS,
    HALF_TYPE,
    MOST_ITERATIONS,
    RECORDED,
    SHORT_LOOPS,
    TIMERS,
    Verdict,
)

# The work items of a work group, unless the device's limit is lower. All launches of a kernel have
# groups of one size, for which PoCL compiles it once.
_GROUP = 64

# Arrays of the host are used where they are if they are aligned for every element of a kernel.
_SHARED_ALIGNMENT = 16


@frozen_dataclass
class Buffer:
    """The bytes of a block from an offset on.

    It is no sub-buffer of OpenCL: Nvidia's driver 580 crashes when sub-buffers are released.
    """

    block: cl.Buffer
    offset: int = 0


_Launches = tuple[tuple[Kernel, int | None], ...]

# Launches that are run many times: it enqueues all of them, without Python in between.
_Sequence = Callable[[], object]


@final
class _Queue:
    """A queue of a device, whose commands run in order."""

    def __init__(self, handle: cl.CommandQueue) -> None:
        self.handle = handle

    def launch(self, kernel: Kernel, number: int | None = None) -> None:
        self.enqueue(kernel, number)

    def enqueue(self, kernel: Kernel, number: int | None) -> cl.Event:
        """Enqueues a kernel like `launch`; the event shows when it was done."""
        if number is not None:
            kernel.number_setter(number)()
        return cl.enqueue_nd_range_kernel(self.handle, kernel.handle, kernel.size, kernel.group)

    def calls(self, launches: _Launches) -> Callable[[], object]:
        """A function that enqueues launches one by one."""
        calls: list[Callable[[], object]] = []
        for kernel, number in launches:
            if number is not None:
                calls.append(kernel.number_setter(number))
            enqueue = cl.enqueue_nd_range_kernel
            calls.append(partial(enqueue, self.handle, kernel.handle, kernel.size, kernel.group))
        # No code in Python runs between the calls, so neither does a handler of a signal.
        return lambda: deque(map(call, calls), maxlen=0)

    def run(self, sequence: _Sequence) -> None:
        sequence()

    def copy(self, target: Buffer, offset: int, source: Buffer, size: int) -> None:
        copy, first, start = cl.enqueue_copy, source.offset, target.offset + offset
        blocks = target.block, source.block
        copy(self.handle, *blocks, byte_count=size, src_offset=first, dst_offset=start)

    def fill(self, block: cl.Buffer, size: int) -> None:
        """Fills a block with zeros, and waits."""
        cl.enqueue_fill_buffer(self.handle, block, np.zeros(1, "uint8"), 0, size).wait()

    def write(self, buffer: Buffer, array: Array) -> None:
        offset = buffer.offset
        cl.enqueue_copy(self.handle, buffer.block, array, dst_offset=offset, is_blocking=True)

    def send(self, buffer: Buffer, array: Array, offset: int = 0) -> cl.Event:
        return send(self.handle, buffer.block, array, buffer.offset + offset)

    def fetch(self, array: Array, buffer: Buffer, offset: int) -> cl.Event:
        copy, start = cl.enqueue_copy, buffer.offset + offset
        return copy(self.handle, array, buffer.block, src_offset=start, is_blocking=False)

    def mark(self) -> cl.Event:
        return cl.enqueue_marker(self.handle)

    def wait_for(self, events: Sequence[cl.Event]) -> None:
        cl.enqueue_barrier(self.handle, wait_for=events)

    def read(self, array: Array, buffer: Buffer) -> None:
        offset = buffer.offset
        cl.enqueue_copy(self.handle, array, buffer.block, src_offset=offset, is_blocking=True)

    def flush(self) -> None:
        self.handle.flush()

    def finish(self) -> None:
        # After `flush`, Mesa's `clFinish` does not wait for the commands before it.
        cl.enqueue_marker(self.handle).wait()


@final
class OpenClDriver:
    """A device in use.

    Raises:
        EngineError: if the driver does not open it.
    """

    def __init__(self, device: Found, verdict: Verdict) -> None:
        own_process.require()
        faults = verdict.faults
        self._keeps_binaries = BINARIES not in faults
        self.record = device.record
        self.allocated = Allocated()
        # `chosen` returns no device without a handle.
        assert device.handle is not None
        self._handle = device.handle
        with self.errors("opening the device"):
            self.traits = replace(
                _traits(device.handle),
                most_iterations=MOST_ITERATIONS if SHORT_LOOPS in faults else None,
                has_float16=has_float16(device.handle) and HALF_TYPE not in faults,
            )
            half = None if HALF_FUNCTIONS in faults else OPENCL.half
            self.words = replace(OPENCL, half=NATIVE_HALF if self.traits.has_float16 else half)
            self._context = cl.Context([device.handle])
            self._queue = _Queue(cl.CommandQueue(self._context))
            # Made when they are needed; the launches of the second are timed by the device.
            self._uploads: _Queue | None = None
            self._timing: _Queue | None = None
            self._command_buffers = None if RECORDED in faults else command_buffers(device.handle)
            self._has_timers = TIMERS not in faults

    @property
    def queue(self) -> _Queue:
        own_process.require()
        return self._queue

    @property
    def upload_queue(self) -> _Queue:
        own_process.require()
        if self._uploads is None:
            self._uploads = _Queue(cl.CommandQueue(self._context))
        return self._uploads

    @contextmanager
    def errors(self, doing: str, *facts: tuple[str, str]) -> Generator[None]:
        try:
            yield
        except cl.Error as error:
            reported = status_text(error)
            raise driver_failure("OpenCL", doing, reported, facts, self.record) from error

    def available_bytes(self) -> int:
        left = self._handle.global_mem_size - self.allocated.bytes
        of_machine = machine_memory.available_bytes()
        if self._handle.host_unified_memory and of_machine is not None:
            left = min(left, of_machine)
        return max(left, 0)

    def allocate(self, size: int) -> Buffer:
        block = cl.Buffer(self._context, cl.mem_flags.READ_WRITE, size)
        # Drivers allocate at the first use of a block, so a lack of memory is an error here.
        self.queue.fill(block, size)
        return Buffer(block)

    def host_array(self, size: int) -> Array:
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
        buffer = cl.Buffer(self._context, flags, size)
        written, bytes = cl.map_flags.WRITE, np.dtype(np.uint8)
        # It stays mapped as long as the array exists.
        array, _ = cl.enqueue_map_buffer(self.queue.handle, buffer, written, 0, (size,), bytes)
        return array

    def shared_buffer(self, array: Array) -> Buffer | None:
        if not self._handle.host_unified_memory or array.ctypes.data % _SHARED_ALIGNMENT:
            return None
        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR
        return Buffer(cl.Buffer(self._context, flags, hostbuf=array))

    def part(self, buffer: Buffer, offset: int) -> Buffer:
        # Kernels would otherwise read other bytes than copies do.
        assert not offset % OFFSET_BYTES
        return Buffer(buffer.block, buffer.offset + offset)

    def release(self, buffer: Buffer) -> None:
        buffer.block.release()

    def build(self, text: str) -> cl.Program:
        with self.errors("building a program"):
            return build(self._context, self._handle, text, keeps=self._keeps_binaries)

    def loaded_again(self, module: cl.Program) -> cl.Program | None:
        """A module made of another one's binary; None if binaries are not used.

        Raises:
            EngineError: if the driver does not load its own binary.
        """
        with self.errors("loading a program's binary"):
            return loaded_again(self._context, self._handle, module)

    def kernel(
        self,
        module: cl.Program,
        name: str,
        buffers: Sequence[Buffer | None],
        items: int,
        *,
        numbers: Sequence[int] = (),
        numbered: bool,
        group: int = 0,
        local_bytes: int = 0,
    ) -> Kernel:
        assert not local_bytes
        handle = cl.Kernel(module, name)
        blocks = tuple(None if buffer is None else buffer.block for buffer in buffers)
        # A null pointer has the offset 0.
        offsets = (0 if buffer is None else buffer.offset // OFFSET_BYTES for buffer in buffers)
        numbers = (*offsets, *numbers)
        for position, block in enumerate(blocks):
            handle.set_arg(position, block)
        for position, number in enumerate(numbers, len(blocks)):
            argument_setter(handle, position, number)()
        if not group:
            most: int = handle.get_work_group_info(
                cl.kernel_work_group_info.WORK_GROUP_SIZE, self._handle
            )
            group = min(_GROUP, most)
        size = -(-items // group) * group
        return Kernel(handle, (size,), (group,), blocks, numbers)

    def sequence(self, launches: Sequence[tuple[Kernel, int | None]]) -> _Sequence:
        row = tuple(launches)
        if self._command_buffers is None or not row:
            return self._queue.calls(row)
        return self._command_buffers.record(self._queue.handle, row).enqueue

    def timed(self, launches: Sequence[tuple[Kernel, int | None]]) -> Callable[[], float]:
        if not self._has_timers:
            sequence = self.sequence(launches)

            def seconds_until_done() -> float:
                """The time of a sequence by the host's clock."""
                self.queue.finish()
                started = time.perf_counter()
                self.queue.run(sequence)
                self.queue.finish()
                return time.perf_counter() - started

            return seconds_until_done
        row = tuple(launches)

        def seconds() -> float:
            own_process.require()
            if self._timing is None:
                profiling = cl.command_queue_properties.PROFILING_ENABLE
                self._timing = _Queue(cl.CommandQueue(self._context, properties=profiling))
            self.queue.finish()
            events = [self._timing.enqueue(kernel, number) for kernel, number in row]
            self._timing.finish()
            return sum(1e-9 * (event.profile.end - event.profile.start) for event in events)

        return seconds


def _traits(handle: cl.Device) -> Traits:
    kinds = cl.device_fp_config
    is_processor = bool(handle.type & cl.device_type.CPU)
    return Traits(
        is_processor=is_processor,
        has_float64=bool(handle.double_fp_config),
        # Intel's driver for processors vectorizes kernels by itself, and prefers scalars.
        lanes=(
            handle.native_vector_width_float
            if is_processor
            else handle.preferred_vector_width_float
        ),
        compute_units=handle.max_compute_units,
        fused=bool(handle.single_fp_config & kinds.FMA),
        exact_division=bool(handle.single_fp_config & kinds.CORRECTLY_ROUNDED_DIVIDE_SQRT),
        alignment_bytes=OFFSET_BYTES,
        # Offsets are passed to kernels as ints.
        largest_block_bytes=min(handle.max_mem_alloc_size, OFFSET_BYTES << 31),
        local_bytes=handle.local_mem_size,
        largest_group=handle.max_work_group_size,
        uploads_during_runs=not (is_processor or handle.host_unified_memory),
        rates=_rates(handle),
    )


def _rates(handle: cl.Device) -> Rates:
    clock = 1e6 * handle.max_clock_frequency
    if "cl_nv_device_attribute_query" not in handle.extensions.split():
        return Rates(clock=clock)
    capability = handle.compute_capability_major_nv, handle.compute_capability_minor_nv
    return rates_of_nvidia(capability, clock)
