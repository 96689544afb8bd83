"""Ops on single elements: arithmetic, functions, comparisons, choice. Operands broadcast.

The public functions bring their operands to one dtype, so that the records see equal ones: Python
numbers take the tensor's dtype, integers give way to floats, and functions that have no integer
result (`exp`, `div`, ..) turn integers into float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from lamina.errors import DefinitionError, DTypeError, LaminaError, ShapeError
from lamina.graph import (
    CONSTANT,
    Attributes,
    Op,
    Sample,
    Tensor,
    TensorLike,
    apply,
    constant,
    described,
    located,
)
from lamina.ops.arguments import as_tensor
from lamina.ops.broadcast import broadcast_to, sum_to
from lamina.ops.lowering import Coordinates, Elementwise, Generator, Pull
from lamina.program.scalar import Apply, Literal, Position, Scalar
from lamina.shapes import (
    Array,
    Dim,
    DType,
    DTypeLike,
    Shape,
    Size,
    as_dtype,
    bool_,
    broadcast_all,
    float32,
    int32,
    int64,
    promote,
)

# Operands -----------------------------------------------------------------------------------------


def operands_of(*values: TensorLike) -> tuple[Tensor, ...]:
    """Tensors of one dtype.

    Python numbers take the dtype of the tensors beside them, unless that cannot hold them: a float
    beside integers makes float32.

    Raises:
        DTypeError: if float32 is mixed with float64, or an integer does not fit its dtype.
    """
    plain = [_plain(value) for value in values]
    numbers = [value for value in plain if isinstance(value, bool | int | float)]
    tensors = [as_tensor(value) for value in plain if not isinstance(value, bool | int | float)]
    try:
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
            if isinstance(value, bool | int | float)
            else cast(next(rest), dtype)
            for value in plain
        )
    except LaminaError as error:
        raise located(error) from None


def _plain(value: TensorLike) -> TensorLike:
    """NumPy's scalars as Python numbers."""
    if isinstance(value, np.generic):
        scalar: Array = np.asarray(value)
        return scalar.item()
    return value


def _number(value: float, dtype: DType) -> Tensor:
    if dtype.kind == "int" and not isinstance(value, bool):
        limits = np.iinfo(dtype.name)
        if not limits.min <= value <= limits.max:
            raise DTypeError(
                f"the number {value} does not fit into {dtype.name}",
                facts=(("expected", f"{limits.min} to {limits.max}"), ("found", str(value))),
                advice="Cast the tensor to a wider dtype first, for example with ops.cast.",
            )
    return constant(value, dtype)


def numeric(x: TensorLike) -> Tensor:
    """A tensor one can calculate with: bool becomes int64."""
    x = as_tensor(x)
    return cast(x, int64) if x.dtype == bool_ else x


def floating(x: TensorLike) -> Tensor:
    """A tensor of floats: bool and integers become float32."""
    x = as_tensor(x)
    return x if x.dtype.is_float else cast(x, float32)


# Shape rules and factories ------------------------------------------------------------------------


def _joint_shape(name: str, operands: tuple[Tensor, ...]) -> Shape:
    try:
        return broadcast_all(x.shape for x in operands)
    except ShapeError as error:
        names = ("left", "right") if len(operands) == 2 else ("condition", "if true", "if false")
        facts = tuple(zip(names, map(described, operands), strict=False))
        raise ShapeError(f"{name}: {error.problem}", facts=facts, advice=error.advice) from None


def _infer(
    name: str, kinds: tuple[str, ...], result: DType | None
) -> Callable[[tuple[Tensor, ...], Attributes], tuple[Shape, DType]]:
    """The rule of ops whose operands have one dtype of some kinds; so has the result."""

    def infer(operands: tuple[Tensor, ...], _: Attributes) -> tuple[Shape, DType]:
        dtype = operands[0].dtype
        if dtype.kind not in kinds or any(x.dtype != dtype for x in operands):
            raise DTypeError(
                f"{name}: the dtype does not fit",
                facts=(
                    ("expected", f"one dtype of the kinds {', '.join(kinds)}"),
                    ("found", ", ".join(map(described, operands))),
                ),
                advice="Convert with ops.cast.",
            )
        return _joint_shape(name, operands), result or dtype

    return infer


