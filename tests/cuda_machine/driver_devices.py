"""The driver's functions for devices, contexts and errors."""

from __future__ import annotations

from typing import Any

from cuda.bindings.driver import CUcontext, CUdevice, CUdevice_attribute, CUresult

from cuda_machine.driver_state import (
    Calls,
    Context,
    CudaError,
    Device,
    OutsideTheDouble,
    driver_call,
)

# The texts that the driver has for the errors that the double returns.
ERROR_TEXTS = {
    CUresult.CUDA_SUCCESS: "no error",
    CUresult.CUDA_ERROR_INVALID_VALUE: "invalid argument",
    CUresult.CUDA_ERROR_OUT_OF_MEMORY: "out of memory",
    CUresult.CUDA_ERROR_NOT_INITIALIZED: "initialization error",
    CUresult.CUDA_ERROR_NO_DEVICE: "no CUDA-capable device is detected",
    CUresult.CUDA_ERROR_INVALID_DEVICE: "invalid device ordinal",
    CUresult.CUDA_ERROR_INVALID_IMAGE: "device kernel image is invalid",
    CUresult.CUDA_ERROR_INVALID_CONTEXT: "invalid device context",
    CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU: "no kernel image is available for execution on the "
    "device",
    CUresult.CUDA_ERROR_INVALID_HANDLE: "invalid resource handle",
    CUresult.CUDA_ERROR_ILLEGAL_STATE: "the operation cannot be performed in the present state",
    CUresult.CUDA_ERROR_NOT_FOUND: "named symbol not found",
    CUresult.CUDA_ERROR_NOT_READY: "device not ready",
    CUresult.CUDA_ERROR_ILLEGAL_ADDRESS: "an illegal memory access was encountered",
    CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: "too many resources requested for launch",
    CUresult.CUDA_ERROR_MISALIGNED_ADDRESS: "misaligned address",
    CUresult.CUDA_ERROR_LAUNCH_FAILED: "unspecified launch failure",
    CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: "operation not permitted when stream is "
    "capturing",
    CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: "operation failed due to a previous error "
    "during capture",
    CUresult.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD: "attempt to terminate a thread-local capture "
    "sequence from another thread",
}
# The version of CUDA whose driver the double stands for: 13.0.
DRIVER_VERSION = 13000


class DeviceCalls(Calls):
    """cuInit, cuDevice..., cuCtx... and cuGetError..."""

    @driver_call(context=False, initialized=False)
    def cuInit(self, Flags: int) -> None:
        if Flags != 0:
            raise CudaError(CUresult.CUDA_ERROR_INVALID_VALUE)
        if not self.state.devices:
            raise CudaError(CUresult.CUDA_ERROR_NO_DEVICE)
        self.state.initialized = True

    @driver_call(1, context=False, initialized=False)
    def cuDriverGetVersion(self) -> int:
        return DRIVER_VERSION

    @driver_call(1, context=False, initialized=False)
    def cuGetErrorString(self, error: CUresult) -> bytes:
        if error not in ERROR_TEXTS:
            raise OutsideTheDouble(f"the double never returns {CUresult(error).name}")
        return ERROR_TEXTS[CUresult(error)].encode()

    @driver_call(1, context=False)
    def cuDeviceGetCount(self) -> int:
        return len(self.state.devices)

    @driver_call(1, context=False)
    def cuDeviceGet(self, ordinal: int) -> CUdevice:
        return CUdevice(self._device(ordinal).ordinal)

    @driver_call(1, context=False)
    def cuDeviceGetName(self, length: int, dev: Any) -> bytes:
        # The bindings return all of a buffer of spaces, in which the driver writes up to a NUL.
        name = self._device(dev).description.name.encode()[: length - 1]
        return (name + b"\0").ljust(length)

    @driver_call(1, context=False)
    def cuDeviceGetAttribute(self, attrib: CUdevice_attribute, dev: Any) -> int:
        device = self._device(dev)
        attributes = device.description.attributes()
        if attrib not in attributes:
            raise OutsideTheDouble(f"the double's devices have no value for {attrib.name}")
        return attributes[attrib]

    @driver_call(1, context=False)
    def cuDeviceTotalMem(self, dev: Any) -> int:
        return self._device(dev).description.memory

    @driver_call(1, context=False)
    def cuDevicePrimaryCtxRetain(self, dev: Any) -> CUcontext:
        device = self._device(dev)
        if device.primary is None:
            device.primary = self.state.add(Context(self.state.new_handle(), device))
        return CUcontext(device.primary.handle)

    @driver_call(1, context=False)
    def cuCtxGetCurrent(self) -> CUcontext:
        return CUcontext(self.state.stack[-1].handle if self.state.stack else 0)

    @driver_call(context=False)
    def cuCtxPushCurrent(self, ctx: Any) -> None:
        self.state.stack.append(self._context(ctx))

    @driver_call(1, context=False)
    def cuCtxPopCurrent(self) -> CUcontext:
        if not self.state.stack:
            raise CudaError(CUresult.CUDA_ERROR_INVALID_CONTEXT)
        return CUcontext(self.state.stack.pop().handle)

    def _device(self, device: Any) -> Device:
        number = int(device)
        if not 0 <= number < len(self.state.devices):
            raise CudaError(CUresult.CUDA_ERROR_INVALID_DEVICE)
        return self.state.devices[number]

    def _context(self, handle: Any) -> Context:
        return self.state.find(Context, handle, CUresult.CUDA_ERROR_INVALID_CONTEXT)
