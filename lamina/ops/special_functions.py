"""The logarithm of the gamma function and its derivatives, and the inverse of the error function.

Formulas of elementwise functions. The constants are computed here: zeta's values and Bernoulli's
numbers (Abramowitz and Stegun, Handbook of mathematical functions, 1964, 6.1 to 6.4 and 23).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache, reduce
from operator import mul

import numpy as np

from lamina.base.shapes import Array, as_dtype, float64
from lamina.checks import checked_as_given as checked
from lamina.checks.kinds import Whole
from lamina.graph import Graph, Samples, Tensor, TensorLike, evaluate, leaf
from lamina.ops import basic as ops
from lamina.ops.conversion import floating
from lamina.ops.factories import elementwise, elementwise_samples, unary
from lamina.ops.records import Given

__all__ = ["digamma", "erfinv", "lgamma", "polygamma"]

_RANGES = ((0.1, 3.0), (2.0, 40.0), (-3.9, -3.1))
# Stirling's series is used from here on.
_LARGE = 8
# The highest derivative of `digamma` in `polygamma`.
_MOST = 64


@cache
def _bernoulli(count: int) -> list[Fraction]:
    """B2, B4, ..., by their recurrence."""
    numbers = [Fraction(1)]
    for n in range(1, 2 * count + 1):
        total = sum(math.comb(n + 1, k) * number for k, number in enumerate(numbers))
        numbers.append(-Fraction(total) / (n + 1))
    return numbers[2::2]


@cache
def _zeta_above_one(s: int) -> float:
    """zeta(s) - 1, by Euler's and Maclaurin's formula from 128 on."""
    n = 128.0
    tail = n ** (1 - s) / (s - 1) + n**-s / 2 + s * n ** (-s - 1) / 12
    tail -= s * (s + 1) * (s + 2) * n ** (-s - 3) / 720
    return math.fsum([*(float(k) ** -s for k in range(2, 128)), tail])


def _polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """The sum of coefficients times powers of x, beginning with x**0."""
    total: Tensor | float = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        total = x * total + coefficient
    assert isinstance(total, Tensor)
    return total


def _reference(formula: Callable[..., Tensor]) -> Callable[..., Array]:
    """The reference of an op that is a formula of its operand and attributes."""

    def reference(x: Array, **attributes: object) -> Array:
        given = leaf("x", "input", x.shape, as_dtype(x.dtype))
        graph = Graph((given,), (("y", formula(given, **attributes)),))
        return evaluate(graph, {"x": x})[0]["y"]

    return reference


def _sine_and_cosine(x: Tensor) -> tuple[Tensor, Tensor]:
    """sin(pi x) and cos(pi x), up to a common sign; whole numbers have exactly 0."""
    angle = (x - ops.round(x)) * math.pi
    return ops.sin(angle), ops.cos(angle)


def _near_two(t: Tensor) -> Tensor:
    """lgamma(2 + t) for t from -0.5 to 0.5, by Taylor's series."""
    terms = 28 if t.dtype == float64 else 12
    series = [(-1) ** k * _zeta_above_one(k) / k for k in range(2, terms)]
    return t * _polynomial(t, [1 - np.euler_gamma, *series])


def _lgamma_of(x: Tensor) -> Tensor:
    """From near 2 by gamma(x + 1) = x gamma(x), far from there by Stirling's series.

    No digits cancel for positive x. Others are reflected.
    """
    a = ops.where(x > 0, x, 1 - x)
    steps = ops.clip(ops.round(a) - 2, -2, _LARGE - 2)
    t = a - (steps + 2)
    product = ops.where(steps < -1, t * (t + 1), 1)
    for step in range(1, _LARGE - 1):
        product = ops.where(steps >= step, product * (t + (1 + step)), product)
    logarithm = ops.log(ops.where(a < _LARGE, product, a))
    small = ops.where(steps < -1, -logarithm, ops.where(steps < 0, -ops.log1p(t), logarithm))
    inverse = ops.reciprocal(a)
    further = [number / (2 * j * (2 * j - 1)) for j, number in enumerate(_bernoulli(9), start=1)]
    stirling = (a - 0.5) * (logarithm - 1) + (math.log(2 * math.pi) - 1) / 2
    stirling = stirling + inverse * _polynomial(inverse * inverse, list(map(float, further)))
    positive = ops.where(a < _LARGE, _near_two(t) + small, stirling)
    sine = ops.abs(_sine_and_cosine(x)[0])
    result = ops.where(x > 0, positive, math.log(math.pi) - ops.log(sine) - positive)
    return ops.where(ops.equal(ops.abs(x), math.inf), math.inf, result)


