"""The memory bill of a network: from its definition to planned programs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from lamina.batch.specs import Defined, batch_specs
from lamina.bill import MemoryBill
from lamina.data.dataset import Dataset
from lamina.derive import inference_graph, training_graph
from lamina.engines.engine import Device
from lamina.lazy import loading
from lamina.micro_batches import UPDATE_NAME, accumulating_graphs
from lamina.objective.protocols import TrainingOptions
from lamina.precision import Precision, rounding_of
from lamina.program.target import Target


def bill_of(
    network: Defined,
    batch_size: int,
    options: TrainingOptions | None,
    precision: Precision,
    device: Callable[[], Device],
    target: Target,
    micro_batch: int | None = None,
    sample: Dataset | None = None,
) -> MemoryBill:
    """The memory bill of a training step; without options, of a forward pass.

    With micro-batches it is that of one of them, and of the update.

    Args:
        sample: examples whose dtypes and weights the batches have; by default they have those that
            network and loss expect, and no weights.
    """
    specs = batch_specs(network, options and options.loss, precision.dtype, sample)
    how: Any = {
        "dtype": precision.dtype,
        "rounding": rounding_of(precision, device),
        "input_dtypes": specs.input_dtypes,
    }
    # Imported here: importing the passes takes longer than defining a network.
    with loading:
        from lamina.compiler.pipeline import compile_graph

    compiled = partial(compile_graph, target=target)
    if options is None:
        graph = inference_graph(network, **how).graph
        return MemoryBill(batch_size, compiled(graph, batch=batch_size, name="inference"))
    name, how = "training step", {**how, "weights": specs.weights}
    if micro_batch is None:
        graph = training_graph(network, options, specs.targets, **how).graph
        return MemoryBill(batch_size, compiled(graph, batch=batch_size, name=name))
    graphs = accumulating_graphs(network, options, specs.targets, **how)
    micro = compiled(graphs.micro.graph, batch=micro_batch, name=name)
    update = compiled(graphs.update.graph, batch=micro_batch, name=UPDATE_NAME)
    return MemoryBill(micro_batch, micro, (update,))
