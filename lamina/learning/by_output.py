"""Losses and metrics of the outputs of a network, and functions as metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Any, cast, final

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array
from lamina.checks.kinds import Misfit, Number
from lamina.errors import DefinitionError, ShapeError
from lamina.foreign import advice_on_object, is_foreign_function
from lamina.graph import Tensor, described
from lamina.layers.checks import Sourced
from lamina.learning.protocols import (
    Clip,
    Loss,
    Metric,
    Optimizer,
    TrainingOptions,
    check_loss,
    check_metrics,
    check_order,
    name_of_class,
    wrong_argument,
)
from lamina.learning.weighting import weighted_sum

# What users give as a loss and as metrics.
Losses = Loss | Mapping[str, Loss] | Sequence[Loss | None]
OneMetric = Metric | Callable[[Any, Any], Tensor]
Metrics = Sequence[OneMetric] | Mapping[str, OneMetric | Sequence[OneMetric]]

_FACTOR = Number("[0, inf)")


@final
@frozen_dataclass
class LossTerm:
    """The loss of one output, or of all together (no name); `factor` is its weight in the total."""

    loss: Loss
    name: str = ""
    output: int | None = None
    factor: float = 1.0

    @property
    def summed(self) -> bool:
        """Whether it is a sum over the examples of a batch; otherwise a mean."""
        return getattr(self.loss, "reduction", "mean") == "sum"


@final
@frozen_dataclass
class ByOutput(Sourced):
    """A loss for each output of a network; the total is their sum, with factors.

    Everywhere where a loss is given, a dict or a list means the same: `loss={"boxes": lm.MSE(),
    "classes": lm.CrossEntropy()}`. Outputs without a loss are not trained. There is one target for
    each loss that takes one, in the order of the outputs, or in a dict by their names. Histories
    and results have the loss of each output too: `"boxes_loss"`.

    Args:
        losses: losses by the names of outputs, or in order, with None for an output without a loss.
            Outputs without names are `"output0"`, `"output1"`, ...
        factors: the factors of the losses in the total, by name or in order; 1 by default.

    Raises:
        DefinitionError: for a value that is not a loss, or a factor without a loss; when a training
            is compiled, also if the network has no such output.

    Example:
        >>> x = lm.Input(3)
        >>> net = lm.Network(x, {"boxes": lm.Linear(4)(x), "classes": lm.Linear(5)(x)})
        >>> loss = lm.ByOutput({"boxes": lm.MSE(), "classes": lm.CrossEntropy()},
        ...                    factors={"boxes": 0.5})
        >>> net.plan(8, loss=loss, optimizer=lm.SGD(0.1)).parameter_bytes
        144
    """

    losses: Mapping[str, Loss] | Sequence[Loss | None]
    _: KW_ONLY
    factors: Mapping[str, float] | Sequence[float] | None = None

    def __post_init__(self) -> None:
        losses = _entries(self.losses)
        if losses is None or not any(loss is not None for loss in losses.values()):
            expected = '{"boxes": lm.MSE(), "classes": lm.CrossEntropy()}'
            raise DefinitionError(
                "the losses are given as a dict, by outputs, or as a list",
                facts=(("expected", expected), ("found", repr(self.losses))),
            )
        for loss in losses.values():
            if loss is not None:
                check_loss(loss, where="")
        factors = {} if self.factors is None else _entries(self.factors)
        have_losses = factors is not None and all(losses.get(key) is not None for key in factors)
        listed = not isinstance(self.factors, list | tuple) or len(self.factors) == len(losses)
        if factors is None or not have_losses or not listed:
            first, *others = [key for key, loss in losses.items() if loss is not None]
            keys = "names" if isinstance(self.losses, Mapping) else "numbers"
            advice = f"Give a dict by {keys} of losses: factors={{{first!r}: 0.5}}. Others are 1."
            if keys == "numbers" and len(others) + 1 == len(losses):
                advice = "Give a list with one factor for each loss."
            raise DefinitionError(
                "the factors do not fit the losses",
                facts=(("losses", ", ".join(map(str, losses))), ("factors", repr(self.factors))),
                advice=advice,
            )
        for key, factor in factors.items():
            try:
                _FACTOR.read(factor)
            except Misfit:
                raise DefinitionError(
                    "the factor of a loss is a number of at least 0",
                    facts=(("expected", f"factors={{{key!r}: 0.5}}"), ("found", repr(factor))),
                ) from None

    def terms(self, names: Sequence[str]) -> tuple[LossTerm, ...]:
        """The losses of outputs with these names, in order; DefinitionError if they do not fit."""
        losses, factors = _entries(self.losses) or {}, _entries(self.factors) or {}
        by_name = isinstance(self.losses, Mapping)
        fits = losses.keys() <= set(names) if by_name else len(losses) == len(names)
        if not fits:
            raise DefinitionError(
                "the losses do not fit the outputs of the network",
                facts=(("outputs", ", ".join(names)), ("losses", ", ".join(map(str, losses)))),
                advice=advice_on_names(names)
                if by_name
                else "Give one loss for each output, with None for one that is not trained.",
            )
        terms: list[LossTerm] = []
        for number, name in enumerate(names):
            key = name if by_name else number
            if losses.get(key) is not None:
                terms.append(LossTerm(losses[key], name, number, float(factors.get(key, 1.0))))
        return tuple(terms)


def advice_on_names(names: Sequence[str]) -> str:
    """The advice for a name that no output of a network has, from the names that there are."""
    if names[0] == "output0":
        return "Name the outputs: lm.Network(inputs, outputs={'boxes': boxes, ...})."
    return f"The outputs are named {' and '.join(map(repr, names))}."


def _entries(values: Any) -> dict[Any, Any] | None:
    """Values by name or number; None for anything but a dict or a list."""
    if isinstance(values, Mapping):
        return dict(cast(Mapping[Any, Any], values))
    row = isinstance(values, list | tuple)
    return dict(enumerate(cast(Sequence[Any], values))) if row else None


def as_loss(loss: Any) -> Loss:
    """A loss; of a dict or a list of losses, one that has them by output."""
    several = isinstance(loss, Mapping | list | tuple)
    loss = ByOutput(cast(Any, loss)) if several else loss
    check_loss(loss)
    return cast(Loss, loss)


def terms_of(loss: Loss, names: Sequence[str]) -> tuple[LossTerm, ...]:
    """The losses of the outputs, or the one loss of all of them."""
    given = cast(object, loss)
    return given.terms(names) if isinstance(given, ByOutput) else (LossTerm(loss),)


def options_of(
    loss: Losses | None,
    optimizer: Optimizer | None,
    clip: Clip | None,
    frozen: Sequence[str],
    where: str,
) -> TrainingOptions | None:
    """The options of a training step; None, for a forward pass, without loss and optimizer.

    The error for one of them alone names the function `where`.
    """
    if loss is None and optimizer is None:
        return None
    if loss is None or optimizer is None:
        raise DefinitionError(
            "a training step needs both a loss and an optimizer",
            facts=(("loss", repr(loss)), ("optimizer", repr(optimizer))),
            where=where,
            advice="Give both, or neither for inference.",
        )
    return TrainingOptions(as_loss(loss), optimizer, clip=clip, frozen=frozen)


@final
@frozen_dataclass
class OfOutput(Sourced):
    """A metric of one output of a network."""

    output: str
    metric: Metric

    @property
    def name(self) -> str:
        return f"{self.output}_{self.metric.name}"

    @property
    def smaller_is_better(self) -> bool | None:
        return getattr(self.metric, "smaller_is_better", None)

    def statistics(self, prediction: Any, target: Any, weights: Any = None) -> Mapping[str, Tensor]:
        given = {} if weights is None else {"weights": weights}
        return self.metric.statistics(prediction, target, **given)

    def result(self, sums: Mapping[str, Array]) -> float | Array:
        return self.metric.result(sums)


@frozen_dataclass
class FunctionMetric(Sourced):
    """The mean of a function of prediction and target over the examples.

    Where metrics are given, a function alone means the same, and so does a loss: `[lm.MAPE()]`.

    Args:
        function: a function of the tensors of prediction and target that gives a number for each
            example or element, [batch, ...], or one number for a batch.
        name: the name of the metric; the function's `__name__` by default.

    Example:
        >>> def largest_error(prediction, target):
        ...     return lm.ops.max(abs(prediction - target), 1)
        >>> lm.FunctionMetric(largest_error).name
        'largest_error'
    """

    function: Callable[[Any, Any], Tensor]
    _: KW_ONLY
    name: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.function, type) or not callable(self.function):
            raise DefinitionError(
                "function must be a function of prediction and target",
                facts=(("found", repr(self.function)),),
            )
        check_order(self.function, where="")
        name = self.name or getattr(self.function, "__name__", "")
        if not name or "<" in name:
            raise DefinitionError(
                "a metric of a function without a name needs one",
                facts=(("found", repr(self.function)),),
                advice="lm.FunctionMetric(lambda prediction, target: ..., name='error').",
            )
        object.__setattr__(self, "name", name)

    @property
    def smaller_is_better(self) -> bool | None:
        """True for a loss; another function does not say it."""
        return True if hasattr(self.function, "measured") else None

    def statistics(
        self, prediction: Any, target: Any, weights: Tensor | None = None
    ) -> Mapping[str, Tensor]:
        """`sum` and `count`; `total` of a loss that is a sum."""
        several = isinstance(prediction, list | tuple)
        first: Tensor = cast(Any, prediction)[0] if several else prediction
        count = ops.element_count(first, (0,), first.dtype)
        measure: Callable[..., Any] | None = getattr(self.function, "measured", None)
        if measure is not None and getattr(self.function, "reduction", "mean") != "none":
            # A loss: a mean counts by what it was divided by.
            value, divisor = measure(prediction, target, weights)
            if getattr(self.function, "reduction", "mean") == "sum":
                return {"total": value}
            count = count if divisor is None else divisor
            return {"sum": ops.where(count > 0, value * count, 0.0), "count": count}
        metric = cast(object, self.function(prediction, target))
        if not isinstance(metric, Tensor) or (weights is not None and not metric.rank):
            weighted = weights is not None and isinstance(metric, Tensor)
            text = described(metric) if isinstance(metric, Tensor) else repr(metric)
            raise ShapeError(
                f"the metric {self.name!r} gives no tensor"
                if not weighted
                else f"the examples have weights, and the metric {self.name!r} gives one number",
                facts=(("expected", "a tensor [batch, ...]"), ("found", text)),
                advice="Return a number for each example.",
            )
        values = ops.cast(metric, first.dtype)
        if not values.rank:
            return {"sum": values * count, "count": count}
        total, count = weighted_sum(values, weights)
        return {"sum": total, "count": count}

    def doubt(self, prediction: Any, target: Any, loss: object) -> str:
        of_loss: Callable[[Any], str] | None = getattr(self.function, "doubt", None)
        return of_loss(prediction) if of_loss else ""

    def result(self, sums: Mapping[str, Array]) -> float:
        """The mean; of a loss that is a sum the sum."""
        if "total" in sums:
            return float(sums["total"])
        return float(sums["sum"] / sums["count"]) if sums["count"] else float("nan")


def as_metrics(metrics: Any) -> tuple[Metric, ...]:
    """The metrics in metrics, functions, and both by output; DefinitionError for anything else."""
    if isinstance(metrics, Mapping):
        named: list[Metric] = []
        for name, group in cast(Mapping[Any, Any], metrics).items():
            several = list(cast(Any, group)) if isinstance(group, list | tuple) else [group]
            named += [cast(Metric, OfOutput(str(name), metric)) for metric in as_metrics(several)]
        return tuple(named)
    if isinstance(metrics, list | tuple):
        metrics = [_as_metric(metric) for metric in cast(Sequence[Any], metrics)]
    check_metrics(metrics)
    return tuple(cast(Sequence[Metric], metrics))


def _as_metric(metric: Any) -> Any:
    if is_foreign_function(metric):
        advice = (
            "It takes numbers: give it the results of model.predict. A metric is made of lm.ops."
        )
        raise wrong_argument("metric", "a metric", "lm.Accuracy()", metric, advice)
    plain = callable(metric) and not isinstance(metric, type) and not hasattr(metric, "statistics")
    plain = plain and not advice_on_object(metric)
    # A loss is a function too, which its class names.
    name = "" if hasattr(metric, "__name__") else name_of_class(type(cast(object, metric)))
    return FunctionMetric(cast(Any, metric), name=name) if plain else metric
