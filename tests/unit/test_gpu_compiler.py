"""Kernels for GPUs, compiled for AMD's GPUs: nothing is spilled."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import lamina as lm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tools"))

from amd_compiler import PROCESSORS, compiled, is_installed
from gpu_devices import GPUS
from gpu_kernels import TARGET, TRAITS, lines_of

from lamina.codegen.words import OPENCL
from lamina.engines.gpu.decisions import decide
from lamina.engines.gpu.kernels import write_kernels
from lamina.network import bill_of
from lamina.precision import Precision
from lamina.program.program import Program
from lamina.protocols import options_or_none
from lamina.shapes import float32


def program() -> Program:
    """Convolutions with normalisation, a linear layer, attention-like rows, and all gradients."""
    net = lm.Sequential(
        *(lm.Input(16, 16, 16), lm.Conv2d(64, 3, padding=1), lm.BatchNorm(), lm.ReLU()),
        *(lm.MaxPool2d(2), lm.Flatten(), lm.Linear(64), lm.LayerNorm(), lm.Linear(10)),
    )
    options = options_or_none(lm.CrossEntropy(), lm.Adam(), None, (), "test")
    return bill_of(net, 64, options, Precision(float32), TARGET).program


def test_a_gpu_takes_the_longer_of_two_times() -> None:
    gpu = GPUS[0]
    assert gpu.seconds(int(gpu.flops), 0) == pytest.approx(1)
    assert gpu.seconds(int(gpu.flops), int(2 * gpu.bytes)) == pytest.approx(2)


@pytest.mark.parametrize("processor", PROCESSORS)
def test_no_kernel_spills_registers(processor: str) -> None:
    if not is_installed():
        pytest.skip("clang-16 is not installed")
    own = program()
    text = write_kernels(own, decide(own, TARGET, TRAITS), TRAITS, OPENCL).text
    kernels = compiled(text, processor)
    named = re.findall(r"^__kernel.* void (\w+)\(", text, re.MULTILINE)
    assert sorted(one.name for one in kernels) == sorted(named)
    assert [one for one in kernels if one.spills] == []
    assert any(one.local_bytes for one in kernels)
    assert all(one.occupancy >= 1 and one.vector_registers for one in kernels)


def test_the_table_names_each_step_and_kernel() -> None:
    if not is_installed():
        pytest.skip("clang-16 is not installed")
    own = program()
    lines = list(lines_of(own, ("gfx90a",)))
    assert sum(line.startswith("step ") for line in lines) == len(own.steps)
    assert sum("0 bytes spilled" in line for line in lines) > len(own.steps) / 2
    assert all(gpu.name in lines[-1] for gpu in GPUS)
