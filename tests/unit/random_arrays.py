"""Random arrays from a fixed seed."""

import numpy as np

from lamina.base.shapes import Array


def normal(*shape: int, seed: int = 0) -> Array:
    """Normally distributed numbers in float32."""
    return normal64(*shape, seed=seed).astype("float32")


def normal64(*shape: int, seed: int = 0) -> Array:
    """Normally distributed numbers in float64."""
    return np.random.default_rng(seed).normal(size=shape)
