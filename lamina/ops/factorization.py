"""Cholesky and LU factorisation, linear equations, inverse and determinant of small matrices.

All axes but the last two are batch axes. A factorisation is a recurrence over columns, in which
each iteration updates the whole rest of the matrix, so n iterations store n^3 elements. Gradients
are products and solutions of equations (Giles: Collected matrix derivative results for forward and
reverse mode algorithmic differentiation, 2008).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lamina.base.shapes import Array, broadcast, static
from lamina.checks import checked_as_given as checked
from lamina.checks.kinds import Flag
from lamina.errors import DTypeError, ShapeError
from lamina.graph import Op, Sample, Tensor, TensorLike, apply, constant, described
from lamina.ops import basic as ops
from lamina.ops.arguments import as_tensor, flag_of
from lamina.ops.conversion import floating, floats_of
from lamina.ops.rearranging import moveaxis
from lamina.ops.records import Given, Gradients, Operands, Typed, as_op, decorating, make_op
from lamina.ops.recurrence import recurrence
from lamina.ops.recurrence_gradient import Tensors

__all__ = ["cholesky", "det", "inverse", "slogdet", "solve", "solve_triangular"]

# Shapes and masks ---------------------------------------------------------------------------------


def _check_square(name: str, x: Tensor) -> None:
    if x.rank < 2 or x.shape[-1] != x.shape[-2] or not isinstance(x.shape[-1], int):
        raise ShapeError(
            f"{name}: the last two axes must be a square matrix",
            facts=(("found", described(x)),),
            advice="Axes before them are batch axes.",
        )
    if not x.dtype.is_float:
        raise DTypeError(
            f"{name}: the matrix must hold floats",
            facts=(("found", described(x)),),
            advice="Convert with ops.cast(x, 'float32').",
        )


def _product(left: Tensor, right: Tensor) -> Tensor:
    """The matrix product as a sum of products, which mixed precision does not round.

    Rounded gradients of an ill-conditioned matrix would be far from its gradients.
    """
    return ops.sum(ops.expand_dims(left, -1) * ops.expand_dims(right, -3), -2)


def _rows_of(mask: Callable[[Array, Array], Array], count: int) -> Tensor:
    """For each iteration j the elements i of a vector for which a condition on (j, i) holds."""
    numbers = np.arange(count)
    return constant(mask(numbers[:, None], numbers))


def _chosen(mask: Tensor, x: Tensor, axis: int) -> Tensor:
    """The element of x along an axis at which the mask is true."""
    return ops.sum(ops.where(mask, x, 0), axis)


def _triangle(x: Tensor, lower: bool, unit_diagonal: bool) -> Tensor:
    """The elements of a triangle, others zero."""
    (n,) = static(x.shape[-1:])
    kept = np.tri(n, n, -1 if unit_diagonal else 0, dtype=bool)
    return ops.where(constant(kept if lower else kept.T), x, 0)


def _infer_cholesky(x: Tensor) -> Typed:
    _check_square("cholesky", x)
    return x.shape, x.dtype


def _cholesky_build(x: Tensor) -> Tensor:
    """Right-looking: each iteration takes a column, and subtracts its outer product."""
    (n,) = static(x.shape[-1:])
    symmetric = (x + x.mT) * 0.5

    def step(states: Tensors, elements: Tensors, _: Tensors) -> tuple[Tensors, Tensors]:
        (rest,), (is_pivot, below) = states, elements
        column = _chosen(is_pivot, rest, -1)
        pivot = ops.expand_dims(_chosen(is_pivot, column, -1), -1)
        root = ops.sqrt(ops.where(ops.greater(pivot, 0), pivot, float("nan")))
        scaled = ops.where(below, column / root, 0)
        product = ops.expand_dims(scaled, -1) * ops.expand_dims(scaled, -2)
        return [rest - product], [scaled]

    sequences = [_rows_of(np.equal, n), _rows_of(np.less_equal, n)]
    _states, (columns,) = recurrence(step, [symmetric], sequences)
    return moveaxis(columns, 0, x.rank - 1)


def _cholesky_gradient(_: Tensor, result: Tensor, upstream: Tensor) -> Gradients:
    """L^-T P(L^T G) L^-1, made symmetric; P keeps the lower triangle, and half of the diagonal."""
    (n,) = static(result.shape[-1:])
    product = _product(result.mT, upstream)
    halved = constant(np.tri(n) - 0.5 * np.eye(n), result.dtype)
    inner = solve_triangular(result.mT, product * halved, lower=False)
    gradient = solve_triangular(result.mT, inner.mT, lower=False).mT
    return ((gradient + gradient.mT) * 0.5,)


def _cholesky_reference(x: Array) -> Array:
    rest = (x + np.swapaxes(x, -1, -2)) * x.dtype.type(0.5)
    result = np.zeros_like(rest)
    for j in range(x.shape[-1]):
        pivot = rest[..., j, j]
        root = np.sqrt(np.where(pivot > 0, pivot, np.nan))
        result[..., j:, j] = rest[..., j:, j] / root[..., None]
        column = result[..., j]
        rest = rest - column[..., :, None] * column[..., None, :]
    return result


@as_op(
    _infer_cholesky,
    _cholesky_gradient,
    _cholesky_reference,
    _cholesky_build,
    (
        *(Sample((shape,), diagonal=5.0) for shape in ((3, 3), (2, 4, 4), (1, 2, 1, 1))),
        Sample(((5, 2, 2),), differentiable=False),  # some have no factor
    ),
)
def cholesky(x: TensorLike) -> Operands:
    """The lower triangular L with x = L L^T, for positive definite matrices in the last two axes.

    Only the symmetric part (x + x^T) / 2 counts, so the gradient is symmetric. From the first pivot
    on that is not above zero, the columns of the result are NaN.
    """
    return (floating(x),)


# Triangular matrices ------------------------------------------------------------------------------


def _infer_right(name: str, matrix: Tensor, right: Tensor) -> Typed:
    """The shape rule of solutions of equations with a matrix."""
    _check_square(name, matrix)
    if matrix.shape[:-1] != right.shape[:-1] or matrix.dtype != right.dtype:
        raise ShapeError(
            f"{name}: the matrix and the right side do not fit together",
            facts=(("matrix", described(matrix)), ("right side", described(right))),
            advice="The right side needs as many rows as the matrix: [..., n, n] and [..., n, m].",
        )
    return right.shape, right.dtype


def _triangular_build(matrix: Tensor, right: Tensor, lower: bool, unit_diagonal: bool) -> Tensor:
    """Substitution: each iteration finds a row, and subtracts its part of all others."""
    (n,) = static(matrix.shape[-1:])

    def step(states: Tensors, elements: Tensors, _: Tensors) -> tuple[Tensors, Tensors]:
        (rest,), (column, is_pivot, others) = states, elements
        row = _chosen(ops.expand_dims(is_pivot, 1), rest, -2)
        if not unit_diagonal:
            row = row / ops.expand_dims(_chosen(is_pivot, column, -1), -1)
        factors = ops.expand_dims(ops.where(others, column, 0), -1)
        return [rest - factors * ops.expand_dims(row, -2)], [row]

    sequences = [
        moveaxis(matrix, -1, 0),
        _rows_of(np.equal, n),
        _rows_of(np.less if lower else np.greater, n),
    ]
    _states, (rows,) = recurrence(step, [right], sequences, reverse=not lower)
    return moveaxis(rows, 0, right.rank - 2)


def _triangular_gradient(
    matrix: Tensor, _: Tensor, result: Tensor, upstream: Tensor, lower: bool, unit_diagonal: bool
) -> Gradients:
    above = solve_triangular(matrix.mT, upstream, not lower, unit_diagonal)
    return _triangle(-_product(above, result.mT), lower, unit_diagonal), above


def _triangular_reference(matrix: Array, right: Array, lower: bool, unit_diagonal: bool) -> Array:
    n = matrix.shape[-1]
    triangle = np.tril(matrix) if lower else np.triu(matrix)
    rest, result = right.copy(), np.zeros_like(right)
    for j in range(n) if lower else reversed(range(n)):
        row = rest[..., j, :]
        if not unit_diagonal:
            row = row / triangle[..., j, j, None]
        result[..., j, :] = row
        rest = rest - triangle[..., :, j, None] * row[..., None, :]
    return result


def _with_columns(op: Op, matrix: TensorLike, right: TensorLike, *attributes: bool) -> Tensor:
    """A solution for a right side that may be one column, and batch axes that broadcast."""
    a, b = floats_of(matrix, right)
    vector = b.rank == a.rank - 1
    if vector:
        b = ops.reshape(b, (*b.shape, 1))
    if a.rank < 2 or b.rank < 2:
        raise ShapeError(
            "a matrix needs two axes",
            facts=(("matrix", described(a)), ("right side", described(b))),
            advice="Axes before the last two are batch axes.",
        )
    batch = broadcast(a.shape[:-2], b.shape[:-2])
    operands = [ops.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b)]
    solution = apply(op, *operands, **dict(zip(op.attributes, attributes, strict=True)))
    return ops.reshape(solution, solution.shape[:-1]) if vector else solution


_solving = decorating(make_op, _with_columns)


@_solving(
    lambda matrix, right, lower, unit_diagonal: _infer_right("solve_triangular", matrix, right),
    _triangular_gradient,
    _triangular_reference,
    _triangular_build,
    tuple(
        Sample(shapes, {"lower": lower, "unit_diagonal": unit}, diagonal=4.0)
        for shapes, lower, unit in (
            (((3, 3), (3, 2)), True, False),
            (((2, 4, 4), (2, 4, 1)), False, False),
            (((2, 3, 3), (2, 3, 5)), False, True),
            (((1, 1), (1, 3)), True, True),
        )
    ),
    operands=2,
    attributes={"lower": Flag(), "unit_diagonal": Flag()},
)
def solve_triangular(
    matrix: TensorLike, right: TensorLike, lower: bool = True, unit_diagonal: bool = False
) -> Given:
    """The solution X of matrix X = right, for triangular matrices in the last two axes.

    Args:
        matrix: [..., n, n]; elements of the other triangle are not used.
        right: [..., n, m], or [..., n] for one column; the batch axes broadcast.
        lower: whether the lower triangle is used, otherwise the upper one.
        unit_diagonal: whether the diagonal counts as ones.
    """
    given = (("lower", lower), ("unit_diagonal", unit_diagonal))
    return matrix, right, *(flag_of(name, value) for name, value in given)


# Gaussian elimination -----------------------------------------------------------------------------


def _eliminated(matrix: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gaussian elimination with partial pivoting, in which rows stay where they are.

    Returns the rows of the upper triangular matrix and of its right side, in the order in which
    they were chosen, and the numbers of the chosen rows, [..., n].
    """
    (n,) = static(matrix.shape[-1:])

    def step(states: Tensors, elements: Tensors, _: Tensors) -> tuple[Tensors, Tensors]:
        (rest, side, free), (is_pivot,) = states, elements
        column = _chosen(is_pivot, rest, -1)
        number = ops.argmax(ops.where(free, ops.abs(column), -1), -1, keepdims=True)
        chosen = ops.equal(ops.arange(n), number)
        row = _chosen(ops.expand_dims(chosen, -1), rest, -2)
        right_row = _chosen(ops.expand_dims(chosen, -1), side, -2)
        left = ops.where(chosen, False, free)
        factors = column / ops.expand_dims(_chosen(is_pivot, row, -1), -1)
        factors = ops.expand_dims(ops.where(left, factors, 0), -1)
        rest = rest - factors * ops.expand_dims(row, -2)
        side = side - factors * ops.expand_dims(right_row, -2)
        return [rest, side, left], [row, right_row, ops.reshape(number, number.shape[:-1])]

    free = ops.broadcast_to(constant(True), matrix.shape[:-1])
    _, stacks = recurrence(step, [matrix, right, free], [_rows_of(np.equal, n)])
    rows, right_rows, numbers = (moveaxis(stack, 0, matrix.rank - 2) for stack in stacks)
    return rows, right_rows, numbers