_FLOAT, _NUMBER, _ANY, _BOOL = ("float",), ("float", "int"), ("float", "int", "bool"), ("bool",)


def _primitive(name: str) -> Elementwise:
    return Elementwise(lambda node, operands: Apply(name, operands, node.dtype))


def _ranges(
    operands: int, ranges: Sequence[tuple[float, float]], differentiable: bool = True
) -> tuple[Sample, ...]:
    """Samples for each range of values: plain, broadcast, odd, of size 0 and 1."""
    shapes: list[tuple[tuple[int, ...], ...]] = [((3, 5),) * operands, ((),) * operands]
    if operands == 1:
        shapes += [((0, 2),), ((1, 17),)]
    if operands == 2:
        shapes += [((4, 1), (3,)), ((2, 1, 3), (5, 1)), ((0, 2), (1,)), ((7,), ())]
    if operands == 3:
        shapes += [((2, 1), (3,), ()), ((4,), (1, 1), (2, 4))]
    return tuple(
        Sample(shape, low=low, high=high, differentiable=differentiable)
        for low, high in ranges
        for shape in shapes
    )


_SIGNED = ((-2.0, 2.0),)
_WIDE = ((-2.0, 2.0), (-30.0, 30.0))
_POSITIVE = ((0.1, 3.0),)

UnaryGradient = Callable[[Tensor, Tensor, Tensor], Tensor]  # (x, result, upstream)
BinaryGradient = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # (a, b, result, upstream)


def _unary(
    name: str,
    primitive: str,
    reference: Callable[..., Array],
    gradient: UnaryGradient | None,
    ranges: Sequence[tuple[float, float]] = _SIGNED,
    kinds: tuple[str, ...] = _FLOAT,
) -> Op:
    """An op with one operand; without a gradient its derivative is zero wherever it exists."""

    def operand_gradients(result: Tensor, upstream: Tensor) -> tuple[Tensor | None, ...]:
        return (gradient(result.operands[0], result, upstream) if gradient else None,)

    samples = _ranges(1, ranges, differentiable=gradient is not None)
    rule = _infer(name, kinds, None)
    return Op(name, rule, operand_gradients, reference, _primitive(primitive), samples)


def _binary(
    name: str,
    primitive: str,
    reference: Callable[..., Array],
    left: BinaryGradient,
    right: BinaryGradient,
    ranges: Sequence[tuple[float, float]] = _SIGNED,
    kinds: tuple[str, ...] = _NUMBER,
) -> Op:
    """An op with two operands that broadcast."""

    def operand_gradients(result: Tensor, upstream: Tensor) -> tuple[Tensor | None, ...]:
        a, b = result.operands
        return tuple(
            None if x.op is CONSTANT else sum_to(rule(a, b, result, upstream), x.shape)
            for x, rule in ((a, left), (b, right))
        )

    samples = _ranges(2, ranges)
    rule = _infer(name, kinds, None)
    return Op(name, rule, operand_gradients, reference, _primitive(primitive), samples)


def _comparison(name: str, reference: Callable[..., Array], kinds: tuple[str, ...] = _ANY) -> Op:
    """An op with two operands and a bool result."""
    samples = _ranges(2, _SIGNED, differentiable=False)
    whole = Sample(((4, 5), (5,)), low=0, high=4, dtypes=("int32", "int32"), differentiable=False)
    rule = _infer(name, kinds, bool_)
    return Op(name, rule, None, reference, _primitive(name), (*samples, whole))


def _logical(name: str, count: int, reference: Callable[..., Array]) -> Op:
    """An op on bools."""
    samples = tuple(
        Sample(sample.shapes, dtypes=("bool",) * count, differentiable=False)
        for sample in _ranges(count, _SIGNED)
    )
    return Op(name, _infer(name, _BOOL, bool_), None, reference, _primitive(name), samples)


