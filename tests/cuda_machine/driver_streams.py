"""The driver's functions for streams, events, captures and graphs; for modules and launches."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field

from cuda.bindings.driver import (
    CUevent,
    CUevent_flags,
    CUevent_record_flags,
    CUfunction,
    CUfunction_attribute,
    CUgraph,
    CUgraphExec,
    CUlaunchAttributeID,
    CUmodule,
    CUstream,
    CUstream_flags,
    CUstreamCaptureMode,
)

from cuda_machine.driver_state import (
    SHARED_WITHOUT_OPT_IN,
    Context,
    CudaError,
    OutsideTheDouble,
    State,
    UseAfterRelease,
    driver_call,
)
from cuda_machine.machine import LoadedKernel, LoadedModule
from cuda_machine.operations import Capture, Event, ExecutableGraph, Graph, Node, Operation, Stream
from cuda_machine.ptx import parse
from cuda_machine.syntax import shared_layout

INVALID_VALUE = "INVALID_VALUE"


class StreamCalls(State):
    """cuStream..., cuEvent... and cuGraph..."""

    @driver_call(1)
    def cuStreamCreate(self, Flags):
        if int(Flags) != CUstream_flags.CU_STREAM_NON_BLOCKING:
            raise OutsideTheDouble("a stream that waits for the default stream")
        return CUstream(self.add(Stream, self.current()).handle)

    @driver_call()
    def cuStreamDestroy(self, hStream):
        """What the stream still has to do is done."""
        stream = self.find_stream(hStream)
        if stream.capture is not None:
            raise OutsideTheDouble("the end of a stream that is capturing")
        del self.handles[stream.handle]

    @driver_call()
    def cuStreamSynchronize(self, hStream):
        stream = self.find_stream(hStream)
        if stream.capture is not None:
            stream.capture.invalidated = True
            raise CudaError("STREAM_CAPTURE_UNSUPPORTED")
        self.check_unsafe_call()
        for operation in stream.predecessors():
            self.wait(operation)

    @driver_call()
    def cuStreamWaitEvent(self, hStream, hEvent, Flags):
        """Waits for the point that the event has now; without any, there is nothing to wait for."""
        if int(Flags) != 0:
            raise OutsideTheDouble("the double has no external events of graphs")
        stream, event = self.find_stream(hStream), self.find(Event, hEvent)
        _require_no_capture(stream)
        if event.marker is not None:
            before = (*stream.predecessors(), event.marker)
            self.submit(stream, Operation(stream.context, None, before))

    @driver_call(1)
    def cuEventCreate(self, Flags):
        if int(Flags) & ~CUevent_flags.CU_EVENT_DISABLE_TIMING:
            raise OutsideTheDouble(f"an event with the flags {Flags}")
        return CUevent(self.add(Event, self.current(), not int(Flags)).handle)

    @driver_call()
    def cuEventDestroy(self, hEvent):
        """A stream that waits for the event goes on waiting for what it captured."""
        del self.handles[self.find(Event, hEvent).handle]

    @driver_call()
    def cuEventRecord(self, hEvent, hStream):
        event, stream = self._recorded(hEvent, hStream)
        _require_no_capture(stream)
        self.submit(stream, event.recorded(stream.predecessors()))

    @driver_call()
    def cuEventRecordWithFlags(self, hEvent, hStream, flags):
        """In a capture: each launch of its graph records the event."""
        if int(flags) != CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL:
            raise OutsideTheDouble(f"the record of an event with the flags {flags}")
        event, stream = self._recorded(hEvent, hStream)
        if stream.capture is None:
            raise OutsideTheDouble("an external record outside of a capture")
        stream.capture.nodes.append(Node(None, event=event))

    def _recorded(self, event, stream):
        """An event, and the stream in which it is recorded."""
        event, stream = self.find(Event, event), self.find_stream(stream)
        if event.context is not stream.context:
            raise CudaError("INVALID_HANDLE")
        return event, stream

    @driver_call()
    def cuEventSynchronize(self, hEvent):
        event = self.find(Event, hEvent)
        event.context.check()
        self.check_unsafe_call()
        if event.marker is not None:
            self.wait(event.marker)

    @driver_call(1)
    def cuEventElapsedTime(self, hStart, hEnd):
        """Milliseconds of the simulated clock, which is no measurement."""
        start, end = self.find(Event, hStart), self.find(Event, hEnd)
        for event in (start, end):
            if event.marker is None or not event.timing or start.context is not end.context:
                raise CudaError("INVALID_HANDLE")
            if not event.marker.done:
                raise CudaError("NOT_READY")
        return end.time - start.time

    @driver_call()
    def cuStreamBeginCapture(self, hStream, mode):
        if mode != CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL:
            raise OutsideTheDouble(f"a capture of the mode {mode}")
        stream = self.find_stream(hStream)
        if stream.capture is not None:
            raise CudaError("ILLEGAL_STATE")
        stream.capture = Capture()

    @driver_call(1)
    def cuStreamEndCapture(self, hStream):
        stream = self.find_stream(hStream)
        capture = stream.capture
        if capture is None:
            raise CudaError("ILLEGAL_STATE")
        if capture.thread != threading.get_ident():
            raise CudaError("STREAM_CAPTURE_WRONG_THREAD")
        stream.capture = None
        if capture.invalidated:
            raise CudaError("STREAM_CAPTURE_INVALIDATED")
        return CUgraph(self.add(Graph, tuple(capture.nodes)).handle)

    @driver_call(1, context=False)
    def cuThreadExchangeStreamCaptureMode(self, mode):
        before, self.thread.capture_mode = self.thread.capture_mode, CUstreamCaptureMode(mode)
        return before

    @driver_call(1)
    def cuGraphInstantiate(self, hGraph, flags):
        if int(flags) != 0:
            raise OutsideTheDouble("the double instantiates graphs without flags")
        nodes = self.find(Graph, hGraph, INVALID_VALUE).nodes
        return CUgraphExec(self.add(ExecutableGraph, nodes).handle)

    @driver_call()
    def cuGraphLaunch(self, hGraphExec, hStream):
        executable = self.find(ExecutableGraph, hGraphExec, INVALID_VALUE)
        stream = self.find_stream(hStream)
        if stream.capture is not None:
            raise OutsideTheDouble("the capture of a launch of a graph")
        before = (*stream.predecessors(), *executable.predecessors())
        for node in executable.nodes:
            if node.event is not None:
                self.find(Event, node.event.handle)
                operation = node.event.recorded(before)
            else:
                operation = Operation(stream.context, node.action, before)
            executable.last = self.submit(stream, operation)
            before = (operation,)

    @driver_call()
    def cuGraphDestroy(self, hGraph):
        """Executable graphs of it live on."""
        del self.handles[self.find(Graph, hGraph, INVALID_VALUE).handle]

    @driver_call()
    def cuGraphExecDestroy(self, hGraphExec):
        """What it is doing goes on to its end."""
        del self.handles[self.find(ExecutableGraph, hGraphExec, INVALID_VALUE).handle]


def _require_no_capture(stream):
    if stream.capture is not None:
        raise OutsideTheDouble("an event in a capture")


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
        ids = [attribute.id for attribute in config.attrs]
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
        sizes = [parameter.size for parameter in kernel.parameters]
        parameters = _parameter_bytes(kernelParams, sizes)

        def launch():
            if function.module.unloaded:
                raise UseAfterRelease(f"{kernel.name} runs after its module was unloaded")
            launched = function.kernel, grid, block, parameters
            device.machine.launch(*launched, shared_bytes=shared, is_early=is_early)
            return math.prod((*grid, *block)) * MILLISECONDS_PER_THREAD

        self.run_or_capture(stream, launch, waits=True)

    def _module(self, handle):
        return self.find(LoadedImage, handle, "INVALID_VALUE")

    def _function(self, handle):
        function = self.find(Function, handle)
        if function.module.context is not self.current():
            raise CudaError("INVALID_HANDLE")
        return function


def _runs_on(target, device):
    """Whether a binary for "sm_86" runs on a device: of its generation, not older than it."""
    digits = target.removeprefix("sm_").rstrip("af")
    major, minor = int(digits[:-1]), int(digits[-1])
    if target.endswith("a"):
        return device.capability == (major, minor)
    return device.capability[0] == major and device.capability[1] >= minor


def _check_launch(function, grid, block, dynamic_shared):
    threads = math.prod(block)
    sizes = zip((*block, *grid), (*MOST_BLOCK, *MOST_GRID), strict=True)
    within = all(1 <= size <= most for size, most in sizes)
    if not within or threads > THREADS_PER_BLOCK or dynamic_shared > function.most_dynamic_shared:
        raise CudaError("INVALID_VALUE")
    # That registers may limit them further is not known here.
    if threads > math.prod(function.kernel.kernel.maxntid or (THREADS_PER_BLOCK,)):
        raise CudaError("LAUNCH_OUT_OF_RESOURCES")


def _parameter_bytes(parameters, sizes):
    """The bytes of parameters, read when the kernel is launched: a tuple of values and types."""
    values, types = parameters
    if not len(values) == len(types) == len(sizes):
        raise OutsideTheDouble(f"{len(values)} parameters for a kernel of {len(sizes)}")
    packed = [bytes(kind(value)) for value, kind in zip(values, types, strict=True)]
    for value, data, size in zip(values, packed, sizes, strict=True):
        if len(data) != size:
            raise OutsideTheDouble(f"{value} has {len(data)} bytes, the parameter has {size}")
    return packed
