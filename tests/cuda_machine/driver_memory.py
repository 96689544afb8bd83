"""The driver's functions for memory: allocations, copies and fills."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from cuda.bindings.driver import CUdeviceptr, CUresult

from cuda_machine.driver_state import (
    Allocation,
    Calls,
    CudaError,
    HostAllocation,
    OutsideTheDouble,
    UseAfterRelease,
    driver_call,
)
from cuda_machine.faults import OutOfMemory
from cuda_machine.operations import Stream

# The simulated clock's milliseconds for a byte that is copied or filled.
MILLISECONDS_PER_BYTE = 1e-6
# Page-locked memory is aligned as pages are.
PAGE = 4096


class MemoryCalls(Calls):
    """cuMem... and cuMemcpy...; "API synchronization behavior" says which of them wait."""

    @driver_call(2)
    def cuMemGetInfo(self) -> tuple[int, int]:
        device = self.state.current().device
        total = device.description.memory
        return total - device.memory.used, total

    @driver_call(1)
    def cuMemAlloc(self, bytesize: int) -> CUdeviceptr:
        self.state.check_unsafe_call()
        context = self.state.current()
        if bytesize == 0:
            raise CudaError(CUresult.CUDA_ERROR_INVALID_VALUE)
        try:
            address = context.device.memory.allocate(bytesize)
        except OutOfMemory as error:
            raise CudaError(CUresult.CUDA_ERROR_OUT_OF_MEMORY) from error
        self.state.allocations[address] = Allocation(address, bytesize, context)
        return CUdeviceptr(address)

    @driver_call()
    def cuMemFree(self, dptr: Any) -> None:
        """Frees at once: that the call waits for work is not documented ("may")."""
        self.state.check_unsafe_call()
        allocation = self.state.allocations.get(int(dptr))
        if allocation is None or allocation.context is not self.state.current():
            raise CudaError(CUresult.CUDA_ERROR_INVALID_VALUE)
        self.state.release(allocation)

    @driver_call(1)
    def cuMemHostAlloc(self, bytesize: int, Flags: int) -> int:
        if Flags & ~0b111 or bytesize == 0:
            raise CudaError(CUresult.CUDA_ERROR_INVALID_VALUE)
        self.state.check_unsafe_call()
        buffer = np.full(bytesize + PAGE, 0xA5, np.uint8)
        address = -(-buffer.ctypes.data // PAGE) * PAGE
        allocation = HostAllocation(address, bytesize, self.state.current(), buffer=buffer)
        self.state.pinned[address] = allocation
        return address

    @driver_call()
    def cuMemFreeHost(self, p: Any) -> None:
        self.state.check_unsafe_call()
        allocation = self.state.pinned.get(int(p))
        if allocation is None:
            raise CudaError(CUresult.CUDA_ERROR_INVALID_VALUE)
        self.state.release_pinned(allocation)

    @driver_call()
    def cuMemcpyHtoDAsync(self, dstDevice: Any, srcHost: Any, ByteCount: int, hStream: Any) -> None:
        """Page-locked memory is read when the copy runs, pageable memory by the call."""
        stream = self.state.find_stream(hStream)
        target, address, size = int(dstDevice), int(srcHost), ByteCount
        to, pinned = self._allocation(target, size), self._pinned(stream, address, size)
        staged = ctypes.string_at(address, size) if pinned is None else b""

        def copy() -> None:
            data = staged if pinned is None else ctypes.string_at(address, size)
            to.context.device.memory.write(target, data)

        self._enqueue(stream, copy, size, to, pinned)

    @driver_call()
    def cuMemcpyDtoHAsync(self, dstHost: Any, srcDevice: Any, ByteCount: int, hStream: Any) -> None:
        """Page-locked memory is written when the copy runs, pageable memory by the call."""
        stream = self.state.find_stream(hStream)
        address, source, size = int(dstHost), int(srcDevice), ByteCount
        of, pinned = self._allocation(source, size), self._pinned(stream, address, size)

        def copy() -> None:
            ctypes.memmove(address, of.context.device.memory.read(source, size), size)

        self._enqueue(stream, copy, size, of, pinned)
        if pinned is None and stream.last is not None:
            self.state.wait(stream.last)

    @driver_call()
    def cuMemcpyDtoDAsync(
        self, dstDevice: Any, srcDevice: Any, ByteCount: int, hStream: Any
    ) -> None:
        target, source = int(dstDevice), int(srcDevice)
        to, of = self._allocation(target, ByteCount), self._allocation(source, ByteCount)

        def copy() -> None:
            memory = of.context.device.memory
            to.context.device.memory.copy(target, source, ByteCount, memory)

        self._enqueue(self.state.find_stream(hStream), copy, ByteCount, to, of)

    @driver_call()
    def cuMemsetD8Async(self, dstDevice: Any, uc: int, N: int, hStream: Any) -> None:
        target, to = int(dstDevice), self._allocation(int(dstDevice), N)

        def fill() -> None:
            to.context.device.memory.write(target, bytes([uc]) * N)

        self._enqueue(self.state.find_stream(hStream), fill, N, to)

    def _enqueue(
        self, stream: Stream, action: Callable[[], None], size: int, *used: Allocation | None
    ) -> None:
        """Adds a copy or fill, which must not run after what it uses was freed."""

        def run() -> float:
            for one in used:
                if one is not None and one.freed:
                    raise UseAfterRelease(*one.used_when_freed)
            action()
            return size * MILLISECONDS_PER_BYTE

        self.state.run_or_capture(stream, "copy or fill", run)

    def _allocation(self, address: int, size: int) -> Allocation:
        """The allocation that has these bytes, which are of any device (unified addressing)."""
        for allocation in self.state.allocations.values():
            offset = address - allocation.address
            if offset >= 0 and offset + size <= allocation.size:
                return allocation
        raise CudaError(CUresult.CUDA_ERROR_INVALID_VALUE)

    def _pinned(self, stream: Stream, address: int, size: int) -> HostAllocation | None:
        """The page-locked allocation that has these bytes; None if they are pageable."""
        for allocation in self.state.pinned.values():
            start = address - allocation.address
            if start >= 0 and start + size <= allocation.size:
                return allocation
            if start < allocation.size and start + size > 0:
                raise OutsideTheDouble("a copy of bytes that are page-locked in part only")
        if stream.capture is not None:
            raise OutsideTheDouble("the capture of a copy of pageable memory")
        return None
