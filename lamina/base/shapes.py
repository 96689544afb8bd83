"""Element types, sizes that may depend on the batch, and the arithmetic of shapes.

A shape is a tuple of dimensions; a dimension is a plain int or a `Size`, which stands for
`coefficient * batch + offset`. Networks are written and checked with the batch left open;
the compiler then binds it to a number, and from there on all dimensions are ints.
"""

from __future__ import annotations

import math
import reprlib
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from numbers import Integral
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from lamina.base.records import cached_property, frozen_dataclass
from lamina.errors import DTypeError, ShapeError
from lamina.foreign import spelling

Array = npt.NDArray[Any]


@frozen_dataclass(eq=False)
class DType:
    """An element type; there is one object of each.

    Attributes:
        name: NumPy's name, `"float32"`.
        short: the name in printed graphs and errors, `"f32"`.
        kind: `"float"`, `"int"` or `"bool"`.
        rank: the order in promotion: of two dtypes, the one with the higher rank wins.
    """

    name: str
    short: str
    kind: str
    rank: int

    def __reduce__(self) -> tuple[Callable[[str], DType], tuple[str]]:
        # A copied or unpickled dtype is the same object.
        return as_dtype, (self.name,)

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype; the package `ml_dtypes` registers the dtype of bfloat16."""
        if self.name == "bfloat16":
            import ml_dtypes

            return np.dtype(ml_dtypes.bfloat16)
        return np.dtype(self.name)

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return 2 if self.is_half else self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_half(self) -> bool:
        """Whether it is a float of 16 bits.

        Programs store, load and convert such numbers, and compute with them in float32.
        """
        return self.name in ("bfloat16", "float16")

    @cached_property
    def limits(self) -> tuple[float, float]:
        """The smallest and the largest number; neither is infinite."""
        if self.is_float:
            digits, exponent = _SIZES[self.name]
            largest = (2 - 2.0**-digits) * 2.0**exponent
            return -largest, largest
        if self.kind == "bool":
            return 0, 1
        integers = np.iinfo(self.name)
        return int(integers.min), int(integers.max)

    @property
    def epsilon(self) -> float:
        """The distance of 1 from the next larger float."""
        return 2.0 ** -_SIZES[self.name][0]

    def __str__(self) -> str:
        return self.short


# The bits of the fraction, and the largest exponent.
_SIZES = {"bfloat16": (7, 127), "float16": (10, 15), "float32": (23, 127), "float64": (52, 1023)}

bool_ = DType("bool", "bool", "bool", 0)
uint8 = DType("uint8", "u8", "int", 1)
int8 = DType("int8", "i8", "int", 2)
uint16 = DType("uint16", "u16", "int", 3)
int16 = DType("int16", "i16", "int", 4)
int32 = DType("int32", "i32", "int", 5)
# uint32 holds the words of the random number generator; users cannot ask for it.
uint32 = DType("uint32", "u32", "int", 6)
int64 = DType("int64", "i64", "int", 7)
# bfloat16 has the exponents of float32 and 8 bits of precision, float16 has 11 bits and numbers up
# to 65,504. Neither is promoted to the other.
bfloat16 = DType("bfloat16", "bf16", "float", 8)
float16 = DType("float16", "f16", "float", 8)
float32 = DType("float32", "f32", "float", 9)
float64 = DType("float64", "f64", "float", 10)

_FLOATS = (float32, float64, bfloat16, float16)
_INTEGERS = (int32, int64, uint8, int8, int16, uint16)
PUBLIC_DTYPES = {d.name: d for d in (*_FLOATS, *_INTEGERS, bool_)}
_BY_NAME = {**PUBLIC_DTYPES, "uint32": uint32}
# Without bfloat16, whose NumPy dtype is imported when it is used; it is found by its name.
_BY_NUMPY = {d.numpy: d for d in _BY_NAME.values() if d is not bfloat16}

DTypeLike = DType | str | type | np.dtype[Any]


def as_dtype(value: DTypeLike) -> DType:
    """The `DType` of a name, a NumPy dtype or a Python type."""
    if isinstance(value, DType):
        return value
    if isinstance(value, np.dtype) and value in _BY_NUMPY:
        return _BY_NUMPY[value]
    name = _type_name(value)
    if name in _BY_NAME:
        return _BY_NAME[name]
    bare = name.removeprefix("torch.").removeprefix("tf.")
    ours = bare if bare in PUBLIC_DTYPES else spelling(["element", "dtype="], bare)
    kind = value.kind if isinstance(value, np.dtype) else ""
    usual = "Convert the array first, for example with array.astype('float32')."
    is_named = ours in PUBLIC_DTYPES and not isinstance(value, np.dtype)
    raise DTypeError(
        f"there is no dtype {name!r}",
        facts=(("expected", ", ".join(PUBLIC_DTYPES)), ("found", name)),
        advice=f'Write "{ours}".' if is_named else _ON_KINDS.get(kind, usual),
    )


_ON_KINDS = {"c": "Complex numbers are two arrays: array.real and array.imag."} | dict.fromkeys(
    "mM", "Make numbers of times first: array.astype('int64')."
)


def _type_name(value: object) -> str:
    """The name of a dtype; for anything else a short text that is not a name."""
    if isinstance(value, str):
        return value
    if isinstance(value, type) and value in _PYTHON_TYPES:
        return _PYTHON_TYPES[value]
    # Other values are refused, because NumPy would accept None and tuples as types.
    if isinstance(value, type | np.dtype):
        try:
            return np.dtype(cast(Any, value)).name
        except TypeError:
            pass
    return reprlib.repr(cast(object, value))


_PYTHON_TYPES: dict[type, str] = {bool: "bool", int: "int64", float: "float32"}


def is_masked_array(value: object) -> bool:
    """Whether it is an array of `numpy.ma`, a module that is loaded where there is one."""
    # Another thread may be loading it.
    return isinstance(value, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ()))


def converted(array: Array, dtype: np.dtype[Any]) -> Array:
    """An array as another NumPy dtype: the rule that all engines follow.

    Floats that become integers are truncated towards zero and clamped to the range of the type; NaN
    becomes 0. Integers that do not fit wrap around. Numbers that become floats are rounded once, to
    the nearest, and to even if two are equally near.
    """
    if _is_half(dtype):
        with np.errstate(all="ignore"):
            if array.dtype.kind in "iu":
                array = _exactly_or_odd(array)
            # NumPy rounds float64 to float16 once, but ml_dtypes rounds it to float32 and then
            # again.
            if array.dtype == np.float64 and dtype.name == "bfloat16":
                array = _rounded_to_odd(array)
            return array.astype(dtype)
    if _is_half(array.dtype):
        array = array.astype(np.float32)
    if array.dtype.kind != "f" or dtype.kind not in "iu":
        return array.astype(dtype)
    limits = np.iinfo(dtype)
    # Floats hold a power of two exactly: the largest number plus one, but not the largest number.
    too_large, too_small = array >= float(limits.max + 1), array < float(limits.min)
    inside = ~(too_large | too_small | np.isnan(array))
    truncated = np.where(inside, array, array.dtype.type(0)).astype(dtype)
    ends: Array = np.where(too_large, limits.max, limits.min).astype(dtype)
    return np.where(too_large | too_small, ends, truncated)


def _is_half(dtype: np.dtype[Any]) -> bool:
    # NumPy's kind of bfloat16 is "V".
    return dtype.itemsize == 2 and dtype.kind in "fV"


def _exactly_or_odd(array: Array) -> Array:
    """Integers as float64; the last bit of a number that does not fit is set."""
    # With this bit set, rounding the result to fewer bits rounds the integer correctly.
    if array.itemsize == 8:
        lost = (array & 0x7FF) != 0
        short = (array & ~0x7FF) | np.where(lost, 0x800, 0)
        array = np.where(abs(array // 2) >= 2**52, short, array)
    return array.astype(np.float64)


def _rounded_to_odd(array: Array) -> Array:
    """float64 as float32; the last bit of a number that does not fit is set."""
    # With this bit set, rounding to fewer bits rounds the float64 correctly (Boldo, Melquiond:
    # Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd, 2008).
    single = array.astype(np.float32)
    back = single.astype(np.float64)
    bits = single.view(np.uint32) - (abs(back) > abs(array)) | (back != array)
    return np.where(np.isnan(array), single, bits.astype(np.uint32).view(np.float32))


def promote(left: DType, right: DType) -> DType:
    """The dtype of `left + right`.

    Integers are promoted to floats and narrow integers to wide ones, as in NumPy: int8 and uint8
    give int16. Two different floats are an error.
    """
    if left.is_float and right.is_float and left != right:
        first, second = sorted((left, right), key=lambda dtype: dtype.rank)
        raise DTypeError(
            f"{first.name} and {second.name} are mixed",
            facts=(("left", left.name), ("right", right.name)),
            advice=f"Cast one of them: ops.cast(x, '{second.name}') or "
            f"ops.cast(x, '{first.name}').",
        )
    if left.kind == right.kind == "int":
        return _BY_NUMPY[np.promote_types(left.numpy, right.numpy)]
    return left if left.rank >= right.rank else right


@frozen_dataclass
class Size:
    """A dimension that depends on the batch: `coefficient * batch + offset`, coefficient > 0."""

    coefficient: int = 1
    offset: int = 0

    def __str__(self) -> str:
        text = "batch" if self.coefficient == 1 else f"{self.coefficient}*batch"
        return text if not self.offset else f"{text}{self.offset:+d}"

    __repr__ = __str__  # of shapes, which are tuples


Dim = int | Size
Shape = tuple[Dim, ...]
BATCH = Size()


def as_whole(value: object) -> int | None:
    """A whole number, Python's or NumPy's, as Python's; None for anything else, bools included."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, Integral):
        return None
    return int(value)


