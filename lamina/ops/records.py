"""Records of ops whose rules take operands and attributes as arguments, as references do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from lamina.base.shapes import Array, DType, Shape
from lamina.graph import Attributes, LoweringRule, Op, Sample, Tensor, apply, operator
from lamina.ops.lowering_rules import Decomposition

Typed = tuple[Shape, DType]
Gradients = tuple[Tensor | None, ...]
Operands = tuple[Tensor, ...]
# The operands of an op and then its attributes, from the arguments of its function; or a result.
Given = Tensor | tuple[Any, ...]

_Parameters = ParamSpec("_Parameters")
_Rules = ParamSpec("_Rules")
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


class _Decorator(Protocol):
    def __call__(self, convert: Callable[_Parameters, Given]) -> Callable[_Parameters, Tensor]: ...


def _applied(op: Op, *given: Any) -> Tensor:
    operands = [x for x in given if isinstance(x, Tensor)]
    values = given[len(operands) :]
    assert len(values) <= len(op.attributes), f"{op.name} has attributes without a kind"
    # The last attributes may be left out.
    return apply(op, *operands, **dict(zip(op.attributes, values, strict=False)))


def decorating(
    make: Callable[Concatenate[str, _Rules], Op], applied: Callable[..., Tensor] = _applied
) -> Callable[_Rules, _Decorator]:
    """A function that makes the record of an op, as a decorator of the op's function.

    The function returns the operands, and then the attributes in the order of the record, to which
    the op of its name is `applied`; or a result instead.
    """

    def decorator(*rules: _Rules.args, **options: _Rules.kwargs) -> _Decorator:
        def decorated(convert: Callable[_Parameters, Given]) -> Callable[_Parameters, Tensor]:
            op = make(convert.__name__, *rules, **options)

            @operator
            @wraps(convert)
            def function(*values: _Parameters.args, **given: _Parameters.kwargs) -> Tensor:
                result = convert(*values, **given)
                return result if isinstance(result, Tensor) else applied(op, *result)

            function.__annotations__["return"] = Tensor.__name__
            return function

        return decorated

    return decorator


as_op = decorating(make_op)
