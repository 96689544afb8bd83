"""Every kind of kernel for GPUs, on odd and tiny shapes, against the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest
from gpu_cases import CASES, Case, compiled
from harness import run_program

from lamina.engines.engine import Engine
from lamina.engines.gpu.decisions import legal_schedules
from lamina.engines.gpu.gpus import GpuFamily
from lamina.engines.gpu.schedule import PassesSchedule, Schedule
from lamina.engines.interpreter.engine import InterpreterEngine


@cache
def engine() -> Engine:
    """The first device of OpenCL, with the family of kernels for GPUs."""
    pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    from lamina.engines.gpu.engine import GpuEngine
    from lamina.engines.opencl.driver import open_device
    from lamina.errors import EngineError

    def family(driver):
        return GpuFamily(driver.traits, driver.words, driver.record.engine)

    try:
        return GpuEngine("opencl", lambda: open_device("opencl"), family)
    except EngineError as error:
        pytest.skip(f"there is no device of OpenCL: {error}")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_schedule_gives_the_results_of_the_interpreter(case: Case) -> None:
    own = engine()
    program = compiled(case, own.target)
    feeds = case.feeds()
    expected, after = run_program(program, InterpreterEngine(), feeds)
    seen = 0
    for schedule in (None, *own.schedules(program)):
        found, changed = run_program(program, own, feeds, schedule=schedule)
        for name, value in expected.items():
            np.testing.assert_allclose(
                *(found[name], value), rtol=2e-5, atol=2e-5, err_msg=f"{name}\n{schedule}"
            )
        for name, value in after.items():
            np.testing.assert_allclose(
                *(changed[name], value), rtol=2e-5, atol=2e-5, err_msg=f"{name}\n{schedule}"
            )
        seen += 1
    assert seen > 1
