"""The check of a program enforces the rules of steps, dtypes and locals."""

from __future__ import annotations

import pytest

from lamina.base.shapes import DType, bool_, float32, float64, int32, int64, uint8, uint32
from lamina.errors import InternalError
from lamina.program import dtypes
from lamina.program.check import verify
from lamina.program.index import Axis, Index, axis_index, constant_index, flatten, gathered_index
from lamina.program.points import meeting, outside
from lamina.program.program import Allocation, Buffer, Plan, Program, Repeat
from lamina.program.scalar import (
    PRIMITIVES,
    Apply,
    Bound,
    Literal,
    Load,
    Local,
    Position,
    Scalar,
    Within,
)
from lamina.program.steps import (
    Contraction,
    Loop,
    Reduce,
    Scan,
    SegmentSum,
    Sort,
    Stage,
    Step,
    Store,
    Write,
)

pytestmark = pytest.mark.each_case

ROWS, COLUMNS = Axis("i", 4), Axis("k", 6)
ROW, COLUMN = axis_index(ROWS), axis_index(COLUMNS)
HERE = flatten((ROW, COLUMN), (4, 6))
SIZE = 24


def program(*steps: Step, repeats: tuple[Repeat, ...] = ()) -> Program:
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


def load(buffer: str, index: Index = HERE, dtype: DType = float32) -> Load:
    return Load(buffer, index, dtype)


def loop(*stages: Stage, axes: tuple[Axis, ...] = (ROWS,), name: str = "0.step") -> Loop:
    return Loop(name, axes, stages)


def write(*stores: Store, axes: tuple[Axis, ...] = (COLUMNS,), sequential: bool = False) -> Write:
    return Write(axes, stores, sequential)


def problem_of(*steps: Step, repeats: tuple[Repeat, ...] = ()) -> str:
    with pytest.raises(InternalError) as caught:
        verify(program(*steps, repeats=repeats))
    return str(caught.value)


def stored(index: Index, *, accumulate: bool = False, buffer: str = "y") -> Store:
    return Store(buffer, index, load("x"), accumulate)


# Stores of different points -----------------------------------------------------------------------

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
def test_stores_that_reach_each_element_once_pass(index: Index) -> None:
    verify(program(loop(write(stored(index)))))
    verify(program(loop(write(stored(index, accumulate=True)))))


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("index", MEETING.values(), ids=MEETING)
def test_points_that_may_store_in_one_element_are_found(index: Index, accumulate: bool) -> None:
    text = problem_of(loop(write(stored(index, accumulate=accumulate))))
    assert f"in step 0, 0.step: stores y[{index}] in one element, at i = " in text


def test_additions_in_order_may_meet_at_one_point_of_the_loop() -> None:
    zeros = write(Store("y", HERE, Literal(0.0, float32)))
    verify(program(loop(zeros, write(stored(PICKED + ROW * 6, accumulate=True), sequential=True))))
    by_column = write(stored(PICKED * 4 + ROW, accumulate=True), sequential=True)
    cleared = write(Store("y", COLUMN * 4 + ROW, Literal(0.0, float32)))
    verify(program(loop(cleared, by_column)))


@pytest.mark.parametrize("stride", [1, 5])
def test_additions_in_order_of_parallel_points_must_not_meet(stride: int) -> None:
    addition = stored(PICKED + ROW * stride, accumulate=True)
    text = problem_of(loop(write(addition, sequential=True)))
    assert f"stores y[{addition.index}] in one element, at i = " in text


def test_accumulating_sums_of_a_contraction_must_not_meet() -> None:
    def step(index: Index) -> Contraction:
        return Contraction(
            *("0.step", (), (ROWS,), (COLUMNS,), (Axis("c", 2),)),
            *(load("x", ROW), load("p", COLUMN), "sum", float32),
            (Store("y", index, Local("sum", float32), accumulate=True),),
        )

    verify(program(step(HERE)))
    said = "stores y[i + k] in one element, at i = 0, k = 1 and at i = 1, k = 0"
    assert said in problem_of(step(ROW + COLUMN))


