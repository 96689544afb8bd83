"""The cuda engine on the machine, where there is no GPU."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from lamina.engines.cuda import calls
from lamina.engines.cuda.devices import MISSING
from lamina.engines.discovery import devices


@cache
def machine_without_gpu(memory: int = 64 << 20) -> Any:
    """The double that the cuda engine uses from now on; None if there is a GPU.

    Args:
        memory: of its device, in bytes.

    Raises:
        pytest.UsageError: if a package is missing.
    """
    for one in devices():
        if one.engine.startswith("cuda:") and one.problem.startswith(MISSING):
            raise pytest.UsageError(f"{one.engine}: {one.problem}. {one.remedy}")
        if one.engine.startswith("cuda") and not one.problem:
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
    calls.cublaslt_package = lambda: double.cublaslt
    calls.missing_packages = list
    return double
