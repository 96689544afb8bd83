"""Training: steps and runs, bits, memory, release, and what is refused before anything changes."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
import tracemalloc
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest

import lamina as lm
import lamina.model
from lamina import ops
from lamina.data import Dataset
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.errors import (
    DataError,
    DefinitionError,
    DTypeError,
    LaminaError,
    ReleasedError,
    ShapeError,
)

Array = np.ndarray


def network() -> lm.Network:
    return lm.Sequential(lm.Input(4), lm.Linear(5), lm.Tanh(), lm.Dropout(0.3), lm.Linear(3))


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def labels(count: int, classes: int = 3) -> Array:
    return np.random.default_rng(1).integers(0, classes, count)


DATA = Dataset(normal(50, 4), labels(50))


def training(model: lm.Model, batch_size: int = 8, **how: Any) -> Any:
    how = {"loss": lm.CrossEntropy(), "optimizer": lm.Adam(0.01), **how}
    return model.training(batch_size=batch_size, **how)


def same(left: dict[str, Array], right: dict[str, Array]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].tobytes() == right[name].tobytes() for name in left
    )


# Bits ---------------------------------------------------------------------------------------------


def test_a_run_gives_the_same_bits_as_its_steps() -> None:
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


def test_a_run_in_two_parts_goes_on_with_new_random_numbers() -> None:
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


def test_a_step_of_gradient_descent_is_the_textbooks() -> None:
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


def losses_of(read: Callable[[Any], None]) -> list[float]:
    """Losses of three steps, each given to `read` as soon as it is made."""
    with training(lm.Model(network())) as trainer:
        kept = []
        for number in range(3):
            kept.append(trainer.step(normal(8, 4, seed=number), labels(8)))
            read(kept[-1])
    return [float(loss) for loss in kept]


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


def test_a_run_of_more_steps_than_an_epoch_has_goes_on() -> None:
    with training(lm.Model(network())) as trainer:
        assert trainer.run(DATA, steps=17).shape == (17,)
        assert trainer.steps_done == 17


def test_a_run_of_no_steps_does_nothing() -> None:
    model = lm.Model(network())
    before = model.parameters()
    with training(model) as trainer:
        assert trainer.run(DATA, steps=0).shape == (0,)
    assert same(model.parameters(), before)


@pytest.mark.parametrize("steps", [-1, 1.5, "3", None, True])
def test_the_steps_of_a_run_are_a_whole_number(steps: Any) -> None:
    with training(lm.Model(network())) as trainer:
        with pytest.raises(DefinitionError) as caught:
            trainer.run(DATA, steps=steps)
        assert trainer.steps_done == 0
    assert str(caught.value).endswith(
        f"steps must be a whole number of at least 0\n  expected  steps >= 0\n  found     {steps!r}"
    )


def test_the_steps_of_a_run_may_be_a_number_of_numpy() -> None:
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


# What is refused before anything changes ----------------------------------------------------------

X, Y = normal(8, 4), labels(8)
REFUSED: dict[str, tuple[Any, Any, type[LaminaError], str]] = {
    "a label too high": (X, np.array([0] * 7 + [3]), DataError, "labels out of range"),
    "a negative label": (X, np.array([0] * 7 + [-1]), DataError, "labels out of range"),
    "labels as floats": (X, np.zeros(8, "float32"), DTypeError, "target 0 has the wrong dtype"),
    "labels in a column": (X, np.zeros((8, 1), int), ShapeError, "target 0 has another shape"),
    "other features": (normal(8, 5), Y, ShapeError, "input 0 has another shape"),
    "one example": (normal(4), Y[0], ShapeError, "input 0 has another shape"),
    "double precision": (np.zeros((8, 4)), Y, DTypeError, "input 0 has the wrong dtype"),
    "text": (np.full((8, 4), "a"), Y, DTypeError, "there is no dtype"),
    "uneven rows": ([[1.0], [1.0, 2.0]], Y, DataError, "input 0 makes no array"),
    "fewer labels": (X, Y[:7], DataError, "differ in their number of examples"),
    "no examples": (X[:0], Y[:0], DataError, "there are no examples"),
    "no labels": (X, None, DataError, "another number of targets"),
    "no inputs": (None, Y, DataError, "another number of inputs"),
    "two inputs": ((X, X), Y, DataError, "another number of inputs"),
    "two targets": (X, (Y, Y), DataError, "another number of targets"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_before_anything_changes(name: str) -> None:
    x, y, error, text = REFUSED[name]
    model = lm.Model(network())
    with training(model) as trainer:
        trainer.step(X, Y)
        before, state = model.parameters(), trainer.state()
        with pytest.raises(error, match=text):
            trainer.step(x, y)
        assert same(model.parameters(), before)
        assert same(trainer.state(), state)


def test_a_label_out_of_range_is_named_with_its_place_and_the_fix() -> None:
    with training(lm.Model(network())) as trainer, pytest.raises(DataError) as caught:
        trainer.step(X, np.array([0, 1, 2, 7, 0, 0, 0, 0]))
    assert str(caught.value) == (
        "in CrossEntropy: labels out of range\n"
        "  expected  0..2\n"
        "  found     7 at example 3\n"
        "  The network has 3 outputs: number the classes from 0, or give its last layer 8 features."
    )


def test_a_label_out_of_range_in_a_data_set_is_refused_before_the_first_step() -> None:
    model = lm.Model(network())
    before = model.parameters()
    wrong = Dataset(normal(50, 4), np.array([0] * 49 + [3]))
    with training(model) as trainer, pytest.raises(DataError, match="3 at example 49"):
        trainer.run(wrong, steps=1)
    assert same(model.parameters(), before)


def test_another_dtype_than_the_step_was_compiled_for_is_refused() -> None:
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


def test_penalties_are_part_of_the_loss() -> None:
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


def test_a_model_predicts_with_what_was_learned_so_far() -> None:
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
def test_a_released_training_says_so(use: str) -> None:
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


# Memory -------------------------------------------------------------------------------------------


class CountingMemory:
    """A memory that tells its engine what it holds."""

    def __init__(self, engine: CountingEngine, memory: Any) -> None:
        self.engine, self.memory, self.bytes = engine, memory, memory.array.nbytes
        engine.bytes += self.bytes

    @property
    def array(self) -> Array:
        return self.memory.array

    def write(self, array: Array) -> None:
        self.memory.write(array)

    def read(self) -> Array:
        return self.memory.read()

    def release(self) -> None:
        self.engine.bytes -= self.bytes
        self.bytes = 0
        self.memory.release()


class CountingExecutable:
    """A compiled program that tells its engine how large its inputs are.

    As that of a GPU might, it has its results only when someone asks.
    """

    synchronous = False

    def __init__(self, engine: CountingEngine, executable: Any, inputs: int) -> None:
        self.engine, self.executable, self.inputs = engine, executable, inputs
        engine.bytes += inputs

    def run(self, inputs: Any) -> None:
        self.executable.run(inputs)

    def run_many(self, resident: Any, rows: Array, recorded: Any) -> Any:
        inner = {name: m.memory for name, m in resident.items()}
        return self.executable.run_many(inner, rows, recorded)

    def output(self, name: str) -> Array:
        return self.executable.output(name)

    def scalar(self, name: str) -> float:
        self.engine.reads += 1
        return self.executable.scalar(name)

    def release(self) -> None:
        self.engine.bytes -= self.inputs
        self.inputs = 0
        self.executable.release()


class CountingEngine:
    """The interpreter, counting bytes and calls."""

    def __init__(self) -> None:
        self.inner = InterpreterEngine()
        self.device, self.target = self.inner.device, self.inner.target
        self.bytes = self.allocations = self.compilations = self.reads = 0
        self.arenas: list[Any] = []

    @property
    def held(self) -> int:
        return self.bytes + sum(arena.bytes for arena in self.arenas)

    def arena(self) -> Any:
        self.arenas.append(self.inner.arena())
        return self.arenas[-1]

    def available_bytes(self) -> int | None:
        return None

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> CountingMemory:
        self.allocations += 1
        return CountingMemory(self, self.inner.allocate(shape, dtype))

    def compile(
        self, program: Any, memories: Any, arena: Any, *, timed: bool
    ) -> CountingExecutable:
        assert not timed
        self.compilations += 1
        inner = {name: m.memory for name, m in memories.items()}
        compiled = self.inner.compile(program, inner, arena)
        inputs = sum(buffer.bytes for buffer in program.of_kind("input"))
        return CountingExecutable(self, compiled, inputs)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> CountingEngine:
    """The engine of all models that a test makes."""
    engine = CountingEngine()
    monkeypatch.setattr(lamina.model, "open_engine", lambda name: engine)
    return engine


def test_a_model_holds_its_parameters_and_no_more(counting: CountingEngine) -> None:
    lm.Model(network())
    assert counting.held == 4 * (25 + 18)


def test_a_training_holds_what_its_bill_says(counting: CountingEngine) -> None:
    model = lm.Model(network())
    with training(model) as trainer:
        assert counting.held == trainer.bill.peak_bytes - trainer.bill.constant_bytes


def test_a_release_gives_back_all_that_the_training_took(counting: CountingEngine) -> None:
    model = lm.Model(network())
    before = counting.held
    with training(model) as trainer:
        trainer.step(X, Y)
        trainer.step(X[:3], Y[:3])
        trainer.run(DATA, steps=10)
        assert counting.held > before
    assert counting.held == before


def test_losses_on_a_device_are_read_only_if_someone_holds_them(counting: CountingEngine) -> None:
    expected = losses_of(float)
    counting.reads = 0
    with training(lm.Model(network())) as trainer:
        trainer.step(normal(8, 4, seed=0), labels(8))
        held = trainer.step(normal(8, 4, seed=1), labels(8))
        assert counting.reads == 0
        trainer.step(normal(8, 4, seed=2), labels(8))
        assert counting.reads == 1
    assert float(held) == expected[1]
    assert counting.reads == 1


AFTERWARDS: dict[str, Callable[[lm.Model, Any], object]] = {
    "a prediction": lambda model, _: model.predict(X),
    "a prediction of another size": lambda model, _: model.predict(X[:5]),
    "a prediction of a part": lambda model, _: model.part(model.network).predict(X),
    "an evaluation": lambda model, _: model.evaluate(DATA, lm.CrossEntropy()),
    "a step of another size": lambda _, trainer: trainer.step(X[:3], Y[:3]),
    "a run": lambda _, trainer: trainer.run(DATA, steps=3),
    "another training": lambda model, _: training(model, batch_size=50).release(),
    "a release": lambda _, trainer: trainer.release(),
}


@pytest.mark.parametrize("afterwards", AFTERWARDS)
def test_a_loss_on_a_device_is_read_before_it_is_overwritten(
    afterwards: str, counting: CountingEngine
) -> None:
    expected = losses_of(float)
    counting.inner = InterpreterEngine(poison=True)
    model = lm.Model(network())
    model.predict(X)
    with training(model) as trainer:
        held = trainer.step(normal(8, 4, seed=0), labels(8))
        AFTERWARDS[afterwards](model, trainer)
        assert float(held) == expected[0]


def test_an_evaluation_gives_back_all_that_it_took(counting: CountingEngine) -> None:
    model = lm.Model(network())
    before = counting.held
    model.evaluate(DATA, lm.CrossEntropy(), [lm.Accuracy()], 8)
    assert counting.held == before


def test_a_fit_gives_back_all_that_it_took(counting: CountingEngine) -> None:
    model = lm.Model(network())
    before = counting.held
    how: Any = {"loss": lm.CrossEntropy(), "optimizer": lm.Adam(0.01), "epochs": 2}
    model.fit(DATA, validation=DATA, batch_size=8, **how)
    assert counting.held == before


def test_a_fit_that_fails_gives_back_all_that_it_took(counting: CountingEngine) -> None:
    model = lm.Model(network())
    before = counting.held

    def fail(_: object) -> None:
        raise ZeroDivisionError

    how: Any = {"loss": lm.CrossEntropy(), "optimizer": lm.Adam(0.01), "callbacks": [fail]}
    with pytest.raises(ZeroDivisionError):
        model.fit(DATA, validation=DATA, batch_size=8, **how)
    assert counting.held == before


def test_a_training_that_cannot_be_compiled_gives_back_all_that_it_took(
    counting: CountingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = lm.Model(network())
    before = counting.held
    monkeypatch.setattr(counting, "compile", None)
    with pytest.raises(TypeError):
        training(model)
    assert counting.held == before


def test_steps_allocate_and_compile_nothing(counting: CountingEngine) -> None:
    with training(lm.Model(network())) as trainer:
        trainer.step(X, Y)
        before = counting.allocations, counting.compilations
        for _ in range(100):
            trainer.step(X, Y)
        assert (counting.allocations, counting.compilations) == before


def test_a_run_allocates_for_the_data_set_only(counting: CountingEngine) -> None:
    with training(lm.Model(network())) as trainer:
        trainer.run(DATA, steps=7)
        before = counting.allocations, counting.compilations
        trainer.run(DATA, steps=100)
        assert (counting.allocations, counting.compilations) == (before[0] + 2, before[1])


def test_predictions_of_one_size_allocate_once(counting: CountingEngine) -> None:
    model = lm.Model(network())
    model.predict(X)
    before = counting.allocations, counting.compilations
    for _ in range(10):
        model.predict(X)
    assert (counting.allocations, counting.compilations) == before


def test_a_released_training_leaves_nothing_large_behind() -> None:
    model = lm.Model(network())
    with training(model, batch_size=200_000) as trainer:  # what is cached is cached from here on
        needed = trainer.bill.program.plan.arena_bytes
    assert needed > 10_000_000
    tracemalloc.start()
    try:
        with training(model, batch_size=200_000) as released:
            assert tracemalloc.get_traced_memory()[0] > needed
        assert tracemalloc.get_traced_memory()[0] < needed / 10
    finally:
        tracemalloc.stop()
    with pytest.raises(ReleasedError):
        released.step(X, Y)


# Threads ------------------------------------------------------------------------------------------


def in_threads(work: Callable[[int], None], count: int = 4) -> None:
    """Runs `work(number)` in several threads, which are exchanged often; raises what they raise."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if errors:
        raise errors[0]


