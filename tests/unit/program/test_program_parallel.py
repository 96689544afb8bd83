"""Points of a step are independent: the check finds dependent ones, and results show them."""

import re
from dataclasses import replace

import numpy as np
import pytest
from error_texts import problem_of
from program_cases import program_of

import lamina as lm
from lamina import ops
from lamina.base.shapes import float32, int64
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.errors import InternalError
from lamina.graph import leaf
from lamina.program.check import verify
from lamina.program.index import Axis, Index, axis_index, flatten
from lamina.program.parallel import parallel_axes
from lamina.program.program import Allocation, Buffer, Plan, Program, Repeat
from lamina.program.scalar import Apply, Bound, Load, Local
from lamina.program.steps import Contraction, Loop, Reduce, Store, Write

ROWS, COLUMNS = 6, 8
POINT, INNER = Axis("i", ROWS), Axis("k", COLUMNS)
HERE = flatten((axis_index(POINT), axis_index(INNER)), (ROWS, COLUMNS))
SIZE = ROWS * COLUMNS


def load(buffer, index=HERE):
    return Load(buffer, index, float32)


def add(left, right):
    return Apply("add", (left, right), float32)


def at_points(*stores):
    return Loop("1.step", (POINT, INNER), (Write((), stores),))


def in_rows(*stores):
    """Stages that store along the rows."""
    return Loop("1.step", (POINT,), tuple(Write((INNER,), (one,)) for one in stores))


def everywhere(value, index=HERE):
    return at_points(Store("b", index, value))


def by_rows(target, value):
    """Adds up each row of the target's buffer, then stores the value, with the sum added."""
    total = Reduce("r0", "sum", (INNER,), load("a"), float32)
    stored = Store(target, HERE, add(value, Local("r0", float32)))
    return Loop("1.step", (POINT,), (total, Write((INNER,), (stored,))))


def program(step, *, in_place=True):
    """a = x; then a step that computes b, in the memory of a or next to it."""
    shape = (ROWS, COLUMNS)
    buffers = {
        "x": Buffer("x", "input", shape, float32),
        "p": Buffer("p", "parameter", shape, float32),
        "a": Buffer("a", "temporary", shape, float32),
        "b": Buffer("b", "temporary", shape, float32),
    }
    first = Loop("0.step", (POINT, INNER), (Write((), (Store("a", HERE, load("x")),)),))
    length = SIZE * 4
    allocations = (
        Allocation("a", 0, length, 0, 1),
        Allocation("b", 0 if in_place else length, length, 1, 2, "a" if in_place else ""),
    )
    plan = Plan((2 * length,), 2 * length, allocations)
    return Program("test", buffers, (first, step), (("y", "b"),), {}, plan)


def result(compiled, *, poison):
    """The output, and the parameter after the run."""
    engine = InterpreterEngine(poison=poison)
    memory = engine.allocate((ROWS, COLUMNS), np.dtype("float32"))
    memory.write(np.arange(SIZE, dtype="float32").reshape(ROWS, COLUMNS) ** 2)
    executable = engine.compile(compiled, {"p": memory})
    executable.run([np.cos(np.arange(SIZE, dtype="float32")).reshape(ROWS, COLUMNS)])
    return executable.output("y").tobytes(), memory.read().tobytes()


def contraction():
    """b = a @ s, with s full of the first element of x: each sum reads a row of a."""
    n = Axis("n", COLUMNS)
    index = flatten((axis_index(POINT), axis_index(n)), (ROWS, COLUMNS))
    return Contraction(
        *("1.step", (), (POINT,), (n,), (INNER,)),
        *(load("a"), load("x", Index(0)), "sum", float32),
        (Store("b", index, Local("sum", float32)),),
    )


BACKWARDS = HERE * -1 + (SIZE - 1)
ROW_BACKWARDS = flatten(
    (axis_index(POINT), axis_index(INNER) * -1 + (COLUMNS - 1)), (ROWS, COLUMNS)
)

