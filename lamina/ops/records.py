"""Records of ops whose rules take operands and attributes as arguments, as references do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from lamina.base.shapes import Array, DType, Shape
from lamina.graph import Attributes, LoweringRule, Op, Sample, Tensor
from lamina.ops.lowering_rules import Decomposition

Typed = tuple[Shape, DType]
Gradients = tuple[Tensor | None, ...]

Value = TypeVar("Value")
Result = TypeVar("Result")
# A function of operands and attributes. It is a union, because a type checker knows the parameters
# of a lambda only from their number.
Rule = (
    Callable[[Value, Any], Result]
    | Callable[[Value, Any, Any], Result]
    | Callable[[Value, Any, Any, Any], Result]
    | Callable[[Value, Any, Any, Any, Any], Result]
    | Callable[[Value, Any, Any, Any, Any, Any], Result]
    | Callable[[Value, Any, Any, Any, Any, Any, Any], Result]
    | Callable[..., Result]
)


def make_op(
    name: str,
    infer: Rule[Tensor, Typed],
    gradient: Rule[Tensor, Gradients] | None,
    reference: Rule[Array, Array],
    lowering: LoweringRule | Rule[Tensor, Tensor],
    samples: Sequence[Sample],
    **further: Any,
) -> Op:
    """A record whose rules take operands and attributes as arguments, like its reference.

    A gradient is (operands..., result, upstream, **attributes) -> the gradient of each operand. A
    lowering that is a function is a `Decomposition`: it returns an equal tensor, made of other ops.
    `further` are the other fields of the record.
    """
    typed: Callable[..., Typed] = infer
    backward: Callable[..., Gradients] | None = gradient

    def infer_spread(operands: tuple[Tensor, ...], attributes: Attributes) -> Typed:
        return typed(*operands, **attributes)

    def gradient_spread(result: Tensor, upstream: Tensor) -> Gradients:
        assert backward is not None
        return backward(*result.operands, result, upstream, **result.attributes)

    if not isinstance(lowering, LoweringRule):
        build: Callable[..., Tensor] = lowering
        lowering = Decomposition(lambda node: build(*node.operands, **node.attributes))
    rules = (infer_spread, gradient and gradient_spread, reference, lowering, samples)
    return Op(name, *rules, **further)