def test_a_scan_stores_each_of_its_values() -> None:
    def scan(index: Index) -> Loop:
        return loop(Scan(COLUMNS, "sum", load("x"), "y", index, float32))

    verify(program(scan(HERE)))
    said = "stores y[i + k] in one element, at i = 0, k = 1 and at i = 1, k = 0"
    assert said in problem_of(scan(ROW + COLUMN))


def test_iterations_of_a_repeat_may_store_in_one_element() -> None:
    iteration = Axis("iteration", 3)
    row = axis_index(iteration) * 6
    store = Store("y", COLUMN + row, load("p", COLUMN))
    step = loop(write(store, axes=()), axes=(COLUMNS,))
    verify(program(step, repeats=(Repeat(iteration, 0, 1),)))


# Several stores of one step -----------------------------------------------------------------------

HALF = Axis("k", 3)
LEFT = flatten((ROW, axis_index(HALF)), (4, 6))


def partly(shift: int) -> Store:
    """Stores in the left half, or further to the right."""
    return Store("y", LEFT + shift, load("x", LEFT))


def test_stores_in_different_halves_of_a_buffer_pass() -> None:
    halves = write(partly(0), partly(3), axes=(HALF,))
    verify(program(loop(halves)))
    row = load("x", COLUMN)
    top = write(Store("y", COLUMN, row), Store("y", COLUMN + 6, row), axes=())
    verify(program(loop(top, axes=(COLUMNS,))))


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_stores_that_overlap_are_found(shift: int) -> None:
    text = problem_of(loop(write(partly(0), partly(shift), axes=(HALF,))))
    elements = f"y[{LEFT}]" if not shift else f"y[{LEFT}] and y[{LEFT + shift}]"
    assert f"stores {elements} in one element, at i = 0, k = {shift} and at i = 0, k = 0" in text


def test_later_stages_store_only_in_elements_of_their_own_point() -> None:
    backwards = flatten((ROW * -1 + 3, COLUMN), (4, 6))
    text = problem_of(loop(write(stored(HERE)), write(stored(backwards))))
    at = "at i = 0, k = 0 and at i = 3, k = 0"
    assert f"stores y[{HERE}] and y[{backwards}] in one element, {at}" in text
    mirrored = flatten((ROW, COLUMN * -1 + 5), (4, 6))
    verify(program(loop(write(stored(HERE)), write(stored(mirrored)))))


def test_elements_overwritten_by_another_store_are_loaded_at_their_own_point_only() -> None:
    there = COLUMN + 6
    swapped = write(Store("y", COLUMN, load("y", there)), Store("y", there, load("y", COLUMN)))
    verify(program(loop(swapped, axes=())))
    mirrored = Store("y", there, load("y", COLUMN * -1 + 5))
    text = problem_of(loop(write(Store("y", COLUMN, load("x", COLUMN)), mirrored), axes=()))
    assert "loads y[-1*k + 5], which may overlap what another point or an earlier stage" in text


# Loads that are guarded ---------------------------------------------------------------------------


def guarded(index: Index, *bounds: Bound) -> Loop:
    return loop(write(Store("y", HERE, Load("x", index, float32, bounds))))


