"""From a network to the graph of one batch: for inference, for evaluation, or for training.

The graph of a training step contains forward pass, loss, penalties, gradients, clipping, optimizer
and new states. So the compiler optimises all of it together.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast, final

from lamina import ops
from lamina.base.garbage import without_collections
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import DType, float16, float32
from lamina.errors import DefinitionError
from lamina.graph import (
    Graph,
    Hyperparameters,
    Origin,
    Tensor,
    constant,
    labelled,
    leaf,
    topological,
)
from lamina.layers.scope import Variable, layers_built
from lamina.layers.tracing import Trace
from lamina.learning.by_output import LossTerm
from lamina.learning.objective import TERMS, Objective, default_specs, loss_dtype, objective
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
from lamina.ops.differentiate import gradients, smoothly_depending
from lamina.step.loss_scaling import LossScale, all_finite, kept_unless, loss_scale
from lamina.step.precision import Rounding
from lamina.step.rounding import (
    with_rounded_activations,
    with_rounded_products,
    with_tf32_products,
)


class Traceable(Protocol):
    """The part of a network that this file needs."""

    @property
    def output_names(self) -> tuple[str, ...]: ...

    def trace(
        self, *, dtype: DType, training: bool, input_dtypes: Sequence[DType] | None = None
    ) -> Trace: ...


@frozen_dataclass
class BatchGraph:
    """The graph of one batch, and the meaning of its leaves.

    Attributes:
        graph: inputs are `"input0"`.., `"target0"`.. and `"weight0"`..; outputs `"output0"`.. for
            inference, otherwise `"loss"`, those of the objective, and the `"penalty"` of layers if
            the loss has terms or weights.
        trace: the trace of the network.
        slots: for each state of the optimizer, `"1.weight/momentum"`, and of loss scaling: its
            tensor and first value.
        untrained: parameters that are not updated: frozen ones, and those that the loss does not
            depend on.
        objective: the losses and metrics; None for inference.
        hyperparameters: of a training step. Those that are leaves are never updated.
    """

    graph: Graph
    trace: Trace
    slots: Mapping[str, tuple[Tensor, float]]
    untrained: tuple[str, ...] = ()
    objective: Objective | None = None
    hyperparameters: TrainingNumbers | None = None


def inference_graph(
    network: Traceable,
    *,
    dtype: DType,
    input_dtypes: Sequence[DType] | None = None,
    rounding: Rounding | None = None,
) -> BatchGraph:
    """The forward pass in inference mode.

    Args:
        network: the definition.
        dtype: the float type of the parameters.
        input_dtypes: of the data; by default the dtypes of the network's inputs.
        rounding: what is rounded; None for nothing.
    """
    trace = _traced(network, dtype, rounding, training=False, input_dtypes=input_dtypes)
    outputs = tuple((f"output{n}", tensor) for n, tensor in enumerate(trace.outputs))
    return finished(Graph(trace.inputs, outputs), rounding, trace)


def _traced(
    network: Traceable,
    dtype: DType,
    rounding: Rounding | None,
    *,
    training: bool,
    input_dtypes: Sequence[DType] | None,
) -> Trace:
    trace = network.trace(dtype=dtype, training=training, input_dtypes=input_dtypes)
    half = None if rounding is None else rounding.half
    return trace if half is None else with_rounded_activations(trace, half)


def _compared(trace: Trace) -> Trace:
    """The trace with results in float32 instead of floats of 16 bits, for losses and metrics.

    With 8 or 11 bits, sums over a batch would have few correct digits.
    """
    outputs = tuple(
        ops.cast(tensor, float32) if tensor.dtype.is_half else tensor for tensor in trace.outputs
    )
    return Trace(trace.inputs, outputs, trace.record)


def finished(
    graph: Graph,
    rounding: Rounding | None,
    trace: Trace,
    slots: Mapping[str, tuple[Tensor, float]] | None = None,
    untrained: tuple[str, ...] = (),
    objective: Objective | None = None,
    hyperparameters: TrainingNumbers | None = None,
) -> BatchGraph:
    """The graph of a batch, in which the operands of products are rounded."""
    if rounding is not None and rounding.half is not None:
        graph = with_rounded_products(graph, rounding.half, leaves=rounding.leaves)
    elif rounding is not None:
        graph = with_tf32_products(graph)
    return BatchGraph(graph, trace, slots or {}, untrained, objective, hyperparameters)


def default_targets(network: Traceable, loss: Loss, dtype: DType) -> tuple[Spec, ...]:
    """The targets that a loss expects, where there is no data yet.

    Returns:
        (shape with the batch, dtype) of each target; none for a loss without targets.
    """
    return tuple(spec for _, specs in targets_of_terms(network, loss, dtype) for spec in specs)


def targets_of_terms(
    network: Traceable, loss: Loss, dtype: DType
) -> list[tuple[LossTerm, tuple[Spec, ...]]]:
    """The targets that each term of a loss expects, where there is no data yet."""
    trace = _compared(network.trace(dtype=dtype, training=False))
    return default_specs(loss, trace.outputs, network.output_names)


def evaluation_graph(
    network: Traceable,
    loss: Loss,
    targets: Sequence[Spec],
    *,
    dtype: DType,
    metrics: Sequence[Metric] = (),
    weights: Sequence[Spec] = (),
    input_dtypes: Sequence[DType] | None = None,
    rounding: Rounding | None = None,
    training: bool = False,
) -> BatchGraph:
    """The loss, without penalties, and the metrics of a batch; it updates nothing.

    Args:
        weights: (shape with the batch, dtype) of the examples' weights, if they have any.
        training: trace the layers in training mode instead of inference mode.
    """
    trace = _traced(network, dtype, rounding, training=training, input_dtypes=input_dtypes)
    trace = _compared(trace)
    with layers_built(trace.record, loss_dtype(trace)):
        found = objective(loss, metrics, trace, network.output_names, targets, weights)
    outputs = (("loss", found.loss), *found.outputs)
    graph = Graph((*trace.inputs, *found.leaves), outputs)
    return finished(graph, rounding, trace, objective=found)


@without_collections
def training_graph(
    network: Traceable,
    options: TrainingOptions,
    targets: Sequence[Spec],
    *,
    dtype: DType,
    weights: Sequence[Spec] = (),
    input_dtypes: Sequence[DType] | None = None,
    rounding: Rounding | None = None,
) -> BatchGraph:
    """The graph of a training step.

    The reported loss includes the layers' penalties. The gradients of frozen parameters are not
    computed, and they have no state.

    Args:
        targets: (shape with the batch, dtype) of each target.
        dtype: the float type of the model.
        weights: (shape with the batch, dtype) of the examples' weights, if they have any.
        input_dtypes: of the data; by default the dtypes of the network's inputs.
        rounding: what is rounded; None for nothing.

    Raises:
        DefinitionError: if there is nothing to train, or a pattern matches no parameter.
        ShapeError: if the loss is not a single number.
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
    record, scale = found.trace.record, found.scale
    loss = penalised(found.objective.loss, record.penalties)
    flowing, finite = found.flowing(loss), None
    if scale is not None:
        with labelled(Origin("loss_scale")):
            finite = all_finite(flowing)
    slots: dict[str, tuple[Tensor, float]] = {}
    with layers_built(record, loss.dtype):
        updates = parameter_updates(found, options, flowing, slots)
    for name, new in record.updates.items():
        updates.append((record.states[name].tensor, new))
    if scale is not None and finite is not None:
        with labelled(Origin("loss_scale")):
            updates = [*kept_unless(finite, updates), *scale.updates(finite)]
        slots |= scale.slots
    with labelled(Origin("step")):
        updates.append((record.step, ops.add(record.step, 1)))
    outputs = (
        ("loss", loss),
        *found.objective.outputs,
        *penalty_outputs(found.objective, record.penalties),
        *norm_outputs(options, flowing),
    )
    graph = Graph(found.inputs, outputs, tuple(updates))
    trace, untrained = found.trace, found.untrained
    return finished(
        graph, rounding, trace, slots, untrained, found.objective, found.hyperparameters
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
class Differentiated:
    """The loss of a batch, and what its gradients need.

    Attributes:
        trace: of the network, in training mode.
        objective: losses and metrics, without penalties.
        trained: the parameters that are trained.
        chosen: the optimizer of each parameter, by name.
        scale: the state of loss scaling, if the loss is scaled.
        hyperparameters: of the optimizers, and of penalties.
    """

    trace: Trace
    objective: Objective
    trained: Sequence[Variable]
    chosen: Mapping[str, Optimizer]
    scale: LossScale | None
    hyperparameters: TrainingNumbers

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Inputs of the network, targets and weights."""
        return (*self.trace.inputs, *self.objective.leaves)

    @property
    def untrained(self) -> tuple[str, ...]:
        """The names of the parameters that are not updated."""
        trained = {variable.name for variable in self.trained}
        return tuple(name for name in self.trace.record.parameters if name not in trained)

    def flowing(self, loss: Tensor) -> Sequence[Tensor]:
        """The gradient of a loss for each trained parameter."""
        scale, trained = self.scale, [one.tensor for one in self.trained]
        if scale is None:
            return gradients(loss, trained)
        found = gradients(loss * scale.scale, trained)
        with labelled(Origin("loss_scale")):
            return scale.unscaled(found)


def differentiated(
    network: Traceable,
    options: TrainingOptions,
    targets: Sequence[Spec],
    *,
    dtype: DType,
    weights: Sequence[Spec],
    input_dtypes: Sequence[DType] | None,
    rounding: Rounding | None,
) -> Differentiated:
    """The loss of a batch, and the parameters that are trained; arguments of `training_graph`."""
    trace = _compared(_traced(network, dtype, rounding, training=True, input_dtypes=input_dtypes))
    record, names = trace.record, list(trace.record.parameters)
    excluded = {name for one in options.frozen for name in matching(one, names, "frozen")}
    numbers = TrainingNumbers()
    numbers.leaves |= record.hyperparameters.leaves
    chosen = optimizers_by_name(numbers.of(options.optimizer, "optimizer"), names)
    with layers_built(record, loss_dtype(trace)):
        found = objective(
            options.loss,
            options.metrics,
            trace,
            network.output_names,
            targets,
            weights,
            options.class_weights,
        )
    whole = penalised(found.loss, record.penalties)
    trained = _trained(whole, record.parameters.values(), excluded, options.frozen)
    scale = loss_scale() if rounding is not None and rounding.half == float16 else None
    return Differentiated(trace, found, trained, chosen, scale, numbers)


def penalised(loss: Tensor, penalties: Sequence[Tensor]) -> Tensor:
    """The loss with penalties added."""
    with labelled(Origin("penalty")):
        for penalty in penalties:
            loss = ops.add(loss, ops.cast(penalty, loss.dtype))
    return loss


def penalty_outputs(
    found: Objective, penalties: Sequence[Tensor]
) -> tuple[tuple[str, Tensor], ...]:
    """The penalties as an output, if the loss has terms or divisors, which do not have them."""
    if not penalties or not any(name.startswith(TERMS) for name, _ in found.outputs):
        return ()
    return (("penalty", penalised(ops.zeros_like(found.loss), penalties)),)


def parameter_updates(
    found: Differentiated,
    options: TrainingOptions,
    flowing: Sequence[Tensor],
    slots: dict[str, tuple[Tensor, float]],
) -> list[tuple[Tensor, Tensor]]:
    """The new values of parameters and of the optimizer's state, which enters the slots."""
    record, scale = found.trace.record, found.scale
    applied = record.step
    if scale is not None:
        with labelled(Origin("loss_scale")):
            # Skipped training steps do not count for the optimizer.
            applied = record.step - scale.skipped
    if options.clip is not None:
        with labelled(Origin("clip")):
            flowing = _clipped(found.hyperparameters.of(options.clip, "clip"), flowing)
    updates: list[tuple[Tensor, Tensor]] = []
    joined: dict[int, list[tuple[Variable, Tensor]]] = {}
    for variable, gradient in zip(found.trained, flowing, strict=True):
        optimizer = found.chosen[variable.name]
        if joins_parameters(optimizer):
            joined.setdefault(id(optimizer), []).append((variable, gradient))
            continue
        parameter = variable.tensor
        with labelled(Origin(f"{parameter.origin.path}/update")):
            new, after = updated(optimizer, variable.name, parameter, gradient, applied, slots)
        updates += [(parameter, new), *after]
    for number, group in enumerate(joined.values()):
        optimizer, path = found.chosen[group[0][0].name], f"joined{number or ''}"
        with labelled(Origin("update")):
            updates += _updated_together(optimizer, path, group, applied, slots)
    return updates


# The name of the output that is the norm of all gradients, before they are clipped.
GRADIENT_NORM = "gradient_norm"


def norm_outputs(
    options: TrainingOptions, flowing: Sequence[Tensor]
) -> tuple[tuple[str, Tensor], ...]:
    """The norm of all gradients as an output, if it is wanted."""
    if not options.gradient_norm:
        return ()
    with labelled(Origin(GRADIENT_NORM)):
        wide = [ops.cast(one, float32) if one.dtype.is_half else one for one in flowing]
        squares = [ops.sum(one * one) for one in wide]
        total = squares[0]
        for square in squares[1:]:
            total = total + square
        return ((GRADIENT_NORM, ops.sqrt(total)),)


def _trained(
    loss: Tensor, variables: Iterable[Variable], excluded: Collection[str], frozen: Sequence[str]
) -> list[Variable]:
    """The parameters that are trained.

    Args:
        loss: with penalties.
        variables: all parameters.
        excluded: the names of frozen parameters.
        frozen: the patterns that these names match, for errors.

    Raises:
        DefinitionError: if there are none, or no gradient reaches any of them.
    """
    reached = set(topological([loss]))
    reachable = [variable for variable in variables if variable.tensor in reached]
    trained = [variable for variable in reachable if variable.name not in excluded]
    if not reachable:
        raise DefinitionError(
            "there is nothing to train: the loss depends on no parameter",
            advice="Add a layer with parameters, such as lm.Linear, or check the loss function.",
        )
    if not trained:
        raise DefinitionError(
            "there is nothing to train: all parameters on which the loss depends are frozen",
            facts=(
                ("frozen", ", ".join(map(repr, frozen))),
                ("parameters", ", ".join(variable.name for variable in reachable)),
            ),
            advice="Leave some parameters out of `frozen`.",
        )
    if loss not in smoothly_depending(loss, {variable.tensor for variable in trained}):
        raise DefinitionError(
            "there is nothing to train: no gradient of the loss reaches a parameter",
            facts=(("found", "comparisons, casts or indices between the loss and all of them"),),
            advice="Use a differentiable loss: lm.CrossEntropy() instead of an accuracy.",
        )
    return trained


def _clipped(clip: Clip, flowing: Sequence[Tensor]) -> Sequence[Tensor]:
    """The clipped gradients.

    Raises:
        DefinitionError: if their number, shapes or dtypes differ from the gradients'.
    """
    found: object = clip(flowing)
    types = [
        (one.shape, one.dtype) if isinstance(one, Tensor) else None
        for one in (cast(Sequence[object], found) if isinstance(found, list | tuple) else ())
    ]
    if types != [(one.shape, one.dtype) for one in flowing]:
        raise DefinitionError(
            "the clipping function does not return one gradient for each gradient",
            facts=(
                ("expected", f"{len(flowing)} tensors of the same shapes and dtypes"),
                ("found", reprlib.repr(found)),
            ),
            where="clip",
            advice="It takes a list of tensors and returns a list, like lm.ClipGlobalNorm(1.0).",
        )
    return cast(Sequence[Tensor], found)


def updated(
    optimizer: Optimizer,
    path: str,
    parameter: Tensor,
    gradient: Tensor,
    step: Tensor,
    slots: dict[str, tuple[Tensor, float]],
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """The new value of a parameter, or of several as one vector, and of the optimizer's state.

    Args:
        optimizer: of the parameter.
        path: the first part of the names of the states.
        parameter, gradient: of equal shapes.
        step: the number of finished training steps.
        slots: receives the states with their first values, by name.
    """
    own: dict[str, Tensor] = {}
    for name, first in optimizer.slots().items():
        full = f"{path}/{name}"
        if isinstance(first, PerParameter):
            shape, value = (), first.first
        else:
            shape, value = parameter.shape, first
        own[name] = leaf(full, "state", shape, parameter.dtype)
        slots[full] = (own[name], value)
    # Optimizers compute in float32, also with floats of 16 bits; new values are rounded once.
    wide = float32 if parameter.dtype.is_half else parameter.dtype
    before = {name: ops.cast(tensor, wide) for name, tensor in own.items()}
    new, new_slots = optimizer.update(
        ops.cast(parameter, wide), ops.cast(gradient, wide), before, step
    )
    after = [(own[name], ops.cast(new_slots[name], parameter.dtype)) for name in own]
    return ops.cast(new, parameter.dtype), after


def _updated_together(
    optimizer: Optimizer,
    path: str,
    group: Sequence[tuple[Variable, Tensor]],
    step: Tensor,
    slots: dict[str, tuple[Tensor, float]],
) -> list[tuple[Tensor, Tensor]]:
    """The new values of parameters that an optimizer takes as one vector, and of its state."""
    parameters = [variable.tensor for variable, _ in group]
    flat = [ops.reshape(tensor, (-1,)) for tensor in parameters]
    flowing = ops.concat([ops.reshape(gradient, (-1,)) for _, gradient in group], 0)
    new, after = updated(optimizer, path, ops.concat(flat, 0), flowing, step, slots)
    parts = ops.split(new, [one.shape[0] for one in flat], 0)
    pairs = zip(parameters, parts, strict=True)
    return [*((one, ops.reshape(part, one.shape)) for one, part in pairs), *after]
