"""The memory bill of a network: from its definition to planned programs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from lamina.base.shapes import DType
from lamina.compiler.program_cache import passes
from lamina.data.dataset import Dataset
from lamina.data.stream import Stream, whole_of
from lamina.engines.engine import Device
from lamina.inspect.bill import MemoryBill
from lamina.learning.protocols import TrainingOptions
from lamina.program.target import Target
from lamina.step.derive import BatchGraph, inference_graph, training_graph
from lamina.step.micro_batches import UPDATE_NAME, accumulating_graphs
from lamina.step.precision import Precision, Rounding, rounding_of
from lamina.step.specs import BatchSpecs, NetworkDefinition, batch_specs


def bill_of(
    network: NetworkDefinition,
    batch_size: int,
    options: TrainingOptions | None,
    precision: Precision,
    device: Callable[[], Device],
    target: Target,
    micro_batch: int | None = None,
    data: Dataset | Stream | None = None,
) -> MemoryBill:
    """The memory bill of a training step; without options, of a forward pass.

    With micro-batches it is that of one of them, and of the update.

    Args:
        data: whose dtypes and weights the batches have; for a stream and by default they have
            what network and loss expect, and no weights.
    """
    sample = None if data is None else whole_of(data)
    measured = sample or data
    held = 0 if measured is None else measured.nbytes
    specs = batch_specs(network, options and options.loss, precision.dtype, sample)
    how: Any = {"dtype": precision.dtype, "rounding": rounding_of(precision, device)}
    compiled = partial(passes(), target=target)
    if options is None:
        graph = inference_graph(network, input_dtypes=specs.input_dtypes, **how).graph
        program = compiled(graph, batch=batch_size, name="inference")
        return MemoryBill(batch_size, program, data_bytes=held)
    divided = micro_batch is not None
    step, update = step_graphs(network, options, specs, **how, divided=divided)
    size = micro_batch or batch_size
    program = compiled(step.graph, batch=size, name="training step")
    if update is None:
        return MemoryBill(size, program, data_bytes=held)
    further = compiled(update.graph, batch=size, name=UPDATE_NAME)
    return MemoryBill(size, program, (further,), held)


def step_graphs(
    network: NetworkDefinition,
    options: TrainingOptions,
    specs: BatchSpecs,
    *,
    dtype: DType,
    rounding: Rounding | None,
    divided: bool,
) -> tuple[BatchGraph, BatchGraph | None]:
    """The graph of a training step; if batches are divided, those of a micro-batch and the update.

    Raises:
        DefinitionError, ShapeError: as `derive.training_graph`.
    """
    how: Any = {
        "dtype": dtype,
        "rounding": rounding,
        "weights": specs.weights,
        "input_dtypes": specs.input_dtypes,
    }
    if not divided:
        return training_graph(network, options, specs.targets, **how), None
    graphs = accumulating_graphs(network, options, specs.targets, **how)
    return graphs.micro, graphs.update
