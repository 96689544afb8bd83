"""Layers for indices and positions: embeddings, one-hot vectors, positions."""

from __future__ import annotations

import math
from abc import ABC
from dataclasses import KW_ONLY
from typing import Annotated, Literal

import numpy as np

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, Dim, bool_, static
from lamina.checks.kinds import Count, Positive, Whole
from lamina.errors import DefinitionError, DTypeError, ShapeError
from lamina.graph import Tensor, constant, described
from lamina.layers.checks import require_float
from lamina.layers.init import Normal
from lamina.layers.layer import Layer
from lamina.layers.scope import (
    Initializer,
    InitializerOption,
    Regularizer,
    RegularizerOption,
    Scope,
    arrays_while_drawn,
    parameter_of,
)
from lamina.ops.conversion import rounded_once

__all__ = ["Embedding", "EmbeddingBag", "LearnedPositions", "OneHot", "SinusoidalPositions"]

# Added to norms before a division, as in PyTorch.
_SMALLEST = 1e-7


class _OfTable(Layer, ABC):
    """A layer that reads rows of a table by their indices."""

    count: int
    features: int
    padding: int | None
    max_norm: float | None
    weight_init: Initializer | None
    weight_regularizer: Regularizer | None

    def __post_init__(self) -> None:
        if self.padding is not None and self.padding >= self.count:
            raise DefinitionError(
                "padding is out of the range of indices",
                facts=(("expected", f"0..{self.count - 1}"), ("found", repr(self.padding))),
                advice="The padding index has a row in the table: choose a count above it.",
            )

    def _rows(self, scope: Scope, x: Tensor) -> Tensor:
        _limit_indices(self, scope, x, self.count)
        init, shape = self.weight_init or Normal(), (self.count, self.features)
        if self.padding is not None:
            init = _ZeroRow(init, self.padding)
        y = ops.take(scope.parameter("weight", shape, init, self.weight_regularizer), x)
        if self.max_norm is not None:
            norm = ops.norm(y, 2, -1, keepdims=True)
            y = y * ops.where(norm > self.max_norm, self.max_norm / (norm + _SMALLEST), 1)
        if self.padding is None:
            return y
        # Both alternatives are y. The gradient flows only through the second one.
        is_padding = ops.expand_dims(ops.equal(x, self.padding), -1)
        return ops.where(is_padding, ops.stop_gradient(y), y)


@frozen_dataclass
class Embedding(_OfTable):
    """Looks up a row of a table for each index: y[...] = weight[x[...]].

    Takes integers of any shape, from 0 to count - 1, and gives floats with one axis more, the last,
    of `features` elements. Its parameter is `weight`, (count, features).

    Args:
        count: the number of rows, which is the number of different indices.
        features: the number of elements of a row.
        padding: the index that pads shorter sequences; its row starts at zero, and gets no gradient
            from this layer. Tied weights train it, penalties and weight decay act on it.
        max_norm: the largest norm of a row that is read; longer ones are scaled to it. The table
            stays as it is; PyTorch scales its rows.
        weight_init: the first values; by default N(0, 1), as in PyTorch.
        weight_regularizer: a function of the weight that is added to the loss, such as `lm.L2`.

    Example:
        >>> lm.Embedding(1000, 32)(lm.Input(12, dtype="int64")).shape
        (batch, 12, 32)
    """

    count: Count
    features: Count
    _: KW_ONLY
    padding: Annotated[int, Whole(0)] | None = None
    max_norm: Positive | None = None
    weight_init: InitializerOption = None
    weight_regularizer: RegularizerOption = None

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        return self._rows(scope, x)


@frozen_dataclass
class EmbeddingBag(_OfTable):
    """The sum, mean or maximum of the rows of a table at some indices.

    Takes integers [batch, length], from 0 to count - 1, and gives [batch, features]. A second
    tensor may follow: bool [batch, length], true for the indices that count, or, in mode `"sum"`,
    floats of that shape, by which the rows are multiplied. A bag without indices gives zeros. Bags
    of different lengths are filled with the padding index, or have a mask; PyTorch's `offsets` have
    no counterpart. Its parameter is `weight`, (count, features).

    Args:
        mode: `"mean"`, `"sum"` or `"max"`.
        padding: an index that does not count; otherwise as in `Embedding`.
        count, features, max_norm, weight_init, weight_regularizer: the arguments of `Embedding`.

    Example:
        >>> lm.EmbeddingBag(1000, 32)(lm.Input(12, dtype="int64")).shape
        (batch, 32)
    """

    count: Count
    features: Count
    _: KW_ONLY
    mode: Literal["mean", "sum", "max"] = "mean"
    padding: Annotated[int, Whole(0)] | None = None
    max_norm: Positive | None = None
    weight_init: InitializerOption = None
    weight_regularizer: RegularizerOption = None

    def forward(self, scope: Scope, x: Tensor, weights: Tensor | None = None) -> Tensor:
        _require_bags(self, x, weights)
        rows = self._rows(scope, x)
        counted = None if self.padding is None else ops.not_equal(x, self.padding)
        if weights is not None and weights.dtype == bool_:
            counted = weights if counted is None else ops.logical_and(counted, weights)
        elif weights is not None:
            rows = rows * ops.expand_dims(weights, 2)
        if counted is None:
            return getattr(ops, self.mode)(rows, 1)
        inside = ops.expand_dims(counted, 2)
        if self.mode == "max":
            largest = ops.max(ops.where(inside, rows, -math.inf), 1)
            return ops.where(ops.any(inside, 1), largest, 0)
        if self.mode == "sum":
            return ops.sum(ops.where(inside, rows, 0), 1)

        def mean(rows: Tensor) -> Tensor:
            number = ops.sum(ops.cast(inside, rows.dtype), 1)
            return ops.sum(ops.where(inside, rows, 0), 1) / ops.maximum(number, 1)

        return rounded_once(mean, rows)


