"""Programs for other targets than the default one compute the same.

They run on the interpreter, which runs programs for any target.
"""

from __future__ import annotations

import numpy as np
import pytest
from harness import CASES, Leaves, check, values_of
from random_graphs import random_graph
from targets import TARGETS

from lamina import ops
from lamina.base.shapes import float64, static
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.graph import Op, Sample, apply
from lamina.ops.differentiate import gradients
from lamina.program.target import Target

EACH_TARGET = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


@EACH_TARGET
@pytest.mark.parametrize(("op", "sample"), CASES)
def test_op_and_gradient_equal_their_evaluation(op: Op, sample: Sample, target: Target) -> None:
    leaves = Leaves()
    operands = [leaves.add(array) for array in values_of(sample, float64)]
    outputs = [apply(op, *operands, **sample.attributes)]
    if sample.differentiable:
        weights = np.random.default_rng(1).uniform(0.5, 1.5, static(outputs[0].shape))
        weighted = ops.sum(outputs[0] * leaves.add(weights))
        outputs += gradients(weighted, [x for x in operands if x.dtype.is_float])
    engine = InterpreterEngine(poison=True, target=target)
    check(leaves.graph(outputs), engine, leaves.feeds)


@EACH_TARGET
@pytest.mark.parametrize("seed", range(0, 500, 12))
def test_random_graph_equals_its_evaluation(seed: int, target: Target) -> None:
    made = random_graph(seed)
    engine = InterpreterEngine(poison=True, target=target)
    runs = 2 if made.graph.updates else 1
    check(made.graph, engine, made.feeds, runs=runs)
