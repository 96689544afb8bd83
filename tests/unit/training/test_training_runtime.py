"""Training: steps and runs, bits, memory, release, and calls refused before anything changes."""

from __future__ import annotations

import copy
import math
import numbers
import operator
import pickle
import statistics
from collections.abc import Callable
from datetime import timedelta
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np
import pytest
from fit_cases import same
from random_arrays import normal
from training_cases import DATA, X, Y, labels, losses_of, network, training

import lamina as lm
import lamina.model
from lamina import ops
from lamina.data import Dataset
from lamina.errors import (
    DataError,
    DefinitionError,
    DTypeError,
    LaminaError,
    ReleasedError,
    ShapeError,
)

# Bits ---------------------------------------------------------------------------------------------


def test_a_run_gives_the_same_bits_as_single_training_steps() -> None:
    stepped, run = lm.Model(network()), lm.Model(network())
    with training(stepped) as one, training(run) as other:
        losses: list[float] = []
        for epoch in range(2):
            for rows in chain.from_iterable(one.batches_of(DATA, seed=3, epoch=epoch)):
                losses.append(float(one.step(DATA.inputs[rows], DATA.targets[rows])))
        found = other.run(DATA, steps=14, seed=3)
    np.testing.assert_array_equal(found, np.array(losses, "float32"))
    assert same(stepped.parameters(), run.parameters())


def test_two_runs_give_the_same_bits() -> None:
    one, other = lm.Model(network()), lm.Model(network())
    for model in (one, other):
        with training(model) as trainer:
            trainer.run(DATA, steps=20, seed=3)
    assert same(one.parameters(), other.parameters())


def test_consecutive_training_steps_draw_new_random_numbers() -> None:
    model = lm.Model(lm.Sequential(lm.Input(4), lm.Dropout(0.5), lm.Linear(3)))
    x, y = normal(8, 4), np.zeros((8, 3), "float32")
    with training(model, loss=lm.MSE(), optimizer=lm.SGD(1e-30)) as trainer:
        first, second = float(trainer.step(x, y)), float(trainer.step(x, y))
    assert first != second


@pytest.mark.parametrize("seed", [0, 1])
def test_the_seed_of_a_training_decides_its_dropout(seed: int) -> None:
    model = lm.Model(network(), seed=0)
    with training(model, seed=0) as one, training(model, seed=seed) as other:
        x, y = normal(8, 4), labels(8)
        first = float(one.step(x, y))
        model.set_parameters(lm.Model(network(), seed=0).parameters())
        assert (first == float(other.step(x, y))) == (seed == 0)


def test_a_training_step_of_gradient_descent_follows_the_formula() -> None:
    model = lm.Model(lm.Sequential(lm.Input(4), lm.Linear(3)))
    before = model.parameters()
    x, y = normal(8, 4), normal(8, 3, seed=1)
    with training(model, loss=lm.MSE(), optimizer=lm.SGD(0.1)) as trainer:
        loss = float(trainer.step(x, y))
    error = x @ before["1.weight"].T + before["1.bias"] - y
    after = model.parameters()
    assert loss == pytest.approx(np.mean(error**2), rel=1e-5)
    slope = 2 * error / error.size
    expected = before["1.weight"] - 0.1 * slope.T @ x
    np.testing.assert_allclose(after["1.weight"], expected, rtol=1e-5, atol=1e-6)
    expected = before["1.bias"] - 0.1 * slope.sum(axis=0)
    np.testing.assert_allclose(after["1.bias"], expected, rtol=1e-5, atol=1e-6)


def test_training_in_double_precision() -> None:
    model = lm.Model(network(), dtype="float64")
    with training(model) as trainer:
        loss = trainer.step(np.random.default_rng(0).normal(size=(8, 4)), labels(8))
        assert np.isfinite(float(loss))
    assert model.parameters()["1.weight"].dtype == np.float64


# The deferred loss --------------------------------------------------------------------------------


def test_a_loss_that_is_read_late_is_the_same() -> None:
    assert losses_of(lambda loss: None) == losses_of(float)


def test_a_loss_can_be_read_after_release() -> None:
    with training(lm.Model(network())) as trainer:
        loss = trainer.step(normal(8, 4), labels(8))
    assert float(loss) == losses_of(float)[0]


def test_a_loss_can_be_printed() -> None:
    with training(lm.Model(network())) as trainer:
        loss = trainer.step(normal(8, 4), labels(8))
        assert f"{loss:.3f}" == f"{float(loss):.3f}"
        assert repr(loss) == repr(float(loss))