def test_threads_with_one_model_get_their_own_results() -> None:
    model = lm.Model(network())
    inputs = [normal(5, 4, seed=number) for number in range(4)]
    expected = [model.predict(x) for x in inputs]

    def work(number: int) -> None:
        for _ in range(1000):
            np.testing.assert_array_equal(model.predict(inputs[number]), expected[number])

    in_threads(work)


def test_threads_with_one_function_get_their_own_results() -> None:
    x = lm.Input()
    double = lm.compile(inputs=[x], outputs=[x * 2.0])

    def work(number: int) -> None:
        for _ in range(2000):
            (found,) = double(np.full(3, number, "float32"))
            assert (found == 2 * number).all()

    in_threads(work)


def test_threads_that_predict_batches_of_many_sizes_do_not_disturb_each_other() -> None:
    model = lm.Model(lm.Sequential(lm.Input(2), lm.Linear(1)))

    def work(number: int) -> None:
        for size in range(1, 12):
            assert model.predict(np.ones((size + number, 2), "float32")).shape[0] == size + number

    in_threads(work)


def test_predictions_beside_a_training_never_see_half_an_update() -> None:
    # All columns of the output begin equal and are trained alike, so they stay equal.
    model = lm.Model(lm.Sequential(lm.Input(8), lm.Linear(300)))
    weight = np.tile(normal(1, 8), (300, 1))
    model.set_parameters({"1.weight": weight, "1.bias": np.zeros(300, "float32")})
    x = normal(16, 8)
    y = np.tile(normal(16, 1), (1, 300))
    stop = threading.Event()

    def train() -> None:
        with training(model, loss=lm.MSE(), optimizer=lm.SGD(0.01), batch_size=16) as trainer:
            for _ in range(1000):
                trainer.step(x, y)
        stop.set()

    def work(number: int) -> None:
        if number == 0:
            train()
        while not stop.is_set():
            found = model.predict(x)
            np.testing.assert_array_equal(found, np.tile(found[:, :1], (1, 300)))

    in_threads(work, 2)


