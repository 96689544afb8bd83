"""Which contractions are plain products of matrices, and how their matrices are in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from gpu_cases import TRAITS, Case, compiled

from lamina import ops
from lamina.base.shapes import DType, bfloat16, float16, float32, float64, int64
from lamina.engines.gpu.gpus import target_for
from lamina.engines.gpu.matrix_products import Matrix, MatrixProduct
from lamina.engines.gpu.passes import without_epilogue
from lamina.engines.gpu.plain_products import PlainProduct, plain_product
from lamina.engines.gpu.workspaces import StepWorkspaces
from lamina.graph import Tensor
from lamina.program.index import Axis, axis_index
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Apply, Bound, Literal, Load, Local
from lamina.program.steps import Contraction, Store

TARGET = target_for(TRAITS, "test")
A, B, BIAS = (6, 5), (5, 7), (7,)


def product_of(
    result: Callable[..., Tensor], *shapes: tuple[int, ...], dtypes: tuple[DType, ...] = ()
) -> PlainProduct | None:
    """The product of the only contraction of a graph."""
    (step,) = compiled(Case("case", shapes, result, dtypes, 2), TARGET).steps
    assert isinstance(step, Contraction)
    return plain_product(step)


def step_of(result: Callable[..., Tensor], *shapes: tuple[int, ...]) -> Contraction:
    (step,) = compiled(Case("case", shapes, result), TARGET).steps
    assert isinstance(step, Contraction)
    return step


def test_row_major_results_are_column_major_products_with_operands_exchanged() -> None:
    found = product_of(ops.matmul, A, B)
    assert found is not None
    # The rows of a row-major matrix are the columns of a column-major one.
    assert found.buffers == ("x1", "x0", "contract", "", "")
    assert found.product == MatrixProduct(
        *(1, Matrix(0, 7, 5, 7, 0, "float32"), Matrix(0, 5, 6, 5, 0, "float32"), False, False),
        Matrix(0, 7, 6, 7, 0, "float32"),
    )
    assert str(found.product) == "7 x 6 x 5 of float32"


@pytest.mark.parametrize("is_left", [False, True])
@pytest.mark.parametrize("is_right", [False, True])
def test_transposed_operands_are_factors_as_they_are(is_left: bool, is_right: bool) -> None:
    def result(x: Tensor, y: Tensor) -> Tensor:
        x = ops.transpose(x) if is_left else x
        return ops.matmul(x, ops.transpose(y) if is_right else y)

    found = product_of(result, A[::-1] if is_left else A, B[::-1] if is_right else B)
    assert found is not None
    # Operands are exchanged.
    assert (found.product.left_transposed, found.product.right_transposed) == (is_right, is_left)


def test_batches_are_a_constant_distance_apart() -> None:
    found = product_of(ops.matmul, (3, *A), (3, *B))
    assert found is not None
    one = found.product
    strides = one.left.batch_stride, one.right.batch_stride, one.result.batch_stride
    assert (one.batch, strides) == (3, (35, 30, 42))
    assert str(one) == "3 of 7 x 6 x 5 of float32"


def test_a_part_of_a_buffer_has_a_start_and_its_own_leading_dimension() -> None:
    found = product_of(lambda x, y: ops.matmul(x[1:4, 2:7], y), (6, 9), B)
    assert found is not None
    assert found.product.right == Matrix(11, 5, 3, 9, 0, "float32")


@pytest.mark.parametrize("half", [bfloat16, float16])
def test_floats_of_16_bits_are_factors(half: DType) -> None:
    found = product_of(ops.matmul, A, B, dtypes=(half, half))
    assert found is not None
    assert (found.product.left.dtype, found.product.result.dtype) == (half.name, half.name)

    def wide(x: Tensor, y: Tensor) -> Tensor:
        return ops.matmul(ops.cast(x, float32), ops.cast(y, float32))

    found = product_of(wide, A, B, dtypes=(half, half))
    assert found is not None
    assert str(found.product) == f"7 x 6 x 5 of {half.name} to float32"


def test_a_vector_along_the_columns_of_the_result_is_a_bias() -> None:
    found = product_of(lambda x, y, z: ops.matmul(x, y) + z, A, B, BIAS)
    assert found is not None
    assert (found.product.bias_start, found.bias, found.added) == (0, "x2", "")
    found = product_of(lambda x, y, z: z[2:9] + ops.matmul(x, y), A, B, (11,))
    assert found is not None
    assert found.product.bias_start == 2


def test_a_matrix_of_the_size_of_the_result_is_added() -> None:
    found = product_of(lambda x, y, z: z + ops.matmul(x, y), A, B, (6, 7))
    assert found is not None
    assert (found.product.bias_start, found.added) == (None, "x2")
    assert found.product.added == found.product.result
    found = product_of(lambda x, y, z: ops.matmul(x, y) + z[:, 1:8], A, B, (6, 9))
    assert found is not None
    assert found.product.added == Matrix(1, 7, 6, 9, 0, "float32")


def accumulated(step: Contraction, *, old: bool) -> Contraction:
    """The step, which adds its sum to its result."""
    (store,) = step.stores
    if not old:
        return replace(step, stores=(replace(store, accumulate=True),))
    value = Apply("add", (Load(store.buffer, store.index, float32), store.value), float32)
    return replace(step, stores=(replace(store, value=value),))


@pytest.mark.parametrize("old", [False, True])
def test_sums_are_accumulated_in_place(old: bool) -> None:
    found = plain_product(accumulated(step_of(ops.matmul, A, B), old=old))
    assert found is not None
    assert found.added == found.result
    assert found.product.added == found.product.result


NONE: dict[str, Callable[[], PlainProduct | None]] = {
    "float64": lambda: product_of(ops.matmul, A, B, dtypes=(float64, float64)),
    "int64": lambda: product_of(ops.matmul, A, B, dtypes=(int64, int64)),
    "relu": lambda: product_of(lambda x, y: ops.relu(ops.matmul(x, y)), A, B),
    "scaled": lambda: product_of(lambda x, y: ops.matmul(x, y) * 2.0, A, B),
    "two dtypes": lambda: product_of(
        lambda x, y: ops.matmul(ops.cast(x, float32), y), A, B, dtypes=(bfloat16, float32)
    ),
    "rounded operand": lambda: product_of(
        lambda x, y: ops.matmul(ops.rounded(x, bfloat16), y), A, B
    ),
    "rounded to TF32": lambda: product_of(
        lambda x, y: ops.matmul(ops.round_to_tf32(x), ops.round_to_tf32(y)), A, B
    ),
    "rounded result": lambda: product_of(lambda x, y: ops.cast(ops.matmul(x, y), float16), A, B),
    "rounded with a bias": lambda: product_of(
        lambda x, y, z: ops.matmul(x, y) + z, A, B, BIAS, dtypes=(float16,) * 3
    ),
    "bias along rows": lambda: product_of(
        lambda x, y, z: ops.matmul(x, y) + ops.reshape(z, (6, 1)), A, B, (6,)
    ),
    "bias of another dtype": lambda: product_of(
        lambda x, y, z: ops.matmul(x, y) + ops.cast(z, float32), A, B, BIAS,
        dtypes=(float32, float32, bfloat16),
    ),
    "bias and matrix": lambda: product_of(
        lambda x, y, z, w: ops.matmul(x, y) + z + w, A, B, BIAS, (6, 7)
    ),
    "gathered": lambda: product_of(
        lambda x, i, y: ops.matmul(ops.take(x, i, 0), y), A, (4,), B,
        dtypes=(float32, int64, float32),
    ),
    "padded": lambda: product_of(
        lambda x, y: ops.matmul(ops.pad(x, ((0, 0), (1, 0))), y), A, (6, 7)
    ),
    "every second column": lambda: product_of(lambda x, y: ops.matmul(x[:, ::2], y), (6, 10), B),
    "backwards": lambda: product_of(lambda x, y: ops.matmul(ops.flip(x, 1), y), A, B),
    "broadcast batch": lambda: product_of(
        lambda x, y: ops.matmul(ops.broadcast_to(x, (3, *A)), y), A, (3, *B)
    ),
    "windows": lambda: product_of(
        lambda x, y: ops.conv(x, y, strides=1, padding=0, dilations=1, groups=1),
        (1, 2, 5, 5), (3, 2, 2, 2),
    ),
    "empty": lambda: product_of(ops.matmul, (3, 0), (0, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", NONE)
def test_other_contractions_are_no_plain_products(name: str) -> None:
    assert NONE[name]() is None


def test_steps_that_depend_on_an_iteration_are_no_plain_products() -> None:
    step = step_of(ops.matmul, A, B)
    iteration = axis_index(Axis("iteration", 4)) * 30
    left = step.left
    assert isinstance(left, Load)
    moved = replace(step, left=replace(left, index=left.index + iteration))
    assert plain_product(step) is not None
    assert plain_product(moved) is None


@pytest.mark.parametrize("leading", [0, 2, 4])
def test_columns_that_overlap_are_no_plain_product(leading: int) -> None:
    step = step_of(ops.matmul, A, B)
    left = step.left
    assert isinstance(left, Load)
    (m,), (k,) = step.m, step.k
    index = axis_index(m) * leading + axis_index(k)
    assert plain_product(replace(step, left=replace(left, index=index))) is None


def test_loads_with_bounds_are_no_plain_product() -> None:
    step = step_of(lambda x, y, z: ops.matmul(x, y) + z, A, B, (6, 7))
    left, (store,) = step.left, step.stores
    assert isinstance(left, Load)
    assert isinstance(store.value, Apply)
    (m,) = step.m
    bounds = (Bound(axis_index(m), 0, 4),)
    assert plain_product(replace(step, left=replace(left, bounds=bounds))) is None
    total, added = store.value.operands
    assert isinstance(added, Load)
    value = replace(store.value, operands=(total, replace(added, bounds=bounds)))
    assert plain_product(replace(step, stores=(replace(store, value=value),))) is None


def test_a_row_of_the_result_is_no_bias() -> None:
    step = step_of(ops.matmul, A, B)
    (store,), (n,) = step.stores, step.n
    row = Load(store.buffer, axis_index(n), float32)
    value = Apply("add", (store.value, row), float32)
    assert plain_product(replace(step, stores=(replace(store, value=value),))) is None


def test_a_result_that_is_an_operand_is_no_plain_product() -> None:
    step = step_of(ops.matmul, A, B)
    same = Rewrite(buffer=lambda name: "x0" if name == "contract" else name)
    assert plain_product(same.contraction(step)) is None  # type: ignore[arg-type]


def test_a_result_that_is_read_elsewhere_than_written_is_no_plain_product() -> None:
    step = step_of(ops.matmul, A, B)
    (store,) = step.stores
    shifted = Load(store.buffer, store.index + 1, float32)
    value = Apply("add", (store.value, shifted), float32)
    assert plain_product(replace(step, stores=(replace(store, value=value),))) is None


def test_two_stores_are_no_plain_product() -> None:
    step = step_of(ops.matmul, A, B)
    (store,) = step.stores
    other = Store("copy", store.index, store.value)
    assert plain_product(replace(step, stores=(store, other))) is None


def test_sizes_beyond_32_bits_are_no_plain_product() -> None:
    step = step_of(ops.matmul, A, B)
    left = step.left
    assert isinstance(left, Load)
    (m,), (k,) = step.m, step.k
    far = replace(left, index=axis_index(m) * 2**31 + axis_index(k))
    assert plain_product(replace(step, left=far)) is None


def test_the_sums_of_any_epilogue_are_a_plain_product() -> None:
    step = step_of(lambda x, y, z: ops.tanh(ops.matmul(x, y) + z), A, B, BIAS)
    workspaces = StepWorkspaces("step")
    sums, loop = without_epilogue(step, workspaces)
    (workspace,) = workspaces.made()
    found = plain_product(sums)
    assert found is not None
    assert (found.result, workspace.size) == (workspace.name, 42)
    (stage,) = loop.stages
    (store,) = stage.stores  # type: ignore[union-attr]
    assert str(store.value) == f"tanh({workspace.name}[7*m + n] + x2[n])"
    assert np.prod([axis.extent for axis in loop.axes]) == 42


def test_literals_are_no_operands() -> None:
    step = step_of(ops.matmul, A, B)
    assert plain_product(replace(step, left=Literal(1.0, float32))) is None
    total = Local(step.result, float32)
    (store,) = step.stores
    value = Apply("add", (total, Literal(1.0, float32)), float32)
    assert plain_product(replace(step, stores=(replace(store, value=value),))) is None
