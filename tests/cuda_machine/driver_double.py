"""Doubles of cuda.bindings.driver and cuda.bindings.nvrtc, in front of a machine that runs PTX.

    cuda = CudaDouble([DeviceDescription(), DeviceDescription(capability=(9, 0))])
    cuda.driver.cuInit(0)

`cuda.driver` and `cuda.nvrtc` are called as the modules are: each function takes the same arguments
and returns a tuple of the result and the outputs. Enumerations and handles come from the real
modules. A function that the double does not have is missing, and a call that CUDA's documentation
leaves open raises `OutsideTheDouble`.

Operations of streams run in one of the orders that CUDA allows; `operations.py` says which there
are. A program is right only if it has the same results in all of them.
"""

import ctypes
from collections import Counter

import numpy as np
from cuda.bindings import driver, nvrtc
from cuda.bindings.driver import CUcontext, CUdevice, CUdeviceptr, CUresult

from cuda_machine.cublaslt_double import CublasLtDouble
from cuda_machine.driver_state import (
    Allocation,
    Context,
    CudaError,
    Device,
    DeviceDescription,
    HostAllocation,
    OutsideTheDouble,
    UseAfterRelease,
    driver_call,
)
from cuda_machine.driver_streams import KernelCalls, StreamCalls
from cuda_machine.machine import Machine
from cuda_machine.memory import BASE, Memory
from cuda_machine.operations import Order

# The version of CUDA whose driver the double stands for: 13.0.
DRIVER_VERSION = 13000
# The simulated clock's milliseconds for a byte that is copied or filled.
MILLISECONDS_PER_BYTE = 1e-6
# Bytes of page-locked memory that are kept after they were freed.
KEPT_AFTER_RELEASE = 64 << 20
# Page-locked memory is aligned as pages are.
PAGE = 4096


