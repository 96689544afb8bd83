"""Layers whose results are computed again for the gradient: the same numbers on every engine."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from harness import numbers_of, run_program, training_step
from test_recompute import NETWORKS, again, kept

import lamina as lm
from lamina.base.shapes import Array
from lamina.compiler.pipeline import compile_graph
from lamina.engines.engine import Engine


def _normalised(wrap: Callable[..., Any]) -> lm.Network:
    inner = wrap(lm.Linear(8), lm.Tanh(), lm.LayerNorm())
    return lm.Sequential(lm.Input(8), *wrap(*inner, lm.Linear(8), lm.GELU()), lm.Linear(3))


def _exact(wrap: Callable[..., Any]) -> lm.Network:
    """All sums are exact for small whole numbers, and dropout doubles numbers."""
    block = wrap(lm.Linear(6), lm.ReLU(), lm.Dropout(0.5), *wrap(lm.Linear(5), lm.ReLU()))
    return lm.Sequential(lm.Input(8), *block, lm.Linear(3))


def _trained(
    network: lm.Network, loss: Any, optimizer: Any, engine: Engine, draw: Callable[..., Array]
) -> list[Array]:
    """The loss, parameters and states after some training steps, in the order of the program."""
    made = training_step(network, loss, optimizer)
    program = compile_graph(made.graph, batch=6, name="training", target=engine.target)
    generator = np.random.default_rng(0)
    feeds = {
        buffer.name: np.zeros(buffer.shape, buffer.dtype.numpy)
        if kind == "state"
        else draw(generator, buffer.shape).astype(buffer.dtype.numpy)
        for kind in ("input", "parameter", "state")
        for buffer in program.of_kind(kind)
    }
    feeds |= numbers_of(made)
    outputs, values = run_program(program, engine, feeds, runs=2)
    return [outputs["loss"], *values.values()]


@pytest.mark.parametrize("make", [*NETWORKS.values(), _normalised], ids=[*NETWORKS, "normalised"])
def test_tensors_that_are_computed_again_change_a_training_step_by_rounding_only(make, engine):
    how = (lm.CrossEntropy(), lm.SGD(0.1, momentum=0.9), engine)
    runs = (
        _trained(make(wrap), *how, lambda g, shape: g.uniform(-0.5, 0.5, shape))
        for wrap in (kept, again)
    )
    for before, after in zip(*runs, strict=True):
        np.testing.assert_allclose(after, before, rtol=2e-5, atol=2e-6)


def test_exact_numbers_have_the_same_bits_if_they_are_computed_again(engine):
    how = (lm.MSE(reduction="sum"), lm.SGD(2.0**-7), engine)
    runs = (
        _trained(_exact(wrap), *how, lambda g, shape: g.integers(-2, 3, shape))
        for wrap in (kept, again)
    )
    for before, after in zip(*runs, strict=True):
        assert before.tobytes() == after.tobytes()
