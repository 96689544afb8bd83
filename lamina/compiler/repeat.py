"""Recurrences: the graph of a step becomes steps of the program that are repeated.

It goes through the same passes as the whole graph. Its states are rows of buffers that hold those
of all turns: a turn reads one row and writes the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lamina.compiler.fuse import fuse
from lamina.compiler.keep import keep
from lamina.compiler.lower import Home, Row, lower_group, pulled
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

# (tensor, shape of the buffer) -> the name of a new temporary buffer.
NewBuffer = Callable[[Tensor, tuple[int, ...]], str]


@frozen_dataclass
class Repeated:
    """What a recurrence becomes.

    Attributes:
        before: steps that come first: they store the initial states.
        steps: those that are repeated.
        axis: what their index expressions call the turn.
        stored: where each of the wanted results lies.
    """

    before: tuple[Step, ...]
    steps: tuple[Step, ...]
    axis: Axis
    stored: Mapping[Tensor, str]


def lower_repeating(
    members: Sequence[Tensor],
    wanted: frozenset[Tensor],
    buffers: Mapping[Tensor, Home],
    optimised: Callable[[Graph, Target], Graph],
    target: Target,
    new_buffer: NewBuffer,
    first_number: int,
) -> Repeated:
    """The steps of a recurrence.

    Args:
        members: its results.
        wanted: those that must be stored.
        buffers: where what it reads lies.
        optimised: the passes that come before fusion.
        target: what for.
        new_buffer: makes a buffer.
        first_number: of the first step, which its name begins with.
    """
    node = members[0]
    attributes = node.attributes
    states: int = attributes["states"]
    sequences: int = attributes["sequences"]
    reverse: bool = attributes["reverse"]
    (length,) = static(node.operands[states].shape[:1])
    axis = Axis("turn", length)
    time = axis_index(axis) * -1 + (length - 1) if reverse else axis_index(axis)
    results = {member.attributes["result"]: member for member in members if member in wanted}
    step = step_of(list(results.values()))
    needed = [int(name) for name, _ in step.outputs]
    graph = _with_own_results(optimised(unroll(keep(step, target)), target))
    fused = fuse(graph, target)
    stacks: dict[int, str] = {}
    homes: dict[Tensor, Home] = {}
    new: dict[Tensor, Row] = {}
    before: list[Step] = []
    number = first_number
    for position, (n, (_, tensor)) in enumerate(zip(needed, fused.graph.outputs, strict=True)):
        shape = static(tensor.shape)
        size = size_of(shape)
        rows = length + 1 if n < states else length
        stacks[n] = new_buffer(results.get(n, tensor), (rows, *shape))
        late = 0 if reverse or n >= states else 1
        new[tensor] = Row(stacks[n], (time + late) * size)
        if n < states:
            homes[graph.inputs[position]] = Row(stacks[n], (time + (1 - late)) * size)
            start = Row(stacks[n], Index(length * size if reverse else 0))
            before.append(_copy(node.operands[n], start, buffers, f"{number}.initial"))
            number += 1
        elif not length:
            nothing = broadcast_to(constant(0, tensor.dtype), (0, *shape))
            before.append(_copy(nothing, Row(stacks[n], Index()), buffers, f"{number}.empty"))
            number += 1
    for leaf, operand in zip(graph.inputs[states:], node.operands[states:], strict=True):
        is_sequence = leaf in graph.inputs[states : states + sequences]
        homes[leaf] = _inside(operand, (time,) if is_sequence else (), buffers)
    steps: list[Step] = []
    for group in fused.groups if length else ():
        stored: dict[Tensor, str | Row] = {
            one: new[one] if one in new else new_buffer(one, static(one.shape))
            for one in group.members
            if one in group.stored
        }
        label = f"{number}.{readable(group.members[-1])}"
        rows_of = frozenset(stacks.values())
        steps.append(lower_group(group.members, stored, homes, label, rows_of))
        homes |= stored
        number += 1
    return Repeated(
        tuple(before), tuple(steps), axis, {results[n]: stacks[n] for n in needed if n in results}
    )


def _with_own_results(graph: Graph) -> Graph:
    """Gives results that are the same tensor one each, as each has rows of its own."""
    seen: set[Tensor] = set()
    outputs: list[tuple[str, Tensor]] = []
    for name, tensor in graph.outputs:
        own = apply(RESHAPE, tensor, shape=tensor.shape) if tensor in seen else tensor
        seen.add(tensor)
        outputs.append((name, own))
    return Graph(graph.inputs, tuple(outputs))


def readable(node: Tensor) -> str:
    """A name for what computes a tensor."""
    return f"{node.origin.path}.{node.op.name}" if node.origin.path else node.op.name


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
