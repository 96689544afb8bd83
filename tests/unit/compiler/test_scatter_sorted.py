"""Sorts and segment sums: rules of the check, text, cost and memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from error_texts import problem_of
from program_cases import compiled

from lamina import ops
from lamina.base.shapes import float32, int32, int64
from lamina.compiler.pipeline import compile_graph
from lamina.engines import DEFAULT_TARGET
from lamina.engines.cpu.engine import CpuEngine
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.graph import Graph, leaf
from lamina.program.check import verify
from lamina.program.cost import cost_of, space_of
from lamina.program.index import Axis, axis_index
from lamina.program.program import Allocation, Buffer, Plan, Program
from lamina.program.rewrite import Rewrite
from lamina.program.scalar import Literal, Load
from lamina.program.steps import Loop, SegmentSum, Sort, Stage, Store, Write

IN_ORDER = replace(DEFAULT_TARGET, scatter="in order")
SORTED = replace(DEFAULT_TARGET, scatter="sorted")


def scatter(*, is_sorted: bool = True) -> Program:
    values, indices = leaf("v", "input", (30, 4), float32), leaf("at", "input", (30,), int64)
    graph = Graph((values, indices), (("y", ops.scatter_add(values, indices, 5)),))
    return compile_graph(graph, batch=1, name="test", target=SORTED if is_sorted else IN_ORDER)


def with_stage(program: Program, number: int, stage: Stage) -> Program:
    """The program with another first stage of one step."""
    step = program.steps[number]
    assert isinstance(step, Loop)
    changed = replace(step, stages=(stage, *step.stages[1:]))
    steps = (*program.steps[:number], changed, *program.steps[number + 1 :])
    return replace(program, steps=steps)


def stages(program: Program) -> tuple[Sort, SegmentSum]:
    first, second = program.steps
    assert isinstance(first, Loop)
    assert isinstance(second, Loop)
    sort, total = first.stages[0], second.stages[0]
    assert isinstance(sort, Sort)
    assert isinstance(total, SegmentSum)
    return sort, total


def test_both_steps_are_printed() -> None:
    at = "(4*@(maximum(minimum(at[{}], 4), 0)))"
    rank = "@(i64(scatter_add.order[rank]))"
    assert "\n".join(map(str, scatter().steps)) == (
        "loop 0.scatter_add.order over ()\n"
        f"  scatter_add.order[rank] = order(rank<30) {at.format('rank')}\n"
        "loop 1.scatter_add over (i0<5, k1<4)\n"
        f"  sum = sum(rank<30 where {at.format(rank)} == 4*i0) v[k1 + 4*{rank}]\n"
        "  scatter_add[4*i0 + k1] = sum"
    )
    assert [space_of(step) for step in scatter().steps] == ["1 : 30", "5 x 4 : 30"]


def test_every_value_is_added_once() -> None:
    program = scatter()
    order, total = (cost_of(step, program.buffers) for step in program.steps)
    assert (order.operations, order.read_bytes, order.written_bytes) == (0, 30 * 8, 30 * 4)
    assert total.operations == 30 * 4
    assert total.written_bytes == 5 * 4 * 4
    in_order = scatter(is_sorted=False)
    assert cost_of(in_order.steps[0], in_order.buffers).operations == 30 * 4


def test_keys_are_integers() -> None:
    sort, total = stages(scatter())
    wrong = Literal(0.5, float32)
    assert "a key is not an integer: 0.5" in problem_of(
        with_stage(scatter(), 0, replace(sort, key=wrong))
    )
    assert "a key is not an integer: 0.5" in problem_of(
        with_stage(scatter(), 1, replace(total, key=wrong))
    )


def test_positions_are_as_wide_as_their_axis_requires() -> None:
    sort, _ = stages(scatter())
    program = scatter()
    wide = replace(program.buffers["scatter_add.order"], dtype=int64)
    changed = replace(program, buffers={**program.buffers, wide.name: wide})
    text = problem_of(with_stage(changed, 0, replace(sort, dtype=int64)))
    assert "positions cannot be i64" in text


def test_the_index_of_a_segment_is_the_same_for_all_ranks() -> None:
    _, total = stages(scatter())
    text = problem_of(with_stage(scatter(), 1, replace(total, segment=axis_index(total.axis))))
    assert "nothing iterates axis rank" in text


def test_the_order_is_stored_inside_its_buffer() -> None:
    sort, _ = stages(scatter())
    text = problem_of(with_stage(scatter(), 0, replace(sort, index=sort.index + 1)))
    assert "reaches outside temporary scatter_add.order i32[30]: rank + 1" in text


def test_rewriting_goes_through_both_stages() -> None:
    first, second = scatter().steps
    renamed = Rewrite(buffer=lambda name: name.upper())
    sort, total = str(renamed.step(first)), str(renamed.step(second))
    assert "SCATTER_ADD.ORDER[rank] = order(rank<30) (4*@(maximum(minimum(AT[rank]" in sort
    assert "V[k1 + 4*@(i64(SCATTER_ADD.ORDER[rank]))]" in total
    assert "v[" not in total


def test_keys_are_not_overwritten_by_their_order() -> None:
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


def test_the_planner_gives_the_order_memory_apart_from_the_keys() -> None:
    indices = leaf("at", "input", (30,), int32)
    values = leaf("v", "input", (30,), float32)
    computed = ops.cumsum(indices, 0)
    graph = Graph((values, indices), (("y", ops.scatter_add(values, computed, 40)),))
    program = compiled(graph, SORTED)
    verify(program)
    taken = {one.buffer: one.in_place_of for one in program.plan.allocations}
    assert taken["scatter_add.order"] == ""


def test_the_cpu_engine_runs_sorted_scatters() -> None:
    generator = np.random.default_rng(0)
    values, at = generator.normal(size=(30, 4)).astype(np.float32), generator.integers(0, 5, 30)
    expected = np.zeros((5, 4), np.float32)
    np.add.at(expected, at, values)
    executable = CpuEngine().compile(scatter(), {})
    executable.run([values, at])
    np.testing.assert_array_equal(executable.output("y"), expected)
    executable.release()


def test_the_interpreter_times_both_steps() -> None:
    executable = InterpreterEngine().compile(scatter(), {})
    assert executable.step_seconds().shape == (2,)
