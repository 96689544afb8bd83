"""Weights of examples and of classes, in losses and metrics.

A mean is divided by the sum of the weights, as PyTorch's means over weighted classes are. So
weights count relative to each other: twice the weights give the same mean.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast, final

import numpy as np

from lamina import ops
from lamina.base.shapes import Array, as_whole, shape_text
from lamina.checks.kinds import Kind, Misfit, Number, Operands, entries_of, read_each
from lamina.errors import DataError, DefinitionError, ShapeError
from lamina.graph import Tensor, constant, described

# The weight of each class: of all of them in order, or of some of them by number.
ClassWeights = Mapping[int, float] | Sequence[float]
# What users give.
WeightsOfClasses = ClassWeights | Literal["balanced"]
_WEIGHT = Number("[0, inf)")


def aligned(weights: Tensor, each: Tensor, where: str = "") -> Tensor:
    """The weights, [batch] or of the values' first axes, in a shape that broadcasts over these."""
    if weights.rank > each.rank or weights.shape != each.shape[: weights.rank]:
        prefixes = [shape_text(each.shape[:rank]) for rank in range(1, max(each.rank, 1) + 1)]
        raise ShapeError(
            "the weights do not fit the values that they weight",
            facts=(
                ("values", described(each)),
                ("expected", " or ".join(prefixes)),
                ("found", described(weights)),
            ),
            where=where,
            advice="Give one weight for each example, or one for each value.",
        )
    missing = each.rank - weights.rank
    return ops.reshape(weights, (*weights.shape, *(1,) * missing)) if missing else weights


def weighted(values: Tensor, weights: Tensor) -> Tensor:
    """Values times their weights; 0 where the weight is 0, also of NaN and infinity."""
    return ops.where(ops.equal(weights, 0.0), 0.0, values * weights)


def weighted_sum(values: Tensor, weights: Tensor | None, where: str = "") -> tuple[Tensor, Tensor]:
    """The sum of values [batch, ...], and of their weights: of ones, if there are no weights."""
    if weights is None:
        return ops.sum(values), ops.sum(ops.ones_like(values))
    fitting = ops.broadcast_to(aligned(weights, values, where), values.shape)
    return ops.sum(weighted(values, fitting)), ops.sum(fitting)


def parameter_of_weights(function: Callable[..., Any]) -> inspect.Parameter | None:
    """The parameter `weights` of a function, if it has one."""
    try:
        return inspect.signature(function).parameters.get("weights")
    except (TypeError, ValueError):  # some callables of C have no signature
        return None


def called(
    loss: Callable[..., Any], prediction: Any, target: Any, weights: Tensor | None, where: str = ""
) -> Any:
    """The result of a loss; with weights a DefinitionError if it has no parameter `weights`."""
    parameter = parameter_of_weights(loss)
    if weights is None:
        needed = parameter is not None and parameter.default is inspect.Parameter.empty
        return loss(prediction, target, weights=None) if needed else loss(prediction, target)
    if parameter is None:
        raise DefinitionError(
            "the examples have weights, and this loss does not take them",
            facts=(("expected", "loss(prediction, target, weights)"), ("found", repr(loss))),
            where=where,
            advice="Give the function a third parameter: def loss(prediction, target, "
            "weights=None), with ops.sum(weights * each) / ops.sum(weights) for a mean.",
        )
    return loss(prediction, target, weights=weights)


def check_weights(array: Array, name: str) -> None:
    """Raises DataError for weights that are negative or not finite."""
    if array.dtype.kind == "b" or (array.min() >= 0 and np.isfinite(array.max())):
        return
    fits = (array >= 0) & np.isfinite(array)
    index = tuple(np.argwhere(~fits)[0])
    weight = f"{array[index]} at example {index[0]}"
    raise DataError(
        f"{name} has numbers that are negative or not finite",
        facts=(("expected", "0 or more, finite"), ("found", weight)),
        where="weights",
        advice="An example of weight 0 does not count.",
    )


