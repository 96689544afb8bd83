"""Programs for other targets than the default one compute the same.

They run on the interpreter, which runs programs for any target.
"""

from functools import partial

import pytest
from harness import check, check_cases
from random_graphs import random_graph
from targets import TARGETS
from test_ops import samples_of
from test_schedules import results

from lamina import ops
from lamina.base.shapes import float64
from lamina.engines.interpreter.engine import InterpreterEngine

pytestmark = pytest.mark.sampled
EACH_TARGET = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


@EACH_TARGET
@pytest.mark.parametrize("op", ops.ALL, ids=lambda op: op.name)
def test_op_and_gradient_equal_their_evaluation(op, target, pytestconfig):
    cases = [(name, partial(results, op, sample, float64)) for name, sample in samples_of(op)]
    engine = InterpreterEngine(poison=True, target=target)
    check_cases(cases, engine, only=pytestconfig.getoption("--case"))


@EACH_TARGET
@pytest.mark.parametrize("seed", range(0, 500, 12))
def test_random_graph_equals_its_evaluation(seed, target):
    made = random_graph(seed)
    engine = InterpreterEngine(poison=True, target=target)
    runs = 2 if made.graph.updates else 1
    check(made.graph, engine, made.feeds, runs=runs)
