"""Which contractions are plain products of matrices, and how their matrices are in memory."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from gpu_cases import TRAITS, Case, compiled

from lamina import ops
from lamina.base.shapes import bfloat16, float16, float32, float64, int64
from lamina.engines.gpu.gpus import target_for
from lamina.engines.gpu.passes import without_epilogue
from lamina.engines.gpu.plain_products import Matrix, MatrixProduct, plain_product
from lamina.engines.gpu.workspaces import StepWorkspaces
from lamina.ops.conversion import stored_as_tf32
from lamina.program.index import Axis, axis_index, row_major
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Apply, Bound, Literal, Load, Local
from lamina.program.steps import Contraction, Store, stores_of

TARGET = target_for(TRAITS, "test")
A, B, BIAS = (6, 5), (5, 7), (7,)


def step_of(result, *shapes, dtypes=()):
    (step,) = compiled(Case("case", shapes, result, dtypes, 2), TARGET).steps
    assert isinstance(step, Contraction)
    return step


def product_of(result, *shapes, dtypes=()):
    return plain_product(step_of(result, *shapes, dtypes=dtypes))


def test_row_major_results_are_column_major_products_with_operands_exchanged():
    plain = product_of(ops.matmul, A, B)
    # The rows of a row-major matrix are the columns of a column-major one.
    assert plain.buffers == ("x1", "x0", "contract", "", "")
    assert plain.product == MatrixProduct(
        *(1, Matrix(0, 7, 5, 7, 0, "float32"), Matrix(0, 5, 6, 5, 0, "float32"), False, False),
        Matrix(0, 7, 6, 7, 0, "float32"),
    )
    assert str(plain.product) == "7 x 6 x 5 of float32"


@pytest.mark.parametrize("is_left", [False, True])
@pytest.mark.parametrize("is_right", [False, True])
def test_transposed_operands_are_factors_as_they_are(is_left, is_right):
    def result(x, y):
        x = ops.transpose(x) if is_left else x
        return ops.matmul(x, ops.transpose(y) if is_right else y)

    product = product_of(result, A[::-1] if is_left else A, B[::-1] if is_right else B).product
    # Operands are exchanged.
    assert (product.left_transposed, product.right_transposed) == (is_right, is_left)


def test_batches_are_a_constant_distance_apart():
    product = product_of(ops.matmul, (3, *A), (3, *B)).product
    strides = product.left.batch_stride, product.right.batch_stride, product.result.batch_stride
    assert (product.batch, strides) == (3, (35, 30, 42))
    assert str(product) == "3 of 7 x 6 x 5 of float32"


def test_a_part_of_a_buffer_has_a_start_and_its_own_leading_dimension():
    product = product_of(lambda x, y: ops.matmul(x[1:4, 2:7], y), (6, 9), B).product
    assert product.right == Matrix(11, 5, 3, 9, 0, "float32")


@pytest.mark.parametrize("half", [bfloat16, float16])
def test_floats_of_16_bits_are_factors(half):
    def wide(x, y):
        return ops.matmul(ops.cast(x, float32), ops.cast(y, float32))

    product = product_of(ops.matmul, A, B, dtypes=(half, half)).product
    assert (product.left.dtype, product.result.dtype) == (half.name, half.name)
    product = product_of(wide, A, B, dtypes=(half, half)).product
    assert str(product) == f"7 x 6 x 5 of {half.name} to float32"


def test_a_vector_along_the_columns_of_the_result_is_a_bias():
    plain = product_of(lambda x, y, z: ops.matmul(x, y) + z, A, B, BIAS)
    assert (plain.product.bias_start, plain.bias, plain.added) == (0, "x2", "")
    plain = product_of(lambda x, y, z: z[2:9] + ops.matmul(x, y), A, B, (11,))
    assert plain.product.bias_start == 2


def test_a_matrix_of_the_size_of_the_result_is_added():
    plain = product_of(lambda x, y, z: z + ops.matmul(x, y), A, B, (6, 7))
    assert (plain.product.bias_start, plain.added) == (None, "x2")
    assert plain.product.added == plain.product.result
    plain = product_of(lambda x, y, z: ops.matmul(x, y) + z[:, 1:8], A, B, (6, 9))
    assert plain.product.added == Matrix(1, 7, 6, 9, 0, "float32")


STEP = step_of(ops.matmul, A, B)
LEFT, (STORE,), (M,), (N,), (K,) = STEP.left, STEP.stores, STEP.m, STEP.n, STEP.k


def read(**changes):
    """The product with another load of its left operand."""
    return replace(STEP, left=replace(LEFT, **changes))


def added(other):
    """The product with something added to its sums."""
    value = Apply("add", (other, STORE.value), float32)
    return replace(STEP, stores=(replace(STORE, value=value),))


@pytest.mark.cases(
    "step",
    replace(STEP, stores=(replace(STORE, accumulate=True),)),
    added(Load(STORE.buffer, STORE.index, float32)),
    ids=["accumulated", "read and stored"],
)
def test_sums_are_accumulated_in_place(step):
    plain = plain_product(step)
    assert plain.added == plain.result
    assert plain.product.added == plain.product.result


def test_factors_are_read_as_tf32_if_they_are_stored_rounded():
    def product(x, y):
        return ops.matmul(stored_as_tf32(x), stored_as_tf32(y))

    gemm = product_of(product, A, B).product
    assert (gemm.left.dtype, gemm.right.dtype, gemm.result.dtype) == ("tf32", "tf32", "float32")
    assert gemm.left.bytes_of(1) == 4 * gemm.left.rows * gemm.left.columns


INSIDE = (Bound(axis_index(M), 0, 4),)
SAME = Rewrite(buffer=lambda name: "x0" if name == "contract" else name)
NONE = {
    "float64": partial(step_of, ops.matmul, A, B, dtypes=(float64, float64)),
    "int64": partial(step_of, ops.matmul, A, B, dtypes=(int64, int64)),
    "relu": partial(step_of, lambda x, y: ops.relu(x @ y), A, B),
    "scaled": partial(step_of, lambda x, y: x @ y * 2.0, A, B),
    "two dtypes": partial(
        step_of, lambda x, y: ops.cast(x, float32) @ y, A, B, dtypes=(bfloat16, float32)
    ),
    "rounded operand": partial(step_of, lambda x, y: ops.rounded(x, bfloat16) @ y, A, B),
    "rounded to TF32": partial(
        step_of, lambda x, y: ops.round_to_tf32(x) @ ops.round_to_tf32(y), A, B
    ),
    "one factor stored as TF32": partial(step_of, lambda x, y: stored_as_tf32(x) @ y, A, B),
    "rounded result": partial(step_of, lambda x, y: ops.cast(x @ y, float16), A, B),
    "rounded with a bias": partial(
        step_of, lambda x, y, z: x @ y + z, A, B, BIAS, dtypes=(float16,) * 3
    ),
    "bias along rows": partial(step_of, lambda x, y, z: x @ y + ops.reshape(z, (6, 1)), A, B, (6,)),
    "bias of another dtype": partial(
        *(step_of, lambda x, y, z: x @ y + ops.cast(z, float32), A, B, BIAS),
        dtypes=(float32, float32, bfloat16),
    ),
    "bias and matrix": partial(step_of, lambda x, y, z, w: x @ y + z + w, A, B, BIAS, (6, 7)),
    "gathered": partial(
        *(step_of, lambda x, i, y: ops.take(x, i, 0) @ y, A, (4,), B),
        dtypes=(float32, int64, float32),
    ),
    "padded": partial(step_of, lambda x, y: ops.pad(x, ((0, 0), (1, 0))) @ y, A, (6, 7)),
    "every second column": partial(step_of, lambda x, y: x[:, ::2] @ y, (6, 10), B),
    "backwards": partial(step_of, lambda x, y: ops.flip(x, 1) @ y, A, B),
    "broadcast batch": partial(step_of, lambda x, y: ops.broadcast_to(x, (3, *A)) @ y, A, (3, *B)),
    "windows": partial(
        *(step_of, lambda x, y: ops.conv(x, y, 1, 0, dilations=1, groups=1)),
        *((1, 2, 5, 5), (3, 2, 2, 2)),
    ),
    "empty": partial(step_of, ops.matmul, (3, 0), (0, 2)),
    "an iteration": lambda: read(index=LEFT.index + axis_index(Axis("iteration", 4)) * 30),
    "rows at one place": lambda: read(index=axis_index(K)),
    "rows that overlap": lambda: read(index=axis_index(M) * 2 + axis_index(K)),
    "rows that nearly overlap": lambda: read(index=axis_index(M) * 4 + axis_index(K)),
    "beyond 32 bits": lambda: read(index=axis_index(M) * 2**31 + axis_index(K)),
    "a guarded operand": lambda: read(bounds=INSIDE),
    "a guarded matrix": lambda: added(Load("x2", STORE.index, float32, INSIDE)),
    "a row of the result": lambda: added(Load(STORE.buffer, axis_index(N), float32)),
    "another element of the result": lambda: added(Load(STORE.buffer, STORE.index + 1, float32)),
    "a literal that is added": lambda: added(Literal(1.0, float32)),
    "a literal operand": lambda: replace(STEP, left=Literal(1.0, float32)),
    "a result that is an operand": lambda: SAME.record(STEP),
    "two stores": lambda: replace(STEP, stores=(STORE, Store("copy", STORE.index, STORE.value))),
}


@pytest.mark.parametrize("name", NONE)
def test_other_contractions_are_no_plain_products(name):
    assert plain_product(NONE[name]()) is None


def wide(x, y):
    """A product of floats of 16 bits."""
    return ops.matmul(*(ops.cast(one, float32) for one in (x, y)))


def rounded(x):
    return ops.cast(ops.cast(x, bfloat16), float32)


HALVES = {"dtypes": (bfloat16, bfloat16)}


@pytest.mark.cases(
    ("step", "dtype", "stored"),
    (step_of(lambda x, y, z: ops.tanh(x @ y + z), A, B, BIAS), float32, "tanh({} + x2[i1])"),
    (
        step_of(
            *(lambda x, y, z: ops.cast(ops.where(z <= 0.0, 0.0, wide(x, y)), bfloat16), A, B),
            *((6, 7),),
            dtypes=(bfloat16, bfloat16, float32),
        ),
        *(bfloat16, "select(x2[7*i0 + i1] <= 0.0, 0, {})"),
    ),
    (
        step_of(lambda x, y: (r := rounded(wide(x, y))) * ops.tanh(r), A, B, **HALVES),
        *(bfloat16, "f32({}) * tanh(f32({}))"),
    ),
    (
        step_of(lambda x, y: (t := wide(x, y)) * ops.tanh(rounded(t)), A, B, **HALVES),
        *(float32, "{} * tanh(f32(bf16({})))"),
    ),
    ids=["any epilogue", "rounded selection", "only used rounded", "also used unrounded"],
)
def test_sums_are_a_plain_product_stored_as_the_epilogue_uses_them(step, dtype, stored):
    workspaces = StepWorkspaces("step")
    sums, loop = without_epilogue(step, workspaces)
    (workspace,) = workspaces.made
    plain = plain_product(sums)
    assert (plain.result, workspace.size, workspace.dtype) == (workspace.name, 42, dtype)
    assert plain.product.result.dtype == dtype.name
    (store,) = stores_of(loop)
    assert str(store.value) == stored.replace("{}", f"{workspace.name}[7*i0 + i1]")
    assert np.prod([axis.extent for axis in loop.axes]) == 42


def test_scattered_stores_are_made_in_their_order_in_sectors_of_the_sums():
    """As gradients of a convolution's weights, whose neighbours along m and n lie apart."""
    i, j, n, k = (Axis(name, size) for name, size in (("i", 3), ("j", 4), ("n", 16), ("k", 5)))
    index = axis_index(n) * 12 + axis_index(j) * 3 + axis_index(i)
    left, right = Load("x", row_major((i, j, k)), float32), Load("z", row_major((n, k)), float32)
    store = Store("y", index, Local("sum", float32))
    step = Contraction("step", (), (i, j), (n,), (k,), left, right, "sum", float32, (store,))
    workspaces = StepWorkspaces("step")
    _, loop = without_epilogue(step, workspaces)
    assert [(axis.name, axis.extent) for axis in loop.axes] == [
        *(("n_sector", 2), ("j", 4), ("i", 3), ("n", 8))
    ]
    (store,) = stores_of(loop)
    assert str(store.index) == "i + 3*j + 12*n + 96*n_sector"
    assert str(store.value) == "workspace 0 of step[64*i + 16*j + n + 8*n_sector]"