TO_B = Store("b", HERE, load("x"))
GUARDED = Load("a", HERE, float32, (Bound(axis_index(INNER), 1, COLUMNS),))
# Steps: a point overwrites an element that another point reads.
BROKEN = {
    "an operand is read elsewhere": everywhere(load("a", BACKWARDS)),
    "an operand is read here and elsewhere": everywhere(add(load("a"), load("a", BACKWARDS))),
    "every point reads the first one": everywhere(add(load("a"), load("a", Index(0)))),
    "a parameter is read elsewhere": at_points(Store("p", HERE, load("p", BACKWARDS)), TO_B),
    "the points of a row read each other": in_rows(Store("b", HERE, load("a", ROW_BACKWARDS))),
    "a contraction overwrites its operand": contraction(),
    "two results share memory": at_points(Store("a", HERE, load("x")), TO_B),
    "a later stage reads what an earlier one overwrote": in_rows(TO_B, Store("p", HERE, load("a"))),
    "a guarded load": everywhere(GUARDED),
}
# Of these, the order of points does not change the outcome.
ORDERED = "two results share memory", "a later stage reads what an earlier one overwrote"
ORDERED += ("a guarded load",)


@pytest.mark.parametrize("name", BROKEN)
def test_points_that_depend_on_each_other_are_found(name):
    """They give other results in an adversarial order, but not in memory of their own."""
    broken = program(BROKEN[name])
    text = problem_of(broken)
    assert re.match(r"in step 1, 1\.step: (loads|stores)", text)
    if name == "an operand is read elsewhere":
        assert text == (
            "in step 1, 1.step: loads a[-8*i + -1*k + 47], which may overlap what another point or "
            "an earlier stage stores in b[8*i + k]"
        )
    if name not in ORDERED:
        assert result(broken, poison=True) != result(broken, poison=False)
    if name in ("an operand is read elsewhere", "a contraction overwrites its operand"):
        sound = program(BROKEN[name], in_place=False)
        verify(sound)
        assert result(sound, poison=True) == result(sound, poison=False)


