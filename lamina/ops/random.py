"""Random numbers by Philox 4x32-10, from a seed, a training step, a stream and an element's number.

Each element is computed from the counter alone (`lamina.program.philox`), so masks and noise are
the same on every engine and are never stored: the backward pass computes them again.

Each distribution is defined once, as a scalar expression. Engines compile it, and the reference
here evaluates the same expression with NumPy. All its primitives are exactly rounded, so that all
engines give the same bits (engines must not contract multiply-add pairs).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from lamina.base.shapes import (
    Array,
    Dim,
    DType,
    DTypeLike,
    Shape,
    bool_,
    float32,
    float64,
    int64,
    size_of,
    static,
    uint32,
)
from lamina.checks.kinds import ElementType, Extent, Kind, Number, Whole
from lamina.errors import DefinitionError, DTypeError, ShapeError
from lamina.graph import Attributes, Op, Sample, Tensor, TensorLike, described
from lamina.graph.attributes import AnyNumber, Many
from lamina.ops.arguments import as_tensor, dtype_of, read, shape_of
from lamina.ops.conversion import cast
from lamina.ops.factories import applied
from lamina.ops.lowering_rules import Coordinates, Generator, Pull
from lamina.ops.records import Given, Operands, decorating
from lamina.program.index import flatten
from lamina.program.philox import random_bits
from lamina.program.scalar import Apply, Literal, Local, Position, Scalar, postorder

__all__ = ["bernoulli", "normal", "uniform"]

# Scalar expressions -------------------------------------------------------------------------------


def _rounded(primitive: str, *operands: Scalar | float, dtype: DType | None = None) -> Scalar:
    """A primitive on numbers that are rounded here, so that no engine rounds them differently."""
    dtypes = (x.dtype for x in reversed(operands) if not isinstance(x, int | float))
    round_to = (dtype or next(dtypes)).numpy.type
    arguments = (round_to(x).item() if isinstance(x, int | float) else x for x in operands)
    return applied(primitive, *arguments, dtype=dtype)


_add, _subtract, _multiply, _divide, _less, _select = (
    partial(_rounded, primitive)
    for primitive in ("add", "subtract", "multiply", "divide", "less", "select")
)


def _polynomial(x: Scalar, coefficients: Sequence[Scalar | float]) -> Scalar:
    """By Horner's rule; the constant coefficient comes first."""
    result = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        result = _add(_multiply(result, x), coefficient)
    assert isinstance(result, Scalar)
    return result


def _top_bits(word: Scalar, dropped: int, dtype: DType) -> Scalar:
    return Apply("cast", (applied("shift_right", word, dropped),), dtype)


# The distributions --------------------------------------------------------------------------------

# The number of 32-bit words for an element of a dtype.
_WORDS = {float32: 1, float64: 2}


def _whole(words: Sequence[Scalar]) -> Scalar:
    """A random whole number as a float: 24 bits for one word, 53 for two; exact."""
    if len(words) == 1:
        return _top_bits(words[0], 8, float32)
    high, low = _top_bits(words[0], 5, float64), _top_bits(words[1], 6, float64)
    return _add(_multiply(high, 2.0**26), low)


def _uniform(words: Sequence[Scalar]) -> Scalar:
    return _multiply(_whole(words), 2.0**-24 if len(words) == 1 else 2.0**-53)


def _centred(words: Sequence[Scalar], scale: float) -> Scalar:
    """(2 k + 1 - 2**bits) * scale for a random whole number k of that many bits; exact."""
    middle = 2.0**23 if len(words) == 1 else 2.0**52
    odd = _add(_multiply(_subtract(_whole(words), middle), 2.0), 1.0)
    return _multiply(odd, scale)


def _binary_parts(x: Scalar, largest: int) -> tuple[Scalar, Scalar]:
    """(m, e) with x = m * 2**-e and 0.5 <= m, for 2**-(2 * largest) <= x <= 1."""
    exponent: Scalar = Literal(0.0, x.dtype)
    step = largest
    while step:
        small = _less(x, 2.0**-step)
        x = _select(small, _multiply(x, 2.0**step), x)
        exponent = _select(small, _add(exponent, step), exponent)
        step //= 2
    return x, exponent


