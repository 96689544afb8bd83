"""Counts of what a launch executed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cuda_machine.syntax import BITS, Instruction, Vector

Tally = Counter[str]


@dataclass
class Counts:
    """What a launch executed.

    Attributes:
        instructions: by all threads together, those that only end a block included.
        global_loads, global_stores: of threads, by bits of the access.
        shared_loads, shared_stores: of threads, by bits of the access.
        atomics: of threads.
        matrix_instructions: of warps, by name.
        wavefronts, ideal_wavefronts: of shared memory, if they were asked for: how many groups of
            accesses without a bank conflict were needed, and how few bytes would have needed.
    """

    instructions: int = 0
    global_loads: Counter[int] = field(default_factory=Counter)
    global_stores: Counter[int] = field(default_factory=Counter)
    shared_loads: Counter[int] = field(default_factory=Counter)
    shared_stores: Counter[int] = field(default_factory=Counter)
    atomics: int = 0
    matrix_instructions: Counter[str] = field(default_factory=Counter)
    wavefronts: int = 0
    ideal_wavefronts: int = 0

    @property
    def conflicts(self) -> int:
        """Wavefronts of shared memory because of bank conflicts."""
        return self.wavefronts - self.ideal_wavefronts


def tally(instructions: Iterable[Instruction]) -> Tally:
    """What a lane counts when it runs these instructions."""
    counted: Tally = Counter()
    for one in instructions:
        counted["instructions"] += 1
        spaces = {modifier.partition("::")[0] for modifier in one.modifiers}
        if one.name in ("ld", "st"):
            operand = one.operands[0 if one.name == "ld" else 1]
            count = len(operand.elements) if isinstance(operand, Vector) else 1
            bits = BITS.get(one.modifiers[-1], 0) * count
            kind = "loads" if one.name == "ld" else "stores"
            for space in spaces & {"shared", "global"}:
                counted[f"{space}_{kind}/{bits}"] += 1
        elif one.name in ("atom", "red"):
            counted["atomics"] += 1
        elif one.name in ("mma", "ldmatrix"):
            counted[f"matrix_instructions/{'.'.join((one.name, *one.modifiers))}"] += 1
    return counted


def counts(tallies: Sequence[Tally], executed: Sequence[int]) -> Counts:
    """The counts of a launch in which so many lanes executed each block."""
    result = Counts()
    for one, times in zip(tallies, executed, strict=True):
        for key, number in one.items() if times else ():
            name, _, detail = key.partition("/")
            if not detail:
                setattr(result, name, getattr(result, name) + number * times)
            elif name == "matrix_instructions":
                result.matrix_instructions[detail] += number * times // 32
            else:
                getattr(result, name)[int(detail)] += number * times
    return result
