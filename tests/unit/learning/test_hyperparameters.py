"""Numbers of optimizers, schedules, clipping and penalties are inputs of the program."""

import dataclasses
import inspect
import math
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.base.shapes import float32
from lamina.compiler import pipeline, program_cache
from lamina.engines.cpu import llvm
from lamina.errors import DefinitionError
from lamina.layers import regularizers
from lamina.learning import clipping, optimizers, schedules
from lamina.learning.protocols import TrainingOptions
from lamina.step.derive import BatchSpecs, default_targets, training_graph

# Arguments without a default, and flags that let other fields matter.
ARGUMENTS = {
    "ByPath": {"patterns": {"*.bias": lm.SGD(0.25)}, "default": lm.SGD(0.5)},
    "EMA": {"optimizer": lm.SGD(0.25)},
    "SWA": {"optimizer": lm.SGD(0.25), "start": 3},
    "Chain": {"boundaries": (5, 9), "schedules": (0.25, schedules.Linear(0.5, 7), 0.125)},
    "PiecewiseConstant": {"boundaries": (5, 9), "rates": (0.25, 0.5, 0.125)},
    "Warmup": {"then": 0.25},
}
# Used for every other field without a default.
NUMBERS = {"rate": 0.25, "steps": 7, "every": 3, "factor": 0.25, "limit": 0.25, "strength": 0.25}
# A number that decides how many states there are.
STRUCTURE = {("LBFGS", "history")}


def public(module, base):
    classes = {cls for name in dir(module) if isinstance(cls := getattr(module, name), type)}
    records = [cls for cls in classes if issubclass(cls, base) and dataclasses.is_dataclass(cls)]
    concrete = (cls for cls in records if not inspect.isabstract(cls))
    return sorted(concrete, key=lambda cls: cls.__name__)


def example(cls):
    """A record in which no number is 0 or 1, because these may decide the structure."""
    arguments = dict(ARGUMENTS.get(cls.__name__, {}))
    for field in dataclasses.fields(cls):
        if field.name in arguments:
            continue
        if field.default is dataclasses.MISSING:
            arguments[field.name] = NUMBERS[field.name]
        elif is_number(field.default) and field.default in (0, 1):
            arguments[field.name] = 3 if isinstance(field.default, int) else 0.25
    return cls(**arguments)


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def others(value):
    """Other values of a field, at least one of them valid; none if it has no numbers."""
    if is_number(value):
        yield from (
            (value + 2, value + 3) if isinstance(value, int) else (value * 0.75, value * 1.25)
        )
    elif isinstance(value, tuple):
        yield from zip(*(list(others(part)) for part in value), strict=True)
    elif isinstance(value, dict):
        yield from (dict.fromkeys(value, new) for part in value.values() for new in others(part))
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            for new in others(getattr(value, field.name)):
                yield dataclasses.replace(value, **{field.name: new})


def changed(record, field):
    for value in others(getattr(record, field)):
        try:
            return dataclasses.replace(record, **{field: value})
        except lm.errors.DefinitionError:
            continue
    raise AssertionError(f"no other value of {field} is valid")


def cases():
    """Every field with numbers of every public record."""
    for module, base in (
        (optimizers, optimizers.Optimizer),
        (schedules, schedules.Schedule),
        (clipping, clipping.Sourced),
        (regularizers, regularizers.Sourced),
    ):
        for cls in public(module, base):
            record = example(cls)
            for field in dataclasses.fields(cls):
                has_numbers = next(others(getattr(record, field.name)), None) is not None
                if has_numbers and (cls.__name__, field.name) not in STRUCTURE:
                    yield pytest.param(record, field.name, id=f"{cls.__name__}-{field.name}")


def step_of(record, dtype=float32):
    """The training step in which a record is used."""
    how = {"optimizer": lm.SGD(0.25)}
    penalty = None
    if isinstance(record, optimizers.Optimizer):
        how["optimizer"] = record
    elif isinstance(record, schedules.Schedule):
        how["optimizer"] = lm.SGD(record)
    elif record.__class__.__module__ == clipping.__name__:
        how["clip"] = record
    else:
        penalty = record
    net = lm.Sequential(lm.Input(3), lm.Linear(2, weight_regularizer=penalty))
    targets = default_targets(net, lm.MSE(), dtype)
    return training_graph(BatchSpecs(net, dtype, targets=targets), TrainingOptions(lm.MSE(), **how))


def checksum(step):
    found = program_cache.graph_checksum(step.graph)
    assert found is not None
    return found


def values(step):
    leaves = {**step.slots, **step.hyperparameters.leaves}
    return {name: float(value) for name, (_, value) in leaves.items()}


@pytest.mark.parametrize(("record", "field"), [*cases()])
def test_another_number_is_the_same_program(record, field):
    one, other = step_of(record), step_of(changed(record, field))
    assert checksum(one) == checksum(other)
    assert values(one).keys() == values(other).keys()
    assert values(one) != values(other)


@pytest.mark.cases(
    ("one", "other"),
    (lm.Adam(0.9, beta1=0.9, beta2=0.9, epsilon=0.9), lm.Adam()),
    (lm.SGD(1.0, momentum=1.0, weight_decay=1.0), lm.SGD(0.1, momentum=0.9, weight_decay=0.2)),
    (lm.SGD(0.0), lm.SGD(2.0)),
    # Cycles of equal height.
    (schedules.Cyclic(0.1, 5), schedules.Cyclic(0.1, 5, factor=0.9)),
    ids=repr,
)
def test_the_program_does_not_depend_on_numbers_that_happen_to_be_equal(one, other):
    assert checksum(step_of(one)) == checksum(step_of(other))