def _solve_build(matrix: Tensor, right: Tensor) -> Tensor:
    if 0 in right.shape:
        return ops.broadcast_to(constant(0, right.dtype), right.shape)
    upper, right, _numbers = _eliminated(matrix, right)
    return solve_triangular(upper, right, lower=False)


def _solve_gradient(matrix: Tensor, _: Tensor, result: Tensor, upstream: Tensor) -> Gradients:
    above = solve(matrix.mT, upstream)
    return -_product(above, result.mT), above


def _eliminated_reference(matrix: Array, right: Array) -> tuple[Array, Array, Array]:
    """The same elimination in NumPy, element for element."""
    rest, side = matrix, right
    upper, right_rows = np.zeros_like(matrix), np.zeros_like(right)
    free = np.ones(matrix.shape[:-1], bool)
    numbers = np.zeros(matrix.shape[:-1], np.int64)
    for j in range(matrix.shape[-1]):
        column = rest[..., j]
        number = np.argmax(np.where(free, np.abs(column), -1), -1)[..., None]
        numbers[..., j] = number[..., 0]
        upper[..., j, :] = np.take_along_axis(rest, number[..., None], -2)[..., 0, :]
        right_rows[..., j, :] = np.take_along_axis(side, number[..., None], -2)[..., 0, :]
        np.put_along_axis(free, number, False, -1)
        factors = np.where(free, column / upper[..., j, j, None], 0)[..., None]
        rest = rest - factors * upper[..., j, None, :]
        side = side - factors * right_rows[..., j, None, :]
    return upper, right_rows, numbers