def bind_dim(dim: Dim, batch: int) -> int:
    """The value of a dimension for a batch of `batch` examples."""
    return dim if isinstance(dim, int) else dim.coefficient * batch + dim.offset


def bind(shape: Shape, batch: int) -> tuple[int, ...]:
    """The shape with the batch bound to a number."""
    return tuple(bind_dim(d, batch) for d in shape)


@lru_cache(maxsize=1 << 13)
def static(shape: Shape) -> tuple[int, ...]:
    """The shape as ints; raises ShapeError if a dimension still depends on the batch."""
    if any(isinstance(d, Size) for d in shape):
        raise ShapeError(
            "a fixed shape is needed here",
            facts=(("found", shape_text(shape)),),
            advice="The batch size is known only after compilation; keep it out of this argument.",
        )
    return tuple(d for d in shape if isinstance(d, int))


def _parts(dim: Dim) -> tuple[int, int]:
    return (0, dim) if isinstance(dim, int) else (dim.coefficient, dim.offset)


def _dim(coefficient: int, offset: int) -> Dim:
    return Size(coefficient, offset) if coefficient else offset


def add_dims(left: Dim, right: Dim) -> Dim:
    """The sum of two dimensions."""
    (a, b), (c, d) = _parts(left), _parts(right)
    return _dim(a + c, b + d)


