"""Programs of small graphs."""

from collections.abc import Sequence

from lamina.compiler.pipeline import compile_graph
from lamina.engines import DEFAULT_TARGET
from lamina.graph import Graph, Tensor
from lamina.program.program import Program
from lamina.program.scalar import Apply, postorder
from lamina.program.steps import scalars_of
from lamina.program.target import Target


def compiled(graph: Graph, target: Target = DEFAULT_TARGET) -> Program:
    """The program of a graph."""
    return compile_graph(graph, batch=1, name="test", target=target)


def program_of(
    outputs: Tensor | Sequence[Tensor],
    updates: Sequence[tuple[Tensor, Tensor]] = (),
    target: Target = DEFAULT_TARGET,
) -> Program:
    """The program that computes tensors: the outputs `y0`, `y1`, and so on."""
    outputs = [outputs] if isinstance(outputs, Tensor) else outputs
    named = tuple((f"y{number}", tensor) for number, tensor in enumerate(outputs))
    return compiled(Graph((), named, tuple(updates)), target)


def count(program: Program, primitive: str) -> int:
    """How often a primitive occurs in the program's expressions."""
    return sum(
        isinstance(part, Apply) and part.primitive == primitive
        for step in program.steps
        for part in postorder(*scalars_of(step))
    )
