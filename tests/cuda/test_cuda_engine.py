"""The cuda engine: devices, errors, compilation, graphs, memory.

It runs on a machine that runs PTX, with doubles of the driver and of NVRTC.
"""

import gc
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cuda_cases import data, kernel, network, opened, read
from doubles import CUresult, DeviceDescription, DriverDouble, Order

import lamina as lm
from lamina.engines.cuda import calls, devices, requirements
from lamina.engines.cuda.build import architecture_of
from lamina.engines.discovery import open_engine
from lamina.errors import EngineError, InternalError


def refusal(call, kind=EngineError):
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


# What is missing


@pytest.mark.cases(
    ("error", "problem"),
    (ModuleNotFoundError("No module named 'cuda'", name="cuda.bindings"), "none"),
    (ImportError("undefined symbol: x"), "one that cannot be imported: undefined symbol: x"),
    # A package that lacks one of its own is not called missing.
    (
        ModuleNotFoundError("No module named 'cuda.pathfinder'", name="cuda.pathfinder"),
        "one that cannot be imported: No module named 'cuda.pathfinder'",
    ),
)
def test_a_package_that_is_missing_or_cannot_be_imported_is_named(monkeypatch, error, problem):
    def fails(name):
        raise error

    monkeypatch.setattr(requirements.importlib, "import_module", fails)
    monkeypatch.setattr(requirements.importlib.util, "find_spec", lambda name: None)
    assert refusal(requirements.packages) == (
        "in cuda: the cuda engine needs the package cuda-bindings\n"
        "  expected  cuda-bindings 13.0 or later\n"
        f"  found     {problem}\n"
        "  Install the packages with: pip install 'lamina[cuda]'. It also needs Nvidia's driver, "
        "but no CUDA toolkit."
    )


@pytest.mark.parametrize("name", ["cuda.py", "cuda/__init__.py"])
@pytest.mark.parametrize("text", ["", "import sys; sys.exit()", "raise ValueError"])
def test_a_module_that_hides_the_package_is_named_and_not_run(tmp_path, name, text):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    code = (
        "import lamina as lm\n"
        "print(*(one.problem for one in lm.devices()))\n"
        "from lamina.engines.cuda.requirements import packages\n"
        "packages()"
    )
    repository = str(Path(lm.__file__).parents[1])
    variables = os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path), repository))}
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=variables
    )
    assert said.returncode == 1
    assert f"found another module cuda: {file}" in said.stdout
    assert f"  found     another module cuda: {file}\n" in said.stderr
    assert "Rename that module, or start Python in another folder." in said.stderr


class DynamicLibNotFoundError(RuntimeError):
    """An error of that name in cuda-pathfinder."""


NO_LIBRARY = DynamicLibNotFoundError("not in this folder\nnor in that folder")


def starting(double, monkeypatch, failure):
    """The error of a driver that starts with this error."""

    def start(flags):
        if isinstance(failure, Exception):
            raise failure
        return (getattr(CUresult, f"CUDA_ERROR_{failure}"),)

    driver = SimpleNamespace(cuInit=start, cuGetErrorString=lambda status: (0, b"a text"))
    monkeypatch.setattr(calls, "packages", lambda: (driver, double.nvrtc))
    return refusal(lambda: open_engine("cuda"))


def with_libraries(monkeypatch, **broken):
    """Replaces what finds packages; `broken` has the libraries that cannot be loaded, and why."""

    def load(library):
        problem = broken.get(library)
        if problem:
            raise RuntimeError(problem)
        if problem is not None:
            raise NO_LIBRARY
        return SimpleNamespace(abs_path="/a/library")

    def module(name):
        assert name == "cuda.pathfinder"
        return SimpleNamespace(load_nvidia_dynamic_lib=load)

    monkeypatch.setattr(requirements, "importlib", SimpleNamespace(import_module=module))


def test_packages_that_cannot_be_loaded_are_named(monkeypatch):
    with_libraries(monkeypatch)
    assert requirements.missing_packages() == []
    with_libraries(monkeypatch, nvrtc="", cublasLt="wrong ELF class\nmore")
    assert requirements.missing_packages() == [
        "nvidia-cuda-nvrtc",
        "nvidia-cublas (wrong ELF class)",
    ]


NO_DRIVER = (
    "in cuda: the library of Nvidia's driver is missing\n"
    "  expected  libcuda.so.1 or nvcuda.dll\n"
    "  found     none\n"
    "  Install Nvidia's driver of release 580 or later, which supports CUDA 13: docs/cuda.md "
    "says how. Without an Nvidia GPU, use the cpu engine or the opencl engine."
)
TOO_OLD = "in cuda: the CUDA driver is too old\n"
NO_START = "in cuda: the CUDA driver does not start\n"


