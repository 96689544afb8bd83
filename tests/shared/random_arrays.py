"""Random arrays from a fixed seed."""

import numpy as np

from lamina.base.shapes import Array


def normal(*shape: int, seed: int = 0) -> Array:
    """Normally distributed numbers in float32."""
    return normal64(*shape, seed=seed).astype("float32")


def normal64(*shape: int, seed: int = 0) -> Array:
    """Normally distributed numbers in float64."""
    return np.random.default_rng(seed).normal(size=shape)


def every_exponent() -> Array:
    """Float32 of every sign and exponent: near ties, near the ends of the fraction, and random."""
    generator = np.random.default_rng(0)
    kept = np.array([0, 1, 2, 511, 512, 1022, 1023], np.uint32) << np.uint32(13)
    rest = np.array([0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF], np.uint32)
    chosen = (kept[:, None] + rest).reshape(-1)
    fractions = np.concatenate([chosen, generator.integers(0, 1 << 23, 23, dtype=np.uint32)])
    upper = np.arange(512, dtype=np.uint32) << np.uint32(23)
    return (upper[:, None] | fractions).reshape(-1).view(np.float32)
