"""Kernels for GPUs, compiled for AMD's GPUs: nothing is spilled."""

import re
import sys
from pathlib import Path

import pytest
from gpu_cases import trained_convolutions
from program_cases import program_of

from lamina import ops

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))

from amd_compiler import PROCESSORS, assembly_of, compiled, is_installed
from gpu_devices import GPUS
from gpu_kernels import GPU, TARGET, TRAITS, WORDS, lines_of, totals_of

from lamina.base.shapes import bfloat16, float16, float32
from lamina.engines.gpu.decisions import decide
from lamina.engines.gpu.kernels import write_kernels
from lamina.engines.gpu.schedule import ProgramSchedule
from lamina.graph import leaf

needs_clang = pytest.mark.skipif(not is_installed(), reason="clang-16 is not installed")


def program(half=None):
    return trained_convolutions(half, GPU, TARGET)


def test_a_gpu_takes_the_longer_of_two_times():
    gpu = GPUS[0]
    assert gpu.seconds(int(gpu.flops), 0) == pytest.approx(1)
    assert gpu.seconds(int(gpu.flops), int(2 * gpu.bytes)) == pytest.approx(2)


@pytest.mark.sampled
@pytest.mark.parametrize("half", [None, bfloat16, float16], ids=str)
@pytest.mark.parametrize("processor", PROCESSORS)
@needs_clang
def test_no_kernel_spills_registers(processor, half):
    training_step = program(half)
    text = write_kernels(training_step, decide(training_step, TARGET, TRAITS), TRAITS, WORDS).text
    kernels = compiled(text, processor)
    named = re.findall(r"^__kernel.* void (\w+)\(", text, re.MULTILINE)
    assert sorted(kernel.name for kernel in kernels) == sorted(named)
    assert [kernel for kernel in kernels if kernel.spills] == []
    assert any(kernel.local_bytes for kernel in kernels)
    assert all(kernel.occupancy >= 1 and kernel.vector_registers for kernel in kernels)


@pytest.mark.parametrize("processor", ["gfx906", "gfx1030", "gfx1100"])
@needs_clang
def test_amd_multiplies_float16_of_tiles_without_converting_it(processor):
    x, weight = (leaf(name, "input", (512, 512), float16) for name in "xw")
    wide = (ops.cast(operand, float32) for operand in (x, weight))
    product = program_of(ops.matmul(*wide), target=TARGET)
    (schedule,) = decide(product, TARGET, TRAITS).steps
    assert schedule.left.is_half
    assembly = assembly_of(
        write_kernels(product, ProgramSchedule((schedule,)), TRAITS, WORDS).text, processor
    )
    block = schedule.item_m * schedule.item_n
    # The float16 are operands of instructions that add to a float32.
    assert assembly.count("v_fma_mix_f32") == block * schedule.unrolled
    assert "v_cvt_f32_f16" not in assembly


@needs_clang
def test_the_table_names_each_step_and_kernel():
    training_step = program()
    lines = list(lines_of(training_step, ("gfx90a",)))
    assert sum(line.startswith("step ") for line in lines) == len(training_step.steps)
    assert sum("0 bytes spilled" in line for line in lines) > len(training_step.steps) / 2
    assert all(gpu.name in lines[-1] for gpu in GPUS)


@needs_clang
def test_the_totals_count_kernels_that_spill():
    (line,) = totals_of(program(), ("gfx90a",))
    assert "gfx90a" in line
    assert " 0 of them spill" in line
