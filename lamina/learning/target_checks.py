"""Checks of the shapes, dtypes and values of targets, and the weights of classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from lamina import ops
from lamina.base.shapes import Array, DType, Shape, int64, shape_text
from lamina.checks.kinds import Number, Row
from lamina.data.conversion import FEW_ELEMENTS, are_indices
from lamina.errors import DataError, DTypeError, ShapeError
from lamina.graph import Tensor, constant, described


def matched(prediction: Tensor, target: Tensor) -> Tensor:
    """The target in the prediction's dtype; its shape must be the prediction's."""
    _require_float(prediction)
    if target.shape != prediction.shape:
        raise unfit(prediction, target, prediction.shape, prediction.dtype)
    if target.dtype.is_float and target.dtype != prediction.dtype:
        raise DTypeError(
            "the target has another float type than the prediction",
            facts=(
                ("prediction", described(prediction)),
                ("expected", shape_text(target.shape, prediction.dtype)),
                ("found", described(target)),
            ),
            advice=f"Convert the targets: y.astype({prediction.dtype.name!r}).",
        )
    return ops.cast(target, prediction.dtype)


def class_count(prediction: Tensor, least: int = 2) -> int:
    """The number of classes of a loss: the extent of the prediction's axis 1."""
    _require_float(prediction)
    return counted_classes(prediction, "lm.BCEWithLogits()", "lm.MSE()", least)


def counted_classes(prediction: Tensor, of_one_number: str, loss: str = "", least: int = 2) -> int:
    """The extent of axis 1; the advice says what measures one number, in a metric or a loss."""
    classes = prediction.shape[1] if prediction.rank > 1 else None
    if not isinstance(classes, int) or classes < least:
        advice = "Give every example one score for each class. "
        if prediction.rank > 2:
            hint = "For one result of each example put lm.Flatten() before the last lm.Linear."
            advice = f"{hint} {advice}"
        raise ShapeError(
            "the prediction has no axis of classes"
            if least < 2
            else "the prediction has no axis of at least two classes",
            facts=(("expected", "[batch, classes, ...]"), ("found", described(prediction))),
            advice=f"{advice}For two classes as one number use {of_one_number}, for quantities "
            f"{loss or 'lm.R2() or lm.MeanAbsoluteError()'}.",
        )
    return classes


def label_shape(prediction: Tensor) -> Shape:
    """The prediction's shape without the axis of classes."""
    return prediction.shape[:1] + prediction.shape[2:]


def hits(prediction: Tensor, target: Tensor) -> Tensor:
    """The one-hot mask of the targets' classes: bool in the prediction's shape."""
    expected = label_shape(prediction)
    if target.dtype.kind != "int" and target.shape != prediction.shape:
        raise DTypeError(
            "class numbers must be integers",
            facts=(
                ("prediction", described(prediction)),
                ("expected", shape_text(expected, int64)),
                ("found", described(target)),
            ),
            advice="Convert the targets: y.astype('int64').",
        )
    if target.shape != expected:
        raise unfit(prediction, target, expected, int64)
    classes = class_count(prediction)
    numbers = ops.reshape(ops.arange(classes), (1, classes, *(1,) * (prediction.rank - 2)))
    return ops.equal(ops.expand_dims(ops.cast(target, "int64"), 1), numbers)


def known_classes(each: Tensor, target: Tensor, classes: int, ignored: int | None = None) -> Tensor:
    """The losses of examples, [batch, 1, ...], NaN where a class that counts is out of range."""
    # Usually targets are checked before they reach the device. A loss inside a function of the
    # user's has no such check, and a class out of range would give a small loss.
    numbers = ops.expand_dims(ops.cast(target, "int64"), 1)
    is_valid = ops.logical_and(numbers >= 0, numbers < classes)
    if ignored is not None:
        is_valid = ops.logical_or(is_valid, ops.equal(numbers, ignored))
    return ops.where(is_valid, each, float("nan"))


def _require_float(prediction: Tensor) -> None:
    if not prediction.dtype.is_float:
        raise DTypeError(
            "a loss needs a prediction of floats",
            facts=(("expected", "f32 or f64"), ("found", described(prediction))),
            advice="End the network with a layer that calculates, such as lm.Linear.",
        )


def unfit(prediction: Tensor, target: Tensor, shape: Shape, dtype: DType) -> ShapeError:
    """The error for a target of another shape than a loss or a metric expects."""
    if target.shape == (*shape, 1):
        advice = "Drop the last axis of the targets: y[..., 0]."
    elif (*target.shape, 1) == shape:
        advice = (
            "Give the targets a last axis: y[..., None]. In a table, kinds={'NAME': 'number'} does "
            "that for numbers (--kind NAME=number); words are classes, with one output for each "
            "and lm.CrossEntropy()."
        )
    elif prediction.rank > 2 and target.shape == prediction.shape[:-1]:
        order = (0, prediction.rank - 1, *range(1, prediction.rank - 1))
        advice = f"Classes are axis 1 of the prediction: lm.ops.transpose(prediction, {order})."
    elif target.shape == prediction.shape:
        advice = "Make class numbers of one-hot targets: y.argmax(axis=1)."
    elif prediction.rank > 2 and target.rank < len(shape) and target.rank <= 2:
        advice = (
            "The prediction has an axis for each position: put lm.Flatten() before the last "
            'lm.Linear, or returns="last" in a recurrent layer, for one result of each example.'
        )
    elif target.dtype.kind == "int" and target.shape == label_shape(prediction):
        advice = (
            "Class numbers are for the loss lm.CrossEntropy() and the metric lm.Accuracy(). For "
            "quantities end in lm.Linear(1), and give the targets a last axis: y[..., None]."
        )
    else:
        advice = "Change the last layer of the network so that it gives the shape of the targets."
    return ShapeError(
        "the target does not fit the prediction",
        facts=(
            ("prediction", described(prediction)),
            ("expected", shape_text(shape, dtype)),
            ("found", described(target)),
        ),
        advice=advice,
    )


