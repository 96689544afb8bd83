"""Functions of gamma and erf against math, and Fourier transforms against NumPy."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.base.shapes import Array


def computed(function: Callable[..., lm.Tensor], *arrays: Array) -> Array:
    inputs = [lm.Input(*array.shape[1:], dtype=str(array.dtype)) for array in arrays]
    (found,) = lm.compile(inputs, function(*inputs), engine="cpu")(*arrays)
    return found


def units(found: Array, exact: Sequence[float] | Array, least: float = 0.0) -> float:
    """The largest error in units in the last place, at least in the units of `least`."""
    wanted = np.asarray(exact, "float64")
    spacing = np.spacing(np.maximum(np.abs(wanted), least).astype(found.dtype)).astype("float64")
    return float(np.max(np.abs(found.astype("float64") - wanted) / spacing))


# Catalan's and Apery's constants.
_CATALAN, _ZETA3 = 0.915965594177219, 1.2020569031595942
POSITIVE = np.concatenate(
    [np.linspace(1e-3, 12, 400), np.geomspace(12, 1e5, 50), [1e-30, 1.0, 2.0, 1 + 1e-6]]
)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lgamma_of_positive_numbers_keeps_its_digits_also_near_its_zeros(dtype):
    x = POSITIVE.astype(dtype)
    # Python's lgamma is less exact, above all near its zeros.
    exact = [math.lgamma(number) for number in x]
    assert units(computed(ops.lgamma, x), exact, least=0.1) <= (10 if dtype == "float32" else 100)
    t = np.array([2.0**-21, -(2.0**-20), 0])
    near_one = t * (-np.euler_gamma + t * (math.pi**2 / 12 - t * _ZETA3 / 3))
    assert units(computed(ops.lgamma, (1 + t).astype(dtype)), near_one) <= 10
    near_two = t * (1 - np.euler_gamma + t * ((math.pi**2 / 6 - 1) / 2 - t * (_ZETA3 - 1) / 3))
    assert units(computed(ops.lgamma, (2 + t).astype(dtype)), near_two) <= 10


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.cases(
    ("order", "x", "exact"),
    (0, 1.0, -np.euler_gamma),
    (0, 0.5, -np.euler_gamma - 2 * math.log(2)),
    (0, -0.5, 2 - np.euler_gamma - 2 * math.log(2)),
    (0, 7.0, 1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5 + 1 / 6 - np.euler_gamma),
    (1, 1.0, math.pi**2 / 6),
    (1, 0.25, math.pi**2 + 8 * _CATALAN),
    (1, -0.5, math.pi**2 / 2 + 4),
    (2, 1.0, -2 * _ZETA3),
    (3, 1.0, math.pi**4 / 15),
    (3, 0.5, math.pi**4),
)
def test_derivatives_of_lgamma_have_their_known_values(order, x, exact, dtype):
    found = computed(lambda tensor: ops.polygamma(order, tensor), np.array([x], dtype))
    # Digits of digamma cancel near its zeros.
    assert units(found, [exact], least=1.0) <= 12


def test_gamma_and_its_derivatives_at_poles_and_infinities():
    x = np.array([0.0, -0.0, -1.0, -2e9, np.inf, -np.inf, np.nan], "float32")
    inf, nan = np.inf, np.nan
    np.testing.assert_array_equal(computed(ops.lgamma, x), [inf, inf, inf, inf, inf, inf, nan])
    np.testing.assert_array_equal(computed(ops.digamma, x), [-inf, inf, nan, nan, inf, nan, nan])
    trigamma = computed(lambda tensor: ops.polygamma(1, tensor), x)
    np.testing.assert_array_equal(trigamma, [inf, inf, inf, inf, 0, nan, nan])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_erfinv_inverts_erf(dtype):
    y = np.concatenate([np.linspace(0, 3.6, 200), np.geomspace(1e-20, 1e-2, 20)])
    x = np.array([math.erf(number) for number in y], dtype)
    # erf at the result is x, within what units of x and of the result change.
    inverse = computed(ops.erfinv, x).astype("float64")
    wide, eps = x.astype("float64"), np.finfo(dtype).eps
    error = np.where(
        wide < 0.5,
        [math.erf(number) - value for number, value in zip(inverse, wide, strict=True)],
        [(1 - value) - math.erfc(number) for number, value in zip(inverse, wide, strict=True)],
    )
    slope = np.exp(-inverse * inverse) * 2 / math.sqrt(math.pi)
    assert np.all(np.abs(error) <= 4 * eps * slope * inverse + 1e-300)
    ends = np.array([1, -1, -0.0, 1.5, np.nan], dtype)
    np.testing.assert_array_equal(
        computed(ops.erfinv, ends), [np.inf, -np.inf, -0.0, np.nan, np.nan]
    )


NORMS = ("backward", "ortho", "forward")


@pytest.mark.parametrize("count", [1, 2, 3, 33, 100, 263, 1024])
def test_fourier_transforms_are_numpys(count):
    generator = np.random.default_rng(count)
    x = generator.normal(size=(2, 3, count)).astype("float32")
    pairs = generator.normal(size=(2, count, 2)).astype("float32")
    numbers = pairs[..., 0] + 1j * pairs[..., 1]
    half = count // 2 + 1

    def same(found, exact):
        as_pairs = np.stack([exact.real, exact.imag], -1) if np.iscomplexobj(exact) else exact
        np.testing.assert_allclose(found, as_pairs, atol=6e-7 * np.max(np.abs(exact)))

    norm = NORMS[count % 3]
    same(computed(lambda t: ops.fft(t, norm), pairs), np.fft.fft(numbers, norm=norm))
    same(computed(lambda t: ops.ifft(t, norm), pairs), np.fft.ifft(numbers, norm=norm))
    same(computed(lambda t: ops.rfft(t, norm), x), np.fft.rfft(x, norm=norm))
    same(
        computed(lambda t: ops.irfft(t, count, norm), pairs[:, :half]),
        np.fft.irfft(numbers[:, :half], count, norm=norm),
    )


def test_bincount_counts_numbers_within_its_size():
    x = np.array([[0, 3, 3], [7, -1, 2]], "int32")
    weights = np.array([[0.5, 1, 2], [4, 8, 16]], "float32")
    counts = computed(lambda t: ops.bincount(t, 4), x)
    np.testing.assert_array_equal(counts, [1, 0, 1, 2])
    assert counts.dtype == np.int64
    sums = computed(lambda t, w: ops.bincount(t, 5, w), x, weights)
    np.testing.assert_array_equal(sums, [0.5, 0, 16, 3, 0])

    def gradient(t, w):
        return lm.gradients(ops.bincount(t, 4, w)[3], [w])[0]

    np.testing.assert_array_equal(computed(gradient, x, weights), [[0, 1, 1], [0, 0, 0]])
