"""From a network to the graph of one batch: for inference, for evaluation, or for training.

The graph of a training step contains forward pass, loss, penalties, gradients, clipping, optimizer
and new states. So the compiler optimises all of it together.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, cast, final

from lamina import ops
from lamina.base.garbage import without_collections
from lamina.base.records import frozen_dataclass
from lamina.base.remembered import remembered
from lamina.base.shapes import DType, float16, float32
from lamina.checks.origin import Origin, labelled
from lamina.errors import DefinitionError
from lamina.graph import Graph, Hyperparameters, Tensor, constant, leaf, topological
from lamina.layers.scope import Variable, layers_built
from lamina.layers.tracing import Trace
from lamina.learning.by_output import LossTerm
from lamina.learning.objective import TERMS, Objective, added, default_specs, loss_dtype, objective
from lamina.learning.protocols import (
    Clip,
    Loss,
    Metric,
    Optimizer,
    PerParameter,
    RateFunction,
    Spec,
    TrainingOptions,
    joins_parameters,
    matching,
    optimizers_by_name,
)
from lamina.ops.conversion import widened
from lamina.ops.differentiate import gradients, smoothly_depending
from lamina.step.loss_scaling import LossScale, all_finite, kept_unless, loss_scale
from lamina.step.names import NetworkDefinition
from lamina.step.precision import Rounding
from lamina.step.rounding import with_rounded_activations, with_rounded_products, with_tf32_products


@frozen_dataclass
class BatchSpecs:
    """What the graph of a batch is derived from: the network, and what the batch's arrays are.

    Attributes:
        input_dtypes: the dtypes of the data; none for the dtypes of the network's inputs.
        targets, weights: (shape with the batch, dtype) of each target, and of the weights of the
            examples.
    """

    network: NetworkDefinition
    dtype: DType
    rounding: Rounding | None = None
    input_dtypes: Sequence[DType] = ()
    targets: Sequence[Spec] = ()
    weights: Sequence[Spec] = ()

    def trace(self, *, training: bool) -> Trace:
        """The trace of the network, with rounded activations."""
        trace = self.network.trace(
            dtype=self.dtype, training=training, input_dtypes=self.input_dtypes
        )
        half = None if self.rounding is None else self.rounding.half
        return trace if half is None else with_rounded_activations(trace, half)

    def with_rounded_products(self, graph: Graph) -> Graph:
        """The graph, with rounded operands of products."""
        if self.rounding is None:
            return graph
        if self.rounding.half is None:
            return with_tf32_products(graph)
        return with_rounded_products(graph, self.rounding.half, leaves=self.rounding.leaves)


@frozen_dataclass
class BatchGraph:
    """The graph of one batch, and the meaning of its leaves.

    Attributes:
        graph: inputs are `"input0"`.., `"target0"`.. and `"weight0"`..; outputs `"output0"`.. for
            inference, otherwise `"loss"`, the objective's, and the `"penalty"` of layers if
            the loss has terms or weights.
        slots: for each state of the optimizer, `"1.weight/momentum"`, and of loss scaling: its
            tensor and first value.
    """

    graph: Graph
    trace: Trace
    slots: Mapping[str, tuple[Tensor, float]] = field(default_factory=dict[str, Any])
    objective: Objective | None = None
    hyperparameters: TrainingNumbers | None = None


@remembered(lambda batch: batch.network)
def inference_graph(batch: BatchSpecs) -> BatchGraph:
    """The forward pass in inference mode."""
    trace = batch.trace(training=False)
    outputs = tuple((f"output{n}", tensor) for n, tensor in enumerate(trace.outputs))
    return BatchGraph(batch.with_rounded_products(Graph(trace.inputs, outputs)), trace)


def _with_float32_outputs(trace: Trace) -> Trace:
    """The trace with results in float32 instead of floats of 16 bits, for losses and metrics."""
    # With 8 or 11 bits, sums over a batch would have few correct digits.
    return Trace(trace.inputs, tuple(map(widened, trace.outputs)), trace.record)


def default_targets(network: NetworkDefinition, loss: Loss, dtype: DType) -> tuple[Spec, ...]:
    """(shape with the batch, dtype) of each target that a loss expects, without data."""
    return tuple(spec for _, specs in targets_of_terms(network, loss, dtype) for spec in specs)


def targets_of_terms(
    network: NetworkDefinition, loss: Loss, dtype: DType
) -> list[tuple[LossTerm, tuple[Spec, ...]]]:
    """The targets that each term of a loss expects, where there is no data yet."""
    trace = _with_float32_outputs(network.trace(dtype=dtype, training=False))
    return default_specs(loss, trace.outputs, network.output_names)


@remembered(lambda batch: batch.network)
def evaluation_graph(
    batch: BatchSpecs, loss: Loss, metrics: Sequence[Metric] = (), *, training: bool = False
) -> BatchGraph:
    """The loss, without penalties, and the metrics of a batch; it updates nothing."""
    trace = _with_float32_outputs(batch.trace(training=training))
    with layers_built(trace.record, loss_dtype(trace)):
        objective = _objective(batch, trace, loss, metrics)
    outputs = (("loss", objective.loss), *objective.outputs)
    graph = Graph((*trace.inputs, *objective.leaves), outputs)
    return BatchGraph(batch.with_rounded_products(graph), trace, objective=objective)


def _objective(
    batch: BatchSpecs, trace: Trace, loss: Loss, metrics: Sequence[Metric], classes: Any = None
) -> Objective:
    names = batch.network.output_names
    return objective(loss, metrics, trace, names, batch.targets, batch.weights, classes)


@without_collections
def training_graph(batch: BatchSpecs, options: TrainingOptions) -> BatchGraph:
    """The graph of a training step.

    The reported loss includes the layers' penalties. The gradients of frozen parameters are not
    computed, and they have no state.
    """
    traced = differentiable(batch, options)
    loss = penalised(traced.objective.loss, traced.trace.record.penalties)
    return traced.step(
        loss,
        traced.gradients(loss),
        inputs=traced.inputs,
        outputs=traced.objective.outputs,
        states=traced.new_states,
    )


# The name of a learning rate; those in `lm.ByPath` are `"rate:*.bias"`.
RATE = "rate"


@final
class TrainingNumbers(Hyperparameters):
    """The hyper-parameters of a training step, and which of them are learning rates.

    A function of the training step is multiplied by a hyper-parameter, which is 1.

    Attributes:
        rates: by name the optimizer, whose rate is a number or a function, and the name of the
            hyper-parameter that is this rate or its factor.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rates: dict[str, tuple[Any, str]] = {}
        self._joining: dict[int, Any] = {}

    def _named(self, value: Any, name: str, keys: tuple[str, ...]) -> Any:
        if not joins_parameters(value):
            return super()._named(value, name, keys)
        # One that stands in several fields updates one vector.
        if id(value) not in self._joining:
            self._joining[id(value)] = super()._named(value, name, keys)
        return self._joining[id(value)]

    def _field(self, record: Any, field: str, name: str, keys: tuple[str, ...]) -> Any:
        new = super()._field(record, field, name, keys)
        if field != RATE or not hasattr(record, "update"):
            return new
        self.rates[":".join((RATE, *keys))] = record, name
        return _Scaled(new, self.number(1.0, name)) if callable(new) else new


