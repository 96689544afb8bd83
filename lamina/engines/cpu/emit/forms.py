"""The form of a step: what it is beside the names of the buffers that it uses.

The steps of equal blocks of a network have the same form. Functions are written for a form, and
each step hands them the addresses of its own buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

from lamina.engines.cpu.emit.packing import PackedRight
from lamina.program.index import Atom, Axis, Gathered, Index
from lamina.program.program import Buffer, Program
from lamina.program.scalar import Apply, Bound, Load, Position, Scalar, Within, parts
from lamina.program.steps import Contraction, Loop, Reduce, Stage, Step, Store, Write
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
            numbering = _Numbering()
            without_names = tuple(numbering.step(step) for step in steps)
            without_names = self._equal.setdefault(without_names, without_names)
            self._numbered[key] = steps, (without_names, tuple(numbering.numbers))
        return self._numbered[key][1]

    def contraction(self, step: Contraction) -> tuple[Contraction, tuple[str, ...]]:
        """The same for one contraction."""
        (without_names,), used = self.numbered(step)
        assert isinstance(without_names, Contraction)
        return without_names, used


@final
class _Numbering:
    """Puts numbers in the place of buffers' names."""

    def __init__(self) -> None:
        self.numbers: dict[str, str] = {}
        self._known: dict[Scalar, Scalar] = {}

    def step(self, step: Step) -> Step:
        if isinstance(step, Contraction):
            left, right = self._scalar(step.left), self._scalar(step.right)
            return replace(step, name="", left=left, right=right, stores=self._stores(step.stores))
        return Loop("", step.axes, tuple(self._stage(stage) for stage in step.stages))

    def _stage(self, stage: Stage) -> Stage:
        if isinstance(stage, Write):
            return replace(stage, stores=self._stores(stage.stores))
        value = self._scalar(stage.value)
        if isinstance(stage, Reduce):
            return replace(stage, value=value)
        index = self._index(stage.index)
        return replace(stage, value=value, buffer=self._buffer(stage.buffer), index=index)

    def _stores(self, stores: Sequence[Store]) -> tuple[Store, ...]:
        return tuple(
            Store(
                self._buffer(store.buffer),
                self._index(store.index),
                self._scalar(store.value),
                store.accumulate,
            )
            for store in stores
        )

    def _buffer(self, name: str) -> str:
        return self.numbers.setdefault(name, str(len(self.numbers)))

    def _scalar(self, scalar: Scalar) -> Scalar:
        known = self._known
        for part in parts(scalar):
            if part in known:
                continue
            new: Scalar = part
            if isinstance(part, Apply):
                operands = tuple(known[operand] for operand in part.operands)
                new = Apply(part.primitive, operands, part.dtype)
            elif isinstance(part, Load):
                buffer, index = self._buffer(part.buffer), self._index(part.index)
                new = Load(buffer, index, part.dtype, self._bounds(part.bounds))
            elif isinstance(part, Position):
                new = Position(self._index(part.index), part.dtype)
            elif isinstance(part, Within):
                new = Within(self._bounds(part.bounds), part.dtype)
            known[part] = new
        return known[scalar]

    def _bounds(self, bounds: Sequence[Bound]) -> tuple[Bound, ...]:
        return tuple(Bound(self._index(bound.index), bound.low, bound.high) for bound in bounds)

    def _index(self, index: Index) -> Index:
        """The same where it names buffers, as positions do that are read from data."""
        terms = tuple((self._atom(atom), coefficient) for atom, coefficient in index.terms)
        if all(new[0] is old[0] for new, old in zip(terms, index.terms, strict=True)):
            return index
        return Index(index.constant, terms)

    def _atom(self, atom: Atom) -> Atom:
        if isinstance(atom, Axis):
            return atom
        if isinstance(atom, Gathered):
            return Gathered(self._scalar(atom.value), atom.extent)
        index = self._index(atom.index)
        return atom if index is atom.index else type(atom)(index, atom.divisor)
