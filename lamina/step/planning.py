"""The memory bill of a network: from its definition to planned programs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from lamina.compiler.program_cache import passes
from lamina.data.dataset import Dataset
from lamina.data.stream import Stream, whole_of
from lamina.engines.engine import Device, Engine, Members
from lamina.inspect.bill import MemoryBill
from lamina.learning.protocols import TrainingOptions
from lamina.program.target import Target
from lamina.step.derive import inference_graph
from lamina.step.micro_batches import UPDATE_NAME, step_graphs
from lamina.step.names import NetworkDefinition
from lamina.step.precision import Precision, rounding_of
from lamina.step.specs import batch_specs


def bill_of(
    network: NetworkDefinition,
    batch_size: int,
    options: TrainingOptions | None,
    precision: Precision,
    device: Callable[[], Device],
    target: Target,
    micro_batch: int | None = None,
    data: Dataset | Stream | None = None,
    members: int | None = None,
    engine: Engine | None = None,
) -> MemoryBill:
    """The memory bill of a training step; without options, of a forward pass.

    With micro-batches it is the bill of one micro-batch and of the update.

    Args:
        members: the number of members of a population, which `engine` runs; None for a model.
    """
    sample = None if data is None else whole_of(data)
    measured = sample or data
    held = 0 if measured is None else measured.nbytes
    rounding, loss = rounding_of(precision, device), options and options.loss
    batch = batch_specs(network, precision.dtype, rounding, loss, sample)
    compiled = partial(passes(), target=target)
    size, name, update = batch_size, "inference", None
    if options is None:
        graph = inference_graph(batch)
    else:
        graph, update = step_graphs(batch, options, divided=micro_batch is not None)
        size, name = micro_batch or batch_size, "training step"
    program = compiled(graph.graph, batch=size, name=name)
    if update is None:
        if members is None or engine is None:
            return MemoryBill(size, program, data_bytes=held)
        grouping = engine.grouping(program, members_of(members, own_inputs=options is not None))
        return MemoryBill(size, grouping.program, (), held, members, grouping)
    further = compiled(update.graph, batch=size, name=UPDATE_NAME)
    return MemoryBill(size, program, (further,), held)


def members_of(count: int, *, own_inputs: bool, may_use_lanes: bool = True) -> Members:
    """Members of a population, as engines take them."""
    # Imported only here: few programs have members.
    from lamina.compiler.members import with_members

    return Members(count, own_inputs, may_use_lanes, with_members)
