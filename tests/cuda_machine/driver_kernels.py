"""The driver's functions for modules, kernels and launches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cuda.bindings.driver import CUfunction, CUfunction_attribute, CUlaunchAttributeID, CUmodule

from cuda_machine.driver_state import (
    SHARED_WITHOUT_OPT_IN,
    Context,
    CudaError,
    DeviceDescription,
    OutsideTheDouble,
    State,
    UseAfterRelease,
    driver_call,
)
from cuda_machine.faults import Index
from cuda_machine.machine import LoadedKernel, LoadedModule
from cuda_machine.ptx import parse
from cuda_machine.syntax import shared_layout

# The simulated clock's milliseconds for a thread.
MILLISECONDS_PER_THREAD = 1e-4
THREADS_PER_BLOCK = 1024
MOST_BLOCK = (1024, 1024, 64)
MOST_GRID = (2**31 - 1, 65535, 65535)


@dataclass(eq=False)
class LoadedImage:
    """A module in a context."""

    handle: int
    context: Context
    loaded: LoadedModule
    functions: dict[bytes, Function] = field(default_factory=dict)
    unloaded: bool = False


@dataclass(eq=False)
class Function:
    """A kernel of a module, its shared memory, and the most that its launches may add to that."""

    handle: int
    module: LoadedImage
    kernel: LoadedKernel
    shared_bytes: int
    most_dynamic_shared: int


class KernelCalls(State):
    """cuModule..., cuFunc... and cuLaunchKernel..."""

    @driver_call(1)
    def cuModuleLoadData(self, image):
        """Loads PTX as a binary: for its architecture and later ones of the same generation."""
        self.check_unsafe_call()
        context = self.current()
        text = bytes(image).split(b"\0", 1)[0]
        if b".version" not in text:
            raise CudaError("INVALID_IMAGE")
        parsed = parse(text.decode())
        if not _runs_on(parsed.target, context.device.description):
            raise CudaError("NO_BINARY_FOR_GPU")
        loaded = context.device.machine.load(parsed)
        return CUmodule(self.add(LoadedImage, context, loaded).handle)

    @driver_call()
    def cuModuleUnload(self, hmod):
        self.check_unsafe_call()
        module = self._module(hmod)
        module.unloaded = True
        for function in module.functions.values():
            del self.handles[function.handle]
        del self.handles[module.handle]
        module.context.device.machine.unload(module.loaded)

    @driver_call(1)
    def cuModuleGetFunction(self, hmod, name):
        module = self._module(hmod)
        kernel = module.loaded.kernels.get(name.decode())
        if kernel is None:
            raise CudaError("NOT_FOUND")
        if name not in module.functions:
            shared = shared_layout(kernel.kernel)[1]
            dynamic = max(0, SHARED_WITHOUT_OPT_IN - shared)
            module.functions[name] = self.add(Function, module, kernel, shared, dynamic)
        return CUfunction(module.functions[name].handle)

    @driver_call()
    def cuFuncLoad(self, function):
        """Does nothing: all functions of the double are loaded with their module."""
        self.check_unsafe_call()
        self._function(function)

    @driver_call()
    def cuFuncSetAttribute(self, hfunc, attrib, value):
        function = self._function(hfunc)
        if attrib != CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
            raise OutsideTheDouble(f"the double cannot set {attrib.name}")
        most = function.module.context.device.description.most_shared
        if value < 0 or value + function.shared_bytes > most:
            raise CudaError("INVALID_VALUE")
        function.most_dynamic_shared = value

    @driver_call()
    def cuLaunchKernel(
        self, f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ,
        sharedMemBytes, hStream, kernelParams, extra,
    ):  # fmt: skip
        """Parameters are read during the call; the kernel runs when its stream does."""
        grid, block = (gridDimX, gridDimY, gridDimZ), (blockDimX, blockDimY, blockDimZ)
        self._launch(f, grid, block, sharedMemBytes, hStream, kernelParams, extra)

    @driver_call()
    def cuLaunchKernelEx(self, config, f, kernelParams, extra):
        """A launch that may begin before the kernel before it has ended.

        The machine runs it afterwards, but requires that each thread waits for the end first.
        """
        ids = [one.id for one in config.attrs]
        allowed = CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        if ids != [allowed] or config.numAttrs != 1:
            raise OutsideTheDouble(f"a launch with the attributes {ids}")
        if config.attrs[0].value.programmaticStreamSerializationAllowed != 1:
            raise OutsideTheDouble("an attribute that is not set")
        stream = self.find_stream(config.hStream)
        if stream.capture is None or not stream.capture.nodes or not stream.capture.nodes[-1].waits:
            raise OutsideTheDouble("an early launch after something that does not wait itself")
        grid = config.gridDimX, config.gridDimY, config.gridDimZ
        block = config.blockDimX, config.blockDimY, config.blockDimZ
        launched = f, grid, block, config.sharedMemBytes, stream.handle, kernelParams, extra
        self._launch(*launched, is_early=True)

    def _launch(self, f, grid, block, shared, hStream, kernelParams, extra, *, is_early=False):
        if extra != 0:
            raise OutsideTheDouble("the double takes kernelParams, not extra")
        function, stream = self._function(f), self.find_stream(hStream)
        if stream.context is not function.module.context:
            raise CudaError("INVALID_HANDLE")
        device = stream.context.device
        if is_early and device.description.capability < (9, 0):
            raise OutsideTheDouble("an early launch on a device of before sm_90")
        _check_launch(function, grid, block, shared)
        kernel = function.kernel.program.kernel
        parameters = _parameter_bytes(kernelParams, [one.size for one in kernel.parameters])

        def launch() -> float:
            if function.module.unloaded:
                raise UseAfterRelease(f"{kernel.name} runs after its module was unloaded")
            launched = function.kernel, grid, block, parameters
            device.machine.launch(*launched, shared_bytes=shared, is_early=is_early)
            return math.prod((*grid, *block)) * MILLISECONDS_PER_THREAD

        self.run_or_capture(stream, launch, waits=True)

    def _module(self, handle: Any) -> LoadedImage:
        return self.find(LoadedImage, handle, "INVALID_VALUE")

    def _function(self, handle: Any) -> Function:
        function = self.find(Function, handle)
        if function.module.context is not self.current():
            raise CudaError("INVALID_HANDLE")
        return function


def _runs_on(target: str, device: DeviceDescription) -> bool:
    """Whether a binary for "sm_86" runs on a device: of its generation, not older than it."""
    digits = target.removeprefix("sm_").rstrip("af")
    major, minor = int(digits[:-1]), int(digits[-1])
    if target.endswith("a"):
        return device.capability == (major, minor)
    return device.capability[0] == major and device.capability[1] >= minor


def _check_launch(function: Function, grid: Index, block: Index, dynamic_shared: int) -> None:
    threads = math.prod(block)
    sizes = zip((*block, *grid), (*MOST_BLOCK, *MOST_GRID), strict=True)
    within = all(1 <= size <= most for size, most in sizes)
    if not within or threads > THREADS_PER_BLOCK or dynamic_shared > function.most_dynamic_shared:
        raise CudaError("INVALID_VALUE")
    # That registers may limit them further is not known here.
    if threads > math.prod(function.kernel.kernel.maxntid or (THREADS_PER_BLOCK,)):
        raise CudaError("LAUNCH_OUT_OF_RESOURCES")


def _parameter_bytes(parameters: Any, sizes: Sequence[int]) -> list[bytes]:
    """The bytes of parameters, read when the kernel is launched: a tuple of values and types."""
    values, types = parameters
    if not len(values) == len(types) == len(sizes):
        raise OutsideTheDouble(f"{len(values)} parameters for a kernel of {len(sizes)}")
    packed = [bytes(kind(value)) for value, kind in zip(values, types, strict=True)]
    for value, found, size in zip(values, packed, sizes, strict=True):
        if len(found) != size:
            raise OutsideTheDouble(f"{value} has {len(found)} bytes, the parameter has {size}")
    return packed
