"""Scalar expressions: the values that a program computes at one point of an iteration space.

The set of primitives is closed: an engine that handles every name in `PRIMITIVES` handles every
op. Expressions are immutable and may share subexpressions; an engine computes a shared one once.

On floats, every primitive rounds its own result. `add`, `subtract`, `multiply`, `divide`,
`square_root` and `reciprocal` round correctly, to the nearest number, on every engine. Therefore
random numbers have the same bits everywhere. No engine contracts a multiplication and an addition
into one rounding, except in two cases where one or two roundings are allowed:

- `multiply_add`, which rounds once where the device can, and twice elsewhere;
- sums of products: of a `Contraction`, and of a `Reduce` by "sum" whose value is a product.

Floats of 16 bits are loaded, stored, selected and cast; no other primitive takes them. A cast
rounds to the nearest number, and keeps subnormal numbers. The operands of a contraction may be
floats of 16 bits that were cast to float32: their products are exact in float32, so engines may
multiply them as they are. Processors that do so may take subnormal numbers as zero.

The operands of a contraction may also be float32 that were rounded to TF32. Their products are
exact in float32, so engines may multiply them with instructions for TF32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from typing import cast

from lamina.base import shapes
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import DType
from lamina.program.index import Index

# name -> number of operands. Comparisons and logical operations give bool.
PRIMITIVES: dict[str, int] = {
    **dict.fromkeys(("add", "subtract", "multiply"), 2),
    "multiply_add": 3,  # of floats: first * second + third
    "divide": 2,  # of floats
    "quotient": 2,  # of integers, truncated towards zero; 0 if divided by 0
    "fmod": 2,  # of floats: the remainder of a division truncated towards zero, exact
    # of integers: by squaring, wrapping around; negative powers are 0, except of 1 and -1
    "power": 2,
    **dict.fromkeys(("maximum", "minimum"), 2),  # NaN if either operand is NaN
    **dict.fromkeys(("negative", "absolute", "sign"), 1),
    "copysign": 2,  # of floats: the first operand's size with the second's sign
    "floor": 1,
    "round": 1,  # of floats: to the nearest whole number, the even one of two
    **dict.fromkeys(("square_root", "reciprocal"), 1),
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log10", "log1p"), 1),
    **dict.fromkeys(("sin", "cos", "tan"), 1),
    "atan2": 2,  # of y and x: the angle of the point (x, y)
    **dict.fromkeys(("sinh", "cosh", "tanh", "erf", "erfc", "sigmoid", "softplus"), 1),
    **dict.fromkeys(("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"), 2),
    **dict.fromkeys(("logical_and", "logical_or"), 2),
    "logical_not": 1,
    "select": 3,  # condition, value where true, value where false
    "cast": 1,
    # of float32: to 10 bits of fraction, to the nearest, ties away from zero (see tf32.py)
    "round_to_tf32": 1,
    "as_tf32": 1,  # of float32 that are stored rounded to TF32: the same number
    # of floats, to integers of the same width in the same order (see definitions.py)
    "sort_key": 1,
    # seed (i64), step (i64), position (i64), stream (i64): 32 random bits (u32), Philox 4x32-10
    "random_bits": 4,
    # of integers; shifts by a negative number or by all bits and more leave only sign bits
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right"), 2),
}

# The primitives that change an element to one that another format has, and zero to zero. The view
# of a contraction's operand is a load through any number of them.
CONVERSIONS = frozenset(("cast", "round_to_tf32", "as_tf32"))


@frozen_dataclass
class Bound:
    """The condition low <= index < high."""

    index: Index
    low: int
    high: int

    @property
    def always(self) -> bool:
        """Whether it holds in every iteration."""
        return self.low <= self.index.bounds[0] and self.index.bounds[1] < self.high

    def __str__(self) -> str:
        return f"{self.low} <= {self.index} < {self.high}"


@frozen_dataclass
class Literal:
    """A number."""

    value: bool | int | float
    dtype: DType

    def __str__(self) -> str:
        # The shortest text that means the same number in the literal's own type.
        return str(self.dtype.numpy.type(self.value))

    # Compared as numbers, NaN equals nothing, and 0.0 equals -0.0 and False. So literals are
    # compared by dtype and text.
    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Literal)
            and self.dtype is other.dtype
            and repr(self.value) == repr(other.value)
        )

    def __hash__(self) -> int:
        # NaN equals itself here, but Python's hashes of two NaN differ.
        return hash((self.value if self.value == self.value else "nan", self.dtype))


@frozen_dataclass
class Load:
    """An element of a buffer; zero, without a memory access, where a bound fails.

    A load from a buffer without elements is zero everywhere.
    """

    buffer: str
    index: Index
    dtype: DType
    bounds: tuple[Bound, ...] = ()

    def __str__(self) -> str:
        guard = f" if {' and '.join(map(str, self.bounds))}" if self.bounds else ""
        return f"{self.buffer}[{self.index}{guard}]"


@frozen_dataclass
class Local:
    """The result of an earlier reduction of the same step, or of its contraction."""

    name: str
    dtype: DType

    def __str__(self) -> str:
        return self.name


@frozen_dataclass
class Position:
    """The value of an index expression, as int64."""

    index: Index
    dtype: DType = shapes.int64

    def __str__(self) -> str:
        return f"({self.index})"


@frozen_dataclass
class Within:
    """Whether all bounds hold, as bool."""

    bounds: tuple[Bound, ...]
    dtype: DType = shapes.bool_

    def __str__(self) -> str:
        return f"({' and '.join(map(str, self.bounds)) or 'true'})"


@frozen_dataclass(eq=False, repr=False)
class Apply:
    """A primitive applied to scalars.

    Equal if primitive, dtype and operands are equal; shared operands are compared once.
    """

    primitive: str
    operands: tuple[Scalar, ...]
    dtype: DType
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.primitive, self.operands, self.dtype)))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Apply], tuple[str, tuple[Scalar, ...], DType]]:
        # Hashes of strings differ from process to process.
        return Apply, (self.primitive, self.operands, self.dtype)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Apply) or self._hash != other._hash:
            return False
        pairs: list[tuple[object, object]] = [(self, other)]
        compared: set[tuple[int, int]] = set()
        while pairs:
            left, right = pairs.pop()
            if left is right or (id(left), id(right)) in compared:
                continue
            compared.add((id(left), id(right)))
            if not isinstance(left, Apply) or not isinstance(right, Apply):
                if left != right:
                    return False
                continue
            same = (left.primitive, left.dtype) == (right.primitive, right.dtype)
            if left._hash != right._hash or not same:
                return False
            pairs.extend(zip(left.operands, right.operands, strict=True))
        return True

    def __str__(self) -> str:
        """The scalar as text; in a long one, shared subexpressions are named after "where"."""
        if _written_out(self) <= LONGEST_WRITTEN_OUT:
            return text(self, {})
        names, lines = named(self)
        return f"{text(self, names)} where {', '.join(lines)}" if lines else text(self, {})

    def __repr__(self) -> str:
        return f"Apply({self})"


# The most subexpressions in a text that repeats shared ones. The length of such a text can double
# with each level of an expression.
LONGEST_WRITTEN_OUT = 1000

Scalar = Literal | Load | Local | Position | Within | Apply

_INFIX = (
    {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
    | {"equal": "==", "not_equal": "!=", "less": "<", "less_equal": "<="}
    | {"greater": ">", "greater_equal": ">=", "logical_and": "and", "logical_or": "or"}
)


def text(scalar: Scalar, names: Mapping[Scalar, str]) -> str:
    """The scalar as text; subexpressions that have a name are written as their name."""
    texts = dict(names)
    pending = [scalar]
    while pending:
        top = pending[-1]
        if top in texts:
            pending.pop()
        elif not isinstance(top, Apply):
            texts[top] = str(top)
        else:
            missing = [operand for operand in top.operands if operand not in texts]
            pending += missing
            if not missing:
                texts[top] = _applied_text(top, texts, names)
    return texts[scalar]


def _applied_text(scalar: Apply, texts: Mapping[Scalar, str], names: Mapping[Scalar, str]) -> str:
    operands = [texts[operand] for operand in scalar.operands]
    if scalar.primitive in _INFIX:
        bracketed = [
            f"({written})"
            if isinstance(operand, Apply) and operand.primitive in _INFIX and operand not in names
            else written
            for operand, written in zip(scalar.operands, operands, strict=True)
        ]
        return f" {_INFIX[scalar.primitive]} ".join(bracketed)
    name = scalar.dtype.short if scalar.primitive == "cast" else scalar.primitive
    return f"{name}({', '.join(operands)})"


def _written_out(scalar: Scalar) -> int:
    """The number of subexpressions in the text if shared ones are repeated."""
    counts: dict[Scalar, int] = {}
    for part in postorder(scalar):
        counts[part] = 1 + sum(counts[operand] for operand in operands_of(part))
    return counts[scalar]


def named(*roots: Scalar) -> tuple[dict[Scalar, str], list[str]]:
    """Names for the computed subexpressions that are used several times, and their definitions."""
    uses = Counter(roots)
    for scalar in postorder(*roots):
        uses.update(operands_of(scalar))
    names: dict[Scalar, str] = {}
    lines: list[str] = []
    for scalar in postorder(*roots):
        if isinstance(scalar, Apply) and uses[scalar] > 1:
            lines.append(f"t{len(names)} = {text(scalar, names)}")
            names[scalar] = f"t{len(names)}"
    return names, lines


def postorder(*roots: Scalar, without: Collection[object] = ()) -> Iterator[Scalar]:
    """Every distinct scalar within the roots, operands before their users.

    Includes scalars inside gathered indices and bounds. Omits scalars of `without`, and
    scalars that only they use.
    """
    seen: set[Scalar] = set()
    for root in roots:
        # None on the stack marks a scalar whose operands have been pushed.
        stack: list[Scalar | None] = [root]
        while stack:
            scalar = stack.pop()
            if scalar is None:
                yield cast(Scalar, stack.pop())
                continue
            if without and scalar in without:
                continue
            before = len(seen)
            seen.add(scalar)
            if len(seen) == before:
                continue
            operands = operands_of(scalar)
            if operands:
                stack += (scalar, None, *operands[::-1])
            else:
                yield scalar


def operands_of(scalar: Scalar) -> tuple[Scalar, ...]:
    """The scalars on which a scalar depends directly, gathered indices included."""
    if isinstance(scalar, Apply):
        return scalar.operands
    operands: tuple[Scalar, ...] = ()
    for index in indices_of(scalar):
        operands += index.values
    return operands


def indices_of(scalar: Scalar) -> tuple[Index, ...]:
    """The index expressions of the scalar itself, not of its operands."""
    if isinstance(scalar, Load):
        bounds = scalar.bounds
        return (scalar.index, *[bound.index for bound in bounds]) if bounds else (scalar.index,)
    if isinstance(scalar, Position):
        return (scalar.index,)
    if isinstance(scalar, Within):
        return tuple(bound.index for bound in scalar.bounds)
    return ()


def indices(*roots: Scalar) -> Iterator[Index]:
    """Every index expression within the roots."""
    for scalar in postorder(*roots):
        yield from indices_of(scalar)


def varying(*roots: Scalar) -> Iterator[Scalar]:
    """Every distinct scalar within the roots that may differ between points, operands first.

    The others follow from constants and from elements at constant indices, such as the numbers of
    an optimizer: code computes them once, before its loops.
    """
    same: set[Scalar] = set()
    for scalar in postorder(*roots):
        if isinstance(scalar, Apply):
            is_same = same.issuperset(scalar.operands)
        else:
            is_same = not isinstance(scalar, Local)
            is_same = is_same and not any(index.terms for index in indices_of(scalar))
        if is_same:
            same.add(scalar)
        else:
            yield scalar


def unconverted(scalar: Scalar) -> Scalar:
    """The scalar inside all conversions."""
    while isinstance(scalar, Apply) and scalar.primitive in CONVERSIONS:
        (scalar,) = scalar.operands
    return scalar


def loads(*roots: Scalar) -> tuple[Load, ...]:
    """Every distinct load within the roots, in order of first use."""
    return tuple([scalar for scalar in postorder(*roots) if isinstance(scalar, Load)])
