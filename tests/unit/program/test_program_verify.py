"""The check of a program names the fault and its step or buffer."""

from dataclasses import replace

import numpy as np
import pytest
from error_texts import problem_of

from lamina.base.shapes import DType, float32, float64
from lamina.program.check import verify
from lamina.program.index import Axis, Index, Remainder, axis_index
from lamina.program.program import Allocation, Buffer, Plan, Program, Repeat
from lamina.program.scalar import Apply, Bound, Literal, Load
from lamina.program.steps import Loop, Reduce, Stage, Step, Store, Write

pytestmark = pytest.mark.each_case

AXIS = Axis("i", 4)
HERE = axis_index(AXIS)


def load(buffer: str, index: int = 0, dtype: DType = float32) -> Load:
    return Load(buffer, HERE + index, dtype)


def loop(name: str, target: str, value: Load | Literal | Apply, index: int = 0) -> Loop:
    return Loop(name, (AXIS,), (Write((), (Store(target, HERE + index, value),)),))


def doubled(source: str) -> Apply:
    return Apply("add", (load(source), load(source)), float32)


# a = x + x; b = a + a; b is the output.
BUFFERS = {
    "x": Buffer("x", "input", (4,), float32),
    "p": Buffer("p", "parameter", (2, 2), float32),
    "a": Buffer("a", "temporary", (4,), float32),
    "b": Buffer("b", "temporary", (4,), float32),
}
FIRST, SECOND = loop("first", "a", doubled("x")), loop("second", "b", doubled("a"))
OF_A, OF_B = Allocation("a", 0, 16, 0, 1), Allocation("b", 16, 16, 1, 2)
SOUND = Program("test", BUFFERS, (FIRST, SECOND), (("y", "b"),), {}, Plan((32,), 32, (OF_A, OF_B)))


def steps(*given: Step) -> Program:
    """The program with other steps; b lives until after the last one."""
    plan = Plan((32,), 32, (OF_A, replace(OF_B, last=len(given))))
    return replace(SOUND, steps=given, plan=plan)


def third(value: Load | Literal | Apply, target: str = "b", index: int = 0) -> Program:
    return steps(FIRST, SECOND, loop("third", target, value, index))


def with_loop(stage: Stage, axis: Axis = AXIS) -> Program:
    """The program with a third step of one stage."""
    return steps(FIRST, SECOND, Loop("third", (axis,), (stage,)))


def with_buffer(program: Program, buffer: Buffer) -> Program:
    return replace(program, buffers={**BUFFERS, buffer.name: buffer})


def allocated(*allocations: Allocation, size: int = 32) -> Program:
    return replace(SOUND, plan=Plan((size,), 32, allocations))


EMPTY = Buffer("p", "parameter", (0,), float32)
GUARDED = Load("p", HERE, float32, (Bound(HERE, 0, 4),))
NOTHING = Write((), (Store("p", Index(0), Literal(0.0, float32)),))
ALLOWED = {
    "sound": SOUND,
    "an update of a parameter": third(load("p"), "p"),
    "an update under a bound that always holds": third(
        Apply("add", (GUARDED, GUARDED), float32), "p"
    ),
    "a guarded load": third(Load("x", HERE - 1, float32, (Bound(HERE - 1, 0, 4),))),
    "shared bytes at different times": replace(
        allocated(replace(OF_A, last=0), replace(OF_B, offset=0)),
        steps=(FIRST, loop("second", "b", doubled("x"))),
    ),
    "memory taken over in the step that reads it last": allocated(
        OF_A, Allocation("b", 0, 16, 1, 2, "a")
    ),
    "no store in a buffer without elements": with_buffer(with_loop(NOTHING, Axis("k", 0)), EMPTY),
}
BROKEN = [
    (steps(SECOND, FIRST), "step 0, second: reads ['a'] before it is written"),
    (third(load("b"), "x"), "writes the input x"),
    (steps(FIRST), "the output y is never written"),
    (third(load("nowhere")), "uses the unknown buffer nowhere"),
    (
        with_loop(Reduce("r", "sum", (), load("x", 0, float64), float64)),
        "accesses input x f32[4] as f64",
    ),
    (third(load("x", 1)), "reaches outside input x f32[4]"),
    (third(load("x", -1)), "reaches outside input x f32[4]"),
    (third(load("x"), "b", 1), "reaches outside temporary b f32[4]"),
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
    (third(Apply("cube", (load("x"),), float32)), "there is no primitive like cube(x[i])"),
    (third(Apply("add", (load("x"),), float32)), "there is no primitive like"),
    (with_loop(Reduce("r", "median", (), load("x"), float32)), "there is no combiner 'median'"),
    (
        with_loop(Reduce("r", "sum", (AXIS,), load("x"), float32)),
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
    (third(Load("x", Index(0, ((Remainder(HERE, 0), 1),)), float32)), "a divisor cannot be 0"),
    (replace(SOUND, repeats=(Repeat(Axis("t", 3), 1, 3),)), "steps 1 to 3 cannot be repeated"),
    (with_buffer(third(load("b"), "p"), EMPTY), "in step 2, third: stores in p, which is empty"),
    (third(Load("x", Index(1.5, ()), float32)), "a constant cannot be 1.5"),
    (
        third(Load("x", HERE, float32, (Bound(HERE, -(2**70), 4),))),
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


@pytest.mark.parametrize("name", ALLOWED)
def test_sound_programs_pass(name):
    verify(ALLOWED[name])


@pytest.mark.parametrize(("broken", "said"), BROKEN)
def test_a_fault_is_found_and_named(broken, said):
    assert said in problem_of(broken)
