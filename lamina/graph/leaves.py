"""Ops without operands: leaves, whose values are fed or stored, and constants."""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina.base.shapes import Array, DType, Shape, as_dtype
from lamina.checks.kinds import ElementType, Extent, Flag, Instance, Word
from lamina.errors import LaminaError
from lamina.graph.attributes import LABEL, Many, MayLack
from lamina.graph.tensor import Attributes, LoweringRule, Op, Tensor


class Leaf(LoweringRule):
    """The tensor is a buffer: it needs no step."""


class ConstantValue:
    """An immutable array that compares by content, so that equal constants are shared.

    Attributes:
        array: the elements.
        exact: the Python float that they were rounded from; a model of another float type
            rounds it again.
    """

    def __init__(self, array: Array, exact: float | None = None) -> None:
        self.array = np.array(array, order="C")
        self.exact = exact
        self.array.flags.writeable = False
        self._key = (self.array.shape, self.array.dtype.str, self.array.tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstantValue) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return str(self.array[()]) if self.array.ndim == 0 else f"array{self.array.shape}"


def _leaf_reference(**_: Any) -> Array:
    raise LaminaError("a leaf has no value: feed it")


def _infer_constant(_: tuple[Tensor, ...], attributes: Attributes) -> tuple[Shape, DType]:
    array = attributes["value"].array
    return array.shape, as_dtype(array.dtype)


def _constant_reference(value: ConstantValue) -> Array:
    return value.array


LEAF = Op(
    "leaf",
    lambda _, attributes: (attributes["shape"], attributes["dtype"]),
    lambda result, upstream: (),
    *(_leaf_reference, Leaf()),
    operands=0,
    attributes={
        "name": LABEL,
        "role": Word(("input", "parameter", "state")),
        "shape": Many(Extent()),
        "dtype": ElementType(),
        "flexible": MayLack(Flag()),
    },
)

CONSTANT = Op(
    "constant",
    _infer_constant,
    lambda result, upstream: (),
    *(_constant_reference, Leaf()),
    operands=0,
    attributes={"value": Instance(ConstantValue)},
)
