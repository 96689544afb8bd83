"""What the double of the CUDA driver knows: devices, contexts, handles; and how a call is made."""

from __future__ import annotations

import functools
import itertools
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from cuda.bindings.driver import CUdevice_attribute, CUresult, CUstreamCaptureMode

from cuda_machine.faults import Fault
from cuda_machine.machine import Machine
from cuda_machine.memory import Memory
from cuda_machine.operations import Node, Operation, Order, Scheduler, Stream
from lamina.base.garbage import Pause

Thing = TypeVar("Thing")
# Bytes of page-locked memory that are kept after they were freed.
KEPT_AFTER_RELEASE = 64 << 20
# How the machine's faults begin for which CUDA has an error of their own.
FAULTS = {
    "an illegal address": CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,
    "a misaligned address": CUresult.CUDA_ERROR_MISALIGNED_ADDRESS,
}


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
    def most_shared(self) -> int:
        """The shared memory of a block that has opted in to all of it."""
        return SHARED_BYTES[self.capability][1]

    def attributes(self) -> dict[CUdevice_attribute, int]:
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
    """A call fails with a result of CUDA."""

    def __init__(self, result: CUresult) -> None:
        super().__init__(result.name)
        self.result = result


class OutsideTheDouble(Exception):
    """The double does not have it, or CUDA's documentation does not say what would happen."""


class UseAfterRelease(Exception):
    """An operation runs after something that it uses was freed or unloaded."""

    def __init__(
        self, text: str, cuda_result: CUresult = CUresult.CUDA_ERROR_LAUNCH_FAILED
    ) -> None:
        super().__init__(text)
        self.cuda_result = cuda_result


@dataclass(eq=False)
class Device:
    ordinal: int
    description: DeviceDescription
    memory: Memory
    machine: Machine
    primary: Context | None = None
    # What every later call returns: after a fault a process cannot use its device any more.
    error: CUresult | None = None


@dataclass(eq=False)
class Context:
    """A primary context, and its clock."""

    handle: int
    device: Device
    # Milliseconds of the simulated clock; see `Event.time`.
    clock: float = 0.0

    def check(self) -> None:
        if self.device.error is not None:
            raise CudaError(self.device.error)


@dataclass(eq=False)
class Allocation:
    """Memory of a device."""

    address: int
    size: int
    context: Context
    freed: bool = False
    # The error of a copy or fill that runs after it was freed.
    used_when_freed = (
        "a copy or fill runs after its memory was freed",
        CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,
    )


@dataclass(eq=False)
class HostAllocation(Allocation):
    """Page-locked memory of the host. Arrays may view the buffer after it was freed."""

    buffer: Any = None
    used_when_freed = (
        "a copy runs after its page-locked memory was freed",
        CUresult.CUDA_ERROR_LAUNCH_FAILED,
    )