def _solve_reference(matrix: Array, right: Array) -> Array:
    upper, right_rows, _ = _eliminated_reference(matrix, right)
    return _triangular_reference(upper, right_rows, lower=False, unit_diagonal=False)


@_solving(
    lambda matrix, right: _infer_right("solve", matrix, right),
    _solve_gradient,
    _solve_reference,
    _solve_build,
    (
        Sample(((3, 3), (3, 2)), diagonal=3.0),
        Sample(((2, 4, 4), (2, 4, 1)), diagonal=-4.0),
        Sample(((5, 1, 1), (5, 1, 3)), diagonal=4.0),
    ),
    operands=2,
)
def solve(matrix: TensorLike, right: TensorLike) -> Given:
    """The solution X of matrix X = right, for the square matrices in the last two axes.

    By Gaussian elimination with partial pivoting. For a singular matrix the result is infinite or
    NaN.

    Args:
        matrix: [..., n, n].
        right: [..., n, m], or [..., n] for one column; the batch axes broadcast.
    """
    return matrix, right


@checked
def inverse(x: TensorLike) -> Tensor:
    """The inverse of the square matrices in the last two axes; see `solve`."""
    x = floating(x)
    _check_square("inverse", x)
    (n,) = static(x.shape[-1:])
    return solve(x, ops.broadcast_to(constant(np.eye(n), x.dtype), x.shape))


