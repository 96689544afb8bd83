"""Programs give the right results with all schedules that an engine has for them.

Engines choose schedules by size, so that small samples use few of their algorithms. Engines that
have other schedules of a program (`alternatives.py`) run it with all of these here. A schedule of
a program has another alternative for each of its steps, so that all samples of an op need as many
schedules as the step with the most alternatives.
"""

from functools import partial

import pytest
from alternatives import schedules_of
from harness import Leaves, check, values_of
from test_ops import samples_of, weighted_gradients
from windowed_graphs import FilteredGraph, WindowedGraph

from lamina import ops
from lamina.base.shapes import DType, float32, float64
from lamina.graph import Op, Sample, Tensor, apply

pytestmark = pytest.mark.sampled


def results(op: Op, sample: Sample, dtype: DType, leaves: Leaves) -> list[Tensor]:
    """The result of an op, and its gradients."""
    operands = [leaves.add(array) for array in values_of(sample, dtype)]
    result = apply(op, *operands, **sample.attributes)
    if not sample.differentiable:
        return [result]
    return [result, *weighted_gradients(leaves, operands, result)]


@pytest.mark.parametrize("op", ops.ALL, ids=lambda op: op.name)
def test_op_is_right_with_every_schedule(op, engine, check_cases):
    cases = [
        (f"{name}-{dtype}", partial(results, op, sample, dtype))
        for number, (name, sample) in enumerate(samples_of(op))
        for dtype in [(float32, float64)[number % 2]]
    ]
    check_cases(cases, schedules=partial(schedules_of, engine))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("graphs", [WindowedGraph, FilteredGraph])
def test_contraction_over_windows_is_right_with_every_schedule(graphs, seed, engine):
    made = graphs(seed)
    check(made.graph, engine, made.feeds, schedules=partial(schedules_of, engine))
