"""Convolution: a contraction over windows, in any number of dimensions, and its gradients.

Tensors are [batch, channels, ...] and weights [outputs, inputs / groups, ...], as PyTorch's.
`convolution_layouts` makes contractions of them.

The arithmetic follows Dumoulin and Visin: A guide to convolution arithmetic for deep learning
(2016).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lamina.base.shapes import Array, Dim, static
from lamina.checks.kinds import Kind
from lamina.errors import ShapeError
from lamina.graph import OPS, Sample, Tensor, TensorLike, apply, described
from lamina.graph.attributes import Fields, Many, whole
from lamina.ops.arguments import as_tensor, each_of, pairs_of
from lamina.ops.conversion import numeric
from lamina.ops.convolution_layouts import Axes, Layout, Pairs
from lamina.ops.linalg import check_dtypes
from lamina.ops.records import Given, Gradients, Typed, as_op, make_op
from lamina.ops.windows import LARGEST_WINDOW, advice_on_extents

__all__ = ["conv", "conv_transpose"]


def _check(name: str, x: Tensor, weight: Tensor, axes: Axes, channels: int) -> None:
    """Raises ShapeError unless x and the weight belong together."""
    check_dtypes(name, x, weight)
    actual = x.shape[1] if x.rank > 1 else None
    lengths = {len(axes.strides), len(axes.dilations), len(axes.padding), x.rank - 2}
    if weight.rank < 3 or lengths != {axes.rank}:
        problem = "the numbers of axes do not fit"
    elif 0 in axes.weight_shape:
        problem = "the weight has no elements"
    elif axes.outputs % axes.groups:
        problem = f"{axes.outputs} outputs cannot be divided into {axes.groups} groups"
    elif actual != channels:
        problem = f"expected {channels} channels, found {actual}"
    else:
        return
    raise ShapeError(
        f"{name}: {problem}",
        facts=(
            ("tensor", described(x)),
            ("weight", described(weight)),
            ("groups", str(axes.groups)),
        ),
        advice="The tensor is [batch, channels, ...] and the weight [outputs, inputs / groups, "
        "...], with a stride, a dilation and a pair of paddings for each further axis.",
    )


def _infer_conv(x: Tensor, weight: Tensor, **numbers: Any) -> Typed:
    axes = Axes(weight.shape, numbers)
    _check("conv", x, weight, axes, axes.inputs * axes.groups)
    counts: list[Dim] = []
    for extent, window in zip(static(x.shape[2:]), axes.along, strict=True):
        if window.count(extent) < 1:
            raise ShapeError(
                "conv: the window is larger than the padded tensor",
                facts=(
                    ("tensor", described(x)),
                    ("window", f"{window.size} elements, from first to last {window.reach}"),
                    ("padding", f"{window.before} before and {window.after} after"),
                ),
                advice=advice_on_extents(x),
            )
        counts.append(window.count(extent))
    return (x.shape[0], axes.outputs, *counts), x.dtype


def _conv_build(x: Tensor, weight: Tensor, **numbers: Any) -> Tensor:
    layout = Layout(Axes(weight.shape, numbers))
    return layout.applied(layout.windows_of(x), weight, "c")


def _conv_gradient(
    x: Tensor, weight: Tensor, _: Tensor, upstream: Tensor, **numbers: Any
) -> Gradients:
    back = apply(CONV_TRANSPOSE, upstream, weight, **numbers, extents=static(x.shape[2:]))
    return back, _weight_gradient(x, upstream, weight, **numbers)


def _met_elements(
    axes: Axes, counts: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """Each element of the kernel, and the slices of the padded tensor that it meets."""
    for element in np.ndindex(*axes.sizes):
        rows = zip(element, counts, axes.strides, axes.dilations, strict=True)
        slices = (slice(e * d, e * d + (n - 1) * s + 1, s) for e, n, s, d in rows)
        yield element, (slice(None), slice(None), *slices)


def _conv_reference(x: Array, weight: Array, **numbers: Any) -> Array:
    axes = Axes(weight.shape, numbers)
    padded = np.pad(x, ((0, 0), (0, 0), *axes.padding))
    counts = [
        (n - (size - 1) * dilation - 1) // stride + 1
        for n, size, stride, dilation in zip(
            padded.shape[2:], axes.sizes, axes.strides, axes.dilations, strict=True
        )
    ]
    grouped = weight.reshape(axes.groups, weight.shape[0] // axes.groups, *weight.shape[1:])
    total = np.zeros((x.shape[0], weight.shape[0], *counts), x.dtype)
    for element, slices in _met_elements(axes, counts):
        shifted = padded[slices].reshape(x.shape[0], axes.groups, weight.shape[1], *counts)
        products = np.einsum("bgc...,goc->bgo...", shifted, grouped[(..., *element)])
        total += products.reshape(total.shape)
    return total


def _numbers(
    strides: tuple[int, ...] = (1, 1),
    padding: Pairs = ((0, 0), (0, 0)),
    dilations: tuple[int, ...] = (1, 1),
    groups: int = 1,
) -> dict[str, object]:
    return {"strides": strides, "dilations": dilations, "padding": padding, "groups": groups}


_STEP, _WIDTH = whole(1, most=LARGEST_WINDOW), whole(0, most=LARGEST_WINDOW)
_KINDS: dict[str, Kind] = {
    "strides": Many(_STEP),
    "dilations": Many(_STEP),
    "padding": Many(Fields({"before": _WIDTH, "after": _WIDTH})),
    "groups": whole(1),
}


@as_op(
    _infer_conv,
    _conv_gradient,
    _conv_reference,
    _conv_build,
    (
        Sample(((2, 3, 5, 6), (4, 3, 3, 2)), _numbers()),
        Sample(((2, 2, 7, 5), (3, 2, 3, 3)), _numbers((2, 1), ((1, 1), (2, 0)), (1, 2))),
        Sample(((1, 4, 6, 6), (6, 2, 3, 3)), _numbers((2, 2), ((1, 0), (1, 1)), groups=2)),
        Sample(((2, 3, 5, 4), (3, 1, 3, 3)), _numbers(padding=((1, 1), (1, 1)), groups=3)),
        Sample(((2, 3, 5, 4), (6, 1, 2, 2)), _numbers((2, 1), groups=3)),
        Sample(((3, 5, 4, 4), (7, 5, 1, 1)), _numbers((2, 2))),
        Sample(((2, 3, 9), (5, 3, 4)), _numbers((3,), ((2, 1),), (2,))),
        Sample(
            ((1, 2, 3, 4, 3), (2, 2, 2, 2, 2)),
            _numbers((1, 2, 1), ((0, 1), (1, 0), (0, 0)), (1, 1, 2)),
        ),
        Sample(((0, 2, 4, 4), (3, 2, 2, 2)), _numbers()),
    ),
    operands=2,
    attributes=_KINDS,
    multiplies=2,
)
def conv(
    x: TensorLike,
    weight: TensorLike,
    strides: int | Sequence[int],
    padding: int | Sequence[int | tuple[int, int]],
    dilations: int | Sequence[int],
    groups: int = 1,
) -> Given:
    """The convolution of a tensor with a kernel: the cross-correlation, as in all frameworks.

    Args:
        x: [batch, channels, ...] with one or more further axes.
        weight: [outputs, channels / groups, ...], the kernel.
        strides: the distances between windows, one for each further axis, or one for all of them.
        padding: zeros before and after, a pair for each further axis; one number for both.
        dilations: the distances between the elements of a window, like `strides`.
        groups: the number of groups of channels; outputs of a group depend on its channels only.

    Returns:
        [batch, outputs, ...].
    """
    x, weight = numeric(as_tensor(x)), numeric(as_tensor(weight))
    return x, weight, *_given(weight, strides, padding, dilations), groups


CONV = OPS["conv"]


def _given(weight: Tensor, strides: object, padding: object, dilations: object) -> tuple[Any, ...]:
    """Strides, dilations and padding for each axis, from the arguments of the user."""
    rank = max(weight.rank - 2, 0)
    steps = each_of("strides", strides, rank, _STEP), each_of("dilations", dilations, rank, _STEP)
    return *steps, pairs_of("padding", padding, rank)


# Backward -----------------------------------------------------------------------------------------


def _infer_conv_transpose(
    y: Tensor, weight: Tensor, extents: tuple[int, ...], **numbers: Any
) -> Typed:
    axes = Axes(weight.shape, numbers)
    _check("conv_transpose", y, weight, axes, axes.outputs)
    if len(extents) != axes.rank:
        facts = (("tensor", described(y)), ("extents of the result", str(extents)))
        raise ShapeError("conv_transpose: each axis needs an extent", facts=facts)
    counts = axes.counts(extents)
    if counts != y.shape[2:]:
        raise ShapeError(
            "conv_transpose: the convolution of the result does not have the shape of the tensor",
            facts=(
                ("tensor", described(y)),
                ("extents of the result", str(extents)),
                ("a convolution of it", str(counts)),
            ),
            advice="An extent is (n - 1) * stride - padding + window, and up to stride - 1 more.",
        )
    return (y.shape[0], axes.inputs * axes.groups, *extents), y.dtype


def _conv_transpose_build(
    y: Tensor, weight: Tensor, extents: tuple[int, ...], **numbers: Any
) -> Tensor:
    layout = Layout(Axes(weight.shape, numbers))
    return layout.applied(layout.transposed_windows_of(y, extents), weight, "o")


def _conv_transpose_gradient(
    y: Tensor, weight: Tensor, _: Tensor, upstream: Tensor, extents: Sequence[int], **numbers: Any
) -> Gradients:
    weight_gradient = _weight_gradient(upstream, y, weight, **numbers)
    return apply(CONV, upstream, weight, **numbers), weight_gradient


def _conv_transpose_reference(
    y: Array, weight: Array, extents: tuple[int, ...], **numbers: Any
) -> Array:
    axes, counts = Axes(weight.shape, numbers), y.shape[2:]
    grouped = weight.reshape(axes.groups, -1, *weight.shape[1:])
    grouped_y = y.reshape(y.shape[0], axes.groups, grouped.shape[1], *counts)
    inputs = axes.groups * weight.shape[1]
    rows = [
        (low, low + n, low + n + high) for n, (low, high) in zip(extents, axes.padding, strict=True)
    ]
    total = np.zeros((y.shape[0], inputs, *(padded for *_, padded in rows)), y.dtype)
    for element, slices in _met_elements(axes, counts):
        products = np.einsum("bgo...,goc->bgc...", grouped_y, grouped[(..., *element)])
        total[slices] += products.reshape(y.shape[0], inputs, *counts)
    return total[(slice(None), slice(None), *(slice(low, end) for low, end, _ in rows))]


def _convolved_shape(sample: Sample) -> tuple[int, ...]:
    """The shape of the result in a sample of a convolution."""
    x, weight = sample.shapes
    return x[0], weight[0], *Axes(weight, sample.attributes).counts(x[2:])


def _infer_weight_gradient(
    original: Tensor, convolved: Tensor, shape: tuple[int, ...], **numbers: Any
) -> Typed:
    axes = Axes(shape, numbers)
    attribute_lengths = {len(axes.strides), len(axes.dilations), len(axes.padding)}
    lengths = attribute_lengths | {original.rank - 2, convolved.rank - 2}
    fits = len(shape) > 2 and lengths == {axes.rank} and not axes.outputs % axes.groups
    if fits:
        counts = axes.counts(static(original.shape[2:]))
        fits = convolved.shape == (original.shape[0], axes.outputs, *counts)
        fits = fits and original.shape[1] == axes.inputs * axes.groups
    check_dtypes("conv_weight_gradient", original, convolved)
    if not fits:
        raise ShapeError(
            "conv_weight_gradient: the second tensor does not have the shape of the convolution",
            facts=(
                ("original", described(original)),
                ("convolved", described(convolved)),
                ("weight", str(shape)),
            ),
        )
    return shape, original.dtype


def _weight_gradient_build(
    original: Tensor, convolved: Tensor, shape: tuple[int, ...], **numbers: Any
) -> Tensor:
    return Layout(Axes(shape, numbers)).weight_gradient(original, convolved)


def _weight_gradient_gradient(
    x: Tensor, convolved: Tensor, _: Tensor, upstream: Tensor, shape: Sequence[int], **numbers: Any
) -> Gradients:
    """The op is linear in both operands, so in both gradients `upstream` replaces the weight."""
    back = apply(CONV_TRANSPOSE, convolved, upstream, **numbers, extents=static(x.shape[2:]))
    return back, apply(CONV, x, upstream, **numbers)


def _weight_gradient_reference(
    original: Array, convolved: Array, shape: tuple[int, ...], **numbers: Any
) -> Array:
    axes, counts = Axes(shape, numbers), convolved.shape[2:]
    padded = np.pad(original, ((0, 0), (0, 0), *axes.padding))
    results = convolved.reshape(len(convolved), axes.groups, shape[0] // axes.groups, *counts)
    total = np.zeros(shape, original.dtype)
    for element, slices in _met_elements(axes, counts):
        shifted = padded[slices].reshape(original.shape[0], axes.groups, shape[1], *counts)
        products = np.einsum("bgc...,bgo...->goc...", shifted, results)
        products = products.reshape(shape[0], shape[1], -1).sum(-1)
        total[(slice(None), slice(None), *element)] = products
    return total


CONV_WEIGHT_GRADIENT = make_op(
    "conv_weight_gradient",
    _infer_weight_gradient,
    _weight_gradient_gradient,
    _weight_gradient_reference,
    _weight_gradient_build,
    [
        Sample((of.shapes[0], _convolved_shape(of)), {**of.attributes, "shape": of.shapes[1]})
        for of in CONV.samples
    ],
    operands=2,
    attributes={**_KINDS, "shape": Many(whole(1))},
    multiplies=2,
)


def _weight_gradient(x: Tensor, upstream: Tensor, weight: Tensor, **numbers: Any) -> Tensor:
    """The gradient of the weight of a convolution, from its operand and the upstream gradient."""
    return apply(CONV_WEIGHT_GRADIENT, x, upstream, **numbers, shape=static(weight.shape))


@as_op(
    _infer_conv_transpose,
    _conv_transpose_gradient,
    _conv_transpose_reference,
    _conv_transpose_build,
    [
        Sample((_convolved_shape(of), of.shapes[1]), {**of.attributes, "extents": of.shapes[0][2:]})
        for of in CONV.samples
    ],
    operands=2,
    attributes={**_KINDS, "extents": Many(whole(0))},
    multiplies=2,
)
def conv_transpose(
    y: TensorLike,
    weight: TensorLike,
    extents: int | Sequence[int],
    strides: int | Sequence[int],
    padding: int | Sequence[int | tuple[int, int]],
    dilations: int | Sequence[int],
    groups: int = 1,
) -> Given:
    """The transpose of `conv` as a linear map: its gradient with respect to x.

    Args:
        y: [batch, outputs, ...], in the shape of a convolution's result.
        weight: [outputs, channels / groups, ...], as for `conv`.
        extents: the extents of the further axes of the result. A convolution of the result must
            have the shape of y.
        strides, padding, dilations, groups: the arguments of that convolution.

    Returns:
        [batch, channels, *extents].
    """
    y, weight = numeric(as_tensor(y)), numeric(as_tensor(weight))
    each = each_of("extents", extents, max(weight.rank - 2, 0), whole(0))
    return y, weight, *_given(weight, strides, padding, dilations), groups, each


CONV_TRANSPOSE = OPS["conv_transpose"]
