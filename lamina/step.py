"""From a network to the graph of one step: inference, evaluation, or training.

The training step is derived here: forward, loss, penalties, gradients, clipping, optimizer, state.
It is one graph, so that the compiler sees all of it at once.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, Protocol, cast

from lamina import ops
from lamina.errors import DataError, DefinitionError, ShapeError
from lamina.garbage import without_collections
from lamina.graph import Graph, Origin, Tensor, described, labelled, leaf, topological
from lamina.graph.kinds import HIGHEST, Kind, Misfit, Operands, Whole
from lamina.layers.scope import Variable
from lamina.layers.tracing import Trace
from lamina.ops.differentiate import gradients, smoothly_depending
from lamina.records import frozen_dataclass
from lamina.shapes import DType, Shape, as_whole, shape_text

# Called with the prediction (a tuple where the network has several outputs) and the target.
Loss = Callable[[Any, Any], Tensor]
Clip = Callable[[Sequence[Tensor]], Sequence[Tensor]]
Spec = tuple[Shape, DType]

# The state of an optimizer that holds the average of a parameter over steps has this name.
AVERAGE = "average"


@frozen_dataclass
class PerParameter:
    """A state of one number for each parameter, instead of one for each of its elements.

    Attributes:
        first: its first value.
    """

    first: float


class Optimizer(Protocol):
    """How a parameter follows its gradient; see `lamina.training.optimizers`.

    One that treats parameters differently also has `for_parameters(names)`: names -> optimizers.
    """

    def slots(self) -> Mapping[str, float | PerParameter]:
        """The state kept for each parameter, in its shape, with its first value."""
        ...

    def update(
        self, parameter: Tensor, gradient: Tensor, slots: Mapping[str, Tensor], step: Tensor
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The new parameter and the new state; `step` (0-d int64) counts finished steps."""
        ...


class Metric(Protocol):
    """What is measured beside the loss; see `lamina.training.metrics`."""

    def statistics(self, prediction: Any, target: Any) -> Mapping[str, Tensor]:
        """Sums over the batch, which add up over batches."""
        ...


class _BatchSize(Kind):
    """How many examples a batch has."""

    def read(self, value: Any, operands: Operands = ()) -> int:
        if (as_whole(value) or 0) > HIGHEST:
            raise Misfit(
                "{name} < 2**63", problem="a batch has more examples than can be counted in 64 bits"
            )
        try:
            return _EXAMPLES.read(value)
        except Misfit:
            raise Misfit(
                "{name} >= 1",
                problem="a batch has at least one example",
                advice="The batch size is a whole number.",
            ) from None


_EXAMPLES = Whole(1)


BatchSize = Annotated[int, _BatchSize()]


def check_loss(loss: object, outputs: int) -> None:
    """Raises DefinitionError for what is no loss, or none for a network with so many outputs."""
    if isinstance(loss, type) or not callable(loss):
        raise _wrong_part("loss", "lm.CrossEntropy(), or a function of (prediction, target)", loss)
    # Lamina's losses say what targets they want; most compare one output with one target.
    if outputs > 1 and hasattr(loss, "target") and not getattr(loss, "takes_several", False):
        raise DefinitionError(
            "this loss compares one output with one target",
            facts=(("outputs", str(outputs)), ("loss", repr(loss))),
            where="loss",
            advice="Write a function: lambda outputs, targets: lm.MSE()(outputs[0], targets[0]) "
            "+ lm.MSE()(outputs[1], targets[1]).",
        )


def half_a_training(loss: object, optimizer: object, where: str) -> DefinitionError:
    """The error for a loss without an optimizer, or the other way round."""
    return DefinitionError(
        "a training step needs both a loss and an optimizer",
        facts=(("loss", repr(loss)), ("optimizer", repr(optimizer))),
        where=where,
        advice="Give both, or neither for inference.",
    )


def check_optimizer(optimizer: object, where: str = "") -> None:
    """Raises DefinitionError for what is no optimizer."""
    # Dicts have an `update` as well.
    methods = [getattr(optimizer, name, None) for name in ("slots", "update")]
    if isinstance(optimizer, type) or not all(map(callable, methods)):
        raise _wrong_part("optimizer", "lm.Adam(1e-3)", optimizer, where)


def optimizers_by_name(optimizer: Optimizer, names: Sequence[str]) -> Mapping[str, Optimizer]:
    """The optimizer of each parameter, by the parameter's name."""
    choose: Callable[[Sequence[str]], Mapping[str, Optimizer]] | None
    choose = getattr(optimizer, "for_parameters", None)
    return dict.fromkeys(names, optimizer) if choose is None else choose(names)


