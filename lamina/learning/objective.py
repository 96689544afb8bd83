"""The losses and metrics of a batch, as tensors: each compares outputs with targets and weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, cast

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import DType, Size, float32, shape_text
from lamina.checks.origin import Origin, labelled, warn
from lamina.errors import DataError, DefinitionError, DTypeError, ShapeError
from lamina.graph import Tensor, described, leaf
from lamina.graph.tensor import Tensors
from lamina.layers.scope import BUILDING, IndexLimit, partners
from lamina.layers.tracing import Trace, limits_of_ops
from lamina.learning.by_output import FunctionMetric, LossTerm, OfOutput, advice_on_names, terms_of
from lamina.learning.protocols import Loss, Metric, Spec, check_loss, check_metrics
from lamina.learning.weighting import ClassWeights, called, parameter_of_weights, weights_of_classes

# The numbers of some targets, and a check of their values, which raises DataError.
TargetCheck = tuple[tuple[int, ...], Callable[[Any], None]]
# The beginnings of the names of a loss's outputs.
TERMS = ("loss.", "divisor.")


@frozen_dataclass
class Share:
    """The terms of a loss that are divided by the same number, with their factors.

    Attributes:
        divisor: the sum of weights by which it was divided; None for the number of examples.
        summed: whether it is a sum, which was divided by nothing.
        weighted: whether the loss is 0, and not NaN, if the divisor is.
    """

    loss: Tensor
    divisor: Tensor | None = None
    summed: bool = False
    weighted: bool = False


@frozen_dataclass
class Objective:
    """The losses and metrics of a batch.

    Attributes:
        leaves: the targets, `"target0"`.., and the weights of examples, `"weight0"`...
        loss: a single number, without penalties; the sum of the shares.
        outputs: tensors by name: `"loss.NAME"` for each term with a name; `"divisor.NAME"`, the sum
            of weights by which a term's mean is divided, if that is not its number of elements;
            `"metric0.NAME"`.. for the metrics.
        kept: the outputs that have a row for each example, and are not summed.
        targets: the numbers of the targets of each term.
    """

    leaves: tuple[Tensor, ...]
    loss: Tensor
    shares: tuple[Share, ...]
    terms: tuple[LossTerm, ...]
    outputs: tuple[tuple[str, Tensor], ...]
    kept: frozenset[str]
    targets: tuple[tuple[int, ...], ...]
    checks: tuple[TargetCheck, ...]
    index_limits: tuple[IndexLimit, ...]


def default_specs(
    loss: Loss, outputs: Sequence[Tensor], names: Sequence[str]
) -> list[tuple[LossTerm, tuple[Spec, ...]]]:
    """Each term of a loss with the (shape with the batch, dtype) of the targets that it expects.

    They are for networks without data; a loss without targets has none.
    """
    check_loss(loss)
    specs: list[tuple[LossTerm, tuple[Spec, ...]]] = []
    for term in terms_of(loss, names):
        expected = _expected(term, outputs)
        compared = outputs if term.output is None else [outputs[term.output]]
        plain = tuple((tensor.shape, tensor.dtype) for tensor in compared)
        specs.append((term, plain if expected is None else expected))
    return specs


def _expected(term: LossTerm, outputs: Sequence[Tensor]) -> tuple[Spec, ...] | None:
    """The targets that a term expects; None if it does not say."""
    loss = term.loss
    describe: Callable[[Any], Any] | None = getattr(loss, "target", None)
    # Lamina's losses have `target`; most of them compare one output with one target.
    several = term.output is None and len(outputs) > 1
    if several and describe is not None and not getattr(loss, "takes_several", False):
        raise DefinitionError(
            "this loss compares one output with one target",
            facts=(("outputs", str(len(outputs))), ("loss", repr(loss))),
            where="loss",
            advice="Give a loss for each output: loss=[lm.MSE(), lm.CrossEntropy()], or a dict by "
            "the names of the outputs.",
        )
    if describe is None:
        return None
    specs = describe(_prediction(term, outputs))
    if specs is None:
        return ()
    return (specs,) if isinstance(specs[1], DType) else tuple(specs)


@frozen_dataclass
class _Compared:
    """What a term of the loss compares, and the targets that it expects: None if it does not say.

    Prediction and target are a tensor, or a tuple of tensors; `numbers` counts its targets.
    """

    term: LossTerm
    prediction: Any
    expected: tuple[Spec, ...] | None
    numbers: tuple[int, ...]
    target: Any
    weights: Tensor | None


def objective(
    loss: Loss,
    metrics: Sequence[Metric],
    trace: Trace,
    names: Sequence[str],
    targets: Sequence[Spec],
    weights: Sequence[Spec] = (),
    classes: ClassWeights | None = None,
) -> Objective:
    """Builds loss and metrics of a batch; a LaminaError if targets or weights do not fit.

    Args:
        names: the names of the network's outputs.
        targets, weights: the (shape, dtype) of targets and of examples' weights, with the batch.
        classes: the weights of classes in the loss.
    """
    check_loss(loss)
    check_metrics(metrics)
    leaves = [leaf(f"target{n}", "input", *spec) for n, spec in enumerate(targets)]
    weight_leaves = [leaf(f"weight{n}", "input", *spec) for n, spec in enumerate(weights)]
    dtype = loss_dtype(trace)
    compared = _compared(terms_of(loss, names), trace.outputs, leaves, weight_leaves, dtype)
    shares: list[Share] = []
    outputs: list[tuple[str, Tensor]] = []
    checks: list[TargetCheck] = []
    for pair in compared:
        term = pair.term
        of_target = partial(_of_target, pair.numbers, term.name, len(leaves))
        checks += _check(term.loss, pair.numbers, trace.outputs[term.output or 0], of_target)
        element_weights = pair.weights
        if classes is not None:
            element_weights = _with_classes(classes, pair, len(trace.outputs), len(leaves))
        value, divisor = of_target(_value)(pair, trace, element_weights)
        if divisor is not None:
            outputs.append((f"divisor.{term.name}", divisor))
        if term.name:
            outputs.append((f"loss.{term.name}", value))
        scaled = value if term.factor == 1 else value * term.factor
        shares.append(Share(scaled, divisor, term.summed, element_weights is not None))
    everything = [_cast(target, dtype) for target in leaves]
    statistics, kept, of_metrics = _measured(metrics, trace.outputs, names, compared, everything)
    results = [*(share.loss for share in shares), *(tensor for _, tensor in statistics)]
    building = BUILDING.get()
    limits = [] if building is None else building.index_limits
    return Objective(
        (*leaves, *weight_leaves),
        added([share.loss for share in shares]),
        _joined(shares),
        tuple(pair.term for pair in compared),
        (*outputs, *statistics),
        kept,
        tuple(pair.numbers for pair in compared),
        (*checks, *of_metrics),
        (*limits, *limits_of_ops(results, limits, trace.outputs)),
    )


def _check(
    owner: object, numbers: Sequence[int], prediction: Any, of_target: Callable[[Any], Any]
) -> list[TargetCheck]:
    """The check of targets by a loss or a metric, if it has one."""
    check = getattr(owner, "check_target", None)
    if check is None or not numbers or not isinstance(prediction, Tensor):
        return []
    return [(tuple(numbers), of_target(partial(check, prediction_shape=prediction.shape)))]


def _of_target(numbers: Sequence[int], output: str, count: int, function: Any) -> Any:
    """The function of a loss or metric; its errors name its target if that is one of several."""
    if count == 1 or len(numbers) != 1:
        return function

    def named(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except (DataError, DTypeError, ShapeError) as error:
            error.facts += (("target", f"y[{numbers[0]}], of the output {output!r}"),)
            # The advice is written for a single target y.
            error.advice = re.sub(r"\by(?=[.\[]| [>+-] )", f"y[{numbers[0]}]", error.advice)
            raise

    return named


def added(terms: Sequence[Tensor]) -> Tensor:
    """The sum of some numbers, at least one."""
    return reduce(ops.add, terms)


def _joined(shares: Sequence[Share]) -> tuple[Share, ...]:
    """Sums joined to one share, and so means over examples; others stay alone."""
    joined: list[Share] = []
    for summed in (True, False):
        same = [share.loss for share in shares if share.summed == summed and share.divisor is None]
        joined += [Share(added(same), summed=summed)] if same else []
    return (*joined, *(share for share in shares if share.divisor is not None))


# Targets and weights ------------------------------------------------------------------------------


def _compared(
    terms: Sequence[LossTerm], outputs: Tensors, leaves: Tensors, weights: Tensors, dtype: DType
) -> list[_Compared]:
    """What each term compares, with its share of the targets and weights."""
    expected = [_expected(term, outputs) for term in terms]
    counts = [1 if specs is None else len(specs) for specs in expected]
    if terms[0].output is None:
        counts = [len(leaves)]
    _check_counts(terms, expected, sum(counts), len(leaves), len(weights))
    by_term = [ops.cast(weight, dtype) for weight in weights] or [None]
    if len(by_term) == 1:
        by_term *= len(terms)
    compared: list[_Compared] = []
    first = 0
    for term, specs, count, weight in zip(terms, expected, counts, by_term, strict=True):
        compared.append(
            _Compared(
                term,
                prediction=_prediction(term, outputs),
                expected=specs,
                numbers=tuple(range(first, first + count)),
                target=_target(leaves[first : first + count], specs or (), dtype),
                weights=weight,
            )
        )
        first += count
    return compared


def _check_counts(
    terms: Sequence[LossTerm],
    expected: Sequence[tuple[Spec, ...] | None],
    needed: int,
    targets: int,
    weights: int,
) -> None:
    """Raises DataError for another number of targets or of weights than the terms take."""
    for term, specs in zip(terms, expected, strict=True):
        if not targets and specs:
            raise DataError(
                "the loss needs targets, and the data has none",
                facts=(("expected", shape_text(*specs[0])), ("found", "inputs only")),
                where=type(term.loss).__name__,
                advice="Give pairs (x, y), or a loss that needs no targets.",
            )
    if needed != targets:
        advice = "Give a tuple with one target for each output that has a loss."
        if weights and needed > targets:
            advice = (
                "The third value of (x, y, z) is the weights of the examples. Several targets make "
                "a tuple: (x, (y, z))."
            )
        raise DataError(
            "the data has another number of targets than the losses take",
            facts=(
                ("losses", ", ".join(term.name for term in terms)),
                ("expected", f"{needed} targets"),
                ("found", str(targets)),
            ),
            where="loss",
            advice=advice,
        )
    if weights > 1 and weights != len(terms):
        raise DataError(
            "the data has another number of weights than there are losses",
            facts=(("expected", f"1 or {len(terms)} arrays"), ("found", str(weights))),
            where="weights",
            advice="Give one array of weights, or a tuple with one for each loss.",
        )


def _target(targets: Sequence[Tensor], expected: Sequence[Spec], dtype: DType) -> Any:
    """The target of a term: cast to floats if its loss needs floats."""
    converted: list[Tensor] = []
    for position, tensor in enumerate(targets):
        shape, spec_dtype = expected[min(position, len(expected) - 1)] if expected else ((), None)
        # Integers of another rank are class numbers, for losses that take either.
        needs_floats = spec_dtype is not None and spec_dtype.is_float and len(shape) == tensor.rank
        converted.append(ops.cast(tensor, dtype) if needs_floats else _cast(tensor, dtype))
    return _single(converted)


def _cast(target: Tensor, dtype: DType) -> Tensor:
    """A target of floats in the dtype of the loss; another one as it is."""
    return ops.cast(target, dtype) if target.dtype.is_float else target


def _with_classes(classes: ClassWeights, pair: _Compared, outputs: int, targets: int) -> Tensor:
    """The weights of the examples times the weights of their classes."""
    target, weights = pair.target, pair.weights
    if pair.term.output is not None or not isinstance(target, Tensor) or outputs != 1:
        raise DefinitionError(
            "weights of classes need one output and one target",
            facts=(("outputs", str(outputs)), ("targets", str(targets))),
            where="class_weights",
            advice="Give them to the loss of an output: lm.CrossEntropy(class_weights=[...]).",
        )
    labels = any(not dtype.is_float for _, dtype in pair.expected or ())
    by_class = weights_of_classes(classes, pair.prediction, target, labels=labels)
    if weights is None:
        return by_class
    return by_class * ops.reshape(weights, (*weights.shape, *(1,) * (by_class.rank - weights.rank)))


def _value(pair: _Compared, trace: Trace, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The loss, and the sum of weights by which it is divided if that is not the batch."""
    loss = pair.term.loss
    doubt: Callable[[Any], str] | None = getattr(loss, "doubt", None)
    if doubt:
        _warn_of(doubt(pair.prediction), loss, pair.term.name)
    value, divisor = _computed(pair, pair.target, weights)
    result = cast(object, value)
    if not isinstance(result, Tensor) or result.shape != () or not result.dtype.is_float:
        advice = "Average over the examples: ops.mean(...)."
        if getattr(loss, "reduction", "") == "none":
            advice = "Leave reduction='none' out: it is for lm.compile and losses of your own."
        kind = described(result) if isinstance(result, Tensor) else type(result).__name__
        facts = (("expected", f"a tensor {shape_text((), loss_dtype(trace))}"), ("found", kind))
        raise ShapeError("a loss must be a single number", facts=facts, advice=advice, where="loss")
    mixture, target = trace.record.mixture, pair.target
    if mixture is None or target is None:
        return result, divisor
    # The examples are mixed, and so are the losses of their own and their partners' targets. A
    # partner's target keeps its weight. The sum of the weights is the same.
    targets = cast(tuple[Tensor, ...], target if isinstance(target, tuple) else (target,))
    others = _single([partners(each) for each in targets])
    other, _ = _computed(pair, others, None if weights is None else partners(weights))
    share = ops.cast(mixture.share, result.dtype)
    return share * result + (1 - share) * other, divisor