def scale_dim(dim: Dim, factor: int) -> Dim:
    """A dimension times a number."""
    a, b = _parts(dim)
    return _dim(a * factor, b * factor)


Polynomial = tuple[int, ...]


@lru_cache(maxsize=1 << 13)
def element_count(shape: Shape) -> Polynomial:
    """The number of elements as a polynomial in the batch: (c0, c1, ..) is c0 + c1 batch + ..

    Two shapes hold the same number of elements for every batch size exactly when these are equal.
    """
    product: list[int] = [1]
    for dim in shape:
        coefficient, offset = _parts(dim)
        following = [0] * (len(product) + 1)
        for power, factor in enumerate(product):
            following[power] += factor * offset
            following[power + 1] += factor * coefficient
        product = following
    while len(product) > 1 and product[-1] == 0:
        product.pop()
    return tuple(product)


def divide_counts(total: Polynomial, part: Polynomial) -> Dim | None:
    """The dimension `total / part`, or None where it is not a whole dimension."""
    if part == (0,):
        return None
    remainder = list(total)
    quotient = [0] * max(len(total) - len(part) + 1, 1)
    for power in range(len(total) - len(part), -1, -1):
        factor, rest = divmod(remainder[power + len(part) - 1], part[-1])
        if rest:
            return None
        quotient[power] = factor
        for index, coefficient in enumerate(part):
            remainder[power + index] -= factor * coefficient
    if any(remainder) or any(quotient[2:]):
        return None
    return _dim(quotient[1] if len(quotient) > 1 else 0, quotient[0])


