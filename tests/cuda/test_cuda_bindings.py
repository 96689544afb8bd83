"""The engine calls libraries in C through the real bindings; they note what they are called with.

The doubles of `cuda_machine` stand for the bindings, so they cannot show what these refuse.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from doubles import CudaDouble as CudaDouble

import cuda_machine
import lamina

SOURCE = Path(cuda_machine.__file__).with_name("recording_driver.c")
LIBRARIES = "libcuda.so.1", "libcublasLt.so.13"
# A process that uses the engine.
DRIVER = """
import gc, os, sys
import numpy as np
import lamina as lm
from lamina.engines.cuda.engine import open_device

driver = open_device("cuda")
buffer, array = driver.allocate(4096), driver.host_array(100)
array.view(np.int32)[:] = range(25)
sent = driver.upload_queue.send(buffer, array)
driver.queue.wait_for([sent])
sent.wait()
found = np.zeros(25, np.int32)
driver.queue.read(found, buffer)
assert found.tolist() == [*range(25)]
driver.queue.write(buffer, found + 17)
module = driver.build('extern "C" __global__ void probe(int *a, int *b, int n, int i) {}')
kernel = driver.kernel(module, "probe", [buffer, None], 1000, numbers=[-5], numbered=True)
launches = [(kernel, 2**31 - 1), (kernel, 3)]
driver.queue.run(driver.sequence(launches))
assert driver.timed(launches)() == 0.0015
assert driver.available_bytes() == 7 << 30
"""
OPEN = """
from lamina.engines.cuda.engine import open_device
open_device("cuda")
"""
MODEL = """
model = lm.Model(lm.Sequential(lm.Input(1024), lm.Linear(512)), engine="cuda")
examples = np.zeros((512, 1024), np.float32)
assert model.predict(examples).shape == (512, 512)
options = {"epochs": 1, "batch_size": 256, "optimizer": lm.SGD(1e-3), "progress": False}
model.fit((examples, np.zeros(512, np.int64)), loss=lm.CrossEntropy(), **options)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Has the libraries."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs Linux and a C compiler")
    libraries = tmp_path_factory.mktemp("libraries")
    for name in LIBRARIES:
        command = [compiler, "-w", "-shared", "-fPIC", "-o", libraries / name, SOURCE, "-ldl"]
        said = subprocess.run(command, capture_output=True, text=True)
        assert not said.returncode, said.stderr
    return libraries


def started(folder, *parts):
    """Runs a process that finds libraries in the folder, and notes to its file `record`."""
    repository = str(Path(lamina.__file__).parents[1])
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(folder),
        "RECORD": str(folder / "record"),
        "LAMINA_CACHE": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join((repository, os.environ.get("PYTHONPATH", ""))),
    }
    command = [sys.executable, "-c", "".join(parts)]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def run(folder, *parts):
    """Runs a process; returns what the libraries have noted."""
    record = folder / "record"
    record.write_text("", encoding="utf-8")
    said = started(folder, *parts)
    assert not said.returncode, said.stderr
    return record.read_text(encoding="utf-8").splitlines()


def test_the_driver_gets_arguments_through_the_bindings(folder):
    noted = run(folder, DRIVER)
    # From cuda.h: a non-blocking stream is 1, portable memory 1, an event without time 2, a capture
    # that other threads do not end 1, an event that a graph records 1, and the attribute 6 that a
    # launch may begin early.
    launch = "probe grid 8 1 1, block 128 1 1, shared 0, extra 0"
    first, second = (f"probe's arguments: 17 1 -5 {number}" for number in (2147483647, 3))
    launches = (launch, first, f"{launch}, stream 1, 1 attribute: 6 1", second)
    assert noted == [
        "cuStreamCreate flags 1",
        "cuMemHostAlloc 100 bytes, flags 1",
        "cuStreamCreate flags 1",
        "cuEventCreate flags 2",
        "cuModuleLoadData ELF",
        "cuStreamCreate flags 1",
        "cuStreamBeginCapture mode 1",
        *launches,
        *["cuEventCreate flags 0"] * 2,
        "cuStreamCreate flags 1",
        "cuStreamBeginCapture mode 1",
        "cuEventRecordWithFlags flags 1",
        *launches,
        "cuEventRecordWithFlags flags 1",
    ]


@pytest.mark.usefixtures("folder")
def test_a_driver_from_before_cuda_12_is_too_old(tmp_path):
    source = tmp_path / "old.c"
    source.write_text("int cuInit(unsigned flags) { return 0; }", encoding="utf-8")
    command = ["cc", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", source]
    subprocess.run(command, check=True)
    said = started(tmp_path, OPEN)
    assert said.returncode == 1
    assert "in cuda: the CUDA driver is too old\n" in said.stderr


def test_cublaslt_gets_arguments_through_ctypes(folder):
    noted = run(folder, DRIVER, MODEL)
    called = [line for line in noted if line.startswith("cublasLt")]
    # CUBLAS_COMPUTE_32F, CUDA_R_32F, and the attributes TRANSA, TRANSB, EPILOGUE and BIAS_POINTER.
    assert called[:8] == [
        "cublasLtMatmulDescCreate compute 68, scale 0",
        "cublasLtMatmulDescSetAttribute 3, 4 bytes",
        "cublasLtMatmulDescSetAttribute 4, 4 bytes",
        "cublasLtMatmulDescSetAttribute 7, 4 bytes",
        "cublasLtMatmulDescSetAttribute 8, 8 bytes",
        "cublasLtMatrixLayoutCreate type 0, 1024 x 512, 1024",
        "cublasLtMatrixLayoutCreate type 0, 1024 x 512, 1024",
        "cublasLtMatrixLayoutCreate type 0, 512 x 512, 512",
    ]
    products = {line for line in called if line.startswith("cublasLtMatmul alpha")}
    assert products == {
        "cublasLtMatmul alpha 1, beta 0, in place 1 1, algorithm 4321, workspace 1024"
    }
