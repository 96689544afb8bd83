"""Gradient accumulation: the two graphs of a training step whose batch is divided.

One adds the gradients of a micro-batch to sums, which are states. The other one changes the
parameters from the sums. So a large batch needs the activations of a small one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lamina import ops
from lamina.bill import GRADIENT_SUM
from lamina.derive import (
    BatchGraph,
    Gradients,
    Traceable,
    differentiated,
    finished,
    norm_outputs,
    parameter_updates,
    penalised,
)
from lamina.garbage import without_collections
from lamina.graph import Graph, Origin, Tensor, labelled, leaf, rebuild, rewrite
from lamina.loss_scaling import all_finite, kept_unless
from lamina.ops.differentiate import gradients
from lamina.precision import Rounding
from lamina.protocols import Spec, TrainingOptions
from lamina.records import frozen_dataclass
from lamina.shapes import DType, float32, int64

# The names of states: the number of examples and the sum of losses of the micro-batches so far, and
# the number of all finished micro-batches, which is the key of their random numbers.
EXAMPLES, LOSS_SUM, MICRO_STEP = "examples", "loss_sum", "micro_step"
# The name of the program of the update, for people.
UPDATE_NAME = "update"


@frozen_dataclass
class AccumulatingGraphs:
    """The graphs of a training step whose batch is divided into micro-batches.

    Attributes:
        micro: of one micro-batch. Its slots are the sums and the number of micro-batches.
        update: changes the parameters from the sums, and begins new ones. It has no inputs, and
            the loss of the whole batch is its output. Its slots are those of the optimizer.
    """

    micro: BatchGraph
    update: BatchGraph


@frozen_dataclass
class _Sums:
    """What the micro-batches of a batch are added up to.

    Attributes:
        examples: int64, their number; 0 before the first micro-batch. Then the other sums have old
            values.
        loss: of the losses.
        gradients: of the gradients of the trained parameters.
        is_mean: whether the loss is a mean: then losses and gradients are weighted by examples.
    """

    examples: Tensor
    loss: Tensor
    gradients: tuple[Tensor, ...]
    is_mean: bool

    @property
    def slots(self) -> Mapping[str, tuple[Tensor, float]]:
        """Each sum with its first value, by name."""
        sums = (self.examples, self.loss, *self.gradients)
        return {tensor.attributes["name"]: (tensor, 0.0) for tensor in sums}

    def updates(self, count: Tensor, found: Gradients) -> list[tuple[Tensor, Tensor]]:
        """The sums after one more micro-batch of so many examples."""
        is_first = ops.equal(self.examples, 0)
        updates = [(self.examples, self.examples + count)]
        terms = (found.loss, *found.flowing)
        for total, term in zip((self.loss, *self.gradients), terms, strict=True):
            new = ops.cast(term, total.dtype)
            weight = ops.cast(count, total.dtype)
            first = new * weight if self.is_mean else new
            later = ops.multiply_add(new, weight, total) if self.is_mean else total + new
            updates.append((total, ops.where(is_first, first, later)))
        return updates

    def of_batch(self, total: Tensor) -> Tensor:
        """Loss or gradient of the whole batch, from the sum."""
        return total / ops.cast(self.examples, total.dtype) if self.is_mean else total


def _sums(found: Gradients, options: TrainingOptions) -> _Sums:
    gradients: list[Tensor] = []
    for variable in found.trained:
        parameter = variable.tensor
        wide = float32 if parameter.dtype.is_half else parameter.dtype
        name = f"{variable.name}/{GRADIENT_SUM}"
        gradients.append(leaf(name, "state", parameter.shape, wide))
    examples = leaf(EXAMPLES, "state", (), int64)
    loss = leaf(LOSS_SUM, "state", (), found.loss.dtype)
    is_mean = getattr(options.loss, "reduction", "mean") != "sum"
    return _Sums(examples, loss, tuple(gradients), is_mean)


@without_collections
def accumulating_graphs(
    network: Traceable,
    options: TrainingOptions,
    targets: Sequence[Spec],
    *,
    dtype: DType,
    input_dtypes: Sequence[DType] | None = None,
    rounding: Rounding | None = None,
) -> AccumulatingGraphs:
    """The graphs of a training step whose batch is divided into micro-batches.

    If the loss is a mean, the gradients of micro-batches are weighted by their numbers of examples;
    if it is a sum, they are added. Penalties count once.

    Args:
        network, options, targets, dtype, input_dtypes, rounding: as for `derive.training_graph`.

    Raises:
        DefinitionError, ShapeError: as `derive.training_graph`.
    """
    found = differentiated(
        network,
        options,
        targets,
        dtype=dtype,
        input_dtypes=input_dtypes,
        rounding=rounding,
        with_penalties=False,
    )
    sums = _sums(found, options)
    micro = _micro_graph(found, sums, rounding)
    return AccumulatingGraphs(micro, _update_graph(found, sums, options, rounding))


def _micro_graph(found: Gradients, sums: _Sums, rounding: Rounding | None) -> BatchGraph:
    record = found.trace.record
    micro_step = leaf(MICRO_STEP, "state", (), int64)
    with labelled(Origin("accumulation")):
        count = ops.element_count(found.trace.inputs[0], (0,), int64)
        updates = sums.updates(count, found)
        changed = [(record.states[name].tensor, new) for name, new in record.updates.items()]
        if found.scale is not None:
            changed = kept_unless(all_finite(found.flowing), changed)
        updates += [*changed, (micro_step, ops.add(micro_step, 1))]
    inputs = (*found.trace.inputs, *found.leaves)
    graph = Graph(inputs, (("loss", found.loss), *found.measured), tuple(updates))

    def rule(node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        # Each micro-batch draws random numbers of its own.
        return micro_step if node is record.step else rebuild(node, operands)

    slots = {**sums.slots, MICRO_STEP: (micro_step, 0.0)}
    return finished(rewrite(graph, rule), rounding, found.trace, slots, found.untrained)


def _update_graph(
    found: Gradients, sums: _Sums, options: TrainingOptions, rounding: Rounding | None
) -> BatchGraph:
    record, scale = found.trace.record, found.scale
    with labelled(Origin("accumulation")):
        loss = sums.of_batch(sums.loss)
        flowing = [sums.of_batch(total) for total in sums.gradients]
    trained = [variable.tensor for variable in found.trained]
    if record.penalties:
        penalty = penalised(ops.zeros_like(loss), record.penalties)
        with labelled(Origin("penalty")):
            loss = loss + penalty
            flows = gradients(penalty, trained)
            flowing = [g + ops.cast(own, g.dtype) for g, own in zip(flowing, flows, strict=True)]
    slots: dict[str, tuple[Tensor, float]] = {}
    updates = parameter_updates(found, options, flowing, slots)
    if scale is not None:
        with labelled(Origin("loss_scale")):
            finite = all_finite(flowing)
            updates = [*kept_unless(finite, updates), *scale.updates(finite)]
        slots |= scale.slots
    with labelled(Origin("step")):
        updates.append((record.step, ops.add(record.step, 1)))
        updates.append((sums.examples, ops.zeros_like(sums.examples)))
    outputs = (("loss", loss), *norm_outputs(options, flowing))
    graph = Graph((), outputs, tuple(updates))
    return finished(graph, rounding, found.trace, slots, found.untrained)
