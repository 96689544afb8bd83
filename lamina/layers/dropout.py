"""Layers that draw random numbers while training, and none in inference: dropout, noise."""

from __future__ import annotations

from dataclasses import KW_ONLY

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Shape
from lamina.checks.kinds import NotNegative, Probability
from lamina.errors import ShapeError
from lamina.graph import Tensor, described
from lamina.layers.checks import require_channels, require_float
from lamina.layers.layer import Layer
from lamina.layers.scope import Scope, in_float32

__all__ = ["AlphaDropout", "DropPath", "Dropout", "GaussianNoise", "GaussianSample"]
__all__ += ["SpatialDropout"]


@frozen_dataclass
class Dropout(Layer):
    """Sets elements to zero at random while training; does nothing in inference.

    Takes f32 or f64 of any shape. The elements that stay are divided by the probability to stay
    ("inverted dropout"), so that the expected value is the same. The mask is a function of seed,
    training step and coordinates; the backward pass computes it again instead of storing it. After
    Srivastava, Hinton, Krizhevsky, Sutskever, Salakhutdinov: Dropout (JMLR 15, 2014).

    Args:
        probability: the probability of an element to become zero; 1 gives zeros while training.

    Example:
        >>> lm.Dropout(0.5)(lm.Input(100)).shape
        (batch, 100)
    """

    probability: Probability

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return _dropped(scope, x, x.shape, self.probability)


@frozen_dataclass
class SpatialDropout(Layer):
    """Sets whole channels to zero at random while training; does nothing in inference.

    Takes f32 or f64 [batch, channels, ...]. It is meant for images: their neighbouring pixels are
    nearly equal, so dropping single pixels would remove little information. The channels that stay
    are divided by the probability to stay. After Tompson, Goroshin, Jain, LeCun, Bregler: Efficient
    object localization using convolutional networks (2015).

    Args:
        probability: the probability of a channel to become zero.

    Example:
        >>> y = lm.SpatialDropout(0.2)(lm.Input(16, 8, 8))
    """

    probability: Probability

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        shape = _shape_of_channels(self, x)
        require_float(self, x)
        return _dropped(scope, x, shape, self.probability)


@frozen_dataclass
class AlphaDropout(Layer):
    """Dropout that keeps mean 0 and variance 1, for networks of `SELU`; nothing in inference.

    Takes f32 or f64 of any shape. Elements that are dropped get the value to which SELU saturates,
    -1.758; a factor and an offset restore mean and variance. After Klambauer, Unterthiner, Mayr,
    Hochreiter: Self-normalizing neural networks (2017).

    Args:
        probability: the probability of an element to be dropped.
        whole_channels: whether whole channels are dropped, of [batch, channels, ...].

    Example:
        >>> y = lm.AlphaDropout(0.1)(lm.SELU()(lm.Input(100)))
    """

    probability: Probability
    _: KW_ONLY
    whole_channels: bool = False

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        require_float(self, x)
        shape = _shape_of_channels(self, x) if self.whole_channels else x.shape
        if not scope.training or not self.probability:
            return x
        stay = 1.0 - self.probability
        if not stay:
            return x * 0.0
        factor = (stay + _SATURATED**2 * stay * self.probability) ** -0.5
        offset = -factor * _SATURATED * self.probability
        stays = scope.bernoulli(shape, stay)
        return (x * stays + (1 - stays) * _SATURATED) * factor + offset


# The limit of SELU at minus infinity: -scale * alpha.
_SATURATED = -1.7580993408473766


def _shape_of_channels(layer: Layer, x: Tensor) -> Shape:
    """The shape of a mask with one element for each channel."""
    require_channels(layer, x, "Axis 1 holds the channels; lm.Dropout takes any shape.")
    return (*x.shape[:2], *(1,) * (x.rank - 2))


@frozen_dataclass
class DropPath(Layer):
    """Sets whole examples to zero at random while training; does nothing in inference.

    Takes f32 or f64 [batch, ...]. At the end of a residual branch, before the sum, it skips the
    branch for some examples ("stochastic depth"). The examples that stay are divided by the
    probability to stay. After Huang, Sun, Liu, Sedra, Weinberger: Deep networks with stochastic
    depth (2016).

    Args:
        probability: the probability of an example to become zero.

    Example:
        >>> x = lm.Input(10)
        >>> y = x + lm.DropPath(0.1)(lm.Linear(10)(x))
    """

    probability: Probability

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        require_float(self, x)
        return _dropped(scope, x, (x.shape[0], *(1,) * (x.rank - 1)), self.probability)


@frozen_dataclass
class GaussianNoise(Layer):
    """Adds normally distributed random numbers while training; does nothing in inference.

    Takes f32 or f64 of any shape. As in Bishop: Training with noise is equivalent to Tikhonov
    regularization (1995).

    Args:
        deviation: the standard deviation of the numbers, whose mean is 0.

    Example:
        >>> y = lm.GaussianNoise(0.1)(lm.Input(100))
    """

    deviation: NotNegative

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        require_float(self, x)
        if not scope.training or self.deviation == 0:
            return x
        return x + scope.normal(x.shape, deviation=self.deviation)


@frozen_dataclass
class GaussianSample(Layer):
    """A sample of each normal distribution while training; its mean in inference.

    Takes mean and logarithm of the variance, f32 or f64 of one shape. The result is
    mean + deviation * noise, so that gradients reach both ("reparametrisation"). After Kingma,
    Welling: Auto-encoding variational Bayes (2014), section 2.4.

    Example:
        >>> mean, log_variance = lm.Linear(8)(lm.Input(20)), lm.Linear(8)(lm.Input(20))
        >>> code = lm.GaussianSample()(mean, log_variance)
    """

    @in_float32
    def forward(self, scope: Scope, mean: Tensor, log_variance: Tensor) -> Tensor:
        if mean.shape != log_variance.shape:
            raise ShapeError(
                "GaussianSample needs a variance for each mean",
                facts=(("mean", described(mean)), ("log_variance", described(log_variance))),
                advice="Make both by layers of the same width.",
            )
        require_float(self, mean)
        require_float(self, log_variance)
        if not scope.training:
            return mean
        return mean + ops.exp(0.5 * log_variance) * scope.normal(mean.shape)


def _dropped(scope: Scope, x: Tensor, mask_shape: Shape, probability: float) -> Tensor:
    """x times a random mask of 0 and 1 / (1 - probability), broadcast from `mask_shape`."""
    if not scope.training or probability == 0:
        return x
    return x * dropout_factors(scope, mask_shape, probability)


def dropout_factors(scope: Scope, shape: Shape, probability: float) -> Tensor:
    """A random mask of 0 and 1 / (1 - probability); zeros for the probability 1."""
    stay = 1.0 - probability
    return scope.bernoulli(shape, stay) * (1.0 / stay if stay else 0.0)