# Conversion ---------------------------------------------------------------------------------------


def _infer_cast(operands: tuple[Tensor, ...], attributes: Attributes) -> tuple[Shape, DType]:
    return operands[0].shape, attributes["dtype"]


def _cast_gradient(result: Tensor, upstream: Tensor) -> tuple[Tensor | None, ...]:
    (x,) = result.operands
    return (cast(upstream, x.dtype) if x.dtype.is_float and result.dtype.is_float else None,)


def _cast_reference(x: Array, dtype: DType) -> Array:
    return x.astype(dtype.numpy)


CAST = Op(
    "cast",
    _infer_cast,
    _cast_gradient,
    _cast_reference,
    _primitive("cast"),
    (
        Sample(((3, 4),), {"dtype": float32}, differentiable=False),
        Sample(((3, 4),), {"dtype": int32}, -9.0, 9.0, differentiable=False),
        Sample(((5,),), {"dtype": bool_}, differentiable=False),
        Sample(((5,),), {"dtype": float32}, dtypes=("int64",), differentiable=False),
        Sample(((1, 0),), {"dtype": float32}, dtypes=("bool",), differentiable=False),
        Sample(((2, 3),), {"dtype": float32}, 0, 9, dtypes=("uint8",), differentiable=False),
    ),
)


def cast(x: TensorLike, dtype: DTypeLike) -> Tensor:
    """The elements as another dtype; floats are cut towards zero, and non-zero is true."""
    wanted = as_dtype(dtype)
    if isinstance(x, bool | int | float):
        # Straight to the wanted type: a detour over float32 would cost digits.
        return constant(x, wanted)
    x = as_tensor(x)
    return x if x.dtype == wanted else apply(CAST, x, dtype=wanted)


def _unchanged(x: Array) -> Array:
    return x


STOP_GRADIENT = Op(
    "stop_gradient",
    _infer("stop_gradient", _ANY, None),
    lambda result, upstream: (None,),
    _unchanged,
    Elementwise(lambda node, operands: operands[0]),
    _ranges(1, _SIGNED, differentiable=False),
)


def stop_gradient(x: TensorLike) -> Tensor:
    """X itself, as if it did not depend on anything: no gradient flows back through it."""
    return apply(STOP_GRADIENT, as_tensor(x))


# Functions of one operand -------------------------------------------------------------------------

NEG = _unary("neg", "negative", np.negative, lambda x, y, g: -g, kinds=_NUMBER)


def neg(x: TensorLike) -> Tensor:
    """-x."""
    return apply(NEG, numeric(x))


ABS = _unary("abs", "absolute", np.absolute, lambda x, y, g: g * sign(x), kinds=_NUMBER)


def abs(x: TensorLike) -> Tensor:
    """The absolute value; the gradient at 0 is 0."""
    return apply(ABS, numeric(x))


SIGN = _unary("sign", "sign", np.sign, None, kinds=_NUMBER)


def sign(x: TensorLike) -> Tensor:
    """-1, 0 or 1; NaN for NaN. The gradient is 0."""
    return apply(SIGN, numeric(x))


FLOOR = _unary("floor", "floor", np.floor, None, ((-9.0, 9.0),))


def floor(x: TensorLike) -> Tensor:
    """The largest whole number that is not larger. The gradient is 0."""
    x = numeric(x)
    return apply(FLOOR, x) if x.dtype.is_float else x


EXP = _unary("exp", "exp", np.exp, lambda x, y, g: g * y, _WIDE)


def exp(x: TensorLike) -> Tensor:
    """E to the power x."""
    return apply(EXP, floating(x))


EXPM1 = _unary("expm1", "expm1", np.expm1, lambda x, y, g: g * (y + 1), _SIGNED)


def expm1(x: TensorLike) -> Tensor:
    """exp(x) - 1, accurate near 0."""
    return apply(EXPM1, floating(x))


LOG = _unary("log", "log", np.log, lambda x, y, g: g / x, _POSITIVE)