def matching(pattern: str, names: Sequence[str], where: str) -> list[str]:
    """The names of parameters that fit a pattern such as `"0.*"` or `"*.bias"`.

    Raises:
        DefinitionError: if none does.
    """
    found = [name for name in names if fnmatchcase(name, pattern)]
    if not found:
        raise DefinitionError(
            "a pattern fits no parameter",
            facts=(("pattern", repr(pattern)), ("parameters", ", ".join(names) or "none")),
            where=where,
            advice="A star stands for any text: '1.*' is all of layer 1, '*.bias' every bias.",
        )
    return found


def check_frozen(frozen: object) -> None:
    """Raises DefinitionError for what is no sequence of patterns."""
    listed = cast(Sequence[object], frozen) if isinstance(frozen, list | tuple) else [None]
    if not all(isinstance(one, str) for one in listed):
        raise DefinitionError(
            "the frozen parameters are given as a list of patterns",
            facts=(("expected", "['0.*', '2.weight']"), ("found", repr(cast(object, frozen)))),
            where="frozen",
        )


def check_metrics(metrics: object) -> None:
    """Raises DefinitionError for what is no sequence of metrics."""
    if not isinstance(metrics, list | tuple):
        raise _wrong_part("list of metrics", "[lm.Accuracy()]", metrics)
    for metric in cast(Sequence[object], metrics):
        if isinstance(metric, type) or not hasattr(metric, "statistics"):
            raise _wrong_part("metric", "lm.Accuracy()", metric)


def check_callbacks(callbacks: object) -> None:
    """Raises DefinitionError for what is no sequence of functions."""
    listed = cast(Sequence[object], callbacks) if isinstance(callbacks, list | tuple) else [None]
    if not all(callable(one) for one in listed):
        expected = "[a function of the history]"
        raise _wrong_part("list of callbacks", expected, cast(object, callbacks))


def check_clip(clip: object) -> None:
    """Raises DefinitionError for what clips no gradients."""
    if clip is not None and (isinstance(clip, type) or not callable(clip)):
        raise _wrong_part("way to clip gradients", "lm.ClipGlobalNorm(1.0)", clip)


def _wrong_part(part: str, expected: str, found: object, where: str = "") -> DefinitionError:
    made = isinstance(found, type)
    return DefinitionError(
        f"this is no {part}",
        facts=(("expected", expected), ("found", repr(found))),
        where=where or part.split()[-1],
        advice=f"Make one of the class: {found.__name__}(...)." if made else "",
    )


class Traceable(Protocol):
    """A network, as far as this file needs one."""

    def trace(
        self, *, dtype: DType, training: bool, input_dtypes: Sequence[DType] | None = None
    ) -> Trace: ...


@frozen_dataclass
class StepGraph:
    """The graph of a step, and what its leaves stand for.

    Attributes:
        graph: inputs are `"input0"`.. and `"target0"`..; outputs `"output0"`.. for inference,
            `"loss"` and `"metric0.NAME"`.. otherwise.
        trace: the network it was made from.
        slots: for each state of the optimizer, `"1.weight/momentum"`: its tensor and first value.
        untrained: the parameters that are frozen, or that the loss does not depend on; they are
            left as they are.
    """

    graph: Graph
    trace: Trace
    slots: Mapping[str, tuple[Tensor, float]]
    untrained: tuple[str, ...] = ()


def inference_step(
    network: Traceable, *, dtype: DType, input_dtypes: Sequence[DType] | None = None
) -> StepGraph:
    """The forward pass in its inference form."""
    trace = network.trace(dtype=dtype, training=False, input_dtypes=input_dtypes)
    outputs = tuple((f"output{n}", tensor) for n, tensor in enumerate(trace.outputs))
    return StepGraph(Graph(trace.inputs, outputs), trace, {})


def default_targets(network: Traceable, loss: Loss, dtype: DType) -> tuple[Spec, ...]:
    """The targets that a loss expects where no data says otherwise.

    Returns:
        (shape with the batch, dtype) of each target; none for a loss without targets.
    """
    trace = network.trace(dtype=dtype, training=False)
    check_loss(loss, len(trace.outputs))
    describe: Callable[[Any], Spec | None] | None = getattr(loss, "target", None)
    if describe is None:
        return tuple((tensor.shape, tensor.dtype) for tensor in trace.outputs)
    spec = describe(_single(trace.outputs))
    return () if spec is None else (spec,)


