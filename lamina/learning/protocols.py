"""Protocols and checks of losses, optimizers, metrics and gradient clipping."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from types import FunctionType
from typing import Annotated, Any, Protocol, cast

from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Array, DType, Shape, as_whole
from lamina.checks import Called
from lamina.checks.kinds import HIGHEST, Kind, Misfit, Operands, OrNone, Whole, is_data
from lamina.errors import DefinitionError
from lamina.foreign import advice_on_object, spelling, word_here
from lamina.graph import Tensor

# Called with the prediction (a tuple where the network has several outputs) and the target.
Loss = Callable[[Any, Any], Tensor]
Clip = Callable[[Sequence[Tensor]], Sequence[Tensor]]
RateFunction = Callable[[Tensor], Any]
Spec = tuple[Shape, DType]

# The name of the optimizer state that holds the average of a parameter over training steps.
AVERAGE = "average"


@frozen_dataclass
class PerParameter:
    """An optimizer state of one number for each parameter, not one for each element."""

    first: float


class Optimizer(Protocol):
    """The update rule of parameters; see `lamina.learning.optimizers`, which import this file.

    A protocol, because a user's optimizer needs no base class. If it treats parameters differently,
    it also has `for_parameters(names)`, which returns the optimizer of each name. With a true
    `joins_parameters` it gets all its parameters in one call of `update`, joined to one vector.
    """

    def slots(self) -> Mapping[str, float | PerParameter]: ...

    def update(
        self, parameter: Tensor, gradient: Tensor, slots: Mapping[str, Tensor], step: Tensor
    ) -> tuple[Tensor, Mapping[str, Tensor]]: ...


class Metric(Protocol):
    """A measure reported in addition to the loss; see `lamina.learning.metrics`.

    A protocol, because a user's metric needs no base class.
    """

    @property
    def name(self) -> str: ...

    def statistics(self, prediction: Any, target: Any) -> Mapping[str, Tensor]: ...

    def result(self, sums: Mapping[str, Array]) -> float | Array: ...


@frozen_dataclass
class TrainingOptions:
    """How parameters are trained: everything that decides a training step but network and data.

    Attributes:
        frozen: patterns of the names of parameters that are not trained: `["0.*", "2.weight"]`.
        class_weights: the weight of each class in the loss: a row, or by the number of the class.
        gradient_norm: whether the norm of all gradients is an output.
    """

    loss: Loss
    optimizer: Optimizer
    metrics: Sequence[Metric] = ()
    clip: Clip | None = None
    frozen: Sequence[str] = ()
    class_weights: Mapping[int, float] | Sequence[float] | None = None
    gradient_norm: bool = False

    def __post_init__(self) -> None:
        check_loss(self.loss)
        check_optimizer(self.optimizer)
        check_metrics(self.metrics)
        clip, frozen = cast(object, self.clip), cast(object, self.frozen)
        if clip is not None and (isinstance(clip, type) or not callable(clip)):
            kind = "a function that clips gradients"
            raise wrong_argument("clip", kind, "lm.ClipGlobalNorm(1.0)", clip)
        listed = cast(Sequence[object], frozen) if isinstance(frozen, list | tuple) else [None]
        if not all(isinstance(pattern, str) for pattern in listed):
            raise DefinitionError(
                "the frozen parameters are given as a list of patterns",
                facts=(("expected", "['0.*', '2.weight']"), ("found", repr(self.frozen))),
                where="frozen",
            )


class _BatchSize(Kind):
    """The number of examples of a batch."""

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
MicroBatch = Annotated[int | None, OrNone(_BatchSize())]


def check_loss(loss: object, where: str = "loss") -> None:
    """Raises DefinitionError if it is not a loss."""
    # Losses by output have terms.
    callable_here = callable(loss) and not advice_on_object(loss)
    if isinstance(loss, type) or not (callable_here or hasattr(loss, "terms")):
        expected = "lm.CrossEntropy(), or a function of (prediction, target)"
        advice = spelling(["(data)"], "targets") if is_data(loss) else ""
        raise wrong_argument(where, "a loss", expected, cast(object, loss), advice)
    check_order(loss, where)


# Names of parameters in functions for Keras and scikit-learn, whose targets come first.
_TARGETS = ("y_true", "target", "targets", "true", "label", "labels")
_PREDICTIONS = ("y_pred", "prediction", "predictions", "pred", "preds", "output", "outputs")


def check_order(function: object, where: str) -> None:
    """Raises DefinitionError for a user's function of (target, prediction), in this order."""
    if not isinstance(function, FunctionType):
        return
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    if len(names) > 1 and names[0] in _TARGETS and names[1] in _PREDICTIONS:
        raise DefinitionError(
            "the function takes the target first, and gets the prediction first",
            facts=(("expected", "(prediction, target)"), ("found", f"({', '.join(names)})")),
            where=where,
            advice=f"Swap them: lambda {names[1]}, {names[0]}: {function.__name__}"
            f"({names[0]}, {names[1]}).",
        )


