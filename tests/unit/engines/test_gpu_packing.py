"""Contractions of which an operand is packed, and what the packed operand saves."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lamina import ops
from lamina.base.shapes import DType, bfloat16, float32
from lamina.compiler.pipeline import compile_graph
from lamina.engines.gpu.contraction_schedules import contraction_schedules
from lamina.engines.gpu.packed_operands import gains_by_packing, packed_steps
from lamina.engines.gpu.products import Product
from lamina.engines.gpu.schedule import MatrixSchedule, PackedSchedule, TiledSchedule
from lamina.engines.gpu.workspaces import StepWorkspaces
from lamina.graph import Graph, leaf
from lamina.program.program import Program
from lamina.program.steps import Contraction

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))

import cuda_compiler
from cuda_devices import ARCHITECTURES
from cuda_kernels import Written, family_of

A100 = ARCHITECTURES["sm_80"]


def convolution(dtype: DType = float32) -> Program:
    """A convolution with channels last, to which Winograd's algorithm does not apply."""
    x = leaf("x", "input", (32, 32, 32, 64), dtype)
    weight = leaf("w", "input", (64, 64, 3, 3), dtype)
    left, right = (ops.cast(one, float32) for one in (x, weight))
    left = ops.transpose(left, (0, 3, 1, 2))
    result = ops.conv(left, right, strides=2, padding=((1, 1), (1, 1)), dilations=1, groups=1)
    graph = Graph((x, weight), (("y", ops.transpose(result, (0, 2, 3, 1))),))
    return compile_graph(graph, batch=1, name="test", target=family_of(A100).target)


def contraction(dtype: DType = float32) -> Contraction:
    (found,) = [one for one in convolution(dtype).steps if isinstance(one, Contraction)]
    return found


@pytest.mark.parametrize(("operand", "expected"), [("left", False), ("right", True)])
def test_weights_gain_by_packing_and_windows_do_not(operand: str, expected: bool) -> None:
    assert gains_by_packing(contraction(), operand) is expected


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=lambda one: one.name)
def test_packed_weights_have_runs_of_neighbours(dtype: DType) -> None:
    workspaces = StepWorkspaces("step")
    before = contraction(dtype)
    assert Product(before).right.runs == (1, 1)
    _, after = packed_steps(before, "right", workspaces)
    assert max(Product(after).right.runs) == 32
    assert [one.dtype for one in workspaces.made()] == [dtype]
    assert after.left == before.left


@pytest.mark.parametrize(
    ("dtype", "kind", "lanes"),
    [(float32, TiledSchedule, 4), (bfloat16, MatrixSchedule, 8)],
    ids=["float32", "bfloat16"],
)
def test_weights_that_many_groups_read_are_packed(
    dtype: DType, kind: type[TiledSchedule | MatrixSchedule], lanes: int
) -> None:
    chosen = next(contraction_schedules(contraction(dtype), 32, A100.traits))
    assert isinstance(chosen, PackedSchedule)
    assert isinstance(chosen.products, kind)
    assert {chosen.products.left.lanes, chosen.products.right.lanes} == {lanes}


def test_processors_do_not_pack() -> None:
    processor = replace(A100.traits, is_processor=True)
    found = contraction_schedules(contraction(), 32, processor)
    assert not any(isinstance(one, PackedSchedule) for one in found)


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=lambda one: one.name)
def test_packed_weights_are_read_in_whole_sectors(dtype: DType) -> None:
    problem = cuda_compiler.missing()
    if problem:
        pytest.skip(problem)
    written = Written(convolution(dtype), A100)
    multiplied = written.launches.launches[-1].kernel
    (traffic,) = written.kernels[multiplied].traffic("global")
    # Windows begin at any row, and are not all inside; so some sectors are not full.
    assert traffic.needed < 1.1 * traffic.least
