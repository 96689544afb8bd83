"""The random number generator and the distributions made of it."""

import math

import numpy as np
import pytest

from lamina import ops
from lamina.base.shapes import Array, bool_, float32, float64
from lamina.program.philox import philox, random_bits

RANDOM = {op.name: op for op in ops.ALL if op.name in ("uniform", "normal", "bernoulli")}


def draw(
    name: str, count: int, seed: int = 7, step: int = 3, stream: int = 1, **rest: object
) -> Array:
    dtype = rest.pop("dtype", float32)
    reference = RANDOM[name].reference
    return reference(
        np.int64(seed), np.int64(step), shape=(count,), stream=stream, dtype=dtype, **rest
    )


def word(value: int) -> Array:
    return np.array([value], np.uint32)


# The published vectors of Random123 (kat_vectors): counter, key, result.
@pytest.mark.cases(
    ("counter", "key", "expected"),
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)
def test_philox_gives_the_published_words(counter, key, expected):
    a, b, c, d = map(word, counter)
    assert tuple(int(w[0]) for w in philox((a, b, c, d), key)) == expected


def test_random_bits_are_the_words_of_blocks():
    seed, step, stream = 0x1234567890ABCDEF, (5 << 32) + 9, 77
    bits = random_bits(seed, step, np.arange(10, dtype=np.int64), stream)
    block = philox((word(1), word(9), word(5), word(stream)), (0x90ABCDEF, 0x12345678))
    assert bits.dtype == np.uint32
    assert bits[4:8].tolist() == [int(w[0]) for w in block]


def test_negative_seeds_are_two_complement_words():
    position = np.arange(4, dtype=np.int64)
    found, expected = (random_bits(seed, 0, position, 0) for seed in (-1, 2**64 - 1))
    assert found.tolist() == expected.tolist()


def test_uniform_numbers_are_the_upper_bits_of_words():
    """Of one word in float32, of two in float64."""
    bits = random_bits(7, 3, np.arange(6, dtype=np.int64), 1).astype(np.int64)
    assert draw("uniform", 6).tolist() == ((bits >> 8) * 2.0**-24).tolist()
    expected = ((bits[0::2] >> 5) * 2**26 + (bits[1::2] >> 6)) * 2.0**-53
    assert draw("uniform", 3, dtype=float64).tolist() == expected.tolist()


def quantile_error(value: float, size: int, bits: int) -> float:
    """The relative error of a normal number, given the odd number it was made from.

    The probability of a number nearer to 0 should be |size| / 2**bits.
    """
    value, size = abs(value), abs(size)
    density = math.exp(-value * value / 2) * math.sqrt(2 / math.pi)
    if value < 1:
        missed = math.erf(value / math.sqrt(2)) - size / 2**bits
    else:
        missed = math.erfc(value / math.sqrt(2)) - (2**bits - size) / 2**bits
    return abs(missed / density / value)


@pytest.mark.parametrize(("dtype", "bits", "limit"), [(float32, 24, 1e-6), (float64, 53, 3e-15)])
def test_normal_numbers_are_the_quantile_function(dtype, bits, limit):
    words = random_bits(7, 3, np.arange(3000, dtype=np.int64), 1).astype(np.int64)
    wide = (words[0::2] >> 5) * 2**26 + (words[1::2] >> 6)
    numbers = 2 * (words >> 8 if dtype == float32 else wide) + 1 - 2**bits
    values = draw("normal", len(numbers), dtype=dtype)
    assert values.dtype == dtype.numpy
    assert np.array_equal(values > 0, numbers > 0)
    pairs = zip(values.tolist(), numbers.tolist(), strict=True)
    assert max(quantile_error(value, number, bits) for value, number in pairs) < limit


@pytest.mark.parametrize(("dtype", "expected"), [(float32, 5.419983), (float64, 8.292361)])
def test_normal_reaches_far_tails(dtype, expected, monkeypatch):
    for bits, sign in ((0, -1), (0xFFFFFFFF, 1)):
        monkeypatch.setattr(
            "lamina.ops.random.random_bits",
            lambda seed, step, position, stream, bits=bits: np.full(
                position.shape, bits, np.uint32
            ),
        )
        assert draw("normal", 1, dtype=dtype)[0] == pytest.approx(sign * expected, rel=1e-6)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_bernoulli_is_true_with_its_probability_in_every_dtype(p):
    values = draw("bernoulli", 100_000, p=p, dtype=bool_)
    assert values.dtype == np.bool_
    assert values.mean() == pytest.approx(p, abs=0.006 if 0 < p < 1 else 0)
    for dtype in (float32, float64):
        drawn = draw("bernoulli", 1000, p=p, dtype=dtype)
        assert np.array_equal(drawn, values[:1000].astype(float))
