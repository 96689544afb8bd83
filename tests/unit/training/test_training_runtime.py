"""Training: steps and runs, bits, memory, release, and calls refused before anything changes."""

import copy
import math
import numbers
import operator
import pickle
import statistics
from collections.abc import Callable
from datetime import timedelta
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from error_texts import error_text, refused
from random_arrays import normal
from training_cases import TRAIN, X, Y, labels, losses_of, network, same, training

import lamina as lm
import lamina.model
from lamina import ops
from lamina.data import Dataset
from lamina.errors import DataError, DTypeError, LaminaError, ReleasedError, ShapeError


def test_a_run_gives_the_same_bits_as_single_training_steps():
    stepped, run = lm.Model(network()), lm.Model(network())
    with training(stepped) as one, training(run) as other:
        losses: list[float] = []
        for epoch in range(2):
            for start in range(0, 50, 8):
                rows = TRAIN.order(3, epoch)[start : start + 8]
                losses.append(float(one.step(TRAIN.inputs[rows], TRAIN.targets[rows])))
        found = other.run(TRAIN, steps=14, seed=3)
    np.testing.assert_array_equal(found, np.array(losses, "float32"))
    assert same(stepped.parameters(), run.parameters())


def test_dropout_differs_from_step_to_step_and_is_decided_by_the_seed():
    def losses(seed):
        with training(lm.Model(network()), optimizer=lm.SGD(1e-30), seed=seed) as trainer:
            return [float(trainer.step(X, Y)) for _ in range(2)]

    first, second = losses(0)
    assert first != second
    assert losses(0) == [first, second]
    assert losses(1)[0] != first


def test_a_loss_that_is_read_late_is_the_same():
    expected = losses_of(float)
    assert losses_of(lambda loss: None) == expected
    with training(lm.Model(network())) as trainer:
        loss = trainer.step(normal(8, 4), labels(8))
        trainer.run(TRAIN, steps=3)
    assert float(loss) == expected[0]


def test_a_loss_is_a_number_like_floats():
    with training(lm.Model(network())) as trainer:
        loss = trainer.step(normal(8, 4), labels(8))
        value, other = float(loss), trainer.step(normal(8, 4), labels(8))
    assert isinstance(loss, numbers.Real)
    unary: list[Callable[[Any], Any]] = [abs, round, int, bool, hash, complex, math.trunc]
    unary += [operator.neg, operator.pos, math.floor, math.ceil, math.sqrt, np.sqrt, np.asarray]
    unary += [str, repr, copy.copy, lambda x: pickle.loads(pickle.dumps(x)), lambda x: x.hex()]
    unary += [lambda x: x.as_integer_ratio(), lambda x: x.is_integer(), lambda x: f"{x:.3e}"]
    unary += [lambda x: x + Fraction(1, 3), lambda x: Fraction(1, 3) / x, lambda x: x * 2j]
    unary += [lambda x: 2j - x, lambda x: timedelta(1) * x, lambda x: x / np.float32(3)]
    unary += [lambda x: round(x, 2), lambda x: x.real + x.imag, lambda x: np.mean([x, 2.0])]
    for function in unary:
        assert function(loss) == function(value)
        assert type(function(loss)) is type(function(value))
    names = "add sub mul truediv floordiv mod pow lt le gt ge eq ne"
    binary = [divmod, *(getattr(operator, name) for name in names.split())]
    for function in binary:
        for second in (2, 0.5):
            assert function(loss, second) == function(value, second)
            assert function(second, loss) == function(second, value)
        assert function(loss, other) == function(value, float(other))
        array = np.array([0.5, 2.0], np.float32)
        for found, expected in (
            (function(loss, array), function(value, array)),
            (function(array, loss), function(array, value)),
        ):
            np.testing.assert_array_equal(found, expected, strict=True)
    assert statistics.mean([loss, other]) == statistics.mean([value, float(other)])
    np.testing.assert_array_equal(np.from_dlpack(loss), np.asarray(value), strict=True)
    with pytest.raises(TypeError, match="unsupported operand"):
        loss + "a"


def test_a_smaller_batch_is_trained_on(model):
    exact = lm.Model(network())
    with training(model, batch_size=8) as one, training(exact, batch_size=3) as other:
        x, y = normal(3, 4), labels(3)
        assert float(one.step(x, y)) == float(other.step(x, y))
    assert same(model.parameters(), exact.parameters())


def test_a_run_does_so_many_training_steps(model):
    before = model.parameters()
    with training(model) as trainer:
        assert trainer.run(TRAIN, steps=0).shape == (0,)
        assert same(model.parameters(), before)
        # The second epoch follows the first one.
        assert trainer.run(TRAIN, steps=np.int64(17)).shape == (17,)
        assert trainer.steps_done == 17


def test_dropping_the_only_batch_is_refused():
    with training(lm.Model(network()), 64) as trainer:
        error = refused(DataError, lambda: trainer.run(TRAIN, steps=1, drop_last=True))
    assert error.facts == (("examples", "50"), ("batch", "64"))


LABEL = (
    "in CrossEntropy: labels out of range\n"
    "  expected  0..2\n"
    "  found     7 at example 3\n"
    "  The network has 3 outputs: number the classes from 0, or give its last layer 8 features."
)
TOO_MANY = (
    "in step: the batch is larger than the training was made for\n"
    "  expected  at most 8\n"
    "  found     9\n"
    "  Make it with batch_size=9, or give fewer examples."
)


