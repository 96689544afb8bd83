"""The compiler in one function: from a graph to a program.

Read this file first. The passes are listed in the order in which they run. After each pass the
tensors that it made are type-checked; at the end the program is checked.
"""

from __future__ import annotations

from lamina.base.garbage import without_collections
from lamina.compiler.buffers import Buffers, readable_name
from lamina.compiler.expand import expand
from lamina.compiler.fusion.fuse import Fused, fuse
from lamina.compiler.keep import keep
from lamina.compiler.layout import sink_transposes
from lamina.compiler.memory import plan_memory
from lamina.compiler.repeat import lower_repeating
from lamina.compiler.scatter import sort_scatters
from lamina.compiler.simplify import simplify
from lamina.compiler.widen import widen
from lamina.graph import Graph, bind_batch, verify
from lamina.program.check import verify as verify_program
from lamina.program.program import Program, Repeat
from lamina.program.steps import Step
from lamina.program.target import Target


@without_collections
def compile_graph(graph: Graph, *, batch: int, name: str, target: Target) -> Program:
    """Compiles a graph for one batch size and target, to a program that any engine can run.

    The graph has its gradients (`differentiate.gradients`). Users see the name.
    """
    graph = bind_batch(graph, batch)
    verify(graph)
    graph = optimised(graph, graph)
    fused = fuse(graph, target)
    verify(fused.graph, graph)
    program = assemble(fused, name, target)
    verify_program(program)
    return program


def optimised(graph: Graph, checked: Graph | None = None) -> Graph:
    """The graph after the passes that come before fusion.

    Only tensors that a pass makes are type-checked, not those of a graph that was `checked`.
    """
    for apply_pass in (widen, keep, expand, simplify, sink_transposes, simplify):
        graph = apply_pass(graph)
        verify(graph, checked)
        checked = graph
    return graph


def assemble(fused: Fused, name: str, target: Target) -> Program:
    """The program: named buffers, steps that use them, and the plan of the arena."""
    named = Buffers(fused.graph)
    steps, repeats = write_steps(fused, named, target)
    if target.scatter == "sorted":
        steps, repeats = sort_scatters(named.buffers, steps, repeats)
    outputs = tuple((name, named.buffer_of[tensor]) for name, tensor in fused.graph.outputs)
    plan = plan_memory(
        *(named.buffers, steps, [buffer for _, buffer in outputs], repeats),
        alignment=target.alignment_bytes,
        largest_block=target.largest_block_bytes,
    )
    parts = tuple(steps), outputs, named.constants, plan, tuple(repeats)
    return Program(name, named.buffers, *parts)


def write_steps(fused: Fused, named: Buffers, target: Target) -> tuple[list[Step], list[Repeat]]:
    """The steps of all groups in order, and repeats. Tensors that steps store get buffers."""
    steps: list[Step] = []
    repeats: list[Repeat] = []
    for group in fused.groups:
        if group.step is None:
            before, repeated, axis = lower_repeating(group, named, optimised, target, len(steps))
            first = len(steps) + len(before)
            steps += [*before, *repeated]
            if repeated:
                repeats.append(Repeat(axis, first, len(steps)))
            continue
        for node in group.members:
            if node in fused.in_place:
                named.buffer_of[node] = named.buffer_of[fused.in_place[node]]
            elif node in group.stored:
                named.buffer_of[node] = named.temporary(node)
        label = f"{len(steps)}.{readable_name(group.members[-1])}"
        steps.append(group.step.written(named.buffer_of, label))
    return steps, repeats
