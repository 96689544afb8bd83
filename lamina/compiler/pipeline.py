"""The compiler, in one function: a graph goes in, a program comes out.

Read this file first. The passes run in the order in which they stand here; the tensors
that each pass has made are type-checked after it, and the program at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from lamina.compiler.expand import expand
from lamina.compiler.fuse import Fused, fuse
from lamina.compiler.keep import keep
from lamina.compiler.layout import sink_transposes
from lamina.compiler.lower import Home, lower_group
from lamina.compiler.memory import plan_memory
from lamina.compiler.repeat import lower_repeating, readable
from lamina.compiler.scatter import Lowered, sort_scatters
from lamina.compiler.simplify import simplify
from lamina.garbage import without_collections
from lamina.graph import CONSTANT, LEAF, Graph, Tensor, bind_batch, verify
from lamina.ops.lowering import Repeating
from lamina.program.check import verify as verify_program
from lamina.program.program import Buffer, Program, Repeat
from lamina.program.steps import Step
from lamina.program.target import Target
from lamina.shapes import Array, size_of, static


@without_collections
def compile_graph(graph: Graph, *, batch: int, name: str, target: Target) -> Program:
    """Compiles a graph for one batch size.

    Args:
        graph: what to compute. Gradients are part of it already (`differentiate.gradients`).
        batch: the number of examples in a batch.
        name: of the program, for people.
        target: what is dear, and what is cheap, where it shall run.

    Returns:
        A program that any engine can run.
    """
    graph = bind_batch(graph, batch)
    verify(graph)
    graph = optimised(graph, target, graph)
    fused = fuse(graph, target)
    verify(fused.graph, graph)
    program = assemble(fused, name, target)
    verify_program(program)
    return program


def optimised(graph: Graph, target: Target, checked: Graph | None = None) -> Graph:
    """The graph after the passes that come before fusion.

    Args:
        graph: what is compiled.
        target: what for.
        checked: a graph of which all tensors were checked; after each pass the others are.
    """
    passes: list[Callable[[Graph], Graph]] = [
        partial(keep, target=target),
        partial(expand, target=target),
        simplify,
        sink_transposes,
        simplify,
    ]
    for apply_pass in passes:
        graph = apply_pass(graph)
        verify(graph, checked)
        checked = graph
    return graph


def assemble(fused: Fused, name: str, target: Target) -> Program:
    """Names the buffers, lowers every group to its steps, and plans the arena."""
    graph = fused.graph
    buffers: dict[str, Buffer] = {}
    names: dict[Tensor, Home] = {}
    constants: dict[str, Array] = {}
    # How many buffers wanted a name.
    wishes: dict[str, int] = {}

    def add(node: Tensor, kind: str, wanted: str, shape: tuple[int, ...] | None = None) -> str:
        unique, number = wanted, wishes.get(wanted, 1)
        while unique in buffers:
            number += 1
            unique = f"{wanted}#{number}"
        wishes[wanted] = number
        extents = static(node.shape) if shape is None else shape
        buffers[unique] = Buffer(unique, kind, extents, node.dtype)
        return unique

    def add_temporary(node: Tensor, shape: tuple[int, ...]) -> str:
        return add(node, "temporary", readable(node), shape)

    own: dict[Tensor, str] = {}
    for node in graph.nodes():
        if node.op is LEAF:
            own[node] = add(node, node.attributes["role"], node.attributes["name"])
        elif node.op is CONSTANT and size_of(static(node.shape)) != 1:
            own[node] = add(node, "constant", "constant")
            constants[own[node]] = node.attributes["value"].array
    names |= own
    steps: list[Step] = []
    repeats: list[Repeat] = []
    for group in fused.groups:
        if isinstance(group.members[0].op.lowering, Repeating):
            repeated = lower_repeating(
                group.members,
                group.stored,
                names,
                optimised,
                target,
                add_temporary,
                len(steps),
            )
            first = len(steps) + len(repeated.before)
            steps += [*repeated.before, *repeated.steps]
            if repeated.steps:
                repeats.append(Repeat(repeated.axis, first, len(steps)))
            own |= repeated.stored
            names |= repeated.stored
            continue
        stored: dict[Tensor, str] = {}
        for node in group.members:
            if node in fused.in_place:
                stored[node] = own[fused.in_place[node]]
            elif node in group.stored:
                stored[node] = add(node, "temporary", readable(node))
        label = f"{len(steps)}.{readable(group.members[-1])}"
        steps.append(lower_group(group.members, stored, names, label))
        # Only now: a group computes its own members, and never loads them.
        own |= stored
        names |= stored
    outputs = tuple((name, own[tensor]) for name, tensor in graph.outputs)
    lowered = Lowered(buffers, tuple(steps), tuple(repeats))
    if target.scatter == "sorted":
        lowered = sort_scatters(lowered)
    plan = plan_memory(
        lowered.buffers,
        lowered.steps,
        [buffer for _, buffer in outputs],
        lowered.repeats,
        alignment=target.alignment_bytes,
        largest_block=target.largest_block_bytes,
    )
    return Program(name, lowered.buffers, lowered.steps, outputs, constants, plan, lowered.repeats)
