"""What the double of the CUDA driver refuses, and what depends on the order of its streams.

The tests of the engine show that right calls have right results.
"""

import functools
import re
import threading
from ctypes import c_float, c_int, c_longlong, c_void_p

import numpy as np
import pytest
from doubles import CudaDouble, CUresult, DeviceDescription, DriverDouble, Order, OutsideTheDouble
from doubles import driver as real_driver
from doubles import nvrtc as real_nvrtc

from cuda_machine.driver_double import NvrtcDouble
from cuda_machine.faults import Fault

SOURCE = r"""
extern "C" __global__ void set_value(int* target, int value) { *target = value; }
extern "C" __global__ void copy_value(int* target, const int* source) { *target = *source; }
extern "C" __global__ void race(int* target) { *target = threadIdx.x; }
extern "C" __global__ void __launch_bounds__(64) bounded(int* target, int value) { *target = 1; }
extern "C" __global__ void shared(int* target, int value) {
    __shared__ int fixed[256];
    extern __shared__ int dynamic[];
    dynamic[threadIdx.x] = value;
    fixed[threadIdx.x] = dynamic[threadIdx.x];
    *target = fixed[0];
}
extern "C" __global__ void unknown(int* target) { asm volatile("pmevent 7;"); }
"""
LATE, EARLY = Order("late"), Order("early")
TWO = [DeviceDescription("first"), DeviceDescription("second", (9, 0))]
NON_BLOCKING = 1
CUdeviceptr = real_driver.CUdeviceptr
NUMA_ID = real_driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_NUMA_ID
DYNAMIC = real_driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
GLOBAL = real_driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
THREAD_LOCAL = real_driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
RELAXED = real_driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED


@functools.cache
def binary(architecture="sm_80"):
    """The kernels for an architecture, as the double of NVRTC compiles them."""
    nvrtc = CudaDouble().nvrtc
    program = must(nvrtc.nvrtcCreateProgram(SOURCE.encode(), b"kernels.cu", 0, None, None))
    option = f"--gpu-architecture={architecture}".encode()
    must(nvrtc.nvrtcCompileProgram(program, 1, [option]))
    made = bytearray(must(nvrtc.nvrtcGetCUBINSize(program)))
    must(nvrtc.nvrtcGetCUBIN(program, made))
    must(nvrtc.nvrtcDestroyProgram(program))
    return bytes(made)


def must(returned):
    """The outputs of a call that must succeed: none, one, or several."""
    result, *outputs = returned
    assert int(result) == 0, result
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