def evaluation_step(
    network: Traceable,
    loss: Loss,
    targets: Sequence[Spec],
    *,
    dtype: DType,
    metrics: Sequence[Metric] = (),
    input_dtypes: Sequence[DType] | None = None,
    training: bool = False,
) -> StepGraph:
    """Loss and metrics of a batch; no penalties, nothing is changed.

    Args:
        training: take the training form of the layers instead of the inference form.
    """
    trace = network.trace(dtype=dtype, training=training, input_dtypes=input_dtypes)
    check_loss(loss, len(trace.outputs))
    check_metrics(metrics)
    leaves, target = _targets(targets, loss, trace, dtype)
    value = _loss_value(loss, trace, target)
    outputs = (("loss", value), *_measured(metrics, trace, target))
    return StepGraph(Graph((*trace.inputs, *leaves), outputs), trace, {})


@without_collections
def training_step(
    network: Traceable,
    loss: Loss,
    optimizer: Optimizer,
    targets: Sequence[Spec],
    *,
    dtype: DType,
    clip: Clip | None = None,
    metrics: Sequence[Metric] = (),
    input_dtypes: Sequence[DType] | None = None,
    frozen: Sequence[str] = (),
) -> StepGraph:
    """The whole training step.

    The reported loss includes the layers' penalties, as what is minimised does.

    Args:
        frozen: patterns of the names of parameters that are not trained: `["0.*", "2.weight"]`.
            Their gradients are not computed, and they have no state.

    Raises:
        DefinitionError: if there is nothing to train, or a pattern fits no parameter.
        ShapeError: if the loss is not a single number.
    """
    trace = network.trace(dtype=dtype, training=True, input_dtypes=input_dtypes)
    check_loss(loss, len(trace.outputs))
    check_optimizer(optimizer)
    check_metrics(metrics)
    check_clip(clip)
    check_frozen(frozen)
    record = trace.record
    names = list(record.parameters)
    left_alone = {name for pattern in frozen for name in matching(pattern, names, "frozen")}
    chosen = optimizers_by_name(optimizer, names)
    leaves, target = _targets(targets, loss, trace, dtype)
    value = _loss_value(loss, trace, target)
    metric_outputs = _measured(metrics, trace, target)
    with labelled(Origin("penalty")):
        for penalty in record.penalties:
            value = ops.add(value, penalty)
    reached = set(topological([value]))
    reachable = [v for v in record.parameters.values() if v.tensor in reached]
    trained = [variable for variable in reachable if variable.name not in left_alone]
    if not reachable:
        raise DefinitionError(
            "there is nothing to train: the loss depends on no parameter",
            advice="Add a layer with parameters, such as lm.Linear, or check the loss function.",
        )
    if not trained:
        raise DefinitionError(
            "there is nothing to train: every parameter that the loss depends on is frozen",
            facts=(
                ("frozen", ", ".join(map(repr, frozen))),
                ("parameters", ", ".join(variable.name for variable in reachable)),
            ),
            advice="Leave some parameters out of `frozen`.",
        )
    if value not in smoothly_depending(value, {variable.tensor for variable in trained}):
        raise DefinitionError(
            "there is nothing to train: no gradient of the loss reaches a parameter",
            facts=(("found", "comparisons, casts or indices between the loss and all of them"),),
            advice="Use what changes smoothly: lm.CrossEntropy() in place of an accuracy.",
        )
    flowing: Sequence[Tensor] = gradients(value, [variable.tensor for variable in trained])
    if clip is not None:
        with labelled(Origin("clip")):
            flowing = _clipped(clip, flowing)
    slots: dict[str, tuple[Tensor, float]] = {}
    updates: list[tuple[Tensor, Tensor]] = []
    for variable, gradient in zip(trained, flowing, strict=True):
        with labelled(Origin(f"{variable.tensor.origin.path}/update")):
            updates += _updated(chosen[variable.name], variable, gradient, record.step, slots)
    for name, new in record.updates.items():
        updates.append((record.states[name].tensor, new))
    with labelled(Origin("step")):
        updates.append((record.step, ops.add(record.step, 1)))
    outputs = (("loss", value), *metric_outputs)
    learning = {variable.name for variable in trained}
    untrained = tuple(name for name in record.parameters if name not in learning)
    return StepGraph(
        Graph((*trace.inputs, *leaves), outputs, tuple(updates)), trace, slots, untrained
    )


