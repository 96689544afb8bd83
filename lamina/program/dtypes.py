"""The check of a step's scalars: primitives, dtypes and locals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import final

from lamina.base.shapes import DType, bool_, float32, float64, int32, int64, uint32
from lamina.errors import InternalError
from lamina.program import steps
from lamina.program.scalar import (
    PRIMITIVES,
    Apply,
    Literal,
    Load,
    Local,
    Position,
    Scalar,
    Within,
    indices_of,
    postorder,
)

# Whether a primitive may have these operand dtypes and this result dtype.
_Rule = Callable[[Sequence[DType], DType], bool]


def _of_one_dtype(operands: Sequence[DType], dtype: DType) -> bool:
    return all(operand == dtype for operand in operands)


def _of_numbers(operands: Sequence[DType], dtype: DType) -> bool:
    return not dtype.is_half and _of_one_dtype(operands, dtype)


def _of_floats(operands: Sequence[DType], dtype: DType) -> bool:
    return dtype.is_float and _of_numbers(operands, dtype)


def _comparison(operands: Sequence[DType], dtype: DType) -> bool:
    return dtype == bool_ and operands[0] == operands[1] and not operands[0].is_half


def _of_integers(operands: Sequence[DType], dtype: DType) -> bool:
    return dtype.kind == "int" and _of_one_dtype(operands, dtype)


_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(("add", "subtract", "multiply", "maximum", "minimum"), _of_numbers),
    **dict.fromkeys(("negative", "absolute", "sign", "floor", "power"), _of_numbers),
    **dict.fromkeys(("multiply_add", "divide", "fmod", "copysign", "round"), _of_floats),
    **dict.fromkeys(("square_root", "reciprocal", "sigmoid", "softplus", "erfc"), _of_floats),
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log10", "log1p"), _of_floats),
    **dict.fromkeys(("sin", "cos", "tan", "atan2", "sinh", "cosh", "tanh", "erf"), _of_floats),
    **dict.fromkeys(("quotient", "bitwise_and", "bitwise_or", "bitwise_xor"), _of_integers),
    **dict.fromkeys(("shift_left", "shift_right"), _of_integers),
    **dict.fromkeys(("equal", "not_equal", "less", "less_equal"), _comparison),
    **dict.fromkeys(("greater", "greater_equal"), _comparison),
    **dict.fromkeys(
        ("logical_and", "logical_or", "logical_not"),
        lambda operands, dtype: dtype == bool_ and _of_one_dtype(operands, dtype),
    ),
    "select": lambda operands, dtype: operands[0] == bool_ and _of_one_dtype(operands[1:], dtype),
    "cast": lambda operands, dtype: True,
    **dict.fromkeys(
        ("round_to_tf32", "as_tf32"),
        lambda operands, dtype: dtype == float32 and _of_one_dtype(operands, float32),
    ),
    "sort_key": lambda operands, dtype: (
        (operands[0], dtype) in ((float32, int32), (float64, int64))
    ),
    "random_bits": lambda operands, dtype: dtype == uint32 and _of_one_dtype(operands, int64),
}


def check_scalars(step: steps.Step, where: str) -> None:
    """Raises InternalError for a scalar of a wrong dtype, or one that is not defined."""
    checker = _Checker(where)
    if isinstance(step, steps.Contraction):
        checker.check_product(step.result, step.left, step.right, step.dtype)
        checker.define(step.result, step.dtype)
        checker.check_stores(step.stores)
        return
    if isinstance(step, steps.Chain):
        _check_chain(step, checker)
        return
    for stage in step.stages:
        checker.check(*steps.stage_values(stage))
        checker.check_stage(stage)
        checker.check_stores(steps.stage_stores(stage))


def _check_chain(step: steps.Chain, checker: _Checker) -> None:
    """Stores know the reductions and their own sum, and nothing of a single k."""
    at_rows = _Checker(checker.where)
    for product in step.products:
        checker.check_product(product.result, product.left, product.right, product.dtype)
        checker.define(product.result, product.dtype)
    for stage in step.reductions:
        (checker if stage.axes else at_rows).check(stage.value)
        checker.check_stage(stage)
        at_rows.define(stage.local, stage.dtype)
    for total in step.sums:
        checker.check_product(total.result, total.weight, total.right, total.dtype)
    at_rows.check_stores(step.stores)
    for total in step.sums:
        at_rows.define(total.result, total.dtype)
        at_rows.check_stores(total.stores)


@final
class _Checker:
    """Checks scalars in the order in which a step computes them; errors name `where`, the step."""

    def __init__(self, where: str) -> None:
        self.where = where
        self._locals: dict[str, DType] = {}
        # Checked scalars. They stay valid, because locals stay defined.
        self._checked: set[Scalar] = set()

    def refuse(self, problem: str) -> None:
        """Raises the error for a problem in this step."""
        raise InternalError(problem, where=self.where)

    def define(self, local: str, dtype: DType) -> None:
        """Defines a local for the following scalars."""
        if local in self._locals:
            self.refuse(f"defines the local {local} twice")
        self._locals[local] = dtype

    def check_product(self, result: str, left: Scalar, right: Scalar, dtype: DType) -> None:
        """Checks the factors of a sum of products, and their dtypes."""
        self.check(left, right)
        if not left.dtype == right.dtype == dtype or dtype.is_half:
            self.refuse(f"{result} is {dtype}, but multiplies {left.dtype} by {right.dtype}")

    def check_stores(self, stores: Sequence[steps.Store]) -> None:
        """Checks the values of stores and the values gathered in their indices."""
        self.check(*(store.value for store in stores))
        for store in stores:
            if store.accumulate and store.value.dtype.is_half:
                self.refuse(f"adds up floats of 16 bits: {store.buffer}")
            if store.index.values:
                self.check(Position(store.index))

    def check_stage(self, stage: steps.Stage) -> None:
        """Checks the combination of a stage, and defines its local."""
        if isinstance(stage, steps.Sort | steps.SegmentSum) and stage.key.dtype.kind != "int":
            self.refuse(f"a key is not an integer: {stage.key}")
        if isinstance(stage, steps.Sort) and stage.dtype != steps.position_dtype(stage.axis):
            self.refuse(f"positions cannot be {stage.dtype}: {stage}")
        if isinstance(stage, steps.Reduce | steps.Scan) and stage.combine not in steps.COMBINERS:
            self.refuse(f"there is no combiner {stage.combine!r}")
        if isinstance(stage, steps.Scan) and stage.combine in steps.POSITIONAL:
            self.refuse(f"there is no running {stage.combine}")
        if isinstance(stage, steps.Reduce | steps.Scan | steps.SegmentSum):
            self._check_combined(stage)
        if isinstance(stage, steps.Reduce | steps.SegmentSum):
            self.define(stage.local, stage.dtype)

    def _check_combined(self, stage: steps.Reduce | steps.Scan | steps.SegmentSum) -> None:
        combine = "sum" if isinstance(stage, steps.SegmentSum) else stage.combine
        dtype = stage.value.dtype
        combined = f"the {combine} of {dtype}"
        if isinstance(stage, steps.Reduce) and not stage.axes:
            combined = "its value"
        elif combine in steps.POSITIONAL:
            dtype = int64
        if stage.value.dtype.is_half and combined != "its value":
            self.refuse(f"combines floats of 16 bits: {combined}")
        if stage.dtype != dtype:
            name = stage.buffer if isinstance(stage, steps.Scan) else stage.local
            self.refuse(f"{name} is {stage.dtype}, but {combined} is {dtype}")

    def check(self, *scalars: Scalar) -> None:
        """Checks scalars, operands before users."""
        for scalar in postorder(*scalars, without=self._checked):
            self._checked.add(scalar)
            for problem in self._problems(scalar):
                self.refuse(problem)

    def _problems(self, scalar: Scalar) -> Iterator[str]:
        """The problems of a scalar whose operands are valid."""
        if isinstance(scalar, Apply):
            yield from _misapplied(scalar)
        elif isinstance(scalar, Literal):
            if not _holds(scalar.dtype, scalar.value):
                yield f"the number {scalar.value!r} cannot be {scalar.dtype}"
        elif isinstance(scalar, Local):
            dtype = self._locals.get(scalar.name)
            if dtype is None:
                yield f"uses the local {scalar.name} before it is defined"
            elif dtype != scalar.dtype:
                yield f"uses the local {scalar.name}, which is {dtype}, as {scalar.dtype}"
        elif isinstance(scalar, Position) and scalar.dtype != int64:
            yield f"positions are i64, not {scalar.dtype}"
        elif isinstance(scalar, Within) and scalar.dtype != bool_:
            yield f"bounds are bool, not {scalar.dtype}"
        if isinstance(scalar, Load | Within):
            for bound in scalar.bounds:
                if not (_holds(int64, bound.low) and _holds(int64, bound.high)):
                    yield f"a bound reaches beyond 64 bits: {bound}"
        for index in indices_of(scalar):
            for value in index.values:
                if value.dtype.kind != "int":
                    yield f"an index read from data must be an integer, not {value.dtype}"


def _holds(dtype: DType, value: object) -> bool:
    """Whether a dtype can hold a number; floats hold all, rounded."""
    if dtype.is_float:
        return isinstance(value, float | int)
    if not isinstance(value, int):
        return False
    least, most = dtype.limits
    return least <= value <= most


def _misapplied(scalar: Apply) -> Iterator[str]:
    """The problems of a primitive and its dtypes."""
    count = PRIMITIVES.get(scalar.primitive)
    if count != len(scalar.operands):
        yield f"there is no primitive like {scalar}"
        return
    dtypes = [operand.dtype for operand in scalar.operands]
    if not _RULES[scalar.primitive](dtypes, scalar.dtype):
        *first, last = map(str, dtypes)
        listed = f"{', '.join(first)} and {last}" if first else last
        yield f"{scalar.primitive} of {listed} cannot be {scalar.dtype}"