class Session:
    """A process that has initialized CUDA, with the first device's context current."""

    def __init__(self, order=LATE, devices=TWO):
        self.double = CudaDouble(devices, order)
        self.driver = self.double.driver
        self("cuInit", 0)
        self.use(0)

    def use(self, device):
        """Makes the context of a device current, with a stream of its own, and loads kernels."""
        self.enter(device)
        self.own = self.stream()
        self.module = self("cuModuleLoadData", binary(("sm_80", "sm_90")[device]))
        return self

    def enter(self, device=0):
        self("cuCtxPushCurrent", self("cuDevicePrimaryCtxRetain", device))

    def __call__(self, name, *arguments):
        """The outputs of a call, which must succeed."""
        return must(getattr(self.driver, name)(*arguments))

    def error(self, name, *arguments):
        """The name of a call's result, without CUDA_ERROR_."""
        result = getattr(self.driver, name)(*arguments)[0]
        return result.name.removeprefix("CUDA_ERROR_").removeprefix("CUDA_")

    def function(self, name):
        return self("cuModuleGetFunction", self.module, name.encode())

    def launch(
        self, name, stream, *values, types = (),
        grid = (1, 1, 1), block = (1, 1, 1), dynamic = 0,
    ):  # fmt: skip
        """Launches a kernel with pointers and ints, or with values of other types."""
        types = types or [c_int if isinstance(value, int) else c_void_p for value in values]
        where = self.function(name), *grid, *block, dynamic, stream
        return self.error("cuLaunchKernel", *where, ([*map(int, values)], types), 0)

    def shaped(self, name="set_value", **shape):
        return self.launch(name, self.own, self.number(), 1, **shape)

    def load(self, image):
        return self.error("cuModuleLoadData", image)

    def parameters(self, values, types):
        return self.launch("set_value", self.own, *values, types=types)

    def stream(self):
        return self("cuStreamCreate", NON_BLOCKING)

    def event(self, flags=0):
        return self("cuEventCreate", flags)

    def number(self, value=None):
        """Device memory of four bytes; with a value, it has been written there."""
        pointer = self("cuMemAlloc", 4)
        if value is not None:
            host = np.array([value], np.int32)
            self("cuMemcpyHtoDAsync", pointer, host.ctypes.data, 4, self.own)
            self("cuStreamSynchronize", self.own)
        return pointer

    def read(self, pointer, *streams):
        """The number at an address, after the work of these streams."""
        target = np.zeros(1, np.int32)
        for stream in streams:
            self("cuStreamSynchronize", stream)
        self("cuMemcpyDtoHAsync", target.ctypes.data, pointer, 4, self.own)
        return int(target[0])

    def host(self, value, *, pinned):
        """Memory of the host with a number."""
        array = np.zeros(1, np.int32)
        if pinned:
            array = np.ctypeslib.as_array((c_int * 1).from_address(self("cuMemHostAlloc", 4, 0)))
        array[0] = value
        return array

    def in_thread(self, name, *arguments, enters=True):
        """The result of a call in another thread."""
        results = []

        def call():
            if enters:
                self.enter()
            results.append(self.error(name, *arguments))

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        return results[0]

    def capturing(self):
        """A stream that is capturing."""
        stream = self.stream()
        self("cuStreamBeginCapture", stream, THREAD_LOCAL)
        return stream


@pytest.fixture
def session():
    return Session()


def documented_parameters(function):
    """The names of a function's parameters, from the first line of its docstring."""
    line = (function.__doc__ or "").splitlines()[0]
    inside = line[line.index("(") + 1 : line.rindex(")")]
    # Commas within the brackets of a type separate no parameters.
    parts = re.split(r",\s*(?![^\[]*\])", inside) if inside else []
    return [re.split(r"[:=]", part)[0].split()[-1].lstrip("*") for part in parts]


def test_functions_have_the_parameters_of_the_real_modules():
    names = [name for name in dir(DriverDouble) if re.match("cu[A-Z]", name)]
    functions = [(DriverDouble, real_driver, name) for name in names]
    functions += [(NvrtcDouble, real_nvrtc, f"nvrtcGetCUBIN{suffix}") for suffix in ("", "Size")]
    for double, real, name in functions:
        code = getattr(getattr(double, name), "__wrapped__", getattr(double, name)).__code__
        parameters = [*code.co_varnames[1 : code.co_argcount]]
        assert parameters == documented_parameters(getattr(real, name)), name


def test_missing_functions_raise_as_a_module_does():
    with pytest.raises(AttributeError, match="has no cuMemAllocManaged"):
        _ = CudaDouble().driver.cuMemAllocManaged
    with pytest.raises(AttributeError, match="has no nvrtcGetLTOIR"):
        _ = CudaDouble().nvrtc.nvrtcGetLTOIR


def twice(session, free, thing):
    session(free, thing)
    return session.error(free, thing)


def dynamic(session, most, size):
    """A launch of a kernel with an array of 1024 bytes of its own."""
    if most is not None:
        result = session.error("cuFuncSetAttribute", session.function("shared"), DYNAMIC, most)
        if result != "SUCCESS":
            return result
    return session.shaped("shared", dynamic=size)


def timed(session, flags=0):
    start, end, stream = session.event(flags), session.event(), session.stream()
    session("cuEventRecord", start, stream)
    session("cuStreamSynchronize", stream)
    session.launch("set_value", stream, session.number(), 1)
    session("cuEventRecord", end, stream)
    return session.error("cuEventElapsedTime", start, end)


