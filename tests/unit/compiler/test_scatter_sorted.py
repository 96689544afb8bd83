"""Sorts and segment sums: rules of the check, text, cost and memory."""

from dataclasses import replace

import numpy as np
import pytest
from error_texts import problem_of
from program_cases import compiled

from lamina import ops
from lamina.base.shapes import float32, int32, int64
from lamina.engines import DEFAULT_TARGET
from lamina.engines.cpu.engine import CpuEngine
from lamina.graph import Graph, leaf
from lamina.program.cost import cost_of, space_of
from lamina.program.index import Axis, axis_index
from lamina.program.program import Allocation, Buffer, Plan, Program
from lamina.program.scalar import Literal, Load
from lamina.program.steps import Loop, Sort, Store, Write


def scatter(scatter="sorted"):
    values, indices = leaf("v", "input", (30, 4), float32), leaf("at", "input", (30,), int64)
    graph = Graph((values, indices), (("y", ops.scatter_add(values, indices, 5)),))
    return compiled(graph, replace(DEFAULT_TARGET, scatter=scatter))


PROGRAM = scatter()
(SORT,), (TOTAL, _) = (step.stages for step in PROGRAM.steps if isinstance(step, Loop))


def test_both_steps_are_printed():
    at = "(4*@(maximum(minimum(at[{}], 4), 0)))"
    rank = "@(i64(scatter_add.order[rank]))"
    assert "\n".join(map(str, PROGRAM.steps)) == (
        "loop 0.scatter_add.order over ()\n"
        f"  scatter_add.order[rank] = order(rank<30) {at.format('rank')}\n"
        "loop 1.scatter_add over (i0<5, k1<4)\n"
        f"  sum = sum(rank<30 where {at.format(rank)} == 4*i0) v[k1 + 4*{rank}]\n"
        "  scatter_add[4*i0 + k1] = sum"
    )
    assert [space_of(step) for step in PROGRAM.steps] == ["1 : 30", "5 x 4 : 30"]


def test_every_value_is_added_once():
    order, total = (cost_of(step, PROGRAM.buffers) for step in PROGRAM.steps)
    assert (order.operations, order.read_bytes, order.written_bytes) == (0, 30 * 8, 30 * 4)
    assert total.operations == 30 * 4
    assert total.written_bytes == 5 * 4 * 4
    in_order = scatter("in order")
    assert cost_of(in_order.steps[0], in_order.buffers).operations == 30 * 4


HALF = Literal(0.5, float32)
ORDER = replace(PROGRAM.buffers["scatter_add.order"], dtype=int64)
WIDE = replace(PROGRAM, buffers={**PROGRAM.buffers, ORDER.name: ORDER})
OF_RANK = replace(TOTAL, segment=axis_index(TOTAL.axis))
OUTSIDE = "reaches outside temporary scatter_add.order i32[30]: rank + 1"


@pytest.mark.cases(
    ("program", "number", "stage", "said"),
    (PROGRAM, 0, replace(SORT, key=HALF), "a key is not an integer: 0.5"),
    (PROGRAM, 1, replace(TOTAL, key=HALF), "a key is not an integer: 0.5"),
    (WIDE, 0, replace(SORT, dtype=int64), "positions cannot be i64"),
    (PROGRAM, 1, OF_RANK, "nothing iterates axis rank"),
    (PROGRAM, 0, replace(SORT, index=SORT.index + 1), OUTSIDE),
)
def test_faults_are_found(program, number, stage, said):
    steps = list(program.steps)
    steps[number] = replace(steps[number], stages=(stage, *steps[number].stages[1:]))
    assert said in problem_of(replace(program, steps=tuple(steps)))


def test_keys_are_not_overwritten_by_their_order():
    axis = Axis("rank", 8)
    here = axis_index(axis)
    buffers = {
        "x": Buffer("x", "input", (8,), int32),
        "a": Buffer("a", "temporary", (8,), int32),
        "b": Buffer("b", "temporary", (8,), int32),
    }
    first = Loop("0.copy", (axis,), (Write((), (Store("a", here, Load("x", here, int32)),)),))
    second = Loop("1.order", (), (Sort(axis, Load("a", here, int32), "b", here, int32),))
    allocations = (Allocation("a", 0, 32, 0, 1), Allocation("b", 0, 32, 1, 2, "a"))
    plan = Plan((32,), 32, allocations)
    program = Program("test", buffers, (first, second), (("y", "b"),), {}, plan)
    assert "in step 1, 1.order: loads a[rank], which may overlap" in problem_of(program)


def test_the_cpu_engine_runs_sorted_scatters():
    generator = np.random.default_rng(0)
    values, at = generator.normal(size=(30, 4)).astype(np.float32), generator.integers(0, 5, 30)
    expected = np.zeros((5, 4), np.float32)
    np.add.at(expected, at, values)
    executable = CpuEngine().compile(PROGRAM, {})
    executable.run([values, at])
    np.testing.assert_array_equal(executable.output("y"), expected)
    executable.release()
