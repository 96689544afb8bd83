"""The scalar primitives in NumPy: the definition of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from lamina.base.shapes import Array
from lamina.program.definitions import integer_power, sort_key
from lamina.program.philox import random_bits
from lamina.program.tf32 import rounded_to_tf32


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small)).astype(x.dtype)


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _of_each(function: Callable[[float], float]) -> Callable[[Array], Array]:
    of_objects = np.frompyfunc(function, 1, 1)
    return lambda x: np.asarray(of_objects(x), dtype=x.dtype)


def _quotient(left: Array, right: Array) -> Array:
    # The difference is a multiple of the divisor, so that the division is exact.
    return np.floor_divide(left - np.fmod(left, right), right)


def _power(left: Array, right: Array) -> Array:
    return np.power(left, right) if left.dtype.kind == "f" else integer_power(left, right)


def _reciprocal(x: Array) -> Array:
    return (1 / x).astype(x.dtype)


def _multiply_add(left: Array, right: Array, added: Array) -> Array:
    # In two roundings: NumPy has no function that rounds once.
    return np.asarray(left * right + added)


# Every primitive of lamina.program.scalar except "cast", which `run` handles itself.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(np, name)
        for name in (
            *("add", "subtract", "multiply", "divide", "fmod", "maximum", "minimum", "negative"),
            *("absolute", "sign", "copysign", "floor", "exp", "exp2", "expm1", "log", "log2"),
            *("log10", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh", "equal", "not_equal"),
            *("less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or"),
            *("logical_not", "bitwise_and", "bitwise_or", "bitwise_xor"),
        )
    },
    "multiply_add": _multiply_add,
    "quotient": _quotient,
    "power": _power,
    "round": np.rint,
    "square_root": np.sqrt,
    "reciprocal": _reciprocal,
    "atan2": np.arctan2,
    "erf": _of_each(math.erf),
    "erfc": _of_each(math.erfc),
    "sigmoid": _sigmoid,
    "softplus": _softplus,
    "select": np.where,
    "random_bits": random_bits,
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
    "round_to_tf32": rounded_to_tf32,
    "as_tf32": np.positive,
    "sort_key": sort_key,
}

REDUCTIONS: dict[str, np.ufunc] = {
    "sum": np.add,
    "product": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
}