def test_a_training_is_not_copied() -> None:
    with training(lm.Model(network())) as trainer, pytest.raises(DefinitionError) as caught:
        copy.deepcopy(trainer)
    assert str(caught.value) == (
        "in Training: a training cannot be copied or pickled\n"
        "  Copy the model and attach another; state() and restore() carry the rest over."
    )


def test_a_function_is_copied_and_pickled() -> None:
    x = lm.Input()
    double = lm.compile(inputs=[x], outputs=[x * 2.0])
    double(np.ones(3, "float32"))
    for other in (copy.deepcopy(double), pickle.loads(pickle.dumps(double))):
        np.testing.assert_array_equal(other(np.ones(3, "float32"))[0], [2.0, 2.0, 2.0])


def test_a_function_keeps_programs_for_some_sizes_only(counting: CountingEngine) -> None:
    x = lm.Input()
    double = lm.compile(inputs=[x], outputs=[x * 2.0])
    for size in range(1, 40):
        double(np.ones(size, "float32"))
    before = counting.compilations
    double(np.ones(39, "float32"))
    assert counting.compilations == before
    double(np.ones(1, "float32"))
    assert counting.compilations == before + 1


# State --------------------------------------------------------------------------------------------


def test_a_training_goes_on_from_its_state() -> None:
    model = lm.Model(network())
    with training(model) as trainer:
        trainer.run(DATA, steps=5)
        state, parameters = trainer.state(), model.parameters()
        trainer.step(X, Y)
        expected = model.parameters()
    model.set_parameters(parameters)
    with training(model, seed=99) as trainer:
        trainer.restore(state)
        assert trainer.steps_done == 5
        trainer.step(X, Y)
    assert same(model.parameters(), expected)