REFUSED: dict[str, tuple[Any, Any, type[LaminaError], str]] = {
    "a label too high": (X, np.array([0, 1, 2, 7] * 2), DataError, LABEL),
    "too many examples": (normal(9, 4), labels(9), ShapeError, TOO_MANY),
    "a negative label": (X, np.array([0] * 7 + [-1]), DataError, "labels out of range"),
    "labels as floats": (X, np.zeros(8, "float32"), DTypeError, "target 0 has the wrong dtype"),
    "labels in a column": (X, np.zeros((8, 1), int), ShapeError, "target 0 has another shape"),
    "other features": (normal(8, 5), Y, ShapeError, "input 0 has another shape"),
    "one example": (normal(4), Y[0], ShapeError, "input 0 has another shape"),
    "too large numbers": (np.full((8, 4), 1e300), Y, DataError, "float32 cannot hold"),
    "text": (np.full((8, 4), "a"), Y, DTypeError, "there is no dtype"),
    "uneven rows": ([[1.0], [1.0, 2.0]], Y, DataError, "input 0 cannot be converted to an array"),
    "fewer labels": (X, Y[:7], DataError, "differ in their number of examples"),
    "no examples": (X[:0], Y[:0], DataError, "there are no examples"),
    "no labels": (X, None, DataError, "another number of targets"),
    "no inputs": (None, Y, DataError, "another number of inputs"),
    "two inputs": ((X, X), Y, DataError, "another number of inputs"),
    "two targets": (X, (Y, Y), DataError, "another number of targets"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_batches_are_refused_before_anything_changes(name, model):
    x, y, error, text = REFUSED[name]
    with training(model) as trainer:
        trainer.step(X, Y)
        before, state = model.parameters(), trainer.state()
        assert text in error_text(error, lambda: trainer.step(x, y))
        assert same(model.parameters(), before)
        assert same(trainer.state(), state)


def test_a_loss_that_cannot_be_trained_is_refused():
    def fault(loss):
        return error_text(LaminaError, lambda: training(lm.Model(network()), loss=loss))

    assert fault(lambda p, t: p - t) == (
        "in loss: a loss must be a single number\n"
        "  expected  a tensor f32[]\n"
        "  found     f32[batch, 3]   from loss\n"
        "  Average over the examples: ops.mean(...)."
    )
    assert "nothing to train" in fault(lambda p, t: ops.mean(t))
    assert fault(lambda p, t: ops.mean(ops.cast(p > t, "float32"))) == (
        "there is nothing to train: no gradient of the loss reaches a parameter\n"
        "  found  comparisons, casts or indices between the loss and all of them\n"
        "  Use a differentiable loss: lm.CrossEntropy() instead of an accuracy."
    )


def test_parameters_that_the_loss_does_not_depend_on_stay_as_they_are():
    a = lm.Input(4)
    model = lm.Model(lm.Network(a, [lm.Linear(3)(a), lm.Linear(2)(a)]))
    before = model.parameters()
    with training(model, loss=lambda p, t: ops.mean(p[0] * p[0])) as trainer:
        trainer.step(X, (normal(8, 3), normal(8, 2)))
    after = model.parameters()
    assert (after["1.weight"] != before["1.weight"]).all()
    assert after["2.weight"].tobytes() == before["2.weight"].tobytes()


def test_a_loss_may_do_without_targets():
    with training(lm.Model(network()), loss=lambda p, _: ops.mean(p * p), data=X) as trainer:
        first = float(trainer.step(X))
        trainer.run(Dataset(X), steps=50)
        assert float(trainer.step(X)) < first
        error = refused(DataError, lambda: trainer.step(X, Y))
    assert error.facts == (("expected", "0"), ("found", "1"))


def test_two_trainings_can_be_attached_to_one_model(model):
    with training(model) as one, training(model, optimizer=lm.SGD(0.1)) as other:
        one.step(X, Y)
        between = model.parameters()
        other.step(X, Y)
        assert not same(model.parameters(), between)
        assert (one.steps_done, other.steps_done) == (1, 1)


def test_a_training_shares_the_parameters_with_its_model(model):
    with training(model, loss=lm.MSE()) as trainer:
        model.set_parameters({name: 0 * value for name, value in model.parameters().items()})
        y = normal(8, 3)
        assert float(trainer.step(X, y)) == pytest.approx(np.mean(y**2), rel=1e-5)
        assert (model.predict(X) != 0).any()


USES: dict[str, Callable[[Any], Any]] = {
    "step": lambda trainer: trainer.step(X, Y),
    "run": lambda trainer: trainer.run(TRAIN, steps=1),
    "state": lambda trainer: trainer.state(),
    "restore": lambda trainer: trainer.restore({}),
    "bill": lambda trainer: trainer.bill,
    "steps_done": lambda trainer: trainer.steps_done,
}


@pytest.mark.parametrize("use", USES)
def test_every_use_of_a_training_released_by_an_error_is_refused_and_the_model_works_on(use):
    trainer = training(model := lm.Model(network()))
    with pytest.raises(ZeroDivisionError), trainer:
        raise ZeroDivisionError
    assert error_text(ReleasedError, USES[use], trainer) == (
        "in Training: this training was released: its memory is gone\n"
        "  Make a new one with model.training(...); the model still works."
    )
    trainer.release()
    assert model.predict(X).shape == (8, 3)