class State:
    """All that lives in a process that uses CUDA."""

    def __init__(self, devices: Sequence[Device], order: Order, counts: Counter[str]) -> None:
        self.devices, self.counts = devices, counts
        self.initialized = False
        self.lock = threading.RLock()
        self.scheduler = Scheduler(order)
        self.faults: list[Exception] = []
        self.handles: dict[int, Any] = {}
        self.allocations: dict[int, Allocation] = {}
        self.pinned: dict[int, HostAllocation] = {}
        # Buffers that were freed last: an array of the caller may still view them.
        self.released: deque[HostAllocation] = deque()
        self._threads = threading.local()
        self._numbers = itertools.count(0x10_0000, 0x10)

    @property
    def stack(self) -> list[Context]:
        if not hasattr(self._threads, "stack"):
            self._threads.stack = []
        stack: list[Context] = self._threads.stack
        return stack

    def current(self) -> Context:
        """The context that is current in the calling thread; otherwise INVALID_CONTEXT."""
        if not self.stack:
            raise CudaError(CUresult.CUDA_ERROR_INVALID_CONTEXT)
        return self.stack[-1]

    def new_handle(self) -> int:
        return next(self._numbers)

    def add(self, thing: Any) -> Any:
        self.handles[thing.handle] = thing
        return thing

    def find(
        self, kind: type[Thing], handle: Any, error: CUresult = CUresult.CUDA_ERROR_INVALID_HANDLE
    ) -> Thing:
        """The living object of a handle; `error` if there is none of this kind."""
        found = self.handles.get(int(handle))
        if not isinstance(found, kind):
            raise CudaError(error)
        return found

    def find_stream(self, handle: Any) -> Stream:
        if int(handle) in (0, 1, 2):
            raise OutsideTheDouble("the double has no default stream")
        stream = self.find(Stream, handle)
        stream.context.check()
        return stream

    @property
    def capture_mode(self) -> CUstreamCaptureMode:
        """The calling thread's own mode (cuThreadExchangeStreamCaptureMode)."""
        default = CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
        return getattr(self._threads, "capture_mode", default)

    @capture_mode.setter
    def capture_mode(self, mode: CUstreamCaptureMode) -> None:
        self._threads.capture_mode = mode

    def check_unsafe_call(self) -> None:
        """Refuse a call that captures prohibit (cuThreadExchangeStreamCaptureMode); end these."""
        if self.capture_mode == CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED:
            return
        streams = [one for one in self.handles.values() if isinstance(one, Stream)]
        own = [one.capture for one in streams if one.capture is not None]
        prohibiting = [
            one for one in own if one.thread == threading.get_ident() and not one.invalidated
        ]
        for capture in prohibiting:
            capture.invalidated = True
        if prohibiting:
            raise CudaError(CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)

    def enqueue(
        self,
        stream: Stream,
        name: str,
        action: Callable[[], float] | None,
        after: Sequence[Operation] = (),
    ) -> Operation:
        """Add an operation to a stream that is not capturing."""
        before = (*stream.predecessors(), *after)
        return self.submit(stream, Operation(name, stream.context, action, before))

    def submit(self, stream: Stream, operation: Operation) -> Operation:
        stream.last = operation
        self.scheduler.submit(operation)
        return operation

    def guarded(self, context: Context, action: Callable[[], float]) -> Callable[[], float]:
        """An action whose fault fails its device. A device that has failed does nothing more."""

        def run() -> float:
            if context.device.error is not None:
                return 0.0
            try:
                return action()
            except (Fault, UseAfterRelease) as fault:
                self.faults.append(fault)
                context.device.error = result_of(fault)
                return 0.0

        return run

    def run_or_capture(
        self, stream: Stream, name: str, action: Callable[[], float], *, waits: bool = False
    ) -> None:
        """Add an operation to a stream, or to its capture; `waits` as in `Node`."""
        guarded = self.guarded(stream.context, action)
        if stream.capture is None:
            self.enqueue(stream, name, guarded)
            return
        if stream.capture.invalidated:
            raise CudaError(CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
        stream.capture.nodes.append(Node(name, guarded, waits))

    def wait(self, *operations: Operation) -> None:
        for operation in operations:
            self.scheduler.wait(operation)
        for operation in operations:
            operation.context.check()

    def release(self, allocation: Allocation) -> None:
        allocation.freed = True
        allocation.context.device.memory.free(allocation.address)
        del self.allocations[allocation.address]

    def release_pinned(self, allocation: HostAllocation) -> None:
        """Free page-locked memory; what may still be read there is recognizable."""
        allocation.freed = True
        allocation.buffer[:] = 0xA5
        del self.pinned[allocation.address]
        self.released.append(allocation)
        while sum(one.size for one in self.released) > KEPT_AFTER_RELEASE:
            self.released.popleft()


def result_of(fault: Exception) -> CUresult:
    """The error that CUDA reports for a fault.

    Hardware does not report races and reads of uninitialized memory. The double does, so that no
    test passes over them.
    """
    if isinstance(fault, UseAfterRelease):
        return fault.cuda_result
    for beginning, result in FAULTS.items():
        if str(fault).startswith(beginning):
            return result
    return CUresult.CUDA_ERROR_LAUNCH_FAILED


class Calls:
    def __init__(self, state: State) -> None:
        self.state = state


def driver_call(
    outputs: int = 0, *, context: bool = True, initialized: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A method as a function of cuda.bindings.driver: it returns the result, then the outputs.

    `outputs` is the number of outputs, which are None after an error. `context` says that the call
    needs a current context and returns its error, once it has one. Results of earlier, asynchronous
    operations are returned by any call, as the driver documents.
    """

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: Calls, *arguments: Any, **named: Any) -> Any:
            state = self.state
            state.counts[method.__name__] += 1
            with state.lock:
                # A finalizer may call the driver; on a real one, none runs within another call.
                pause = Pause()
                try:
                    if initialized and not state.initialized:
                        raise CudaError(CUresult.CUDA_ERROR_NOT_INITIALIZED)
                    if context:
                        state.current().check()
                    returned = method(self, *arguments, **named)
                except CudaError as error:
                    return (error.result, *(None,) * outputs)
                finally:
                    state.scheduler.after_call()
                    pause.end()
            if outputs == 0:
                return (CUresult.CUDA_SUCCESS,)
            return (CUresult.CUDA_SUCCESS, *(returned if outputs > 1 else (returned,)))

        return call

    return decorate
