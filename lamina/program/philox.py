"""Philox 4x32-10: random numbers that are a function of a counter and a key.

Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011). Each element can
be computed alone, so results do not depend on threads or on the order of computation. This file
defines the scalar primitive `random_bits`, which every engine follows bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]
Wide = npt.NDArray[np.uint64]
# A whole number, or one for each element.
Whole = int | npt.NDArray[np.int64]

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)

# Each user of random numbers has its own streams: random layers 0, 1, 2, ..., the others these.
INITIAL_VALUE_STREAMS = 0x8000_0000
ORDER_STREAM = 0x6F726472
SPLIT_STREAM = 0x73706C74
VERIFICATION_STREAM = 0x76657269
WINDOW_STREAM = 0x77696E64
CHUNK_STREAM = 0x63686E6B

# The random words that are made at once stay in a processor's caches.
_PIECE = 1 << 18
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def philox(
    counter: Sequence[npt.NDArray[Any]], key: tuple[Whole, Whole]
) -> tuple[Words, Words, Words, Words]:
    """The four random words of each counter, four words in arrays of one shape, and a key."""
    w, x, y, z = (word.astype(np.uint32) for word in philox_in_64_bits(counter, key))
    return w, x, y, z


def philox_in_64_bits(
    counter: Sequence[npt.NDArray[Any]], key: tuple[Any, Any]
) -> tuple[Wide, Wide, Wide, Wide]:
    """The words of `philox`, each as an integer of 64 bits."""
    a, b, c, d = (np.array(word, np.uint64) for word in counter)
    left, right = np.empty_like(a), np.empty_like(c)
    keys = list(key)
    # In place: new arrays would take longer than the arithmetic.
    for _ in range(ROUNDS):
        np.multiply(a, np.uint64(MULTIPLIERS[0]), out=left)
        np.multiply(c, np.uint64(MULTIPLIERS[1]), out=right)
        np.right_shift(right, _32, out=a)
        a ^= b
        a ^= np.uint64(keys[0])
        np.right_shift(left, _32, out=c)
        c ^= d
        c ^= np.uint64(keys[1])
        np.bitwise_and(right, _LOW, out=b)
        np.bitwise_and(left, _LOW, out=d)
        pairs = zip(keys, KEY_INCREMENTS, strict=True)
        keys = [(key + step) & 0xFFFFFFFF for key, step in pairs]
    return a, b, c, d


def permutations(
    count: int, seeds: Whole, numbers: Sequence[int] | npt.NDArray[np.int64], stream: int
) -> npt.NDArray[np.int64]:
    """A permutation for each number, int64 (numbers, count): positions sorted by 64 random bits.

    Args:
        seeds: one seed, or one for each number.
    """
    keys = np.empty((len(numbers), count + count % 2), np.uint64)
    seed = np.broadcast_to(np.asarray(seeds), len(numbers))[:, None].astype(np.uint64)
    words_of = np.array(numbers, np.uint64)[:, None]
    high, low = words_of >> _32, words_of & _LOW
    # A block of four words gives two keys.
    for start in range(0, count, _PIECE):
        stop = min(start + _PIECE, keys.shape[1])
        block = np.arange(start // 2, stop // 2, dtype=np.uint64)
        counter = np.broadcast_arrays(block, low, high, np.uint64(stream))
        words = philox_in_64_bits(counter, (seed & _LOW, seed >> _32))
        keys[:, start:stop:2] = (words[0] << _32) | words[1]
        keys[:, start + 1 : stop : 2] = (words[2] << _32) | words[3]
    return np.argsort(keys[:, :count], axis=1, kind="stable").astype(np.int64, copy=False)


def random_bits(
    seed: Whole, step: Whole, position: npt.NDArray[np.int64], stream: int
) -> npt.NDArray[np.uint32]:
    """32 random bits for each position; seeds and steps may differ between positions.

    Element `position` is word `position % 4` of the block with the counter (position // 4, low
    word of step, high word of step, stream) and the key (low word of seed, high word of seed).
    `step` is the number of the training step.
    """
    shape = np.broadcast_shapes(np.shape(seed), np.shape(step), position.shape)
    block = np.broadcast_to((position // 4).astype(np.uint32), shape)

    def everywhere(word: Whole) -> Words:
        return np.full(shape, word & 0xFFFFFFFF, np.uint32)

    counter = (block, everywhere(step), everywhere(step >> 32), everywhere(stream))
    words = philox(counter, (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF))
    return np.choose(position % 4, words)
