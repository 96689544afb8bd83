"""Kernels of every schedule for Nvidia's GPUs, on the machine that runs PTX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from alternatives import schedules_of
from doubles import CudaDouble, DoubledDevice
from gpu_cases import CASES, LARGE, PANELS, Case, assert_close, compiled
from harness import run_program

from lamina import ops
from lamina.base.shapes import int32
from lamina.codegen.words import Words
from lamina.engines.gpu.engine import GpuEngine
from lamina.engines.gpu.gpus import GpuFamily
from lamina.engines.gpu.launches import Launches, Traits
from lamina.engines.gpu.schedule import MatrixSchedule, PassesSchedule, ProgramSchedule
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.program.program import Program
from lamina.program.steps import Contraction

# These always run; the others if `--part` chooses them.
FIRST = (
    "matmul-bf16",
    "transposed-bf16",
    "matmul-f16",
    "conv-bf16",
    "matmul-tf32",
    "conv-tf32",
    "stored-tf32",
)
EVERY = [
    pytest.param(one, id=one.name, marks=() if one.name in FIRST else pytest.mark.sampled)
    for one in CASES
]


class SeparateKernels(GpuFamily):
    """Kernels alone; the conformance tests run them as phases of others, too."""

    def __init__(self, traits: Traits, words: Words, engine: str) -> None:
        super().__init__(traits, words, engine)
        self.key += "separate"

    def write(
        self, program: Program, schedule: ProgramSchedule, *, separate: bool = False
    ) -> Launches:
        return super().write(program, schedule, separate=True)


@cache
def engine(capability: tuple[int, int] = (8, 0)) -> tuple[GpuEngine, CudaDouble]:
    """The engine on a device of that compute capability, and the double of its driver."""
    device = DoubledDevice(capability)
    family = SeparateKernels(device.driver.traits, device.driver.words, "cuda")
    return GpuEngine("cuda", lambda: device.driver, lambda _: family), device.double


def check(case: Case, schedules: str, tolerance: float, capability: tuple[int, int]) -> set[str]:
    """Runs a case with its own schedule, and others; returns the kinds of matrices.

    The others are every one, those of warpgroups, or none.
    """
    own, _ = engine(capability)
    program = compiled(case, own.target)
    others = [] if schedules == "decided" else list(schedules_of(own, program))
    if schedules == "of warpgroups":
        others = [one for one in others if any(each.by_warpgroups for each in _matrices(one))]
    compare(case, program, (None, *others), tolerance, capability)
    return {kernel.kind for schedule in others for kernel in _matrices(schedule)}


def compare(
    case: Case,
    program: Program,
    schedules: Sequence[ProgramSchedule | None],
    tolerance: float = 2e-5,
    capability: tuple[int, int] = (8, 0),
) -> None:
    """Requires the interpreter's results of each schedule."""
    (own, double), feeds = engine(capability), case.feeds()
    expected, _ = run_program(program, InterpreterEngine(), feeds)
    for schedule in schedules:
        found, _ = run_program(program, own, feeds, schedule=schedule)
        faults = double.recover()
        assert not faults, f"{faults[0]}\n{schedule}"
        for name, value in expected.items():
            assert_close(found[name], value, tolerance, f"{name}\n{schedule}")


def _matrices(schedule: ProgramSchedule | None) -> list[MatrixSchedule]:
    """The schedules of kernels whose warps multiply matrices."""
    kernels = [
        kernel
        for step in (schedule.steps if schedule is not None else ())
        for kernel in (step.passes[0].kernels if isinstance(step, PassesSchedule) else (step,))
    ]
    return [kernel for kernel in kernels if isinstance(kernel, MatrixSchedule)]


@pytest.mark.parametrize("case", EVERY)
def test_every_schedule_gives_the_results_of_the_interpreter(case):
    kinds = check(case, "every", 2e-5, (8, 0))
    named = {"bf16": "bfloat16", "f16": "float16", "tf32": "tf32"}
    if case.name in FIRST:
        assert kinds == {named[case.name.rpartition("-")[2]]}


@pytest.mark.parametrize("case", LARGE, ids=lambda case: case.name)
@pytest.mark.sampled
def test_the_decided_schedules_give_the_results_of_the_interpreter(case):
    check(case, "decided", 1e-4, (8, 0))


@pytest.mark.cases(
    "case", *(one for one in CASES if one.name in FIRST), *PANELS, ids=lambda case: case.name
)
def test_warpgroups_multiply_on_hopper(case):
    assert check(case, "of warpgroups", 2e-5, (9, 0))


@pytest.mark.parametrize("name", ["matmul-f16", "transposed-f16"])
def test_the_oldest_gpus_multiply_matrices_of_float16(name):
    case = next(one for one in CASES if one.name == name)
    assert check(case, "every", 2e-5, (7, 5)) == {"float16"}


def test_floats_beyond_the_integers_become_the_nearest_one():
    own, double = engine()
    program = compiled(Case("cast", ((5,),), lambda x: ops.cast(x, int32)), own.target)
    x = np.asarray([3e9, 2147483648.0, 1.5, -3e9, -np.inf], np.float32)
    found, _ = run_program(program, own, {"x0": x})
    assert double.recover() == []
    assert found["y"].tolist() == [2**31 - 1, 2**31 - 1, 1, -(2**31), -(2**31)]


def test_tiles_may_take_more_local_memory_than_kernels_can_declare():
    case = next(one for one in CASES if one.name == "transposed-bf16")
    own, _ = engine()
    program = compiled(case, own.target)
    (number,) = (number for number, one in enumerate(program.steps) if isinstance(one, Contraction))
    # The same tiles as a legal schedule, but more of them.
    (schedule, *_) = (
        one for one in schedules_of(own, program) if isinstance(one.steps[number], MatrixSchedule)
    )
    tiled = schedule.steps[number]
    stages = 2 + (48 << 10) * tiled.stages // tiled.local_bytes
    deeper = replace(tiled, stages=stages)
    assert 48 << 10 < deeper.local_bytes <= 163 << 10
    steps = (*schedule.steps[:number], deeper, *schedule.steps[number + 1 :])
    compare(case, program, [replace(schedule, steps=steps)])
