"""Trainings in mixed precision are no further from float32 than PyTorch's under its autocast.

The deviations of PyTorch were recorded (by `record.py`). Where PyTorch is installed, it is compared
itself too.
"""

from __future__ import annotations

import json

import pytest
from mixed import RECIPES, RECORDED, Deviation, lamina_deviation, torch_deviation

# Some roundings differ between engines, and all later numbers with them.
TOLERANCE = 1.02

ALL = pytest.mark.parametrize("name", RECIPES)


def check(found: Deviation, allowed: Deviation) -> None:
    assert 0 < found.losses <= TOLERANCE * allowed.losses
    assert 0 < found.parameters <= TOLERANCE * allowed.parameters


def recorded(name: str) -> Deviation:
    return Deviation(**json.loads(RECORDED.read_text())[name])


@ALL
@pytest.mark.parametrize("dtype", ["mixed-bfloat16", "mixed-float16"])
def test_deviations_are_at_most_those_of_recorded_trainings(
    name: str, dtype: str, engine_name: str
) -> None:
    check(lamina_deviation(name, dtype, engine_name), recorded(name))


@pytest.mark.torch
@ALL
def test_deviations_are_at_most_those_of_pytorch(name: str) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    check(lamina_deviation(name, "mixed-bfloat16", "cpu"), torch_deviation(name))


@ALL
def test_float16_is_closer_to_float32_than_bfloat16(name: str) -> None:
    found = lamina_deviation(name, "mixed-float16", "cpu")
    assert found.losses < lamina_deviation(name, "mixed-bfloat16", "cpu").losses
