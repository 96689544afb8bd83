"""Programs of one step: on them candidates for its schedule are found, written and timed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from lamina.codegen.signatures import Signatures
from lamina.engines.gpu.family import Family
from lamina.program.program import Buffer, Plan, Program, Repeat
from lamina.program.steps import writes_of

# The step, and the number of the candidate for its schedule. Steps that are not listed are run as
# the cost model says.
Choices = tuple[tuple[int, int], ...]
# Buffers that keep their values from one run to the next, unless the program writes them.
_LASTING = ("parameter", "state", "constant")


def single_step(
    program: Program, number: int, signatures: Signatures, written: Collection[str]
) -> Program:
    """One step as a program: equal programs for equal steps whose operands change as often.

    What the step writes is a state, what changes between runs is an input, the rest are parameters.
    Operands that do not change may be packed once for all runs.
    """
    (step,), names = signatures.numbered(program.steps[number])
    own = writes_of(step)

    def kind(short: str, name: str) -> str:
        if short in own:
            return "state"
        return "parameter" if lasting(program, name, written) else "input"

    buffers = {
        str(short): Buffer(str(short), kind(str(short), name), (buffer.size,), buffer.dtype)
        for short, name in enumerate(names)
        for buffer in [program.buffers[name]]
    }
    repeat = program.repeated(number)
    repeats = () if repeat is None else (Repeat(repeat.axis, 0, 1),)
    return Program("step", buffers, (step,), (), {}, Plan((), 0, ()), repeats)


def lasting(program: Program, name: str, written: Collection[str]) -> bool:
    """Whether a buffer keeps its values from one run of a program to the next."""
    return program.buffers[name].kind in _LASTING and name not in written


def written_by(program: Program) -> frozenset[str]:
    """The buffers that a program writes."""
    return frozenset(name for step in program.steps for name in writes_of(step))


def forced_by(program: Program, family: Family, choices: Choices) -> Mapping[int, Any]:
    """The schedules of the steps for which the cost model's choice is not taken."""
    signatures, written = Signatures(program), written_by(program)
    found: dict[int, Any] = {}
    for number, candidate in choices:
        one = single_step(program, number, signatures, written)
        found[number] = family.candidates(one)[candidate]
    return found


def with_memories(program: Program) -> Program:
    """The program with inputs as states, which have their own memory."""
    buffers = {name: replace(one, kind="state") for name, one in program.buffers.items()}
    return replace(program, buffers=buffers)
