"""Initial values of parameters, public as `lamina.init`.

An initializer is a frozen record that is called with (shape, seed, stream) and gives a float64
array. Its random numbers come from the counter generator (`lamina.program.philox`), so that a
network starts with the same weights on every machine and engine; the stream is the number of the
parameter in its network.

Weights have the axes (outputs, inputs, *window). fan_in is the number of products that are summed
in one output, inputs times the size of the window. fan_out is the number of products of one input,
outputs times the size of the window.

An argument of another kind is a `DefinitionError`. So is a shape without inputs and outputs, if the
values depend on the fans.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, int64, shape_text, size_of
from lamina.checks.kinds import NotNegative, Positive, Row, Whole
from lamina.errors import DefinitionError, names_known
from lamina.graph import Graph, constant, evaluate
from lamina.layers.checks import Sourced, crossed
from lamina.program.philox import philox_in_64_bits

Float64 = npt.NDArray[np.float64]
Extents = Annotated[tuple[int, ...], Row(Whole(0), example="(10, 3)")]
Stream = Annotated[int, Whole(0)]
Mode = Literal["fan_in", "fan_out"]
Nonlinearity = Literal["linear", "sigmoid", "tanh", "relu", "leaky_relu", "selu"]


@frozen_dataclass
class Zeros(Sourced):
    """All elements 0.

    Example:
        >>> lm.init.Zeros()((3,), seed=0, stream=0)
        array([0., 0., 0.])
    """

    def __call__(self, shape: Extents, seed: int, stream: Stream) -> Array:
        return np.zeros(shape)


@frozen_dataclass
class Constant(Sourced):
    """All elements the same number.

    Args:
        value: the number.

    Example:
        >>> lm.init.Constant(0.5)((2,), seed=0, stream=0)
        array([0.5, 0.5])
    """

    value: float

    def __call__(self, shape: Extents, seed: int, stream: Stream) -> Array:
        return np.full(shape, float(self.value))


@frozen_dataclass
class Uniform(Sourced):
    """Random numbers, evenly from low (included) to high.

    Args:
        low: the lower bound.
        high: the upper bound.

    Example:
        >>> weight = lm.init.Uniform(-0.1, 0.1)((10, 784), seed=0, stream=0)
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise crossed(self, "low must not be above high", "low <= high")

    def __call__(self, shape: Extents, seed: int, stream: Stream) -> Array:
        return _scaled(_uniform(shape, seed, stream), self.high - self.low, self.low)


@frozen_dataclass
class RandomSigns(Sourced):
    """1 or -1, each in half of the cases.

    Example:
        >>> scale = lm.init.RandomSigns()((32, 64), seed=0, stream=0)
    """

    def __call__(self, shape: Extents, seed: int, stream: Stream) -> Array:
        return np.where(_uniform(shape, seed, stream) < 0.5, -1.0, 1.0)


@frozen_dataclass(kw_only=True)
class Normal(Sourced):
    """Normally distributed random numbers.

    Args:
        mean: the mean of the distribution.
        deviation: the standard deviation of the distribution.

    Example:
        >>> weight = lm.init.Normal(deviation=0.02)((10, 784), seed=0, stream=0)
    """

    mean: float = 0.0
    deviation: NotNegative = 1.0

    def __call__(self, shape: Extents, seed: int, stream: Stream) -> Array:
        return _scaled(_normal(shape, seed, stream), self.deviation, self.mean)


@frozen_dataclass(kw_only=True)
class _Xavier(Sourced):
    gain: Positive = 1.0


@frozen_dataclass
class XavierUniform(_Xavier):
    """U(-b, b) with b = gain sqrt(6 / (fan_in + fan_out)).

    From Glorot, Bengio: Understanding the difficulty of training deep feedforward neural networks
    (AISTATS 2010), formula 16.

    Args:
        gain: a factor for the nonlinearity that follows.

    Example:
        >>> layer = lm.Linear(10, weight_init=lm.init.XavierUniform())
    """

    def __call__(self, shape: Extents, seed: int, stream: Stream) -> Array:
        bound = self.gain * math.sqrt(6.0 / sum(_fans(self, shape)))
        return _scaled(_scaled(_uniform(shape, seed, stream), 2.0, -1.0), bound)


