"""Helpers of the tests of models."""

from __future__ import annotations

import numpy as np

import lamina as lm

Array = np.ndarray


def network() -> lm.Network:
    return lm.Sequential(lm.Input(4), lm.Linear(5), lm.Tanh(), lm.Linear(3))
