"""The cuda engine on the machine, where there is no GPU."""

from functools import cache, cached_property

import pytest

from lamina.engines.cuda import calls, devices
from lamina.engines.cuda.devices import MISSING, chosen
from lamina.engines.cuda.driver import CudaDriver
from lamina.engines.cuda.family import CudaFamily
from lamina.engines.discovery import devices as all_devices
from lamina.engines.gpu.engine import GpuEngine


@cache
def machine_without_gpu(memory=64 << 20):
    """The double that the cuda engine uses from now on; None if there is a GPU.

    Args:
        memory: of its device, in bytes.

    Raises:
        pytest.UsageError: if a package is missing.
    """
    for device in all_devices():
        if device.engine.startswith("cuda:") and device.problem.startswith(MISSING):
            raise pytest.UsageError(f"{device.engine}: {device.problem}. {device.remedy}")
        if device.engine.startswith("cuda") and not device.problem:
            return None
    try:
        from cuda_machine.driver_double import CudaDouble
        from cuda_machine.driver_state import DeviceDescription
    except ImportError as error:
        raise pytest.UsageError(f"the cuda engine needs a package here: {error}") from None
    # The schedules' own tests make real binaries.
    double = CudaDouble((DeviceDescription(memory=memory),), assembles=False)
    calls.cuda.cache_clear()
    calls.packages = lambda: (double.driver, double.nvrtc)
    calls.cublaslt_library = lambda: double.cublaslt.functions
    calls.missing_packages = list
    return double


class DoubledDevice:
    """A device of doubles: the driver of our engine on it, its family of kernels, and an engine.

    Args:
        capability: of the device.
    """

    def __init__(self, capability=(8, 0)):
        # The bindings are no part of the package.
        from cuda_machine.driver_double import CudaDouble
        from cuda_machine.driver_state import DeviceDescription

        self.double = CudaDouble([DeviceDescription(capability=capability)])
        self.library = self.double.cublaslt
        api = calls.made_of(self.double.driver, self.double.nvrtc, lambda: self.library.functions)
        api.driver.cuInit(0)
        self.driver = CudaDriver(api, chosen("cuda:0", devices._found(api)))
        self.family = CudaFamily(self.driver)

    @cached_property
    def engine(self):
        return GpuEngine("cuda", lambda: self.driver, lambda driver: self.family)