def test_a_loss_is_a_number_like_floats() -> None:
    with training(lm.Model(network())) as trainer:
        loss = trainer.step(normal(8, 4), labels(8))
        value, other = float(loss), trainer.step(normal(8, 4), labels(8))
    assert isinstance(loss, numbers.Real)
    unary: list[Callable[[Any], Any]] = [abs, round, int, bool, hash, complex, math.trunc]
    unary += [operator.neg, operator.pos, math.floor, math.ceil, math.sqrt, np.sqrt, np.asarray]
    unary += [str, copy.copy, lambda x: pickle.loads(pickle.dumps(x)), lambda x: x.hex()]
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


def test_a_run_does_not_disturb_a_loss_that_was_not_read() -> None:
    with training(lm.Model(network())) as trainer:
        loss = trainer.step(normal(8, 4), labels(8))
        trainer.run(DATA, steps=3)
    assert float(loss) == losses_of(float)[0]


# Batches ------------------------------------------------------------------------------------------


def test_a_smaller_batch_is_trained_on() -> None:
    model, exact = lm.Model(network()), lm.Model(network())
    with training(model, batch_size=8) as one, training(exact, batch_size=3) as other:
        x, y = normal(3, 4), labels(3)
        assert float(one.step(x, y)) == float(other.step(x, y))
    assert same(model.parameters(), exact.parameters())


def test_every_example_of_an_epoch_is_in_one_batch() -> None:
    with training(lm.Model(network())) as trainer:
        batches = list(chain.from_iterable(trainer.batches_of(DATA, seed=0, epoch=0)))
    assert [len(rows) for rows in batches] == [8] * 6 + [2]
    assert sorted(np.concatenate(batches)) == list(range(50))


def test_the_smaller_last_batch_can_be_left_out() -> None:
    with training(lm.Model(network())) as trainer:
        (batches,) = trainer.batches_of(DATA, seed=0, epoch=0, drop_last=True)
    assert batches.shape == (6, 8)


def test_epochs_differ_in_their_order() -> None:
    with training(lm.Model(network())) as trainer:
        one, other = (trainer.batches_of(DATA, 0, epoch)[0] for epoch in (0, 1))
    assert (one != other).any()


def test_a_run_longer_than_an_epoch_continues_with_the_next_epoch() -> None:
    with training(lm.Model(network())) as trainer:
        assert trainer.run(DATA, steps=17).shape == (17,)
        assert trainer.steps_done == 17


def test_a_run_of_no_training_steps_does_nothing() -> None:
    model = lm.Model(network())
    before = model.parameters()
    with training(model) as trainer:
        assert trainer.run(DATA, steps=0).shape == (0,)
    assert same(model.parameters(), before)


@pytest.mark.parametrize("steps", [-1, 1.5, "3", None, True])
def test_the_training_steps_of_a_run_are_a_whole_number(steps: Any) -> None:
    with training(lm.Model(network())) as trainer:
        with pytest.raises(DefinitionError) as caught:
            trainer.run(DATA, steps=steps)
        assert trainer.steps_done == 0
    assert str(caught.value).endswith(
        f"steps must be a whole number of at least 0\n  expected  steps >= 0\n  found     {steps!r}"
    )


def test_the_training_steps_of_a_run_may_be_a_number_of_numpy() -> None:
    with training(lm.Model(network())) as trainer:
        assert trainer.run(DATA, steps=np.int64(2)).shape == (2,)


def test_a_batch_that_is_too_large_is_refused() -> None:
    with training(lm.Model(network())) as trainer, pytest.raises(ShapeError) as caught:
        trainer.step(normal(9, 4), labels(9))
    assert str(caught.value) == (
        "in step: the batch is larger than the training was made for\n"
        "  expected  at most 8\n"
        "  found     9\n"
        "  Make it with batch_size=9, or give fewer examples."
    )


def test_dropping_the_only_batch_is_refused() -> None:
    with training(lm.Model(network()), 64) as trainer, pytest.raises(DataError) as caught:
        trainer.run(DATA, steps=1, drop_last=True)
    assert caught.value.facts == (("examples", "50"), ("batch", "64"))


@pytest.mark.parametrize("size", [0, -1, 2.5, True, "8"])
def test_a_batch_size_is_a_whole_number_above_zero(size: Any) -> None:
    with pytest.raises(DefinitionError, match="a batch has at least one example"):
        training(lm.Model(network()), size)


# Refused before anything changes ------------------------------------------------------------------


