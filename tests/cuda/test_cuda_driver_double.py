"""The double of the CUDA driver: devices, contexts, modules and launches."""

from __future__ import annotations

import re
import threading
from ctypes import c_float, c_int, c_longlong, c_void_p
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")

from cuda.bindings import driver as real_driver
from cuda.bindings import nvrtc as real_nvrtc
from cuda.bindings.driver import CUdevice_attribute, CUfunction_attribute, CUresult
from cuda_double_cases import LATE, Session, binary, must

from cuda_machine import driver_double
from cuda_machine.device_attributes import DeviceDescription
from cuda_machine.driver_devices import ERROR_TEXTS
from cuda_machine.driver_double import CudaDouble, DriverDouble
from cuda_machine.driver_state import OutsideTheDouble
from cuda_machine.faults import Fault
from cuda_machine.nvrtc_double import NvrtcDouble

DYNAMIC = CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
DRIVER_FUNCTIONS = sorted(name for name in dir(DriverDouble) if name.startswith("cu"))
NVRTC_FUNCTIONS = ["nvrtcGetCUBIN", "nvrtcGetCUBINSize"]


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def two() -> Session:
    """A session with two devices."""
    return Session(LATE, [DeviceDescription("first"), DeviceDescription("second", (9, 0))])


def documented_parameters(function: object) -> list[str]:
    """The names of a function's parameters, from the first line of its docstring."""
    line = (function.__doc__ or "").splitlines()[0]
    inside = line[line.index("(") + 1 : line.rindex(")")]
    # Commas within the brackets of a type separate no parameters.
    parts = re.split(r",\s*(?![^\[]*\])", inside) if inside else []
    return [re.split(r"[:=]", part)[0].split()[-1].lstrip("*") for part in parts]


def own_parameters(function: object) -> list[str]:
    wrapped = getattr(function, "__wrapped__", function)
    code = wrapped.__code__
    return list(code.co_varnames[1 : code.co_argcount])


@pytest.mark.parametrize("name", DRIVER_FUNCTIONS)
def test_functions_have_the_parameters_of_the_real_driver(name: str) -> None:
    assert own_parameters(getattr(DriverDouble, name)) == documented_parameters(
        getattr(real_driver, name)
    )


@pytest.mark.parametrize("name", NVRTC_FUNCTIONS)
def test_functions_have_the_parameters_of_the_real_compiler(name: str) -> None:
    assert own_parameters(getattr(NvrtcDouble, name)) == documented_parameters(
        getattr(real_nvrtc, name)
    )


def test_missing_functions_raise_as_a_module_does() -> None:
    with pytest.raises(AttributeError, match="has no cuMemAllocManaged"):
        _ = CudaDouble().driver.cuMemAllocManaged
    with pytest.raises(AttributeError, match="has no nvrtcGetLTOIR"):
        _ = CudaDouble().nvrtc.nvrtcGetLTOIR


def test_enumerations_are_those_of_the_real_modules() -> None:
    double = CudaDouble()
    assert double.driver.CUresult is real_driver.CUresult
    assert double.nvrtc.nvrtcResult is real_nvrtc.nvrtcResult


def test_calls_before_initialization_fail() -> None:
    driver = CudaDouble().driver
    assert driver.cuDeviceGetCount() == (CUresult.CUDA_ERROR_NOT_INITIALIZED, None)
    assert driver.cuMemGetInfo() == (CUresult.CUDA_ERROR_NOT_INITIALIZED, None, None)


def test_no_device_is_an_error_of_initialization() -> None:
    assert CudaDouble([]).driver.cuInit(0) == (CUresult.CUDA_ERROR_NO_DEVICE,)


def test_errors_have_texts(session: Session) -> None:
    error = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    assert session("cuGetErrorString", error) == b"an illegal memory access was encountered"