@frozen_dataclass
class _Scaled:
    """A function of the training step, times a hyper-parameter."""

    function: RateFunction
    factor: float

    def __call__(self, step: Tensor) -> Any:
        value = self.function(step)
        if isinstance(value, int | float):
            value = constant(value, step.dtype)
        return value * self.factor if isinstance(value, Tensor) else value


@frozen_dataclass
class Differentiable:
    """The loss of a batch, and all that gradients and updates of parameters need."""

    batch: BatchSpecs
    options: TrainingOptions
    trace: Trace
    objective: Objective
    trained: Sequence[Variable]
    optimizers: Mapping[str, Optimizer]
    scale: LossScale | None
    hyperparameters: TrainingNumbers

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Inputs of the network, targets and weights."""
        return (*self.trace.inputs, *self.objective.leaves)

    @property
    def new_states(self) -> list[tuple[Tensor, Tensor]]:
        """The states of the layers, and their new values."""
        record = self.trace.record
        return [(record.states[name].tensor, new) for name, new in record.updates.items()]

    def gradients(self, loss: Tensor) -> Sequence[Tensor]:
        """The gradient of a loss for each trained parameter."""
        scale, trained = self.scale, [variable.tensor for variable in self.trained]
        if scale is None:
            return gradients(loss, trained)
        scaled = gradients(loss * scale.scale, trained)
        with labelled(Origin("loss_scale")):
            return [gradient * ops.reciprocal(scale.scale) for gradient in scaled]

    def step(
        self,
        loss: Tensor,
        gradients: Sequence[Tensor],
        *,
        inputs: tuple[Tensor, ...] = (),
        outputs: Sequence[tuple[str, Tensor]] = (),
        states: Sequence[tuple[Tensor, Tensor]] = (),
    ) -> BatchGraph:
        """The graph that ends a training step: from loss and gradients to all new values."""
        record, scale = self.trace.record, self.scale
        slots: dict[str, tuple[Tensor, float]] = {}
        with layers_built(record, loss.dtype):
            updates = [*_parameter_updates(self, gradients, slots), *states]
        if scale is not None:
            with labelled(Origin("loss_scale")):
                finite = all_finite(gradients)
                updates = [*kept_unless(finite, updates), *scale.updates(finite)]
            slots |= scale.slots
        with labelled(Origin("step")):
            updates.append((record.step, ops.add(record.step, 1)))
        outputs = [("loss", loss), *outputs]
        penalties, objective = record.penalties, self.objective
        if penalties and any(name.startswith(TERMS) for name, _ in objective.outputs):
            # The loss has terms or divisors without penalties.
            outputs.append(("penalty", penalised(ops.zeros_like(objective.loss), penalties)))
        if self.options.gradient_norm:
            outputs.append((GRADIENT_NORM, _norm(gradients)))
        graph = self.batch.with_rounded_products(Graph(inputs, tuple(outputs), tuple(updates)))
        return BatchGraph(graph, self.trace, slots, self.objective, self.hyperparameters)


def differentiable(batch: BatchSpecs, options: TrainingOptions) -> Differentiable:
    """The loss of a batch, and the parameters that are trained; raises as `training_graph`."""
    trace = _with_float32_outputs(batch.trace(training=True))
    record, names = trace.record, list(trace.record.parameters)
    excluded = {name for pattern in options.frozen for name in matching(pattern, names, "frozen")}
    numbers = TrainingNumbers()
    numbers.leaves |= record.hyperparameters.leaves
    optimizers = optimizers_by_name(numbers.of(options.optimizer, "optimizer"), names)
    with layers_built(record, loss_dtype(trace)):
        objective = _objective(batch, trace, options.loss, options.metrics, options.class_weights)
    loss = penalised(objective.loss, record.penalties)
    trained = _trained(loss, record.parameters.values(), excluded, options.frozen)
    is_scaled = batch.rounding is not None and batch.rounding.half == float16
    scale = loss_scale() if is_scaled else None
    return Differentiable(batch, options, trace, objective, trained, optimizers, scale, numbers)


def penalised(loss: Tensor, penalties: Sequence[Tensor]) -> Tensor:
    """The loss with penalties added."""
    with labelled(Origin("penalty")):
        for penalty in penalties:
            loss = ops.add(loss, ops.cast(penalty, loss.dtype))
    return loss


def _parameter_updates(
    batch: Differentiable, gradients: Sequence[Tensor], slots: dict[str, tuple[Tensor, float]]
) -> list[tuple[Tensor, Tensor]]:
    """The new values of parameters and of the optimizer's state, which enters the slots."""
    record, scale, clip = batch.trace.record, batch.scale, batch.options.clip
    applied = record.step
    if scale is not None:
        with labelled(Origin("loss_scale")):
            # Skipped training steps do not count for the optimizer.
            applied = record.step - scale.skipped
    if clip is not None:
        with labelled(Origin("clip")):
            gradients = _clipped(batch.hyperparameters.of(clip, "clip"), gradients)
    updates: list[tuple[Tensor, Tensor]] = []
    joined: dict[int, list[tuple[Variable, Tensor]]] = {}
    for variable, gradient in zip(batch.trained, gradients, strict=True):
        optimizer = batch.optimizers[variable.name]
        if joins_parameters(optimizer):
            joined.setdefault(id(optimizer), []).append((variable, gradient))
            continue
        parameter = variable.tensor
        with labelled(Origin(f"{parameter.origin.path}/update")):
            new, after = updated(optimizer, variable.name, parameter, gradient, applied, slots)
        updates += [(parameter, new), *after]
    for number, group in enumerate(joined.values()):
        optimizer, path = batch.optimizers[group[0][0].name], f"joined{number or ''}"
        # The optimizer takes these parameters as one vector.
        with labelled(Origin("update")):
            parameters = [variable.tensor for variable, _ in group]
            flat = [ops.reshape(tensor, (-1,)) for tensor in parameters]
            together = ops.concat([ops.reshape(gradient, (-1,)) for _, gradient in group], 0)
            vector = ops.concat(flat, 0)
            new, after = updated(optimizer, path, vector, together, applied, slots)
            parts = ops.split(new, [tensor.shape[0] for tensor in flat], 0)
            pairs = zip(parameters, parts, strict=True)
            updates += [*((old, ops.reshape(part, old.shape)) for old, part in pairs), *after]
    return updates