def log(x: TensorLike) -> Tensor:
    """The natural logarithm."""
    return apply(LOG, floating(x))


LOG1P = _unary("log1p", "log1p", np.log1p, lambda x, y, g: g / (x + 1), ((-0.7, 3.0),))


def log1p(x: TensorLike) -> Tensor:
    """log(1 + x), accurate near 0."""
    return apply(LOG1P, floating(x))


SQRT = _unary("sqrt", "square_root", np.sqrt, lambda x, y, g: g / (y * 2), _POSITIVE)


def sqrt(x: TensorLike) -> Tensor:
    """The square root; the gradient at 0 is infinite."""
    return apply(SQRT, floating(x))


RECIPROCAL = _unary(
    "reciprocal", "reciprocal", np.reciprocal, lambda x, y, g: -(g * (y * y)), _POSITIVE
)


def reciprocal(x: TensorLike) -> Tensor:
    """1 / x."""
    return apply(RECIPROCAL, floating(x))


SIN = _unary("sin", "sin", np.sin, lambda x, y, g: g * cos(x), _WIDE)


def sin(x: TensorLike) -> Tensor:
    """The sine of x in radians."""
    return apply(SIN, floating(x))


COS = _unary("cos", "cos", np.cos, lambda x, y, g: -(g * sin(x)), _WIDE)


def cos(x: TensorLike) -> Tensor:
    """The cosine of x in radians."""
    return apply(COS, floating(x))


TANH = _unary("tanh", "tanh", np.tanh, lambda x, y, g: g * (1 - y * y), _WIDE)


def tanh(x: TensorLike) -> Tensor:
    """The hyperbolic tangent."""
    return apply(TANH, floating(x))


_erf_of_objects = np.frompyfunc(math.erf, 1, 1)


def _erf_reference(x: Array) -> Array:
    return np.asarray(_erf_of_objects(x)).astype(x.dtype)


_TWO_OVER_ROOT_PI = 2.0 / math.sqrt(math.pi)
ERF = _unary(
    "erf", "erf", _erf_reference, lambda x, y, g: g * (exp(-(x * x)) * _TWO_OVER_ROOT_PI), _WIDE
)


def erf(x: TensorLike) -> Tensor:
    """The error function."""
    return apply(ERF, floating(x))


def _sigmoid_reference(x: Array) -> Array:
    # exp of a number that is not positive cannot overflow.
    small = np.exp(-np.absolute(x))
    return np.where(x < 0, small / (1 + small), 1 / (1 + small))


SIGMOID = _unary("sigmoid", "sigmoid", _sigmoid_reference, lambda x, y, g: g * (y * (1 - y)), _WIDE)


def sigmoid(x: TensorLike) -> Tensor:
    """1 / (1 + exp(-x))."""
    return apply(SIGMOID, floating(x))


def _softplus_reference(x: Array) -> Array:
    return np.logaddexp(x, np.zeros((), x.dtype))


SOFTPLUS = _unary(
    "softplus", "softplus", _softplus_reference, lambda x, y, g: g * sigmoid(x), _WIDE
)


def softplus(x: TensorLike) -> Tensor:
    """log(1 + exp(x)), without overflow."""
    return apply(SOFTPLUS, floating(x))


def _relu_reference(x: Array) -> Array:
    return np.maximum(x, np.zeros((), x.dtype))


def _relu_scalar(node: Tensor, operands: tuple[Scalar, ...]) -> Scalar:
    zero = Literal(0.0 if node.dtype.is_float else 0, node.dtype)
    return Apply("maximum", (operands[0], zero), node.dtype)


RELU = Op(
    "relu",
    _infer("relu", _NUMBER, None),
    lambda result, upstream: (where(result <= 0, 0, upstream),),
    _relu_reference,
    Elementwise(_relu_scalar),
    _ranges(1, _SIGNED),
)


def relu(x: TensorLike) -> Tensor:
    """The larger of x and 0; the gradient at 0 is 0."""
    return apply(RELU, numeric(x))