def test_ranges_of_a_buffer_that_do_not_overlap_may_be_read_and_written():
    half = Axis("k", COLUMNS // 2)
    index = flatten((axis_index(POINT), axis_index(half)), (ROWS, COLUMNS // 2))
    moved = Store("p", index, load("p", index + SIZE // 2))
    write = Write((), (moved, Store("b", index, load("x", index))))
    verify(program(Loop("1.step", (POINT, half), (write,))))


def test_rows_of_other_iterations_may_be_read_by_contractions_with_guards():
    iteration, wide = Axis("iteration", 3), Axis("w", 3)
    row = axis_index(iteration) * COLUMNS
    column = axis_index(INNER) + axis_index(wide) - 1
    inside = (Bound(column, 0, COLUMNS),)
    shape = (4, COLUMNS)
    buffers = {
        "x": Buffer("x", "input", (3,), float32),
        "h": Buffer("h", "temporary", shape, float32),
    }
    first = Loop(
        "0.initial", (INNER,), (Write((), (Store("h", axis_index(INNER), load("x", Index())),)),)
    )

    def repeated(later):
        stores = (Store("h", row + later + axis_index(INNER), Local("sum", float32)),)
        step = Contraction(
            *("1.step", (), (INNER,), (), (wide,)),
            Load("h", row + column, float32, inside),
            load("x", axis_index(wide)),
            *("sum", float32, stores),
        )
        plan = Plan((128,), 128, (Allocation("h", 0, 128, 0, 2),))
        repeats = (Repeat(iteration, 1, 2),)
        return Program("test", buffers, (first, step), (("y", "h"),), {}, plan, repeats)

    verify(repeated(COLUMNS))
    with pytest.raises(InternalError, match="which may overlap"):
        verify(repeated(COLUMNS - 1))


CORNER = axis_index(POINT) * COLUMNS
SUMMED = by_rows("b", load("a"))
OWN_RANGES = in_rows(Store("p", HERE, load("a")), Store("b", HERE, load("x")))
OF_CORNER = Write((INNER,), (Store("b", HERE, load("p", CORNER)),))
OVERWRITTEN = Loop(
    "1.step", (POINT,), (OF_CORNER, Write((), (Store("p", CORNER, load("x", CORNER)),)))
)
# Programs, and the axes along which their second step may be split.
SPLIT = {
    "not rows that are overwritten after their sum": (program(SUMMED), ["i"]),
    "rows that are not overwritten": (program(SUMMED, in_place=False), ["i", "k"]),
    "rows, if each stage reads its own range": (program(OWN_RANGES), ["i", "k"]),
    "not rows that read one stored value": (program(OVERWRITTEN, in_place=False), ["i"]),
    "the result of a contraction": (program(contraction(), in_place=False), ["i", "n"]),
}


@pytest.mark.cases("one, axes", SPLIT)
def test_steps_are_split_along_axes_whose_points_are_independent(one, axes):
    assert [axis.name for axis in parallel_axes(one, 1)] == axes
    verify(one)
    assert result(one, poison=True) == result(one, poison=False)


def test_results_show_rows_that_are_split_wrongly(monkeypatch):
    step = program(by_rows("b", load("a")))
    right = result(step, poison=True)
    engine = "lamina.engines.interpreter.engine"
    monkeypatch.setattr(f"{engine}.parallel_axes", lambda *_: (POINT, INNER))
    assert result(step, poison=True) != right


def test_a_scatter_in_order_is_split_along_axes_that_are_not_scattered():
    values = leaf("v", "input", (5, 4), float32)
    indices = leaf("i", "input", (5,), int64)
    compiled = program_of(ops.scatter_add(values, indices, 3))
    assert [axis.extent for axis in parallel_axes(compiled, 0)] == [4]


def test_softmax_in_the_memory_of_its_operand_is_split_by_rows():
    x = leaf("x", "input", (5, 7), float32)
    y = leaf("w", "input", (7, 7), float32)
    compiled = program_of(ops.softmax(ops.matmul(x, y), 1))
    last = len(compiled.steps) - 1
    assert any(allocation.in_place_of for allocation in compiled.plan.allocations)
    assert [axis.extent for axis in parallel_axes(compiled, last)] == [5]


def test_every_step_of_a_training_may_be_split_along_its_own_axes():
    net = lm.Sequential(lm.Input(9), lm.Linear(20), lm.LayerNorm(), lm.GELU(), lm.Linear(4))
    compiled = net.plan(4, lm.CrossEntropy(), lm.Adam(1e-3)).program
    for number, step in enumerate(compiled.steps):
        own = step.axes
        assert parallel_axes(compiled, number)[: len(own)] == own


def test_plain_stores_in_one_element_are_found():
    with pytest.raises(InternalError, match=r"stores b\[i\] in one element, at i = 0, k = 0 and"):
        verify(program(everywhere(load("a"), axis_index(POINT))))


def test_a_buffer_that_another_iteration_reads_stays_allocated():
    good = program(everywhere(add(load("a"), load("x"))), in_place=False)
    first, second = good.plan.allocations
    plan = replace(good.plan, allocations=(first, replace(second, last=3)))
    steps = (*good.steps, replace(good.steps[0], name="2.step"))
    repeats = (Repeat(Axis("iteration", 3), 1, 3),)
    text = problem_of(replace(good, steps=steps, plan=plan, repeats=repeats))
    assert "a is allocated in the arena at other times" in text


def test_a_local_keeps_its_value_when_its_source_is_overwritten():
    local = Reduce("r0", "sum", (), load("p", CORNER), float32)
    write = Write((), (Store("p", CORNER, load("x", CORNER)),))
    later = Write((INNER,), (Store("b", HERE, Local("r0", float32)),))
    step = Loop("1.step", (POINT,), (local, write, later))
    verify(program(step, in_place=False))
    expected = np.repeat(np.arange(0, SIZE, COLUMNS, dtype="float32") ** 2, COLUMNS)
    for poison in (False, True):
        output = np.frombuffer(result(program(step, in_place=False), poison=poison)[0], "float32")
        np.testing.assert_array_equal(output, expected)
