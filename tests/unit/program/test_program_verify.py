"""The check of a program names the fault and its step or buffer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from error_texts import problem_of

from lamina.base.shapes import DType, float32, float64
from lamina.program.check import verify
from lamina.program.index import Axis, Index, Remainder, axis_index, constant_index
from lamina.program.program import Allocation, Buffer, Plan, Program, Repeat
from lamina.program.scalar import Apply, Bound, Literal, Load
from lamina.program.steps import Loop, Reduce, Store, Write

AXIS = Axis("i", 4)
HERE = axis_index(AXIS)


def load(buffer: str, index: int = 0, dtype: DType = float32) -> Load:
    return Load(buffer, HERE + index, dtype)


def loop(name: str, target: str, value: Load | Literal | Apply, index: int = 0) -> Loop:
    return Loop(name, (AXIS,), (Write((), (Store(target, HERE + index, value),)),))


def doubled(source: str) -> Apply:
    return Apply("add", (load(source), load(source)), float32)


def program() -> Program:
    """a = x + x; b = a + a; b is the output."""
    buffers = {
        "x": Buffer("x", "input", (4,), float32),
        "p": Buffer("p", "parameter", (2, 2), float32),
        "a": Buffer("a", "temporary", (4,), float32),
        "b": Buffer("b", "temporary", (4,), float32),
    }
    steps = (loop("first", "a", doubled("x")), loop("second", "b", doubled("a")))
    allocations = (Allocation("a", 0, 16, 0, 1), Allocation("b", 16, 16, 1, 2))
    return Program("test", buffers, steps, (("y", "b"),), {}, Plan((32,), 32, allocations))


def longer(good: Program, step: Loop) -> Program:
    """The program with another step; b lives until after it."""
    first, second = good.plan.allocations
    allocations = (first, replace(second, last=len(good.steps) + 1))
    plan = replace(good.plan, allocations=allocations)
    return replace(good, steps=(*good.steps, step), plan=plan)


def test_a_sound_program_passes() -> None:
    verify(program())


def test_a_read_before_the_write_is_found() -> None:
    good = program()
    text = problem_of(replace(good, steps=good.steps[::-1]))
    assert "reads ['a'] before it is written" in text
    assert "step 0, second" in text


def test_a_write_to_an_input_is_found() -> None:
    good = program()
    steps = (*good.steps, loop("third", "x", load("b")))
    assert "writes the input x" in problem_of(replace(good, steps=steps))


def test_an_update_of_a_parameter_is_allowed() -> None:
    good = program()
    verify(longer(good, loop("third", "p", load("p"))))


def test_an_output_that_nothing_writes_is_found() -> None:
    good = program()
    text = problem_of(replace(good, steps=good.steps[:1]))
    assert "the output y is never written" in text


def test_an_unknown_buffer_is_found() -> None:
    good = program()
    steps = (*good.steps, loop("third", "b", load("nowhere")))
    assert "uses the unknown buffer nowhere" in problem_of(replace(good, steps=steps))


def test_an_access_with_another_dtype_is_found() -> None:
    good = program()
    wrong = Loop("third", (), (Reduce("r", "sum", (AXIS,), load("x", dtype=float64), float64),))
    text = problem_of(replace(good, steps=(*good.steps, wrong)))
    assert "accesses input x f32[4] as f64" in text


@pytest.mark.parametrize("shift", [1, -1])
def test_a_load_outside_its_buffer_is_found(shift: int) -> None:
    good = program()
    steps = (*good.steps, loop("third", "b", load("x", shift)))
    assert "reaches outside input x f32[4]" in problem_of(replace(good, steps=steps))


def test_a_store_outside_its_buffer_is_found() -> None:
    good = program()
    steps = (*good.steps, loop("third", "b", load("x"), 1))
    assert "reaches outside temporary b f32[4]" in problem_of(replace(good, steps=steps))


def test_a_guarded_load_may_have_indices_outside() -> None:
    good = program()
    guarded = Load("x", HERE - 1, float32, (Bound(HERE - 1, 0, 4),))
    verify(longer(good, loop("third", "b", guarded)))


def test_a_load_of_a_fixed_element_outside_is_found() -> None:
    good = program()
    outside = Load("x", constant_index(4), float32)
    text = problem_of(replace(good, steps=(*good.steps, loop("third", "b", outside))))
    assert "reaches outside input x f32[4]: 4" in text


def allocated(*allocations: Allocation, size: int = 32) -> Program:
    return replace(program(), plan=Plan((size,), 32, allocations))


def test_live_buffers_that_share_bytes_are_found() -> None:
    broken = allocated(Allocation("a", 0, 16, 0, 1), Allocation("b", 12, 16, 1, 2))
    assert "a and b share bytes while alive" in problem_of(broken)


def test_buffers_that_are_not_alive_together_may_share_bytes() -> None:
    good = allocated(Allocation("a", 0, 16, 0, 0), Allocation("b", 0, 16, 1, 2))
    verify(replace(good, steps=(good.steps[0], loop("second", "b", doubled("x")))))


def test_memory_may_be_taken_over_in_the_step_that_reads_it_last() -> None:
    verify(allocated(Allocation("a", 0, 16, 0, 1), Allocation("b", 0, 16, 1, 2, "a")))


def test_memory_must_not_be_taken_over_while_it_is_read_later() -> None:
    broken = allocated(Allocation("a", 0, 16, 0, 2), Allocation("b", 0, 16, 1, 2, "a"))
    assert "a and b share bytes while alive" in problem_of(broken)


@pytest.mark.parametrize(("offset", "size"), [(20, 32), (-4, 32), (16, 24)])
def test_an_allocation_outside_the_arena_is_found(offset: int, size: int) -> None:
    broken = allocated(Allocation("b", offset, 16, 1, 2), Allocation("a", 0, 4, 0, 0), size=size)
    assert "b is outside the arena" in problem_of(broken)


def test_a_primitive_that_engines_do_not_know_is_found() -> None:
    sound = program()
    unknown = Apply("cube", (load("x"),), float32)
    broken = replace(sound, steps=(loop("first", "a", unknown), *sound.steps[1:]))
    assert "there is no primitive like cube(x[i])" in problem_of(broken)


def test_a_primitive_with_the_wrong_number_of_operands_is_found() -> None:
    sound = program()
    lonely = Apply("add", (load("x"),), float32)
    broken = replace(sound, steps=(loop("first", "a", lonely), *sound.steps[1:]))
    assert "there is no primitive like" in problem_of(broken)


def test_a_combination_that_engines_do_not_know_is_found() -> None:
    sound = program()
    stage = Reduce("r0", "median", (), load("x"), float32)
    broken = replace(sound, steps=(*sound.steps, Loop("more", (AXIS,), (stage,))))
    assert "there is no combiner 'median'" in problem_of(broken)


def test_an_axis_that_is_iterated_twice_is_found() -> None:
    sound = program()
    twice = Loop("third", (AXIS,), (Reduce("r", "sum", (AXIS,), load("x"), float32),))
    text = problem_of(replace(sound, steps=(*sound.steps, twice)))
    assert "in step 2, third: iterates axis i twice" in text


def test_an_axis_that_nothing_iterates_is_found() -> None:
    sound = program()
    elsewhere = Load("x", axis_index(Axis("j", 4)), float32)
    text = problem_of(replace(sound, steps=(*sound.steps, loop("third", "b", elsewhere))))
    assert "nothing iterates axis j" in text


@pytest.mark.parametrize("extent", [-1, 4.0, 2**63, True])
def test_an_extent_that_is_no_whole_number_is_found(extent: int) -> None:
    sound = program()
    axis = Axis("k", extent)
    broken = Loop("third", (axis,), (Write((), (Store("b", constant_index(0), load("x")),)),))
    text = problem_of(replace(sound, steps=(*sound.steps, broken)))
    assert f"the extent of axis k cannot be {extent!r}" in text


def test_a_shape_with_a_negative_extent_is_found() -> None:
    sound = program()
    buffers = {**sound.buffers, "b": Buffer("b", "temporary", (-2, -2), float32)}
    assert "in b: an extent cannot be -2" in problem_of(replace(sound, buffers=buffers))


def test_a_divisor_of_zero_is_found() -> None:
    sound = program()
    index = Index(0, ((Remainder(HERE, 0), 1),))
    broken = loop("third", "b", Load("x", index, float32))
    text = problem_of(replace(sound, steps=(*sound.steps, broken)))
    assert "a divisor cannot be 0" in text


def test_a_repetition_of_steps_that_do_not_exist_is_found() -> None:
    sound = program()
    repeats = (Repeat(Axis("t", 3), 1, 3),)
    assert "steps 1 to 3 cannot be repeated" in problem_of(replace(sound, repeats=repeats))


def test_a_temporary_without_room_in_the_arena_is_found() -> None:
    broken = allocated(Allocation("a", 0, 8, 0, 1), Allocation("b", 16, 16, 1, 2))
    assert "there is no room in the arena for temporary a f32[4]" in problem_of(broken)


def test_a_store_in_a_buffer_without_elements_is_found() -> None:
    sound = program()
    buffers = {**sound.buffers, "p": Buffer("p", "parameter", (0,), float32)}
    broken = longer(replace(sound, buffers=buffers), loop("third", "p", load("b")))
    assert "in step 2, third: stores in p, which is empty" in problem_of(broken)
    store = Store("p", constant_index(0), Literal(0.0, float32))
    nowhere = Loop("third", (Axis("k", 0),), (Write((), (store,)),))
    verify(longer(replace(sound, buffers=buffers), nowhere))


def test_an_index_that_is_no_whole_number_is_found() -> None:
    value = Load("x", Index(1.5, ()), float32)
    broken = longer(program(), loop("third", "p", value))
    assert "a constant cannot be 1.5" in problem_of(broken)


def test_a_bound_beyond_64_bits_is_found() -> None:
    value = Load("x", HERE, float32, (Bound(HERE, -(2**70), 4),))
    text = problem_of(longer(program(), loop("third", "p", value)))
    assert "a bound reaches beyond 64 bits: -1180591620717411303424 <= i < 4" in text


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "this constant has no value"),
        (np.zeros(3, "float32"), "has the value of a float32[3]"),
        (np.zeros(4, "float64"), "has the value of a float64[4]"),
    ],
    ids=["none", "shape", "dtype"],
)
def test_a_constant_without_its_value_is_found(value: np.ndarray | None, problem: str) -> None:
    sound = program()
    buffers = {**sound.buffers, "c": Buffer("c", "constant", (4,), float32)}
    values = {} if value is None else {"c": value}
    text = problem_of(replace(sound, buffers=buffers, constants=values))
    assert f"in c: {problem}" in text or f"constant c f32[4] {problem}" in text


def test_a_value_of_a_buffer_that_is_no_constant_is_found() -> None:
    broken = replace(program(), constants={"x": np.zeros(4, "float32")})
    assert "in x: has a value, but is not a constant buffer" in problem_of(broken)


def test_an_update_under_a_bound_that_always_holds_is_allowed() -> None:
    value = Load("p", HERE, float32, (Bound(HERE, 0, 4),))
    doubling = loop("third", "p", Apply("add", (value, value), float32))
    verify(longer(program(), doubling))
