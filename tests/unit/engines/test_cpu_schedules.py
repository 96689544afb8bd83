"""Schedules of the CPU engine: printed, forced, and the same for equal steps."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, cast

import numpy as np
import pytest
from cpu_cases import classifier
from gpu_cases import CASES, compiled
from harness import Leaves, run_program
from program_cases import program_of
from simd_alternatives import alternatives_of, legal_schedules

import lamina as lm
from lamina import ops
from lamina.codegen.filtering import FILTERINGS
from lamina.engines.cpu.engine import CpuEngine
from lamina.engines.cpu.native_program import write_program
from lamina.engines.cpu.processor import HostProcessor, host
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.engines.simd.decide.packing import Packing
from lamina.engines.simd.decide.program import decide
from lamina.engines.simd.decide.schedule import (
    DIRECT,
    PACKED,
    PREPACKED,
    GemmSchedule,
    LoopSchedule,
    WindowSchedule,
)
from lamina.engines.simd.decide.windows import (
    COL2IM,
    IMPLICIT_GEMM,
    WEIGHT_GRADIENT,
    WINOGRAD,
    WINOGRAD_WEIGHT_GRADIENT,
    readings,
)
from lamina.engines.simd.decide.work import Slices
from lamina.graph import Tensor
from lamina.ops.differentiate import gradients
from lamina.program.cost import cost_of
from lamina.program.program import Program
from lamina.program.steps import Contraction

PROCESSOR = replace(
    host(),
    vectors="avx2",
    vector_bytes=32,
    registers=16,
    fused=True,
    level1_bytes=32 << 10,
    level2_bytes=512 << 10,
    threads=2,
)


def trained(*widths: int) -> Program:
    return classifier(*widths).plan(64, lm.CrossEntropy(), lm.SGD(0.1)).program


def convolution(
    size: int = 3, stride: int = 1, *, extent: int = 8, channels: tuple[int, int] = (4, 5)
) -> Program:
    """A small convolution and its gradients; `channels` are those of input and output."""
    leaves = Leaves()
    inputs, outputs = channels
    x = leaves.add(np.ones((2, inputs, extent, extent), "float32"))
    weight = leaves.add(np.ones((outputs, inputs, size, size), "float32"))
    y = ops.conv(x, weight, [stride] * 2, [(1, 1)] * 2, [1, 1])
    return program_of([y, *gradients(ops.sum(y * y), [x, weight])])


def test_a_schedule_is_printed_step_by_step():
    lines = str(decide(trained(200, 128, 10), PROCESSOR)).splitlines()
    first = next(line for line in lines if "M=64, N=128, K=200" in line)
    assert first.partition(": ")[2] == (
        "tiles of 6x16 for M=64, N=128, K=200; 8 panels of 2 x 8 lanes; left direct; "
        "right packed by panel, transposed in registers; 8 work items, 204,800 cycles"
    )
    assert any(line.startswith("  column sums of step ") for line in lines)


def test_every_algorithm_is_an_alternative_at_every_size():
    steps = [step for size in (3, 5) for step in convolution(size).steps]
    steps += convolution(3, 2).steps
    found = {
        one.algorithm
        for step in steps
        if isinstance(step, Contraction)
        for one in alternatives_of(step, PROCESSOR)
    }
    filtered = {WINOGRAD[FILTERINGS[n]] for n in (3, 5)}
    filtered |= {WINOGRAD_WEIGHT_GRADIENT[FILTERINGS[n]] for n in (3, 5)}
    assert found >= {*filtered, IMPLICIT_GEMM, WEIGHT_GRADIENT, COL2IM, "loop", "tiles"}


def test_without_sliding_windows_a_step_has_two_readings():
    # Windows of 4 with stride 4 do not overlap: the program has no sliding windows.
    net = lm.Sequential(lm.Input(16, 32, 32), lm.Conv2d(64, 4, stride=4))
    program = net.plan(16, lm.MSE(), lm.SGD(0.1)).program
    steps = decide(program, PROCESSOR).steps
    chosen = {
        schedule.algorithm: set(readings(step))
        for step, schedule in zip(program.steps, steps, strict=True)
        if isinstance(step, Contraction) and not (step.left_windows or step.right_windows)
    }
    both = {IMPLICIT_GEMM, WEIGHT_GRADIENT}
    assert chosen == {IMPLICIT_GEMM: both, WEIGHT_GRADIENT: both}


def test_forced_schedules_decide_which_operands_are_packed():
    program = trained(20, 12, 10)
    assert not decide(program, PROCESSOR).prepackings
    number = next(n for n, step in enumerate(program.steps) if isinstance(step, Contraction))
    choices = alternatives_of(program.steps[number], PROCESSOR)
    packed = next(
        one for one in choices if isinstance(one, GemmSchedule) and one.right == PREPACKED
    )
    schedule = decide(program, PROCESSOR, {number: packed})
    assert [one.users for one in schedule.prepackings] == [(number,)]
    assert schedule.steps[number] == packed


@cache
def strided() -> Program:
    return convolution(3, 2, extent=16, channels=(16, 32))


def contraction_of(program: Program, algorithm: str) -> int:
    steps = decide(program, PROCESSOR).steps
    return next(n for n, step in enumerate(steps) if step.algorithm == algorithm)


K_BY_K, TRANSPOSED = Packing(False, in_memory_order=False), Packing(True, in_memory_order=False)
# A program, an algorithm, a field of its schedule, the decided value, and another correct value.
OBEYED: list[tuple[Callable[[], Program], str, str, Any, Any]] = [
    (lambda: trained(200, 128, 10), "tiles", "packing", TRANSPOSED, K_BY_K),
    (strided, IMPLICIT_GEMM, "copied", 2, 0),
    (strided, IMPLICIT_GEMM, "unrolled", 6, 0),
    (strided, WEIGHT_GRADIENT, "right", DIRECT, PACKED),
    (strided, WEIGHT_GRADIENT, "copied", 2, 0),
]


@pytest.mark.parametrize(("made", "algorithm", "field", "decided", "other"), OBEYED)
def test_kernels_follow_the_schedule(made, algorithm, field, decided, other):
    program = made()
    schedule = decide(program, PROCESSOR)
    number = contraction_of(program, algorithm)
    step = schedule.steps[number]
    assert getattr(step, field) == decided
    changed = cast(GemmSchedule | WindowSchedule, replace(step, **{field: other}))
    assert str(changed) != str(step) or field == "unrolled"
    forced = decide(program, PROCESSOR, {number: changed})
    texts = {write_program(program, PROCESSOR, one).text for one in (schedule, forced)}
    assert len(texts) == 2


def test_kernels_are_shared_as_the_schedule_states():
    program = trained(200, 128, 10)
    schedule = decide(program, PROCESSOR)
    assert "\n  shared in 2 slices, 4 work items at once" in str(schedule)
    alone = replace(
        schedule,
        kernels=tuple(
            tuple(Slices(one.work, 1, one.work.items) for one in kernels)
            for kernels in schedule.kernels
        ),
    )
    written = [write_program(program, PROCESSOR, one).layout.program for one in (schedule, alone)]
    most = [max(kernel.slice_count for kernel in one.kernels) for one in written]
    assert most == [2, 1]
    apart = replace(schedule, least_shared_cycles=math.inf)
    phases = write_program(program, PROCESSOR, apart).layout.program.phases
    assert any(phase.shared for phase in written[0].phases)
    assert not any(phase.shared for phase in phases)


def test_weights_are_packed_in_memory_order():
    number = contraction_of(strided(), COL2IM)
    prepackings = decide(strided(), PROCESSOR).prepackings
    (packed,) = (one for one in prepackings if number in one.users)
    assert packed.packed.packing.in_memory_order
    assert "in the order of memory" in str(packed)


@pytest.mark.parametrize("registers", [4, 1])
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
def test_numbers_that_are_inputs_change_no_loop(vector_bytes, registers):
    processor = replace(PROCESSOR, vector_bytes=vector_bytes, registers_at_once=registers)

    def planned(*, as_inputs: bool) -> tuple[list[tuple[Any, ...]], int]:
        leaves = Leaves()

        def number(value: float) -> Any:
            return -leaves.add(np.float32(value)) if as_inputs else value

        found: list[Tensor] = []
        for shape in ((40, 2), (10, 40), (2, 2), (300, 1), (5, 7)):
            extents = (shape, shape, (1, shape[1]), (shape[0], 1))
            w, m, row, column = (leaves.add(np.ones(one, "float32")) for one in extents)
            mean = m * number(0.9) + (w * number(0.5) + row * column)
            found += [mean, w - mean * number(0.01)]
        program = program_of(found)
        loops = [one for one in decide(program, processor).steps if isinstance(one, LoopSchedule)]
        nests = [(n.order, n.lane, n.lanes, n.style) for loop in loops for n in loop.nests]
        return nests, sum(cost_of(step, program.buffers).operations for step in program.steps)

    inputs, constants = planned(as_inputs=True), planned(as_inputs=False)
    assert inputs[0] == constants[0]
    # Each of the three numbers of five loops is negated, once.
    assert inputs[1] == constants[1] + 15


def test_more_workers_are_used_for_more_work_only():
    many: HostProcessor = replace(PROCESSOR, threads=4)
    assert decide(trained(200, 128, 10), many).workers == 4
    assert decide(trained(4, 4, 2), many).workers == 1


def test_a_reduction_of_what_an_earlier_stage_writes_is_split_after_it():
    (case,) = (one for one in CASES if one.name == "written")
    engine = CpuEngine()
    program, feeds = compiled(case, engine.target), case.feeds()
    expected, _ = run_program(program, InterpreterEngine(), feeds)
    others = legal_schedules(program, engine.processor)
    split = [one for one in others if "partial results" in str(one)]
    assert split
    for schedule in split:
        found, _ = run_program(program, engine, feeds, schedule=schedule)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-6)
