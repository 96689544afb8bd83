"""A device of CUDA in use: its context, its streams, its memory, its kernels and its graphs.

A launch sequence is a CUDA graph: it is captured once, and one call replays it, so that the host
does nothing between its kernels.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from threading import RLock, local
from typing import Any, final

import numpy as np

from lamina.base.garbage import without_collections
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array
from lamina.codegen.cuda_words import CUDA
from lamina.engines.cuda.build import build
from lamina.engines.cuda.calls import Cuda, CudaError
from lamina.engines.cuda.capture import captured, library_call
from lamina.engines.cuda.cublaslt import Addresses, CublasLt, addresses_of
from lamina.engines.cuda.devices import Found, attribute, own_process
from lamina.engines.gpu.driver import Allocated, driver_failure
from lamina.engines.gpu.launches import Rates, Traits
from lamina.engines.gpu.nvidia_rates import rates_of_nvidia
from lamina.engines.gpu.plain_products import Algorithm, MatrixProduct

# A kernel in a graph: 14 of them took 17 us on an H100 of 1.98 GHz (the workload tiny-step).
_LAUNCH_CLOCKS = 2400
# The work items of a group, if a kernel does not ask for a size.
GROUP = 128
# All memory that the driver allocates is aligned to it. Vectors of 16 bytes need aligned buffers,
# and accesses are fastest if warps read whole sectors.
_ALIGNMENT_BYTES = 256
# The shared memory that kernels can declare as arrays of a fixed size.
_STATIC_SHARED_BYTES = 48 << 10
# They may free what commands still use: Nvidia does not document that they wait.
_FREEING = ("cuMemFree", "cuMemFreeHost", "cuModuleUnload")
# The multiply-adds of a multiprocessor in a clock by `wgmma`, by the data sheet of the H100.
_WARPGROUP_MATRICES = {(9, 0): (("bfloat16", 2048), ("float16", 2048), ("tf32", 1024))}
# The first compute capability whose kernels may begin before the one before them has ended.
_OVERLAPPING = (9, 0)
# The drivers whose contexts a thread has made current, the present one last.
_entered = local()
# After such an error, every call in the process fails.
_FATAL = (
    *("ILLEGAL_ADDRESS", "MISALIGNED_ADDRESS", "LAUNCH_FAILED", "ILLEGAL_INSTRUCTION"),
    *("INVALID_ADDRESS_SPACE", "INVALID_PC", "HARDWARE_STACK_ERROR", "LAUNCH_TIMEOUT"),
    *("ASSERT", "ECC_UNCORRECTABLE"),
)
_RESTART = (
    "The device stays unusable in this process: restart the process, with another engine to "
    "continue from a checkpoint."
)


@final
class _Buffer:
    """Memory on the device: an allocation, or a range of a whole one; `released` frees it, once."""

    def __init__(self, address: int, allocation: _Buffer | None) -> None:
        self.address, self.allocation = address, allocation
        self.released: Callable[[], object] = lambda: None


@final
class _Module(dict[str, Any]):
    """The handles of compiled kernels by their names; unloaded with the last reference."""


@final
class _LaunchSequence:
    """Launches with their numbers, which keep buffers alive, and their graph; None without any.

    The graph of timed ones begins and ends with an event.
    """

    def __init__(self, handle: Any, launches: _Launches, events: Sequence[_Event]) -> None:
        self.handle, self.launches, self.events = handle, launches, events


@frozen_dataclass
class _Kernel:
    """A kernel that has its arguments; a group has `local_bytes` besides those it declares."""

    module: _Module
    function: Any
    groups: int
    group: int
    buffers: tuple[_Buffer | None, ...]
    numbers: tuple[int, ...]
    local_bytes: int

    def arguments(self, number: int | None) -> tuple[tuple[int, ...], tuple[Any, ...]]:
        """The values of all arguments, and their types."""
        addresses = [buffer.address if buffer is not None else 0 for buffer in self.buffers]
        numbers = (*self.numbers, *(() if number is None else (number,)))
        types = (ctypes.c_void_p,) * len(addresses) + (ctypes.c_int,) * len(numbers)
        return (*addresses, *numbers), types

    def enqueue(self, calls: Any, stream: Any, number: int | None) -> None:
        calls.cuLaunchKernel(
            *(self.function, self.groups, 1, 1, self.group, 1, 1),
            *(self.local_bytes, stream, self.arguments(number), 0),
        )

    def enqueue_early(self, calls: Any, stream: Any, number: int | None) -> None:
        """Enqueues the kernel after another one, which begins before that has ended.

        It waits itself for the end: `await_earlier_kernels` in `codegen/cuda_head.h`.
        """
        module = calls.module
        attribute, config = module.CUlaunchAttribute(), module.CUlaunchConfig()
        kinds = module.CUlaunchAttributeID
        attribute.id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        config.attrs, config.numAttrs = [attribute], 1
        config.gridDimX, config.gridDimY, config.gridDimZ = self.groups, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = self.group, 1, 1
        config.sharedMemBytes, config.hStream = self.local_bytes, stream
        calls.cuLaunchKernelEx(config, self.function, self.arguments(number), 0)


@frozen_dataclass
class _Product:
    """A product by cuBLASLt that has its arguments; a call enqueues it in a stream."""

    call: Callable[[int], None]
    buffers: tuple[_Buffer | None, ...]

    def enqueue(self, calls: Any, stream: Any, number: int | None) -> None:
        with library_call(calls):
            self.call(int(stream))


_Launches = Sequence[tuple[_Kernel | _Product, int | None]]


@final
class _Event:
    """A point among the commands of a stream; other events use its handle after it."""

    def __init__(self, driver: CudaDriver, *, is_timed: bool = False) -> None:
        self._driver, spare = driver, driver.spare_events[is_timed]
        try:
            self.handle = spare.pop()
        except IndexError:
            with driver.current() as calls:
                flags = calls.module.CUevent_flags
                kind = flags.CU_EVENT_DEFAULT if is_timed else flags.CU_EVENT_DISABLE_TIMING
                self.handle = calls.cuEventCreate(int(kind))
        # What waits for the event waits for what was before it then, also if it is used again.
        weakref.finalize(self, spare.append, self.handle).atexit = False

    def enqueue(self, calls: Any, stream: Any, number: int | None) -> None:
        """Adds the event to a capture, as launches are: each run of the graph records it."""
        external = calls.module.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL
        calls.cuEventRecordWithFlags(self.handle, stream, int(external))

    def wait(self) -> None:
        """Waits until the commands before it are done."""
        with self._driver.current() as calls:
            calls.cuEventSynchronize(self.handle)


@final
class _Queue:
    """A stream, whose commands run in order."""

    def __init__(self, driver: CudaDriver) -> None:
        self._driver = driver
        with driver.current() as calls:
            # It does not wait for the default stream, which other libraries use.
            flags = calls.module.CUstream_flags.CU_STREAM_NON_BLOCKING
            self.handle = calls.cuStreamCreate(int(flags))

    def launch(self, kernel: _Kernel | _Product, number: int | None = None) -> None:
        with self._driver.current() as calls:
            kernel.enqueue(calls, self.handle, number)

    def run(self, sequence: _LaunchSequence) -> None:
        if sequence.handle is not None:
            with self._driver.current() as calls:
                calls.cuGraphLaunch(sequence.handle, self.handle)

    def copy(self, target: _Buffer, offset: int, source: _Buffer, size: int) -> None:
        with self._driver.current() as calls:
            to = target.address + offset
            calls.cuMemcpyDtoDAsync(to, source.address, size, self.handle)

    def fill(self, buffer: _Buffer, size: int) -> None:
        """Fills a buffer with zeros, and waits."""
        with self._driver.current() as calls:
            calls.cuMemsetD8Async(buffer.address, 0, size, self.handle)
            calls.cuStreamSynchronize(self.handle)

    def flush(self) -> None:
        """Does nothing: CUDA needs no flush."""

    def finish(self) -> None:
        with self._driver.current() as calls:
            calls.cuStreamSynchronize(self.handle)

    def write(self, buffer: _Buffer, array: Array) -> None:
        with self._driver.current() as calls:
            address = array.ctypes.data
            calls.cuMemcpyHtoDAsync(buffer.address, address, array.nbytes, self.handle)
            calls.cuStreamSynchronize(self.handle)

    def send(self, buffer: _Buffer, array: Array, offset: int = 0) -> _Event:
        with self._driver.current() as calls:
            to, address = buffer.address + offset, array.ctypes.data
            calls.cuMemcpyHtoDAsync(to, address, array.nbytes, self.handle)
        return self.mark()

    def fetch(self, array: Array, buffer: _Buffer, offset: int) -> _Event:
        with self._driver.current() as calls:
            address, of = array.ctypes.data, buffer.address + offset
            calls.cuMemcpyDtoHAsync(address, of, array.nbytes, self.handle)
        return self.mark()

    def mark(self) -> _Event:
        event = _Event(self._driver)
        with self._driver.current() as calls:
            calls.cuEventRecord(event.handle, self.handle)
        return event

    def wait_for(self, events: Sequence[_Event]) -> None:
        with self._driver.current() as calls:
            for event in events:
                calls.cuStreamWaitEvent(self.handle, event.handle, 0)

    def read(self, array: Array, buffer: _Buffer) -> None:
        with self._driver.current() as calls:
            address = array.ctypes.data
            calls.cuMemcpyDtoHAsync(address, buffer.address, array.nbytes, self.handle)
            calls.cuStreamSynchronize(self.handle)


@final
class CudaDriver:
    """A device in use, through its primary context, which it shares with other libraries.

    Raises:
        EngineError: if the driver does not open it.
    """

    words = CUDA

    def __init__(self, api: Cuda, device: Found) -> None:
        own_process.require()
        self._api, self._device = api, device
        self.record = device.record
        self.allocated = Allocated()
        # The handles of events that nothing refers to, without a clock and with one.
        self.spare_events: tuple[list[Any], list[Any]] = [], []
        with self._failures("opening the device"):
            assert device.record.memory_bytes is not None
            asked = partial(attribute, api, device.handle)
            self.traits = traits_of(asked, device.record.memory_bytes)
            self._context = api.driver.cuDevicePrimaryCtxRetain(device.handle)
            self._queue = _Queue(self)
            # Made when they are needed, by one thread.
            self._uploads: _Queue | None = None
            self._cublaslt: CublasLt | None = None
            # Products that were called before.
            self._warm: set[tuple[MatrixProduct, Algorithm]] = set()
            self._making = RLock()

    @contextmanager
    def current(self) -> Generator[Any]:
        """Inside, the device's context is the thread's; yields the functions of the driver.

        A context that another library has made current is current again afterwards.
        """
        calls, entered = self._api.driver, _entered.__dict__.setdefault("drivers", [])
        if entered and entered[-1] is self:
            yield calls
            return
        calls.cuCtxPushCurrent(self._context)
        entered.append(self)
        try:
            yield calls
        finally:
            entered.pop()
            calls.cuCtxPopCurrent()

    @property
    def queue(self) -> _Queue:
        own_process.require()
        return self._queue

    @property
    def upload_queue(self) -> _Queue:
        own_process.require()
        with self._making:
            if self._uploads is None:
                self._uploads = _Queue(self)
            return self._uploads

    @contextmanager
    def errors(self, doing: str, *facts: tuple[str, str]) -> Generator[None]:
        """Turns failures into errors; inside, the device's context is the thread's."""
        with self._failures(doing, *facts), ExitStack() as stack:
            if not own_process.was_forked:
                stack.enter_context(self.current())
            yield

    @contextmanager
    def _failures(self, doing: str, *facts: tuple[str, str]) -> Generator[None]:
        try:
            yield
        except CudaError as error:
            is_fatal = any(error.status.endswith(status) for status in _FATAL)
            advice = (_RESTART,) if is_fatal else ()
            raise driver_failure("CUDA", doing, str(error), facts, self.record, *advice) from error

    # Memory

    def available_bytes(self) -> int:
        with self.current() as calls:
            free, _ = calls.cuMemGetInfo()
        return int(free)

    def allocate(self, size: int) -> _Buffer:
        with self.current() as calls:
            address = calls.cuMemAlloc(size)
        buffer = _Buffer(int(address), None)
        buffer.released = self.destroyed_with(buffer, "cuMemFree", address)
        self.queue.fill(buffer, size)
        return buffer

    def host_array(self, size: int) -> Array:
        with self.current() as calls:
            # Every context of this process may copy from it.
            portable = 1
            address = int(calls.cuMemHostAlloc(size, portable))
        memory = (ctypes.c_uint8 * size).from_address(address)
        # The array refers to the object of ctypes.
        self.destroyed_with(memory, "cuMemFreeHost", address)
        return np.ctypeslib.as_array(memory)

    def shared_buffer(self, array: Array) -> None:
        return None

    def part(self, buffer: _Buffer, offset: int) -> _Buffer:
        return _Buffer(buffer.address + offset, buffer)

    def release(self, buffer: _Buffer) -> None:
        self._finish()
        buffer.released()

    def _finish(self) -> None:
        self.queue.finish()
        if self._uploads is not None:
            self._uploads.finish()

    def destroyed_with(self, owner: object, function: str, handle: Any) -> Callable[[], object]:
        """Destroys a handle with the last reference to its owner, or when the result is called."""
        finalizer = weakref.finalize(owner, self._destroy, function, handle)
        # The end of a process frees everything; the driver may already have ended then.
        finalizer.atexit = False
        return finalizer

    def _destroy(self, function: str, handle: Any) -> None:
        if own_process.was_forked:
            # The handle belongs to the parent. Its driver may have had locks during the fork.
            return
        # A device that has failed cannot free anything. Its error was raised before.
        with suppress(CudaError), self.current() as calls:
            if function in _FREEING:
                self._finish()
            getattr(calls, function)(handle)

    # Kernels

    def build(self, text: str) -> _Module:
        with self.errors("building a program"):
            codes = build(self._api, self._device.capability, text)
            module = _Module()
            with self.current() as calls:
                for name, code in codes.items():
                    module[name] = handle = calls.cuModuleLoadData(code)
                    self.destroyed_with(module, "cuModuleUnload", handle)
        return module

    def kernel(
        self,
        module: _Module,
        name: str,
        buffers: Sequence[_Buffer | None],
        items: int,
        *,
        numbers: Sequence[int] = (),
        numbered: bool,
        group: int = 0,
        local_bytes: int = 0,
    ) -> _Kernel:
        with self.current() as calls:
            function = calls.cuModuleGetFunction(module[name], name.encode())
            if local_bytes:
                attributes = calls.module.CUfunction_attribute
                most = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                calls.cuFuncSetAttribute(function, most, local_bytes)
            # Otherwise the first launch would load it: in a capture, or while it is timed.
            calls.cuFuncLoad(function)
        group = group or GROUP
        return _Kernel(
            *(module, function, -(-items // group), group),
            *(tuple(buffers), tuple(numbers), local_bytes),
        )

    def _library(self) -> CublasLt:
        """The library on this device; the context is current."""
        with self._making:
            if self._cublaslt is None:
                self._cublaslt = CublasLt(self._api.cublaslt, self._device.capability)
            return self._cublaslt

    def library_version(self) -> int:
        """The version of cuBLASLt."""
        return self._api.cublaslt.version()

    def library_algorithms(self, product: MatrixProduct) -> tuple[Algorithm, ...]:
        """The algorithms that cuBLASLt proposes for a product; none if it cannot compute it."""
        with self.errors("looking for an algorithm of cuBLASLt"), self.current():
            return self._library().algorithms(product)

    def product(
        self, product: MatrixProduct, algorithm: Algorithm, buffers: Sequence[_Buffer | None]
    ) -> _Product:
        """A call of cuBLASLt with its arguments, which is launched as a kernel is.

        The buffers are the left, the right, the result, the bias, the added matrix, and the
        workspace.

        Raises:
            EngineError: if the library is missing.
        """
        *matrices, workspace = (0 if buffer is None else buffer.address for buffer in buffers)
        addresses = addresses_of(product, matrices)
        with self.current():
            call = self._library().call_of(product, algorithm, addresses.bias)
        if (product, algorithm) not in self._warm:
            self._warm_up(product, algorithm, call, addresses)
            self._warm.add((product, algorithm))
        return _Product(partial(call, addresses, workspace), tuple(buffers))

    def _warm_up(
        self,
        product: MatrixProduct,
        algorithm: Algorithm,
        call: Callable[[Addresses, int, int], None],
        addresses: Addresses,
    ) -> None:
        """Calls a product for the first time, with its result and its workspace elsewhere.

        Then the library has loaded its kernels before they are captured. Without memory for it the
        capture has the first call (`library_call`).
        """
        begin = addresses.result % _ALIGNMENT_BYTES
        end = begin + product.result.bytes_of(product.batch)
        workspace = -(-end // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        size = workspace + algorithm.workspace_bytes
        if size > self.available_bytes():
            return
        try:
            scratch = self.allocate(size)
        except CudaError as error:
            # The memory that is free may be in pieces.
            if error.status != "CUDA_ERROR_OUT_OF_MEMORY":
                raise
            return
        is_in_place = addresses.added == addresses.result
        result = scratch.address + begin
        moved = replace(addresses, result=result, **({"added": result} if is_in_place else {}))
        with self.current():
            call(moved, scratch.address + workspace, int(self.queue.handle))
        self.release(scratch)

    def sequence(self, launches: _Launches) -> _LaunchSequence:
        return self._captured(tuple(launches), ())

    def timed(self, launches: _Launches) -> Callable[[], float]:
        events = _Event(self, is_timed=True), _Event(self, is_timed=True)
        sequence = self._captured(tuple(launches), events)

        def seconds() -> float:
            self.queue.run(sequence)
            self.queue.finish()
            with self.current() as calls:
                before, after = (event.handle for event in sequence.events)
                return 1e-3 * calls.cuEventElapsedTime(before, after)

        return seconds

    @without_collections
    def _captured(self, launches: _Launches, events: Sequence[_Event]) -> _LaunchSequence:
        """The graph of launches, between two events or none."""
        # No garbage is collected: destroying a handle could end the capture.
        if not launches:
            return _LaunchSequence(None, launches, events)
        own_process.require()
        with self.current() as calls:
            marks = [(event, None) for event in events]
            row = (*marks[:1], *launches, *marks[1:])
            executable = captured(calls, self._in_order(calls, row))
        sequence = _LaunchSequence(executable, launches, events)
        self.destroyed_with(sequence, "cuGraphExecDestroy", executable)
        return sequence

    def _in_order(
        self, calls: Any, row: Sequence[tuple[_Kernel | _Product | _Event, int | None]]
    ) -> Iterator[Callable[[Any], None]]:
        """The functions that enqueue launches in a stream, each after the one before it.

        Only a kernel of ours that follows another one begins early: whether a library's kernel
        waits for all earlier ones is not known.
        """
        overlaps = self._device.capability >= _OVERLAPPING
        before: _Kernel | _Product | _Event | None = None
        for launch, number in row:
            enqueue = launch.enqueue
            if overlaps and isinstance(launch, _Kernel) and isinstance(before, _Kernel):
                enqueue = launch.enqueue_early
            yield partial(enqueue, calls, number=number)
            before = launch


def traits_of(asked: Callable[[str], int], memory_bytes: int) -> Traits:
    """The properties of a device, by its attributes' names without `CU_DEVICE_ATTRIBUTE_`."""
    capability = asked("COMPUTE_CAPABILITY_MAJOR"), asked("COMPUTE_CAPABILITY_MINOR")
    return Traits(
        is_processor=False,
        has_float64=True,
        has_float16=True,
        rounds_to_bfloat16=capability >= (8, 0),
        # The widest access of a work item has 16 bytes.
        lanes=4,
        compute_units=asked("MULTIPROCESSOR_COUNT"),
        fused=True,
        exact_division=True,
        alignment_bytes=_ALIGNMENT_BYTES,
        largest_block_bytes=memory_bytes,
        local_bytes=min(_STATIC_SHARED_BYTES, asked("MAX_SHARED_MEMORY_PER_BLOCK")),
        launched_local_bytes=asked("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        compute_unit_local_bytes=asked("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        largest_group=asked("MAX_THREADS_PER_BLOCK"),
        matrices=_matrices(capability),
        warpgroup_matrices=_WARPGROUP_MATRICES.get(capability, ()),
        counts_runs=True,
        copies_asynchronously=capability >= (8, 0),
        uploads_during_runs=True,
        rates=_rates(asked, capability),
    )


def _rates(asked: Callable[[str], int], capability: tuple[int, int]) -> Rates:
    # Clocks are in kHz. Memory moves a bit of each line of its bus twice in a clock.
    moved = 2e3 * asked("MEMORY_CLOCK_RATE") * asked("GLOBAL_MEMORY_BUS_WIDTH") / 8
    rates = rates_of_nvidia(capability, 1e3 * asked("CLOCK_RATE"))
    resident = asked("MAX_THREADS_PER_MULTIPROCESSOR")
    rates = replace(rates, resident_items=resident, launch=_LAUNCH_CLOCKS)
    # Some devices do not tell these.
    if not moved or not rates.clock:
        return rates
    return replace(rates, memory_bytes=moved / (rates.clock * asked("MULTIPROCESSOR_COUNT")))


def _matrices(capability: tuple[int, int]) -> tuple[tuple[str, int], ...]:
    """The multiply-adds of a multiprocessor in a clock by `mma`.

    As Nvidia's white papers state; on an H100 as measured: 634 TFLOP/s by `measured_peaks`.
    """
    if capability < (8, 0):
        return (("float16", 512),)
    rates = {(8, 0): 1024, (9, 0): 1200, (10, 0): 1024, (10, 3): 1024}
    rate = rates.get(capability, 512)
    return (("bfloat16", rate), ("float16", rate), ("tf32", rate // 2))
