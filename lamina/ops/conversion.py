"""Conversion between dtypes, and operands brought to one dtype.

The public functions of elementwise ops convert their operands to one dtype; the records of ops
require equal dtypes. Python numbers take the tensor's dtype, integers are converted to the floats
they meet, and functions without an integer result (`exp`, `div`, ..) convert integers to float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVarTuple

import numpy as np

from lamina.base.shapes import (
    Array,
    DType,
    DTypeLike,
    bfloat16,
    bool_,
    converted,
    float16,
    float32,
    int8,
    int16,
    int32,
    int64,
    promote,
    uint16,
)
from lamina.checks.kinds import ElementType, Flag
from lamina.errors import DTypeError
from lamina.graph import OPS, Op, Sample, Tensor, TensorLike, apply, constant, described
from lamina.graph.attributes import MayLack
from lamina.graph.leaves import CONSTANT, LEAF
from lamina.ops.arguments import as_tensor, dtype_of
from lamina.ops.factories import ANY, elementwise, formula, scalar_primitive, unary
from lamina.ops.lowering_rules import Elementwise, Movement
from lamina.ops.records import Given, Gradients, Operands, Typed, as_op, decorating, make_op
from lamina.program.scalar import Apply
from lamina.program.tf32 import rounded_to_tf32

__all__ = ["cast", "recomputed", "round_to_tf32", "rounded", "stop_gradient"]


@as_op(
    lambda x, dtype: (x.shape, dtype),
    lambda x, y, g, dtype: (cast(g, x.dtype) if x.dtype.is_float and dtype.is_float else None,),
    lambda x, dtype: converted(x, dtype.numpy),
    scalar_primitive("cast"),
    (
        Sample(((3, 4),), {"dtype": float32}, differentiable=False),
        Sample(((3, 4),), {"dtype": int32}, -9.0, 9.0, differentiable=False),
        Sample(((5,),), {"dtype": bool_}, differentiable=False),
        Sample(((5,),), {"dtype": float32}, dtypes=("int64",), differentiable=False),
        Sample(((1, 0),), {"dtype": float32}, dtypes=("bool",), differentiable=False),
        Sample(((2, 3),), {"dtype": float32}, 0, 9, dtypes=("uint8",), differentiable=False),
        *(
            Sample(((2, 3),), {"dtype": target}, low, 9, dtypes=(source,), differentiable=False)
            for source, low in (("int8", -9), ("int16", -9), ("uint16", 0), ("float16", -9))
            for target in (float32, int32)
        ),
        *(
            Sample(((4,),), {"dtype": target}, -300, 300, differentiable=False)
            for target in (int8, int16, uint16)
        ),
    ),
    attributes={"dtype": ElementType()},
)
def cast(x: TensorLike, dtype: DTypeLike) -> Given:
    """The elements as another dtype; non-zero is true.

    Floats that become integers are truncated towards zero and clamped to the range of the type; NaN
    becomes 0. Integers that do not fit wrap around.
    """
    target = dtype_of(dtype)
    if isinstance(x, bool | int | float):
        # Converted directly to the wanted type: float32 in between would lose digits.
        return constant(x, target)
    x = as_tensor(x)
    return x if x.dtype == target else (x, target)


@elementwise(
    lambda x, to: cast(cast(x, to), x.dtype),
    lambda x, to: converted(converted(x, to.numpy), x.dtype),
    (lambda x, y, g, to: rounded(g, to),),
    samples=(
        Sample(((3, 5),), {"to": bfloat16}, differentiable=False),
        Sample(((2, 1, 4),), {"to": float16}, differentiable=False),
    ),
    attributes={"to": ElementType(("float",))},
    selects=True,
)
def rounded(x: TensorLike, to: DTypeLike) -> Given:
    """The elements rounded to numbers that another float dtype has; so is the gradient.

    The dtype stays the same. A tensor that is only used rounded is stored in the narrower dtype.
    """
    x = floating(x)
    target = dtype_of(to)
    return x if x.dtype == target else (x, target)


def _infer_round_to_tf32(x: Tensor, *, stored: bool = False) -> Typed:
    if x.dtype != float32:
        raise DTypeError(
            "round_to_tf32: only float32 is rounded to TF32",
            facts=(("expected", "float32"), ("found", described(x))),
            advice="Convert with ops.cast.",
        )
    return x.shape, x.dtype


def _tf32_sample(*shape: int, low: float = -2.0, high: float = 2.0) -> Sample:
    return Sample((shape,), low=low, high=high, dtypes=("float32",), differentiable=False)


@as_op(
    _infer_round_to_tf32,
    lambda x, y, g, stored=False: (g,),
    lambda x, stored=False: rounded_to_tf32(x),
    Elementwise(
        lambda node, operands: Apply(
            "as_tf32" if node.attributes.get("stored") else "round_to_tf32", operands, float32
        )
    ),
    (
        *(_tf32_sample(3, 5), _tf32_sample(), _tf32_sample(0, 2), _tf32_sample(1, 17)),
        # Subnormal numbers, and numbers that may become infinite.
        *(_tf32_sample(40, low=-1e-38, high=1e-38), _tf32_sample(40, low=3.4e38, high=3.402e38)),
    ),
    attributes={"stored": MayLack(Flag())},
)
def round_to_tf32(x: TensorLike) -> Given:
    """Float32 rounded to 10 bits of fraction, as tensor cores for TF32 multiply it.

    The gradient is not rounded. The operands of products need no storage of their own if they are
    rounded.
    """
    return (floating(x),)


def stored_as_tf32(x: Tensor) -> Tensor:
    """Float32 that are rounded to TF32, as operands of products: x itself."""
    return apply(ROUND_TO_TF32, x, stored=True)


@unary(formula(lambda x: x), lambda x: x, None, kinds=ANY)
def stop_gradient(x: TensorLike) -> Tensor:
    """x itself, but no gradient flows back through it."""
    return as_tensor(x)


def ordered_op(name: str) -> Op:
    """An op that is its first operand, computed after all others."""

    def typed(x: Tensor, *_: Tensor) -> Typed:
        return x.shape, x.dtype

    def gradient(_: Tensor, *others: Tensor) -> Gradients:
        *after, _, upstream = others
        return upstream, *(None for _ in after)

    def reference(x: Array, *_: Array) -> Array:
        return x

    return make_op(
        *(name, typed, gradient, reference),
        Movement(lambda node, coordinates, pull: pull(0, coordinates), ordered=True),
        (
            Sample(((3, 5), (2,))),
            Sample(((2, 3), (2, 3)), dtypes=("float", "bool")),
            Sample(((4,), (1, 3), ()), dtypes=("int64", "float", "float"), differentiable=False),
        ),
        operands=(1, None),
    )


@decorating(ordered_op)()
def recomputed(x: Tensor, *after: Tensor) -> Operands:
    """x itself, but tensors computed from it are computed again, after all of `after`.

    Equal tensors are computed once, and kept until their last use. If computing an intermediate
    result again costs less than keeping it, a gradient computes it from `recomputed(x, upstream)`.
    """
    return as_tensor(x), *map(as_tensor, after)


CAST, RECOMPUTED, ROUNDED = (OPS[name] for name in ("cast", "recomputed", "rounded"))
ROUND_TO_TF32, STOP_GRADIENT = OPS["round_to_tf32"], OPS["stop_gradient"]


def widened(x: Tensor) -> Tensor:
    """Floats of 16 bits as float32; any other tensor as it is."""
    if not x.dtype.is_half:
        return x
    if x.op is CONSTANT:
        return constant(x.attributes["value"].array, float32)
    return cast(x, float32)


def computes_in_float32(node: Tensor) -> bool:
    """Whether the node's op has floats of 16 bits, and computes with them in float32."""
    if node.op in (LEAF, CONSTANT, CAST) or node.op.lowering.takes_halves:
        return False
    return any(x.dtype.is_half for x in (node, *node.operands))


