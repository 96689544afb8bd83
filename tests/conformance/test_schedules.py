"""Programs give the right results with all schedules that an engine has for them.

Engines choose schedules by size, so that small samples use few of their algorithms. Engines that
list other schedules of a program (`Engine.schedules`) run it with all of these here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from harness import Leaves, check, values_of
from test_ops import weighted_gradients
from windowed_graphs import FilteredGraph, WindowedGraph

from lamina import ops
from lamina.base.shapes import DType, float32, float64
from lamina.engines.engine import Engine
from lamina.graph import Op, Sample, Tensor, apply
from lamina.program.program import Program

# The ops whose programs have contractions.
CONTRACTIONS = ("contract", "matmul", "dot", "outer", "einsum", "conv", "conv_transpose")
CONTRACTIONS += ("attention", "recurrence", "fft")
CONTRACTING = [
    pytest.param(op, sample, (float32, float64)[number % 2], id=f"{op.name}-{number}")
    for op in ops.ALL
    if op.name in CONTRACTIONS
    for number, sample in enumerate(op.samples)
]
LOOPS = [op for op in ops.ALL if op.name not in CONTRACTIONS]
LOOPING = [
    pytest.param(op, sample, id=f"{op.name}-{number}")
    for op in LOOPS
    for number, sample in enumerate(op.samples)
]
# The number of schedules of a program of loops only, where not all are tried.
SOME_OF_LOOPS = 2


def results(op: Op, sample: Sample, dtype: DType, leaves: Leaves) -> list[Tensor]:
    """The result of an op, and its gradients."""
    operands = [leaves.add(array) for array in values_of(sample, dtype)]
    result = apply(op, *operands, **sample.attributes)
    if not sample.differentiable:
        return [result]
    return [result, *weighted_gradients(leaves, operands, result)]


@pytest.mark.parametrize(("op", "sample", "dtype"), CONTRACTING)
def test_contraction_is_right_with_every_schedule(
    op: Op, sample: Sample, dtype: DType, engine: Engine
) -> None:
    leaves = Leaves()
    graph = leaves.graph(results(op, sample, dtype, leaves))
    check(graph, engine, leaves.feeds, schedules=engine.schedules)


@pytest.mark.parametrize("op", LOOPS, ids=lambda op: op.name)
def test_loops_are_right_with_other_schedules(op: Op, engine: Engine) -> None:
    def some(program: Program) -> Iterator[Any]:
        return islice(engine.schedules(program), SOME_OF_LOOPS)

    leaves = Leaves()
    graph = leaves.graph(results(op, op.samples[-1], float32, leaves))
    check(graph, engine, leaves.feeds, schedules=some)


@pytest.mark.sampled
@pytest.mark.parametrize(("op", "sample"), LOOPING)
def test_loops_are_right_with_every_schedule(op: Op, sample: Sample, engine: Engine) -> None:
    dtype = float64 if sample.differentiable else float32
    leaves = Leaves()
    graph = leaves.graph(results(op, sample, dtype, leaves))
    check(graph, engine, leaves.feeds, schedules=engine.schedules)


@pytest.mark.parametrize("seed", range(5))
def test_contraction_over_windows_is_right_with_every_schedule(seed: int, engine: Engine) -> None:
    made = WindowedGraph(seed)
    check(made.graph, engine, made.feeds, schedules=engine.schedules)


@pytest.mark.parametrize("seed", range(4))
def test_contraction_over_windows_of_3x3_is_right_with_every_schedule(
    seed: int, engine: Engine
) -> None:
    made = FilteredGraph(seed)
    check(made.graph, engine, made.feeds, schedules=engine.schedules)
