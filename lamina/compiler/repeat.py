"""Recurrences: the graph of one iteration becomes steps that the program repeats.

This graph goes through the same passes as the whole graph. The values of a state in all iterations
are the rows of one buffer, its *stack*: an iteration reads one row and writes the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import final

from lamina.base.shapes import size_of, static
from lamina.compiler.buffers import Buffers, readable_name
from lamina.compiler.fusion.fuse import Fused, Group, fuse
from lamina.compiler.fusion.trials import named
from lamina.compiler.keep import keep
from lamina.compiler.lowering.pull import (
    IterationRow,
    Location,
    Puller,
    axis_indices,
    iterating,
    numbered_axes,
)
from lamina.compiler.unroll import unroll
from lamina.graph import Graph, Tensor, apply, constant
from lamina.ops.broadcast import broadcast_to
from lamina.ops.lowering_rules import Coordinates, Recurrence, Repeating, iteration_of
from lamina.ops.movement import RESHAPE
from lamina.program.index import Axis, Index, axis_index
from lamina.program.steps import Loop, Step, Store, Write
from lamina.program.target import Target


@final
class _Loop(Recurrence):
    """A recurrence and the rows that its iterations read and write.

    Attributes:
        operands: the initial states, sequences and constants.
        results: the needed results, by number.
        body: the graph of one iteration, with the needed outputs only.
        outputs: the numbers of these outputs: all states, then further results.
        axis: the axis whose index is the number of the iteration.
        time: the index along the time axis of sequences, in terms of `axis`.
        stacks: the buffer of each output; the rows of states include the initial state.
    """

    def __init__(self, group: Group, buffers: Buffers) -> None:
        members = [member for member in group.members if member in group.stored]
        super().__init__(members[0])
        self.operands = members[0].operands
        self.results: Mapping[int, Tensor] = {m.attributes["result"]: m for m in members}
        self.body = iteration_of(members)
        self.outputs = [int(name) for name, _ in self.body.outputs]
        self.axis = Axis("t", self.length)
        iteration = axis_index(self.axis)
        self.time = iteration * -1 + (self.length - 1) if self.reverse else iteration
        self.stacks: dict[int, str] = {}
        self._buffers = buffers

    def first_rows(self, graph: Graph) -> list[Step]:
        """Steps that store the initial states; without iterations, also empty further results."""
        before: list[Step] = []
        for number, (_, tensor) in zip(self.outputs, graph.outputs, strict=True):
            shape = static(tensor.shape)
            if number < self.states:
                first = Index(self.length if self.reverse else 0)
                start = IterationRow(self.stacks[number], first * size_of(shape))
                source = self.operands[number]
                before.append(_copy(source, start, self._buffers.buffer_of, "initial"))
            elif not self.length:
                nothing = broadcast_to(constant(0, tensor.dtype), (0, *shape))
                start = IterationRow(self.stacks[number], Index())
                before.append(_copy(nothing, start, self._buffers.buffer_of, "empty"))
        return before

    def locations(self, graph: Graph) -> dict[Tensor, Location]:
        """The locations of an iteration's inputs: states, elements of sequences, constants."""
        locations: dict[Tensor, Location] = {}
        for number, leaf in enumerate(graph.inputs[: self.states]):
            row = self.time + 1 if self.reverse else self.time
            locations[leaf] = IterationRow(
                named(self.stacks[number]), row * size_of(static(leaf.shape))
            )
        buffer_locations: dict[Tensor, Location] = {
            tensor: named(buffer) for tensor, buffer in self._buffers.buffer_of.items()
        }

        def pulling(operand: Tensor, time: Coordinates) -> Location:
            return lambda coordinates: Puller(buffer_locations).pull(operand, (*time, *coordinates))

        others = zip(graph.inputs[self.states :], self.operands[self.states :], strict=True)
        for number, (leaf, operand) in enumerate(others):
            # The element of a sequence at the iteration's time, or a constant.
            locations[leaf] = pulling(operand, (self.time,) if number < self.sequences else ())
        return locations

    def iteration_steps(self, fused: Fused) -> list[Step]:
        """The steps of one iteration."""
        locations: dict[Tensor, str | IterationRow] = {**self._buffers.of_constants(fused.graph)}
        for number, (_, tensor) in zip(self.outputs, fused.graph.outputs, strict=True):
            row = self.time if self.reverse or number >= self.states else self.time + 1
            locations[tensor] = IterationRow(
                self.stacks[number], row * size_of(static(tensor.shape))
            )
        steps: list[Step] = []
        for group in fused.groups:
            # Recurrences inside an iteration were unrolled before.
            assert group.step is not None
            for member in group.members:
                if member in group.stored and member not in locations:
                    locations[member] = self._buffers.temporary(member)
            steps.append(group.step.written(locations, readable_name(group.members[-1])))
        return steps


def lower_repeating(
    group: Group, buffers: Buffers, optimised: Callable[[Graph], Graph], target: Target
) -> tuple[list[Step], list[Step], Axis]:
    """The steps of a recurrence. Its results get buffers.

    `optimised` are the passes that come before fusion. Returns the steps that store the initial
    states before the loop, the repeated steps, and the axis of iterations.
    """
    loop = _Loop(group, buffers)
    body = optimised(unroll(keep(loop.body)))
    while any(isinstance(node.op.lowering, Repeating) for node in body.nodes()):
        # An op was expanded to a recurrence.
        body = optimised(unroll(body))
    # Each result is a separate tensor, because each has its own stack.
    outputs: dict[Tensor, str] = {}
    for name, tensor in body.outputs:
        apart = apply(RESHAPE, tensor, shape=tensor.shape) if tensor in outputs else tensor
        outputs[apart] = name
    graph = Graph(body.inputs, tuple((name, tensor) for tensor, name in outputs.items()))
    for number, (_, tensor) in zip(loop.outputs, graph.outputs, strict=True):
        shape = (loop.length + (number < loop.states), *static(tensor.shape))
        loop.stacks[number] = buffers.temporary(loop.results.get(number, tensor), shape)
    before = loop.first_rows(graph)
    steps: list[Step] = []
    if loop.length:
        steps = loop.iteration_steps(fuse(graph, target, locations=loop.locations(graph)))
    buffers.buffer_of |= {tensor: loop.stacks[number] for number, tensor in loop.results.items()}
    return before, steps, loop.axis


def _copy(
    source: Tensor, target: IterationRow, locations: Mapping[Tensor, Location], name: str
) -> Loop:
    """A step that stores a tensor in a row of a stack."""
    shape = static(source.shape)
    axes = numbered_axes("i", shape)
    point = axis_indices(axes)
    value = Puller(locations).pull(source, point)
    store = Store(target.buffer, target.index(point, shape), value)
    return Loop(name, iterating(axes), (Write((), (store,)),))