def test_numbers_that_decide_what_is_kept_are_another_program():
    records = [lm.SGD(0.1), lm.SGD(0.1, momentum=0.9), lm.SGD(0.1, weight_decay=0.1)]
    assert len({checksum(step_of(record)) for record in records}) == 3


def test_numbers_of_formulas_are_computed_in_double_precision():
    found = values(step_of(lm.Adam(beta2=0.999)))
    assert found["(1.0 - optimizer/beta2)"] == 1.0 - 0.999
    assert found["log(optimizer/beta2)"] == np.log(0.999)


def test_a_fit_with_other_numbers_compiles_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path))
    makers = {"compile_graph": pipeline, "assemble": llvm}
    compiled = [Mock(wraps=getattr(module, name)) for name, module in makers.items()]
    for (name, module), counting in zip(makers.items(), compiled, strict=True):
        monkeypatch.setattr(module, name, counting)
    x, y = np.ones((12, 3), "float32"), np.arange(12) % 2

    def loss(number):
        net = lm.Sequential(lm.Input(3), lm.Linear(2, weight_regularizer=lm.L1(number)))
        optimizer = lm.EMA(
            lm.ByPath(
                {"*.bias": lm.SGD(number, momentum=number)},
                default=lm.AdamW(lm.schedules.Cosine(number, 20), beta1=number, epsilon=number),
            ),
            decay=number,
        )
        how = {"loss": lm.CrossEntropy(), "optimizer": optimizer, "batch_size": 6}
        clip = lm.ClipGlobalNorm(number)
        model = lm.Model(net, engine="cpu", seed=0)
        history = model.fit((x, y), epochs=2, micro_batch=3, clip=clip, progress=False, **how)
        return history["loss"][-1]

    first = loss(0.5)
    before = [counting.call_count for counting in compiled]
    assert min(before) > 0
    assert loss(0.25) != first
    assert [counting.call_count for counting in compiled] == before


def test_a_resumed_fit_takes_the_numbers_that_it_is_given(tmp_path):
    x, y = np.ones((12, 3), "float32"), np.arange(12) % 2
    how = {"loss": lm.CrossEntropy(), "checkpoint": tmp_path / "fit.safetensors"}
    model = lm.Model(lm.Sequential(lm.Input(3), lm.Linear(2)), engine="interpreter", seed=0)
    model.fit((x, y), epochs=1, optimizer=lm.SGD(0.5, momentum=0.9), progress=False, **how)
    before = model.parameters()
    how |= {"resume": True, "progress": False}
    model.fit((x, y), epochs=2, optimizer=lm.SGD(0.0, momentum=0.5), **how)
    assert all((model.parameters()[name] == before[name]).all() for name in before)


class Own(optimizers.Optimizer):
    """An optimizer that is written outside the package, and calculates with its rate."""

    def slots(self):
        return {}

    def update(self, parameter, gradient, slots, step):
        return parameter - gradient * self.formula(self.rate), {}


@dataclasses.dataclass(frozen=True)
class OwnRecord(Own):
    rate: float = 0.25
    formula: Callable[[Any], Any] = lambda rate: rate * 2 - 0.1


def in_tensors(rate):
    return rate + ops.sqrt(ops.cast(rate, "float32"))


@pytest.mark.parametrize("formula", [OwnRecord.formula, in_tensors])
def test_a_rate_that_is_set_changes_the_numbers_that_follow_from_it(formula):
    x, y = np.ones((4, 3), "float32"), np.ones((4, 2), "float32")
    parameters = []
    for rate, later in ((0.25, 0.5), (0.5, None)):
        model = lm.Model(lm.Sequential(lm.Input(3), lm.Linear(2)), engine="interpreter", seed=0)
        with model.training(lm.MSE(), OwnRecord(rate, formula), 4) as training:
            if later is not None:
                training.rate = later
            training.step(x, y)
            assert training.rate == 0.5
        parameters.append(model.parameters())
    assert all((parameters[0][name] == parameters[1][name]).all() for name in parameters[0])


@dataclasses.dataclass(frozen=True)
class OfMatrices(OwnRecord):
    def update(self, parameter, gradient, slots, step):
        size = ops.sqrt(ops.trace(ops.matmul(gradient, gradient.T)))
        return parameter - gradient / size * self.formula(self.rate), {}


def test_the_rate_of_an_optimizer_that_takes_matrices_is_set():
    model = lm.Model(lm.Sequential(lm.Input(3), lm.Linear(2)), engine="interpreter")
    optimizer = lm.ByPath({"*.weight": OfMatrices()}, default=lm.SGD(0.1))
    with model.training(lm.MSE(), optimizer, 4) as training:
        training.set_rates({"rate:*.weight": 0.5})
        assert training.rates == {"rate": 0.1, "rate:*.weight": 0.5}


@pytest.mark.cases(
    "formula",
    lambda rate: rate + math.sqrt(rate),
    lambda rate: rate + float(rate),
    lambda rate: min(rate, 0.3),
    lambda rate: rate if rate < 0.3 else 2 * rate,
)
def test_a_rate_of_which_an_optimizer_makes_a_constant_cannot_be_set(formula):
    model = lm.Model(lm.Sequential(lm.Input(3), lm.Linear(2)), engine="interpreter")
    optimizer = lm.EMA(lm.ByPath({"*.bias": OwnRecord(0.25, formula)}, default=lm.SGD(0.1)))
    with model.training(lm.MSE(), optimizer, 4) as training:
        with pytest.raises(DefinitionError) as caught:
            training.rate = 0.5
        assert str(caught.value) == (
            "in rate: the learning rate of this training cannot be set\n"
            "  The optimizer computes a constant from it. Compute with tensors: "
            "ops.sqrt(ops.cast(self.rate, 'float32')) instead of math.sqrt(self.rate)."
        )
