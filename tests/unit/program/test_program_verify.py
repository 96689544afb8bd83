"""The check of a program names the fault and its step or buffer."""

from dataclasses import replace

import numpy as np
import pytest
from error_texts import problem_of

from lamina.base.shapes import bool_, float32, float64, int32, int64, uint8, uint32
from lamina.program import dtypes
from lamina.program.check import verify
from lamina.program.index import Axis, Index, Remainder, axis_index, flatten, gathered_index
from lamina.program.points import find_meeting_points, find_point_outside
from lamina.program.program import Allocation, Buffer, Plan, Program, Repeat
from lamina.program.scalar import PRIMITIVES, Apply, Bound, Literal, Load, Local, Position, Within
from lamina.program.steps import Contraction, Loop, Reduce, Scan, SegmentSum, Sort, Store, Write

pytestmark = pytest.mark.each_case

ROWS, COLUMNS = Axis("i", 4), Axis("k", 6)
ROW, COLUMN = axis_index(ROWS), axis_index(COLUMNS)
HERE = flatten((ROW, COLUMN), (4, 6))
SIZE = 24


def program(*steps, repeats=()):
    """Steps that may read x, n, d, m and at, and write y, z, w and order."""
    shapes = {
        "x": ("input", (4, 6), float32),
        "n": ("input", (4, 6), int64),
        "d": ("input", (4, 6), float64),
        "m": ("input", (4, 6), bool_),
        "at": ("input", (6,), int64),
        "p": ("parameter", (4, 6), float32),
        "y": ("state", (4, 6), float32),
        "z": ("state", (4, 6), float32),
        "w": ("state", (4, 6), float64),
        "counts": ("state", (4, 6), int64),
        "flags": ("state", (4, 6), bool_),
        "order": ("temporary", (6,), int32),
    }
    buffers = {name: Buffer(name, *rest) for name, rest in shapes.items()}
    plan = Plan((64,), 64, (Allocation("order", 0, 24, 0, len(steps)),))
    return Program("test", buffers, steps, (("y", "y"),), {}, plan, repeats)


def load(buffer, index=HERE, dtype=float32):
    return Load(buffer, index, dtype)


def loop(*stages, axes=(ROWS,), name="0.step"):
    return Loop(name, axes, stages)


def write(*stores, axes=(COLUMNS,), sequential=False):
    return Write(axes, stores, sequential)


def stored(index, *, accumulate=False, buffer="y"):
    return Store(buffer, index, load("x"), accumulate)


