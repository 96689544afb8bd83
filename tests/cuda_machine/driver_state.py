"""What the double of the CUDA driver knows: devices, contexts, handles; and how a call is made."""

from __future__ import annotations

import functools
import itertools
import re
import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from cuda.bindings.driver import CUdevice_attribute, CUresult, CUstreamCaptureMode

from cuda_machine.faults import Fault, OutOfMemory
from cuda_machine.machine import Machine
from cuda_machine.memory import Memory
from cuda_machine.operations import Node, Operation, Scheduler, Stream
from lamina.base.garbage import Pause

# Static and dynamic shared memory of a block that has not opted in to more.
SHARED_WITHOUT_OPT_IN = 48 * 1024
# By compute capability, the bytes of shared memory of a multiprocessor, and the most of a block
# (CUDA C++ Programming Guide, Technical Specifications per Compute Capability).
SHARED_BYTES = {
    (7, 5): (64 << 10, 64 << 10),
    (8, 0): (164 << 10, 163 << 10),
    (8, 6): (100 << 10, 99 << 10),
    (8, 9): (100 << 10, 99 << 10),
    (9, 0): (228 << 10, 227 << 10),
}


@dataclass(frozen=True)
class DeviceDescription:
    """A device of the double. `capability` is one of `SHARED_BYTES`; `memory` is in bytes."""

    name: str = "Lamina PTX machine"
    capability: tuple[int, int] = (8, 0)
    memory: int = 64 << 20
    multiprocessors: int = 4

    @property
    def most_shared(self):
        """The shared memory of a block that has opted in to all of it."""
        return SHARED_BYTES[self.capability][1]

    def attributes(self):
        values = {
            "COMPUTE_CAPABILITY_MAJOR": self.capability[0],
            "COMPUTE_CAPABILITY_MINOR": self.capability[1],
            "MULTIPROCESSOR_COUNT": self.multiprocessors,
            "MAX_THREADS_PER_BLOCK": 1024,
            "MAX_SHARED_MEMORY_PER_BLOCK": SHARED_WITHOUT_OPT_IN,
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": self.most_shared,
            "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": SHARED_BYTES[self.capability][0],
            "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
            # 10 bytes of memory in a clock for each of four multiprocessors.
            "CLOCK_RATE": 1_600_000,
            "MEMORY_CLOCK_RATE": 1_000_000,
            "GLOBAL_MEMORY_BUS_WIDTH": 256,
            "COMPUTE_MODE": 0,
            "INTEGRATED": 0,
        }
        return {
            getattr(CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"): value
            for name, value in values.items()
        }


class CudaError(Exception):
    """A call fails with a result of CUDA, by its name without CUDA_ERROR_."""

    def __init__(self, name):
        super().__init__(f"CUDA_ERROR_{name}")
        self.result = getattr(CUresult, f"CUDA_ERROR_{name}")


class OutsideTheDouble(Exception):
    """The double does not have it, or CUDA's documentation does not say what would happen."""


class UseAfterRelease(Exception):
    """An operation runs after something that it uses was freed or unloaded."""

    def __init__(self, text, error="LAUNCH_FAILED"):
        super().__init__(text)
        self.error = error


@dataclass(eq=False)
class Device:
    ordinal: int
    description: DeviceDescription
    memory: Memory
    machine: Machine
    primary: Context | None = None
    # What every later call returns: after a fault a process cannot use its device any more.
    error: str = ""


@dataclass(eq=False)
class Context:
    """A primary context, and its clock."""

    handle: int
    device: Device
    # Milliseconds of the simulated clock; see `Event.time`.
    clock: float = 0.0

    def check(self):
        if self.device.error:
            raise CudaError(self.device.error)


@dataclass(eq=False)
class Allocation:
    """Memory of a device."""

    address: int
    size: int
    context: Context
    freed: bool = False
    # The error of a copy or fill that runs after it was freed.
    used_when_freed = "a copy or fill runs after its memory was freed", "ILLEGAL_ADDRESS"

    @property
    def memory(self):
        """The memory of the device."""
        return self.context.device.memory


@dataclass(eq=False)
class HostAllocation(Allocation):
    """Page-locked memory of the host. Arrays may view the buffer after it was freed."""

    buffer: Any = None
    used_when_freed = "a copy runs after its page-locked memory was freed", "LAUNCH_FAILED"


class Thread(threading.local):
    """What each thread has: the contexts that it has made current, the present one last.

    And its mode, which cuThreadExchangeStreamCaptureMode changes.
    """

    def __init__(self):
        self.contexts = []
        self.capture_mode = CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL


class State:
    """All that lives in a process that uses CUDA."""

    def __init__(self, devices, order, counts):
        self.devices, self.counts = devices, counts
        self.initialized = False
        self.lock = threading.RLock()
        self.scheduler = Scheduler(order)
        self.faults = []
        self.handles = {}
        self.allocations = {}
        self.pinned = {}
        # Buffers that were freed last: an array of the caller may still view them.
        self.released = deque()
        self.thread = Thread()
        self._numbers = itertools.count(0x10_0000, 0x10)

    def current(self):
        """The context that is current in the calling thread; otherwise INVALID_CONTEXT."""
        if not self.thread.contexts:
            raise CudaError("INVALID_CONTEXT")
        return self.thread.contexts[-1]

    def new_handle(self):
        return next(self._numbers)

    def add(self, kind, *fields):
        """Something new with a handle."""
        handle = self.new_handle()
        self.handles[handle] = thing = kind(handle, *fields)
        return thing

    def find(self, kind, handle, error="INVALID_HANDLE"):
        """The living object of a handle; `error` if there is none of this kind."""
        found = self.handles.get(int(handle))
        if not isinstance(found, kind):
            raise CudaError(error)
        return found

    def find_stream(self, handle):
        if int(handle) in (0, 1, 2):
            raise OutsideTheDouble("the double has no default stream")
        stream = self.find(Stream, handle)
        stream.context.check()
        return stream

    def check_unsafe_call(self):
        """Refuse a call that captures prohibit (cuThreadExchangeStreamCaptureMode); end these."""
        if self.thread.capture_mode == CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED:
            return
        handles, thread = self.handles.values(), threading.get_ident()
        captures = [stream.capture for stream in handles if isinstance(stream, Stream)]
        prohibiting = [capture for capture in captures if capture and capture.prohibits(thread)]
        for capture in prohibiting:
            capture.invalidated = True
        if prohibiting:
            raise CudaError("STREAM_CAPTURE_UNSUPPORTED")

    def submit(self, stream, operation):
        stream.last = operation
        self.scheduler.submit(operation)
        return operation

    def run_or_capture(self, stream, action, *, waits=False):
        """Add an operation to a stream, or to its capture; `waits` as in `Node`.

        A fault of the action fails its device. A device that has failed does nothing more.
        """
        device = stream.context.device

        def run():
            try:
                return 0.0 if device.error else action()
            except (Fault, UseAfterRelease) as fault:
                self.faults.append(fault)
                device.error = error_of(fault)
                return 0.0

        if stream.capture is None:
            self.submit(stream, Operation(stream.context, run, stream.predecessors()))
        elif stream.capture.invalidated:
            raise CudaError("STREAM_CAPTURE_INVALIDATED")
        else:
            stream.capture.nodes.append(Node(run, waits))

    def wait(self, operation):
        self.scheduler.wait(operation)
        operation.context.check()


def error_of(fault):
    """The error that CUDA reports for a fault.

    Hardware does not report races and reads of uninitialized memory. The double does, so that no
    test passes over them.
    """
    if isinstance(fault, UseAfterRelease):
        return fault.error
    kind = re.match("an? (illegal|misaligned) address", str(fault))
    return f"{kind[1].upper()}_ADDRESS" if kind else "LAUNCH_FAILED"


def driver_call(outputs=0, *, context=True, initialized=True):
    """A method as a function of cuda.bindings.driver: it returns the result, then the outputs.

    `outputs` is the number of outputs, which are None after an error. `context` says that the call
    needs a current context and returns its error, once it has one. Results of earlier, asynchronous
    operations are returned by any call, as the driver documents.
    """

    def decorate(method):
        @functools.wraps(method)
        def call(state, *arguments, **named):
            state.counts[method.__name__] += 1
            with state.lock:
                # A finalizer may call the driver; on a real one, none runs within another call.
                pause = Pause()
                try:
                    if initialized and not state.initialized:
                        raise CudaError("NOT_INITIALIZED")
                    if context:
                        state.current().check()
                    returned = method(state, *arguments, **named)
                except (CudaError, OutOfMemory) as error:
                    failed = error if isinstance(error, CudaError) else CudaError("OUT_OF_MEMORY")
                    return (failed.result, *(None,) * outputs)
                finally:
                    state.scheduler.after_call()
                    pause.end()
            if outputs == 0:
                return (CUresult.CUDA_SUCCESS,)
            return (CUresult.CUDA_SUCCESS, *(returned if outputs > 1 else (returned,)))

        return call

    return decorate
