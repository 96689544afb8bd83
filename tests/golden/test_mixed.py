"""Trainings in mixed precision are no further from float32 than PyTorch's under its autocast.

For each seed the deviation is divided by PyTorch's deviation, which was recorded (by `record.py`).
The mean ratio must not exceed 1 by more than chance explains: two standard errors. Where PyTorch is
installed, it is compared itself too.
"""

import json
from collections.abc import Sequence

import numpy as np
import pytest
from mixed import (
    RECIPES,
    RECORDED,
    SEEDS,
    Deviation,
    lamina_deviation,
    lamina_training,
    ratio,
    torch_deviation,
)

ALL = pytest.mark.parametrize("name", RECIPES)


def deviations(name: str, dtype: str, *, leaves: bool = True) -> list[Deviation]:
    return [lamina_deviation(name, seed, dtype, leaves=leaves) for seed in range(SEEDS)]


def check(ours: Sequence[Deviation], losses: Sequence[float], parameters: Sequence[float]) -> None:
    assert all(deviation.losses > 0 for deviation in ours)
    for mine, other in ((_losses(ours), losses), (_parameters(ours), parameters)):
        result = ratio(mine, other)
        assert result.low <= 1, result


def _losses(ours: Sequence[Deviation]) -> list[float]:
    return [deviation.losses for deviation in ours]


def _parameters(ours: Sequence[Deviation]) -> list[float]:
    return [deviation.parameters for deviation in ours]


@ALL
@pytest.mark.parametrize(
    ("dtype", "leaves"),
    # The last as on devices without instructions for bfloat16.
    [("mixed-bfloat16", True), ("mixed-float16", True), ("mixed-bfloat16", False)],
)
def test_deviations_are_at_most_those_of_recorded_trainings(name, dtype, leaves):
    ours = deviations(name, dtype, leaves=leaves)
    check(ours, **json.loads(RECORDED.read_text())[name])


@pytest.mark.usefixtures("torch")
@ALL
def test_deviations_are_at_most_those_of_pytorch(name):
    other = [torch_deviation(name, seed) for seed in range(SEEDS)]
    check(deviations(name, "mixed-bfloat16"), _losses(other), _parameters(other))


@ALL
def test_float16_is_closer_to_float32_than_bfloat16(name):
    pairs = deviations(name, "mixed-float16"), deviations(name, "mixed-bfloat16")
    assert ratio(*map(_losses, pairs)).mean < 1


@pytest.mark.parametrize("dtype", ["mixed-bfloat16", "mixed-float16"])
def test_engines_follow_the_same_training(dtype, engine_name):
    """Their sums round differently, and a rounding to 16 bits may enlarge that."""
    losses, _ = lamina_training("linear", 0, dtype, engine_name)
    expected, _ = lamina_training("linear", 0, dtype, "cpu")
    difference = float(np.sqrt(np.mean((losses - expected) ** 2)))
    assert difference <= lamina_deviation("linear", 0, dtype, leaves=True).losses / 2