def test_a_state_is_a_copy() -> None:
    with training(lm.Model(network())) as trainer:
        state = trainer.state()
        kept = {name: value.copy() for name, value in state.items()}
        trainer.step(X, Y)
        assert same(state, kept)


def test_a_state_of_another_optimizer_is_refused_and_changes_nothing() -> None:
    model = lm.Model(network())
    with training(model, optimizer=lm.SGD(0.1, momentum=0.9)) as one, training(model) as other:
        other.step(X, Y)
        before = other.state()
        with pytest.raises(DefinitionError) as caught:
            other.restore(one.state())
        assert same(other.state(), before)
    assert caught.value.problem == "the saved state belongs to another optimizer or network"
    assert caught.value.advice == "Resume with the same network and the same optimizer."


def test_a_state_of_another_shape_is_refused_and_changes_nothing() -> None:
    with training(lm.Model(network())) as trainer:
        trainer.step(X, Y)
        before = trainer.state()
        wrong = {name: value[..., None] for name, value in before.items()}
        with pytest.raises(DefinitionError):
            trainer.restore(wrong)
        assert same(trainer.state(), before)


def test_two_runs_are_one_run_of_as_many_steps() -> None:
    found: list[Array] = []
    for parts in ((4, 9), (13,)):
        with training(lm.Model(network())) as trainer:
            found.append(np.concatenate([trainer.run(DATA, steps=steps) for steps in parts]))
    assert found[0].tobytes() == found[1].tobytes()


