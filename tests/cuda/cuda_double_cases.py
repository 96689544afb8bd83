"""Kernels and a session of calls for the tests of the double of the CUDA driver."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from ctypes import c_int, c_void_p
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings is not installed")

from cuda.bindings.driver import CUresult

from cuda_machine.device_attributes import DeviceDescription
from cuda_machine.driver_double import CudaDouble
from cuda_machine.nvrtc_double import NvrtcDouble
from cuda_machine.operations import Order

SOURCE = r"""
extern "C" __global__ void set_value(int* target, int value) { *target = value; }

extern "C" __global__ void add_value(int* target, int value) { *target += value; }

extern "C" __global__ void copy_value(int* target, const int* source) { *target = *source; }

extern "C" __global__ void race(int* target) { *target = threadIdx.x; }

extern "C" __global__ void __launch_bounds__(64) bounded(int* target) { *target = 1; }

extern "C" __global__ void shared(int* target, int value) {
    __shared__ int fixed[256];
    extern __shared__ int dynamic[];
    dynamic[threadIdx.x] = value;
    fixed[threadIdx.x] = dynamic[threadIdx.x];
    *target = fixed[0];
}

extern "C" __global__ void unknown(int* target) {
    asm volatile("pmevent 7;");
    *target = 1;
}

"""
LATE, EARLY = Order("late"), Order("early")
ORDERS = [LATE, EARLY, *(Order("random", seed) for seed in range(4))]
SUCCESS = CUresult.CUDA_SUCCESS
NON_BLOCKING = 1


@functools.cache
def binary(architecture: str = "sm_80") -> bytes:
    """The kernels for an architecture, as the double of NVRTC compiles them."""
    nvrtc = NvrtcDouble()
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError:
        pytest.skip("NVRTC is not installed")
    program = must(nvrtc.nvrtcCreateProgram(SOURCE.encode(), b"kernels.cu", 0, None, None))
    option = f"--gpu-architecture={architecture}".encode()
    must(nvrtc.nvrtcCompileProgram(program, 1, [option]))
    made = bytearray(must(nvrtc.nvrtcGetCUBINSize(program)))
    must(nvrtc.nvrtcGetCUBIN(program, made))
    must(nvrtc.nvrtcDestroyProgram(program))
    return bytes(made)


def must(returned: tuple[Any, ...]) -> Any:
    """The outputs of a call that must succeed: none, one, or several."""
    result, *outputs = returned
    assert int(result) == 0, result
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


class Session:
    """A process that has initialized CUDA, with the first device's context current."""

    def __init__(self, order: Order = LATE, devices: Sequence[DeviceDescription] = ()) -> None:
        self.double = CudaDouble(devices or [DeviceDescription()], order)
        self.driver = self.double.driver
        self("cuInit", 0)
        self.use(0)

    def use(self, device: int) -> None:
        """Makes the context of a device current, with a stream of its own."""
        self("cuCtxPushCurrent", self("cuDevicePrimaryCtxRetain", device))
        self.__dict__.pop("module", None)
        self.streams: list[Any] = []
        self.own = self.stream()

    def enter(self) -> None:
        """Makes the context of the first device current in another thread."""
        self("cuCtxPushCurrent", self("cuDevicePrimaryCtxRetain", 0))

    def __call__(self, name: str, *arguments: Any) -> Any:
        """The outputs of a call, which must succeed."""
        returned = getattr(self.driver, name)(*arguments)
        assert returned[0] == SUCCESS, f"{name}: {returned[0].name}"
        return must(returned)

    def error(self, name: str, *arguments: Any) -> str:
        """The name of a call's result, without CUDA_ERROR_."""
        result: CUresult = getattr(self.driver, name)(*arguments)[0]
        return result.name.removeprefix("CUDA_ERROR_").removeprefix("CUDA_")

    @functools.cached_property
    def module(self) -> Any:
        return self("cuModuleLoadData", binary())

    def function(self, name: str) -> Any:
        return self("cuModuleGetFunction", self.module, name.encode())

    def launch(self, name: str, stream: Any, *values: Any, threads: int = 1) -> None:
        """Launch a kernel of one block, with pointers and ints."""
        self("cuLaunchKernel", *self.launch_arguments(name, stream, *values, threads=threads))

    def launch_arguments(
        self, name: str, stream: Any, *values: Any, threads: int = 1
    ) -> tuple[Any, ...]:
        types = tuple(c_int if isinstance(value, int) else c_void_p for value in values)
        numbers = tuple(map(int, values))
        return (self.function(name), 1, 1, 1, threads, 1, 1, 0, stream, (numbers, types), 0)

    def stream(self) -> Any:
        self.streams.append(self("cuStreamCreate", NON_BLOCKING))
        return self.streams[-1]

    def event(self, flags: int = 0) -> Any:
        return self("cuEventCreate", flags)

    def number(self, value: int | None = None) -> Any:
        """Device memory of four bytes; with a value, it has been written there."""
        pointer = self("cuMemAlloc", 4)
        if value is not None:
            host = np.array([value], np.int32)
            self("cuMemcpyHtoDAsync", pointer, host.ctypes.data, 4, self.own)
            self("cuStreamSynchronize", self.own)
        return pointer

    def read(self, pointer: Any) -> int:
        """The number at an address, after the work of all streams, the last one first."""
        for stream in reversed(self.streams):
            self("cuStreamSynchronize", stream)
        target = np.zeros(1, np.int32)
        self("cuMemcpyDtoHAsync", target.ctypes.data, pointer, 4, self.own)
        return int(target[0])

    def pinned(self, count: int = 1) -> np.ndarray:
        """Page-locked memory of so many ints."""
        address = self("cuMemHostAlloc", 4 * count, 0)
        return np.ctypeslib.as_array((c_int * count).from_address(address))
