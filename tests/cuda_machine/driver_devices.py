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
        return f"the text of {CUresult(error).name}".encode()

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
