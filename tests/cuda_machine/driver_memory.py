"""The driver's functions for memory: allocations, copies and fills."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from cuda.bindings.driver import CUdeviceptr, CUgraphNodeType, CUresult

from cuda_machine.driver_arguments import host_address
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
from cuda_machine.streams import Stream

MEMCPY = CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMCPY
MEMSET = CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET
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
    def cuMemAllocHost(self, bytesize: int) -> int:
        return self._allocate_pinned(bytesize)

    @driver_call(1)
    def cuMemHostAlloc(self, bytesize: int, Flags: int) -> int:
        if Flags & ~0b111:
            raise CudaError(CUresult.CUDA_ERROR_INVALID_VALUE)
        return self._allocate_pinned(bytesize)

    @driver_call()
    def cuMemFreeHost(self, p: Any) -> None:
        self.state.check_unsafe_call()
        allocation = self.state.pinned.get(host_address(p, 0))
        if allocation is None:
            raise CudaError(CUresult.CUDA_ERROR_INVALID_VALUE)
        self.state.release_pinned(allocation)

    @driver_call()
    def cuMemcpyHtoDAsync(self, dstDevice: Any, srcHost: Any, ByteCount: int, hStream: Any) -> None:
        stream = self.state.find_stream(hStream)
        self._copy_to_device(stream, int(dstDevice), srcHost, ByteCount)

    @driver_call()
    def cuMemcpyDtoHAsync(self, dstHost: Any, srcDevice: Any, ByteCount: int, hStream: Any) -> None:
        stream = self.state.find_stream(hStream)
        self._copy_to_host(stream, dstHost, int(srcDevice), ByteCount, wait=False)

    @driver_call()
    def cuMemcpyDtoDAsync(
        self, dstDevice: Any, srcDevice: Any, ByteCount: int, hStream: Any
    ) -> None:
        stream = self.state.find_stream(hStream)
        target, source = int(dstDevice), int(srcDevice)
        to, of = self._allocation(target, ByteCount), self._allocation(source, ByteCount)

        def copy() -> float:
            _require_alive(to, of)
            memory = of.context.device.memory
            to.context.device.memory.copy(target, source, ByteCount, memory)
            return ByteCount * MILLISECONDS_PER_BYTE

        self._run(stream, MEMCPY, "copy on the device", copy)

    @driver_call()
    def cuMemcpyHtoD(self, dstDevice: Any, srcHost: Any, ByteCount: int) -> None:
        """Waits for the default stream, then copies; from pageable memory it returns before that.

        Then the copy to the device may still be under way, and a stream that does not wait for the
        default stream may run before it.
        """
        stream = self._default_stream_of_waiting_call()
        self.state.wait(*stream.predecessors())
        pinned = self._copy_to_device(stream, int(dstDevice), srcHost, ByteCount)
        if pinned and stream.last is not None:
            self.state.wait(stream.last)

    @driver_call()
    def cuMemcpyDtoH(self, dstHost: Any, srcDevice: Any, ByteCount: int) -> None:
        stream = self._default_stream_of_waiting_call()
        self._copy_to_host(stream, dstHost, int(srcDevice), ByteCount, wait=True)

    @driver_call()
    def cuMemsetD8Async(self, dstDevice: Any, uc: int, N: int, hStream: Any) -> None:
        self._fill(int(dstDevice), np.uint8(uc), N, hStream)

    @driver_call()
    def cuMemsetD32Async(self, dstDevice: Any, ui: int, N: int, hStream: Any) -> None:
        if int(dstDevice) % 4:
            raise CudaError(CUresult.CUDA_ERROR_INVALID_VALUE)
        self._fill(int(dstDevice), np.uint32(ui), N, hStream)

    def _allocate_pinned(self, size: int) -> int:
        self.state.check_unsafe_call()
        if size == 0:
            raise CudaError(CUresult.CUDA_ERROR_INVALID_VALUE)
        buffer = np.full(size + PAGE, 0xA5, np.uint8)
        address = -(-buffer.ctypes.data // PAGE) * PAGE
        allocation = HostAllocation(address, size, self.state.current(), buffer)
        self.state.pinned[address] = allocation
        return address

    def _fill(self, target: int, value: Any, count: int, stream_handle: Any) -> None:
        stream = self.state.find_stream(stream_handle)
        data = np.full(count, value).tobytes()
        to = self._allocation(target, len(data))

        def fill() -> float:
            _require_alive(to)
            to.context.device.memory.write(target, data)
            return len(data) * MILLISECONDS_PER_BYTE

        self._run(stream, MEMSET, "fill", fill)

    def _copy_to_device(self, stream: Stream, target: int, source: Any, size: int) -> bool:
        """Enqueue a copy; whether the source is page-locked, so that it is read when this runs."""
        to = self._allocation(target, size)
        address = host_address(source, size)
        pinned = self._pinned(address, size)
        if pinned is None:
            self._require_pinned_in_capture(stream)
            staged = ctypes.string_at(address, size) if size else b""

        def copy() -> float:
            if pinned is None:
                data = staged
            else:
                _require_alive(pinned)
                data = ctypes.string_at(address, size)
            _require_alive(to)
            to.context.device.memory.write(target, data)
            return size * MILLISECONDS_PER_BYTE

        self._run(stream, MEMCPY, "copy to the device", copy)
        return pinned is not None

    def _copy_to_host(
        self, stream: Stream, target: Any, source: int, size: int, *, wait: bool
    ) -> None:
        of = self._allocation(source, size)
        address = host_address(target, size)
        pinned = self._pinned(address, size)
        if pinned is None:
            self._require_pinned_in_capture(stream)

        def copy() -> float:
            if pinned is not None:
                _require_alive(pinned)
            _require_alive(of)
            ctypes.memmove(address, of.context.device.memory.read(source, size), size)
            return size * MILLISECONDS_PER_BYTE

        self._run(stream, MEMCPY, "copy to the host", copy)
        if (wait or pinned is None) and stream.last is not None:
            self.state.wait(stream.last)

    def _run(
        self, stream: Stream, kind: CUgraphNodeType, name: str, action: Callable[[], float]
    ) -> None:
        self.state.run_or_capture(stream, kind, name, action)

    def _default_stream_of_waiting_call(self) -> Stream:
        stream = self.state.current().default_stream
        self.state.check_implicit_dependency(stream)
        self.state.check_unsafe_call()
        return stream

    def _allocation(self, address: int, size: int) -> Allocation:
        """The allocation that has these bytes, which are of any device (unified addressing)."""
        for allocation in self.state.allocations.values():
            offset = address - allocation.address
            if offset >= 0 and offset + size <= allocation.size:
                return allocation
        raise CudaError(CUresult.CUDA_ERROR_INVALID_VALUE)

    def _pinned(self, address: int, size: int) -> HostAllocation | None:
        """The page-locked allocation that has these bytes; None if they are pageable."""
        for allocation in self.state.pinned.values():
            start = address - allocation.address
            if start >= 0 and start + size <= allocation.size:
                return allocation
            if start < allocation.size and start + size > 0:
                raise OutsideTheDouble("a copy of bytes that are page-locked in part only")
        return None

    @staticmethod
    def _require_pinned_in_capture(stream: Stream) -> None:
        if stream.capture is not None:
            raise OutsideTheDouble("the capture of a copy of pageable memory")


def _require_alive(*allocations: Allocation | HostAllocation) -> None:
    """Refuse memory that was freed between the call and now."""
    for allocation in allocations:
        if allocation.freed and isinstance(allocation, HostAllocation):
            raise UseAfterRelease("a copy runs after its page-locked memory was freed")
        if allocation.freed:
            raise UseAfterRelease(
                "a copy or fill runs after its memory was freed",
                CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,
            )