class DriverDouble(KernelCalls, StreamCalls):
    """Has these functions, the functions of its base classes, and all else of the real module.

    "API synchronization behavior" says which of them wait.
    """

    def __getattr__(self, name):
        if not name.startswith("CU"):
            raise AttributeError(f"the double of cuda.bindings.driver has no {name}")
        return getattr(driver, name)

    @driver_call(context=False, initialized=False)
    def cuInit(self, Flags):
        if Flags != 0:
            raise CudaError("INVALID_VALUE")
        if not self.devices:
            raise CudaError("NO_DEVICE")
        self.initialized = True

    @driver_call(1, context=False, initialized=False)
    def cuDriverGetVersion(self):
        return DRIVER_VERSION

    @driver_call(1, context=False, initialized=False)
    def cuGetErrorString(self, error):
        return f"the text of {CUresult(error).name}".encode()

    @driver_call(1, context=False)
    def cuDeviceGetCount(self):
        return len(self.devices)

    @driver_call(1, context=False)
    def cuDeviceGet(self, ordinal):
        return CUdevice(self._device(ordinal).ordinal)

    @driver_call(1, context=False)
    def cuDeviceGetName(self, length, dev):
        # The bindings return all of a buffer of spaces, in which the driver writes up to a NUL.
        name = self._device(dev).description.name.encode()[: length - 1]
        return (name + b"\0").ljust(length)

    @driver_call(1, context=False)
    def cuDeviceGetAttribute(self, attrib, dev):
        attributes = self._device(dev).description.attributes()
        if attrib not in attributes:
            raise OutsideTheDouble(f"the double's devices have no value for {attrib.name}")
        return attributes[attrib]

    @driver_call(1, context=False)
    def cuDeviceTotalMem(self, dev):
        return self._device(dev).description.memory

    @driver_call(1, context=False)
    def cuDevicePrimaryCtxRetain(self, dev):
        device = self._device(dev)
        if device.primary is None:
            device.primary = self.add(Context, device)
        return CUcontext(device.primary.handle)

    @driver_call(1, context=False)
    def cuCtxGetCurrent(self):
        return CUcontext(self.current().handle if self.thread.contexts else 0)

    @driver_call(context=False)
    def cuCtxPushCurrent(self, ctx):
        self.thread.contexts.append(self.find(Context, ctx, "INVALID_CONTEXT"))

    @driver_call(1, context=False)
    def cuCtxPopCurrent(self):
        handle = self.current().handle
        self.thread.contexts.pop()
        return CUcontext(handle)

    def _device(self, device):
        number = int(device)
        if not 0 <= number < len(self.devices):
            raise CudaError("INVALID_DEVICE")
        return self.devices[number]

    @driver_call(2)
    def cuMemGetInfo(self):
        device = self.current().device
        total = device.description.memory
        return total - device.memory.used, total

    @driver_call(1)
    def cuMemAlloc(self, bytesize):
        self.check_unsafe_call()
        context = self.current()
        if bytesize == 0:
            raise CudaError("INVALID_VALUE")
        address = context.device.memory.allocate(bytesize)
        self.allocations[address] = Allocation(address, bytesize, context)
        return CUdeviceptr(address)

    @driver_call()
    def cuMemFree(self, dptr):
        """Frees at once: that the call waits for work is not documented ("may")."""
        self.check_unsafe_call()
        allocation = self.allocations.get(int(dptr))
        if allocation is None or allocation.context is not self.current():
            raise CudaError("INVALID_VALUE")
        allocation.freed = True
        allocation.memory.free(allocation.address)
        del self.allocations[allocation.address]

    @driver_call(1)
    def cuMemHostAlloc(self, bytesize, Flags):
        if Flags & ~0b111 or bytesize == 0:
            raise CudaError("INVALID_VALUE")
        self.check_unsafe_call()
        buffer = np.full(bytesize + PAGE, 0xA5, np.uint8)
        address = -(-buffer.ctypes.data // PAGE) * PAGE
        self.pinned[address] = HostAllocation(address, bytesize, self.current(), buffer=buffer)
        return address

    @driver_call()
    def cuMemFreeHost(self, p):
        """What may still be read there is recognizable."""
        self.check_unsafe_call()
        allocation = self.pinned.pop(int(p), None)
        if allocation is None:
            raise CudaError("INVALID_VALUE")
        allocation.freed = True
        allocation.buffer[:] = 0xA5
        self.released.append(allocation)
        while sum(memory.size for memory in self.released) > KEPT_AFTER_RELEASE:
            self.released.popleft()

    @driver_call()
    def cuMemcpyHtoDAsync(self, dstDevice, srcHost, ByteCount, hStream):
        """Page-locked memory is read when the copy runs, pageable memory by the call."""
        stream = self.find_stream(hStream)
        target, address, size = int(dstDevice), int(srcHost), ByteCount
        to, pinned = self._allocation(target, size), self._pinned(stream, address, size)
        staged = ctypes.string_at(address, size) if pinned is None else b""

        def copy():
            to.memory.write(target, staged if pinned is None else ctypes.string_at(address, size))

        self._enqueue(stream, copy, size, to, pinned)

    @driver_call()
    def cuMemcpyDtoHAsync(self, dstHost, srcDevice, ByteCount, hStream):
        """Page-locked memory is written when the copy runs, pageable memory by the call."""
        stream = self.find_stream(hStream)
        address, source, size = int(dstHost), int(srcDevice), ByteCount
        of, pinned = self._allocation(source, size), self._pinned(stream, address, size)

        def copy():
            ctypes.memmove(address, of.memory.read(source, size), size)

        self._enqueue(stream, copy, size, of, pinned)
        if pinned is None and stream.last is not None:
            self.wait(stream.last)

    @driver_call()
    def cuMemcpyDtoDAsync(self, dstDevice, srcDevice, ByteCount, hStream):
        target, source = int(dstDevice), int(srcDevice)
        to, of = self._allocation(target, ByteCount), self._allocation(source, ByteCount)

        def copy():
            to.memory.copy(target, source, ByteCount, of.memory)

        self._enqueue(self.find_stream(hStream), copy, ByteCount, to, of)

    @driver_call()
    def cuMemsetD8Async(self, dstDevice, uc, N, hStream):
        target, to = int(dstDevice), self._allocation(int(dstDevice), N)

        def fill():
            to.memory.write(target, bytes([uc]) * N)

        self._enqueue(self.find_stream(hStream), fill, N, to)

    def _enqueue(self, stream, action, size, *used):
        """Adds a copy or fill, which must not run after what it uses was freed."""

        def run():
            for allocation in used:
                if allocation is not None and allocation.freed:
                    raise UseAfterRelease(*allocation.used_when_freed)
            action()
            return size * MILLISECONDS_PER_BYTE

        self.run_or_capture(stream, run)

    def _allocation(self, address, size):
        """The allocation that has these bytes, which are of any device (unified addressing)."""
        for allocation in self.allocations.values():
            offset = address - allocation.address
            if offset >= 0 and offset + size <= allocation.size:
                return allocation
        raise CudaError("INVALID_VALUE")

    def _pinned(self, stream, address, size):
        """The page-locked allocation that has these bytes; None if they are pageable."""
        for allocation in self.pinned.values():
            start = address - allocation.address
            if start >= 0 and start + size <= allocation.size:
                return allocation
            if start < allocation.size and start + size > 0:
                raise OutsideTheDouble("a copy of bytes that are page-locked in part only")
        if stream.capture is not None:
            raise OutsideTheDouble("the capture of a copy of pageable memory")
        return None


# Functions that the real compiler answers.
REAL = (
    *("nvrtcVersion", "nvrtcGetSupportedArchs", "nvrtcGetErrorString", "nvrtcCreateProgram"),
    *("nvrtcGetProgramLogSize", "nvrtcGetProgramLog", "nvrtcGetPTXSize", "nvrtcGetPTX"),
    "nvrtcDestroyProgram",
)


class NvrtcDouble:
    """Has the functions that are named here, and all classes of the real module.

    Args:
        counts: counts compilations.
        assembles: whether real binaries are made of the PTX.
    """

    def __init__(self, counts, *, assembles=True):
        self._counts, self._assembles = counts, assembles

    def __getattr__(self, name):
        real = getattr(nvrtc, name)
        if name in REAL or isinstance(real, type):
            return real
        raise AttributeError(f"the double of cuda.bindings.nvrtc has no {name}")

    def nvrtcCompileProgram(self, prog, count, options):
        """Compiles, to PTX only if binaries are not made."""
        self._counts["nvrtcCompileProgram"] += 1
        if not self._assembles:
            real, virtual = b"--gpu-architecture=sm_", b"--gpu-architecture=compute_"
            options = [option.replace(real, virtual) for option in options]
        return nvrtc.nvrtcCompileProgram(prog, count, options)

    def nvrtcGetCUBINSize(self, prog):
        """The size of the PTX; the real binary's, where there should be one and is none."""
        if self._assembles:
            result, size = nvrtc.nvrtcGetCUBINSize(prog)
            if result != nvrtc.nvrtcResult.NVRTC_SUCCESS or size == 0:
                return result, size
        return nvrtc.nvrtcGetPTXSize(prog)

    def nvrtcGetCUBIN(self, prog, cubin):
        """Writes the PTX to a buffer of `nvrtcGetCUBINSize` bytes."""
        return nvrtc.nvrtcGetPTX(prog, cubin)


LATE, ONE = Order("late"), (DeviceDescription(),)
# Between the lowest addresses of two devices.
ADDRESSES = 1 << 40
# The order of a grid's blocks; in the random order of operations it is random too.
BLOCKS = {"early": "ascending", "late": "descending"}


class CudaDouble:
    """A process with CUDA devices; `driver`, `nvrtc` and `cublaslt` stand for the libraries.

    Args:
        devices: of the process.
        order: in which their operations are done.
        assembles: whether kernels are also compiled to real binaries, which are not run.
        counts: counts calls of the driver, by name, and compilations.
    """

    def __init__(self, devices=ONE, order=LATE, *, assembles=True, counts=None):
        made = []
        for ordinal, description in enumerate(devices):
            memory = Memory(description.memory, BASE + ordinal * ADDRESSES)
            machine = Machine(memory, BLOCKS.get(order.kind, order.seed))
            made.append(Device(ordinal, description, memory, machine))
        counts = Counter() if counts is None else counts
        self.driver = DriverDouble(made, order, counts)
        self.nvrtc = NvrtcDouble(counts, assembles=assembles)
        self.cublaslt = CublasLtDouble(self.driver)

    @property
    def faults(self):
        return self.driver.faults

    def recover(self):
        """Make failed devices usable again, as a new process would; return what went wrong."""
        faults, self.driver.faults = self.driver.faults, []
        for device in self.driver.devices:
            if device.error and device.primary is not None:
                # What the device had still to do is lost.
                self.driver.scheduler.drop(device.primary)
            device.error = ""
        return faults

    def leaks(self):
        """What is still alive, one line each: allocations, and handles of every kind."""
        state = self.driver
        alive = [
            f"{allocation.size} bytes on device {allocation.context.device.ordinal}"
            for allocation in state.allocations.values()
        ]
        alive += [f"{memory.size} bytes of page-locked memory" for memory in state.pinned.values()]
        for thing in state.handles.values():
            if isinstance(thing, Context):
                alive.append(f"context of device {thing.device.ordinal}")
            else:
                alive.append(f"{type(thing).__name__} {thing.handle:#x}")
        return alive
