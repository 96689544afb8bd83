"""The peers of `benchmarks/gpu.py`: what they do on a GPU, with doubles of the GPU's packages."""

from __future__ import annotations

import importlib
import json
import stat
import sys
from collections.abc import Generator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benchmark_modules import GPU, modules

import lamina as lm
from lamina.workloads import Ready, Runner

# A double of CuPy: arrays of NumPy in a class of their own, which refuse to be mixed with those of
# NumPy, as CuPy does.
CUPY = """
import numpy

class Array(numpy.ndarray):
    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **named):
        given = [one for one in inputs if isinstance(one, numpy.ndarray)]
        if not all(isinstance(one, Array) for one in given):
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        plain = [one.view(numpy.ndarray) if isinstance(one, Array) else one for one in inputs]
        if out is not None:
            named["out"] = tuple(one.view(numpy.ndarray) for one in out)
        found = getattr(ufunc, method)(*plain, **named)
        return out[0] if out is not None else numpy.asarray(found).view(Array)

    def __getitem__(self, index):
        for one in index if isinstance(index, tuple) else (index,):
            if isinstance(one, numpy.ndarray) and not isinstance(one, Array):
                raise TypeError("indices of NumPy")
        return numpy.ndarray.__getitem__(self, index)

def asarray(value):
    return numpy.array(value).view(Array)

def asnumpy(array):
    assert isinstance(array, Array), type(array)
    return array.view(numpy.ndarray).copy()

def arange(count):
    return numpy.arange(count).view(Array)

exp, tanh, maximum, sqrt, zeros_like = (
    numpy.exp, numpy.tanh, numpy.maximum, numpy.sqrt, numpy.zeros_like)
__version__ = "0"
used, freed, waited = [], [], []

class cuda:
    class runtime:
        getDeviceCount = staticmethod(lambda: 2)
        getDeviceProperties = staticmethod(lambda number: {"name": b"NVIDIA %d" % number})
        runtimeGetVersion = staticmethod(lambda: 13000)

    class Device:
        def __init__(self, number):
            self.number = number

        def use(self):
            used.append(self.number)

    @staticmethod
    def get_current_stream():
        class stream:
            synchronize = staticmethod(lambda: waited.append(1))
        return stream

class pool:
    free_all_blocks = staticmethod(lambda: freed.append(1))

def get_default_memory_pool():
    assert used == [1]
    return pool
"""
# Answers like a worker, but it cannot prepare mlp.
WORKER = """
import json, os, sys
print(json.dumps({"versions": {"process": os.getpid()}}), flush=True)
for line in sys.stdin:
    command = json.loads(line)
    found = {"seconds": 0.05, "cpu_seconds": 0.0}
    if "prepare" in command:
        found = {"fingerprint": 1.0, "ready_seconds": 1.0, "process": os.getpid()}
        if command["prepare"]["name"] == "mlp":
            found = {"problem": "an illegal address"}
    print(json.dumps(found), flush=True)
"""


@pytest.fixture(scope="module")
def loaded() -> Generator[dict[str, ModuleType]]:
    yield from modules(GPU)


# The command --------------------------------------------------------------------------------------


