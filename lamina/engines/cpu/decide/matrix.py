"""Contractions as products of matrices: every group of axes made one, and views that are plain."""

from __future__ import annotations

from dataclasses import replace

from lamina.codegen.axes import flattened
from lamina.engines.cpu.decide.strides import stride_along
from lamina.program.index import Axis, Index
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Load, Scalar
from lamina.program.steps import Contraction
from lamina.records import frozen_dataclass


@frozen_dataclass
class Matrix:
    """A contraction over single axes.

    Attributes:
        batch, row, column, inner: the axes; of extent 1 where there is none.
        left, right: the views over them.
        step: the contraction with its stores over them.
        inner_axes: those that `inner` was made of.
        right_by_axes: the right view over those, and over batch and column.
    """

    batch: Axis
    row: Axis
    column: Axis
    inner: Axis
    left: Scalar
    right: Scalar
    step: Contraction
    inner_axes: tuple[Axis, ...]
    right_by_axes: Scalar


@frozen_dataclass
class Plain:
    """A view that is an address and strides.

    Attributes:
        buffer: where it lies.
        start: the position of its first element, over the batch axis.
        stride: between rows (of the left operand) or columns (of the right one).
        inner_stride: between two k.
    """

    buffer: str
    start: Index
    stride: int
    inner_stride: int


def as_matrix(step: Contraction) -> Matrix:
    """The contraction with every group of axes made one."""
    batch, of_batch = flattened(step.batch, "b")
    row, of_rows = flattened(step.rows, "m")
    column, of_columns = flattened(step.columns, "n")
    inner, of_inner = flattened(step.inner, "k")
    change = Rewrite(of_batch | of_rows | of_columns | of_inner)
    merged = replace(
        change.contraction(step), batch=(batch,), rows=(row,), columns=(column,), inner=(inner,)
    )
    by_axes = Rewrite(of_batch | of_columns).scalar(step.right)
    return Matrix(batch, row, column, inner, merged.left, merged.right, merged, step.inner, by_axes)


def as_plain(view: Scalar, outer: Axis, matrix: Matrix) -> Plain | None:
    """The view as an address and strides; None if it is more than that."""
    if not isinstance(view, Load) or view.bounds:
        return None
    stride = stride_along(view.index, outer)
    inner_stride = stride_along(view.index, matrix.inner)
    if stride is None or inner_stride is None:
        return None
    start = Index(
        view.index.constant,
        tuple(term for term in view.index.terms if term[0] not in (outer, matrix.inner)),
    )
    return Plain(view.buffer, start, stride, inner_stride)
