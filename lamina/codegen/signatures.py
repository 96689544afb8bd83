"""The signature of a step: the step without the names of its buffers.

The steps of equal blocks of a network have the same signature. Decisions that depend on a step
alone are made once for each signature, and functions are written once. Each step passes the
addresses of its own buffers to these functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, TypeVar, final

from lamina.base.records import frozen_dataclass
from lamina.program.index import Axis
from lamina.program.program import Buffer, Program
from lamina.program.rewrite import Rewrite
from lamina.program.steps import Step

# An engine's decisions about steps.
Decided = TypeVar("Decided", covariant=True)


@frozen_dataclass
class Signature(Generic[Decided]):
    """All inputs of a step's code generation. Steps of equal signatures share their functions.

    Attributes:
        steps: the step, and the steps that are fused with it, without names; buffers are named by
            numbers, in the order of their first use.
        buffers: the numbers, sizes and dtypes of these buffers.
        decided: the decisions on how the steps are run.
        iteration: the axis of iterations if the step is repeated; otherwise None.
        is_phase: whether the function is a phase of a kernel, on engines that have phases.
    """

    steps: tuple[Step, ...]
    buffers: tuple[Buffer, ...]
    decided: Decided
    iteration: Axis | None
    is_phase: bool = False


# Steps without names, and the names of their buffers in the order of the numbers.
Numbered = tuple[tuple[Step, ...], tuple[str, ...]]


@final
class Signatures:
    """The signatures of a program's steps."""

    def __init__(self, program: Program) -> None:
        self._program = program
        # By the identities of steps. The steps are kept alive, so that identities are not reused.
        self._numbered: dict[tuple[int, ...], tuple[tuple[Step, ...], Numbered]] = {}
        self._equal: dict[tuple[Step, ...], tuple[Step, ...]] = {}

    def of(
        self,
        steps: Sequence[Step],
        decided: Decided,
        iteration: Axis | None,
        workspaces: Sequence[Buffer] = (),
    ) -> tuple[Signature[Decided], tuple[str, ...]]:
        """The signature of steps that are written together, and the names of their buffers.

        The steps are the program's, or made from them. Some of their buffers may be `workspaces`,
        which are not in the program.
        """
        without_names, used = self.numbered(*steps)
        by_name = {**self._program.buffers, **{buffer.name: buffer for buffer in workspaces}}
        buffers = tuple(
            Buffer(str(number), "temporary", (buffer.size,), buffer.dtype)
            for number, buffer in enumerate(by_name[name] for name in used)
        )
        return Signature(without_names, buffers, decided, iteration), used

    def numbered(self, *steps: Step) -> Numbered:
        """Steps with numbers instead of buffer names, and the names in the order of the numbers.

        Equal steps return the same objects, so results that are cached for these objects hold for
        all equal steps.
        """
        key = tuple(map(id, steps))
        if key not in self._numbered:
            numbers: dict[str, str] = {}
            change = Rewrite(buffer=lambda name: numbers.setdefault(name, str(len(numbers))))
            without_names = tuple(replace(change.record(step), name="") for step in steps)
            without_names = self._equal.setdefault(without_names, without_names)
            self._numbered[key] = steps, (without_names, tuple(numbers))
        return self._numbered[key][1]