# log(m) in powers of m - 0.75, interpolated at Chebyshev nodes of [0.5, 1]: error below 4e-8.
_LOG_SINGLE = (
    *(-0.2876820724517809, 1.3333323510867385, -0.8888877055516904, 0.7903315635928668),
    *(-0.790374138068832, 0.8310333472803244, -0.9222753853317072, 1.3104870084337557),
    -1.5376908910446312,
)


def _minus_log_single(x: Scalar) -> Scalar:
    m, exponent = _binary_parts(x, 16)
    fraction = _polynomial(_subtract(m, 0.75), _LOG_SINGLE)
    return _subtract(_multiply(exponent, math.log(2)), fraction)


# The standard normal quantile of (1 + x) / 2, divided by x, in powers of w - 2.5 for
# w = -log(1 - x * x) in [0, 5], and of w - 10.5 for w in [5, 16]: relative error below 5e-8. The
# variable is from Giles, Approximating the erfinv function (GPU Computing Gems, 2010); the
# coefficients are interpolated at Chebyshev nodes with 40 digits.
_CENTRE = (
    *(2.12331343, 0.34880203, -0.00590772554, -0.00177162269, 0.00030879266),
    *(-7.03206342e-06, -4.89881495e-06, 6.62037678e-07, 3.3002042e-08, -1.26316513e-08),
)
_TAIL = (
    *(4.34758377, 0.219342679, -0.00503816269, 0.000219910333, -1.07178485e-05),
    *(4.35658478e-07, -6.30591046e-09, -2.77831069e-09, 7.04003633e-10, -5.52634917e-11),
)


def _normal_single(words: Sequence[Scalar]) -> Scalar:
    x = _centred(words, 2.0**-24)
    w = _minus_log_single(_multiply(_subtract(1.0, x), _add(x, 1.0)))
    central = _less(w, 5.0)
    shift = _select(central, 2.5, 10.5, dtype=float32)
    rows = zip(_CENTRE, _TAIL, strict=True)
    coefficients = [_select(central, *row, dtype=float32) for row in rows]
    return _multiply(x, _polynomial(_subtract(w, shift), coefficients))


def _minus_log_double(x: Scalar) -> Scalar:
    m, exponent = _binary_parts(x, 32)
    # m in [0.5, 1] is scaled to [0.707, 1.414], where few terms of the series of
    # log((1 + s) / (1 - s)) suffice: 2 * (s + s**3 / 3 + s**5 / 5 + ..).
    small = _less(m, math.sqrt(0.5))
    m = _select(small, _multiply(m, 2.0), m)
    exponent = _select(small, _add(exponent, 1), exponent)
    s = _divide(_subtract(m, 1.0), _add(m, 1.0))
    series = _polynomial(_multiply(s, s), [2.0 / (2 * k + 1) for k in range(12)])
    return _subtract(_multiply(exponent, math.log(2)), _multiply(s, series))


# Numerators and denominators of the normal quantile in three ranges: Wichura, Algorithm AS 241: the
# percentage points of the normal distribution (Applied Statistics 37, 1988), PPND16.
_QUANTILE = (
    (
        *(3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3),
        *(1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4),
        *(3.3430575583588128105e4, 2.5090809287301226727e3),
    ),
    (
        *(1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3),
        *(2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4),
        5.2264952788528545610e3,
    ),
    (
        *(1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0),
        *(3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1),
        *(2.27238449892691845833e-2, 7.74545014278341407640e-4),
    ),
    (
        *(1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1),
        *(1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4),
        1.05075007164441684324e-9,
    ),
    (
        *(6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0),
        *(2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3),
        *(2.71155556874348757815e-5, 2.01033439929228813265e-7),
    ),
    (
        *(1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2),
        *(7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7),
        2.04426310338993978564e-15,
    ),
)


