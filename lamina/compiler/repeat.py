"""Recurrences: the graph of a step becomes steps of the program that are repeated.

It goes through the same passes as the whole graph. Its states are rows of buffers that hold those
of all turns: a turn reads one row and writes the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import final

from lamina.compiler.buffers import Buffers, readable_name
from lamina.compiler.fusion.fuse import Fused, Group, fuse
from lamina.compiler.fusion.trials import named
from lamina.compiler.keep import keep
from lamina.compiler.lowering.pull import Home, Row, pulled
from lamina.compiler.unroll import unroll
from lamina.graph import Graph, Tensor, apply, constant
from lamina.ops.broadcast import broadcast_to
from lamina.ops.lowering import Coordinates, step_of
from lamina.ops.movement import RESHAPE
from lamina.program.index import Axis, Index, axis_index
from lamina.program.scalar import Scalar
from lamina.program.steps import Loop, Step, Store, Write
from lamina.program.target import Target
from lamina.records import frozen_dataclass
from lamina.shapes import size_of, static


@frozen_dataclass
class Repeated:
    """What a recurrence becomes.

    Attributes:
        before: steps that come first: they store the initial states.
        steps: those that are repeated.
        axis: what their index expressions call the turn.
    """

    before: tuple[Step, ...]
    steps: tuple[Step, ...]
    axis: Axis


@final
class _Loop:
    """How a recurrence goes through time.

    Args:
        group: its results.

    Attributes:
        operands: initial states, sequences and constants.
        results: the wanted results, by their numbers.
        outputs: the numbers of what a step gives as far as it is needed: all states, then others.
        states, sequences: how many there are.
        reverse: whether time runs backwards.
        length: how many turns there are.
        axis: the turn.
        time: the time of a turn.
    """

    def __init__(self, group: Group) -> None:
        members = [member for member in group.members if member in group.stored]
        first = members[0]
        self.operands = first.operands
        self.results: Mapping[int, Tensor] = {m.attributes["result"]: m for m in members}
        self.body = step_of(members)
        self.outputs = [int(name) for name, _ in self.body.outputs]
        self.states: int = first.attributes["states"]
        self.sequences: int = first.attributes["sequences"]
        self.reverse: bool = first.attributes["reverse"]
        (self.length,) = static(first.operands[self.states].shape[:1])
        self.axis = Axis("t", self.length)
        turn = axis_index(self.axis)
        self.time = turn * -1 + (self.length - 1) if self.reverse else turn

    def rows(self, number: int) -> int:
        """How many rows the buffer of a result has: of a state with the initial one."""
        return self.length + 1 if number < self.states else self.length

    def written(self, number: int) -> Index:
        """The row that a turn writes."""
        return self.time if self.reverse or number >= self.states else self.time + 1

    @property
    def read(self) -> Index:
        """The row of a state that a turn reads."""
        return self.time + 1 if self.reverse else self.time

    @property
    def initial(self) -> Index:
        """The row of the initial state."""
        return Index(self.length if self.reverse else 0)


def lower_repeating(
    group: Group,
    buffers: Buffers,
    optimised: Callable[[Graph, Target], Graph],
    target: Target,
    first_number: int,
) -> Repeated:
    """The steps of a recurrence; its results get buffers.

    Args:
        group: its results.
        buffers: of the program so far, where what it reads lies.
        optimised: the passes that come before fusion.
        target: what for.
        first_number: of the first step, which its name begins with.
    """
    loop = _Loop(group)
    graph = _with_own_results(optimised(unroll(keep(loop.body, target)), target))
    stacks: dict[int, str] = {}
    for number, (_, tensor) in zip(loop.outputs, graph.outputs, strict=True):
        shape = (loop.rows(number), *static(tensor.shape))
        stacks[number] = buffers.temporary(loop.results.get(number, tensor), shape)
    before = _first_rows(loop, graph, stacks, buffers, first_number)
    steps: list[Step] = []
    if loop.length:
        fused = fuse(graph, target, given=_given(loop, graph, stacks, buffers))
        steps = _turn(loop, fused, stacks, buffers, first_number + len(before))
    buffers.homes |= {tensor: stacks[number] for number, tensor in loop.results.items()}
    return Repeated(tuple(before), tuple(steps), loop.axis)


def _first_rows(
    loop: _Loop, graph: Graph, stacks: Mapping[int, str], buffers: Buffers, first_number: int
) -> list[Step]:
    """Steps that store the initial states, or that other results are empty."""
    before: list[Step] = []
    for number, (_, tensor) in zip(loop.outputs, graph.outputs, strict=True):
        shape = static(tensor.shape)
        name = f"{first_number + len(before)}"
        if number < loop.states:
            start = Row(stacks[number], loop.initial * size_of(shape))
            source = loop.operands[number]
            before.append(_copy(source, start, buffers.homes, f"{name}.initial"))
        elif not loop.length:
            nothing = broadcast_to(constant(0, tensor.dtype), (0, *shape))
            start = Row(stacks[number], Index())
            before.append(_copy(nothing, start, buffers.homes, f"{name}.empty"))
    return before


def _given(
    loop: _Loop, graph: Graph, stacks: Mapping[int, str], buffers: Buffers
) -> dict[Tensor, Home]:
    """Where the steps find what a turn begins with: states, elements of sequences, constants."""
    given: dict[Tensor, Home] = {}
    for number, leaf in enumerate(graph.inputs[: loop.states]):
        row = loop.read * size_of(static(leaf.shape))
        given[leaf] = Row(named(stacks[number]), row)
    homes: dict[Tensor, Home] = {one: named(home) for one, home in buffers.homes.items()}
    others = zip(graph.inputs[loop.states :], loop.operands[loop.states :], strict=True)
    for number, (leaf, operand) in enumerate(others):
        given[leaf] = _inside(operand, (loop.time,) if number < loop.sequences else (), homes)
    return given


def _turn(
    loop: _Loop, fused: Fused, stacks: Mapping[int, str], buffers: Buffers, first_number: int
) -> list[Step]:
    """The steps of one turn."""
    homes: dict[Tensor, str | Row] = {**buffers.of_constants(fused.graph)}
    for number, (_, tensor) in zip(loop.outputs, fused.graph.outputs, strict=True):
        homes[tensor] = Row(stacks[number], loop.written(number) * size_of(static(tensor.shape)))
    steps: list[Step] = []
    for group in fused.groups:
        # A recurrence within another one was unrolled.
        assert group.step is not None
        for one in group.members:
            if one in group.stored and one not in homes:
                homes[one] = buffers.temporary(one)
        label = f"{first_number + len(steps)}.{readable_name(group.members[-1])}"
        steps.append(group.step.written(homes, label))
    return steps


def _with_own_results(graph: Graph) -> Graph:
    """Gives results that are the same tensor one each, as each has rows of its own."""
    seen: set[Tensor] = set()
    outputs: list[tuple[str, Tensor]] = []
    for name, tensor in graph.outputs:
        own = apply(RESHAPE, tensor, shape=tensor.shape) if tensor in seen else tensor
        seen.add(tensor)
        outputs.append((name, own))
    return Graph(graph.inputs, tuple(outputs))


def _inside(operand: Tensor, time: Coordinates, buffers: Mapping[Tensor, Home]) -> Home:
    """An operand as the steps see it."""

    def at(coordinates: Coordinates) -> Scalar:
        return pulled(operand, (*time, *coordinates), buffers)

    return at


def _copy(source: Tensor, target: Row, buffers: Mapping[Tensor, Home], name: str) -> Loop:
    """A step that stores a tensor in a row."""
    shape = static(source.shape)
    axes = tuple(Axis(f"i{number}", extent) for number, extent in enumerate(shape))
    place = tuple(axis_index(axis) for axis in axes)
    store = Store(target.buffer, target.index(place, shape), pulled(source, place, buffers))
    return Loop(name, tuple(a for a in axes if a.extent != 1), (Write((), (store,)),))