@pytest.mark.parametrize(
    ("failure", "kernel", "missing", "texts"),
    [
        (NO_LIBRARY, "", (), [NO_DRIVER]),
        (NO_LIBRARY, "", ("nvidia-cublas", "nvidia-cuda-nvrtc"), [
            "  missing packages  nvidia-cublas, nvidia-cuda-nvrtc\n",
            "Install the packages with: pip install 'lamina[cuda]'.",
        ]),
        # A container without the library.
        (NO_LIBRARY, "580.65", (), ["driver of the kernel  NVRM version: 580.65\n",
                                    "docker run --gpus all"]),
        (RuntimeError("wrong ELF class\nmore"), "", (), ["found     wrong ELF class\n"]),
        (RuntimeError("Failed to get cuGetProcAddress_v2"), "", (), [TOO_OLD, "release 580"]),
        ("NO_DEVICE", "", (), ["in cuda: there is no CUDA device on this machine\n",
                               "CUDA_ERROR_NO_DEVICE in cuInit: a text", "CUDA_VISIBLE_DEVICES"]),
        *((status, "570.1", (), [
            NO_START, f"  CUDA_ERROR_{status} in cuInit",
            "driver of the kernel  NVRM version: 570.1\n", advice,
        ]) for status, advice in (
            ("SYSTEM_DRIVER_MISMATCH", "restart the machine"),
            ("COMPAT_NOT_SUPPORTED_ON_DEVICE", "remove its folder from LD_LIBRARY_PATH"),
            ("SYSTEM_NOT_READY", "nvidia-fabricmanager"),
            ("UNKNOWN", "load the module nvidia_uvm again"),
            ("DEVICE_UNAVAILABLE", "which processes use the GPU"),
            ("STUB_LIBRARY", "remove the toolkit's folder stubs"),
            ("OPERATING_SYSTEM", "nvidia-smi shows whether the driver works"),
        )),
    ],
)  # fmt: skip
def test_a_driver_that_does_not_start_is_shown_with_the_remedy(
    double, monkeypatch, tmp_path, failure, kernel, missing, texts
):
    version = tmp_path / "version"
    if kernel:
        version.write_text(f"NVRM version: {kernel}\nGCC\n", encoding="utf-8")
    monkeypatch.setattr(requirements, "_KERNEL_DRIVER", version)
    monkeypatch.setattr(calls, "missing_packages", lambda: list(missing))
    text = starting(double, monkeypatch, failure)
    assert text == texts[0] or [part for part in texts if part not in text] == []


def test_a_driver_that_shows_no_device_is_an_error_like_that_of_its_start(use, monkeypatch):
    text = starting(use(), monkeypatch, "NO_DEVICE")
    use()
    monkeypatch.setattr(DriverDouble, "cuDeviceGetCount", lambda self: (0, 0))
    reported = "CUDA_ERROR_NO_DEVICE in cuInit: a text"
    assert refusal(lambda: open_engine("cuda")) == text.replace(reported, "none")


def listed():
    return [one for one in lm.devices() if one.engine.startswith("cuda")]


@pytest.mark.usefixtures("double")
def test_a_device_without_packages_is_listed_with_the_remedy(monkeypatch):
    monkeypatch.setattr(calls, "missing_packages", lambda: ["nvidia-cublas"])
    (device,) = listed()
    assert device.problem == "missing packages: nvidia-cublas"
    assert device.remedy == "Install the packages with: pip install 'lamina[cuda]'."


def test_a_driver_that_is_too_old_is_refused(double, monkeypatch):
    monkeypatch.setattr(double.driver, "cuDriverGetVersion", lambda: (0, 12040), raising=False)
    assert refusal(lambda: open_engine("cuda")) == (
        "in cuda: the CUDA driver is too old\n"
        "  expected  one that supports CUDA 13.0 or later\n"
        "  found     CUDA 12.4\n"
        "  Install Nvidia's driver of release 580 or later, which supports CUDA 13: docs/cuda.md "
        "says how."
    )


# Devices


def test_devices_are_described(use):
    use(DeviceDescription("Tesla T4", (7, 5)), DeviceDescription("H100", (9, 0), 80 << 20, 132))
    first, second = listed()
    assert first.description == "Tesla T4 (compute capability 7.5, CUDA 13.0)"
    assert (first.has_bfloat16, first.has_float16, first.has_float64) == (False, True, True)
    assert (second.engine, second.name, second.compute_units) == ("cuda:1", "H100", 132)
    assert (second.memory_bytes, second.has_bfloat16) == (80 << 20, True)


@pytest.mark.parametrize(("name", "expected"), [("cuda", "A"), ("cuda:1", "B"), ("cuda:b", "B")])
def test_a_device_is_opened_by_number_or_name(use, name, expected):
    use(DeviceDescription("A"), DeviceDescription("B"))
    assert open_engine(name).device.name == expected