def _clipped(clip: Clip, flowing: Sequence[Tensor]) -> Sequence[Tensor]:
    """The clipped gradients.

    Raises:
        DefinitionError: if they are not as many, or not of the same shapes and dtypes.
    """
    found: object = clip(flowing)
    looks = [
        (one.shape, one.dtype) if isinstance(one, Tensor) else None
        for one in (cast(Sequence[object], found) if isinstance(found, list | tuple) else ())
    ]
    if looks != [(one.shape, one.dtype) for one in flowing]:
        raise DefinitionError(
            "the function that clips does not give a gradient for each that it is given",
            facts=(
                ("expected", f"{len(flowing)} tensors of the same shapes and dtypes"),
                ("found", reprlib.repr(found)),
            ),
            where="clip",
            advice="It takes a list of tensors, and gives one: lm.ClipGlobalNorm(1.0) does.",
        )
    return cast(Sequence[Tensor], found)


def _updated(
    optimizer: Optimizer,
    variable: Variable,
    gradient: Tensor,
    step: Tensor,
    slots: dict[str, tuple[Tensor, float]],
) -> list[tuple[Tensor, Tensor]]:
    """The new values of a parameter and of its optimizer state."""
    parameter = variable.tensor
    own: dict[str, Tensor] = {}
    for name, first in optimizer.slots().items():
        full = f"{variable.name}/{name}"
        if isinstance(first, PerParameter):
            shape, value = (), first.first
        else:
            shape, value = parameter.shape, first
        own[name] = leaf(full, "state", shape, parameter.dtype)
        slots[full] = (own[name], value)
    new, new_slots = optimizer.update(parameter, gradient, own, step)
    return [(parameter, new), *((own[name], new_slots[name]) for name in own)]


def _single(tensors: Sequence[Tensor]) -> Any:
    """The tensor itself where there is one, a tuple where there are several."""
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _targets(
    specs: Sequence[Spec], loss: Loss, trace: Trace, dtype: DType
) -> tuple[tuple[Tensor, ...], Any]:
    """The target leaves, and what the loss is given: integers become floats where it wants them."""
    leaves = tuple(
        leaf(f"target{number}", "input", shape, arriving)
        for number, (shape, arriving) in enumerate(specs)
    )
    describe: Callable[[Any], Spec | None] | None = getattr(loss, "target", None)
    wanted = describe(_single(trace.outputs)) if describe else None
    if not leaves:
        if wanted is not None:
            raise DataError(
                "the loss compares with targets, and the data has none",
                facts=(("expected", shape_text(*wanted)), ("found", "inputs only")),
                where=type(loss).__name__,
                advice="Give pairs (x, y), or a loss that needs no targets.",
            )
        return (), None
    tensors = list(leaves)
    for number, tensor in enumerate(tensors):
        to_float = wanted is not None and wanted[1].is_float and not tensor.dtype.is_float
        if to_float or tensor.dtype.is_float:
            tensors[number] = ops.cast(tensor, dtype)
    return leaves, _single(tensors)


def _loss_value(loss: Loss, trace: Trace, target: Any) -> Tensor:
    with labelled(Origin("loss")):
        value = loss(_single(trace.outputs), target)
    given = cast(object, value)
    if not isinstance(given, Tensor) or value.shape != () or not value.dtype.is_float:
        found = described(given) if isinstance(given, Tensor) else type(given).__name__
        raise ShapeError(
            "a loss must be a single number",
            facts=(
                ("expected", f"a tensor {shape_text((), trace.record.dtype)}"),
                ("found", found),
            ),
            where="loss",
            advice="Average over the examples: ops.mean(...).",
        )
    return value


def _measured(
    metrics: Sequence[Metric], trace: Trace, target: Any
) -> tuple[tuple[str, Tensor], ...]:
    found: list[tuple[str, Tensor]] = []
    single = len(trace.outputs) == 1 and isinstance(target, Tensor)
    for number, metric in enumerate(metrics):
        if not single and not getattr(metric, "takes_several", False):
            raise DefinitionError(
                "a metric compares one output with one target",
                facts=(("outputs", str(len(trace.outputs))), ("target", repr(target))),
                where=type(metric).__name__,
                advice="Write a metric that takes tuples, with `takes_several = True`.",
            )
        with labelled(Origin(f"metric{number}")):
            statistics = metric.statistics(_single(trace.outputs), target)
        found += [(f"metric{number}.{name}", tensor) for name, tensor in statistics.items()]
    return tuple(found)