def test_every_error_that_the_double_returns_has_a_text() -> None:
    folder = Path(driver_double.__file__).parent
    texts = [path.read_text() for path in folder.glob("driver_*.py")]
    returned = {name for text in texts for name in re.findall(r"CUDA_ERROR_[A-Z_]*[A-Z]", text)}
    assert {error.name for error in ERROR_TEXTS} >= returned


def test_each_device_has_its_description(two: Session) -> None:
    assert two("cuDeviceGetCount") == 2
    name = two("cuDeviceGetName", 32, two("cuDeviceGet", 1))
    assert name.split(b"\0")[0] == b"second"
    major = CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
    assert [two("cuDeviceGetAttribute", major, device) for device in (0, 1)] == [8, 9]
    opt_in = CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    assert [two("cuDeviceGetAttribute", opt_in, device) for device in (0, 1)] == [166912, 232448]
    assert two("cuDeviceTotalMem", 0) == 64 << 20


def test_unknown_attributes_are_not_guessed(session: Session) -> None:
    attribute = CUdevice_attribute.CU_DEVICE_ATTRIBUTE_NUMA_ID
    with pytest.raises(OutsideTheDouble, match="no value for CU_DEVICE_ATTRIBUTE_NUMA_ID"):
        session("cuDeviceGetAttribute", attribute, 0)


def test_a_device_that_is_not_there_is_an_error(session: Session) -> None:
    assert session.error("cuDeviceGet", 1) == "INVALID_DEVICE"


def test_contexts_are_current_for_each_thread(session: Session) -> None:
    seen: list[str] = []

    def other() -> None:
        seen.append(session.error("cuMemAlloc", 4))
        session.enter()
        seen.append(session.error("cuMemAlloc", 4))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == ["INVALID_CONTEXT", "SUCCESS"]


def test_contexts_form_a_stack(two: Session) -> None:
    first, second = two("cuCtxGetCurrent"), two("cuDevicePrimaryCtxRetain", 1)
    two("cuCtxPushCurrent", second)
    assert int(two("cuCtxGetCurrent")) == int(second)
    assert int(two("cuCtxPopCurrent")) == int(second)
    assert int(two("cuCtxGetCurrent")) == int(first)
    two("cuCtxPopCurrent")
    assert two.error("cuCtxPopCurrent") == "INVALID_CONTEXT"


def test_leaks_are_what_is_alive(session: Session) -> None:
    pointer, stream, event = session.number(), session.stream(), session.event()
    host = session("cuMemHostAlloc", 8, 0)
    assert [re.sub("0x.*", "...", leak) for leak in session.double.leaks()] == [
        "4 bytes on device 0",
        "8 bytes of page-locked memory",
        "context of device 0",
        "Stream ...",
        "Stream ...",
        "Event ...",
    ]
    session("cuMemFree", pointer)
    session("cuMemFreeHost", host)
    session("cuStreamDestroy", stream)
    session("cuEventDestroy", event)
    assert len(session.double.leaks()) == 2


