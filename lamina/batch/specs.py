"""The shapes and dtypes of the arrays of a batch, as the network, the loss and the data say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from lamina.batch.names import (
    HasNames,
    as_arrays,
    names_of_inputs,
    names_of_targets,
    names_of_weights,
)
from lamina.data import Dataset
from lamina.derive import Traceable, default_targets, targets_of_terms
from lamina.graph import Tensor
from lamina.objective.protocols import Loss, Spec
from lamina.records import frozen_dataclass
from lamina.shapes import BATCH, DType, float32


class Defined(HasNames, Traceable, Protocol):
    """The part of a network that this file needs."""

    @property
    def inputs(self) -> Sequence[Tensor]: ...

    @property
    def output_names(self) -> tuple[str, ...]: ...


@frozen_dataclass
class BatchSpecs:
    """What the arrays of a batch are.

    Attributes:
        input_dtypes: of the inputs.
        targets, weights: (shape with the batch, dtype) of each target, and of the weights of the
            examples.
    """

    input_dtypes: tuple[DType, ...]
    targets: tuple[Spec, ...] = ()
    weights: tuple[Spec, ...] = ()


def batch_specs(
    network: Defined, loss: Loss | None, dtype: DType, dataset: Dataset | None
) -> BatchSpecs:
    """The arrays of the batches of a data set.

    Args:
        network: has the inputs.
        loss: decides what the targets are without a data set; None for a forward pass.
        dtype: the float type of the model, which narrows floats of the data.
        dataset: has the dtypes of the inputs and the shapes and dtypes of the targets and weights.

    Raises:
        DataError: if the data set does not have the inputs, or a name is unknown or missing.
    """
    inputs = _input_dtypes(network, dtype, dataset)
    if loss is None:
        return BatchSpecs(inputs)
    # Losses are computed in float32 if the model has floats of 16 bits.
    widest = float32 if dtype.is_half else dtype
    if dataset is None:
        specs = default_targets(network, loss, dtype)
    else:
        dataset = positional(dataset, network, loss, dtype)
        specs = target_specs(dataset)
    targets = tuple((shape, _narrowed(widest, found)) for shape, found in specs)
    return BatchSpecs(inputs, targets, weight_specs(dataset, widest))


def _input_dtypes(network: Defined, dtype: DType, dataset: Dataset | None) -> tuple[DType, ...]:
    """The dtypes of the inputs, in the order of the network."""
    if dataset is None:
        return tuple(input_spec(tensor, dtype)[1] for tensor in network.inputs)
    found: Any = dataset.input_dtypes
    if isinstance(dataset.inputs, Mapping):
        found = dict(zip(dataset.inputs, found, strict=True))
    return tuple(_narrowed(dtype, one) for one in as_arrays(found, names_of_inputs(network)))


def positional(dataset: Dataset, network: Defined, loss: Loss, dtype: DType) -> Dataset:
    """A data set whose arrays are given by name, with the arrays in the order of the network.

    Args:
        dataset: one without names stays as it is.
        network: has the inputs and outputs.
        loss: decides which outputs have targets.
        dtype: the float type of the model.

    Raises:
        DataError: if a name is unknown or missing.
    """
    inputs, targets, weights = dataset.inputs, dataset.targets, dataset.weights
    if not any(isinstance(one, Mapping) for one in (inputs, targets, weights)):
        return dataset
    if isinstance(inputs, Mapping):
        inputs = as_arrays(inputs, names_of_inputs(network))
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


def weight_specs(dataset: Dataset | None, dtype: DType) -> tuple[Spec, ...]:
    """The shapes, with a symbolic batch, of a data set's weights, which become this float type."""
    arrays = () if dataset is None else dataset.weight_arrays
    return tuple(((BATCH, *array.shape[1:]), dtype) for array in arrays)


def _narrowed(model: DType, found: DType) -> DType:
    """The dtype of data in the program: at most the model's float type."""
    return model if found.is_float and found.rank >= model.rank else found