INSIDE = {
    "padding": (flatten((ROW, COLUMN - 1), (4, 6)), [Bound(COLUMN - 1, 0, 6)]),
    "windows": (flatten((ROW + COLUMN - 2, COLUMN), (4, 6)), [Bound(ROW + COLUMN - 2, 0, 4)]),
    "strides": (flatten((ROW * 2 - COLUMN, COLUMN), (4, 6)), [Bound(ROW * 2 - COLUMN, 0, 4)]),
    "gaps": (
        flatten(((ROW + COLUMN + 1) // 2 - 1, COLUMN), (4, 6)),
        [Bound(ROW + COLUMN - 1, 0, 7), Bound((ROW + COLUMN + 1) % 2, 0, 1)],
    ),
    "quotients": (
        flatten((ROW + COLUMN // 2 - 1, COLUMN % 2), (4, 6)),
        [Bound(ROW * 2 + COLUMN - 2, 0, 8)],
    ),
    "one value that is left": (
        ROW * 6 + COLUMN * 6 - 6,
        [Bound(COLUMN * 2 - 2, 0, 1), Bound(ROW, 0, 4)],
    ),
    "joined rows": (HERE - 12, [Bound(HERE // 6, 2, 4)]),
    "bounds that never hold": (HERE + 100, [Bound(COLUMN * 2 - 1, 0, 1)]),
}


@pytest.mark.parametrize(("index", "bounds"), INSIDE.values(), ids=INSIDE)
def test_loads_that_bounds_keep_inside_pass(index: Index, bounds: list[Bound]) -> None:
    verify(program(guarded(index, *bounds)))


OUTSIDE = {
    "a bound that is too wide": (
        HERE - 1,
        [Bound(COLUMN - 1, -1, 6)],
        "element -1 at i = 0, k = 0",
    ),
    "another axis": (HERE + 6, [Bound(COLUMN, 0, 3)], "element 24 at i = 3, k = 0"),
    "windows that reach farther": (
        flatten((ROW + COLUMN - 2, COLUMN), (4, 6)),
        [Bound(ROW + COLUMN - 2, 0, 5)],
        "element 29 at i = 1, k = 5",
    ),
    "an index beyond the end": (
        HERE + 1,
        [Bound(ROW, 0, 4), Bound(COLUMN, 0, 6)],
        "element 24 at i = 3, k = 5",
    ),
}


@pytest.mark.parametrize(("index", "bounds", "reached"), OUTSIDE.values(), ids=OUTSIDE)
def test_loads_that_bounds_let_reach_outside_are_found(
    index: Index, bounds: list[Bound], reached: str
) -> None:
    text = problem_of(guarded(index, *bounds))
    assert f"reaches outside input x f32[4, 6]: x[{index} if " in text
    assert f", {reached}" in text


def test_a_fault_is_found_among_more_points_than_are_computed() -> None:
    long, longer = Axis("i", 3000), Axis("k", 5000)
    row, column = axis_index(long), axis_index(longer)
    size = 3000 * 5000
    whole = flatten((row, column), (3000, 5000))
    kept = Load("x", whole + 1, float32, (Bound((column + 1) % 5000, 1, 5000),))
    assert not outside(kept, size)
    assert outside(Load("x", whole + 1, float32, (Bound(column % 5000, 0, 5000),)), size) == (
        "element 15000000 at i = 2999, k = 4999"
    )
    axes = long, longer
    assert not meeting(whole, axes, whole, axes, axes)
    short = row * 4999 + column
    assert meeting(short, axes, short, axes, axes) == "at i = 0, k = 4999 and at i = 1, k = 0"


def test_gathered_indices_are_the_same_with_guards_that_hold() -> None:
    inner = Bound(COLUMN, 0, 5)
    plain = load("at", COLUMN, int64)
    picked = gathered_index(Load("at", plain.index, int64, (inner,)), 6)
    bound = Bound(gathered_index(plain, 6) - 2, 0, 4)
    deep = gathered_index(Load("at", plain.index, int64, (inner, bound)), 6)
    assert picked != deep
    verify(program(guarded(deep - 2, inner, bound)))


# Dtypes -------------------------------------------------------------------------------------------


def computing(value: Scalar, buffer: str = "y") -> Loop:
    return loop(write(Store(buffer, HERE, value)))


X, N, D, M = load("x"), load("n", dtype=int64), load("d", dtype=float64), load("m", dtype=bool_)
BITS = Apply("random_bits", (Literal(1, int64),) * 4, uint32)
SOUND: dict[str, tuple[Scalar, str]] = {
    "numbers": (Apply("add", (N, Apply("negative", (N,), int64)), int64), "counts"),
    "floats": (Apply("multiply_add", (X, X, Apply("exp", (X,), float32)), float32), "y"),
    "comparisons": (Apply("less", (D, D), bool_), "flags"),
    "choices": (Apply("select", (M, D, D), float64), "w"),
    "conditions": (Apply("logical_and", (M, Within((Bound(COLUMN, 0, 3),))), bool_), "flags"),
    "casts": (Apply("cast", (N,), float32), "y"),
    "sort keys": (Apply("sort_key", (D,), int64), "counts"),
    "positions": (Position(HERE), "counts"),
    "bits": (
        Apply("cast", (Apply("shift_right", (BITS, Literal(8, uint32)), uint32),), float32),
        "y",
    ),
}
MIXED: dict[str, tuple[Scalar, str]] = {
    "two floats": (Apply("add", (X, D), float32), "add of f32 and f64 cannot be f32"),
    "another result": (Apply("add", (X, X), float64), "add of f32 and f32 cannot be f64"),
    "a function of an integer": (Apply("exp", (N,), int64), "exp of i64 cannot be i64"),
    "a comparison as a number": (Apply("less", (X, X), float32), "less of f32 and f32 cannot"),
    "a comparison of two kinds": (Apply("equal", (X, N), bool_), "equal of f32 and i64 cannot"),
    "a number as a condition": (
        Apply("select", (X, X, X), float32),
        "select of f32, f32 and f32 cannot be f32",
    ),
    "two choices": (Apply("select", (M, X, D), float32), "select of bool, f32 and f64 cannot"),
    "no condition": (Apply("logical_not", (X,), bool_), "logical_not of f32 cannot be bool"),
    "bits of a float": (Apply("random_bits", (X,) * 4, uint32), "random_bits of f32, f32, f32"),
    "a key of another width": (Apply("sort_key", (X,), int64), "sort_key of f32 cannot be i64"),
    "a shift of a float": (Apply("shift_right", (X, X), float32), "shift_right of f32 and f32"),
    "half a number": (Literal(0.5, int64), "the number 0.5 cannot be i64"),
    "a number that is too large": (Literal(300, uint8), "the number 300 cannot be u8"),
    "a text": (Literal("1", float32), "the number '1' cannot be f32"),
    "a truth that is a number": (Literal(2, bool_), "the number 2 cannot be bool"),
    "a position as a float": (Position(HERE, float32), "positions are i64, not f32"),
    "bounds as a number": (Within((Bound(COLUMN, 0, 3),), float32), "bounds are bool, not f32"),
    "an index that is a float": (
        load("x", gathered_index(load("x", COLUMN), 6)),
        "an index read from data must be an integer, not f32",
    ),
}


@pytest.mark.parametrize(("value", "buffer"), SOUND.values(), ids=SOUND)
def test_scalars_of_dtypes_that_fit_pass(value: Scalar, buffer: str) -> None:
    verify(program(computing(value, buffer)))


@pytest.mark.parametrize(("value", "said"), MIXED.values(), ids=MIXED)
def test_scalars_of_dtypes_that_do_not_fit_are_found(value: Scalar, said: str) -> None:
    # The cast gives the stored value the right dtype: only its operands are wrong.
    text = problem_of(computing(Apply("cast", (value,), float32)))
    assert f"in step 0, 0.step: {said}" in text


def test_there_is_a_rule_for_each_primitive() -> None:
    assert dtypes._RULES.keys() == PRIMITIVES.keys()


def test_stores_and_loads_have_the_dtype_of_the_buffer() -> None:
    assert "accesses state y f32[4, 6] as f64" in problem_of(computing(D))
    wrong = load("x", dtype=float64)
    assert "accesses input x f32[4, 6] as f64" in problem_of(computing(wrong, "w"))


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        (Reduce("r", "sum", (COLUMNS,), X, float64), "r is f64, but the sum of f32 is f32"),
        (Reduce("r", "argmax", (COLUMNS,), X, float32), "r is f32, but the argmax of f32 is i64"),
        (Reduce("r", "sum", (), load("x", ROW), float64), "r is f64, but its value is f32"),
        (Scan(COLUMNS, "sum", X, "y", HERE, float64), "y is f64, but the sum of f32 is f32"),
        (SegmentSum("r", COLUMNS, N, ROW, X, float64), "r is f64, but the sum of f32 is f32"),
    ],
    ids=["sum", "argmax", "value", "scan", "segments"],
)
def test_combinations_of_stages_have_the_dtype_of_the_values(stage: Stage, said: str) -> None:
    assert said in problem_of(loop(stage))


def test_both_operands_of_a_contraction_have_the_dtype_of_its_sum() -> None:
    k = Axis("c", 2)
    stores = (Store("y", HERE, Local("sum", float32)),)
    rest = ("sum", float32, stores)
    step = Contraction(
        "0.step", (), (ROWS,), (COLUMNS,), (k,), load("x", ROW), load("p", COLUMN), *rest
    )
    verify(program(step))
    wide = Contraction(
        *("0.step", (), (ROWS,), (COLUMNS,), (k,)),
        *(load("d", ROW, float64), load("p", COLUMN), *rest),
    )
    assert "sum is f32, but multiplies f64 by f32" in problem_of(wide)


# Locals -------------------------------------------------------------------------------------------

TOTAL = Reduce("r", "sum", (COLUMNS,), X, float32)
OF_TOTAL = write(Store("y", ROW, Local("r", float32)), axes=())


def test_a_local_is_defined_before_it_is_used() -> None:
    verify(program(loop(TOTAL, OF_TOTAL)))
    assert "uses the local r before it is defined" in problem_of(loop(OF_TOTAL, TOTAL))
    itself = Reduce("r", "sum", (COLUMNS,), Local("r", float32), float32)
    assert "uses the local r before it is defined" in problem_of(loop(itself, OF_TOTAL))


def test_a_local_in_an_index_is_defined_before_it_is_used() -> None:
    picked = gathered_index(Local("r", int64), 6)
    text = problem_of(loop(write(Store("y", ROW * 6 + picked, load("x", ROW)), axes=())))
    assert "uses the local r before it is defined" in text


def test_a_local_is_used_as_it_was_defined() -> None:
    wide = write(Store("w", ROW, Local("r", float64)), axes=())
    assert "uses the local r, which is f32, as f64" in problem_of(loop(TOTAL, wide))


def test_a_local_is_defined_once() -> None:
    text = problem_of(loop(TOTAL, TOTAL, OF_TOTAL))
    assert "defines the local r twice" in text


def test_operands_of_a_contraction_do_not_use_its_sum() -> None:
    step = Contraction(
        *("0.step", (), (ROWS,), (COLUMNS,), (Axis("c", 2),)),
        *(Local("sum", float32), load("p", COLUMN), "sum", float32),
        (Store("y", HERE, Local("sum", float32)),),
    )
    assert "uses the local sum before it is defined" in problem_of(step)


# Stages and steps ---------------------------------------------------------------------------------


@pytest.mark.parametrize("combine", ["argmax", "argmin"])
def test_a_scan_does_not_combine_positions(combine: str) -> None:
    values = Scan(COLUMNS, combine, N, "counts", HERE, int64)
    assert f"there is no running {combine}" in problem_of(loop(values))


def test_steps_of_one_name_are_found() -> None:
    text = problem_of(computing(X), computing(X, "z"))
    assert "in step 1, 0.step: step 0 has the same name" in text


def test_a_sort_is_alone_in_its_loop() -> None:
    sort = Sort(COLUMNS, load("at", COLUMN, int64), "order", COLUMN, int32)
    verify(
        program(
            loop(sort, axes=()), Loop("1.step", (ROWS, COLUMNS), (write(stored(HERE), axes=()),))
        )
    )
    another = write(Store("y", constant_index(0), Literal(1.0, float32)), axes=())
    text = problem_of(loop(sort, another, axes=()))
    assert "in step 0, 0.step: a sort must be the only stage of its loop" in text