def _pivots(x: Tensor) -> tuple[Tensor, Tensor]:
    """The pivots of elimination, and the sign of the permutation of rows."""
    if 0 in x.shape:
        # The determinant of a matrix without elements is 1, the product of no numbers.
        return x[..., 0, :] if x.shape[-1] else ops.reshape(x, x.shape[:-1]), constant(1, x.dtype)
    upper, _, numbers = _eliminated(x, ops.broadcast_to(constant(0, x.dtype), (*x.shape[:-1], 1)))
    (n,) = static(x.shape[-1:])
    diagonal = _chosen(constant(np.eye(n, dtype=bool)), upper, -1)
    # The sign is -1 if an odd number of pairs is out of order.
    later = constant(np.tri(n, n, -1, dtype=bool).T)
    swapped = ops.greater(ops.expand_dims(numbers, -1), ops.expand_dims(numbers, -2))
    signs = ops.where(later, ops.where(swapped, constant(-1, x.dtype), 1), 1)
    return diagonal, ops.prod(signs, (-2, -1))


def _pivots_reference(x: Array) -> tuple[Array, Array]:
    upper, _, numbers = _eliminated_reference(x, x[..., :0])
    later = np.tri(x.shape[-1], x.shape[-1], -1, dtype=bool).T
    swapped = np.sum(later & (numbers[..., :, None] > numbers[..., None, :]), (-2, -1))
    return np.diagonal(upper, 0, -2, -1), np.where(swapped % 2, -1, 1).astype(x.dtype)


