"""The compiler in one function: from a graph to a program.

Read this file first. The passes are listed in the order in which they run. After each pass the
tensors that it made are type-checked; at the end the program is checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from lamina.base.garbage import without_collections
from lamina.compiler.buffers import Buffers, readable_name
from lamina.compiler.chains import join_chains
from lamina.compiler.expand import expand, widen
from lamina.compiler.fusion.fuse import Fused, fuse
from lamina.compiler.keep import keep
from lamina.compiler.layout import sink_transposes
from lamina.compiler.memory import plan_memory
from lamina.compiler.repeat import lower_repeating
from lamina.compiler.rounded_operands import preparing, with_rounded_operands
from lamina.compiler.scatter import sort_scatters
from lamina.compiler.simplify import simplify
from lamina.graph import Graph, Tensor, bind_batch, verify
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
    graph = optimised(graph, graph, chains=target.chains)
    rewritten = with_rounded_operands(graph, target)
    verify(rewritten.graph, graph)
    fused = fuse(rewritten.graph, target, stored=rewritten.stored)
    verify(fused.graph, rewritten.graph)
    program = assemble(fused, name, target, rewritten.copies)
    verify_program(program)
    return program


def optimised(graph: Graph, checked: Graph | None = None, *, chains: bool = False) -> Graph:
    """The graph after the passes that come before fusion.

    Only tensors that a pass makes are type-checked, not tensors of a graph that was `checked`.
    `chains`: whether the target has chains; no steps of a recurrence become chains.
    """
    expanded = partial(expand, chains=chains)
    for apply_pass in (widen, keep, expanded, simplify, sink_transposes, simplify):
        graph = apply_pass(graph)
        verify(graph, checked)
        checked = graph
    return graph


def assemble(fused: Fused, name: str, target: Target, copies: Mapping[Tensor, Tensor]) -> Program:
    """The program: named buffers, steps that use them, and the plan of the arena.

    `copies` has leaves that are rounded copies of other leaves.
    """
    named = Buffers(fused.graph, (*copies, *copies.values()))
    prepared = [
        preparing(named.buffer_of[copy], copy.dtype, named.buffers[named.buffer_of[of]])
        for copy, of in copies.items()
    ]
    steps, repeats = write_steps(fused, named, target, prepared)
    if target.scatter == "sorted":
        steps, repeats = sort_scatters(named.buffers, steps, repeats)
    outputs = tuple((name, named.buffer_of[tensor]) for name, tensor in fused.graph.outputs)
    # Copies stay until the next run.
    copied = [named.buffer_of[copy] for copy in copies]
    lasting = [*(buffer for _, buffer in outputs), *copied]
    if target.chains:
        steps, repeats = join_chains(named.buffers, steps, repeats, lasting, copied)
    plan = plan_memory(
        *(named.buffers, steps, lasting, repeats),
        alignment=target.alignment_bytes,
        largest_block=target.largest_block_bytes,
    )
    numbered = (replace(step, name=f"{number}.{step.name}") for number, step in enumerate(steps))
    parts = tuple(numbered), outputs, named.constants, plan, tuple(repeats), len(copies)
    return Program(name, named.buffers, *parts)


def write_steps(
    fused: Fused, named: Buffers, target: Target, prepared: Sequence[Step]
) -> tuple[list[Step], list[Repeat]]:
    """The steps of all groups in order, after those that prepare copies, and repeats.

    Tensors that steps store get buffers.
    """
    steps: list[Step] = [*prepared]
    repeats: list[Repeat] = []
    for group in fused.groups:
        if group.step is None:
            before, repeated, axis = lower_repeating(group, named, optimised, target)
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
        label = readable_name(group.members[-1])
        steps.append(group.step.written(named.buffer_of, label))
    return steps, repeats