def of_other_context(session):
    function, stream = session.function("race"), session.own
    session.use(1)
    parameters = (int(session.number()),), (c_void_p,)
    return session.error("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, 0)


REFUSED = [
    ("without a context", "INVALID_CONTEXT",
     lambda s: s.in_thread("cuMemAlloc", 4, enters=False)),
    ("no such device", "INVALID_DEVICE", lambda s: s.error("cuDeviceGet", 2)),
    ("a later architecture", "NO_BINARY_FOR_GPU", lambda s: s.load(binary("sm_86"))),
    ("another generation", "NO_BINARY_FOR_GPU", lambda s: s.load(binary("sm_90"))),
    ("an older generation", "NO_BINARY_FOR_GPU",
     lambda s: s.use(1).load(binary("sm_80"))),
    ("no binary", "INVALID_IMAGE", lambda s: s.load(b"\x7fELF")),
    ("no such kernel", "NOT_FOUND", lambda s: s.error("cuModuleGetFunction", s.module, b"absent")),
    ("unloaded twice", "INVALID_VALUE", lambda s: twice(s, "cuModuleUnload", s.module)),
    ("another context", "INVALID_HANDLE", of_other_context),
    ("an event of another context", "INVALID_HANDLE",
     lambda s: s.error("cuEventRecord", s.event(), s.use(1).own)),
    ("a grid that is too large", "INVALID_VALUE", lambda s: s.shaped(grid=(1, 65536, 1))),
    ("an empty grid", "INVALID_VALUE", lambda s: s.shaped(grid=(0, 1, 1))),
    ("a block that is too deep", "INVALID_VALUE", lambda s: s.shaped(block=(1, 1, 65))),
    ("a block that is too large", "INVALID_VALUE", lambda s: s.shaped(block=(64, 32, 1))),
    ("more than its bounds", "LAUNCH_OUT_OF_RESOURCES",
     lambda s: s.shaped("bounded", block=(65, 1, 1))),
    ("more shared memory", "INVALID_VALUE", lambda s: dynamic(s, None, (47 << 10) + 4)),
    ("more than was asked for", "INVALID_VALUE", lambda s: dynamic(s, 64 << 10, (64 << 10) + 4)),
    ("more than there is", "INVALID_VALUE", lambda s: dynamic(s, 163 << 10, 0)),
    ("too much memory", "OUT_OF_MEMORY", lambda s: s.error("cuMemAlloc", 1 << 30)),
    ("no memory", "INVALID_VALUE", lambda s: s.error("cuMemAlloc", 0)),
    ("no memory of the host", "INVALID_VALUE", lambda s: s.error("cuMemHostAlloc", 0, 0)),
    ("freed twice", "INVALID_VALUE", lambda s: twice(s, "cuMemFree", s.number())),
    ("memory of the host freed twice", "INVALID_VALUE",
     lambda s: twice(s, "cuMemFreeHost", s("cuMemHostAlloc", 4, 0))),
    ("a copy beyond the end", "INVALID_VALUE",
     lambda s: s.error("cuMemcpyDtoDAsync", s.number(), s.number(), 8, s.own)),
    ("a stream destroyed twice", "INVALID_HANDLE", lambda s: twice(s, "cuStreamDestroy", s.own)),
    ("an event destroyed twice", "INVALID_HANDLE", lambda s: twice(s, "cuEventDestroy", s.event())),
    ("the time of nothing", "INVALID_HANDLE",
     lambda s: s.error("cuEventElapsedTime", s.event(), s.event())),
    ("the time of what has not run", "NOT_READY", timed),
    ("the time of an event without time", "INVALID_HANDLE",
     lambda s: timed(s, real_driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)),
    ("no capture", "ILLEGAL_STATE", lambda s: s.error("cuStreamEndCapture", s.own)),
    ("two captures", "ILLEGAL_STATE",
     lambda s: s.error("cuStreamBeginCapture", s.capturing(), THREAD_LOCAL)),
    ("the capture of another thread", "STREAM_CAPTURE_WRONG_THREAD",
     lambda s: s.in_thread("cuStreamEndCapture", s.capturing())),
    ("a graph destroyed twice", "INVALID_VALUE",
     lambda s: twice(s, "cuGraphDestroy", s("cuStreamEndCapture", s.capturing()))),
    ("a wait for a capture", "STREAM_CAPTURE_UNSUPPORTED",
     lambda s: s.in_thread("cuStreamSynchronize", s.capturing())),
    ("legal shapes", "SUCCESS", lambda s: s.shaped("bounded", block=(64, 1, 1))),
    ("legal shared memory", "SUCCESS", lambda s: dynamic(s, 162 << 10, 162 << 10)),
]  # fmt: skip


@pytest.mark.parametrize(("expected", "call"), [one[1:] for one in REFUSED],
                         ids=[one[0] for one in REFUSED])  # fmt: skip
def test_calls_that_are_refused(session, expected, call):
    assert call(session) == expected


def test_calls_before_initialization_fail():
    driver = CudaDouble().driver
    assert driver.cuDeviceGetCount() == (CUresult.CUDA_ERROR_NOT_INITIALIZED, None)
    assert driver.cuMemGetInfo() == (CUresult.CUDA_ERROR_NOT_INITIALIZED, None, None)
    assert CudaDouble([]).driver.cuInit(0) == (CUresult.CUDA_ERROR_NO_DEVICE,)


OUTSIDE = [
    ("no value for CU_DEVICE_ATTRIBUTE_NUMA_ID",
     lambda s: s("cuDeviceGetAttribute", NUMA_ID, 0)),
    ("1 parameters for a kernel of 2", lambda s: s.parameters((1,), (c_int,))),
    ("2 has 8 bytes, the parameter has 4", lambda s: s.parameters((1, 2), (c_void_p, c_longlong))),
    ("1 has 4 bytes, the parameter has 8", lambda s: s.parameters((1, 2), (c_float, c_int))),
    ("no default stream", lambda s: s("cuStreamSynchronize", 0)),
    ("a stream that waits for the default stream", lambda s: s("cuStreamCreate", 0)),
    ("a capture of the mode", lambda s: s("cuStreamBeginCapture", s.own, GLOBAL)),
    ("a copy of pageable memory",
     lambda s: s("cuMemcpyHtoDAsync", s.number(), 1 << 20, 4, s.capturing())),
    ("an event in a capture", lambda s: s("cuEventRecord", s.event(), s.capturing())),
    ("an event in a capture", lambda s: s("cuStreamWaitEvent", s.capturing(), s.event(), 0)),
    ("the end of a stream that is capturing", lambda s: s("cuStreamDestroy", s.capturing())),
]  # fmt: skip


@pytest.mark.parametrize(("text", "call"), OUTSIDE)
def test_what_the_engine_does_not_call_is_outside_of_the_double(session, text, call):
    with pytest.raises(OutsideTheDouble, match=text):
        call(session)


def test_an_instruction_that_the_machine_does_not_know_is_no_error_of_cuda(session):
    with pytest.raises(Fault, match=r"unknown instruction.*pmevent"):
        session.launch("unknown", session.own, session.number())


UNSAFE = {
    "cuMemAlloc": lambda s: (4,),
    "cuMemHostAlloc": lambda s: (4, 0),
    "cuMemFree": lambda s: (s.number(),),
    "cuStreamSynchronize": lambda s: (s.own,),
    "cuEventSynchronize": lambda s: (s.event(),),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_calls_depend_on_the_thread_and_its_mode(session, name):
    """cuThreadExchangeStreamCaptureMode: the thread that captures must not make them."""
    target = session.number()
    first, second, third = (UNSAFE[name](session) for _ in range(3))
    stream = session.capturing()
    assert session.in_thread(name, *first) == "SUCCESS"
    assert session("cuThreadExchangeStreamCaptureMode", RELAXED) == GLOBAL
    assert session.error(name, *second) == "SUCCESS"
    assert session("cuThreadExchangeStreamCaptureMode", GLOBAL) == RELAXED
    assert session.error(name, *third) == "STREAM_CAPTURE_UNSUPPORTED"
    # Nothing can be added to the capture any more.
    error = session.error("cuMemsetD8Async", target, 0, 4, stream)
    assert error == "STREAM_CAPTURE_INVALIDATED"
    assert session.error("cuStreamEndCapture", stream) == "STREAM_CAPTURE_INVALIDATED"


# What depends on the order


def read_by_second_stream(session, *, wait):
    """What a second stream reads of a kernel's result, with or without a wait for an event."""
    pointer, host = session.number(1), session.host(0, pinned=True)
    first, second, event = session.stream(), session.stream(), session.event()
    session.launch("set_value", first, pointer, 7)
    session("cuEventRecord", event, first)
    if wait:
        session("cuStreamWaitEvent", second, event, 0)
    session("cuMemcpyDtoHAsync", host.ctypes.data, pointer, 4, second)
    session("cuStreamSynchronize", second)
    return int(host[0])


def overwritten_too_soon(session, *, wait):
    """What a stream reads of memory that another one overwrites, with or without a wait."""
    source, target = session.number(1), session.number(0)
    reader, writer, event = session.stream(), session.stream(), session.event()
    session.launch("copy_value", reader, target, source)
    session("cuEventRecord", event, reader)
    if wait:
        session("cuStreamWaitEvent", writer, event, 0)
    session.launch("set_value", writer, source, 2)
    return session.read(target, writer, reader)


def copied_after_change(session, *, pinned):
    """What a copy brings to the device, if the host's memory changes after the call."""
    pointer, stream, host = session.number(), session.stream(), session.host(1, pinned=pinned)
    session("cuMemcpyHtoDAsync", pointer, host.ctypes.data, 4, stream)
    host[0] = 2
    return session.read(pointer, stream)


def read_without_wait(session, *, pinned):
    """What the host finds after an asynchronous copy that it does not wait for."""
    pointer, stream, host = session.number(3), session.stream(), session.host(1, pinned=pinned)
    session("cuMemcpyDtoHAsync", host.ctypes.data, pointer, 4, stream)
    return int(host[0])


def launched_graph(session, *, wait):
    """What a graph leaves of a number, with or without a wait for its stream."""
    pointer, stream = session.number(1), session.stream()
    session("cuStreamBeginCapture", stream, THREAD_LOCAL)
    session.launch("set_value", stream, pointer, 7)
    graph = session("cuGraphInstantiate", session("cuStreamEndCapture", stream), 0)
    assert session.read(pointer, stream) == 1
    session("cuGraphLaunch", graph, stream)
    return session.read(pointer, *([stream] if wait else []))


@pytest.mark.cases(
    ("scenario", "option", "late", "early"),
    (read_by_second_stream, {"wait": False}, 1, 7),
    (read_by_second_stream, {"wait": True}, 7, 7),
    (overwritten_too_soon, {"wait": False}, 2, 1),
    (overwritten_too_soon, {"wait": True}, 1, 1),
    (copied_after_change, {"pinned": True}, 2, 1),
    (copied_after_change, {"pinned": False}, 1, 1),
    (read_without_wait, {"pinned": True}, 1, 3),
    (read_without_wait, {"pinned": False}, 3, 3),
    (launched_graph, {"wait": False}, 1, 7),
    (launched_graph, {"wait": True}, 7, 7),
)
def test_a_missing_wait_shows_as_a_wrong_result(scenario, option, late, early):
    assert scenario(Session(LATE), **option) == late
    assert scenario(Session(EARLY), **option) == early
    # Random orders show it for some seeds.
    results = {scenario(Session(Order("random", seed)), **option) for seed in range(16)}
    assert results == {late, early}


def test_elapsed_time_grows_with_the_work(session):
    pointer, stream, events = session.number(), session.own, [session.event() for _ in range(3)]
    for launches, event in zip((0, 1, 3), events, strict=True):
        for _ in range(launches):
            session.launch("set_value", stream, pointer, 1)
        session("cuEventRecord", event, stream)
    session("cuStreamSynchronize", stream)
    first, second = (session("cuEventElapsedTime", *events[n : n + 2]) for n in (0, 1))
    assert first > 0
    assert second == pytest.approx(3 * first)


# Faults


def after(session, enqueue, free, of):
    """Frees something that an operation of a stream uses, before it runs."""
    enqueue(session, of)
    session(free, of)


FAULTS = [
    ("LAUNCH_FAILED", "a race", lambda s: s.launch("race", s.own, s.number(), block=(2, 1, 1))),
    ("ILLEGAL_ADDRESS", "an illegal address",
     lambda s: s.launch("set_value", s.own, CUdeviceptr(0), 2)),
    ("ILLEGAL_ADDRESS", "an illegal address",
     lambda s: s.launch("set_value", s.use(1).own, s.other, 2)),
    ("MISALIGNED_ADDRESS", "a misaligned address",
     lambda s: s.launch("set_value", s.own, CUdeviceptr(int(s("cuMemAlloc", 8)) + 1), 1)),
    ("ILLEGAL_ADDRESS", "an illegal address", lambda s: after(
        s, lambda s, one: s.launch("set_value", s.own, one, 1), "cuMemFree", s.number())),
    ("ILLEGAL_ADDRESS", "a copy or fill runs after its memory was freed", lambda s: after(
        s, lambda s, one: s("cuMemsetD8Async", one, 0, 4, s.own), "cuMemFree", s.number())),
    ("LAUNCH_FAILED", "a copy runs after its page-locked memory was freed", lambda s: after(
        s, lambda s, one: s("cuMemcpyHtoDAsync", s.number(), one, 4, s.own),
        "cuMemFreeHost", s("cuMemHostAlloc", 4, 0))),
    ("LAUNCH_FAILED", "set_value runs after its module was unloaded", lambda s: after(
        s, lambda s, one: s.launch("set_value", s.own, s.number(), 1), "cuModuleUnload", s.module)),
]  # fmt: skip


@pytest.mark.parametrize(("error", "text", "act"), FAULTS)
def test_a_fault_shows_when_something_waits_and_from_then_on(session, error, text, act):
    session.other, stream = session.number(1), session.stream()
    act(session)
    host = session.host(1, pinned=True)
    session("cuMemcpyDtoHAsync", host.ctypes.data, session.other, 4, session.own)
    assert session.double.faults == []
    for _ in range(2):
        assert session.error("cuStreamSynchronize", session.own) == error
    assert session.error("cuMemAlloc", 4) == error
    # A device does nothing after a fault.
    assert host[0] == 1
    (fault,) = session.double.recover()
    assert text in str(fault)
    session("cuStreamSynchronize", stream)


def test_a_fault_in_the_early_order_shows_from_the_next_call_on():
    session = Session(EARLY)
    session.launch("race", session.own, session.number(), block=(2, 1, 1))
    assert session.error("cuMemGetInfo") == "LAUNCH_FAILED"
    # Other devices are left alone.
    session.use(1)
    assert session.read(session.number(3)) == 3


def test_a_copy_of_memory_that_nobody_wrote_is_still_not_written(session):
    source, copy = session.number(), session.number()
    session("cuMemcpyDtoDAsync", copy, source, 4, session.own)
    session.launch("copy_value", session.own, session.number(), copy)
    assert session.error("cuStreamSynchronize", session.own) == "LAUNCH_FAILED"
    assert "a read of global memory that is not written" in str(session.double.faults[0])


def test_leaks_are_what_is_alive(session):
    pointer, host, event = session.number(), session("cuMemHostAlloc", 8, 0), session.event()
    leaks = [re.sub("0x.*", "...", leak) for leak in session.double.leaks()]
    assert leaks == [
        *("4 bytes on device 0", "8 bytes of page-locked memory", "context of device 0"),
        *("Stream ...", "LoadedImage ...", "Event ..."),
    ]
    session("cuMemFree", pointer)
    session("cuMemFreeHost", host)
    session("cuEventDestroy", event)
    assert len(session.double.leaks()) == 3