def check_optimizer(optimizer: object, where: str = "optimizer") -> None:
    """Raises DefinitionError if it is not an optimizer."""
    # `update` alone does not make an optimizer: dicts have it too.
    methods = [getattr(optimizer, name, None) for name in ("slots", "update")]
    if isinstance(optimizer, type) or not all(map(callable, methods)):
        raise wrong_argument(where, "an optimizer", "lm.Adam(1e-3)", optimizer)


def optimizers_by_name(optimizer: Optimizer, names: Sequence[str]) -> Mapping[str, Optimizer]:
    """The optimizer of each parameter, by the parameter's name."""
    choose = getattr(optimizer, "for_parameters", None)
    return dict.fromkeys(names, optimizer) if choose is None else choose(names)


def joins_parameters(optimizer: object) -> bool:
    """Whether `update` takes all parameters of this optimizer at once, joined to one vector."""
    return bool(getattr(optimizer, "joins_parameters", False))


def matching(pattern: str, names: Sequence[str], where: str = "") -> list[str]:
    """The names that match a pattern such as `"0.*"` or `"*.bias"`; DefinitionError for none."""
    matches = [name for name in names if fnmatchcase(name, pattern)]
    if not matches:
        raise DefinitionError(
            "a pattern fits no parameter",
            facts=(("pattern", repr(pattern)), ("parameters", ", ".join(names) or "none")),
            where=where,
            advice="A star stands for any text: '1.*' is all of layer 1, '*.bias' every bias.",
        )
    return matches


def check_metrics(metrics: object) -> None:
    """Raises DefinitionError if it is not a sequence of metrics."""
    if not isinstance(metrics, list | tuple):
        raise wrong_argument("metrics", "a list of metrics", "[lm.Accuracy()]", metrics)
    for metric in cast(Sequence[object], metrics):
        if isinstance(metric, type) or not hasattr(metric, "statistics"):
            raise wrong_argument("metric", "a metric", "lm.Accuracy()", metric)


def name_of_class(cls: type) -> str:
    """The name of a class in small letters: `"cross_entropy"` of `CrossEntropy`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()


def wrong_argument(
    where: str, kind: str, expected: str, argument: object, advice: str = ""
) -> DefinitionError:
    """The error for an argument, named `where`, that is not of a kind, `"a loss"`.

    For a class, or an object of another framework, the advice says what to make of it.
    """
    from lamina.learning.schedules import Schedule  # only errors need it

    foreign = advice_on_object(argument)
    if foreign:
        # Its `repr` may have many lines.
        cls = argument if isinstance(argument, type) else type(argument)
        text, advice = f"{cls.__module__}.{cls.__qualname__}", foreign
    else:
        text = repr(argument)
        if isinstance(argument, type):
            advice = f"Make one of the class: {argument.__name__}(...)."
        elif isinstance(argument, str) and (here := word_here(argument, kind.split()[-1])):
            advice = f"Write {f'[{here}]' if 'list' in kind else here}."
        elif isinstance(argument, Schedule):
            advice = "A schedule is the rate of an optimizer: lm.SGD(schedule)."
        elif "list" in kind and (callable(argument) or isinstance(type(argument), Called)):
            advice = f"Put it in a list: {where}=[...]."
    facts = (("expected", expected), ("found", text))
    return DefinitionError(f"this is not {kind}", facts=facts, advice=advice, where=where)
