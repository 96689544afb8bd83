"""The arithmetic of a network, counted by its layers."""

from __future__ import annotations

from lamina.base.shapes import size_of, static
from lamina.compiler.expand import expand
from lamina.errors import LaminaError
from lamina.graph import Graph, Tensor, bind_batch
from lamina.ops.lowering_rules import (
    Contracting,
    Elementwise,
    Reduction,
    Repeating,
    iteration_of,
    loop_key,
)


def flops_of(graph: Graph) -> dict[str, int]:
    """Arithmetic operations for one example, by the path of the layer that needs them.

    A multiplication and an addition count as two, any other elementwise primitive as one.
    """
    try:
        return _counted(bind_batch(graph, 1))
    except LaminaError:
        return {}


def _counted(graph: Graph) -> dict[str, int]:
    counts: dict[str, int] = {}
    loops: dict[object, list[Tensor]] = {}

    def add(node: Tensor, count: int) -> None:
        path = "/".join(node.origin.path.split("/")[:2])
        counts[path] = counts.get(path, 0) + count

    for node in expand(graph).nodes():
        lowering = node.op.lowering
        if isinstance(lowering, Repeating):
            loops.setdefault(loop_key(node), []).append(node)
            continue
        if isinstance(lowering, Contracting):
            names: tuple[str, ...] = node.attributes["left"]
            kept: tuple[str, ...] = node.attributes["output"]
            sizes = zip(names, static(node.operands[0].shape), strict=True)
            k_extent = size_of([size for name, size in sizes if name not in kept])
            count = 2 * size_of(static(node.shape)) * k_extent
        elif isinstance(lowering, Reduction):
            count = size_of(static(node.operands[0].shape))
        elif isinstance(lowering, Elementwise):
            count = size_of(static(node.shape))
        else:
            continue
        add(node, count)
    for results in loops.values():
        states: int = results[0].attributes["states"]
        (length,) = static(results[0].operands[states].shape[:1])
        add(results[0], length * sum(_counted(iteration_of(results)).values()))
    return counts
