"""The transforms of Winograd convolutions F(2x2, 3x3), F(4x4, 3x3) and F(2x2, 5x5).

A tile of 2x2 results of a convolution depends on 4x4 elements of the data and the 3x3 weights.
After both are transformed, by additions, each channel takes 16 multiplications instead of 36. This
is F(2x2, 3x3) of Lavin and Gray, *Fast algorithms for convolutional neural networks*, 2016, after
Winograd. Kernels of 5x5 take 36 instead of 100, by F(2x2, 5x5). Tiles of 4x4 results take 36
instead of 144, by F(4x4, 3x3), with larger rounding errors. The weight gradients are F(3x3, 2x2),
F(3x3, 4x4) and F(5x5, 2x2), in which a tile of output gradients replaces the weights.
"""

from __future__ import annotations

import numpy as np

from lamina.base.records import cached_property, frozen_dataclass
from lamina.base.shapes import Array

# The matrix of a transform, row by row.
Transform = tuple[tuple[float, ...], ...]


@frozen_dataclass
class Filtering:
    """F(results, window) along one axis: results with the fewest possible multiplications.

    Data and weights are polynomials. Their product follows from products of their values at some
    points, and of their highest terms (Toom and Cook; Blahut, *Fast algorithms for signal
    processing*, 2010). Each transform is a matrix.

    Attributes:
        results: the results in a tile along the axis.
        window: the kernel elements along the axis.
        points: the interpolation points; points of opposite signs are neighbours, so that their
            rows share additions.
    """

    results: int
    window: int
    points: tuple[float, ...]

    @property
    def label(self) -> str:
        """For names of functions."""
        return f"{self.results}_{self.window}"

    @property
    def name(self) -> str:
        """The name of the algorithm for convolutions, such as `"F(2x2, 3x3)"`."""
        return _name(self.results, self.window)

    @property
    def gradient_name(self) -> str:
        """The name of the algorithm for gradients of weights."""
        return _name(self.window, self.results)

    @property
    def input_tile(self) -> int:
        """The elements of an input tile along the axis."""
        return self.window + self.results - 1

    @property
    def products(self) -> int:
        """The products of a two-dimensional tile."""
        return self.input_tile**2

    @property
    def is_local(self) -> bool:
        """Whether results depend only on the data of their own windows.

        Products with the first point have no last element of data, products of the highest terms
        no first one. With two results these are the elements outside of a window. With more
        results, elements outside of a window cancel, except for rounding errors.
        """
        return self.results <= 2

    @property
    def multiplications_left(self) -> float:
        """Its multiplications as a share of the direct algorithm's."""
        return self.products / (self.results * self.window) ** 2

    @cached_property
    def data_transform(self) -> Transform:
        """The transform of a tile of data."""
        finite = (
            _row(np.poly(self._others(point)) * np.sign(self._scale(point)), self.input_tile)
            for point in self.points
        )
        return (*finite, _row(np.poly(self.points), self.input_tile))

    @cached_property
    def weight_transform(self) -> Transform:
        """The transform of weights."""
        finite = (
            tuple(point**power / abs(self._scale(point)) for power in range(self.window))
            for point in self.points
        )
        return (*finite, _last(self.window))

    @cached_property
    def gradient_transform(self) -> Transform:
        """The transform of a tile of output gradients."""
        finite = (tuple(point**power for power in range(self.results)) for point in self.points)
        return (*finite, _last(self.results))

    @property
    def output_transform(self) -> Transform:
        """The transform of products of transformed data and weights to a tile of results."""
        return tuple(zip(*self.gradient_transform, strict=True))

    @property
    def weight_gradient_transform(self) -> Transform:
        """The transform of sums of products of transformed data and output gradients to
        gradients of weights.
        """
        return tuple(zip(*self.weight_transform, strict=True))

    def _others(self, point: float) -> list[float]:
        return [other for other in self.points if other != point]

    def _scale(self, point: float) -> float:
        return float(np.prod([point - other for other in self._others(point)]))


def _name(results: int, window: int) -> str:
    return f"F({results}x{results}, {window}x{window})"


def _row(coefficients: Array, size: int) -> tuple[float, ...]:
    """A polynomial's coefficients, the constant first."""
    row = [float(value) for value in coefficients[::-1]]
    return (*row, *[0.0] * (size - len(row)))


def _last(size: int) -> tuple[float, ...]:
    return (*[0.0] * (size - 1), 1.0)


# By the size of the kernel. With these points 5x5 sums have four times the mean error of
# F(2x2, 3x3); with the integers (1, -1, 2, -2) it would be seven times.
FILTERINGS = {3: Filtering(2, 3, (0.0, 1.0, -1.0)), 5: Filtering(2, 5, (0.0, 0.5, -0.5, 1.5, -1.5))}
# For data and weights that were rounded to 16 bits. Sums have three times the mean error of
# F(2x2, 3x3), and less than a thousandth of the errors of such data. These points have nearly the
# least error of those that are multiples of 1/16.
ROUNDED_FILTERINGS = {3: Filtering(4, 3, (0.0, 0.625, -0.625, 1.5, -1.5))}
