"""Reverse-mode differentiation: gradients are graphs.

The derivative of a graph is a graph of ops too. So gradients can be differentiated again, and the
compiler treats them like any other graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import reduce
from typing import final

from lamina.checks import checked
from lamina.checks.origin import labelled
from lamina.errors import GradientError, ShapeError
from lamina.graph import (
    CONSTANT,
    LEAF,
    Graph,
    Tensor,
    apply,
    constant,
    described,
    leaf,
    rebuild,
    rewrite,
    topological,
)
from lamina.ops import basic as ops
from lamina.ops.conversion import applied_in_float32, computes_in_float32, ordered_op, widened
from lamina.ops.lowering_rules import Repeating, loop_key
from lamina.ops.slicing import SLICE

__all__ = ["computed_again"]


def gradients(
    output: Tensor, with_respect_to: Sequence[Tensor], seed: Tensor | None = None
) -> tuple[Tensor, ...]:
    """The derivatives of an output of a graph of ops; `lamina.gradients` has the description."""
    check(output, with_respect_to, seed)
    if seed is None:
        seed = ops.broadcast_to(constant(1.0, output.dtype), output.shape)
    # The rules of ops give constants no gradient: leaves stand in for those that are asked for.
    constants = tuple(dict.fromkeys(x for x in with_respect_to if x.op is CONSTANT))
    if constants:

        def build(leaves: tuple[Tensor, ...]) -> Tensor:
            return _replaced([output], dict(zip(constants, leaves, strict=True)))[0]

        others = [x for x in with_respect_to if x.op is not CONSTANT]
        flows = dict(zip(constants, gradients_of_built(build, constants, seed), strict=True))
        flows |= dict(zip(others, gradients(output, others, seed), strict=True))
        return tuple(flow for x in with_respect_to if (flow := flows[x]) is not None)
    needed = smoothly_depending(output, set(with_respect_to))
    upstream: dict[Tensor, Tensor] = {output: seed}
    order = topological([output])
    together = _results_together(order)
    recomputation = Recomputation()
    for node in reversed(order):
        # In this order the first of several results comes last, after all users of all of them.
        results = together.get(node, (node,))
        arriving = {x: upstream[x] for x in results if x in upstream and x in needed}
        if node is not results[0] or not arriving or node.op is LEAF:
            continue
        if not any(operand in needed for operand in node.operands):
            continue
        if node.op.gradient is None and node.op.joint_gradient is None:
            raise GradientError(
                f"{node.op.name} has no derivative, but the output depends on it",
                where=str(node.origin),
                advice="Stop the gradient with ops.stop_gradient, or use a smooth op.",
            )
        with labelled(node.origin):
            recomputation.begin(node, arriving[next(iter(arriving))])
            flows = _operand_gradients(recomputation.arriving(arriving))
            for operand, flow in zip(node.operands, flows, strict=True):
                if flow is not None and operand in needed:
                    earlier = upstream.get(operand)
                    upstream[operand] = flow if earlier is None else ops.add(earlier, flow)
    return tuple(
        upstream[tensor]
        if tensor in upstream
        else ops.broadcast_to(constant(0.0, tensor.dtype), tensor.shape)
        for tensor in with_respect_to
    )


def check(output: Tensor, with_respect_to: Sequence[Tensor], seed: Tensor | None) -> None:
    """Checks that tensors are floats, and that a seed has the shape and dtype of the output."""
    for tensor in (output, *with_respect_to):
        if not tensor.dtype.is_float:
            raise GradientError(
                "only floating-point tensors have derivatives",
                facts=(("expected", "f32 or f64"), ("found", repr(tensor))),
                where=str(tensor.origin),
                advice="Cast integers first: ops.cast(x, 'float32').",
            )
    if seed is not None and (seed.shape, seed.dtype) != (output.shape, output.dtype):
        raise ShapeError(
            "the seed of a gradient must have the shape and dtype of the output",
            facts=(("output", described(output)), ("seed", described(seed))),
            advice="Leave the seed out for a gradient of the sum of the output.",
        )


def _operand_gradients(arriving: Mapping[Tensor, Tensor]) -> tuple[Tensor | None, ...]:
    """The gradients of the operands of an op, from the gradients of its results."""
    op = next(iter(arriving)).op
    if op.joint_gradient is not None:
        return op.joint_gradient(arriving)
    assert op.gradient is not None
    if len(arriving) > 1 and (axis := _split_axis(list(arriving))) is not None:
        # If slices fill a tensor, their gradients are joined instead of padded and added.
        parts = sorted(arriving, key=lambda part: part.attributes["starts"][axis])
        return (ops.concat([arriving[part] for part in parts], axis),)
    flows = [_operand_gradients_of(node, upstream) for node, upstream in arriving.items()]
    return flows[0] if len(flows) == 1 else (reduce(ops.add, [x for (x,) in flows if x]),)


def _operand_gradients_of(node: Tensor, upstream: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of a node's operands; with floats of 16 bits they are computed in float32.

    Each is rounded once. The node's result has been rounded too.
    """
    assert node.op.gradient is not None
    if not computes_in_float32(node):
        return node.op.gradient(node, upstream)
    wide, arriving = applied_in_float32(node), widened(upstream)
    flows = node.op.gradient(wide, arriving)
    rebuilt = {wide: widened(node)}
    for x in topological([x for x in flows if x is not None], [*wide.operands, arriving, wide]):
        if x not in rebuilt:
            rebuilt[x] = rebuild(x, tuple(rebuilt.get(operand, operand) for operand in x.operands))
    return tuple(
        None if flow is None else ops.cast(rebuilt[flow], operand.dtype)
        for flow, operand in zip(flows, node.operands, strict=True)
    )