def applied_in_float32(node: Tensor) -> Tensor:
    """The node's op, applied to its operands as float32: the result before it is rounded."""
    attributes = dict(node.attributes)
    if node.dtype.is_half and "dtype" in attributes:
        attributes["dtype"] = float32
    return apply(node.op, *map(widened, node.operands), **attributes)


_Operands = TypeVarTuple("_Operands")


def rounded_once(compute: Callable[[*_Operands], Tensor], *operands: *_Operands) -> Tensor:
    """What a function gives for tensors: of floats of 16 bits, its float32 result, rounded.

    So squares and sums within the function do not overflow, and are not rounded.
    """
    given: Any = operands
    function: Callable[..., Tensor] = compute
    result = function(*map(widened, given))
    half = next((x.dtype for x in given if x.dtype.is_half), result.dtype)
    return cast(result, half)


_NUMBER = (bool, int, float)


def operands_of(*values: TensorLike) -> tuple[Tensor, ...]:
    """Tensors of one dtype.

    Python numbers take the dtype of the tensors, unless it cannot hold them: a float with integers
    makes float32.

    Raises:
        DTypeError: if float32 is mixed with float64, or an integer does not fit its dtype.
    """
    # NumPy's scalars count as Python numbers.
    plain: list[Any] = [np.asarray(v).item() if isinstance(v, np.generic) else v for v in values]
    numbers = [value for value in plain if isinstance(value, _NUMBER)]
    tensors = [as_tensor(value) for value in plain if not isinstance(value, _NUMBER)]
    dtype = tensors[0].dtype if tensors else bool_
    for x in tensors[1:]:
        dtype = promote(dtype, x.dtype)
    for number in numbers:
        if isinstance(number, float) and not dtype.is_float:
            dtype = float32
        elif not isinstance(number, bool) and dtype == bool_:
            dtype = int64
    rest = iter(tensors)
    return tuple(
        _number(value, dtype)
        if isinstance(value, _NUMBER)
        else (x if (x := next(rest)).dtype == dtype else cast(x, dtype))
        for value in plain
    )


def _number(value: float, dtype: DType) -> Tensor:
    if dtype.kind == "int" and not isinstance(value, bool):
        least, most = dtype.limits
        if not least <= value <= most:
            raise DTypeError(
                f"the number {value} does not fit into {dtype.name}",
                facts=(("expected", f"{least} to {most}"), ("found", str(value))),
                advice="Cast the tensor to a wider dtype first, for example with ops.cast.",
            )
    return constant(value, dtype)


def numeric(x: TensorLike) -> Tensor:
    """A tensor of numbers: bool becomes int64."""
    x = as_tensor(x)
    return cast(x, int64) if x.dtype == bool_ else x


def floating(x: TensorLike) -> Tensor:
    """A tensor of floats: bool and integers become float32."""
    x = as_tensor(x)
    return x if x.dtype.is_float else cast(x, float32)


def numbers_of(*values: TensorLike) -> tuple[Tensor, ...]:
    """Tensors of one dtype of numbers."""
    return tuple(map(numeric, operands_of(*values)))


def floats_of(*values: TensorLike) -> tuple[Tensor, ...]:
    """Tensors of one dtype of floats."""
    return tuple(map(floating, operands_of(*values)))