def _determinant_op(
    name: str,
    gradient: Callable[[Tensor, Tensor, Tensor], Gradients],
    reference: Callable[[Array, Array], Array],
    combine: Callable[[Tensor, Tensor], Tensor],
    *,
    differentiable: bool = True,
) -> Op:
    def infer(x: Tensor) -> Typed:
        _check_square(name, x)
        return x.shape[:-2], x.dtype

    samples = tuple(
        Sample(((shape),), diagonal=3.0, differentiable=differentiable)
        for shape in ((3, 3), (2, 4, 4), (1, 1))
    )

    def own_reference(x: Array) -> Array:
        return reference(*_pivots_reference(x))

    def build(x: Tensor) -> Tensor:
        return combine(*_pivots(x))

    return make_op(name, infer, gradient, own_reference, build, samples)


def _scaled(upstream: Tensor, matrix: Tensor) -> Tensor:
    return ops.expand_dims(upstream, (-2, -1)) * matrix


LOG_DETERMINANT = _determinant_op(
    "log_abs_det",
    lambda x, y, g: (_scaled(g, inverse(x).mT),),
    lambda diagonal, _: np.sum(np.log(np.abs(diagonal)), -1, diagonal.dtype),
    lambda diagonal, _: ops.sum(ops.log(ops.abs(diagonal)), -1),
)

SIGN_OF_DETERMINANT = _determinant_op(
    "sign_of_det",
    lambda x, y, g: (None,),
    lambda diagonal, sign_of_rows: np.prod(np.sign(diagonal), -1) * sign_of_rows,
    lambda diagonal, sign_of_rows: ops.prod(ops.sign(diagonal), -1) * sign_of_rows,
    differentiable=False,
)


@decorating(_determinant_op)(
    lambda x, y, g: (_scaled(g * y, inverse(x).mT),),
    lambda diagonal, sign_of_rows: np.prod(diagonal, -1, diagonal.dtype) * sign_of_rows,
    lambda diagonal, sign_of_rows: ops.prod(diagonal, -1) * sign_of_rows,
)
def det(x: TensorLike) -> Operands:
    """The determinant of the square matrices in the last two axes.

    The gradient is det(x) x^-T; it is NaN or infinite for a singular matrix.
    """
    return (floating(x),)


@checked
def slogdet(x: TensorLike) -> tuple[Tensor, Tensor]:
    """The sign and the logarithm of the absolute value of `det(x)`, without overflow.

    No gradient flows back through the sign.
    """
    x = floating(as_tensor(x))
    return apply(SIGN_OF_DETERMINANT, x), apply(LOG_DETERMINANT, x)
