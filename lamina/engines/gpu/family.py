"""Families: kernels that suit one kind of device; programs of one step, to find their schedules.

Kernels come through the cache on disk. The key of an entry is made from the program itself, so no
text is written for a program that was compiled before. The driver compiles the text, or has a cache
of its own.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, final

from lamina.base.cache import Sources, find, folder, keep, key_of
from lamina.base.garbage import without_collections
from lamina.base.records import decoded
from lamina.codegen.signatures import Signatures
from lamina.engines.gpu.launches import Launches
from lamina.program.encoding import checksum
from lamina.program.program import Buffer, Plan, Program, Repeat
from lamina.program.steps import Step, writes_of
from lamina.program.target import Target

# The step, and the number of the candidate for its schedule. Steps that are not listed are run as
# the cost model says.
Choices = tuple[tuple[int, int], ...]
# Buffers that keep their values from one run to the next, unless the program writes them.
_LASTING = ("parameter", "state", "constant")


class Family(ABC):
    """Decides how programs are run on a device, and writes their kernels.

    Attributes:
        target: the target for which programs are compiled.
        key: all properties on which the kernels depend, as text.
        sources: the modules that decide and write them.
    """

    target: Target
    key: str
    sources: Sources

    @abstractmethod
    def decide(self, program: Program, forced: Mapping[int, Any] | None = None) -> Any:
        """The schedule of a program: a frozen record that can be printed.

        Some steps, by their numbers, have forced candidates for their schedules.
        """

    @abstractmethod
    def candidates(self, program: Program) -> Sequence[Any]:
        """Schedules for the step of a program of one step; the first is the one it decides on.

        They are few, and each may be the fastest one. All compute the same, up to rounding.
        """

    def expected_seconds(self, program: Program, candidates: Sequence[Any]) -> list[float | None]:
        """The times of candidates by the cost model; None for those that it does not know."""
        return [None for _ in candidates]

    @abstractmethod
    def write(self, program: Program, schedule: Any, *, separate: bool = False) -> Launches:
        """The kernels of a program that is run as the schedule says.

        If `separate`, no launch runs kernels of several steps.
        """

    def text_of_candidate(self, candidate: Any) -> str:
        """The decisions of a candidate, in one line."""
        return " ".join(str(candidate).split())

    def text_of_step(self, schedule: Any, step: int) -> str:
        """The decisions on one step."""
        return str(schedule.steps[step])

    def step_that_runs(self, schedule: Any, step: int) -> int:
        """The number of the step whose kernels run a step: itself, unless it is fused into it."""
        return step


@final
class SingleSteps:
    """The steps of a program as programs of one step.

    On these, candidates for schedules are found, written and timed.
    """

    def __init__(self, program: Program) -> None:
        self._program, self._signatures = program, Signatures(program)
        self._written = {name for step in program.steps for name in writes_of(step)}

    def key(self, number: int) -> tuple[Step, tuple[bool, ...]]:
        """What equal steps whose operands change as often have in common."""
        (step,), names = self._signatures.numbered(self._program.steps[number])
        return step, tuple(map(self._lasts, names))

    def _lasts(self, name: str) -> bool:
        """Whether a buffer keeps its values from one run to the next."""
        return self._program.buffers[name].kind in _LASTING and name not in self._written

    def program(self, number: int) -> Program:
        """One step as a program: equal programs for equal steps whose operands change as often.

        What the step writes is a state, what changes between runs is an input, the rest are
        parameters. Operands that do not change may be packed once for all runs.
        """
        (step,), names = self._signatures.numbered(self._program.steps[number])
        buffers: dict[str, Buffer] = {}
        for short, name in zip(map(str, range(len(names))), names, strict=True):
            buffer, kind = self._program.buffers[name], "state"
            if short not in writes_of(step):
                kind = "parameter" if self._lasts(name) else "input"
            buffers[short] = Buffer(short, kind, (buffer.size,), buffer.dtype)
        repeat = self._program.repeated(number)
        repeats = () if repeat is None else (Repeat(repeat.axis, 0, 1),)
        return Program("step", buffers, (step,), (), {}, Plan((), 0, ()), repeats)


def forced_by(program: Program, family: Family, choices: Choices) -> Mapping[int, Any]:
    """The schedules of the steps for which the cost model's choice is not taken."""
    alone = SingleSteps(program)
    return {
        number: family.candidates(alone.program(number))[candidate] for number, candidate in choices
    }


def with_memories(program: Program) -> Program:
    """The program with inputs as states, which have their own memory."""
    buffers = {name: replace(buffer, kind="state") for name, buffer in program.buffers.items()}
    return replace(program, buffers=buffers)


@without_collections
def compile_program(
    program: Program,
    family: Family,
    schedule: Any = None,
    choices: Choices = (),
    *,
    separate: bool = False,
) -> Launches:
    """The kernels of a program.

    The schedule is decided by default; then `choices` are the candidates for some steps. If
    `separate`, no launch runs kernels of several steps.
    """

    def make() -> Launches:
        decided = schedule
        if decided is None:
            decided = family.decide(program, forced_by(program, family, choices))
        return family.write(program, decided, separate=separate)

    sources = family.sources
    if not sources.checksum or folder() is None:
        return make()
    # Decisions follow from the program, the choices, the family and these sources, so the key does
    # not contain them.
    how = repr(schedule) if schedule is not None else f"chosen {choices}"
    key = key_of((checksum(program), family.key, how, str(separate), sources.checksum))
    entry = find(key)
    if entry is not None:
        return decoded(Launches, json.loads(entry))
    launches = make()
    if sources.are_unchanged:
        keep(key, json.dumps(asdict(launches)).encode())
    return launches
