"""Functions that make the records of elementwise ops, with their shape rule and samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec

import numpy as np

from lamina.base.shapes import Array, DType, Shape, bool_, broadcast_all
from lamina.errors import DTypeError, ShapeError
from lamina.graph import (
    CONSTANT,
    Attributes,
    LoweringRule,
    Op,
    Sample,
    Samples,
    Tensor,
    apply,
    described,
    operator,
)
from lamina.ops.broadcast import sum_to
from lamina.ops.lowering_rules import Elementwise
from lamina.ops.records import Gradients, Rule, Typed, decorating, make_op
from lamina.program.scalar import Apply, Literal, Scalar

# Kinds of dtypes that an op takes.
FLOAT, NUMBER, ANY, BOOL = ("float",), ("float", "int"), ("float", "int", "bool"), ("bool",)

_Parameters = ParamSpec("_Parameters")

# Ranges from which samples draw their values.
SIGNED = ((-2.0, 2.0),)
WIDE = ((-2.0, 2.0), (-30.0, 30.0))
POSITIVE = ((0.1, 3.0),)


def joint_shape(
    name: str, operands: tuple[Tensor, ...], names: tuple[str, ...] = ("left", "right", "added")
) -> Shape:
    """The shape to which operands broadcast; errors name the op and its operands."""
    try:
        return broadcast_all([x.shape for x in operands])
    except ShapeError as error:
        facts = tuple(zip(names, map(described, operands), strict=False))
        raise ShapeError(f"{name}: {error.problem}", facts=facts, advice=error.advice) from None


def elementwise_rule(
    name: str, kinds: tuple[str, ...], result: DType | None
) -> Callable[[tuple[Tensor, ...], Attributes], tuple[Shape, DType]]:
    """The shape rule of ops whose operands broadcast and have one dtype, of one of the kinds.

    The result has that dtype, unless `result` names another.
    """

    def infer(operands: tuple[Tensor, ...], _: Attributes) -> tuple[Shape, DType]:
        dtype = operands[0].dtype
        if dtype.kind not in kinds or any(x.dtype is not dtype for x in operands):
            expected = f"one dtype of the kinds {', '.join(kinds)}"
            raise DTypeError(
                f"{name}: the dtype does not fit",
                facts=(("expected", expected), ("found", ", ".join(map(described, operands)))),
                advice="Convert with ops.cast.",
            )
        return joint_shape(name, operands), result or dtype

    return infer


def scalar_primitive(name: str) -> Elementwise:
    """The lowering of an op that is one of the scalar primitives."""
    return Elementwise(lambda node, operands: Apply(name, operands, node.dtype))


_BOOL_RESULTS = frozenset(
    (
        *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
        *("logical_and", "logical_or", "logical_not"),
    )
)


def applied(primitive: str, *operands: Scalar | float, dtype: DType | None = None) -> Apply:
    """A primitive applied to scalars and numbers; numbers take the dtype of the last scalar.

    The result has that dtype, or is bool.
    """
    if dtype is None:
        dtype = next(x.dtype for x in reversed(operands) if not isinstance(x, int | float))
    make = float if dtype.is_float else int
    scalars = (Literal(make(x), dtype) if isinstance(x, int | float) else x for x in operands)
    return Apply(primitive, tuple(scalars), bool_ if primitive in _BOOL_RESULTS else dtype)


def formula(
    scalar: Callable[[Scalar], Scalar]
    | Callable[[Scalar, Scalar], Scalar]
    | Callable[[Scalar, Scalar, Scalar], Scalar],
) -> Elementwise:
    """The lowering of an op that is a formula of primitives, a function of scalars."""
    function: Callable[..., Scalar] = scalar
    return Elementwise(lambda node, operands: function(*operands))


def elementwise_samples(
    operands: int, ranges: Sequence[tuple[float, float]], differentiable: bool = True
) -> list[Sample]:
    """Samples for each range of values: plain, broadcast, odd, of size 0 and 1."""
    shapes: list[tuple[tuple[int, ...], ...]] = [((3, 5),) * operands, ((),) * operands]
    if operands == 1:
        shapes += [((0, 2),), ((1, 17),)]
    if operands == 2:
        shapes += [((4, 1), (3,)), ((2, 1, 3), (5, 1)), ((0, 2), (1,)), ((7,), ())]
    if operands == 3:
        shapes += [((2, 1), (3,), ()), ((4,), (1, 1), (2, 4))]
    return [
        Sample(shape, low=low, high=high, differentiable=differentiable)
        for low, high in ranges
        for shape in shapes
    ]


def elementwise_op(
    name: str,
    lowering: str | LoweringRule | Rule[Tensor, Tensor],
    reference: Rule[Array, Array],
    gradients: Sequence[Rule[Tensor, Tensor] | None],
    ranges: Sequence[tuple[float, float]] = SIGNED,
    kinds: tuple[str, ...] = FLOAT,
    samples: Sequence[Sample] | None = None,
    more_samples: Sequence[Sample] = (),
    **further: Any,
) -> Op:
    """An op whose operands broadcast and have one dtype, which the result has too.

    Args:
        lowering: the name of a primitive, or as for `make_op`.
        gradients: for each operand (operands..., result, upstream, **attributes) -> its gradient,
            which is summed where the operand is repeated; None if it is zero wherever it exists.
        ranges: the ranges of values of the samples.
        kinds: the kinds of dtypes that the operands may have.
        samples: the samples, in place of samples of the ranges.
        more_samples, further: further samples; the other fields of the record.
    """
    count = len(gradients)
    rule = elementwise_rule(name, kinds, None)

    def infer(*operands: Tensor, **attributes: Any) -> Typed:
        return rule(operands, attributes)

    def gradient(*given: Tensor, **attributes: Any) -> Gradients:
        return tuple(
            None if f is None or x.op is CONSTANT else sum_to(f(*given, **attributes), x.shape)
            for x, f in zip(given, functions, strict=False)
        )

    functions: Sequence[Callable[..., Tensor] | None] = gradients
    if isinstance(lowering, str):
        lowering = scalar_primitive(lowering)
    if samples is None:
        differentiable = any(gradients)
        samples = Samples(
            lambda: (*elementwise_samples(count, ranges, differentiable), *more_samples)
        )
    return make_op(name, infer, gradient, reference, lowering, samples, operands=count, **further)


def unary(
    lowering: str | LoweringRule | Rule[Tensor, Tensor],
    reference: Callable[[Array], Array],
    gradient: Callable[[Tensor, Tensor, Tensor], Tensor] | None,
    ranges: Sequence[tuple[float, float]] = SIGNED,
    kinds: tuple[str, ...] = FLOAT,
    **further: Any,
) -> Callable[[Callable[_Parameters, Tensor]], Callable[_Parameters, Tensor]]:
    """Decorates a function that returns its operand: the `elementwise_op` of its name is applied.

    The gradient is a function (x, result, upstream). A tensor of another kind stays as it is.
    """

    def decorated(convert: Callable[_Parameters, Tensor]) -> Callable[_Parameters, Tensor]:
        name, gradients = convert.__name__, (gradient,)
        op = elementwise_op(name, lowering, reference, gradients, ranges, kinds, **further)

        @operator
        @wraps(convert)
        def function(*values: _Parameters.args, **options: _Parameters.kwargs) -> Tensor:
            x = convert(*values, **options)
            return apply(op, x) if x.dtype.kind in kinds else x

        return function

    return decorated


def comparison_op(name: str, reference: Callable[..., Array], kinds: tuple[str, ...] = ANY) -> Op:
    """An op with two operands and a bool result."""
    integers = Sample(((4, 5), (5,)), {}, 0, 4, ("int32", "int32"), differentiable=False)
    samples = Samples(lambda: (*elementwise_samples(2, SIGNED, False), integers))
    rule = elementwise_rule(name, kinds, bool_)
    return Op(name, rule, None, reference, scalar_primitive(name), samples, operands=2)


def logical_op(name: str, reference: np.ufunc) -> Op:
    """An op on bools."""
    count = reference.nin
    samples = Samples(
        lambda: [
            Sample(sample.shapes, dtypes=("bool",) * count, differentiable=False)
            for sample in elementwise_samples(count, SIGNED)
        ]
    )
    rule = elementwise_rule(name, BOOL, bool_)
    return Op(name, rule, None, reference, scalar_primitive(name), samples, operands=count)


elementwise = decorating(elementwise_op)
comparison = decorating(comparison_op)
logical = decorating(logical_op)
