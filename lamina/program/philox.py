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

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)

# Each user of random numbers has its own streams: random layers 0, 1, 2, ..., the others these.
INITIAL_VALUE_STREAMS = 0x8000_0000
ORDER_STREAM = 0x6F726472
SPLIT_STREAM = 0x73706C74
VERIFICATION_STREAM = 0x76657269

_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def philox(
    counter: Sequence[npt.NDArray[Any]], key: tuple[int, int]
) -> tuple[Words, Words, Words, Words]:
    """The four random words of each counter.

    Args:
        counter: four words; arrays of one shape, of any unsigned integers.
        key: two words.
    """
    a, b, c, d = (word.astype(np.uint64) for word in counter)
    keys = list(key)
    for _ in range(ROUNDS):
        left, right = np.uint64(MULTIPLIERS[0]) * a, np.uint64(MULTIPLIERS[1]) * c
        a, b, c, d = (
            (right >> _32) ^ b ^ np.uint64(keys[0]),
            right & _LOW,
            (left >> _32) ^ d ^ np.uint64(keys[1]),
            left & _LOW,
        )
        keys = [(k + step) & 0xFFFFFFFF for k, step in zip(keys, KEY_INCREMENTS, strict=True)]
    w, x, y, z = (word.astype(np.uint32) for word in (a, b, c, d))
    return w, x, y, z


def random_bits(
    seed: int, step: int, position: npt.NDArray[np.int64], stream: int
) -> npt.NDArray[np.uint32]:
    """32 random bits for each position.

    Element `position` is word `position % 4` of the block with the counter (position // 4, low
    word of step, high word of step, stream) and the key (low word of seed, high word of seed).
    `step` is the number of the training step.
    """
    block = (position // 4).astype(np.uint32)

    def everywhere(word: int) -> Words:
        return np.full(position.shape, word & 0xFFFFFFFF, np.uint32)

    counter = (block, everywhere(step), everywhere(step >> 32), everywhere(stream))
    words = philox(counter, (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF))
    return np.choose(position % 4, words)