@unary(_lgamma_of, _reference(_lgamma_of), lambda x, y, g: g * digamma(x), _RANGES)
def lgamma(x: TensorLike) -> Tensor:
    """The logarithm of the absolute value of the gamma function; infinity at 0, -1, -2, ..."""
    return floating(x)


def _polygamma_of(x: Tensor, order: int) -> Tensor:
    """Eight terms of the sum over 1 / (x + k)**(order + 1), and Euler's and Maclaurin's formula.

    Numbers that are not positive are reflected.
    """
    a = ops.where(x > 0, x, 1 - x)
    total = _power(ops.reciprocal(a), order + 1)
    for k in range(1, _LARGE):
        total = total + _power(ops.reciprocal(a + k), order + 1)
    z = ops.reciprocal(a + _LARGE)
    series = [
        float(number * math.prod(range(order + 1, order + 2 * j)) / math.factorial(2 * j))
        for j, number in enumerate(_bernoulli(10), start=1)
    ]
    tail = z * _polynomial(z * z, series) + 0.5
    if order:
        total = (total + _power(z, order) * (z * tail + 1 / order)) * math.factorial(order)
    else:
        total = total + z * tail - ops.log(a + _LARGE)
    positive = total if order % 2 else -total
    sine, cosine = _sine_and_cosine(x)
    cotangents = _polynomial(cosine / sine, _cotangent(order)) * math.pi ** (order + 1)
    reflected = (-positive if order % 2 else positive) - cotangents
    if not order:
        reflected = ops.where(ops.equal(sine, 0), math.nan, reflected)
        reflected = ops.where(ops.equal(x, 0), -ops.reciprocal(x), reflected)
    return ops.where(x > 0, positive, reflected)


def _power(x: Tensor, exponent: int) -> Tensor:
    return reduce(mul, [x] * exponent)


def _cotangent(order: int) -> list[float]:
    """The derivative of cot(x) as a polynomial in cot(x): cot' = -1 - cot**2."""
    polynomial = np.polynomial.Polynomial([0.0, 1.0])
    for _ in range(order):
        polynomial = polynomial.deriv() * np.polynomial.Polynomial([-1.0, 0.0, -1.0])
    return [float(coefficient) for coefficient in polynomial.coef]


@elementwise(
    *(_polygamma_of, _reference(_polygamma_of)),
    (lambda x, y, g, order: g * polygamma(order + 1, x),),
    samples=Samples(
        lambda: [
            replace(sample, attributes={"order": order})
            for order in (0, 1, 2)
            for sample in elementwise_samples(1, _RANGES[order:] if order else _RANGES)
        ]
    ),
    attributes={"order": Whole(0, _MOST)},
)
def polygamma(order: int, x: TensorLike) -> Given:
    """A derivative of `digamma`.

    Args:
        order: the order of the derivative, from 0 to 64; 0 is `digamma` itself.
        x: floats; integers become float32.
    """
    return floating(x), order


@checked
def digamma(x: TensorLike) -> Tensor:
    """The derivative of `lgamma`; NaN at -1, -2, ..., and infinite at 0."""
    return polygamma(0, x)


_ROOT_PI = math.sqrt(math.pi)


def _erfinv_of(x: Tensor) -> Tensor:
    """An approximation by Winitzki (2008), within 1%, then steps of Halley's iteration.

    Each step leaves about the third power of the error. Near 1, erfc keeps the digits of 1 - x.
    """
    size = ops.abs(x)
    logarithm = ops.log1p(-(size * size))
    half = logarithm / 2 + 2 / (math.pi * _WINITZKI)
    y = ops.sqrt(ops.sqrt(half * half - logarithm / _WINITZKI) - half)
    y = ops.where(size < 0.1, size * (_ROOT_PI / 2), y)
    for _step in range(3 if x.dtype == float64 else 2):
        error = ops.where(size < 0.5, ops.erf(y) - size, (1 - size) - ops.erfc(y))
        change = error * ops.exp(y * y) * (_ROOT_PI / 2)
        y = y - change / (y * change + 1)
    return ops.copysign(ops.where(ops.equal(size, 1), math.inf, y), x)


_WINITZKI = 0.147


@unary(
    *(_erfinv_of, _reference(_erfinv_of)),
    lambda x, y, g: g * (ops.exp(y * y) * (_ROOT_PI / 2)),
    ((-0.9, 0.9), (0.9, 0.999)),
)
def erfinv(x: TensorLike) -> Tensor:
    """The number whose erf is x; infinite at -1 and 1, NaN beyond."""
    return floating(x)
