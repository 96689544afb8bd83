"""Precision: the dtypes of a model's tensors, how users ask for them, and what its device rounds.

`lamina.step.rounding` decides which tensors are rounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, final

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import DType, DTypeLike, as_dtype, bfloat16, float16, float32
from lamina.checks.kinds import Kind, Misfit, Operands
from lamina.engines.engine import Device
from lamina.errors import DTypeError, EngineError
from lamina.foreign import spelling

# The names of mixed precisions, and the dtype of each; None: the device's.
MIXED: Mapping[str, DType | None] = {
    "mixed": None,
    "mixed-bfloat16": bfloat16,
    "mixed-float16": float16,
}

# The precisions of products of float32.
FLOAT32, TF32 = "float32", "tf32"


@final
@frozen_dataclass
class ProductPrecision(Kind):
    """The precision of products of float32: `"float32"` or `"tf32"`."""

    def read(self, value: Any, operands: Operands = ()) -> str:
        if isinstance(value, str) and value in (FLOAT32, TF32):
            return value
        # It may be written otherwise elsewhere.
        text = str(getattr(value, "__name__", value)).rpartition(".")[2]
        ours = spelling(["precision="], re.sub("[-_]", "", text).lower())
        advice = ours if ours.endswith(".") or not ours else f"Write {{name}}={ours!r}."
        words = f"{FLOAT32!r} or {TF32!r}"
        raise Misfit(words, words, advice=advice)


Products = Annotated[str, ProductPrecision()]


@frozen_dataclass
class Precision:
    """The float types of a model.

    Attributes:
        dtype: the dtype of parameters, states, inputs and outputs.
        half: the dtype to which numbers are rounded in mixed precision; None otherwise.
        tf32: whether float32 operands of products are rounded to TF32 on devices that have it.
    """

    dtype: DType
    half: DType | None = None
    tf32: bool = False

    @property
    def name(self) -> str:
        """`"float32"`, `"mixed-bfloat16"`, ...: as `dtype` is written."""
        return self.dtype.name if self.half is None else f"mixed-{self.half.name}"

    @property
    def products(self) -> str:
        """`"tf32"` or `"float32"`: as `precision` is written."""
        return TF32 if self.tf32 else FLOAT32

    def __str__(self) -> str:
        return f"{self.name} (TF32 products)" if self.tf32 else self.name


def precision_of(
    value: DTypeLike, device: Callable[[], Device], products: str = FLOAT32
) -> Precision:
    """The precision of a model; the device decides which type `"mixed"` is."""
    if products == TF32:
        name = value if isinstance(value, str) and value in MIXED else as_dtype(value).name
        if name != "float32":
            raise DTypeError(
                "only products of float32 are rounded to TF32",
                facts=(("expected", "dtype='float32'"), ("found", f"dtype={name!r}")),
                advice="Leave precision='tf32' out: other dtypes have products of their own.",
            )
        return Precision(float32, tf32=True)
    if not isinstance(value, str) or value not in MIXED:
        return Precision(as_dtype(value))
    half = MIXED[value]
    if half is None:
        opened = device()
        if not opened.has_bfloat16 and not opened.has_float16:
            name = opened.description
            raise EngineError(
                "this device does not compute with floats of 16 bits",
                facts=(("expected", "instructions for bfloat16 or float16"), ("found", name)),
                where=opened.engine,
                advice="dtype='mixed-bfloat16' stores activations in 16 bits and computes in "
                "float32: that takes less memory, and is faster for few networks only.",
            )
        half = bfloat16 if opened.has_bfloat16 else float16
    return Precision(float32, half)


@frozen_dataclass
class Rounding:
    """What a device rounds.

    Attributes:
        half: the dtype of activations and computed operands of products in mixed precision;
            None: only operands of products are rounded, to TF32.
        leaves: whether parameters and inputs are rounded too where they are multiplied.
    """

    half: DType | None
    leaves: bool


# What devices round that multiply TF32.
TF32_PRODUCTS = Rounding(None, leaves=True)


def rounding_of(precision: Precision, device: Callable[[], Device]) -> Rounding | None:
    """What is rounded on a device; None if nothing is.

    In mixed precision, parameters and inputs are rounded if the device has instructions for such
    floats. Operands are rounded to TF32 only if the device has instructions for it.
    """
    if precision.tf32:
        return TF32_PRODUCTS if device().has_tf32 else None
    if precision.half is None:
        return None
    opened = device()
    has = opened.has_bfloat16 if precision.half == bfloat16 else opened.has_float16
    return Rounding(precision.half, leaves=bool(has))
