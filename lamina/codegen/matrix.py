"""Contractions as matrix products over single axes, with strided views, or as loops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lamina.codegen.axes import flattened, merged_axes
from lamina.codegen.strides import stride_along
from lamina.program.index import Axis, Index
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Apply, Literal, Load, Scalar
from lamina.program.steps import Contraction, Loop, Reduce, Write
from lamina.records import frozen_dataclass

# The groups of axes of a contraction, and the name of the single axis of each.
_NAMES = {"batch": "b", "m": "m", "n": "n", "k": "k"}


@frozen_dataclass
class Matrix:
    """A contraction over single axes.

    Attributes:
        batch, m, n, k: the axes; of extent 1 if the contraction has none.
        left, right: the views over them.
        step: the contraction with its stores over them.
        k_axes: the axes that were merged to `k`.
        right_by_axes: the right view over the k axes, batch and n.
    """

    batch: Axis
    m: Axis
    n: Axis
    k: Axis
    left: Scalar
    right: Scalar
    step: Contraction
    k_axes: tuple[Axis, ...]
    right_by_axes: Scalar


@frozen_dataclass
class Plain:
    """A view with a start and two strides, in elements of its buffer.

    Attributes:
        buffer: the buffer of its elements.
        start: the index of its first element, over the batch axis.
        stride: along m (of the left operand) or n (of the right one).
        k_stride: along k.
    """

    buffer: str
    start: Index
    stride: int
    k_stride: int


def as_matrix(step: Contraction) -> Matrix:
    """The contraction with every group of axes merged to one axis."""
    merged = with_single_axes(step, *_NAMES)
    (batch,), (m,), (n,), (k,) = merged.batch, merged.m, merged.n, merged.k
    _, replacements = _single_axes(step, ("batch", "n"))
    by_axes = Rewrite(replacements).scalar(step.right)
    return Matrix(batch, m, n, k, merged.left, merged.right, merged, step.k, by_axes)


def with_single_axes(step: Contraction, *groups: str) -> Contraction:
    """The contraction with some groups merged to one axis each, of extent 1 for an empty group.

    Args:
        step: the contraction.
        groups: some of `"batch"`, `"m"`, `"n"` and `"k"`.
    """
    axes, replacements = _single_axes(step, groups)
    return replace(Rewrite(replacements).contraction(step), **axes)


def _single_axes(
    step: Contraction, groups: Iterable[str]
) -> tuple[dict[str, tuple[Axis]], dict[Axis, Index]]:
    """The single axis of each group, and the contraction's axes as indices in terms of these."""
    axes: dict[str, tuple[Axis]] = {}
    replacements: dict[Axis, Index] = {}
    for group in groups:
        single, replaced = flattened(getattr(step, group), _NAMES[group])
        axes[group] = (single,)
        replacements |= replaced
    return axes, replacements


def right_alone(step: Contraction) -> Contraction:
    """The contraction without its left operand, m axes and stores."""
    left, windows = Literal(0, step.dtype), step.windows_in("right")
    return replace(step, m=(), left=left, stores=(), windows=windows)


def as_loop(step: Contraction) -> Loop:
    """The contraction as a loop over its results, each a sum of products, with axes merged."""
    product = Apply("multiply", (step.left, step.right), step.dtype)
    axes = (*step.batch, *step.m, *step.n)
    reduce = Reduce(step.result, "sum", step.k, product, step.dtype)
    return merged_axes(Loop(step.name, axes, (reduce, Write((), step.stores))))


def as_plain(view: Scalar, outer: Axis, matrix: Matrix) -> Plain | None:
    """The view as a start and strides; None if it has casts, bounds or uneven strides.

    Args:
        view: an operand of the matrix.
        outer: its m or n axis.
        matrix: the contraction.
    """
    if not isinstance(view, Load) or view.bounds:
        return None
    stride = stride_along(view.index, outer)
    k_stride = stride_along(view.index, matrix.k)
    if stride is None or k_stride is None:
        return None
    start = Index(
        view.index.constant,
        tuple(term for term in view.index.terms if term[0] not in (outer, matrix.k)),
    )
    return Plain(view.buffer, start, stride, k_stride)
