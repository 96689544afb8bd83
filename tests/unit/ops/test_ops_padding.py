"""Padding with a tensor's own elements, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lamina import ops
from lamina.base.shapes import BATCH, float64
from lamina.errors import DefinitionError, ShapeError
from lamina.graph import Graph, bind_batch, evaluate, leaf

NAMES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
WIDTHS = [[(0, 0), (1, 2), (3, 0)], [0, 1, 2], [(0, 0), (0, 0), (0, 0)], [(1, 1), (2, 2), (4, 4)]]


@pytest.mark.parametrize("mode", NAMES)
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_padding_equals_numpy(mode: Any, widths: list[Any]) -> None:
    values = np.random.default_rng(0).normal(size=(2, 3, 5))
    x = leaf("x", "input", values.shape, float64)
    y = ops.pad_with(x, widths, mode, 7.0)
    found, _ = evaluate(Graph((x,), (("y", y),)), {"x": values})
    pairs = [(one, one) if isinstance(one, int) else one for one in widths]
    options = {"constant_values": 7.0} if mode == "constant" else {}
    np.testing.assert_array_equal(found["y"], np.pad(values, pairs, NAMES[mode], **options))


@pytest.mark.parametrize("mode", NAMES)
def test_the_batch_may_stay_open_where_it_is_not_padded(mode: Any) -> None:
    x = leaf("x", "input", (BATCH, 3), float64)
    y = ops.pad_with(x, [0, 1], mode)
    assert y.shape == (BATCH, 5)
    found, _ = evaluate(bind_batch(Graph((x,), (("y", y),)), 2), {"x": np.ones((2, 3))})
    assert found["y"].shape == (2, 5)


@pytest.mark.parametrize(
    ("widths", "mode", "expected"),
    [
        ([0, 3], "reflect", "expected  at most 2 on each side for mode 'reflect'"),
        ([0, (0, 4)], "circular", "found     0 before, 4 after"),
        ([0, -1], "replicate", "found     [0, -1]"),
        ([1], "reflect", "found     [1]"),
        ([1, 0], "reflect", "a fixed shape is needed here"),
    ],
)
def test_widths_that_do_not_fit_are_refused(widths: list[Any], mode: Any, expected: str) -> None:
    x = leaf("x", "input", (BATCH, 3), float64)
    with pytest.raises((ShapeError, DefinitionError)) as error:
        ops.pad_with(x, widths, mode)
    assert expected in str(error.value)