def _normal_double(words: Sequence[Scalar]) -> Scalar:
    q = _centred(words, 2.0**-54)
    negative = _less(q, 0.0)
    size = _select(negative, _subtract(0.0, q), q)
    tail = _subtract(0.5, size)
    root = Apply("square_root", (_minus_log_double(tail),), float64)
    central, middle = _less(size, 0.425), _less(root, 5.0)
    outside = _subtract(root, _select(middle, 1.6, 5.0, dtype=float64))
    r = _select(central, _subtract(0.180625, _multiply(q, q)), outside)

    def quotient(numerator: int) -> Scalar:
        tables = _QUANTILE[numerator], _QUANTILE[numerator + 2], _QUANTILE[numerator + 4]
        coefficients = [
            _select(central, a, _select(middle, b, c, dtype=float64))
            for a, b, c in zip(*tables, strict=True)
        ]
        return _polynomial(r, coefficients)

    value = _divide(quotient(0), quotient(1))
    outer = _select(negative, _subtract(0.0, value), value)
    return _select(central, _multiply(q, value), outer)


# Computing them with NumPy ------------------------------------------------------------------------

_NUMPY: Mapping[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "square_root": np.sqrt,
    "less": np.less,
    "select": np.where,
    "shift_right": np.right_shift,
}


def _computed(root: Scalar, leaves: Mapping[Scalar, Array]) -> Array:
    """The value of an expression, primitive by primitive."""
    values: dict[Scalar, Array] = dict(leaves)
    for scalar in postorder(root):
        if isinstance(scalar, Literal):
            values[scalar] = np.asarray(scalar.value, scalar.dtype.numpy)
        elif isinstance(scalar, Apply):
            operands = [values[operand] for operand in scalar.operands]
            if scalar.primitive == "cast":
                values[scalar] = operands[0].astype(scalar.dtype.numpy)
            else:
                values[scalar] = np.asarray(_NUMPY[scalar.primitive](*operands))
    return values[root]


def _infer_random(operands: tuple[Tensor, ...], attributes: Attributes) -> tuple[Shape, DType]:
    for name, x in zip(("seed", "step"), operands, strict=True):
        if x.shape != () or x.dtype != int64:
            raise ShapeError(
                f"the {name} of random numbers must be one int64 number",
                facts=(("expected", "i64[]"), ("found", described(x))),
                advice="Layers get both from scope.uniform, scope.normal and scope.bernoulli.",
            )
    return attributes["shape"], attributes["dtype"]


Words = Sequence[Scalar]
# (words, attributes) -> the random value
Distribution = Callable[[Words, Attributes], Scalar]


def _random_op(
    name: str,
    distribution: Distribution,
    dtypes: Sequence[DType],
    float_type: Callable[[Attributes], DType],
    attributes: Mapping[str, Kind],
    **parameters: float,
) -> Op:
    """An op that draws numbers; its samples have these dtypes and parameters."""

    def scalar(node: Tensor, coordinates: Coordinates, pull: Pull) -> Scalar:
        count = _WORDS[float_type(node.attributes)]
        first = flatten(coordinates, static(node.shape)) * count
        stream = Literal(node.attributes["stream"], int64)
        seed, step = pull(0, ()), pull(1, ())
        words = [
            Apply("random_bits", (seed, step, Position(first + number), stream), uint32)
            for number in range(count)
        ]
        return distribution(words, node.attributes)

    def reference(seed: Array, step: Array, **attributes: Any) -> Array:
        count = _WORDS[float_type(attributes)]
        shape: tuple[int, ...] = attributes["shape"]
        first = np.arange(size_of(shape), dtype=np.int64) * count
        words = [Local(f"word{number}", uint32) for number in range(count)]
        bits: dict[Scalar, Array] = {
            word: random_bits(int(seed), int(step), first + number, attributes["stream"])
            for number, word in enumerate(words)
        }
        return _computed(distribution(words, attributes), bits).reshape(shape)

    kinds = {"shape": Many(Extent()), "stream": Whole(), **attributes}
    common = {"stream": 3, **parameters}
    samples = tuple(
        Sample(
            *(((), ()), {"shape": shape, "dtype": dtype, **common}, 0, 1000, ("int64", "int64")),
            differentiable=False,
        )
        for dtype in dtypes
        for shape in ((3, 5), (), (2, 1, 7), (0, 3))
    )
    rules = (_infer_random, None, reference, Generator(scalar), samples)
    return Op(name, *rules, operands=2, attributes=kinds)