def _require_bags(layer: EmbeddingBag, x: Tensor, weights: Tensor | None) -> None:
    """Raises ShapeError unless an EmbeddingBag is applied to bags, and weights that it can use."""
    if x.rank != 2 or (weights is not None and weights.shape != x.shape):
        operands = [x] if weights is None else [x, weights]
        raise ShapeError(
            "EmbeddingBag needs bags of indices, and a mask or weights of the same shape",
            facts=(
                ("expected", "i64[batch, length]"),
                *(("found", described(y)) for y in operands),
            ),
            advice="lm.Embedding looks up single indices.",
        )
    if weights is not None and weights.dtype != bool_:
        require_float(layer, weights)
        if layer.mode != "sum":
            raise ShapeError(
                "EmbeddingBag takes weights in mode 'sum' only",
                facts=(("mode", layer.mode), ("found", described(weights))),
                advice="A mask is bool: ops.not_equal(mask, 0).",
            )


@frozen_dataclass
class _ZeroRow:
    """The values of another initializer, with one row of zeros."""

    init: Initializer
    row: int

    @property
    def arrays_while_drawn(self) -> int:
        """The other initializer's number, but at least 2: its result and a copy."""
        return max(arrays_while_drawn(self.init), 2)

    def __call__(self, shape: tuple[int, ...], seed: int, stream: int) -> Array:
        values = np.array(self.init(shape, seed, stream))
        values[self.row] = 0.0
        return values


@frozen_dataclass
class OneHot(Layer):
    """One-hot vectors: along a new last axis 1 at each index, 0 elsewhere.

    Takes integers of any shape, from 0 to classes - 1, and gives floats with one axis more.

    Args:
        classes: the extent of the new axis.

    Example:
        >>> lm.OneHot(10)(lm.Input(dtype="uint8")).shape
        (batch, 10)
    """

    classes: Count

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        _limit_indices(self, scope, x, self.classes)
        return ops.one_hot(x, self.classes, scope.dtype)


@frozen_dataclass
class SinusoidalPositions(Layer):
    """Adds sines and cosines of the position, with wavelengths from 2 pi to 20,000 pi.

    Takes f32 or f64 [batch, ..., length, features]. To feature 2i of position p it adds
    sin(p / 10000^(2i / features)), to feature 2i + 1 the cosine. After Vaswani, Shazeer, Parmar,
    Uszkoreit, Jones, Gomez, Kaiser, Polosukhin: Attention is all you need (2017), section 3.5.

    Example:
        >>> y = lm.SinusoidalPositions()(lm.Embedding(1000, 32)(lm.Input(12, dtype="int64")))
    """

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        length, features = _positions(self, x)
        feature = np.arange(features)
        rate = 10000.0 ** (-(feature - feature % 2) / features)
        angle = np.arange(length)[:, None] * rate
        return x + constant(np.where(feature % 2, np.cos(angle), np.sin(angle)), x.dtype)


@frozen_dataclass(kw_only=True)
class LearnedPositions(Layer):
    """Adds a row of a table to each position.

    Takes f32 or f64 [batch, ..., length, features]. Its parameter is `weight`, (length, features).

    Args:
        weight_init: first values; by default N(0, 0.02^2), as in Radford, Narasimhan, Salimans,
            Sutskever: Improving language understanding by generative pre-training (2018).
        weight_regularizer: a function of the weight that is added to the loss, such as `lm.L2`.

    Example:
        >>> y = lm.LearnedPositions()(lm.Embedding(1000, 32)(lm.Input(12, dtype="int64")))
    """

    weight_init: InitializerOption = None
    weight_regularizer: RegularizerOption = None

    def forward(self, scope: Scope, x: Tensor) -> Tensor:
        usual = Normal(deviation=0.02)
        return x + parameter_of(self, scope, "weight", _positions(self, x), usual)


def _limit_indices(layer: Layer, scope: Scope, x: Tensor, count: int) -> None:
    """Limits indices to 0..count - 1; DTypeError if x is not an integer tensor."""
    if x.dtype.kind != "int":
        raise DTypeError(
            f"{type(layer).__name__} takes indices",
            facts=(("expected", "i64 or another integer"), ("found", described(x))),
            advice='Give the input its dtype: lm.Input(..., dtype="int64").',
        )
    scope.limit_indices(x, count)


def _positions(layer: Layer, x: Tensor) -> tuple[int, int]:
    """The number of positions, and of features at each; ShapeError if an axis is missing."""
    if x.rank < 3:
        raise ShapeError(
            f"{type(layer).__name__} needs an axis of positions and one of features",
            facts=(("expected", "[batch, length, features]"), ("found", described(x))),
            advice="lm.Embedding makes features of indices: put one before it.",
        )
    require_float(layer, x)
    dims: tuple[Dim, ...] = x.shape[-2:]
    length, features = static(dims)
    return length, features