@pytest.mark.cases(
    ("name", "problem"),
    ("cuda:2", "there is no CUDA device number 2\n  cuda:0    A (compute"),
    ("cuda:radeon", "no CUDA device is named 'radeon'\n  cuda:0  "),
)
def test_a_device_that_is_not_there_is_refused(use, name, problem):
    use(DeviceDescription("A"), DeviceDescription("B"))
    text = refusal(lambda: open_engine(name))
    assert text.startswith(f"in {name}: {problem.replace('cuda:0    ', 'cuda:0  ')}")
    assert "Did you mean 'cuda:0'?" in text


@pytest.mark.usefixtures("double")
def test_an_old_gpu_is_listed_with_the_remedy(monkeypatch):
    monkeypatch.setattr(devices, "LEAST_CAPABILITY", (8, 9))
    (device,) = listed()
    assert device.problem == "needs compute capability 8.9, the device has 8.0"
    text = refusal(lambda: open_engine("cuda:0"))
    assert text.startswith("in cuda:0: this CUDA device cannot be used\n")
    assert text.endswith("\n  Use the opencl engine, which runs on older GPUs.")


# Compilation


@pytest.mark.cases(
    ("capability", "expected"),
    ((8, 6), "sm_86"),
    ((8, 7), "sm_86"),
    ((9, 0), "sm_90a"),
    # The driver compiles PTX for devices that NVRTC does not know.
    ((13, 0), "compute_120"),
)
def test_kernels_are_compiled_for_the_device(capability, expected):
    assert architecture_of(capability, (75, 80, 86, 89, 90, 100, 120)) == expected


def test_a_kernel_that_nvrtc_refuses_is_shown(driver):
    kernels = [
        f'extern "C" __global__ void {name}(int *y) {{\n    *y = {value};\n}}'
        for name, value in (("right", "x"), ("wrong", "z"))
    ]
    head = "static __device__ int x;"
    text = refusal(lambda: driver.build("\n\n".join([head, *kernels])), InternalError)
    assert text.startswith("in cuda: NVRTC refuses a kernel\n  architecture  sm_80\n")
    assert 'error: identifier "z" is undefined' in text
    assert "line 4        *y = z;" in text


def test_compiled_kernels_are_kept_on_disk(use, counts):
    text = 'extern "C" __global__ void kept_once(int *x) { *x = 7; }'
    for _ in range(2):
        use()
        opened().build(text)
    assert counts["nvrtcCompileProgram"] == 1
    assert counts["cuModuleLoadData"] == 2


def test_kernels_are_compiled_at_once_and_found_in_other_texts(
    driver, counts, monkeypatch, tmp_path
):
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path))
    head = "static __device__ int shared_by_all(int x) { return x + 1; }"
    kernels = {
        name: f'extern "C" __global__ void {name}(int *x) {{\n    *x = shared_by_all({number});\n}}'
        for number, name in enumerate(("first", "second", "third"))
    }

    def run(*names):
        module = driver.build("\n\n".join([head, *map(kernels.get, names)]))
        values, target = [], driver.allocate(4)
        for name in names:
            driver.queue.launch(driver.kernel(module, name, [target], 1, numbered=False, group=1))
            values += read(driver, target, 1)
        return values

    compile_, both = driver._api.nvrtc.nvrtcCompileProgram, threading.Barrier(2, timeout=60)

    def compile_both(*arguments):
        # Each compilation waits for the other one to begin.
        both.wait()
        return compile_(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(driver._api.nvrtc, "nvrtcCompileProgram", compile_both)
        assert run("first", "second") == [1, 2]
    assert run("second", "third", "first") == [2, 3, 1]
    assert counts["nvrtcCompileProgram"] == 3


def test_a_product_is_rounded_before_it_is_added(driver):
    text = 'extern "C" __global__ void added(float *x) { x[0] = x[1] * x[1] + x[2]; }'
    buffer = driver.allocate(12)
    driver.queue.write(buffer, np.asarray([0, 1 + 2.0**-12, -1 - 2.0**-11], np.float32))
    driver.queue.launch(kernel(driver, text, [buffer], group=1))
    assert read(driver, buffer, 1) == [0]


# Running


HOW = {"loss": lm.CrossEntropy(), "optimizer": lm.SGD(0.1), "batch_size": 8}


def fitted(engine):
    model = lm.Model(network(lm.Dropout(0.25)), engine=engine, seed=3)
    how = HOW | {"optimizer": lm.Adam(1e-2), "metrics": [lm.Accuracy()], "epochs": 2}
    model.fit(data(), **how)
    return model


@pytest.mark.parametrize(("order", "capability"), [("late", (8, 0)), ("random", (9, 0))])
def test_a_fit_with_cublaslt_equals_that_of_the_interpreter(
    use, counts, order, capability, monkeypatch, tmp_path
):
    monkeypatch.setattr("lamina.engines.cuda.family.is_large", lambda step: True)
    # Programs that are kept on disk have the schedules of the true rule.
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path))
    double = use(DeviceDescription(capability=capability), order=Order(order))
    parameters, expected = (fitted(engine).parameters() for engine in ("cuda", "interpreter"))
    # All contractions of a training step: two forward, three backward.
    assert len({*double.cublaslt.problems}) == 5
    # From sm_90 on, kernels begin before the one before them has ended.
    assert (counts["cuLaunchKernelEx"] > 0) == (capability >= (9, 0))
    for name, value in expected.items():
        np.testing.assert_allclose(parameters[name], value, rtol=2e-4, atol=2e-5)


