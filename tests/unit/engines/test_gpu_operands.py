"""How kernels for GPUs copy and pack operands: banks, sectors, whole vectors."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gpu_alternatives import legal_matrices
from gpu_cases import CASES, compiled
from program_cases import program_of

from lamina import ops
from lamina.base.shapes import bfloat16, float32
from lamina.engines.gpu.contraction_schedules import contraction_schedules, tiled_schedule
from lamina.engines.gpu.matrix_schedules import matrix_schedule, registers_suffice
from lamina.engines.gpu.packed_operands import gains_by_packing, packed_steps
from lamina.engines.gpu.products import Operand, Product
from lamina.engines.gpu.schedule import (
    PACKED,
    WARP,
    MatrixSchedule,
    PassesSchedule,
    StepsSchedule,
    TiledSchedule,
)
from lamina.engines.gpu.workspaces import StepWorkspaces
from lamina.graph import leaf
from lamina.program.index import Axis, axis_index
from lamina.program.scalar import Apply, Load
from lamina.program.steps import Contraction
from lamina.workloads import WORKLOADS

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))

import cuda_compiler
import ptx_text
from cuda_compiler import compilation_of
from cuda_devices import ARCHITECTURES
from cuda_kernels import Written, family_of, shares_of
from ptx_addresses import accesses_of
from ptx_traffic import traffic_of, wavefronts

A100 = ARCHITECTURES["sm_80"]
needs_compiler = pytest.mark.skipif(
    bool(cuda_compiler.missing()), reason=cuda_compiler.missing() or "no compiler"
)
NAMES = ("matmul-bf16", "transposed-bf16", "matmul-tf32", "transposed-tf32", "stored-tf32")


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_are_read_together_are_in_different_banks(name):
    case = next(candidate for candidate in CASES if candidate.name == name)
    program = compiled(case, family_of(A100).target)
    products = [Product(step) for step in program.steps if isinstance(step, Contraction)]
    schedules = [
        schedule for product in products for schedule in legal_matrices(product, 32, A100.traits)
    ]
    assert schedules
    for schedule in schedules:
        for load, tile in ((schedule.left, schedule.tile_m), (schedule.right, schedule.tile_n)):
            wavefronts = _wavefronts(load, tile, schedule.tile_k, schedule.element_bytes)
            assert wavefronts == (1, 1), str(schedule)


def test_registers_hold_the_copied_vectors_of_shares():
    # A share of half of K has single elements where K has vectors of two.
    view = leaf("x", "input", (4096, 1250), bfloat16), leaf("w", "input", (1250, 20), bfloat16)
    wide = (ops.cast(operand, float32) for operand in view)
    (step,) = program_of(ops.matmul(*wide), target=family_of(A100).target).steps
    shares = [
        kernel
        for schedule in contraction_schedules(step, 32, A100.traits)
        if isinstance(schedule, PassesSchedule)
        for kernel in schedule.passes[0].kernels
        if isinstance(kernel, MatrixSchedule)
    ]
    assert any(share.left.lanes == 1 for share in shares)
    gemm = Product(step)
    for share in shares:
        assert registers_suffice(gemm.exchanged if share.swapped else gemm, share), str(share)


@needs_compiler
@pytest.mark.parametrize("name", NAMES)
def test_copies_to_local_memory_have_no_bank_conflicts(name):
    case = next(candidate for candidate in CASES if candidate.name == name)
    family = family_of(A100)
    program = compiled(case, family.target)
    ((number, step),) = [
        (number, step) for number, step in enumerate(program.steps) if isinstance(step, Contraction)
    ]
    product, traits = Product(step), A100.traits
    size = 4 if product.matrix_kind == "tf32" else 2
    # In rows along K.
    for row_bytes in (128, 64, 32):
        decided = matrix_schedule(
            product, (64, 32, row_bytes // size), (2, 1), 2, False, 32, traits
        )
        launches = family.write(program, family.decide(program, {number: decided}))
        ptx = compilation_of(launches.text, A100).ptx
        (launch,) = [launch for launch in launches.launches if launch.step == number]
        (kernel,) = [kernel for kernel in ptx_text.kernels_in(ptx) if kernel.name == launch.kernel]
        accesses = accesses_of(kernel, launch.group, 0, 1)
        # The compiler may store a vector in pieces.
        sizes = {load.lanes * size for load in (decided.left, decided.right)}
        written = [access for access in accesses if access.operand.is_written]
        copies = [access for access in written if access.operand.bytes in sizes]
        traffic = traffic_of(copies, "shared")
        assert traffic.accesses
        assert traffic.needed == traffic.least, str(decided)


def _wavefronts(load, tile, tile_k, size):
    """The fewest accesses of banks for a matrix, and the actual ones."""
    row = (tile_k if load.along_k else tile) + load.padding
    if load.along_k or size == 2:
        # Eight work items each read 16 bytes of a row.
        addresses, each = np.arange(8) * row * size, 16
    else:
        # Each work item reads its element.
        lane = np.arange(WARP)
        addresses, each = (lane // 4 + lane % 4 * row) * size, size
    return wavefronts(addresses.astype(np.uint64), np.ones(len(addresses), bool), each)


M, K = Axis("m", 16), Axis("k", 16)


@pytest.mark.cases(
    ("index", "expected"),
    (axis_index(M) * 16 + axis_index(K), True),
    (axis_index(M) * 20 + axis_index(K), False),
    (axis_index(M) * 16 + axis_index(K) + 4, False),
    (axis_index(M) * 24 + axis_index(K) + 8, True),
)
def test_vectors_are_copied_if_they_begin_at_whole_vectors(index, expected):
    view = Apply("cast", (Load("x", index, bfloat16),), float32)
    assert Operand(view, M, K).can_copy(along_k=True, lanes=8) is expected


@pytest.mark.parametrize(("primitive", "expected"), [("as_tf32", True), ("round_to_tf32", False)])
def test_float32_is_copied_as_it_is_if_it_is_stored_rounded(primitive, expected):
    load = Load("x", axis_index(M) * 20 + axis_index(K), float32)
    view = Apply(primitive, (load,), float32)
    assert Operand(view, M, K).can_copy(along_k=True, lanes=4) is expected
    assert not Operand(load, M, K).can_copy(along_k=True, lanes=4)


@needs_compiler
@pytest.mark.parametrize("tile_k", [8, 16, 32])
def test_vectors_along_k_are_copied_to_different_banks_from_whole_sectors(tile_k):
    x, weight = (leaf(name, "input", (64, 64), float32) for name in "xw")
    family = family_of(A100)
    result = ops.matmul(x, ops.transpose(weight, (1, 0)))
    program = program_of(result, target=family.target)
    (step,) = program.steps
    decided = tiled_schedule(
        Product(step), (1, 64, 64, tile_k), (4, 4), 1, tile_k, swapped=False, bits=32
    )
    assert [(load.along_k, load.lanes) for load in (decided.left, decided.right)] == [(True, 4)] * 2
    launches = family.write(program, family.decide(program, {0: decided}))
    (launch,) = launches.launches
    kernels = ptx_text.kernels_in(compilation_of(launches.text, A100).ptx)
    (kernel,) = [kernel for kernel in kernels if kernel.name == launch.kernel]
    accesses = accesses_of(kernel, launch.group, 0, 1)
    copies = [access for access in accesses if access.operand.is_written]
    shared = traffic_of(copies, "shared")
    assert shared.accesses
    assert shared.needed == shared.least
    sectors = traffic_of([access for access in accesses if not access.operand.is_written], "global")
    assert sectors.accesses
    assert sectors.needed == sectors.least


def convolution(dtype=float32):
    """A convolution with channels last, to which Winograd's algorithm does not apply."""
    x = leaf("x", "input", (32, 32, 32, 64), dtype)
    weight = leaf("w", "input", (64, 64, 3, 3), dtype)
    left, right = (ops.cast(operand, float32) for operand in (x, weight))
    left = ops.transpose(left, (0, 3, 1, 2))
    result = ops.conv(left, right, strides=2, padding=((1, 1), (1, 1)), dilations=1, groups=1)
    return program_of(ops.transpose(result, (0, 2, 3, 1)), target=family_of(A100).target)


