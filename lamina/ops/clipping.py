"""Limits, NaN and infinities, and signs: clip, hardtanh, nan_to_num, copysign."""

from __future__ import annotations

import math

import numpy as np

from lamina.base.shapes import Array, bfloat16, bool_, float16
from lamina.checks import checked_as_given as checked
from lamina.checks.kinds import OrNone
from lamina.errors import DefinitionError, DTypeError
from lamina.graph import Hyperparameter, Sample, Tensor, TensorLike, apply, described
from lamina.graph.attributes import AnyNumber, Element
from lamina.ops.arguments import as_tensor, read
from lamina.ops.comparison import equal, less, logical_and, logical_or, not_equal, where
from lamina.ops.conversion import floating, floats_of, numeric, operands_of
from lamina.ops.creation import full
from lamina.ops.factories import (
    FLOAT,
    NUMBER,
    applied,
    elementwise,
    elementwise_op,
    elementwise_rule,
    formula,
)
from lamina.ops.lowering_rules import Elementwise
from lamina.ops.records import Given, Gradients, Operands, Typed, as_op
from lamina.program.scalar import Apply, Literal, Scalar

__all__ = ["clip", "copysign", "hardtanh", "isfinite", "isinf", "isnan", "nan_to_num"]


def _infer_clip(x: Tensor, low: float | None, high: float | None) -> Typed:
    if x.dtype.kind == "bool":
        raise DTypeError(
            "clip: a tensor of numbers is needed here",
            facts=(("found", described(x)),),
            advice="Convert with ops.cast.",
        )
    if low is not None and high is not None and low > high:
        raise DefinitionError(
            "clip: the lower bound is above the upper one",
            facts=(("low", str(low)), ("high", str(high))),
            advice="Give low <= high.",
        )
    return x.shape, x.dtype


def _clip_gradient(
    x: Tensor, _: Tensor, upstream: Tensor, low: float | None, high: float | None
) -> Gradients:
    above = x >= (-math.inf if low is None else low)
    below = x <= (math.inf if high is None else high)
    return (where(logical_and(above, below), upstream, 0),)


def _clip_reference(x: Array, low: float | None, high: float | None) -> Array:
    if low is not None:
        x = np.maximum(x, np.asarray(low, x.dtype))
    return x if high is None else np.minimum(x, np.asarray(high, x.dtype))


def _clip_scalar(node: Tensor, operands: tuple[Scalar, ...]) -> Scalar:
    (result,) = operands
    for primitive, limit in (("maximum", "low"), ("minimum", "high")):
        value = node.attributes[limit]
        if value is not None:
            result = Apply(primitive, (result, Literal(value, node.dtype)), node.dtype)
    return result


CLIP_BETWEEN = elementwise_op(
    "clip_between",
    formula(lambda x, low, high: applied("minimum", applied("maximum", x, low), high)),
    lambda x, low, high: np.minimum(np.maximum(x, low), high),
    # It flows to the chosen operand; at a bound to x, and where the bounds cross to high.
    (
        lambda x, low, high, y, g: where((x >= low) & (x <= high), g, 0),
        lambda x, low, high, y, g: where((low < high) & (x < low), g, 0),
        lambda x, low, high, y, g: where((x > high) | (high < low), g, 0),
    ),
    kinds=NUMBER,
    more_samples=(
        Sample(((0, 2), (1,), (2,))),
        Sample(((4, 3), (3,), (4, 1)), low=-5, high=5, dtypes=("int64",) * 3, differentiable=False),
    ),
)


@as_op(
    _infer_clip,
    _clip_gradient,
    _clip_reference,
    Elementwise(_clip_scalar),
    (
        Sample(((3, 5),), {"low": -1.0, "high": 0.5}),
        Sample(((7,),), {"low": None, "high": 0.5}),
        Sample(((1, 4),), {"low": 0.25, "high": None}),
        Sample(((0,),), {"low": -1.0, "high": 1.0}),
    ),
    attributes={"low": OrNone(Element()), "high": OrNone(Element())},
)
def clip(x: TensorLike, low: TensorLike | None = None, high: TensorLike | None = None) -> Given:
    """x, but not less than `low` and not more than `high`; the gradient passes at the bounds.

    Args:
        x: any tensor of numbers.
        low, high: numbers, or tensors that broadcast with x, to which the gradient flows where they
            are the result. Where the bounds of tensors cross, the result is `high`.
    """
    if any(isinstance(bound, Tensor | np.ndarray | Hyperparameter) for bound in (low, high)):
        return _clip_to_tensors(x, low, high)
    x = numeric(x)
    limits = [
        limit if limit is None else read(name, AnyNumber(), limit)
        for name, limit in (("low", low), ("high", high))
    ]
    if any(isinstance(limit, float) for limit in limits):
        x = floating(x)
    if x.dtype.is_float:
        limits = [limit if limit is None else float(limit) for limit in limits]
    return x, *limits


