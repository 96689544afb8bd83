"""Fourier transforms, as products with the matrices of small transforms.

A complex number is a pair of floats in the last axis: (real, imaginary), as `torch.view_as_real`
has it.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from lamina.base.shapes import Array, static
from lamina.checks import checked_as_given as checked
from lamina.checks.kinds import Flag, Word
from lamina.errors import ShapeError
from lamina.graph import Sample, Tensor, TensorLike, apply, constant, described
from lamina.graph.attributes import whole
from lamina.ops import basic as ops
from lamina.ops.arguments import read
from lamina.ops.conversion import floating
from lamina.ops.einsum import einsum
from lamina.ops.records import Typed, make_op
from lamina.ops.reduce import require_float

__all__ = ["fft", "ifft", "irfft", "rfft"]

Norm = Literal["backward", "ortho", "forward"]
_NORM = Word(("backward", "ortho", "forward"))

# A transform of up to so many numbers is one product, and so many numbers are a factor of a longer
# one. A longer one without factors is a convolution.
_LONGEST, _LARGEST_FACTOR = 256, 32


def _infer(x: Tensor, inverse: bool = False) -> Typed:
    require_float(x)
    if x.rank < 2 or x.shape[-1] != 2 or not isinstance(x.shape[-2], int) or not x.shape[-2]:
        operand = described(x)
        raise ShapeError(
            "a Fourier transform needs complex numbers as pairs of floats",
            facts=(("expected", "f32[..., n, 2], real and imaginary parts"), ("found", operand)),
            advice="ops.rfft takes real numbers, f32[..., n]. The batch is no axis of a transform.",
        )
    return x.shape, x.dtype


def _roots(exponents: Array, count: int, *, inverse: bool) -> Array:
    """exp(-2 pi i exponents / count); with the other sign if it is inverse."""
    angles = 2 * np.pi * (exponents % count) / count
    return np.exp(1j * angles if inverse else -1j * angles)


def _pairs(numbers: Array, x: Tensor) -> Tensor:
    """Complex numbers as a constant of the tensor's dtype."""
    return constant(np.stack([np.real(numbers), np.imag(numbers)], -1).astype(x.dtype.numpy))


def _times(x: Tensor, numbers: Array) -> Tensor:
    """The product of complex numbers with constants, which broadcast along the last axes."""
    real, imaginary = x[..., 0], x[..., 1]
    other = _pairs(numbers, x)
    first = real * other[..., 0] - imaginary * other[..., 1]
    second = real * other[..., 1] + imaginary * other[..., 0]
    return ops.stack([first, second], -1)


def _product(x: Tensor, equation: str, count: int, *, inverse: bool) -> Tensor:
    """A transform of `count` numbers as a product with its matrix."""
    numbers = np.arange(count)
    roots = _roots(np.outer(numbers, numbers), count, inverse=inverse)
    # Multiplication by a + ib is the matrix (a b, -b a), from the right.
    rows = np.stack([roots, 1j * roots], 1)
    return einsum(equation, x, _pairs(rows, x))


def _transformed(x: Tensor, *, inverse: bool) -> Tensor:
    """The transform of [rows, n, 2], by the algorithm of Cooley and Tukey (1965)."""
    rows, count, _ = static(x.shape)
    factor = next((n for n in range(_LARGEST_FACTOR, 1, -1) if count % n == 0), 1)
    if count <= _LARGEST_FACTOR or (factor == 1 and count <= _LONGEST):
        return _product(x, "bjp,jpkq->bkq", count, inverse=inverse)
    if factor == 1:
        return _convolved(x, inverse=inverse)
    others = count // factor
    x = ops.reshape(x, (rows, factor, others, 2))
    x = _product(x, "bjmp,jpkq->bkmq", factor, inverse=inverse)
    powers = np.outer(np.arange(factor), np.arange(others))
    x = _times(x, _roots(powers, count, inverse=inverse))
    x = _transformed(ops.reshape(x, (rows * factor, others, 2)), inverse=inverse)
    x = ops.reshape(x, (rows, factor, others, 2))
    return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (rows, count, 2))


def _convolved(x: Tensor, *, inverse: bool) -> Tensor:
    """The transform of a prime number of numbers, as a convolution (Bluestein, 1970)."""
    _, count, _ = static(x.shape)
    longer = 1 << (2 * count - 2).bit_length()
    squares = np.arange(count) ** 2
    # jk = (j**2 + k**2 - (k - j)**2) / 2
    chirp = _roots(squares, 2 * count, inverse=inverse)
    around = np.zeros(longer, complex)
    around[:count] = chirp.conj()
    around[longer - count + 1 :] = chirp[:0:-1].conj()
    filled = ops.pad(_times(x, chirp), ((0, 0), (0, longer - count), (0, 0)))
    product = _times(_transformed(filled, inverse=False), np.fft.fft(around) / longer)
    return _times(_transformed(product, inverse=True)[:, :count], chirp)


def _build(x: Tensor, inverse: bool) -> Tensor:
    flat = ops.reshape(x, (-1, x.shape[-2], 2))
    return ops.reshape(_transformed(flat, inverse=inverse), x.shape)