def test_losses_can_be_added_and_compared() -> None:
    with training(lm.Model(network())) as trainer:
        first, second = (trainer.step(X, Y) for _ in range(2))
        assert sum([first, second]) == float(first) + float(second)
        assert (first < second) == (float(first) < float(second))
        assert first > -1


class TestSmallDataSets:
    @pytest.mark.parametrize(
        ("examples", "size", "drop_last"),
        [
            *[(4, 4, False), (4, 1, False), (5, 2, False), (7, 7, False), (3, 8, False)],
            *[(4, 4, True), (4, 1, True), (5, 2, True), (7, 7, True)],
        ],
    )
    def test_a_run_takes_the_batches_of_one_epoch_after_another(
        self, examples: int, size: int, drop_last: bool
    ) -> None:
        data = Dataset(np.zeros((examples, 2), "float32"), np.zeros((examples, 1), "float32"))
        model = lm.Model(lm.Sequential(lm.Input(2), lm.Linear(1)))
        with model.training(lm.MSE(), lm.SGD(0.1), size) as one:
            epochs = [
                [rows.tolist() for rows in chain.from_iterable(batches)]
                for batches in (one.batches_of(data, 3, e, drop_last=drop_last) for e in range(30))
            ]
            skipped = len(epochs[0]) - 1
            found = one._batches_from(data, 20, 3, 2, skipped, drop_last=drop_last)
            taken = [rows.tolist() for rows in chain.from_iterable(found)]
        assert taken == list(chain.from_iterable(epochs[2:]))[skipped : skipped + 20]

    def test_many_epochs_of_a_small_data_set_are_one_call(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = lm.Model(lm.Sequential(lm.Input(2), lm.Linear(1)))
        calls: list[int] = []
        with model.training(lm.MSE(), lm.SGD(0.1), 4) as one:
            executable = one._program(4).executable
            run_many = executable.run_many

            def counted(resident: Any, rows: Array, names: Any) -> Any:
                calls.append(len(rows))
                return run_many(resident, rows, names)

            monkeypatch.setattr(executable, "run_many", counted)
            # An epoch of 4 examples is one step.
            losses = one.run((np.ones((4, 2), "float32"), np.ones((4, 1), "float32")), 10_000)
        assert len(losses) == sum(calls) == 10_000
        # One step, two, four, ...: until they take as long as a piece should.
        assert len(calls) < 40