def test_a_worker_with_a_problem_is_started_again(
    loaded: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, harness, named = loaded["gpu"], loaded["harness"], loaded["gpu_workloads"].named
    (tmp_path / "worker.py").write_text(WORKER)
    monkeypatch.setattr(harness, "FOLDER", tmp_path)
    worker = harness.Worker("lamina", 1, script=harness.Script("worker.py"))
    first = worker.versions["process"]
    given = gpu.options().parse_args(["--rounds", "1", "--seconds", "0.01"])
    found = gpu.measured(named("mlp", True), {"lamina": worker}, given, tmp_path)
    assert found["calls"]["problems"] == {"lamina": "an illegal address"}
    found = gpu.measured(named("softmax", True), {"lamina": worker}, given, tmp_path)
    worker.close()
    assert found["calls"]["peers"]["lamina"]["median"] == 0.05
    assert found["calls"]["peers"]["lamina"]["process"] != first


def test_the_report_has_all_workloads_that_were_done(
    loaded: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = loaded["gpu"]
    peers = {"peers": {}, "problems": {}, "best": None}

    def ends(workload: Any, *_: Any) -> dict[str, Any]:
        if workload.name == "mlp":
            raise KeyboardInterrupt
        return {"calls": peers, "resident": peers}

    for name, replacement in {
        "measured": ends,
        "start": lambda *_: ({"lamina": SimpleNamespace(versions={"engine": "cuda:0"})}, {}),
        "print_machine": lambda *_: None,
        "limits": lambda *_: {},
    }.items():
        monkeypatch.setattr(gpu, name, replacement)
    file = tmp_path / "gpu.json"
    options = ["--conformance", "0", "--workload", "softmax", "--workload", "mlp"]
    monkeypatch.setattr(sys, "argv", ["gpu.py", *options, "--json", str(file)])
    monkeypatch.setattr(gpu.os, "environ", dict(gpu.os.environ))
    with pytest.raises(KeyboardInterrupt):
        gpu.main()
    assert list(json.loads(file.read_text())["workloads"]) == ["softmax"]


@pytest.mark.parametrize(("status", "expected"), [(0, "0, NVIDIA L4"), (9, "no driver")])
def test_it_prints_what_nvidia_smi_says(
    loaded: dict[str, ModuleType],
    status: int,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if sys.platform == "win32":
        pytest.skip("a script in place of nvidia-smi")
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\necho {expected}\nexit {status}\n")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert loaded["gpu"].smi_text() == expected


# CuPy ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["seed-forward", "seed-step", "tiny-run", "softmax"])
def test_the_formulas_run_on_arrays_of_a_device(
    loaded: dict[str, ModuleType], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, harness = loaded["gpu"], loaded["harness"]
    (tmp_path / "cupy.py").write_text(CUPY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("BENCHMARK_DEVICE", "cuda:1")
    workload = loaded["gpu_workloads"].named(name, True)
    harness.write_data(workload, tmp_path / "data.npz")
    worker = harness.Worker("cupy", 1, script=gpu.PEERS["float32"]["cupy"])
    assert worker.versions["device"] == "NVIDIA 1"
    own = Runner(workload, "interpreter")
    before = own.parameters()
    own.run(workload.compared_steps)
    moved = [new - old for new, old in zip(own.parameters().values(), before.values(), strict=True)]
    results = [own.outputs()] if workload.timed == "forward" else moved
    expected = sum(np.square(one, dtype="float64").sum() for one in results) ** 0.5
    found = worker.prepare(workload, tmp_path / "data.npz")
    assert found["fingerprint"] == pytest.approx(expected, rel=1e-3)
    assert worker.ask(resident=name, steps=2)["seconds"] > 0
    assert worker.ask(release=name) == {}
    worker.close()


# PyTorch ------------------------------------------------------------------------------------------


@pytest.fixture
def on_device(loaded: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """PyTorch's worker, imported in this process."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return importlib.import_module("pytorch_gpu")


@pytest.mark.torch
def test_pytorch_takes_the_gpu_of_lamina(
    on_device: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = on_device.torch.cuda
    names = ["NVIDIA A10", "NVIDIA L4"]
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "device_count", lambda: 2)
    monkeypatch.setattr(cuda, "get_device_name", names.__getitem__)
    properties = SimpleNamespace(name="NVIDIA L4", major=8, minor=9)
    monkeypatch.setattr(cuda, "get_device_properties", lambda device: properties)
    assert on_device.chosen_device("cuda:1") == "cuda:1"
    assert on_device.versions("cuda:1")["compute capability"] == "8.9"


@pytest.mark.torch
def test_bytes_of_pytorch_are_those_of_the_workload(
    on_device: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda, freed = on_device.torch.cuda, []
    monkeypatch.setattr(cuda, "max_memory_allocated", lambda device: 1000)
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "empty_cache", lambda: freed.append(True))
    peer = on_device.PyTorchOnDevice.__new__(on_device.PyTorchOnDevice)
    peer._device, peer._before = on_device.torch.device("cuda:1"), 300
    assert peer.notes() == {"bytes": 700}
    peer.release()
    assert freed == [True]


@pytest.mark.torch
def test_autocast_does_not_see_binary_cross_entropy(
    on_device: ModuleType,
    loaded: dict[str, ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = on_device.torch
    worker = importlib.import_module("worker")
    seen: list[tuple[bool, Any]] = []
    computed = torch.nn.functional.binary_cross_entropy

    def noted(outputs: Any, *arguments: Any, **named: Any) -> Any:
        seen.append((torch.is_autocast_enabled("cpu"), outputs.dtype))
        return computed(outputs, *arguments, **named)

    monkeypatch.setattr(torch.nn.functional, "binary_cross_entropy", noted)
    workload = loaded["gpu_workloads"].named("tiny-step", True)
    loaded["harness"].write_data(workload, tmp_path / "data.npz")
    data = worker.read_data(str(tmp_path / "data.npz"))
    record = worker.read_workload(json.dumps(workload.record()))
    peer = on_device.PyTorchOnDevice(record, data, compiled=False, mixed=True, device="cpu")
    peer.run(1)
    assert seen == [(False, torch.float32)]


@pytest.mark.torch
@pytest.mark.parametrize("name", ["resnet-18", "mobilenet-v2", "transformer"])
@pytest.mark.parametrize("tiny", [False, True])
def test_pytorch_has_the_parameters_of_ready_networks(
    on_device: ModuleType, loaded: dict[str, ModuleType], name: str, tiny: bool
) -> None:
    workload = loaded["gpu_workloads"].named(name, tiny)
    assert isinstance(workload.architecture, Ready)
    ready = importlib.import_module("pytorch_networks").READY
    module = ready[workload.architecture.function](**workload.architecture.options)
    in_order = getattr(module, "in_order", module.parameters)
    own = lm.Model(workload.network(), engine="interpreter").parameters().values()
    assert [tuple(one.shape) for one in in_order()] == [one.shape for one in own]
