"""The base of losses whose targets are class numbers."""

from __future__ import annotations

import numpy as np

from lamina.base.shapes import Array, Shape, int64
from lamina.graph import Tensor
from lamina.learning.losses.loss import Loss, Target
from lamina.learning.target_checks import check_labels, class_count, label_shape


class OfClassNumbers(Loss):
    """A loss of scores [batch, classes, ...] and class numbers, integers [batch, ...].

    Attributes:
        ignore_index: the class number of targets that do not count, or None.
    """

    ignore_index: int | None = None

    def target(self, prediction: Tensor) -> Target:
        """Class numbers: int64, the prediction's shape without the classes."""
        class_count(self, prediction)
        return label_shape(prediction), int64

    def example_targets(self, noise: Array, prediction_shape: tuple[int, ...]) -> Array:
        """Class numbers, spread over the classes."""
        return np.floor(np.abs(noise) * 1000) % prediction_shape[1]

    def check_target(self, array: Array, prediction_shape: Shape) -> None:
        """Raises DataError for class numbers that are out of range."""
        check_labels(self, array, prediction_shape, self.ignore_index)
