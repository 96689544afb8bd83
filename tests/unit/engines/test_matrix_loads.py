"""How kernels for matrices keep tiles in local memory, and which operands they copy."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from gpu_alternatives import legal_matrices
from gpu_cases import CASES, compiled

from lamina.base.shapes import bfloat16, float32
from lamina.engines.gpu.matrix_schedules import matrix_schedule
from lamina.engines.gpu.products import Operand, Product
from lamina.engines.gpu.schedule import WARP, MatrixLoad
from lamina.program.index import Axis, Index, axis_index
from lamina.program.scalar import Apply, Load
from lamina.program.steps import Contraction

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))

import cuda_compiler
import ptx_text
from cuda_compiler import compilation_of
from cuda_devices import ARCHITECTURES
from cuda_kernels import family_of
from ptx_addresses import accesses_of
from ptx_traffic import traffic_of, wavefronts

NAMES = ("matmul-bf16", "transposed-bf16", "matmul-tf32", "transposed-tf32")


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_are_read_together_are_in_different_banks(name: str) -> None:
    case = next(one for one in CASES if one.name == name)
    architecture = ARCHITECTURES["sm_80"]
    program = compiled(case, family_of(architecture).target)
    products = [Product(step) for step in program.steps if isinstance(step, Contraction)]
    schedules = [
        one for product in products for one in legal_matrices(product, 32, architecture.traits)
    ]
    assert schedules
    for one in schedules:
        for load, tile in ((one.left, one.tile_m), (one.right, one.tile_n)):
            assert _wavefronts(load, tile, one.tile_k, one.element_bytes) == (1, 1), str(one)


@pytest.mark.parametrize("name", NAMES)
def test_copies_to_local_memory_have_no_bank_conflicts(name: str) -> None:
    problem = cuda_compiler.missing()
    if problem:
        pytest.skip(problem)
    case = next(one for one in CASES if one.name == name)
    architecture = ARCHITECTURES["sm_80"]
    family = family_of(architecture)
    program = compiled(case, family.target)
    ((number, step),) = [
        (number, step) for number, step in enumerate(program.steps) if isinstance(step, Contraction)
    ]
    product, traits = Product(step), architecture.traits
    size = 4 if product.matrix_kind == "tf32" else 2
    # In rows along K.
    for row_bytes in (128, 64, 32):
        decided = matrix_schedule(
            product, (64, 32, row_bytes // size), (2, 1), 2, False, 32, traits
        )
        launches = family.write(program, family.decide(program, {number: decided}))
        ptx = compilation_of(launches.text, architecture).ptx
        (launch,) = [one for one in launches.launches if one.step == number]
        (kernel,) = [one for one in ptx_text.kernels_in(ptx) if one.name == launch.kernel]
        accesses = accesses_of(kernel, launch.group, 0, 1)
        # The compiler may store a vector in pieces.
        sizes = {load.lanes * size for load in (decided.left, decided.right)}
        copies = [one for one in accesses if one.operand.is_written and one.operand.bytes in sizes]
        found = traffic_of(copies, "shared")
        assert found.accesses
        assert found.needed == found.least, str(decided)


def _wavefronts(load: MatrixLoad, tile: int, tile_k: int, size: int) -> tuple[int, int]:
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


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (axis_index(M) * 16 + axis_index(K), True),
        (axis_index(M) * 20 + axis_index(K), False),
        (axis_index(M) * 16 + axis_index(K) + 4, False),
        (axis_index(M) * 24 + axis_index(K) + 8, True),
    ],
)
def test_vectors_are_copied_if_they_begin_at_whole_vectors(index: Index, expected: bool) -> None:
    view = Apply("cast", (Load("x", index, bfloat16),), float32)
    assert Operand(view, M, K).can_copy(along_k=True, lanes=8) is expected