def test_an_epoch_is_one_graph_launch_for_each_batch(use, counts, monkeypatch):
    # Each piece of an epoch writes the numbers of its examples; here there is one piece.
    monkeypatch.setattr("lamina.training.steps.PIECE_SECONDS", 1e9)
    use()
    with lm.Model(network(), engine="cuda").training(**HOW) as training:
        rows = lm.data.Dataset(*data())
        training._at_once = 15
        used = []
        for steps in (15, 5, 15):
            before = Counter(counts)
            training.run(rows, steps=steps, seed=0)
            used.append(counts - before)
    _, few, many = used
    assert many["cuGraphLaunch"] - few["cuGraphLaunch"] == 10
    for name in ("cuLaunchKernel", "cuGraphInstantiate", "cuMemAlloc", "cuMemcpyDtoDAsync"):
        assert many[name] == few[name], name


def test_all_memory_is_freed(double):
    model = fitted("cuda")
    model.predict(data()[0])
    del model
    gc.collect()
    assert [leak for leak in double.leaks() if "bytes on device" in leak] == []


def test_each_gpu_has_a_model_of_its_own(use):
    use(DeviceDescription("A"), DeviceDescription("B", (9, 0)))
    x, _ = data()
    models = [lm.Model(network(), engine=f"cuda:{number}", seed=1) for number in range(2)]
    first, second = (model.predict(x) for model in models)
    np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6)


def test_a_fault_of_a_kernel_says_that_the_process_must_be_restarted(double, driver):
    text = 'extern "C" __global__ void beyond(int *x) { x[1 << 20] = 7; }'
    launched = kernel(driver, text, [driver.allocate(4)], group=1)

    def run():
        with driver.errors("running a program"):
            driver.queue.launch(launched)
            driver.queue.finish()

    message = refusal(run)
    assert message.startswith(
        "in cuda:0: the CUDA driver failed at running a program\n"
        "  driver reported  CUDA_ERROR_ILLEGAL_ADDRESS in cuStreamSynchronize: "
    )
    assert "The device stays unusable in this process: restart the process" in message
    assert len(double.recover()) == 1


def test_memory_that_does_not_fit_is_refused_before_it_is_allocated(use, counts):
    use(DeviceDescription(memory=1 << 20))
    wide = lm.Sequential(lm.Input(1000), lm.Linear(1000))
    text = refusal(lambda: lm.Model(wide, engine="cuda"))
    assert text.startswith("in cuda:0: this model needs more memory in one allocation than")
    assert counts["cuMemAlloc"] == 0


def test_a_batch_that_does_not_fit_is_refused_with_the_largest_that_does(use, counts):
    use(DeviceDescription(memory=3 << 20))
    net = lm.Sequential(lm.Input(1000), lm.Linear(16), lm.ReLU(), lm.Linear(4))
    how = {"loss": lm.CrossEntropy(), "optimizer": lm.SGD(0.1)}
    expected = net.max_batch_size(**how, engine="cuda")
    model = lm.Model(net, engine="cuda")
    counts.clear()
    text = refusal(lambda: model.training(**how, batch_size=700))
    assert counts["cuMemAlloc"] == 0
    assert text.startswith("in cuda:0: a batch of 700 examples needs more memory than there is\n")
    # Inputs of this size are uploaded by a second stream to buffers of their own.
    assert "inputs that are uploaded early: 2.68 MiB" in text
    match = re.search(r"\n  Take a batch of at most (\d+) examples, or divide", text)
    largest = int(match[1])
    with model.training(**how, batch_size=largest) as training:
        training.step(np.zeros((largest, 1000), "float32"), np.zeros(largest, "int64"))
        # The bill is nearly all of the memory, and it is what is taken.
        assert 0 <= opened().available_bytes() < 64 << 10
    assert refusal(lambda: model.training(**how, batch_size=largest + 1))
    assert expected == largest
