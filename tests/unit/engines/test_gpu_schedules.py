"""Every kind of kernel for GPUs, on odd and tiny shapes, against the interpreter.

On a device the compiler takes most of the time.
"""

from dataclasses import replace
from functools import cache, partial

import chain_cases
import pytest
from alternatives import schedules_of
from chain_cases import check_chains
from gpu_cases import CASES, LARGE, TRAITS, Case, assert_close, compiled
from harness import run_program
from opencl_cases import for_gpus

from lamina import ops
from lamina.engines.gpu import tile_kernels
from lamina.engines.gpu.decisions import decide
from lamina.engines.gpu.engine import GpuEngine
from lamina.engines.gpu.gpus import target_for
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.engines.opencl.engine import open_device
from lamina.errors import EngineError

pytestmark = pytest.mark.sampled

TARGET = target_for(TRAITS, "opencl")
LARGE_GPU = replace(TRAITS, compute_units=104, local_bytes=1 << 16)


@cache
def gpu_engine():
    """The first device of OpenCL, with the family of kernels for GPUs."""
    try:
        return GpuEngine("opencl", lambda: open_device("opencl"), for_gpus)
    except EngineError as error:
        pytest.skip(f"there is no device of OpenCL: {error}")


@pytest.mark.parametrize("case", CASES + LARGE, ids=lambda case: case.name)
def test_schedules_give_the_results_of_the_interpreter(case):
    """Every schedule of a small case; for a large one, the schedule for a large GPU."""
    engine, is_large = gpu_engine(), case in LARGE
    program = compiled(case, TARGET if is_large else engine.target)
    others = [decide(program, TARGET, LARGE_GPU)] if is_large else schedules_of(engine, program)
    feeds = case.feeds()
    expected, _ = run_program(program, InterpreterEngine(), feeds)
    for schedule in others if is_large else (None, *others):
        outputs, _ = run_program(program, engine, feeds, schedule=schedule)
        for name, value in expected.items():
            assert_close(outputs[name], value, 1e-4 if is_large else 2e-5, f"{name}\n{schedule}")


@pytest.mark.parametrize(
    "case", [*chain_cases.CASES, *chain_cases.LARGE], ids=lambda case: case.name
)
def test_chains_give_the_results_of_the_interpreter(case, monkeypatch):
    """With every schedule of a small case."""
    monkeypatch.setattr("lamina.compiler.chains.LEAST_LENGTH", 1)
    engine = gpu_engine()
    others = (lambda _: ()) if case in chain_cases.LARGE else partial(schedules_of, engine)
    check_chains(case, engine, engine.target, others)


def test_tiles_in_bands_give_the_results_of_the_interpreter(monkeypatch):
    assert [tile_kernels.rows_of_band(*one) for one in ((12, 9), (7, 99), (26, 50))] == [6, 7, 2]
    assert tile_kernels.rows_of_band(12, 8) == 1
    monkeypatch.setattr(tile_kernels, "BAND", 2)
    banded = Case("matmul-banded", ((2, 32, 3), (2, 3, 90)), ops.matmul)
    test_schedules_give_the_results_of_the_interpreter(banded)


def test_a_listing_has_a_kernel_after_each_comment():
    engine = gpu_engine()
    for case in CASES:
        program = compiled(case, engine.target)
        for number in range(len(program.steps)):
            lines = engine.listing(program, number, "opencl").splitlines()
            comments = [at for at, line in enumerate(lines) if line.startswith("// step ")]
            assert all(not lines[at + 1].startswith("//") for at in comments), case.name
        listing = engine.listing(program, None, "opencl")
        assert listing.count("__kernel ") >= len(program.steps) > 0 or case.name == "sum-of-nothing"