def _own_dtype(attributes: Attributes) -> DType:
    """The type in which numbers are drawn: of 16 bits they are rounded float32 numbers."""
    dtype: DType = attributes["dtype"]
    return float32 if dtype.is_half else dtype


def _counters(seed: TensorLike, step: TensorLike) -> Operands:
    return cast(as_tensor(seed), int64), cast(as_tensor(step), int64)


def _float_dtype(dtype: DTypeLike) -> DType:
    float_type = dtype_of(dtype)
    if not float_type.is_float:
        raise DTypeError(
            "random numbers of this distribution are floats",
            facts=(("expected", "a float type"), ("found", float_type.name)),
            advice="Draw floats and convert them with ops.cast.",
        )
    return float_type


_drawn = decorating(_random_op)
_FLOATS = ((float32, float64), _own_dtype, {"dtype": ElementType(("float",))})


@_drawn(lambda words, _: _uniform(words), *_FLOATS)
def uniform(
    shape: int | Sequence[Dim],
    seed: TensorLike,
    step: TensorLike,
    stream: int,
    dtype: DTypeLike = float32,
) -> Given:
    """Random numbers from 0 to below 1: 24 random bits in float32, 53 in float64.

    Args:
        shape: the shape of the result.
        seed: an int64 number, the same for a whole training.
        step: an int64 number that differs between training steps.
        stream: a number that differs between the ops of a network that draw random numbers.
        dtype: a float type; numbers of 16 bits are rounded float32 numbers.
    """
    return *_counters(seed, step), shape_of(shape), stream, _float_dtype(dtype)


@_drawn(
    lambda words, _: _normal_single(words) if len(words) == 1 else _normal_double(words), *_FLOATS
)
def normal(
    shape: int | Sequence[Dim],
    seed: TensorLike,
    step: TensorLike,
    stream: int,
    dtype: DTypeLike = float32,
) -> Given:
    """Random numbers of the standard normal distribution; arguments as for `uniform`.

    The quantile function of a uniform number: in float32 accurate to about 1e-6, up to 5.4
    standard deviations; in float64 to about 1e-15, up to 8.3.
    """
    return *_counters(seed, step), shape_of(shape), stream, _float_dtype(dtype)


def _bernoulli(words: Words, attributes: Attributes) -> Scalar:
    chosen = _less(_uniform(words), attributes["p"])
    dtype: DType = attributes["dtype"]
    return chosen if dtype == bool_ else Apply("cast", (chosen,), dtype)


@_drawn(
    *(_bernoulli, (bool_, float32, float64)),
    lambda _: float32,
    {"p": Number("[0, 1]"), "dtype": ElementType()},
    p=0.3,
)
def bernoulli(
    shape: int | Sequence[Dim],
    p: float,
    seed: TensorLike,
    step: TensorLike,
    stream: int,
    dtype: DTypeLike = bool_,
) -> Given:
    """True (1) with probability p, else false (0); the other arguments as for `uniform`.

    The choice is the same for every dtype.
    """
    p = read("p", AnyNumber(), p)
    if not 0 <= p <= 1:
        raise DefinitionError(
            "p must be a probability",
            facts=(("expected", "0 <= p <= 1"), ("found", str(p))),
            advice="For dropout, p is the share of elements that are kept.",
        )
    return *_counters(seed, step), shape_of(shape), stream, float(p), dtype_of(dtype)
