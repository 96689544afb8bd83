"""Gradients of definitions: also through layers, whose graphs of ops are built later.

`differentiate.gradients` makes the gradient of a graph of ops at once. If layers lie between the
tensors, `gradients` makes tensors of the op `GRADIENT`, whose shapes are known. `tracing.py`
replaces them, after the layers. So a gradient reads the tensors of the traced network: the same
masks of dropout, the same statistics of batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from lamina.base.shapes import DType, Shape
from lamina.checks import checked
from lamina.checks.kinds import Flag
from lamina.errors import DefinitionError
from lamina.graph import Attributes, LoweringRule, Op, Tensor, apply, topological
from lamina.graph.attributes import whole
from lamina.graph.tensor import Tensors
from lamina.layers.layer import LAYER, RESULT, no_reference
from lamina.ops import differentiate


@checked
def gradients(
    output: Tensor, with_respect_to: Tensors, seed: Tensor | None = None
) -> tuple[Tensor, ...]:
    """The derivatives of an output with respect to tensors from which it was computed.

    They are tensors like others: outputs of a network that is trained, parts of a loss, or the
    output of another derivative. Between the tensors there may be ops, layers and networks.

    Args:
        output: a float tensor. Without a seed its elements are summed. If it has one element per
            example, each example gets its own derivative.
        with_respect_to: float tensors; a tensor on which the output does not depend gets zeros.
        seed: the upstream gradient, in the shape of the output; ones by default.

    Returns:
        One tensor for each of `with_respect_to`, in its shape and dtype.

    Raises:
        GradientError: if an op on the path has no derivative, or a dtype is not a float.
        ShapeError: if the seed has another shape than the output.

    Example:
        >>> x = lm.Input()
        >>> (slope,) = lm.gradients(x * x, [x])
        >>> lm.compile(inputs=[x], outputs=[slope])([3.0])[0].item()
        6.0
    """
    if not _has_layers_between(output, set(with_respect_to)):
        return differentiate.gradients(output, with_respect_to, seed)
    reached = set(topological([output]))
    # What the output does not depend on becomes no part of its network.
    sources = [tensor for tensor in with_respect_to if tensor in reached]
    others = [tensor for tensor in with_respect_to if tensor not in reached]
    operands = (output, *([] if seed is None else [seed]), *sources)
    derivatives = dict(zip(others, differentiate.gradients(output, others, seed), strict=True))
    for number, source in enumerate(sources):
        derivatives[source] = apply(GRADIENT, *operands, number=number, seeded=seed is not None)
    return tuple(derivatives[tensor] for tensor in with_respect_to)


def _has_layers_between(output: Tensor, sources: AbstractSet[Tensor]) -> bool:
    """Whether a layer lies on a path of floats from the sources to the output."""
    depending: set[Tensor] = set()
    for node in topological([output]):
        # Results of a layer depend on its operands, also if its first result is an integer.
        operands = node.operands if node.op is not RESULT else node.operands[0].operands
        depends = any(operand in depending for operand in (*node.operands, *operands))
        if depends and node.op in (LAYER, RESULT, GRADIENT):
            return True
        if node.dtype.is_float and (depends or node in sources):
            depending.add(node)
    return False


def _parts(operands: Tensors, seeded: bool) -> tuple[Tensor, Tensors, Tensor | None]:
    """Output, sources and seed, from the operands of a gradient."""
    output, *others = operands
    return output, others[seeded:], others[0] if seeded else None


def _infer_gradient(operands: tuple[Tensor, ...], attributes: Attributes) -> tuple[Shape, DType]:
    output, sources, seed = _parts(operands, attributes["seeded"])
    differentiate.check(output, sources, seed)
    number: int = attributes["number"]
    if number >= len(sources):
        facts = (("expected", f"less than {len(sources)}"), ("found", str(number)))
        raise DefinitionError("there is no such gradient", facts=facts)
    return sources[number].shape, sources[number].dtype


# A gradient through layers. Its operands are the output, the seed if it is `seeded`, and the
# sources of the gradients of a call; `number` counts its source from 0.
GRADIENT = Op(
    *("gradient", _infer_gradient, None, no_reference, LoweringRule()),
    operands=(1, None),
    attributes={"number": whole(0), "seeded": Flag()},
)


def gradients_with(gradient: Tensor, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """All gradients of the call of a tensor of op `GRADIENT`, with other operands."""
    return gradients(*_parts(operands, gradient.attributes["seeded"]))


def sources_of(nodes: Iterable[Tensor]) -> set[Tensor]:
    """The tensors with respect to which some of the nodes are gradients."""
    return {
        source
        for node in nodes
        if node.op is GRADIENT
        for source in _parts(node.operands, node.attributes["seeded"])[1]
    }