# The name of the output that is the norm of all gradients, before they are clipped.
GRADIENT_NORM = "gradient_norm"


def _norm(gradients: Sequence[Tensor]) -> Tensor:
    """The norm of all gradients together."""
    with labelled(Origin(GRADIENT_NORM)):
        return ops.sqrt(added([ops.sum(wide * wide) for wide in map(widened, gradients)]))


def _trained(
    loss: Tensor, variables: Iterable[Variable], excluded: Collection[str], frozen: Sequence[str]
) -> list[Variable]:
    """The parameters that are trained: a gradient reaches them, and no pattern excludes them."""
    reached = set(topological([loss]))
    reachable = [variable for variable in variables if variable.tensor in reached]
    trained = [variable for variable in reachable if variable.name not in excluded]
    if not reachable:
        raise DefinitionError(
            "there is nothing to train: the loss depends on no parameter",
            advice="Add a layer with parameters, such as lm.Linear, or check the loss function.",
        )
    if not trained:
        parameters = ", ".join(variable.name for variable in reachable)
        raise DefinitionError(
            "there is nothing to train: all parameters on which the loss depends are frozen",
            facts=(("frozen", ", ".join(map(repr, frozen))), ("parameters", parameters)),
            advice="Leave some parameters out of `frozen`.",
        )
    if loss not in smoothly_depending(loss, {variable.tensor for variable in trained}):
        raise DefinitionError(
            "there is nothing to train: no gradient of the loss reaches a parameter",
            facts=(("found", "comparisons, casts or indices between the loss and all of them"),),
            advice="Use a differentiable loss: lm.CrossEntropy() instead of an accuracy.",
        )
    return trained