@final
class ClassWeightsKind(Kind):
    """The weights of classes: a list, a dict by class number, or "balanced"."""

    def read(self, value: Any, operands: Operands = ()) -> Any:
        example = "class_weights=[1.0, 2.5], {1: 2.5} or 'balanced'"
        if value is None or (isinstance(value, str) and value == "balanced"):
            return value
        if isinstance(value, Mapping):
            weights: dict[int, float] = {}
            for key, weight in cast(Mapping[Any, Any], value).items():
                number = as_whole(key)
                if number is None or number < 0:
                    advice = ""
                    if isinstance(key, str) and isinstance(weight, Mapping | list):
                        advice = "For several outputs each loss has its own: "
                        advice += "loss=[lm.CrossEntropy(class_weights=[1.0, 2.5]), lm.MSE()]."
                    elif isinstance(key, str):
                        advice = "The number of a class of a table is "
                        advice += f"dataset.coding.classes.index({key!r})."
                    raise Misfit("a dict by class numbers", example, advice=advice)
                try:
                    weights[number] = _WEIGHT.read(weight)
                except Misfit as misfit:
                    raise misfit.within(f"[{number}]", weight) from None
            if weights:
                return weights
        entries = entries_of(cast(object, value))
        if not entries:
            raise Misfit("the weights of the classes", example)
        return read_each(_WEIGHT, entries)


def numbers_of(
    weights: WeightsOfClasses | None, targets: Sequence[Array] | None
) -> ClassWeights | None:
    """The weights of the classes; "balanced" ones are computed from the targets."""
    if not isinstance(weights, str):
        return weights
    if targets is None:
        raise DefinitionError(
            "balanced weights of classes need the data",
            where="class_weights",
            advice="A stream is not read beforehand: give the weights as a list or a dict. For "
            "training(...), give all of the data: data=(x, y).",
        )
    return balanced(targets)


@final
class Balanced(dict[int, float]):
    """Weights that were computed from targets, among which may be numbers that do not count."""


def balanced(targets: Sequence[Array]) -> dict[int, float]:
    """The weights with which all classes count equally: examples / (classes * examples of a class).

    As `class_weight="balanced"` in scikit-learn; King, Zeng: Logistic regression in rare events
    data (2001). Classes that do not occur have no weight and do not count as classes.
    """
    array = targets[0] if len(targets) == 1 else None
    if array is None or array.dtype.kind == "f":
        kind = "no targets" if not targets else f"{len(targets)} arrays"
        kind = kind if array is None else f"{array.dtype.name}{shape_text(array.shape)}"
        raise DataError(
            "only class numbers can be balanced",
            facts=(("expected", "one target of integers"), ("found", kind)),
            where="class_weights",
            advice="Give each loss its weights: lm.CrossEntropy(class_weights=[...])."
            if len(targets) > 1
            else "Convert the targets: y.astype('int64'), or give the weights as a list.",
        )
    classes, counts = np.unique(
        array[array >= 0] if array.dtype.kind == "i" else array, return_counts=True
    )
    each = counts.sum() / (len(classes) * counts)
    weights = {int(number): float(weight) for number, weight in zip(classes, each, strict=True)}
    return Balanced(weights)


def weights_of_classes(
    classes: ClassWeights, prediction: Tensor, target: Tensor, *, labels: bool
) -> Tensor:
    """The weight of each target by its class, in the prediction's dtype.

    Classes that a dict lacks have the weight 1. The target consists of class numbers; if the loss
    takes `labels`, which are class numbers, also of probabilities along axis 1; or of two classes,
    0 and 1.
    """
    axis = prediction.shape[1] if labels and prediction.rank > 1 else 2
    if not isinstance(classes, Mapping) and len(classes) != axis:
        text = f"{len(classes)} weights"
        raise ShapeError(
            "the weights of classes do not fit the prediction",
            facts=(("expected", f"{axis} weights for {described(prediction)}"), ("found", text)),
            where="class_weights",
            advice="Give one weight for each class, or a dict of those that differ from 1.",
        )
    if isinstance(classes, Mapping):
        unknown = [n for n in classes if isinstance(axis, int) and n >= axis]
        if unknown and isinstance(axis, int) and not isinstance(classes, Balanced):
            raise ShapeError(
                "there is no class of that number",
                facts=(
                    ("expected", f"0..{axis - 1} for {described(prediction)}"),
                    ("found", f"{{{unknown[0]}: {classes[unknown[0]]}}}"),
                ),
                where="class_weights",
                advice="Classes are numbered from 0.",
            )
        table = [classes.get(number, 1.0) for number in range(max(classes) + 1)]
    else:
        table = list(classes)
    if target.dtype.kind == "float":
        by_class = labels and target.shape == prediction.shape
        numbers = ops.argmax(target, 1) if by_class else ops.cast(target > 0.5, "int64")
    else:
        numbers = ops.cast(target, "int64")
    count = len(table)
    in_table = ops.logical_and(numbers >= 0, numbers < count)
    weights = ops.take(constant(np.array(table), prediction.dtype), ops.clip(numbers, 0, count - 1))
    return ops.where(in_table, weights, 1.0)