# Arithmetic ---------------------------------------------------------------------------------------


def _calculate(op: Op, left: TensorLike, right: TensorLike) -> Tensor:
    a, b = operands_of(left, right)
    return apply(op, numeric(a), numeric(b))


ADD = _binary("add", "add", np.add, lambda a, b, y, g: g, lambda a, b, y, g: g)


def add(left: TensorLike, right: TensorLike) -> Tensor:
    """Left + right."""
    return _calculate(ADD, left, right)


SUB = _binary("sub", "subtract", np.subtract, lambda a, b, y, g: g, lambda a, b, y, g: -g)


def sub(left: TensorLike, right: TensorLike) -> Tensor:
    """Left - right."""
    return _calculate(SUB, left, right)


MUL = _binary("mul", "multiply", np.multiply, lambda a, b, y, g: g * b, lambda a, b, y, g: g * a)


def mul(left: TensorLike, right: TensorLike) -> Tensor:
    """Left * right."""
    return _calculate(MUL, left, right)


DIV = _binary(
    "div",
    "divide",
    np.divide,
    lambda a, b, y, g: g / b,
    lambda a, b, y, g: -(g * (y / b)),
    _POSITIVE,
    _FLOAT,
)


def div(left: TensorLike, right: TensorLike) -> Tensor:
    """Left / right; of integers float32."""
    a, b = operands_of(left, right)
    return apply(DIV, floating(a), floating(b))


def _pow_base_gradient(a: Tensor, b: Tensor, _: Tensor, g: Tensor) -> Tensor:
    # Of 0 to the power 0 the derivative is 0; without the choice it would be 0 * 0**-1, a NaN.
    exponent = where(logical_and(equal(a, 0), equal(b, 0)), 1, b)
    return g * (b * pow(a, exponent - 1))


def _pow_exponent_gradient(a: Tensor, b: Tensor, _: Tensor, g: Tensor) -> Tensor:
    # Where the base is 0, take 1 instead: its logarithm gives the derivative 0, finitely.
    base = where(equal(a, 0), 1, a)
    return g * (pow(base, b) * log(base))


POW = _binary(
    "pow", "power", np.power, _pow_base_gradient, _pow_exponent_gradient, _POSITIVE, _FLOAT
)


def pow(left: TensorLike, right: TensorLike) -> Tensor:
    """Left to the power right; of integers float32, unless right is a Python int of at least 1.

    The gradient to the exponent is 0 where the base is 0.
    """
    if isinstance(left, Tensor) and isinstance(right, int) and _is_product(left.dtype, right):
        return _whole_power(numeric(left), right)
    a, b = operands_of(left, right)
    return apply(POW, floating(a), floating(b))


def _is_product(dtype: DType, exponent: int) -> bool:
    """Whether a power is computed by multiplication."""
    return exponent >= 1 and (exponent <= 3 or not dtype.is_float)