PICKED = gathered_index(load("at", COLUMN, int64), 6)
DISTINCT = {
    "rows and columns": HERE,
    "columns and rows": flatten((COLUMN, ROW), (6, 4)),
    "backwards": HERE * -1 + (SIZE - 1),
    "in other shapes": flatten((HERE // 8, HERE % 8), (3, 8)),
    "by quotients and remainders": flatten((HERE % 8, HERE // 8), (8, 3)),
    "in three digits": flatten((HERE % 2, HERE // 6, HERE // 2 % 3), (2, 4, 3)),
    "in digits that split no axis": flatten((HERE % 4, HERE // 4), (4, 6)),
}
MEETING = {
    "a sum of axes": ROW + COLUMN,
    "strides that are too short": ROW * 5 + COLUMN,
    "a quotient alone": HERE // 2 * 2,
    "digits that are not all there": flatten((HERE % 4, HERE // 8), (4, 3)),
    "indices from data": PICKED + ROW * 6,
}


@pytest.mark.parametrize("index", DISTINCT.values(), ids=DISTINCT)
def test_stores_that_reach_each_element_once_pass(index):
    verify(program(loop(write(stored(index)))))
    verify(program(loop(write(stored(index, accumulate=True)))))


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("index", MEETING.values(), ids=MEETING)
def test_points_that_may_store_in_one_element_are_found(index, accumulate):
    text = problem_of(program(loop(write(stored(index, accumulate=accumulate)))))
    assert f"in step 0, 0.step: stores y[{index}] in one element, at i = " in text


def guarded(index, *bounds):
    return loop(write(Store("y", HERE, Load("x", index, float32, bounds))))


@pytest.mark.cases(
    ("index", "bounds"),
    (flatten((ROW, COLUMN - 1), (4, 6)), [Bound(COLUMN - 1, 0, 6)]),
    (flatten((ROW + COLUMN - 2, COLUMN), (4, 6)), [Bound(ROW + COLUMN - 2, 0, 4)]),
    (flatten((ROW * 2 - COLUMN, COLUMN), (4, 6)), [Bound(ROW * 2 - COLUMN, 0, 4)]),
    (
        flatten(((ROW + COLUMN + 1) // 2 - 1, COLUMN), (4, 6)),
        [Bound(ROW + COLUMN - 1, 0, 7), Bound((ROW + COLUMN + 1) % 2, 0, 1)],
    ),
    (flatten((ROW + COLUMN // 2 - 1, COLUMN % 2), (4, 6)), [Bound(ROW * 2 + COLUMN - 2, 0, 8)]),
    (ROW * 6 + COLUMN * 6 - 6, [Bound(COLUMN * 2 - 2, 0, 1), Bound(ROW, 0, 4)]),
    (HERE - 12, [Bound(HERE // 6, 2, 4)]),
    (HERE + 100, [Bound(COLUMN * 2 - 1, 0, 1)]),
)
def test_loads_that_bounds_keep_inside_pass(index, bounds):
    verify(program(guarded(index, *bounds)))


@pytest.mark.cases(
    ("index", "bounds", "reached"),
    (HERE - 1, [Bound(COLUMN - 1, -1, 6)], "element -1 at i = 0, k = 0"),
    (HERE + 6, [Bound(COLUMN, 0, 3)], "element 24 at i = 3, k = 0"),
    (
        flatten((ROW + COLUMN - 2, COLUMN), (4, 6)),
        [Bound(ROW + COLUMN - 2, 0, 5)],
        "element 29 at i = 1, k = 5",
    ),
    (HERE + 1, [Bound(ROW, 0, 4), Bound(COLUMN, 0, 6)], "element 24 at i = 3, k = 5"),
)
def test_loads_that_bounds_let_reach_outside_are_found(index, bounds, reached):
    text = problem_of(program(guarded(index, *bounds)))
    assert f"reaches outside input x f32[4, 6]: x[{index} if " in text
    assert f", {reached}" in text


def test_a_fault_is_found_among_more_points_than_are_computed():
    long, longer = Axis("i", 3000), Axis("k", 5000)
    row, column = axis_index(long), axis_index(longer)
    size = 3000 * 5000
    full = flatten((row, column), (3000, 5000))
    kept = Load("x", full + 1, float32, (Bound((column + 1) % 5000, 1, 5000),))
    assert not find_point_outside(kept, size)
    assert find_point_outside(
        Load("x", full + 1, float32, (Bound(column % 5000, 0, 5000),)), size
    ) == ("element 15000000 at i = 2999, k = 4999")
    axes = long, longer
    assert not find_meeting_points(full, axes, full, axes, axes)
    short = row * 4999 + column
    assert (
        find_meeting_points(short, axes, short, axes, axes)
        == "at i = 0, k = 4999 and at i = 1, k = 0"
    )


def computing(value, buffer="y"):
    return loop(write(Store(buffer, HERE, value)))


X, N, D, M = load("x"), load("n", dtype=int64), load("d", dtype=float64), load("m", dtype=bool_)


@pytest.mark.cases(
    ("value", "said"),
    (Apply("add", (X, D), float32), "add of f32 and f64 cannot be f32"),
    (Apply("add", (X, X), float64), "add of f32 and f32 cannot be f64"),
    (Apply("exp", (N,), int64), "exp of i64 cannot be i64"),
    (Apply("less", (X, X), float32), "less of f32 and f32 cannot"),
    (Apply("equal", (X, N), bool_), "equal of f32 and i64 cannot"),
    (Apply("select", (X, X, X), float32), "select of f32, f32 and f32 cannot be f32"),
    (Apply("select", (M, X, D), float32), "select of bool, f32 and f64 cannot"),
    (Apply("logical_not", (X,), bool_), "logical_not of f32 cannot be bool"),
    (Apply("random_bits", (X,) * 4, uint32), "random_bits of f32, f32, f32"),
    (Apply("sort_key", (X,), int64), "sort_key of f32 cannot be i64"),
    (Apply("shift_right", (X, X), float32), "shift_right of f32 and f32"),
    (Literal(0.5, int64), "the number 0.5 cannot be i64"),
    (Literal(300, uint8), "the number 300 cannot be u8"),
    (Literal("1", float32), "the number '1' cannot be f32"),
    (Literal(2, bool_), "the number 2 cannot be bool"),
    (Position(HERE, float32), "positions are i64, not f32"),
    (Within((Bound(COLUMN, 0, 3),), float32), "bounds are bool, not f32"),
    (
        load("x", gathered_index(load("x", COLUMN), 6)),
        "an index read from data must be an integer, not f32",
    ),
)
def test_scalars_of_dtypes_that_do_not_fit_are_found(value, said):
    # The cast gives the stored value the right dtype: only its operands are wrong.
    text = problem_of(program(computing(Apply("cast", (value,), float32))))
    assert f"in step 0, 0.step: {said}" in text


def test_there_is_a_rule_for_each_primitive():
    assert dtypes._RULES.keys() == PRIMITIVES.keys()


ITERATION, ELEMENT = Axis("iteration", 3), Axis("c", 2)
LEFT = flatten((ROW, axis_index(Axis("k", 3))), (4, 6))
MIRRORED, TURNED = flatten((ROW, COLUMN * -1 + 5), (4, 6)), flatten((ROW * -1 + 3, COLUMN), (4, 6))
ZEROS, TOP, ROW_OF_X = Literal(0.0, float32), load("x", COLUMN), load("x", ROW)
TOTAL = Reduce("r", "sum", (COLUMNS,), X, float32)
OF_TOTAL = write(Store("y", ROW, Local("r", float32)), axes=())
SORT = Sort(COLUMNS, load("at", COLUMN, int64), "order", COLUMN, int32)
SUM = Local("sum", float32)
PLAIN = load("at", COLUMN, int64)
SMALL, DEEP = Bound(COLUMN, 0, 5), Bound(gathered_index(PLAIN, 6) - 2, 0, 4)


def scattered(index):
    return write(stored(index, accumulate=True), sequential=True)


def partly(*shifts):
    """Stores in the left half, or further to the right."""
    stores = [Store("y", LEFT + shift, load("x", LEFT)) for shift in shifts]
    return loop(write(*stores, axes=(Axis("k", 3),)))


def product(index=HERE, left=ROW_OF_X, *, accumulate=False):
    return Contraction(
        *("0.step", (), (ROWS,), (COLUMNS,), (ELEMENT,)),
        *(left, load("p", COLUMN), "sum", float32, (Store("y", index, SUM, accumulate),)),
    )


def scan(index=HERE, combine="sum", dtype=float32):
    return loop(Scan(COLUMNS, combine, X, "y", index, dtype))


ALLOWED = {
    "additions in order at one point": loop(
        write(Store("y", COLUMN * 4 + ROW, ZEROS)), scattered(PICKED * 4 + ROW)
    ),
    "halves of a buffer": partly(0, 3),
    "rows of a buffer": loop(
        write(Store("y", COLUMN, TOP), Store("y", COLUMN + 6, TOP), axes=()), axes=(COLUMNS,)
    ),
    "later stages at their own point": loop(write(stored(HERE)), write(stored(MIRRORED))),
    "elements that are exchanged": loop(
        write(Store("y", COLUMN, load("y", COLUMN + 6)), Store("y", COLUMN + 6, load("y", COLUMN))),
        axes=(),
    ),
    "gathered indices with guards that hold": guarded(
        gathered_index(Load("at", COLUMN, int64, (SMALL, DEEP)), 6) - 2, SMALL, DEEP
    ),
}
IN_ONE = "stores y[i + k] in one element, at i = 0, k = 1 and at i = 1, k = 0"
REFUSED = [
    *(
        (
            loop(scattered(PICKED + ROW * stride)),
            f"stores y[{PICKED + ROW * stride}] in one element, at i = ",
        )
        for stride in (1, 5)
    ),
    (product(ROW + COLUMN, accumulate=True), IN_ONE),
    (scan(ROW + COLUMN), IN_ONE),
    (partly(0, 0), f"stores y[{LEFT}] in one element, at i = 0, k = 0 and at i = 0, k = 0"),
    *(
        (
            partly(0, shift),
            f"stores y[{LEFT}] and y[{LEFT + shift}] in one element, at i = 0, k = {shift} and at ",
        )
        for shift in (1, 2)
    ),
    (
        loop(write(stored(HERE)), write(stored(TURNED))),
        f"stores y[{HERE}] and y[{TURNED}] in one element, at i = 0, k = 0 and at i = 3, k = 0",
    ),
    (
        loop(
            write(Store("y", COLUMN, TOP), Store("y", COLUMN + 6, load("y", COLUMN * -1 + 5))),
            axes=(),
        ),
        "loads y[-1*k + 5], which may overlap what another point or an earlier stage",
    ),
    (computing(D), "accesses state y f32[4, 6] as f64"),
    (computing(load("x", dtype=float64), "w"), "accesses input x f32[4, 6] as f64"),
    (loop(Reduce("r", "sum", (COLUMNS,), X, float64)), "r is f64, but the sum of f32 is f32"),
    (loop(Reduce("r", "argmax", (COLUMNS,), X, float32)), "r is f32, but the argmax of f32 is i64"),
    (loop(Reduce("r", "sum", (), load("x", ROW), float64)), "r is f64, but its value is f32"),
    (scan(dtype=float64), "y is f64, but the sum of f32 is f32"),
    (loop(SegmentSum("r", COLUMNS, N, ROW, X, float64)), "r is f64, but the sum of f32 is f32"),
    (product(left=load("d", ROW, float64)), "sum is f32, but multiplies f64 by f32"),
    (loop(OF_TOTAL, TOTAL), "uses the local r before it is defined"),
    (
        loop(Reduce("r", "sum", (COLUMNS,), Local("r", float32), float32), OF_TOTAL),
        "uses the local r before it is defined",
    ),
    (
        loop(
            write(
                Store("y", ROW * 6 + gathered_index(Local("r", int64), 6), load("x", ROW)), axes=()
            )
        ),
        "uses the local r before it is defined",
    ),
    (product(left=SUM), "uses the local sum before it is defined"),
    (
        loop(TOTAL, write(Store("w", ROW, Local("r", float64)), axes=())),
        "uses the local r, which is f32, as f64",
    ),
    (loop(TOTAL, TOTAL, OF_TOTAL), "defines the local r twice"),
    *(
        (loop(Scan(COLUMNS, combine, N, "counts", HERE, int64)), f"there is no running {combine}")
        for combine in ("argmax", "argmin")
    ),
    (
        loop(SORT, write(Store("y", Index(0), ZEROS), axes=()), axes=()),
        "in step 0, 0.step: a sort must be the only stage of its loop",
    ),
]


def row_loop(name, target, value, index=0):
    return loop(write(Store(target, ROW + index, value), axes=()), name=name)


def doubled(source):
    return Apply("add", (load(source, ROW), load(source, ROW)), float32)


# a = x + x; b = a + a; b is the output.
BUFFERS = {
    "x": Buffer("x", "input", (4,), float32),
    "p": Buffer("p", "parameter", (2, 2), float32),
    "a": Buffer("a", "temporary", (4,), float32),
    "b": Buffer("b", "temporary", (4,), float32),
}
FIRST, SECOND = row_loop("first", "a", doubled("x")), row_loop("second", "b", doubled("a"))
OF_A, OF_B = Allocation("a", 0, 16, 0, 1), Allocation("b", 16, 16, 1, 2)
SOUND = Program("test", BUFFERS, (FIRST, SECOND), (("y", "b"),), {}, Plan((32,), 32, (OF_A, OF_B)))


def steps_of(*given):
    """The program with other steps; b lives until after the last one."""
    plan = Plan((32,), 32, (OF_A, replace(OF_B, last=len(given))))
    return replace(SOUND, steps=given, plan=plan)


def third(value, target="b", index=0):
    return steps_of(FIRST, SECOND, row_loop("third", target, value, index))


def with_loop(stage, axis=ROWS):
    """The program with a third step of one stage."""
    return steps_of(FIRST, SECOND, Loop("third", (axis,), (stage,)))


def with_buffer(before, buffer):
    return replace(before, buffers={**BUFFERS, buffer.name: buffer})


def allocated(*allocations, size=32):
    return replace(SOUND, plan=Plan((size,), 32, allocations))


EMPTY = Buffer("p", "parameter", (0,), float32)
GUARDED = Load("p", ROW, float32, (Bound(ROW, 0, 4),))
NOTHING = Write((), (Store("p", Index(0), Literal(0.0, float32)),))
PASSING = {
    "sound": SOUND,
    "an update of a parameter": third(load("p", ROW), "p"),
    "an update under a bound that always holds": third(
        Apply("add", (GUARDED, GUARDED), float32), "p"
    ),
    "a guarded load": third(Load("x", ROW - 1, float32, (Bound(ROW - 1, 0, 4),))),
    "shared bytes at different times": replace(
        allocated(replace(OF_A, last=0), replace(OF_B, offset=0)),
        steps=(FIRST, row_loop("second", "b", doubled("x"))),
    ),
    "memory taken over in the step that reads it last": allocated(
        OF_A, Allocation("b", 0, 16, 1, 2, "a")
    ),
    "no store in a buffer without elements": with_buffer(with_loop(NOTHING, Axis("k", 0)), EMPTY),
}
BROKEN = [
    (steps_of(SECOND, FIRST), "step 0, second: reads ['a'] before it is written"),
    (third(load("b", ROW), "x"), "writes the input x"),
    (steps_of(FIRST), "the output y is never written"),
    (third(load("nowhere", ROW)), "uses the unknown buffer nowhere"),
    (
        with_loop(Reduce("r", "sum", (), load("x", ROW, float64), float64)),
        "accesses input x f32[4] as f64",
    ),
    (third(load("x", ROW + 1)), "reaches outside input x f32[4]"),
    (third(load("x", ROW - 1)), "reaches outside input x f32[4]"),
    (third(load("x", ROW), "b", 1), "reaches outside temporary b f32[4]"),
    (third(Load("x", Index(4), float32)), "reaches outside input x f32[4]: 4"),
    (allocated(OF_A, replace(OF_B, offset=12)), "a and b share bytes while alive"),
    (
        allocated(replace(OF_A, last=2), Allocation("b", 0, 16, 1, 2, "a")),
        "a and b share bytes while alive",
    ),
    *(
        (
            allocated(Allocation("b", offset, 16, 1, 2), Allocation("a", 0, 4, 0, 0), size=size),
            "b is outside the arena",
        )
        for offset, size in ((20, 32), (-4, 32), (16, 24))
    ),
    (
        allocated(replace(OF_A, bytes=8), OF_B),
        "there is no room in the arena for temporary a f32[4]",
    ),
    (third(Apply("cube", (load("x", ROW),), float32)), "there is no primitive like cube(x[i])"),
    (third(Apply("add", (load("x", ROW),), float32)), "there is no primitive like"),
    (
        with_loop(Reduce("r", "median", (), load("x", ROW), float32)),
        "there is no combiner 'median'",
    ),
    (
        with_loop(Reduce("r", "sum", (ROWS,), load("x", ROW), float32)),
        "in step 2, third: iterates axis i twice",
    ),
    (third(Load("x", axis_index(Axis("j", 4)), float32)), "nothing iterates axis j"),
    *(
        (with_loop(NOTHING, Axis("k", extent)), f"the extent of axis k cannot be {extent!r}")
        for extent in (-1, 4.0, 2**63, True)
    ),
    (
        with_buffer(SOUND, Buffer("b", "temporary", (-2, -2), float32)),
        "in b: an extent cannot be -2",
    ),
    (third(Load("x", Index(0, ((Remainder(ROW, 0), 1),)), float32)), "a divisor cannot be 0"),
    (replace(SOUND, repeats=(Repeat(Axis("t", 3), 1, 3),)), "steps 1 to 3 cannot be repeated"),
    (
        with_buffer(third(load("b", ROW), "p"), EMPTY),
        "in step 2, third: stores in p, which is empty",
    ),
    (third(Load("x", Index(1.5, ()), float32)), "a constant cannot be 1.5"),
    (
        third(Load("x", ROW, float32, (Bound(ROW, -(2**70), 4),))),
        "a bound reaches beyond 64 bits: -1180591620717411303424 <= i < 4",
    ),
    *(
        (
            with_buffer(replace(SOUND, constants=values), Buffer("c", "constant", (4,), float32)),
            text,
        )
        for values, text in (
            ({}, "this constant has no value"),
            ({"c": np.zeros(3, "float32")}, "c f32[4] has the value of a float32[3]"),
            ({"c": np.zeros(4, "float64")}, "c f32[4] has the value of a float64[4]"),
        )
    ),
    (
        replace(SOUND, constants={"x": np.zeros(4, "float32")}),
        "in x: has a value, but is not a constant buffer",
    ),
]


@pytest.mark.parametrize("name", [*PASSING, *ALLOWED])
def test_sound_programs_pass(name):
    verify(PASSING[name] if name in PASSING else program(ALLOWED[name]))


@pytest.mark.parametrize(
    ("broken", "said"), BROKEN + [(program(step), said) for step, said in REFUSED]
)
def test_a_fault_is_found_and_named(broken, said):
    assert said in problem_of(broken)


def test_iterations_of_a_repeat_may_store_in_one_element():
    store = Store("y", COLUMN + axis_index(ITERATION) * 6, load("p", COLUMN))
    step = loop(write(store, axes=()), axes=(COLUMNS,))
    verify(program(step, repeats=(Repeat(ITERATION, 0, 1),)))


def test_steps_of_one_name_are_found():
    text = problem_of(program(computing(X), computing(X, "z")))
    assert "in step 1, 0.step: step 0 has the same name" in text
