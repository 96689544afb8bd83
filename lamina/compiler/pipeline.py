"""The compiler, in one function: a graph goes in, a program comes out.

Read this file first. The passes run in the order in which they stand here; the graph is
type-checked after each, and the program at the end.
"""

from __future__ import annotations

from collections.abc import Callable

from lamina.compiler.expand import expand
from lamina.compiler.fuse import Fused, fuse
from lamina.compiler.layout import sink_transposes
from lamina.compiler.lower import lower_group
from lamina.compiler.memory import plan_memory
from lamina.compiler.simplify import simplify
from lamina.graph import CONSTANT, LEAF, Graph, Tensor, bind_batch, verify
from lamina.program.program import Buffer, Program
from lamina.program.program import verify as verify_program
from lamina.program.steps import Step
from lamina.shapes import Array, size_of, static


def compile_graph(graph: Graph, *, batch: int, name: str) -> Program:
    """Compiles a graph for one batch size.

    Args:
        graph: what to compute. Gradients are part of it already (`differentiate.gradients`).
        batch: the number of examples in a batch.
        name: of the program, for people.

    Returns:
        A program that any engine can run.
    """
    passes: list[Callable[[Graph], Graph]] = [expand, simplify, sink_transposes, simplify]
    graph = bind_batch(graph, batch)
    verify(graph)
    for apply_pass in passes:
        graph = apply_pass(graph)
        verify(graph)
    fused = fuse(graph)
    verify(fused.graph)
    program = assemble(fused, name)
    verify_program(program)
    return program


def assemble(fused: Fused, name: str) -> Program:
    """Names the buffers, lowers every group to its step, and plans the arena."""
    graph = fused.graph
    buffers: dict[str, Buffer] = {}
    names: dict[Tensor, str] = {}
    constants: dict[str, Array] = {}

    def add(node: Tensor, kind: str, wanted: str) -> str:
        unique, number = wanted, 1
        while unique in buffers:
            number += 1
            unique = f"{wanted}#{number}"
        buffers[unique] = Buffer(unique, kind, static(node.shape), node.dtype)
        return unique

    for node in graph.nodes():
        if node.op is LEAF:
            names[node] = add(node, node.attributes["role"], node.attributes["name"])
        elif node.op is CONSTANT and size_of(static(node.shape)) != 1:
            names[node] = add(node, "constant", "constant")
            constants[names[node]] = node.attributes["value"].array
    steps: list[Step] = []
    for number, group in enumerate(fused.groups):
        stored: dict[Tensor, str] = {}
        for node in group.members:
            if node in fused.in_place:
                stored[node] = names[fused.in_place[node]]
            elif node in group.stored:
                stored[node] = add(node, "temporary", _readable(node))
        label = f"{number}.{_readable(group.members[-1])}"
        steps.append(lower_group(group.members, stored, names, label))
        # Only now: a group computes its own members, and never loads them.
        names |= stored
    outputs = tuple((name, names[tensor]) for name, tensor in graph.outputs)
    plan = plan_memory(buffers, steps, [buffer for _, buffer in outputs])
    return Program(name, buffers, tuple(steps), outputs, constants, plan)


def _readable(node: Tensor) -> str:
    return f"{node.origin.path}.{node.op.name}" if node.origin.path else node.op.name
