"""Unrolls recurrences nested in another recurrence.

A program repeats steps, but cannot nest repeats.
"""

from __future__ import annotations

from lamina.graph import Graph, Tensor, constant, rebuild, rewrite
from lamina.ops.broadcast import broadcast_to
from lamina.ops.joining import stack
from lamina.ops.lowering_rules import Recurrence, Repeating, loop_key
from lamina.ops.movement import squeeze
from lamina.ops.slicing import slice_axis


def unroll(graph: Graph) -> Graph:
    """The graph with the ops of every iteration in place of each recurrence."""
    # The values of all iterations, for each result of each loop.
    values_of: dict[object, list[list[Tensor]]] = {}

    def rule(node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        node = rebuild(node, operands)
        if not isinstance(node.op.lowering, Repeating):
            return node
        loop = loop_key(node)
        if loop not in values_of:
            values_of[loop] = iterations(node)
        number: int = node.attributes["result"]
        values = values_of[loop][number]
        return stack(values) if values else broadcast_to(constant(0, node.dtype), node.shape)

    def iterations(node: Tensor) -> list[list[Tensor]]:
        loop = Recurrence(node)
        current, others = node.operands[: loop.states], node.operands[loop.states :]
        all_values: list[list[Tensor]] = [[state] for state in current]
        all_values += [[] for _ in loop.body.outputs[loop.states :]]
        for time in range(loop.length)[:: -1 if loop.reverse else 1]:
            sequences, constants = others[: loop.sequences], others[loop.sequences :]
            elements = [squeeze(slice_axis(x, 0, time, time + 1), 0) for x in sequences]
            values = (*current, *elements, *constants)
            value_of_input = dict(zip(loop.body.inputs, values, strict=True))

            def body_rule(
                inner: Tensor,
                operands: tuple[Tensor, ...],
                known_values: dict[Tensor, Tensor] = value_of_input,
            ) -> Tensor:
                return known_values[inner] if inner in known_values else rule(inner, operands)

            results = [tensor for _, tensor in rewrite(loop.body, body_rule).outputs]
            current = results[: loop.states]
            for values_so_far, value in zip(all_values, results, strict=True):
                values_so_far.append(value)
        return [values[::-1] for values in all_values] if loop.reverse else all_values

    return rewrite(graph, rule)
