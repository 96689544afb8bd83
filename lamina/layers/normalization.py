"""Normalisation to mean 0 and variance 1, over a batch, a layer, or groups.

All take floats and give the same shape and dtype. With floats of 16 bits they compute in float32.
Variances are computed in two passes, from the deviations, so that they are accurate for values far
from zero too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Annotated, Any

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import static
from lamina.checks.kinds import (
    Count,
    Kind,
    Misfit,
    NotNegative,
    Number,
    Operands,
    OrNone,
    Whole,
    entries_of,
    read_each,
)
from lamina.errors import ShapeError
from lamina.graph import Tensor, described
from lamina.layers.checks import (
    axis_within_example,
    grouped_channels,
    require_channels,
    require_float,
)
from lamina.layers.init import Constant, Zeros
from lamina.layers.layer import Layer
from lamina.layers.scope import Scope, in_float32

__all__ = ["BatchNorm", "GroupNorm", "InstanceNorm", "LayerNorm", "LocalResponseNorm", "RMSNorm"]


class _AxisNumbers(Kind):
    """The number of an axis, or of several."""

    def read(self, value: Any, operands: Operands = ()) -> Any:
        several = entries_of(value)
        listed = (value,) if several is None else several
        try:
            axes = read_each(_AXIS, listed)
        except Misfit:
            axes = ()
        if not axes:
            raise Misfit(
                "whole numbers",
                "{name}=-1 or {name}=(-2, -1)",
                advice="Axes are named by their numbers; their extents are inferred.",
            )
        return axes[0] if several is None else axes


_AXIS = Whole()
_Axes = Annotated[int | Sequence[int], _AxisNumbers()]


@frozen_dataclass(kw_only=True)
class BatchNorm(Layer):
    """(x - mean) / sqrt(variance + epsilon) * weight + bias, for each channel.

    Takes [batch, channels, ...] of any rank from 2 on. In training mode, mean and variance are
    taken over the batch and all axes except the channels. In inference mode they are running
    averages, which only training changes. After Ioffe, Szegedy: Batch normalization (2015).

    Its parameters are `weight` and `bias`, its states `running_mean` and `running_variance`, all of
    shape (channels,). As in PyTorch the variance of the batch divides by the number of values n,
    the running variance by n - 1. A batch with a single value for each channel leaves the running
    variance unchanged.

    Args:
        momentum: the share of each batch in the running averages, from 0 to 1; None for the
            mean of all batches, whose number is the state `batches`.
        epsilon: a number that is added to the variance.
        affine: whether there are weight and bias.
        bias: whether there is a bias in addition to the weight.
        running: whether there are running averages; without them inference normalises by the batch
            too.

    Example:
        >>> y = lm.BatchNorm()(lm.Input(3, 32, 32))
    """

    momentum: Annotated[float | None, OrNone(Number("[0, 1]"))] = 0.1
    epsilon: NotNegative = 1e-5
    affine: bool = True
    bias: bool = True
    running: bool = True

    @in_float32
    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        channels = _channels(self, x)
        averages = _averages(scope, channels) if self.running else None
        if averages is not None and not scope.training:
            return _by_averages(scope, x, averages, self)
        axes = [axis for axis in range(x.rank) if axis != 1]
        mean, variance = _mean(x, axes), ops.variance(x, axes)
        if averages is not None:
            count = ops.element_count(x, axes, x.dtype)
            unbiased = ops.where(count > 1, variance * (count / (count - 1)), averages[1])
            _move(scope, averages, (mean, unbiased), self.momentum)
        # The offset is zero. The gradient of the mean flows through it: -scale times the sum of the
        # output gradient. The bias needs that sum too, so the tensor is not read once more.
        scale, shift = _scale_and_shift(scope, self, variance, ops.stop_gradient(mean) - mean)
        shape = _along(x, [1])
        centred = x - ops.reshape(ops.stop_gradient(mean), shape)
        return centred * ops.reshape(scale, shape) + ops.reshape(shift, shape)


@frozen_dataclass(kw_only=True)
class LayerNorm(Layer):
    """(x - mean) / sqrt(variance + epsilon) * weight + bias, for each example and position.

    Mean and variance are over the given axes, for each coordinate of the others. After
    Ba, Kiros, Hinton: Layer normalization (2016). Its parameters are `weight` and `bias`, with the
    extents of the given axes in their order.

    Args:
        axes: axes of the tensor with its batch; the last one by default. For PyTorch's
            `normalized_shape` of k dimensions use the last k axes: `LayerNorm(axes=(-2, -1))` for
            two. `LayerNorm(axes=1)` normalises the channels of an image at each pixel.
        epsilon, affine, bias: the arguments of `BatchNorm`.

    Example:
        >>> y = lm.LayerNorm()(lm.Input(12, 64))
    """

    axes: _Axes = -1
    epsilon: NotNegative = 1e-5
    affine: bool = True
    bias: bool = True

    @in_float32
    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        axes = _axes_of(self, self.axes, x)
        y = _standardized(x, axes, self.epsilon)
        return _affine(scope, y, axes, bias=self.bias) if self.affine else y


@frozen_dataclass
class GroupNorm(Layer):
    """(x - mean) / sqrt(variance + epsilon) * weight + bias, for each example and group.

    Takes [batch, channels, ...]. Consecutive channels form groups of one size; mean and variance
    are over the channels of a group and all axes after them. After Wu, He: Group normalization
    (2018). Its parameters are `weight` and `bias`, (channels,).

    Args:
        groups: the number of groups; it divides the number of channels.
        epsilon, affine, bias: the arguments of `BatchNorm`.

    Example:
        >>> y = lm.GroupNorm(4)(lm.Input(32, 8, 8))
    """

    groups: Count
    _: KW_ONLY
    epsilon: NotNegative = 1e-5
    affine: bool = True
    bias: bool = True

    @in_float32
    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        _channels(self, x)
        split = ops.reshape(x, (x.shape[0], *grouped_channels(x, self.groups), *x.shape[2:]))
        y = ops.reshape(_standardized(split, range(2, split.rank), self.epsilon), x.shape)
        return _affine(scope, y, [1], bias=self.bias) if self.affine else y


@frozen_dataclass(kw_only=True)
class InstanceNorm(Layer):
    """(x - mean) / sqrt(variance + epsilon), for each example and channel.

    Takes [batch, channels, ...] with at least one axis after the channels; mean and variance are
    over these. After Ulyanov, Vedaldi, Lempitsky: Instance normalization (2016).

    Args:
        epsilon: a number that is added to the variance.
        affine: whether the result is multiplied with a parameter `weight` and added to a parameter
            `bias`, both (channels,).
        bias: whether there is a bias in addition to the weight.
        running: whether inference normalises by running averages, as `BatchNorm` does: the states
            `running_mean` and `running_variance` follow the means of the examples of each batch.
            Otherwise inference and training do the same.
        momentum: the share of each batch in the running averages, from 0 to 1.

    Example:
        >>> y = lm.InstanceNorm()(lm.Input(3, 32, 32))
    """

    epsilon: NotNegative = 1e-5
    affine: bool = False
    bias: bool = True
    running: bool = False
    momentum: Annotated[float, Number("[0, 1]")] = 0.1

    @in_float32
    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        channels = _channels(self, x)
        if x.rank < 3:
            raise ShapeError(
                "InstanceNorm needs axes after the channels",
                facts=(("expected", "[batch, channels, ...]"), ("found", described(x))),
                advice="The mean of a single value is the value itself; lm.LayerNorm() uses the "
                "mean over the features.",
            )
        axes = range(2, x.rank)
        if self.running:
            averages = _averages(scope, channels)
            if not scope.training:
                return _by_averages(scope, x, averages, self)
            count = ops.element_count(x, axes, x.dtype)
            unbiased = ops.variance(x, axes) * (count / ops.maximum(count - 1, 1))
            moments = ops.mean(ops.mean(x, axes), 0), ops.mean(unbiased, 0)
            _move(scope, averages, moments, self.momentum)
        y = _standardized(x, axes, self.epsilon)
        return _affine(scope, y, [1], bias=self.bias) if self.affine else y


@frozen_dataclass(kw_only=True)
class RMSNorm(Layer):
    """x / sqrt(mean(x^2) + epsilon) * weight, for each example and position.

    The mean is over the given axes. After Zhang, Sennrich: Root mean square layer normalization
    (2019). Its parameter is `weight`, with the extents of the given axes in their order.

    Args:
        axes: one or several axes of the tensor with its batch, as for `LayerNorm`.
        epsilon: the summand of the mean square; None for the machine epsilon of the float type, as
            in PyTorch.
        affine: whether there is a weight.

    Example:
        >>> y = lm.RMSNorm()(lm.Input(12, 64))
    """

    axes: _Axes = -1
    epsilon: NotNegative | None = None
    affine: bool = True

    @in_float32
    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        axes = _axes_of(self, self.axes, x)
        epsilon = x.dtype.epsilon if self.epsilon is None else self.epsilon
        square = ops.mean(x * x, axes, keepdims=True)
        y = x * ops.reciprocal(ops.sqrt(square + epsilon))
        return _affine(scope, y, axes, bias=False) if self.affine else y


@frozen_dataclass
class LocalResponseNorm(Layer):
    """x / (k + alpha mean(x^2))^beta, where the mean is over neighbouring channels.

    Takes f32 or f64 [batch, channels, ...] of any rank from 2 on. Beyond the first and the last
    channel x is zero, and these zeros count, as in PyTorch. After Krizhevsky, Sutskever, Hinton:
    ImageNet classification with deep convolutional neural networks (2012).

    Args:
        window: the number of channels of a mean: half of them, rounded down, come before.
        alpha, beta, k: the numbers of the formula.

    Example:
        >>> y = lm.LocalResponseNorm(5)(lm.Input(32, 8, 8))
    """

    window: Count
    _: KW_ONLY
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0

    @in_float32
    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        _channels(self, x)
        last = (0, *range(2, x.rank), 1)
        before, after = self.window // 2, (self.window - 1) // 2
        along = [ops.Window(self.window, before=before, after=after)]
        total = ops.window_sum(ops.transpose(x * x, last), along)
        total = ops.transpose(total, (0, x.rank - 1, *range(1, x.rank - 1)))
        return x * ops.pow(total * (self.alpha / self.window) + self.k, -self.beta)


# A mean and a variance for each channel.
_Pair = tuple[Tensor, Tensor]


def _averages(scope: Scope, channels: int) -> _Pair:
    """The running mean and the running variance of each channel."""
    mean = scope.state("running_mean", (channels,), Zeros())
    return mean, scope.state("running_variance", (channels,), Constant(1.0))


def _move(scope: Scope, averages: _Pair, statistics: _Pair, momentum: float | None) -> None:
    """Moves the running averages towards a batch; without momentum, to the mean of all."""
    share: Tensor | float
    if momentum is None:
        batches = scope.state("batches", (), Zeros(), dtype="int64") + 1
        scope.update("batches", batches)
        share = ops.reciprocal(ops.cast(batches, averages[0].dtype))
    else:
        share = momentum
    kept = 1.0 - share
    for name, old, new in zip(
        ("running_mean", "running_variance"), averages, statistics, strict=True
    ):
        scope.update(name, old * kept + new * share)


def _by_averages(
    scope: Scope, x: Tensor, averages: _Pair, layer: BatchNorm | InstanceNorm
) -> Tensor:
    """The normalisation in inference."""
    # There are one factor and one shift for each channel, so that it becomes the epilogue of the
    # contraction before it.
    (mean, variance), shape = averages, _along(x, [1])
    scale, shift = _scale_and_shift(scope, layer, variance, -mean)
    return x * ops.reshape(scale, shape) + ops.reshape(shift, shape)


def _scale_and_shift(
    scope: Scope, layer: BatchNorm | InstanceNorm, variance: Tensor, offset: Tensor
) -> _Pair:
    """For each channel weight / sqrt(variance + epsilon), and offset times this plus bias."""
    scale = ops.reciprocal(ops.sqrt(variance + layer.epsilon))
    if layer.affine:
        scale = scale * scope.parameter("weight", static(variance.shape), Constant(1.0))
    shift = offset * scale
    if layer.affine and layer.bias:
        shift = shift + scope.parameter("bias", static(variance.shape), Zeros())
    return scale, shift


def _standardized(x: Tensor, axes: Sequence[int], epsilon: float) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) along the axes."""
    variance = ops.variance(x, axes, keepdims=True)
    scale = ops.reciprocal(ops.sqrt(variance + epsilon))
    return (x - _mean(x, axes, keepdims=True)) * scale


