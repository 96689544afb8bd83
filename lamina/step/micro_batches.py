"""Gradient accumulation: a training step whose batch is divided has two graphs.

One adds the gradients of a micro-batch to sums, which are states. The other one changes the
parameters from the sums. So a large batch needs the activations of a small one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lamina import ops
from lamina.base.garbage import without_collections
from lamina.base.records import frozen_dataclass
from lamina.base.remembered import remembered
from lamina.base.shapes import DType, float32, int64
from lamina.checks.origin import Origin, labelled
from lamina.graph import Graph, Tensor, leaf, rebuild, rewrite, topological
from lamina.inspect.bill import GRADIENT_SUM
from lamina.layers.scope import Variable
from lamina.learning.objective import Share, added
from lamina.learning.protocols import TrainingOptions
from lamina.ops.differentiate import gradients
from lamina.step.derive import (
    BatchGraph,
    BatchSpecs,
    Differentiable,
    differentiable,
    penalised,
    training_graph,
)
from lamina.step.loss_scaling import all_finite, kept_unless

# The names of states: the number of examples and the sum of losses of the micro-batches so far, and
# the number of all finished micro-batches, which is the key of their random numbers.
EXAMPLES, LOSS_SUM, MICRO_STEP = "examples", "loss_sum", "micro_step"
# The sum of the divisors of a term of the loss that is not divided by the number of examples.
DIVISOR_SUM = "divisor_sum"
# The name of the program of the update, for people.
UPDATE_NAME = "update"


@frozen_dataclass
class _Sums:
    """What a share of the loss is added up to over the micro-batches of a batch.

    Attributes:
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
        """The sums, without the sum of the divisors."""
        return (self.loss, *self.gradients.values())

    def terms(self, count: Tensor, gradients: Mapping[str, Tensor]) -> Sequence[Tensor]:
        """The loss and gradients of a micro-batch, which are summed; 0 if it has no elements."""
        # A mean of no elements is NaN.
        terms = (self.share.loss, *(gradients[name] for name in self.gradients))
        if self.share.divisor is None:
            return terms
        return [ops.where(count > 0, term, 0.0) for term in terms]

    def updates(
        self, is_first: Tensor, count: Tensor, terms: Sequence[Tensor]
    ) -> list[tuple[Tensor, Tensor]]:
        """The sums after one more micro-batch of so many examples, or so large a sum of weights."""
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


def _sums(traced: Differentiable, examples: Tensor) -> list[_Sums]:
    """The sums of each share of the loss."""
    sums: list[_Sums] = []
    for number, share in enumerate(traced.objective.shares):
        # Names without a number if there is one share: the usual case.
        suffix = f"/{number}" if number else ""
        reached = set(topological([share.loss]))
        gradients: dict[str, Tensor] = {}
        for variable in traced.trained:
            if variable.tensor in reached:
                name, shape = f"{variable.name}{suffix}/{GRADIENT_SUM}", variable.tensor.shape
                gradients[variable.name] = leaf(name, "state", shape, _wide(variable))
        loss = leaf(f"{LOSS_SUM}{suffix}", "state", (), share.loss.dtype)
        divisor = examples
        if share.divisor is not None:
            divisor = leaf(f"{DIVISOR_SUM}{suffix}", "state", (), share.divisor.dtype)
        sums.append(_Sums(share, loss, divisor, gradients))
    return sums


@remembered(lambda batch: batch.network)
@without_collections
def step_graphs(
    batch: BatchSpecs, options: TrainingOptions, *, divided: bool
) -> tuple[BatchGraph, BatchGraph | None]:
    """The graph of a training step; if batches are divided, of a micro-batch and the update.

    The graph of a micro-batch has the sums and the number of micro-batches as its slots. The update
    changes the parameters from the sums, and begins new ones. It has no inputs, the loss of the
    whole batch is its output, and its slots are the optimizer's.

    If a term of the loss is a mean, its gradients of micro-batches are weighted by their numbers of
    examples, or by the sums of weights by which it is divided; if it is a sum, they are added.
    Penalties count once.
    """
    if not divided:
        return training_graph(batch, options), None
    traced = differentiable(batch, options)
    examples = leaf(EXAMPLES, "state", (), int64)
    sums = _sums(traced, examples)
    return _micro_graph(traced, examples, sums), _update_graph(traced, examples, sums)


def _micro_graph(traced: Differentiable, examples: Tensor, sums: Sequence[_Sums]) -> BatchGraph:
    record, names = traced.trace.record, [variable.name for variable in traced.trained]
    by_share = [dict(zip(names, traced.gradients(group.share.loss), strict=True)) for group in sums]
    micro_step = leaf(MICRO_STEP, "state", (), int64)
    with labelled(Origin("accumulation")):
        count = ops.element_count(traced.trace.inputs[0], (0,), int64)
        is_first = ops.equal(examples, 0)
        updates = [(examples, examples + count)]
        finite: list[Tensor] = []
        for group, gradients_of in zip(sums, by_share, strict=True):
            weight = group.share.divisor
            terms = group.terms(count if weight is None else weight, gradients_of)
            finite += terms[1:]
            updates += group.updates(is_first, count if weight is None else weight, terms)
            if weight is not None:
                updates.append((group.divisor, ops.where(is_first, weight, group.divisor + weight)))
        changed = traced.new_states
        if traced.scale is not None and finite:
            changed = kept_unless(all_finite(finite), changed)
        updates += [*changed, (micro_step, ops.add(micro_step, 1))]
    outputs = (("loss", traced.objective.loss), *traced.objective.outputs)
    graph = Graph(traced.inputs, outputs, tuple(updates))

    def rule(node: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        # Each micro-batch draws random numbers of its own.
        return micro_step if node is record.step else rebuild(node, operands)

    states = [
        examples,
        *(state for group in sums for state in (*group.states, group.divisor)),
        micro_step,
    ]
    slots = {state.attributes["name"]: (state, 0.0) for state in states}
    graph = traced.batch.with_rounded_products(rewrite(graph, rule))
    return BatchGraph(graph, traced.trace, slots, traced.objective)


def _update_graph(traced: Differentiable, examples: Tensor, sums: Sequence[_Sums]) -> BatchGraph:
    penalties = traced.trace.record.penalties
    with labelled(Origin("accumulation")):
        loss = added([share.of_batch(share.loss) for share in sums])
        # The gradients of the loss of the whole batch, without penalties.
        of_batch: list[Tensor] = []
        for variable in traced.trained:
            name, zeros = variable.name, ops.cast(ops.zeros_like(variable.tensor), _wide(variable))
            shares = [share for share in sums if name in share.gradients]
            totals = [share.of_batch(share.gradients[name]) for share in shares]
            of_batch.append(added(totals) if totals else zeros)
    if penalties:
        penalty = penalised(ops.zeros_like(loss), penalties)
        with labelled(Origin("penalty")):
            loss = loss + penalty
            further = gradients(penalty, [variable.tensor for variable in traced.trained])
            pairs = zip(of_batch, further, strict=True)
            of_batch = [gradient + ops.cast(extra, gradient.dtype) for gradient, extra in pairs]
    step = traced.step(loss, of_batch)
    with labelled(Origin("step")):
        begun = examples, ops.zeros_like(examples)
    return replace(step, graph=replace(step.graph, updates=(*step.graph.updates, begun)))


def _wide(variable: Variable) -> DType:
    """The dtype of sums of a parameter's gradients."""
    return float32 if variable.tensor.dtype.is_half else variable.tensor.dtype