def check_values(
    loss: object, array: Array, fits: Array, *, expected: str, advice: str, problem: str = ""
) -> None:
    """Raises DataError for the first target whose `fits` is false."""
    if np.all(fits):
        return
    index = tuple(np.argwhere(np.logical_not(fits))[0])
    example = int(index[0]) if index else 0
    raise DataError(
        problem or "targets out of range",
        facts=(("expected", expected), ("found", f"{array[index]} at example {example}")),
        where=type(loss).__name__,
        advice=advice,
    )


def check_labels(
    loss: object, array: Array, prediction_shape: Shape, ignored: int | None = None
) -> None:
    """Raises DataError for class numbers that are out of range, except the ignored one."""
    classes = prediction_shape[1]
    if not isinstance(classes, int) or are_indices(array, classes):
        return
    largest = int(array.max())
    advice = f"The prediction has {classes} classes: number them from 0, "
    if _are_signs(array):
        advice = "Number the classes from 0: convert -1 and 1 by (y > 0).astype('int64')."
    elif largest >= classes:
        advice += f"or give its last layer {largest + 1} features."
    else:
        advice += (
            "and leave out examples that have no class, or name their number: ignore_index=-1."
        )
    check_values(
        loss,
        array,
        ((array >= 0) & (array < classes)) | (array == ignored if ignored is not None else False),
        problem="labels out of range",
        expected=f"0..{classes - 1}",
        advice=advice,
    )


def _are_signs(array: Array) -> bool:
    """Whether there are two values, -1 and 1."""
    return bool(np.all(np.abs(array) == 1) and (array < 0).any() and (array > 0).any())


def check_probabilities(loss: object, array: Array) -> None:
    """Raises DataError for targets outside 0 to 1."""
    if array.size == 1:
        # A training step of a small network on one example is not much longer than this check.
        fits = 0 <= array.item() <= 1
    elif array.size <= FEW_ELEMENTS:
        fits = all(0 <= value <= 1 for value in array.ravel().tolist())
    else:
        fits = bool(array.min() >= 0 and array.max() <= 1)
    if fits:
        return
    check_values(
        loss,
        array,
        (array >= 0) & (array <= 1),
        expected="0..1",
        advice="Targets are probabilities: convert -1 and 1 by (y + 1) / 2."
        if _are_signs(array)
        else "Targets are probabilities: 0, 1 or between them.",
    )


def check_distributions(loss: object, array: Array) -> None:
    """Raises DataError unless examples are zeros or shares of classes, which lie along axis 1."""
    # An example of zeros does not count. Shares may add up to less than 1.
    check_probabilities(loss, array)
    sums: Array = array.sum(axis=1, dtype=np.float64)
    check_values(
        loss,
        sums,
        sums <= 1 + _SHARE_TOLERANCE,
        problem="targets are no shares of classes",
        expected="a sum of 1 over the classes",
        advice="One class for each example is a class number: targets.argmax(axis=1). For several "
        "classes at once use lm.BCEWithLogits().",
    )


def check_one_class(metric: object, array: Array, advice: str) -> None:
    """Raises DataError unless examples are zeros or of one class; classes lie along axis 1."""
    # An example of zeros does not count. Shares of one class add up to 1.
    sums: Array = array.sum(axis=1, dtype=np.float64)
    check_values(
        metric,
        sums,
        np.equal(sums, 0) | (np.abs(sums - 1) <= _SHARE_TOLERANCE),
        problem="targets are not one class for each example",
        expected="a sum of 1 over the classes",
        advice=advice,
    )


# Of the sum of shares, which may be rounded to 16 bits.
_SHARE_TOLERANCE = 0.01

# One for each class.
Weights = Annotated[Sequence[float], Row(Number("[0, inf)"), example="[1.0, 2.0, 0.5]")]


def weight_tensor(weights: Sequence[float] | None, prediction: Tensor, axis: int) -> Tensor | None:
    """The weights along an axis, in a shape that broadcasts over the prediction."""
    if weights is None:
        return None
    extent = prediction.shape[axis] if prediction.rank else 1
    if len(weights) != extent:
        count = f"{len(weights)} weights"
        raise ShapeError(
            "the weights do not fit the prediction",
            facts=(("expected", f"{extent} weights for {described(prediction)}"), ("found", count)),
            advice="Give one weight for each class.",
        )
    shape = [1] * prediction.rank
    shape[axis] = len(weights)
    return constant(np.reshape(weights, shape), prediction.dtype)