def _clipped(clip: Clip, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
    clipped: object = clip(gradients)
    types = [
        (result.shape, result.dtype) if isinstance(result, Tensor) else None
        for result in (cast(Sequence[object], clipped) if isinstance(clipped, list | tuple) else ())
    ]
    if types != [(gradient.shape, gradient.dtype) for gradient in gradients]:
        expected = f"{len(gradients)} tensors of the same shapes and dtypes"
        raise DefinitionError(
            "the clipping function does not return one gradient for each gradient",
            facts=(("expected", expected), ("found", reprlib.repr(clipped))),
            where="clip",
            advice="It takes a list of tensors and returns a list, like lm.ClipGlobalNorm(1.0).",
        )
    return cast(Sequence[Tensor], clipped)


def updated(
    optimizer: Optimizer,
    path: str,
    parameter: Tensor,
    gradient: Tensor,
    step: Tensor,
    slots: dict[str, tuple[Tensor, float]],
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """The new value of a parameter, or of several as one vector; `slots` receives the states."""
    states: dict[str, Tensor] = {}
    for name, first in optimizer.slots().items():
        full = f"{path}/{name}"
        if isinstance(first, PerParameter):
            shape, value = (), first.first
        else:
            shape, value = parameter.shape, first
        states[name] = leaf(full, "state", shape, parameter.dtype)
        slots[full] = (states[name], value)
    # Optimizers compute in float32, also with floats of 16 bits; new values are rounded once.
    wide = float32 if parameter.dtype.is_half else parameter.dtype
    before = {name: ops.cast(tensor, wide) for name, tensor in states.items()}
    new, new_slots = optimizer.update(
        ops.cast(parameter, wide), ops.cast(gradient, wide), before, step
    )
    after = [(states[name], ops.cast(new_slots[name], parameter.dtype)) for name in states]
    return ops.cast(new, parameter.dtype), after