def contraction(dtype=float32):
    (step,) = [step for step in convolution(dtype).steps if isinstance(step, Contraction)]
    return step


@pytest.mark.parametrize(("operand", "expected"), [("left", False), ("right", True)])
def test_weights_gain_by_packing_and_windows_do_not(operand, expected):
    assert gains_by_packing(contraction(), operand) is expected


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=lambda dtype: dtype.name)
def test_packed_weights_have_runs_of_neighbours(dtype):
    workspaces = StepWorkspaces("step")
    before = contraction(dtype)
    assert Product(before).right.runs == (1, 1)
    _, after = packed_steps("right", before, workspaces)
    assert max(Product(after).right.runs) == 32
    assert [workspace.dtype for workspace in workspaces.made] == [dtype]
    assert after.left == before.left


@pytest.mark.parametrize(
    ("dtype", "kind", "lanes"),
    [(float32, TiledSchedule, 4), (bfloat16, MatrixSchedule, 8)],
    ids=["float32", "bfloat16"],
)
def test_weights_that_many_groups_read_are_packed(dtype, kind, lanes):
    chosen = next(contraction_schedules(contraction(dtype), 32, A100.traits))
    _, products = chosen.steps
    assert isinstance(products, kind)
    assert (chosen.way, products.left.lanes, products.right.lanes) == (
        PACKED["right"],
        lanes,
        lanes,
    )


def test_processors_do_not_pack():
    processor = replace(A100.traits, is_processor=True)
    schedules = contraction_schedules(contraction(), 32, processor)
    assert not any(isinstance(schedule, StepsSchedule) for schedule in schedules)


@needs_compiler
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=lambda dtype: dtype.name)
def test_packed_weights_are_read_in_whole_sectors(dtype):
    written = Written(convolution(dtype), A100)
    multiplied = written.launches.launches[-1].kernel
    (traffic,) = written.kernels[multiplied].traffic("global")
    # Windows begin at any row, and are not all inside; so some sectors are not full.
    assert traffic.needed < 1.1 * traffic.least


@pytest.mark.parametrize(
    ("dtype", "products"), [("mixed-bfloat16", "float32"), ("float32", "tf32")]
)
@pytest.mark.parametrize(
    ("name", "share"),
    [("wide-step", "99.9% of 18.42 GFLOP"), ("transformer", "100.0% of 39.46 GFLOP")],
)
def test_large_products_of_any_precision_are_for_the_library(name, share, dtype, products):
    (line,) = shares_of(WORKLOADS[name], dtype, ["sm_90"], products)
    assert line == f"  sm_90: cuBLASLt computes {share}"
