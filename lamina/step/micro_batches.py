"""Gradient accumulation: the two graphs of a training step whose batch is divided.

One adds the gradients of a micro-batch to sums, which are states. The other one changes the
parameters from the sums. So a large batch needs the activations of a small one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lamina import ops
from lamina.base.garbage import without_collections
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import DType, float32, int64
from lamina.graph import Graph, Origin, Tensor, labelled, leaf, rebuild, rewrite, topological
from lamina.inspect.bill import GRADIENT_SUM
from lamina.layers.scope import Variable, layers_built
from lamina.learning.objective import Share, added
from lamina.learning.protocols import Spec, TrainingOptions
from lamina.ops.differentiate import gradients
from lamina.step.derive import (
    BatchGraph,
    Differentiated,
    Traceable,
    differentiated,
    finished,
    norm_outputs,
    parameter_updates,
    penalised,
    penalty_outputs,
)
from lamina.step.loss_scaling import all_finite, kept_unless
from lamina.step.precision import Rounding

# The names of states: the number of examples and the sum of losses of the micro-batches so far, and
# the number of all finished micro-batches, which is the key of their random numbers.
EXAMPLES, LOSS_SUM, MICRO_STEP = "examples", "loss_sum", "micro_step"
# The sum of the divisors of a term of the loss that is not divided by the number of examples.
DIVISOR_SUM = "divisor_sum"
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
    """What a share of the loss is added up to over the micro-batches of a batch.

    Attributes:
        share: of the loss of a micro-batch.
        loss: the sum of losses: of means, of the products with their divisors.
        divisor: the sum of divisors: of examples, or of weights.
        gradients: the sums of the gradients, by the names of the trained parameters on which the
            share depends.
    """

    share: Share
    loss: Tensor
    divisor: Tensor
    gradients: Mapping[str, Tensor]

    @property
    def states(self) -> Sequence[Tensor]:
        """The sums, without that of the divisors."""
        return (self.loss, *self.gradients.values())

    def terms(self, count: Tensor, gradients: Mapping[str, Tensor]) -> Sequence[Tensor]:
        """The loss and the gradients of a micro-batch, of which sums are made.

        Without elements, a mean is NaN; it does not count.
        """
        terms = (self.share.loss, *(gradients[name] for name in self.gradients))
        if self.share.divisor is None:
            return terms
        return [ops.where(count > 0, term, 0.0) for term in terms]

    def updates(
        self, is_first: Tensor, count: Tensor, terms: Sequence[Tensor]
    ) -> list[tuple[Tensor, Tensor]]:
        """The sums after one more micro-batch.

        Args:
            is_first: whether the sums have old values.
            count: of the examples, or the sum of their weights.
            terms: of the micro-batch.
        """
        updates: list[tuple[Tensor, Tensor]] = []
        for total, term in zip(self.states, terms, strict=True):
            new = ops.cast(term, total.dtype)
            weight = ops.cast(count, total.dtype)
            summed = self.share.summed
            first = new if summed else new * weight
            later = total + new if summed else ops.multiply_add(new, weight, total)
            updates.append((total, ops.where(is_first, first, later)))
        return updates

    def of_batch(self, total: Tensor) -> Tensor:
        """Loss or gradient of the whole batch, from the sum."""
        if self.share.summed:
            return total
        divisor = ops.cast(self.divisor, total.dtype)
        if self.share.weighted and self.share.divisor is not None:
            # A batch whose examples all have the weight 0 has no loss.
            divisor = ops.where(ops.equal(divisor, 0.0), 1.0, divisor)
        return total / divisor


def _sums(found: Differentiated, examples: Tensor) -> list[_Sums]:
    """The sums of each share of the loss."""
    sums: list[_Sums] = []
    for number, share in enumerate(found.objective.shares):
        # Names without a number if there is one share: the usual case.
        suffix = f"/{number}" if number else ""
        reached = set(topological([share.loss]))
        gradients: dict[str, Tensor] = {}
        for variable in found.trained:
            if variable.tensor in reached:
                name, shape = f"{variable.name}{suffix}/{GRADIENT_SUM}", variable.tensor.shape
                gradients[variable.name] = leaf(name, "state", shape, _wide(variable))
        loss = leaf(f"{LOSS_SUM}{suffix}", "state", (), share.loss.dtype)
        divisor = examples
        if share.divisor is not None:
            divisor = leaf(f"{DIVISOR_SUM}{suffix}", "state", (), share.divisor.dtype)
        sums.append(_Sums(share, loss, divisor, gradients))
    return sums


@without_collections
def accumulating_graphs(
    network: Traceable,
    options: TrainingOptions,
    targets: Sequence[Spec],
    *,
    dtype: DType,
    weights: Sequence[Spec] = (),
    input_dtypes: Sequence[DType] | None = None,
    rounding: Rounding | None = None,
) -> AccumulatingGraphs:
    """The graphs of a training step whose batch is divided into micro-batches.

    If a term of the loss is a mean, its gradients of micro-batches are weighted by their numbers of
    examples, or by the sums of weights by which it is divided; if it is a sum, they are added.
    Penalties count once.

    Args:
        network, options, targets, dtype, weights, input_dtypes, rounding: as for
            `derive.training_graph`.

    Raises:
        DefinitionError, ShapeError: as `derive.training_graph`.
    """
    found = differentiated(
        network,
        options,
        targets,
        dtype=dtype,
        weights=weights,
        input_dtypes=input_dtypes,
        rounding=rounding,
    )
    examples = leaf(EXAMPLES, "state", (), int64)
    sums = _sums(found, examples)
    micro = _micro_graph(found, examples, sums, rounding)
    return AccumulatingGraphs(micro, _update_graph(found, examples, sums, options, rounding))


def _micro_graph(
    found: Differentiated, examples: Tensor, sums: Sequence[_Sums], rounding: Rounding | None
) -> BatchGraph:
    record, names = found.trace.record, [variable.name for variable in found.trained]
    flows = [dict(zip(names, found.flowing(one.share.loss), strict=True)) for one in sums]
    micro_step = leaf(MICRO_STEP, "state", (), int64)
    with labelled(Origin("accumulation")):
        count = ops.element_count(found.trace.inputs[0], (0,), int64)
        is_first = ops.equal(examples, 0)
        updates = [(examples, examples + count)]
        finite: list[Tensor] = []
        for one, gradients_of in zip(sums, flows, strict=True):
            own = one.share.divisor
            terms = one.terms(count if own is None else own, gradients_of)
            finite += terms[1:]
            updates += one.updates(is_first, count if own is None else own, terms)
            if own is not None:
                updates.append((one.divisor, ops.where(is_first, own, one.divisor + own)))
        changed = [(record.states[name].tensor, new) for name, new in record.updates.items()]
        if found.scale is not None and finite:
            changed = kept_unless(all_finite(finite), changed)
        updates += [*changed, (micro_step, ops.add(micro_step, 1))]
    outputs = (("loss", found.objective.loss), *found.objective.outputs)
    graph = Graph(found.inputs, outputs, tuple(updates))

    def rule(node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        # Each micro-batch draws random numbers of its own.
        return micro_step if node is record.step else rebuild(node, operands)

    states = [
        examples,
        *(state for one in sums for state in (*one.states, one.divisor)),
        micro_step,
    ]
    slots = {state.attributes["name"]: (state, 0.0) for state in states}
    whole = rewrite(graph, rule)
    return finished(whole, rounding, found.trace, slots, found.untrained, found.objective)


def _update_graph(
    found: Differentiated,
    examples: Tensor,
    sums: Sequence[_Sums],
    options: TrainingOptions,
    rounding: Rounding | None,
) -> BatchGraph:
    record, scale = found.trace.record, found.scale
    with labelled(Origin("accumulation")):
        loss = added([one.of_batch(one.loss) for one in sums])
        flowing = [_gradient_of_batch(variable, sums) for variable in found.trained]
    penalties = penalty_outputs(found.objective, record.penalties)
    trained = [variable.tensor for variable in found.trained]
    if record.penalties:
        penalty = penalised(ops.zeros_like(loss), record.penalties)
        with labelled(Origin("penalty")):
            loss = loss + penalty
            flows = gradients(penalty, trained)
            flowing = [g + ops.cast(own, g.dtype) for g, own in zip(flowing, flows, strict=True)]
    slots: dict[str, tuple[Tensor, float]] = {}
    with layers_built(record, loss.dtype):
        updates = parameter_updates(found, options, flowing, slots)
    if scale is not None:
        with labelled(Origin("loss_scale")):
            finite = all_finite(flowing)
            updates = [*kept_unless(finite, updates), *scale.updates(finite)]
        slots |= scale.slots
    with labelled(Origin("step")):
        updates.append((record.step, ops.add(record.step, 1)))
        updates.append((examples, ops.zeros_like(examples)))
    outputs = (("loss", loss), *penalties, *norm_outputs(options, flowing))
    graph = Graph((), outputs, tuple(updates))
    numbers = found.hyperparameters
    return finished(graph, rounding, found.trace, slots, found.untrained, hyperparameters=numbers)


def _gradient_of_batch(variable: Variable, sums: Sequence[_Sums]) -> Tensor:
    """The gradient of the loss of the whole batch, without penalties."""
    found = [
        one.of_batch(one.gradients[variable.name]) for one in sums if variable.name in one.gradients
    ]
    zeros = ops.cast(ops.zeros_like(variable.tensor), _wide(variable))
    return added(found) if found else zeros


def _wide(variable: Variable) -> DType:
    """The dtype of sums of a parameter's gradients."""
    return float32 if variable.tensor.dtype.is_half else variable.tensor.dtype