def _clip_to_tensors(x: TensorLike, low: TensorLike | None, high: TensorLike | None) -> Tensor:
    bounds = [as_tensor(bound) for bound in (low, high) if isinstance(bound, Tensor | np.ndarray)]
    x = operands_of(numeric(x), *bounds)[0]
    least, most = (-math.inf, math.inf) if x.dtype.is_float else x.dtype.limits
    return apply(
        CLIP_BETWEEN, *operands_of(x, least if low is None else low, most if high is None else high)
    )


def _infer_hardtanh(x: Tensor, low: float, high: float) -> Typed:
    if not low < high:
        raise DefinitionError(
            "hardtanh: low must be below high",
            facts=(("low", str(low)), ("high", str(high))),
            advice="Give low < high.",
        )
    return elementwise_rule("hardtanh", FLOAT, None)((x,), {})


def _hardtanh_gradient(
    x: Tensor, result: Tensor, upstream: Tensor, low: float, high: float
) -> Gradients:
    # If floats of 16 bits hold the bounds, a rounded result shows which elements reach them. So x
    # need not be stored for the gradient, if the result is.
    bounds = np.array([low, high])
    with np.errstate(over="ignore"):
        same = all((bounds.astype(half.numpy) == bounds).all() for half in (bfloat16, float16))
    bounded = result if same else x
    return (where(logical_or(bounded <= low, bounded >= high), 0, upstream),)


@as_op(
    _infer_hardtanh,
    _hardtanh_gradient,
    _clip_reference,
    Elementwise(_clip_scalar),
    (
        Sample(((3, 5),), {"low": -1.0, "high": 0.5}),
        Sample(((2, 7),), {"low": -0.1, "high": 0.3}),
        Sample(((0,),), {"low": -1.0, "high": 1.0}),
    ),
    attributes={"low": Element(), "high": Element()},
)
def hardtanh(x: TensorLike, low: float = -1.0, high: float = 1.0) -> Given:
    """x, limited to the interval from `low` to `high`; the gradient at the bounds is 0."""
    low, high = (float(read(name, AnyNumber(), x)) for name, x in (("low", low), ("high", high)))
    return floating(x), low, high


@checked
def isnan(x: TensorLike) -> Tensor:
    """Whether the element is NaN, as bool; no integer is."""
    x = as_tensor(x)
    return not_equal(x, x) if x.dtype.is_float else full(x.shape, False, bool_)


@checked
def isinf(x: TensorLike) -> Tensor:
    """Whether the element is infinite, as bool; no integer is."""
    x = as_tensor(x)
    return equal(abs(x), math.inf) if x.dtype.is_float else full(x.shape, False, bool_)


@checked
def isfinite(x: TensorLike) -> Tensor:
    """Whether the element is neither infinite nor NaN, as bool; every integer is finite."""
    x = as_tensor(x)
    return less(abs(x), math.inf) if x.dtype.is_float else full(x.shape, True, bool_)


def _nan_to_num_scalar(node: Tensor, operands: tuple[Scalar, ...]) -> Scalar:
    (x,) = operands
    result: Scalar = x
    for relation, other, name in (
        ("not_equal", x, "nan"),
        ("equal", math.inf, "posinf"),
        ("equal", -math.inf, "neginf"),
    ):
        is_replaced = applied(relation, x, other)
        result = applied("select", is_replaced, node.attributes[name], result)
    return result


def _sample(*shape: int, nan: float, posinf: float, neginf: float) -> Sample:
    return Sample((shape,), {"nan": nan, "posinf": posinf, "neginf": neginf})


@elementwise(
    Elementwise(_nan_to_num_scalar),
    np.nan_to_num,
    (lambda x, y, g, nan, posinf, neginf: where(isfinite(x), g, 0),),
    samples=(
        _sample(3, 5, nan=0.0, posinf=2.5, neginf=-7.0),
        _sample(7, nan=1.5, posinf=1e30, neginf=-1e30),
        _sample(0, nan=0.0, posinf=0.0, neginf=0.0),
    ),
    attributes={"nan": AnyNumber(), "posinf": AnyNumber(), "neginf": AnyNumber()},
)
def nan_to_num(
    x: TensorLike, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Given:
    """x with numbers in place of NaN and infinities; there the gradient is 0.

    Args:
        x: any tensor; integers stay as they are.
        nan: the number in place of NaN.
        posinf: the number in place of infinity; None for the largest number of x's dtype.
        neginf: the number in place of -infinity; None for the smallest number of x's dtype.
    """
    x = as_tensor(x)
    least, most = x.dtype.limits
    replacements = (("nan", nan, 0.0), ("posinf", posinf, most), ("neginf", neginf, least))
    numbers = [
        float(read(name, AnyNumber(), default if value is None else value))
        for name, value, default in replacements
    ]
    return (x, *numbers) if x.dtype.is_float else x


@elementwise(
    *("copysign", np.copysign),
    # The derivative is 1 or -1, and 0 where the operand is zero.
    (lambda a, b, y, g: g * where(equal(a, 0), 0, y / where(equal(a, 0), 1, a)), None),
)
def copysign(left: TensorLike, right: TensorLike) -> Operands:
    """The absolute value of left with the sign of right, also of zeros; the gradient at 0 is 0."""
    return floats_of(left, right)
