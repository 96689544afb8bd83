"""The doubles of CUDA; tests that import this are skipped without cuda-bindings or NVRTC."""

import pytest

pytest.importorskip("cuda.bindings.driver", reason="needs cuda-bindings: pip install cuda-bindings")

from cuda.bindings import driver as driver
from cuda.bindings import nvrtc as nvrtc
from cuda.bindings.driver import CUresult as CUresult

from cuda_machine.driver_double import CudaDouble as CudaDouble
from cuda_machine.driver_double import DriverDouble as DriverDouble
from cuda_machine.driver_state import DeviceDescription as DeviceDescription
from cuda_machine.driver_state import OutsideTheDouble as OutsideTheDouble
from cuda_machine.engine import DoubledDevice as DoubledDevice
from cuda_machine.operations import Order as Order

try:
    nvrtc.nvrtcVersion()
# What the package raises if its library is missing.
except RuntimeError as error:
    pytest.skip(f"needs NVRTC: pip install nvidia-cuda-nvrtc ({error})", allow_module_level=True)
