"""The form of a step: what it is beside the names of the buffers that it uses.

The steps of equal blocks of a network have the same form. Functions are written for a form, and
each step hands them the addresses of its own buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

from lamina.engines.cpu.emit.packing import PackedRight
from lamina.program.index import Axis
from lamina.program.program import Buffer, Program
from lamina.program.rewrite import Rewrite
from lamina.program.steps import Contraction, Step
from lamina.records import frozen_dataclass


@frozen_dataclass
class Form:
    """All that decides what is written for a step; steps of equal forms share their functions.

    Attributes:
        steps: the step, and those that are run along with it, without names; buffers are called
            by numbers, in the order in which they are come across.
        buffers: what they are: their numbers, sizes and dtypes.
        packed: how the right operand is packed ahead, if it is.
        turn: the axis whose turns it is repeated for, if it is.
    """

    steps: tuple[Step, ...]
    buffers: tuple[Buffer, ...]
    packed: PackedRight | None
    turn: Axis | None


# Steps without names, and the buffers that they use, in the order of their numbers.
Numbered = tuple[tuple[Step, ...], tuple[str, ...]]


@final
class Forms:
    """The forms of a program's steps.

    Args:
        program: whose steps they are.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        # By the identities of steps, which are kept: as long as they live nothing else has them.
        self._numbered: dict[tuple[int, ...], tuple[tuple[Step, ...], Numbered]] = {}
        self._equal: dict[tuple[Step, ...], tuple[Step, ...]] = {}

    def of(
        self, steps: Sequence[Step], *, packed: PackedRight | None, turn: Axis | None
    ) -> tuple[Form, tuple[str, ...]]:
        """The form of some steps that are written together, and the buffers used, in order."""
        without_names, used = self.numbered(*steps)
        buffers = tuple(
            Buffer(str(number), "temporary", (buffer.size,), buffer.dtype)
            for number, buffer in enumerate(self._program.buffers[name] for name in used)
        )
        return Form(without_names, buffers, packed, turn), used

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

    def contraction(self, step: Contraction) -> tuple[Contraction, tuple[str, ...]]:
        """The same for one contraction."""
        (without_names,), used = self.numbered(step)
        assert isinstance(without_names, Contraction)
        return without_names, used
