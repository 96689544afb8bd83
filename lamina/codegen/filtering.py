"""Winograd's minimal filtering: convolutions with fewer multiplications.

Four results of a convolution, a tile of 2x2, follow from 4x4 numbers and the 3x3 weights. With both
transformed, by additions, each channel takes 16 multiplications instead of 36: this is F(2x2, 3x3)
of Lavin and Gray, *Fast algorithms for convolutional neural networks*, 2016, after Winograd.
Windows of 5x5 take 36 instead of 100, by F(2x2, 5x5). The gradients of the weights are F(3x3, 2x2)
and F(5x5, 2x2): the same with a tile of gradients in the place of the weights.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from lamina.records import frozen_dataclass
from lamina.shapes import Array

# Tiles have so many results along an axis.
RESULTS = 2

# A matrix, row by row.
Transform = tuple[tuple[float, ...], ...]


@frozen_dataclass
class Filtering:
    """Two results of windows, along an axis, by as few multiplications as there can be.

    Numbers and weights are polynomials; products of their values at some points, and of their
    highest terms, determine the product (Toom and Cook; Blahut, *Fast algorithms for signal
    processing*, 2010). Each transform is a matrix.

    Attributes:
        window: its elements.
        points: two of opposite signs side by side, for as many additions to be shared.
    """

    window: int
    points: tuple[float, ...]

    @property
    def input_tile(self) -> int:
        """How many numbers the results follow from."""
        return self.window + RESULTS - 1

    @property
    def products(self) -> int:
        """The products of a tile, along both axes."""
        return self.input_tile**2

    @cached_property
    def data_transform(self) -> Transform:
        """Numbers, transformed."""
        finite = (
            _row(np.poly(self._others(point)) * np.sign(self._scale(point)), self.input_tile)
            for point in self.points
        )
        return (*finite, _row(np.poly(self.points), self.input_tile))

    @cached_property
    def weight_transform(self) -> Transform:
        """Weights, transformed."""
        finite = (
            tuple(point**power / abs(self._scale(point)) for power in range(self.window))
            for point in self.points
        )
        return (*finite, _last(self.window))

    @cached_property
    def gradient_transform(self) -> Transform:
        """Gradients of results, transformed."""
        finite = (tuple(point**power for power in range(RESULTS)) for point in self.points)
        return (*finite, _last(RESULTS))

    @property
    def output_transform(self) -> Transform:
        """Results of products of transformed numbers and weights."""
        return tuple(zip(*self.gradient_transform, strict=True))

    @property
    def weight_gradient_transform(self) -> Transform:
        """Gradients of weights, of sums of products of transformed numbers and factors."""
        return tuple(zip(*self.weight_transform, strict=True))

    def _others(self, point: float) -> list[float]:
        return [other for other in self.points if other != point]

    def _scale(self, point: float) -> float:
        return float(np.prod([point - other for other in self._others(point)]))


def _row(coefficients: Array, size: int) -> tuple[float, ...]:
    """A polynomial's coefficients, the constant first."""
    row = [float(value) for value in coefficients[::-1]]
    return (*row, *[0.0] * (size - len(row)))


def _last(size: int) -> tuple[float, ...]:
    return (*[0.0] * (size - 1), 1.0)


# By the size of windows. With these points sums of 5x5 are on average three times as far from the
# true value as direct ones, with whole numbers (1, -1, 2, -2) five times.
FILTERINGS = {
    3: Filtering(3, (0.0, 1.0, -1.0)),
    5: Filtering(5, (0.0, 0.5, -0.5, 1.5, -1.5)),
}