@frozen_dataclass
class XavierNormal(_Xavier):
    """N(0, s^2) with s = gain sqrt(2 / (fan_in + fan_out)).

    From Glorot, Bengio (AISTATS 2010), formula 12, as a normal distribution.

    Args:
        gain: a factor for the nonlinearity that follows.

    Example:
        >>> layer = lm.Linear(10, weight_init=lm.init.XavierNormal(gain=5 / 3))
    """

    def __call__(self, shape: Extents, seed: int, stream: Stream) -> Array:
        deviation = self.gain * math.sqrt(2.0 / sum(_fans(self, shape)))
        return _scaled(_normal(shape, seed, stream), deviation)


@frozen_dataclass(kw_only=True)
class _Kaiming(Sourced):
    mode: Mode = "fan_in"
    slope: float = 0.0
    nonlinearity: Nonlinearity = "leaky_relu"


@frozen_dataclass
class KaimingUniform(_Kaiming):
    """U(-b, b) with b = gain sqrt(3 / fan).

    From He, Zhang, Ren, Sun: Delving deep into rectifiers (ICCV 2015), formulas 10 and 14, with
    the variance of a uniform distribution.

    Args:
        mode: `"fan_in"` keeps the variance in the forward pass, `"fan_out"` in the backward pass.
        slope: the slope below 0 of the leaky ReLU that follows; 0 for a ReLU. PyTorch's `a`.
        nonlinearity: the function after the layer; it sets the gain, sqrt(2 / (1 + slope^2)) for
            `"leaky_relu"`.

    Example:
        >>> layer = lm.Linear(10, weight_init=lm.init.KaimingUniform())
    """

    def __call__(self, shape: Extents, seed: int, stream: Stream) -> Array:
        bound = math.sqrt(3.0) * _kaiming_deviation(self, shape)
        return _scaled(_scaled(_uniform(shape, seed, stream), 2.0, -1.0), bound)


@frozen_dataclass
class KaimingNormal(_Kaiming):
    """N(0, s^2) with s = gain / sqrt(fan).

    From He, Zhang, Ren, Sun: Delving deep into rectifiers (ICCV 2015), formulas 10 and 14.

    It takes the arguments of `KaimingUniform`.

    Example:
        >>> layer = lm.Linear(10, weight_init=lm.init.KaimingNormal(nonlinearity="relu"))
    """

    def __call__(self, shape: Extents, seed: int, stream: Stream) -> Array:
        return _scaled(_normal(shape, seed, stream), _kaiming_deviation(self, shape))


@frozen_dataclass(kw_only=True)
class Orthogonal(Sourced):
    """A random matrix with orthonormal rows (or columns, if it has fewer), times a gain.

    From Saxe, McClelland, Ganguli: Exact solutions to the nonlinear dynamics of learning in deep
    linear neural networks (2014). Axes after the first count as one. The signs are set so that
    all orthogonal matrices are equally likely: Mezzadri, How to generate random matrices from the
    classical compact groups (2007). The last bits depend on NumPy's linear algebra library.

    Args:
        gain: the length of the rows.

    Example:
        >>> q = lm.init.Orthogonal()((2, 2), seed=0, stream=0)
    """

    gain: Positive = 1.0
    # Two work arrays of LAPACK, the random numbers, Q, and Q times its signs.
    arrays_while_drawn = 5

    def __call__(self, shape: Extents, seed: int, stream: Stream) -> Array:
        _fans(self, shape)
        rows, columns = shape[0], size_of(shape[1:])
        tall = _normal((max(rows, columns), min(rows, columns)), seed, stream)
        q, r = np.linalg.qr(tall)
        q = q * np.where(np.diagonal(r) < 0, -1.0, 1.0)
        return (self.gain * (q if rows >= columns else q.T)).reshape(shape)