def _computed(pair: _Compared, target: Any, weights: Tensor | None) -> tuple[Any, Tensor | None]:
    term = pair.term
    measure: Callable[..., Any] | None = getattr(term.loss, "measured", None)
    with labelled(Origin(f"loss/{term.name}" if term.name else "loss")):
        if measure is None:
            return called(term.loss, pair.prediction, target, weights, "loss"), None
        return measure(pair.prediction, target, weights)


def _warn_of(doubt: str, owner: object, output: str) -> None:
    """Warns if a loss or a metric, the owner, has a doubt about the prediction of an output."""
    if doubt:
        origin = Origin(type(owner).__name__, getattr(owner, "source", ""))
        named = f", for output {output!r}" if output else ""
        warn(f"in {origin}{named}: {doubt}")


def loss_dtype(trace: Trace) -> DType:
    """The float type in which losses and metrics are computed."""
    return float32 if trace.record.dtype.is_half else trace.record.dtype


def _prediction(term: LossTerm, outputs: Sequence[Tensor]) -> Any:
    return _single(outputs) if term.output is None else outputs[term.output]


def _single(tensors: Sequence[Tensor]) -> Any:
    """The tensor itself if there is one, a tuple of several; None for none."""
    return tensors[0] if len(tensors) == 1 else tuple(tensors) or None