def size_of(shape: Sequence[int]) -> int:
    """The number of elements of a fixed shape."""
    return math.prod(shape)


@lru_cache(maxsize=1 << 13)
def broadcast(left: Shape, right: Shape) -> Shape:
    """The shape of an elementwise operation on two operands, by NumPy's rule."""
    rank = max(len(left), len(right))
    padded_left: Shape = (1,) * (rank - len(left)) + left
    padded_right: Shape = (1,) * (rank - len(right)) + right
    result: list[Dim] = []
    for axis, (a, b) in enumerate(zip(padded_left, padded_right, strict=True)):
        if a != b and a != 1 and b != 1:
            raise ShapeError(
                f"the shapes differ in axis {axis - rank}, {a} against {b}",
                facts=(("left", shape_text(left)), ("right", shape_text(right))),
                advice="Dimensions must be equal, or one of them 1; reshape one operand.",
            )
        result.append(b if a == 1 else a)
    short, long = sorted((left, right), key=len)
    if len(short) < len(long) and short and isinstance(long[0], Size):
        # Two batches would become two axes: [batch] with [batch, 1].
        pairs = zip(short, long[len(long) - len(short) :], strict=True)
        if any(isinstance(a, Size) and b == 1 for a, b in pairs):
            raise ShapeError(
                "the batch of one operand meets an axis of extent 1 of the other",
                facts=(("left", shape_text(left)), ("right", shape_text(right))),
                advice="Give both as many axes: x[:, 0] or y[:, None] for each example by itself, "
                "x[:, None] and y[None] for all pairs.",
            )
    return tuple(result)


def broadcast_all(shapes: Iterable[Shape]) -> Shape:
    """The common shape of any number of operands."""
    result: Shape = ()
    for shape in shapes:
        result = broadcast(result, shape) if result else shape
    return result


def normalise_axis(axis: int, rank: int) -> int:
    """The axis counted from the front; raises ShapeError if there is no such axis."""
    if not -rank <= axis < rank:
        raise ShapeError(
            f"there is no axis {axis}",
            facts=(("expected", f"an axis from {-rank} to {rank - 1}"), ("found", str(axis))),
            advice=f"The tensor has {rank} axes; axis 0 is the batch.",
        )
    return axis % rank


def normalise_axes(axes: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """The axes counted from the front, in rising order; None means all."""
    if axes is None:
        return tuple(range(rank))
    listed = [axes] if isinstance(axes, int) else list(axes)
    result = sorted(normalise_axis(axis, rank) for axis in listed)
    if len(set(result)) != len(result):
        facts = (("found", str(tuple(listed))),)
        raise ShapeError("an axis is named twice", facts=facts, advice="Name each axis once.")
    return tuple(result)


def shape_text(shape: Shape, dtype: DType | None = None) -> str:
    """`f32[batch, 10]`; without a dtype, `[batch, 10]`."""
    return f"{dtype or ''}[{', '.join(str(dim) for dim in shape)}]"