def _fans(owner: object, shape: tuple[int, ...]) -> tuple[int, int]:
    """(fan_in, fan_out) of a weight (outputs, inputs, *window)."""
    if len(shape) < 2:
        raise DefinitionError(
            f"{type(owner).__name__} needs a weight with inputs and outputs",
            facts=(("expected", "(outputs, inputs, ...)"), ("found", shape_text(shape))),
            advice="Use init.Zeros(), init.Uniform(low, high) or init.Normal(deviation=0.01).",
        )
    window = size_of(shape[2:])
    return shape[1] * window, shape[0] * window


def _kaiming_deviation(owner: _Kaiming, shape: tuple[int, ...]) -> float:
    # The gains of PyTorch's calculate_gain.
    gains = {
        "linear": 1.0,
        "sigmoid": 1.0,
        "tanh": 5.0 / 3.0,
        "relu": math.sqrt(2.0),
        "leaky_relu": math.sqrt(2.0 / (1.0 + owner.slope**2)),
        "selu": 0.75,
    }
    fan_in, fan_out = _fans(owner, shape)
    fan = fan_in if owner.mode == "fan_in" else fan_out
    return gains[owner.nonlinearity] / math.sqrt(max(fan, 1))


# Numbers are drawn in pieces of so many elements. The random generator takes the number of a
# training step, from 0 on. A piece takes a negative one.
_PIECE = 1 << 13
# The pieces that are drawn at once: their intermediate results stay in the cache.
_AT_ONCE = 4


def _uniform(shape: tuple[int, ...], seed: int, stream: int) -> Float64:
    """Numbers in [0, 1) of 53 random bits each: the numbers of `ops.uniform`, computed faster."""
    result = np.empty(size_of(shape))
    for start in range(0, result.size, _AT_ONCE * _PIECE):
        _draw(result[start : start + _AT_ONCE * _PIECE], start // _PIECE, seed, stream)
    return result.reshape(shape)


def _draw(numbers: Float64, first: int, seed: int, stream: int) -> None:
    """Fills an array with the numbers of the pieces `first`, `first` + 1, ..."""
    # A block of the generator gives two numbers.
    piece, block = np.divmod(np.arange(-(-numbers.size // 2), dtype=np.int64), _PIECE // 2)
    number = -1 - first - piece
    streams = np.full_like(block, stream & 0xFFFFFFFF)
    words = (number & 0xFFFFFFFF, (number >> 32) & 0xFFFFFFFF, streams)
    key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
    drawn = philox_in_64_bits((block, *words), key)
    for position, (high, low) in enumerate((drawn[:2], drawn[2:])):
        # res53 of Matsumoto and Nishimura's mt19937ar.c (2002): 27 bits and 26 bits.
        bits = (high >> np.uint64(5) << np.uint64(26)) + (low >> np.uint64(6))
        half = numbers[position::2]
        np.multiply(bits[: half.size], 2.0**-53, out=half)


def _normal(shape: tuple[int, ...], seed: int, stream: int) -> Float64:
    """Numbers of the standard normal distribution: the numbers of `ops.normal` in float64."""
    result = np.empty(size_of(shape))
    for number, start in enumerate(range(0, result.size, _PIECE)):
        piece = result[start : start + _PIECE]
        keys = constant(seed, int64), constant(-1 - number, int64), stream
        numbers = ops.normal((piece.size,), *keys, dtype="float64")
        outputs, _ = evaluate(Graph((), (("numbers", numbers),)), {})
        piece[:] = outputs["numbers"]
    return result.reshape(shape)


def _scaled(numbers: Float64, factor: float, offset: float | None = None) -> Float64:
    """Factor * numbers + offset, in place: no second copy of large weights."""
    numbers *= factor
    if offset is not None:
        numbers += offset
    return numbers


names_known(__name__)
