"""Contractions as matrix products over single axes, with strided views, or as loops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import DType, bfloat16, float32
from lamina.codegen.axes import flattened, merged_axes, stride_along
from lamina.codegen.primitives import element
from lamina.program.index import Axis, Index
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import CONVERSIONS, Apply, Literal, Load, Scalar
from lamina.program.steps import Contraction, Loop, Reduce, Write

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
        paired: whether the views are bfloat16, and are multiplied in pairs along k.
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
    paired: bool = False

    @property
    def k_steps(self) -> int:
        """The number of k that are multiplied one after the other: of pairs if they are paired."""
        return -(-self.k.extent // 2) if self.paired else self.k.extent

    @property
    def element(self) -> str:
        """The element of packed operands: a pair is one."""
        return "i32" if self.paired else element(self.step.dtype)


@frozen_dataclass
class Plain:
    """A view with a start and two strides, in elements of its buffer.

    Attributes:
        buffer: the buffer of its elements.
        start: the index of its first element, over the batch axis.
        stride: the stride along m (of the left operand) or n (of the right one).
        k_stride: the stride along k.
    """

    buffer: str
    start: Index
    stride: int
    k_stride: int


@frozen_dataclass
class Stored:
    """An operand as it is in memory, and the conversions through which it is read.

    Attributes:
        load: the load of its elements.
        conversions: the conversions, in their order.
    """

    load: Load
    conversions: tuple[Apply, ...]

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """The dtypes of the elements in memory, and after each conversion."""
        return self.load.dtype, *(conversion.dtype for conversion in self.conversions)


def as_matrix(step: Contraction, *, paired: bool = False) -> Matrix:
    """The contraction with every group of axes merged to one axis.

    With `paired`, the views are the bfloat16 whose casts are multiplied.
    """
    merged = with_single_axes(step, *_NAMES)
    (batch,), (m,), (n,), (k,) = merged.batch, merged.m, merged.n, merged.k
    _, replacements = _single_axes(step, ("batch", "n"))
    views = merged.left, merged.right, Rewrite(replacements).scalar(step.right)
    left, right, by_axes = map(_narrow, views) if paired else views
    return Matrix(batch, m, n, k, left, right, merged, step.k, by_axes, paired)


def can_be_paired(step: Contraction) -> bool:
    """Whether both operands are bfloat16 that were cast to float32."""
    return all(_narrow(view) is not view for view in (step.left, step.right))


def half_of(view: Scalar) -> Scalar | None:
    """The floats of 16 bits from which a view casts its elements to float32, or None."""
    if not isinstance(view, Apply) or view.primitive != "cast" or view.dtype != float32:
        return None
    (inner,) = view.operands
    return inner if inner.dtype.is_half else None


def multiplied_of(view: Scalar) -> Scalar:
    """What instructions on matrices multiply: a view without conversions that change nothing.

    These are casts of floats of 16 bits to float32, and `as_tf32` of what is stored rounded.
    """
    if isinstance(view, Apply) and view.primitive == "as_tf32":
        return view.operands[0]
    half = half_of(view)
    return view if half is None else half


def _narrow(view: Scalar) -> Scalar:
    """The bfloat16 from which a view is cast; another view stays as it is."""
    half = half_of(view)
    return half if half is not None and half.dtype == bfloat16 else view


def narrowed(step: Contraction) -> Contraction:
    """The contraction of operands of bfloat16 themselves, without their casts to float32."""
    return replace(step, left=_narrow(step.left), right=_narrow(step.right))


def stored(view: Scalar) -> Stored | None:
    """The view as a load and conversions; None if it is anything else."""
    conversions: list[Apply] = []
    while isinstance(view, Apply) and view.primitive in CONVERSIONS:
        conversions.append(view)
        (view,) = view.operands
    return Stored(view, tuple(conversions[::-1])) if isinstance(view, Load) else None


def with_single_axes(step: Contraction, *groups: str) -> Contraction:
    """The contraction with some groups merged to one axis each, of extent 1 for an empty group.

    The groups are some of `"batch"`, `"m"`, `"n"` and `"k"`.
    """
    axes, replacements = _single_axes(step, groups)
    return replace(Rewrite(replacements).record(step), **axes)


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


def exchanged(step: Contraction) -> Contraction:
    """The contraction with left and right exchanged."""
    return replace(
        step,
        m=step.n,
        n=step.m,
        left=step.right,
        right=step.left,
        left_windows=step.right_windows,
        right_windows=step.left_windows,
    )


def right_alone(step: Contraction) -> Contraction:
    """The contraction without its left operand, m axes and stores."""
    return replace(step, m=(), left=Literal(0, step.dtype), stores=(), left_windows=())


def as_loop(step: Contraction) -> Loop:
    """The contraction as a loop over its results, each a sum of products, with axes merged."""
    product = Apply("multiply", (step.left, step.right), step.dtype)
    axes = (*step.batch, *step.m, *step.n)
    reduce = Reduce(step.result, "sum", step.k, product, step.dtype)
    return merged_axes(Loop(step.name, axes, (reduce, Write((), step.stores))))


def as_plain(
    view: Scalar, outer: Axis, matrix: Matrix, *, below_conversions: bool = False
) -> Plain | None:
    """An operand of the matrix as a start and strides, along its m or n axis and along k.

    None if it has conversions, bounds or uneven strides. It may have conversions if it is read
    `below_conversions`; then the result is in elements before them.
    """
    if below_conversions:
        converted = stored(view)
        view = view if converted is None else converted.load
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