def _whole_power(x: Tensor, exponent: int) -> Tensor:
    """By squaring: exact for integers, and cheaper than logarithms."""
    if exponent == 1:
        return x
    root = _whole_power(x, exponent // 2)
    return root * root * x if exponent % 2 else root * root


def _larger_gradient(mine: Tensor, other: Tensor, g: Tensor) -> Tensor:
    """Of the operand that should be larger; at a tie each operand has half."""
    return where(equal(mine, other), g * 0.5, where(less(mine, other), 0, g))


MAXIMUM = _binary(
    "maximum",
    "maximum",
    np.maximum,
    lambda a, b, y, g: _larger_gradient(a, b, g),
    lambda a, b, y, g: _larger_gradient(b, a, g),
    kinds=_ANY,
)


def maximum(left: TensorLike, right: TensorLike) -> Tensor:
    """The larger of two elements, NaN if either is; at a tie the gradient is split in half."""
    return apply(MAXIMUM, *operands_of(left, right))


MINIMUM = _binary(
    "minimum",
    "minimum",
    np.minimum,
    lambda a, b, y, g: _smaller_gradient(a, b, g),
    lambda a, b, y, g: _smaller_gradient(b, a, g),
    kinds=_ANY,
)


def _smaller_gradient(mine: Tensor, other: Tensor, g: Tensor) -> Tensor:
    return where(equal(mine, other), g * 0.5, where(greater(mine, other), 0, g))


def minimum(left: TensorLike, right: TensorLike) -> Tensor:
    """The smaller of two elements, NaN if either is; at a tie the gradient is split in half."""
    return apply(MINIMUM, *operands_of(left, right))


def _infer_clip(operands: tuple[Tensor, ...], attributes: Attributes) -> tuple[Shape, DType]:
    low, high = attributes["low"], attributes["high"]
    if low is not None and high is not None and low > high:
        raise DefinitionError(
            "clip: the lower bound is above the upper one",
            facts=(("low", str(low)), ("high", str(high))),
            advice="Give low <= high.",
        )
    return operands[0].shape, operands[0].dtype


def _clip_gradient(result: Tensor, upstream: Tensor) -> tuple[Tensor | None, ...]:
    (x,) = result.operands
    low, high = result.attributes["low"], result.attributes["high"]
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


CLIP = Op(
    "clip",
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
)


def clip(x: TensorLike, low: float | None = None, high: float | None = None) -> Tensor:
    """x, but not less than `low` and not more than `high`; the gradient passes at the bounds.

    Raises:
        DefinitionError: if low is above high.
    """
    x = numeric(x)
    if isinstance(low, float) or isinstance(high, float):
        x = floating(x)
    number = float if x.dtype.is_float else int
    limits = [None if limit is None else number(limit) for limit in (low, high)]
    return apply(CLIP, x, low=limits[0], high=limits[1])


# Comparison and logic -----------------------------------------------------------------------------

EQUAL = _comparison("equal", np.equal)


def equal(left: TensorLike, right: TensorLike) -> Tensor:
    """Whether two elements are equal, as bool; NaN equals nothing."""
    return apply(EQUAL, *operands_of(left, right))


NOT_EQUAL = _comparison("not_equal", np.not_equal)


def not_equal(left: TensorLike, right: TensorLike) -> Tensor:
    """Whether two elements differ, as bool."""
    return apply(NOT_EQUAL, *operands_of(left, right))


LESS = _comparison("less", np.less, _NUMBER)


def less(left: TensorLike, right: TensorLike) -> Tensor:
    """Left < right, as bool."""
    return _calculate(LESS, left, right)


LESS_EQUAL = _comparison("less_equal", np.less_equal, _NUMBER)


def less_equal(left: TensorLike, right: TensorLike) -> Tensor:
    """Left <= right, as bool."""
    return _calculate(LESS_EQUAL, left, right)


GREATER = _comparison("greater", np.greater, _NUMBER)


def greater(left: TensorLike, right: TensorLike) -> Tensor:
    """Left > right, as bool."""
    return _calculate(GREATER, left, right)


GREATER_EQUAL = _comparison("greater_equal", np.greater_equal, _NUMBER)


def greater_equal(left: TensorLike, right: TensorLike) -> Tensor:
    """Left >= right, as bool."""
    return _calculate(GREATER_EQUAL, left, right)


LOGICAL_AND = _logical("logical_and", 2, np.logical_and)


def logical_and(left: TensorLike, right: TensorLike) -> Tensor:
    """Whether both are true (not zero)."""
    return apply(LOGICAL_AND, cast(left, bool_), cast(right, bool_))


LOGICAL_OR = _logical("logical_or", 2, np.logical_or)


def logical_or(left: TensorLike, right: TensorLike) -> Tensor:
    """Whether either is true (not zero)."""
    return apply(LOGICAL_OR, cast(left, bool_), cast(right, bool_))


LOGICAL_NOT = _logical("logical_not", 1, np.logical_not)


def logical_not(x: TensorLike) -> Tensor:
    """Whether the element is false (zero)."""
    return apply(LOGICAL_NOT, cast(x, bool_))


def _infer_where(operands: tuple[Tensor, ...], _: Attributes) -> tuple[Shape, DType]:
    condition, a, b = operands
    if condition.dtype != bool_ or a.dtype != b.dtype:
        raise DTypeError(
            "where: the dtypes do not fit",
            facts=(
                ("condition", described(condition)),
                ("if true", described(a)),
                ("if false", described(b)),
            ),
            advice="The condition must be bool, and both values of one dtype.",
        )
    return _joint_shape("where", operands), a.dtype


def _where_gradient(result: Tensor, upstream: Tensor) -> tuple[Tensor | None, ...]:
    condition, a, b = result.operands
    return (
        None,
        None if a.op is CONSTANT else sum_to(where(condition, upstream, 0), a.shape),
        None if b.op is CONSTANT else sum_to(where(condition, 0, upstream), b.shape),
    )


WHERE = Op(
    "where",
    _infer_where,
    _where_gradient,
    np.where,
    _primitive("select"),
    tuple(
        Sample(sample.shapes, dtypes=("bool", "float", "float")) for sample in _ranges(3, _SIGNED)
    ),
)


def where(condition: TensorLike, a: TensorLike, b: TensorLike) -> Tensor:
    """A where the condition holds, b elsewhere; the gradient flows to the one chosen."""
    return apply(WHERE, cast(condition, bool_), *operands_of(a, b))


# Values made of nothing ---------------------------------------------------------------------------


def full(shape: Sequence[Dim], value: float, dtype: DTypeLike = float32) -> Tensor:
    """A tensor that has the same value everywhere."""
    return broadcast_to(constant(value, as_dtype(dtype)), shape)


def zeros_like(x: TensorLike) -> Tensor:
    """Zeros in x's shape and dtype."""
    x = as_tensor(x)
    return full(x.shape, 0, x.dtype)


def ones_like(x: TensorLike) -> Tensor:
    """Ones in x's shape and dtype."""
    x = as_tensor(x)
    return full(x.shape, 1, x.dtype)


def _infer_arange(_: tuple[Tensor, ...], attributes: Attributes) -> tuple[Shape, DType]:
    n: Dim = attributes["n"]
    if isinstance(n, int) and n < 0:
        raise ShapeError(
            "arange: the number of elements is negative",
            facts=(("found", str(n)),),
            advice="Give a number of at least 0.",
        )
    return (n,), attributes["dtype"]


def _arange_reference(n: int, dtype: DType) -> Array:
    return np.arange(n, dtype=dtype.numpy)


def _arange_scalar(node: Tensor, coordinates: Coordinates, _: Pull) -> Scalar:
    position = Position(coordinates[0])
    return position if node.dtype == int64 else Apply("cast", (position,), node.dtype)


ARANGE = Op(
    "arange",
    _infer_arange,
    None,
    _arange_reference,
    Generator(_arange_scalar),
    (
        Sample((), {"n": 5, "dtype": int64}, differentiable=False),
        Sample((), {"n": 7, "dtype": float32}, differentiable=False),
        Sample((), {"n": 0, "dtype": int32}, differentiable=False),
    ),
)


def arange(n: int | Size, dtype: DTypeLike = int64) -> Tensor:
    """0, 1, .. n - 1."""
    return apply(ARANGE, n=n, dtype=as_dtype(dtype))


OPS = (
    *(CAST, STOP_GRADIENT),
    *(NEG, ABS, SIGN, FLOOR, EXP, EXPM1, LOG, LOG1P, SQRT, RECIPROCAL, SIN, COS, TANH),
    *(ERF, SIGMOID, SOFTPLUS, RELU, ADD, SUB, MUL, DIV, POW, MAXIMUM, MINIMUM, CLIP),
    *(EQUAL, NOT_EQUAL, LESS, LESS_EQUAL, GREATER, GREATER_EQUAL),
    *(LOGICAL_AND, LOGICAL_OR, LOGICAL_NOT, WHERE, ARANGE),
)
