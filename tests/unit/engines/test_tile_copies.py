"""How work items copy tiles of operands to local memory: banks and sectors, by the tools' model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from program_cases import compiled

from lamina import ops
from lamina.base.shapes import float32
from lamina.engines.gpu.contraction_schedules import tiled_schedule
from lamina.engines.gpu.products import Product
from lamina.graph import Graph, leaf
from lamina.program.steps import Contraction

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))

import cuda_compiler
import ptx_text
from cuda_compiler import compilation_of
from cuda_devices import ARCHITECTURES
from cuda_kernels import family_of
from ptx_addresses import accesses_of
from ptx_traffic import traffic_of

A100 = ARCHITECTURES["sm_80"]


@pytest.mark.parametrize("tile_k", [8, 16, 32])
def test_vectors_along_k_are_copied_to_different_banks_from_whole_sectors(tile_k: int) -> None:
    problem = cuda_compiler.missing()
    if problem:
        pytest.skip(problem)
    x, weight = (leaf(name, "input", (64, 64), float32) for name in "xw")
    family = family_of(A100)
    result = ops.matmul(x, ops.transpose(weight, (1, 0)))
    program = compiled(Graph((x, weight), (("y", result),)), family.target)
    (step,) = program.steps
    assert isinstance(step, Contraction)
    decided = tiled_schedule(
        Product(step), (1, 64, 64, tile_k), (4, 4), 1, tile_k, swapped=False, bits=32
    )
    assert [(one.along_k, one.lanes) for one in (decided.left, decided.right)] == [(True, 4)] * 2
    launches = family.write(program, family.decide(program, {0: decided}))
    (launch,) = launches.launches
    kernels = ptx_text.kernels_in(compilation_of(launches.text, A100).ptx)
    (kernel,) = [one for one in kernels if one.name == launch.kernel]
    accesses = accesses_of(kernel, launch.group, 0, 1)
    copies = [one for one in accesses if one.operand.is_written]
    shared = traffic_of(copies, "shared")
    assert shared.accesses
    assert shared.needed == shared.least
    sectors = traffic_of([one for one in accesses if not one.operand.is_written], "global")
    assert sectors.accesses
    assert sectors.needed == sectors.least