def _mean(x: Tensor, axes: Sequence[int], *, keepdims: bool = False) -> Tensor:
    """The mean along the axes; for equal values it is exactly that value."""
    # A plain mean has a rounding error. In a constant channel all deviations would equal that
    # error, and normalisation would magnify it, also in gradients that should be zero. The mean of
    # the deviations corrects it (Chan, Golub, LeVeque: Algorithms for computing the sample
    # variance, 1983). The pass that computes the variance also sums the deviations.
    mean = ops.mean(x, axes, keepdims)
    deviations = x - ops.stop_gradient(ops.mean(x, axes, keepdims=True))
    rest = ops.mean(deviations, axes, keepdims)
    return mean + ops.stop_gradient(rest)


def _affine(scope: Scope, x: Tensor, axes: Sequence[int], *, bias: bool = True) -> Tensor:
    """x weight + bias, with parameters of the extents of these axes."""
    extents, shape = static(tuple(x.shape[axis] for axis in axes)), _along(x, axes)
    y = x * ops.reshape(scope.parameter("weight", extents, Constant(1.0)), shape)
    return y if not bias else y + ops.reshape(scope.parameter("bias", extents, Zeros()), shape)


def _along(x: Tensor, axes: Sequence[int]) -> list[int]:
    """The shape of x, with extent 1 for all axes except these."""
    extents = static(tuple(x.shape[axis] for axis in axes))
    lengths = dict(zip(axes, extents, strict=True))
    return [lengths.get(axis, 1) for axis in range(x.rank)]


def _channels(layer: Layer, x: Tensor) -> int:
    """The number of channels; ShapeError if there is no such axis, DTypeError for integers."""
    advice = "Axis 1 holds the channels, or the features if there is no other axis."
    require_channels(layer, x, advice)
    require_float(layer, x)
    (channels,) = static(x.shape[1:2])
    return channels


def _axes_of(layer: Layer, axes: int | Sequence[int], x: Tensor) -> list[int]:
    """The axes counted from the front, in rising order: each once, and without the batch."""
    require_float(layer, x)
    listed = [axes] if isinstance(axes, int) else axes
    counted = sorted(axis_within_example(layer, axis, x) for axis in listed)
    if len(set(counted)) < len(counted):
        raise ShapeError(
            f"{type(layer).__name__} names an axis twice",
            facts=(("axes", str(tuple(listed))), ("found", described(x))),
            advice="Name each axis once; negative ones count from the end.",
        )
    return counted