REFUSED: dict[str, tuple[Any, Any, type[LaminaError], str]] = {
    "a label too high": (X, np.array([0] * 7 + [3]), DataError, "labels out of range"),
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
def test_wrong_batches_are_refused_before_anything_changes(name: str) -> None:
    x, y, error, text = REFUSED[name]
    model = lm.Model(network())
    with training(model) as trainer:
        trainer.step(X, Y)
        before, state = model.parameters(), trainer.state()
        with pytest.raises(error, match=text):
            trainer.step(x, y)
        assert same(model.parameters(), before)
        assert same(trainer.state(), state)


def test_a_label_out_of_range_is_named_with_its_example_and_the_fix() -> None:
    with training(lm.Model(network())) as trainer, pytest.raises(DataError) as caught:
        trainer.step(X, np.array([0, 1, 2, 7, 0, 0, 0, 0]))
    assert str(caught.value) == (
        "in CrossEntropy: labels out of range\n"
        "  expected  0..2\n"
        "  found     7 at example 3\n"
        "  The network has 3 outputs: number the classes from 0, or give its last layer 8 features."
    )


def test_a_label_out_of_range_in_a_data_set_is_refused_before_the_first_training_step() -> None:
    model = lm.Model(network())
    before = model.parameters()
    wrong = Dataset(normal(50, 4), np.array([0] * 49 + [3]))
    with training(model) as trainer, pytest.raises(DataError, match="3 at example 49"):
        trainer.run(wrong, steps=1)
    assert same(model.parameters(), before)


def test_another_dtype_than_the_program_was_compiled_for_is_refused() -> None:
    images = np.zeros((8, 4), "uint8")
    with training(lm.Model(network()), data=(images, Y)) as trainer:
        trainer.step(images, Y)
        with pytest.raises(DTypeError) as caught:
            trainer.step(X, Y)
    assert str(caught.value) == (
        "input 0 has another dtype than the program was compiled for\n"
        "  expected  uint8\n"
        "  found     float32\n"
        "  Convert it: array.astype('uint8')."
    )


def test_small_integers_stay_small_in_the_input_buffer() -> None:
    with training(lm.Model(network()), data=(np.zeros((8, 4), "uint8"), Y)) as trainer:
        assert trainer.bill.program.buffers["input0"].dtype.name == "uint8"


def test_a_loss_that_is_no_single_number_is_refused() -> None:
    with pytest.raises(ShapeError) as caught:
        training(lm.Model(network()), loss=lambda p, t: p - t)
    assert str(caught.value) == (
        "in loss: a loss must be a single number\n"
        "  expected  a tensor f32[]\n"
        "  found     f32[batch, 3]   from loss\n"
        "  Average over the examples: ops.mean(...)."
    )


def test_a_loss_that_depends_on_no_parameter_is_refused() -> None:
    with pytest.raises(DefinitionError, match="nothing to train"):
        training(lm.Model(network()), loss=lambda p, t: ops.mean(t))


def test_a_loss_without_a_gradient_is_refused() -> None:
    with pytest.raises(DefinitionError) as caught:
        training(lm.Model(network()), loss=lambda p, t: ops.mean(ops.cast(p > t, "float32")))
    assert str(caught.value) == (
        "there is nothing to train: no gradient of the loss reaches a parameter\n"
        "  found  comparisons, casts or indices between the loss and all of them\n"
        "  Use a differentiable loss: lm.CrossEntropy() instead of an accuracy."
    )


def test_parameters_that_the_loss_does_not_depend_on_stay_as_they_are() -> None:
    a = lm.Input(4)
    model = lm.Model(lm.Network(a, [lm.Linear(3)(a), lm.Linear(2)(a)]))
    before = model.parameters()
    with training(model, loss=lambda p, t: ops.mean(p[0] * p[0])) as trainer:
        trainer.step(X, (normal(8, 3), normal(8, 2)))
    after = model.parameters()
    assert (after["1.weight"] != before["1.weight"]).all()
    assert after["2.weight"].tobytes() == before["2.weight"].tobytes()


# Losses of all kinds ------------------------------------------------------------------------------


def test_a_plain_function_can_be_a_loss() -> None:
    x, y = normal(8, 4), normal(8, 3)
    losses: list[float] = []
    for loss in (lm.MSE(), lambda p, t: ops.mean((p - t) * (p - t))):
        with training(lm.Model(network()), loss=loss) as trainer:
            losses.append(float(trainer.step(x, y)))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_a_loss_may_do_without_targets() -> None:
    model = lm.Model(network())
    with training(model, loss=lambda p, _: ops.mean(p * p), data=X) as trainer:
        first = float(trainer.step(X))
        trainer.run(Dataset(X), steps=50)
        assert float(trainer.step(X)) < first


def test_targets_for_a_loss_without_any_are_refused() -> None:
    with (
        training(lm.Model(network()), loss=lambda p, _: ops.mean(p * p), data=X) as trainer,
        pytest.raises(DataError) as caught,
    ):
        trainer.step(X, Y)
    assert caught.value.facts == (("expected", "0"), ("found", "1"))


def test_a_network_of_several_outputs_has_several_targets() -> None:
    a, b = lm.Input(4), lm.Input(2)
    net = lm.Network([a, b], [lm.Linear(3)(a), lm.Linear(1)(lm.concat([a, b]))])

    def loss(predictions: Any, targets: Any) -> lm.Tensor:
        return lm.MSE()(predictions[0], targets[0]) + 2.0 * lm.MSE()(predictions[1], targets[1])

    model = lm.Model(net)
    x, y = (normal(8, 4), normal(8, 2)), (normal(8, 3), normal(8, 1))
    one, other = model.predict(x)
    expected = np.mean((one - y[0]) ** 2) + 2 * np.mean((other - y[1]) ** 2)
    with training(model, loss=loss) as trainer:
        assert float(trainer.step(x, y)) == pytest.approx(expected, rel=1e-5)
        trainer.run(Dataset(x, y), steps=5)


def test_penalties_are_added_to_the_loss() -> None:
    net = lm.Sequential(lm.Input(4), lm.Linear(3, weight_regularizer=lm.L2(0.5)))
    model = lm.Model(net)
    x, y = normal(8, 4), normal(8, 3)
    weight = model.parameters()["1.weight"]
    expected = np.mean((model.predict(x) - y) ** 2) + 0.25 * np.sum(weight**2)
    with training(model, loss=lm.MSE()) as trainer:
        assert float(trainer.step(x, y)) == pytest.approx(expected, rel=1e-5)


# Sharing and release ------------------------------------------------------------------------------


def test_a_training_shares_the_parameters_with_its_model() -> None:
    model = lm.Model(network())
    with training(model) as trainer:
        own = trainer._shared
        assert all(own[name] is memory for name, memory in model._parameters.memories.items())


def test_two_trainings_can_be_attached_to_one_model() -> None:
    model = lm.Model(network())
    with training(model) as one, training(model, optimizer=lm.SGD(0.1)) as other:
        one.step(X, Y)
        between = model.parameters()
        other.step(X, Y)
        assert not same(model.parameters(), between)
        assert (one.steps_done, other.steps_done) == (1, 1)


def test_parameters_that_are_set_are_used_by_a_training() -> None:
    model = lm.Model(network())
    with training(model, loss=lm.MSE()) as trainer:
        model.set_parameters({name: 0 * value for name, value in model.parameters().items()})
        y = normal(8, 3)
        assert float(trainer.step(X, y)) == pytest.approx(np.mean(y**2), rel=1e-5)


def test_a_model_predicts_with_the_parameters_of_the_running_training() -> None:
    model = lm.Model(network())
    with training(model) as trainer:
        before = model.predict(X)
        trainer.step(X, Y)
        assert (model.predict(X) != before).any()


USES: dict[str, Callable[[Any], Any]] = {
    "step": lambda trainer: trainer.step(X, Y),
    "run": lambda trainer: trainer.run(DATA, steps=1),
    "state": lambda trainer: trainer.state(),
    "restore": lambda trainer: trainer.restore({}),
    "bill": lambda trainer: trainer.bill,
    "steps_done": lambda trainer: trainer.steps_done,
}


@pytest.mark.parametrize("use", USES)
def test_every_use_of_a_released_training_is_refused(use: str) -> None:
    trainer = training(lm.Model(network()))
    trainer.release()
    with pytest.raises(ReleasedError) as caught:
        USES[use](trainer)
    assert str(caught.value) == (
        "in Training: this training was released: its memory is gone\n"
        "  Make a new one with model.training(...); the model still works."
    )


def test_a_model_works_on_after_its_training_is_released() -> None:
    model = lm.Model(network())
    with training(model) as trainer:
        trainer.step(X, Y)
    after = model.parameters()
    assert model.predict(X).shape == (8, 3)
    assert same(model.parameters(), after)


def test_a_training_may_be_released_twice() -> None:
    trainer = training(lm.Model(network()))
    trainer.release()
    trainer.release()


def test_an_error_in_the_block_releases_the_training() -> None:
    trainer = training(lm.Model(network()))
    with pytest.raises(ZeroDivisionError), trainer:
        raise ZeroDivisionError
    with pytest.raises(ReleasedError):
        trainer.step(X, Y)
