"""The signature of a step: what it is beside the names of the buffers that it uses.

The steps of equal blocks of a network have the same signature. What depends on a step alone is
decided once for each signature, and functions are written once; each step hands them the addresses
of its own buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, TypeVar, final

from lamina.program.index import Axis
from lamina.program.program import Buffer, Program
from lamina.program.rewrite import Rewrite
from lamina.program.steps import Step
from lamina.records import frozen_dataclass

# What an engine has decided about steps.
Decided = TypeVar("Decided", covariant=True)


@frozen_dataclass
class Signature(Generic[Decided]):
    """All that decides what is written for a step; equal signatures share their functions.

    Attributes:
        steps: the step, and those that are run along with it, without names; buffers are called
            by numbers, in the order in which they are come across.
        buffers: what they are: their numbers, sizes and dtypes.
        decided: about how they are run.
        iteration: the axis that the step is repeated for, if it is.
    """

    steps: tuple[Step, ...]
    buffers: tuple[Buffer, ...]
    decided: Decided
    iteration: Axis | None


# Steps without names, and the buffers that they use, in the order of their numbers.
Numbered = tuple[tuple[Step, ...], tuple[str, ...]]


@final
class Signatures:
    """The signatures of a program's steps.

    Args:
        program: whose steps they are.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        # By the identities of steps, which are kept: as long as they live nothing else has them.
        self._numbered: dict[tuple[int, ...], tuple[tuple[Step, ...], Numbered]] = {}
        self._equal: dict[tuple[Step, ...], tuple[Step, ...]] = {}

    def of(
        self,
        steps: Sequence[Step],
        decided: Decided,
        iteration: Axis | None,
    ) -> tuple[Signature[Decided], tuple[str, ...]]:
        """That of some steps that are written together, and the buffers used, in order."""
        without_names, used = self.numbered(*steps)
        buffers = tuple(
            Buffer(str(number), "temporary", (buffer.size,), buffer.dtype)
            for number, buffer in enumerate(self._program.buffers[name] for name in used)
        )
        return Signature(without_names, buffers, decided, iteration), used

    def numbered(self, *steps: Step) -> Numbered:
        """Steps with numbers in the place of their buffers' names, and the names in this order.

        What does not depend on names is better asked of these: they are the same for all equal
        steps, and so answers that are remembered hold for all of them.
        """
        key = tuple(map(id, steps))
        if key not in self._numbered:
            numbers: dict[str, str] = {}
            change = Rewrite(buffer=lambda name: numbers.setdefault(name, str(len(numbers))))
            without_names = tuple(replace(change.step(step), name="") for step in steps)
            without_names = self._equal.setdefault(without_names, without_names)
            self._numbered[key] = steps, (without_names, tuple(numbers))
        return self._numbered[key][1]
