"""The bases of losses by the kind of their targets: class numbers, probabilities, signs."""

from __future__ import annotations

import numpy as np

from lamina.base.shapes import Array, Shape, int64
from lamina.graph import Tensor
from lamina.learning.losses.loss import Loss, Target
from lamina.learning.target_checks import (
    check_labels,
    check_probabilities,
    check_values,
    class_count,
    label_shape,
)


class OfClassNumbers(Loss):
    """A loss of scores [batch, classes, ...] and class numbers, integers [batch, ...].

    Attributes:
        ignore_index: the class number of targets that do not count, or None.
    """

    ignore_index: int | None = None

    def target(self, prediction: Tensor) -> Target:
        class_count(self, prediction)
        return label_shape(prediction), int64

    def example_targets(self, noise: Array, prediction_shape: tuple[int, ...]) -> Array:
        return np.floor(np.abs(noise) * 1000) % prediction_shape[1]

    def check_target(self, array: Array, prediction_shape: Shape) -> None:
        """Raises DataError for class numbers that are out of range."""
        check_labels(self, array, prediction_shape, self.ignore_index)


class OfProbabilities(Loss):
    """A loss with targets between 0 and 1 in the shape of the prediction."""

    def check_target(self, array: Array, prediction_shape: Shape) -> None:
        """Raises DataError for targets outside 0 to 1."""
        check_probabilities(self, array)


class OfSigns(Loss):
    """A loss with targets of -1 and 1."""

    def example_targets(self, noise: Array, prediction_shape: tuple[int, ...]) -> Array:
        return np.where(noise < 0, -1.0, 1.0)

    def check_target(self, array: Array, prediction_shape: Shape) -> None:
        """Raises DataError for targets other than -1 and 1."""
        check_values(
            self,
            array,
            np.equal(array, 1) | (np.equal(array, -1)),
            expected="-1 or 1",
            advice="Convert targets of 0 and 1 by 2 * y - 1, in a signed dtype.",
        )