# Metrics ------------------------------------------------------------------------------------------


def _measured(
    metrics: Sequence[Metric],
    outputs: Sequence[Tensor],
    names: Sequence[str],
    compared: Sequence[_Compared],
    targets: Sequence[Tensor],
) -> tuple[list[tuple[str, Tensor]], frozenset[str], list[TargetCheck]]:
    """The statistics of the metrics, the names of those with a row for each example, and checks."""
    named: list[tuple[str, Tensor]] = []
    checks: list[TargetCheck] = []
    for number, metric in enumerate(metrics):
        prediction, target, weights = _single(outputs), _single(targets), compared[0].weights
        inner, name = metric, ""
        if isinstance(metric, OfOutput):
            inner, name = metric.metric, metric.output
            position = _position(metric, names)
            prediction = outputs[position]
            target, weights = _of_output(position, compared, targets, len(outputs))
        single = isinstance(prediction, Tensor) and isinstance(target, Tensor)
        if not single and not getattr(inner, "takes_several", False):
            advice = "A metric that takes tuples has `takes_several = True`."
            if target is None:
                advice = "Give targets, and a loss for each output that has metrics."
            elif len(outputs) > 1 and not name:
                advice = (
                    f"Give the metrics by output: metrics={{{names[0]!r}: [...], ...}}. {advice}"
                )
            raise DefinitionError(
                "a metric compares one output with one target",
                facts=(("outputs", ", ".join(names)), ("targets", str(len(targets)))),
                where=type(inner).__name__,
                advice=advice,
            )
        with labelled(Origin(f"metric{number}")):
            statistics = _statistics(metric, inner, prediction, target, weights)
        numbers = [position for position, tensor in enumerate(targets) if tensor is target]
        of_target = partial(_of_target, numbers, name, len(targets))
        checks += _check(inner, numbers, prediction, of_target)
        terms = (pair.term for pair in compared)
        loss = next((term.loss for term in terms if term.output is None or term.name == name), None)
        _warn_of(_doubt_of_ignored(inner, loss), inner, name)
        doubt: Callable[..., str] | None = getattr(inner, "doubt", None)
        if doubt:
            text = doubt(prediction, target, loss)
            _warn_of(text, inner.function if isinstance(inner, FunctionMetric) else inner, name)
        named += [(f"metric{number}.{name}", tensor) for name, tensor in statistics.items()]
    kept = [name for name, tensor in named if tensor.rank and isinstance(tensor.shape[0], Size)]
    return named, frozenset(kept), checks