def _reference(x: Array, inverse: bool) -> Array:
    given = x[..., 0].astype("float64") + 1j * x[..., 1]
    found = np.fft.ifft(given, norm="forward") if inverse else np.fft.fft(given)
    return np.stack([np.real(found), np.imag(found)], -1).astype(x.dtype)


FFT = make_op(
    "fft",
    _infer,
    # The matrix of a transform is symmetric; its inverse's matrix has the conjugate numbers.
    lambda x, y, g, inverse: (apply(FFT, g, inverse=not inverse),),
    _reference,
    _build,
    tuple(
        Sample((shape,), {"inverse": inverse})
        for shape in ((3, 1, 2), (2, 12, 2), (5, 2), (2, 3, 34, 2), (1, 263, 2))
        for inverse in (False, True)
    ),
    attributes={"inverse": Flag()},
    keeps_float32=True,
)


def _scale(norm: str, count: int, *, inverse: bool) -> float:
    norm = read("norm", _NORM, norm)
    if norm == "ortho":
        return 1 / math.sqrt(count)
    return 1 / count if (norm == "backward") == inverse else 1.0


def _fft(x: TensorLike, norm: Norm, *, inverse: bool) -> Tensor:
    y = apply(FFT, floating(x), inverse=inverse)
    (count,) = static(y.shape[-2:-1])
    scale = _scale(norm, count, inverse=inverse)
    return y if scale == 1 else y * scale


@checked
def fft(x: TensorLike, norm: Norm = "backward") -> Tensor:
    """The discrete Fourier transform of complex numbers, [..., n, 2].

    Args:
        x: real and imaginary parts in the last axis. The axis before it is transformed.
        norm: the transform that divides by n: the inverse one (`"backward"`), or this one
            (`"forward"`); with `"ortho"` both divide by sqrt(n).
    """
    return _fft(x, norm, inverse=False)


@checked
def ifft(x: TensorLike, norm: Norm = "backward") -> Tensor:
    """The inverse of `fft`, [..., n, 2]."""
    return _fft(x, norm, inverse=True)


@checked
def rfft(x: TensorLike, norm: Norm = "backward") -> Tensor:
    """The first n // 2 + 1 numbers of the transform of real numbers, [..., n // 2 + 1, 2].

    The others are conjugates of these.

    Args:
        x: [..., n]; the last axis is transformed.
        norm: the transform that divides by n, as in `fft`.
    """
    x = floating(x)
    count = x.shape[-1] if x.rank else 0
    if not isinstance(count, int) or not count:
        raise ShapeError(
            "rfft: the last axis has no elements, or depends on the batch",
            facts=(("expected", "f32[..., n]"), ("found", described(x))),
            advice="The last axis is transformed; move the time there with ops.transpose.",
        )
    scale = _scale(norm, count, inverse=False)
    half = count // 2
    if count % 2:
        y = apply(FFT, ops.stack([x, ops.zeros_like(x)], -1), inverse=False)[..., : half + 1, :]
        return y if scale == 1 else y * scale
    # Neighbours are the parts of half as many complex numbers. The transforms of the even and the
    # odd ones are the symmetric and the antisymmetric part of the transform of these.
    y = apply(FFT, ops.reshape(x, (*x.shape[:-1], half, 2)), inverse=False)
    y = ops.concat([y, y[..., :1, :]], -2)
    mirrored = ops.flip(y, -2) * constant(np.array([1, -1], x.dtype.numpy))
    even, odd = y + mirrored, y - mirrored
    shifted = _times(odd, -1j * _roots(np.arange(half + 1), count, inverse=False))
    return (even + shifted) * (scale / 2)


@checked
def irfft(x: TensorLike, count: int | None = None, norm: Norm = "backward") -> Tensor:
    """The inverse of `rfft`: real numbers, [..., count].

    Args:
        x: [..., count // 2 + 1, 2]. As in NumPy, the imaginary part of the first number is ignored,
            and for even counts also of the last one.
        count: the number of the real numbers; by default even, twice the numbers of x without the
            first.
        norm: the transform that divides by n, as in `ifft`.
    """
    x = floating(x)
    _infer(x)
    (bins,) = static(x.shape[-2:-1])
    length: int = read("count", whole(1), max(2 * (bins - 1), 1) if count is None else count)
    if bins != length // 2 + 1:
        raise ShapeError(
            f"irfft: {length} real numbers have {length // 2 + 1} complex numbers",
            facts=(("expected", f"f32[..., {length // 2 + 1}, 2]"), ("found", described(x))),
            advice="Truncate or pad the transform with ops.pad, or give another count.",
        )
    # The missing numbers are conjugates: they add the real part of each term once more.
    factors = np.full((bins, 1), 2.0, x.dtype.numpy)
    factors[0] = 1
    if length % 2 == 0:
        factors[-1] = 1
    missing = [(0, 0)] * (x.rank - 2) + [(0, length - bins), (0, 0)]
    y = apply(FFT, ops.pad(x * constant(factors), missing), inverse=True)[..., 0]
    scale = _scale(norm, length, inverse=True)
    return y if scale == 1 else y * scale
