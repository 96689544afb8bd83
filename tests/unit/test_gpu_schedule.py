"""Schedules of GPU engines."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gpu_cases import TRAITS

from lamina.engines import DEFAULT_TARGET
from lamina.engines.gpu.decisions import decide
from lamina.program.index import Axis, Index, axis_index, gathered_index
from lamina.program.program import Buffer, Plan, Program
from lamina.program.scalar import Literal, Load
from lamina.program.steps import Loop, Store, Write
from lamina.shapes import float32, int64

ROWS = Axis("i", 4)
FAR = 1 << 33
# A target for which the width of positions matters.
TARGET = replace(DEFAULT_TARGET, narrow_positions=True)


def scattered(index: Index) -> Program:
    """Sequential stores at an index that is loaded from data."""
    position = gathered_index(Load("k", index, int64), 4)
    store = Store("y", position, Literal(1.0, float32), accumulate=True)
    step = Loop("0.step", (), (Write((ROWS,), (store,), sequential=True),))
    buffers = {
        "k": Buffer("k", "input", (4 * FAR,), int64),
        "y": Buffer("y", "state", (4,), float32),
    }
    return Program("test", buffers, (step,), (("y", "y"),), {}, Plan((), 0, ()))


@pytest.mark.parametrize(("stride", "bits"), [(1, 32), (FAR, 64)])
def test_positions_of_loaded_indices_decide_the_position_bits(stride: int, bits: int) -> None:
    (step,) = decide(scattered(axis_index(ROWS) * stride), TARGET, TRAITS).steps
    assert step.position_bits == bits
