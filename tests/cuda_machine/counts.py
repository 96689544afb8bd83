"""Counts of what a launch executed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cuda_machine.syntax import Instruction

Tally = Counter[str]


@dataclass
class Counts:
    """What a launch executed.

    Attributes:
        instructions: by all threads together, those that only end a block included.
        matrix_instructions: of warps, by name.
    """

    instructions: int = 0
    matrix_instructions: Counter[str] = field(default_factory=Counter)


def tally(instructions: Iterable[Instruction]) -> Tally:
    """How often a lane executes each of these instructions."""
    return Counter(".".join((one.name, *one.modifiers)) for one in instructions)


def counts(tallies: Sequence[Tally], executed: Sequence[int]) -> Counts:
    """The counts of a launch in which so many lanes executed each block."""
    result = Counts()
    for one, times in zip(tallies, executed, strict=True):
        result.instructions += one.total() * times
        for name, number in one.items() if times else ():
            if name.startswith(("mma.", "ldmatrix.")):
                result.matrix_instructions[name] += number * times // 32
    return result
