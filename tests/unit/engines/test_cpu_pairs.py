"""Products of pairs of bfloat16 on the cpu engine: instructions, schedules, no pass of its own."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cpu_cases import ZEN_4, check_threads
from emulated import emulate
from harness import Leaves
from program_cases import compiled

import lamina as lm
from lamina import ops
from lamina.base.shapes import bfloat16
from lamina.engines.cpu.llvm import listing
from lamina.engines.cpu.native_program import write_program
from lamina.engines.cpu.processor import host
from lamina.engines.simd.decide.program import decide
from lamina.engines.simd.decide.schedule import GemmSchedule, LoopSchedule, WindowSchedule
from lamina.engines.simd.decide.windows import paired_readings
from lamina.program.program import Program
from lamina.program.scalar import Apply, Load
from lamina.program.steps import Contraction, Loop, stores_of
from lamina.workloads import WORKLOADS

pytestmark = pytest.mark.sampled


def rounded(network: lm.Network, *how: Any) -> Program:
    """The program of a network whose parameters are rounded, as with instructions for bfloat16."""
    return network.plan(*how, dtype="mixed-bfloat16", engine="interpreter").program


def program_of(workload: str) -> Program:
    one = WORKLOADS[workload]
    return rounded(one.network(), one.batch, one.loss, one.optimizer)


def shares(workload: str) -> tuple[float, float]:
    """The shares of multiply-adds in pairs, and by Winograd's algorithms with tiles of 4x4."""
    program = program_of(workload)
    schedule = decide(program, ZEN_4)
    work = paired = filtered = 0
    for step, how in zip(program.steps, schedule.steps, strict=True):
        if isinstance(step, Contraction) and not isinstance(how, LoopSchedule):
            assert isinstance(how, GemmSchedule | WindowSchedule)
            b, m, n, k = step.extents
            work += b * m * n * k
            paired += b * m * n * k * how.paired
            filtered += b * m * n * k * ("4x4" in how.algorithm)
    return paired / work, filtered / work


@pytest.mark.parametrize("workload", ["mlp", "lenet", "transformer", "lstm"])
def test_large_products_are_of_pairs(workload: str) -> None:
    paired, _ = shares(workload)
    assert paired > 0.9


@pytest.mark.parametrize(("workload", "least"), [("vgg", 0.9), ("resnet-18", 0.5)])
def test_convolutions_of_3x3_have_tiles_of_4x4_instead_of_pairs(
    workload: str, least: float
) -> None:
    """They take 4 times fewer multiplications, pairs half as many instructions."""
    paired, filtered = shares(workload)
    assert filtered > least
    assert paired + filtered > 0.99


def test_without_the_instructions_no_product_is_of_pairs() -> None:
    program = program_of("lenet")
    for how in decide(program, replace(ZEN_4, bfloat16_pairs=False)).steps:
        assert not getattr(how, "paired", False)


def test_an_outer_product_has_no_pairs() -> None:
    leaves = Leaves()
    x, y = (ops.cast(leaves.add(np.ones(n, bfloat16.numpy)), "float32") for n in (40, 50))
    graph = leaves.graph([ops.einsum("i,j->ij", x, y)])
    (step,) = compiled(graph).steps
    assert isinstance(step, Contraction)
    assert not step.k
    assert paired_readings(step) == {}


@pytest.mark.parametrize("workload", ["mlp", "lenet"])
def test_the_machine_code_multiplies_pairs(workload: str) -> None:
    native = write_program(program_of(workload), ZEN_4)
    assembly = listing(native.text, ZEN_4)
    assert re.search(r"vdpbf16ps\s+.*\{1to16\}", assembly)
    assert re.search(r"vdpbf16ps\s+.*zmm", assembly)


@pytest.mark.parametrize("workload", ["wide-step", "mlp", "lenet", "vgg", "resnet-18"])
def test_casts_need_no_pass_of_their_own(workload: str) -> None:
    """Operands are rounded when they are packed, and results when they are computed."""
    for step in program_of(workload).steps:
        if isinstance(step, Loop):
            assert not all(_is_cast(store.value) for store in stores_of(step)), step


def _is_cast(value: object) -> bool:
    return (
        isinstance(value, Apply)
        and value.primitive == "cast"
        and isinstance(value.operands[0], Load)
    )


def test_results_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    if not host().bfloat16_pairs:
        emulate(monkeypatch, "avx512")
    check_threads(
        lm.Sequential(
            lm.Input(8, 20, 20), lm.Conv2d(33, 3), lm.ReLU(), lm.Flatten(), lm.Linear(70)
        ),
        np.random.default_rng(0).standard_normal((40, 8, 20, 20), "float32"),
        np.ones((40, 70), "float32"),
        monkeypatch,
        "mixed-bfloat16",
    )