def _doubt_of_ignored(metric: object, loss: object) -> str:
    """A warning about targets that the loss ignores, and the metric counts; "" for none."""
    ignored: int | None = getattr(loss, "ignore_index", None)
    if ignored is None or getattr(metric, "ignore_index", ignored) == ignored:
        return ""
    return (
        f"{type(loss).__name__} ignores targets of {ignored}, and the metric counts them. "
        f"Write ignore_index={ignored}."
    )


def _statistics(
    metric: Metric, inner: Metric, prediction: Any, target: Any, weights: Tensor | None
) -> Mapping[str, Tensor]:
    if weights is None:
        return metric.statistics(prediction, target)
    if parameter_of_weights(inner.statistics) is None:
        text = repr(inner)
        raise DefinitionError(
            "the examples have weights, and this metric does not take them",
            facts=(("expected", "statistics(prediction, target, weights=None)"), ("found", text)),
            where=type(inner).__name__,
            advice="Give its method a third parameter, weights=None, and multiply by the weights.",
        )
    return cast(Any, metric).statistics(prediction, target, weights=weights)


def _position(metric: OfOutput, names: Sequence[str]) -> int:
    """The number of the output that a metric is for."""
    if metric.output not in names:
        outputs = ", ".join(names)
        raise DefinitionError(
            "the metrics do not fit the outputs of the network",
            facts=(("outputs", outputs), ("metric", f"{metric.output!r}: {metric.metric}")),
            where="metrics",
            advice=advice_on_names(names),
        )
    return list(names).index(metric.output)


def _of_output(
    position: int, compared: Sequence[_Compared], targets: Sequence[Tensor], outputs: int
) -> tuple[Any, Tensor | None]:
    """The target of an output, and the weights of its examples."""
    if compared[0].term.output is None:
        return targets[position] if len(targets) == outputs else None, compared[0].weights
    for pair in compared:
        if pair.term.output == position:
            return _single([targets[number] for number in pair.numbers]), pair.weights
    return None, None
