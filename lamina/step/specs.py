"""The shapes and dtypes of the arrays of a batch, as the network, the loss and the data say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lamina.base.shapes import BATCH, Array, DType, as_dtype, float32, shape_text, static
from lamina.data import Dataset
from lamina.data.conversion import convert
from lamina.errors import DataError, ShapeError
from lamina.graph import Tensor
from lamina.learning.protocols import Loss, Spec
from lamina.step.derive import BatchSpecs, default_targets, targets_of_terms
from lamina.step.names import (
    Names,
    NetworkDefinition,
    as_arrays,
    names_of_targets,
    names_of_weights,
)
from lamina.step.precision import Rounding


def batch_specs(
    network: NetworkDefinition,
    dtype: DType,
    rounding: Rounding | None,
    loss: Loss | None,
    dataset: Dataset | None,
) -> BatchSpecs:
    """The batches of a data set; without one network and loss decide what they are."""
    batch = BatchSpecs(network, dtype, rounding, _input_dtypes(network, dtype, dataset))
    if loss is None:
        return batch
    # Losses are computed in float32 if the model has floats of 16 bits.
    widest = float32 if dtype.is_half else dtype
    if dataset is None:
        specs = default_targets(network, loss, dtype)
    else:
        dataset = positional(dataset, network, loss, dtype)
        specs = target_specs(dataset)
    targets = tuple((shape, _narrowed(target_dtype, widest)) for shape, target_dtype in specs)
    weights = () if dataset is None else dataset.weight_arrays
    # Weights become floats of that type.
    weight_specs = tuple(((BATCH, *array.shape[1:]), widest) for array in weights)
    return replace(batch, targets=targets, weights=weight_specs)


def _input_dtypes(
    network: NetworkDefinition, dtype: DType, dataset: Dataset | None
) -> tuple[DType, ...]:
    if dataset is None:
        return tuple(input_spec(tensor, dtype)[1] for tensor in network.inputs)
    names, inputs = Names("input", network.input_names), dataset.inputs
    try:
        arrays = as_arrays(inputs if isinstance(inputs, Mapping) else dataset.input_arrays, names)
        check_batch(arrays, [input_spec(tensor, dtype) for tensor in network.inputs], names.labels)
    except (DataError, ShapeError) as error:
        if dataset.coding is not None and dataset.coding.columns:
            error.advice = dataset.coding.inputs_text
        raise
    return tuple(_narrowed(as_dtype(array.dtype), dtype) for array in arrays)


def positional(dataset: Dataset, network: NetworkDefinition, loss: Loss, dtype: DType) -> Dataset:
    """A data set with its arrays in the order of the network; one without names stays as it is."""
    inputs, targets, weights = dataset.inputs, dataset.targets, dataset.weights
    if not any(isinstance(arrays, Mapping) for arrays in (inputs, targets, weights)):
        return dataset
    if isinstance(inputs, Mapping):
        inputs = as_arrays(inputs, Names("input", network.input_names))
    if isinstance(targets, Mapping):
        terms = targets_of_terms(network, loss, dtype)
        counts = [(term, len(specs)) for term, specs in terms]
        targets = as_arrays(targets, names_of_targets(network, counts)) or None
    if isinstance(weights, Mapping):
        weights = as_arrays(weights, names_of_weights(network, loss))
    return Dataset(inputs, targets, weights=weights, coding=dataset.coding)


def input_spec(tensor: Tensor, dtype: DType) -> Spec:
    """Shape and dtype of an input: the model's float type unless the input has a fixed dtype."""
    return tensor.shape, dtype if tensor.dtype == float32 else tensor.dtype


def target_specs(dataset: Dataset) -> tuple[Spec, ...]:
    """The shapes, with a symbolic batch, and dtypes of a data set's targets."""
    shapes, dtypes = dataset.target_shapes, dataset.target_dtypes
    return tuple(((BATCH, *shape), dtype) for shape, dtype in zip(shapes, dtypes, strict=True))


def _narrowed(found: DType, widest: DType) -> DType:
    """The dtype of data in the program: at most this float type."""
    return widest if found.is_float and found.rank >= widest.rank else found


def converted(value: Any, names: Names, specs: Sequence[Spec]) -> list[Array]:
    """The arrays of the inputs, in their order, converted for a program with these inputs."""
    rows = zip(as_arrays(value, names), specs, names.labels, strict=True)
    return [convert(array, dtype, label) for array, (_, dtype), label in rows]


def check_batch(arrays: Sequence[Array], specs: Sequence[Spec], names: Sequence[str]) -> int:
    """The number of examples in the arrays of one batch."""
    for array, (shape, dtype), name in zip(arrays, specs, names, strict=True):
        if array.ndim != len(shape) or array.shape[1:] != static(shape[1:]):
            array_type = shape_text(array.shape, as_dtype(array.dtype))
            raise ShapeError(
                f"{name} has another shape than the network expects",
                facts=(("expected", shape_text(shape, dtype)), ("found", array_type)),
                where=name,
                advice=_shape_advice(array.shape, static(shape[1:])),
            )
    counts = [array.shape[0] for array in arrays]  # a sparse matrix has no length
    if counts[0] == 0:
        raise DataError("there are no examples", where=names[0], advice="Give at least one.")
    if len(set(counts)) > 1:
        raise DataError(
            "the arrays differ in their number of examples",
            facts=tuple((name, str(count)) for name, count in zip(names, counts, strict=True)),
            advice="Every array has one row for each example.",
        )
    return counts[0]


def _shape_advice(shape: tuple[int, ...], expected: tuple[int, ...]) -> str:
    listed = ", ".join(map(str, expected))
    if shape == expected:
        return "The batch axis is missing: array[None] makes a batch of one."
    if len(shape) == 1 and expected == (1,):
        return (
            "The axis of features is missing: x[:, None] makes one feature of an array, "
            "frame[['NAME']] of a column of a frame."
        )
    if len(expected) > 1 and shape[1:] == (*expected[1:], expected[0]):
        order = ", ".join(map(str, (0, len(expected), *range(1, len(expected)))))
        return f"Channels come first: array.transpose({order})."
    if len(shape) == 1 + len(expected) and sorted(shape[1:]) == sorted(expected):
        return "The axes are in another order: array.transpose(...) puts them right."
    if shape[1:] and expected and np.prod(shape[1:]) == np.prod(expected):
        return f"The elements are right in number: array.reshape(-1, {listed})."
    return f"The first axis is the batch; each example has the shape [{listed}]."
