"""Layers that compute in float32 in models of 16 bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar, cast

from lamina import ops
from lamina.graph import Tensor
from lamina.layers.scope import Scope, scope_in_float32
from lamina.ops.conversion import widened

_Forward = TypeVar("_Forward", bound=Callable[..., Tensor])


def in_float32(forward: _Forward) -> _Forward:
    """A layer's `forward` that computes in float32 where the model's floats have 16 bits.

    Tensors, parameters and states are cast; the result and new states are rounded once. So sums of
    squares do not overflow, and means lose no digits.
    """

    @wraps(forward)
    def wide(layer: object, scope: Scope, *operands: Tensor) -> Tensor:
        half = next((x.dtype for x in operands if x.dtype.is_half), None)
        if half is None:
            return forward(layer, scope, *operands)
        return ops.cast(forward(layer, scope_in_float32(scope), *map(widened, operands)), half)

    return cast(_Forward, wide)