def test_the_binary_is_the_ptx_of_the_compilation() -> None:
    assert b".target sm_80" in binary()
    nvrtc = NvrtcDouble()
    program = must(nvrtc.nvrtcCreateProgram(b"__global__ void f() {}", b"f.cu", 0, None, None))
    must(nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=compute_80"]))
    # There is no binary for a virtual architecture.
    assert must(nvrtc.nvrtcGetCUBINSize(program)) == 0
    must(nvrtc.nvrtcDestroyProgram(program))


def test_binaries_run_on_their_generation_only(two: Session) -> None:
    two("cuModuleLoadData", binary("sm_80"))
    assert two.error("cuModuleLoadData", binary("sm_90")) == "NO_BINARY_FOR_GPU"
    two.use(1)
    two("cuModuleLoadData", binary("sm_90"))
    assert two.error("cuModuleLoadData", binary("sm_80")) == "NO_BINARY_FOR_GPU"


def test_a_binary_of_a_later_minor_version_does_not_run(session: Session) -> None:
    assert session.error("cuModuleLoadData", binary("sm_86")) == "NO_BINARY_FOR_GPU"


def test_what_is_no_binary_is_not_loaded(session: Session) -> None:
    assert session.error("cuModuleLoadData", b"\x7fELF") == "INVALID_IMAGE"


def test_a_kernel_that_is_not_there_is_not_found(session: Session) -> None:
    assert session.error("cuModuleGetFunction", session.module, b"absent") == "NOT_FOUND"


def test_handles_end_with_what_they_name(session: Session) -> None:
    arguments = session.launch_arguments("set_value", session.own, session.number(), 1)
    session("cuModuleUnload", session.module)
    assert session.error("cuLaunchKernel", *arguments) == "INVALID_HANDLE"
    assert session.error("cuModuleUnload", session.module) == "INVALID_VALUE"


def test_handles_of_another_context_are_refused(two: Session) -> None:
    arguments = two.launch_arguments("set_value", two.own, two.number(), 1)
    stream = two.stream()
    two.use(1)
    assert two.error("cuLaunchKernel", *arguments) == "INVALID_HANDLE"
    assert two.error("cuEventRecord", two.event(), stream) == "INVALID_HANDLE"


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (((1,), (c_int,)), "1 parameters for a kernel of 2"),
        (((1, 2), (c_void_p, c_longlong)), "2 has 8 bytes, the parameter has 4"),
        (((1, 2), (c_float, c_int)), "1 has 4 bytes, the parameter has 8"),
    ],
)
def test_wrong_parameters_are_an_error_of_the_test(
    session: Session, parameters: object, text: str
) -> None:
    function = session.function("set_value")
    with pytest.raises(OutsideTheDouble, match=text):
        session("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, session.own, parameters, 0)


@pytest.mark.parametrize(
    ("kernel", "grid", "block", "result"),
    [
        ("set_value", (1, 65536, 1), (1, 1, 1), "INVALID_VALUE"),
        ("set_value", (0, 1, 1), (1, 1, 1), "INVALID_VALUE"),
        ("set_value", (1, 1, 1), (1, 1, 65), "INVALID_VALUE"),
        ("set_value", (1, 1, 1), (64, 32, 1), "INVALID_VALUE"),
        ("bounded", (1, 1, 1), (65, 1, 1), "LAUNCH_OUT_OF_RESOURCES"),
        ("bounded", (1, 1, 1), (64, 1, 1), "SUCCESS"),
    ],
)
def test_launches_have_limits(
    session: Session,
    kernel: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    result: str,
) -> None:
    pointer = session.number()
    values, types = (int(pointer), 1), (c_void_p, c_int)
    parameters = (values, types) if kernel == "set_value" else (values[:1], types[:1])
    function = session.function(kernel)
    assert (
        session.error("cuLaunchKernel", function, *grid, *block, 0, session.own, parameters, 0)
        == result
    )


def test_dynamic_shared_memory_above_48_kib_needs_the_attribute(session: Session) -> None:
    function = session.function("shared")
    # Of the kernel's own array.
    static = 1024
    parameters = ((int(session.number()), 1), (c_void_p, c_int))

    def launch(dynamic: int) -> str:
        return session.error(
            "cuLaunchKernel", *(function, 1, 1, 1, 1, 1, 1, dynamic, session.own, parameters, 0)
        )

    assert launch(48 * 1024 - static) == "SUCCESS"
    assert launch(48 * 1024 - static + 4) == "INVALID_VALUE"
    assert session.error("cuFuncSetAttribute", function, DYNAMIC, 163 * 1024) == "INVALID_VALUE"
    session("cuFuncSetAttribute", function, DYNAMIC, 163 * 1024 - static)
    assert launch(163 * 1024 - static) == "SUCCESS"


def test_an_instruction_that_the_machine_does_not_know_is_no_error_of_cuda(
    session: Session,
) -> None:
    with pytest.raises(Fault, match=r"unknown instruction.*pmevent"):
        session.launch("unknown", session.own, session.number())