def _results_together(nodes: Sequence[Tensor]) -> dict[Tensor, list[Tensor]]:
    """For each node that is differentiated together with others, all of its group, in order.

    Such are the results of a loop, and the parts of a split tensor.
    """
    loops: dict[object, list[Tensor]] = {}
    slices: dict[Tensor, list[Tensor]] = {}
    groups: dict[Tensor, list[Tensor]] = {}
    for node in nodes:
        if isinstance(node.op.lowering, Repeating):
            groups[node] = loops.setdefault(loop_key(node), [])
            groups[node].append(node)
        elif node.op is SLICE:
            slices.setdefault(node.operands[0], []).append(node)
    for parts in slices.values():
        if _split_axis(parts) is not None:
            groups |= dict.fromkeys(parts, parts)
    return groups


def _split_axis(parts: Sequence[Tensor]) -> int | None:
    """The axis along which slices of one tensor fill it without overlap; None if they do not."""
    shape = parts[0].operands[0].shape
    axes = {n for part in parts for n, dim in enumerate(part.shape) if dim != shape[n]}
    if len(axes) != 1 or any(set(part.attributes["steps"]) != {1} for part in parts):
        return None
    (axis,) = axes
    starts = [part.attributes["starts"][axis] for part in parts]
    stops = [part.attributes["stops"][axis] for part in parts]
    if not all(isinstance(end, int) for end in (*starts, *stops)):
        return None
    fits = [0, *sorted(stops)] == [*sorted(starts), shape[axis]]
    return axis if fits else None


def smoothly_depending(output: Tensor, sources: AbstractSet[Tensor]) -> set[Tensor]:
    """The tensors on paths from the sources to the output; no path leads through integers."""
    depending: set[Tensor] = set()
    for node in topological([output]):
        if node.dtype.is_float and (
            node in sources or any(operand in depending for operand in node.operands)
        ):
            depending.add(node)
    return depending


def gradients_of_built(
    build: Callable[[tuple[Tensor, ...]], Tensor], operands: tuple[Tensor, ...], upstream: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradient of an op that stands for a graph: the gradient of this graph.

    Two operands may be the same tensor, or one may depend on the other. They are still
    differentiated as independent tensors. Operands that are not floats have None.
    """
    replacements = {leaf(f"x{n}", "input", x.shape, x.dtype): x for n, x in enumerate(operands)}
    arriving = leaf("upstream", "input", upstream.shape, upstream.dtype)
    floats = [x for x in replacements if x.dtype.is_float]
    flows = gradients(build(tuple(replacements)), floats, arriving)
    of_floats = iter(_replaced(flows, {**replacements, arriving: upstream}))
    return tuple(next(of_floats) if x.dtype.is_float else None for x in operands)


def _replaced(tensors: Sequence[Tensor], replacements: Mapping[Tensor, Tensor]) -> list[Tensor]:
    """The tensors, computed from the replacements of tensors that they depend on."""
    graph = Graph((), tuple((str(n), tensor) for n, tensor in enumerate(tensors)))

    def rule(node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        return replacements[node] if node in replacements else rebuild(node, operands)

    return [tensor for _, tensor in rewrite(graph, rule).outputs]


COMPUTED_AGAIN = ordered_op("computed_again")


@checked
def computed_again(y: Tensor, *sources: Tensor) -> Tensor:
    """y itself, but a gradient computes the tensors between the sources and y again.

    They need not be kept for the gradient, which takes less memory and more time. From Chen, Xu,
    Zhang, Guestrin: Training deep nets with sublinear memory cost (2016).
    """
    return apply(COMPUTED_AGAIN, y, *sources)


@final
class Recomputation:
    """The tensors that a gradient reads in place of tensors of the forward pass.

    It sees the tensors in the order in which they are differentiated, users before operands. So a
    tensor within several `computed_again` is at last computed from the sources of the innermost.
    """

    def __init__(self) -> None:
        self._again: dict[Tensor, Tensor] = {}

    def begin(self, node: Tensor, upstream: Tensor) -> None:
        """Computes tensors again after `upstream`, if a node is the result of `computed_again`."""
        if node.op is not COMPUTED_AGAIN:
            return
        y, *sources = node.operands
        between = _between(y, sources)
        if not between:
            return
        # The sources are kept, and differentiated as they are.
        rebuilt: dict[Tensor, Tensor] = {}
        for source in sources:
            with labelled(source.origin):
                rebuilt[source] = ops.recomputed(self._of(source), upstream)
        for tensor in between:
            operands = tuple(rebuilt.get(x, self._of(x)) for x in tensor.operands)
            with labelled(tensor.origin):
                rebuilt[tensor] = rebuild(tensor, operands)
        self._again.update((tensor, rebuilt[tensor]) for tensor in between)

    def arriving(self, flows: Mapping[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """The gradients of tensors as gradients of the tensors that are computed again."""
        return {self._of(tensor): flow for tensor, flow in flows.items()}

    def _of(self, tensor: Tensor) -> Tensor:
        return self._again.get(tensor, tensor)


def _between(y: Tensor, sources: Sequence[Tensor]) -> list[Tensor]:
    """The tensors on paths from the sources to y, which is one of them, operands first."""
    ends = set(sources)
    between: dict[Tensor, None] = {}
    for node in topological([y], sources):
        if node not in ends and any(x in ends or x in between for x in node.operands):
            between[node] = None
    return list(between)
