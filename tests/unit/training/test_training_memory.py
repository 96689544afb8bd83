"""Memory, threads and state of trainings."""

import copy
import pickle
import threading
import tracemalloc
import warnings
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest
from error_texts import error_text, refused
from random_arrays import normal
from training_cases import (
    TRAIN,
    Array,
    X,
    Y,
    in_threads,
    labels,
    losses_of,
    network,
    same,
    training,
)

import lamina as lm
from lamina.data import Dataset
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.errors import DefinitionError, LaminaWarning, ReleasedError
from lamina.training.epochs import batches_after

# Batches of many sizes ----------------------------------------------------------------------------


def test_many_batch_sizes_are_a_warning_with_advice_that_trains_the_same_in_one_size():
    sizes, full = (8, 3, 4, 5, 6, 7, 2), 8
    net = lm.Sequential(lm.Input(4), lm.Linear(3))
    one, other = (lm.Model(net, seed=0) for _ in range(2))
    how: dict[str, Any] = {"loss": lm.MSE(), "optimizer": lm.Adam(), "batch_size": full}
    sample = Dataset(normal(full, 4), normal(full, 3), weights=np.ones(full, "float32"))
    with one.training(**how) as plain, other.training(**how, data=sample) as filled:
        for number, size in enumerate(sizes):
            x, y, weights = normal(full, 4), normal(full, 3), np.arange(full) < size
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                loss = float(plain.step(x[:size], y[:size]))
            assert [warning.category for warning in caught] == [LaminaWarning] * (number == 5)
            for warning in caught:
                assert str(warning.message) == (
                    "each new batch size compiles a program, which takes time, and 6 were compiled "
                    "here. Fill smaller batches up to 8 examples, with examples of weight 0: "
                    "training.step(x, y, weights=w) of a training made with "
                    "data=lm.data.Dataset(x, y, weights=w), or batches (x, y, w) of a stream."
                )
            found = filled.step(x, y, weights=weights.astype("float32"))
            assert float(found) == pytest.approx(loss, rel=1e-5)
        assert len(filled._programs._programs) == 1


# Memory -------------------------------------------------------------------------------------------


class Counted:
    """A memory or a program of the interpreter, whose bytes count in its engine."""

    def __init__(self, engine: "CountingEngine", inner: Any, count: int) -> None:
        self.engine, self.inner, self.bytes = engine, inner, count
        engine.bytes += count

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def release(self) -> None:
        self.engine.bytes -= self.bytes
        self.bytes = 0
        self.inner.release()


class CountedMemory(Counted):
    def copy_from(self, source: Counted) -> None:
        self.inner.copy_from(source.inner)


class CountedExecutable(Counted):
    """Like a program on a GPU, it returns results only when they are read."""

    synchronous = False

    def run_many(self, resident: Any, rows: Array, recorded: Any) -> Any:
        return self.inner.run_many({n: m.inner for n, m in resident.items()}, rows, recorded)

    def bound(self) -> None:
        return None

    def scalar(self, name: str) -> float:
        return self.read(lambda: self.inner.scalar(name))

    def kept_scalar(self, name: str) -> Callable[[], float]:
        self.engine.copies += 1
        value = self.inner.kept_scalar(name)
        return lambda: self.read(value)

    def read(self, value: Callable[[], float]) -> float:
        self.engine.reads += 1
        return value()


class CountingEngine:
    """The interpreter, counting bytes and calls, with memory of its own."""

    def __init__(self) -> None:
        self.inner = InterpreterEngine()
        self.device, self.target = self.inner.device, self.inner.target
        self.bytes = self.allocations = self.compilations = self.reads = self.copies = 0
        self.arenas: list[Any] = []

    def available_bytes(self, *_: Any) -> None:
        return None

    shared = staging = available_bytes

    def needs(self, program: Any) -> Any:
        return self.inner.needs(program)

    @property
    def held(self) -> int:
        return self.bytes + sum(arena.bytes for arena in self.arenas)

    def arena(self) -> Any:
        self.arenas.append(self.inner.arena())
        return self.arenas[-1]

    def finite_check(self, memories: Any) -> Callable[[], bool]:
        return self.inner.finite_check([one.inner for one in memories])

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> Counted:
        self.allocations += 1
        memory = self.inner.allocate(shape, dtype)
        return CountedMemory(self, memory, memory.array.nbytes)

    def compile(self, program: Any, memories: Any, arena: Any, *, timed: bool) -> Counted:
        assert not timed
        self.compilations += 1
        inner = {name: memory.inner for name, memory in memories.items()}
        inputs = sum(buffer.bytes for buffer in program.of_kind("input"))
        return CountedExecutable(self, self.inner.compile(program, inner, arena), inputs)


HOW: dict[str, Any] = {"loss": lm.CrossEntropy(), "optimizer": lm.Adam(0.01), "batch_size": 8}


@pytest.fixture
def counting(monkeypatch):
    """The engine of all models that a test makes."""
    engine = CountingEngine()
    for opener in ("lamina.model.open_engine", "lamina.runtime.function.open_engine"):
        monkeypatch.setattr(opener, lambda name: engine)
    return engine


def test_a_model_holds_its_parameters_and_a_training_the_bytes_of_its_bill(counting, model):
    assert counting.held == 4 * (40 + 27)
    with training(model) as trainer:
        assert counting.held == trainer.bill.peak_bytes - trainer.bill.constant_bytes


def steps_and_a_run(model: lm.Model) -> None:
    with training(model) as trainer:
        trainer.step(X, Y)
        trainer.step(X[:3], Y[:3])
        trainer.run(TRAIN, steps=10)


def a_fit_that_fails(model: lm.Model) -> None:
    how = {"validation": TRAIN, "callbacks": [lambda _: 1 / 0], **HOW}
    refused(ZeroDivisionError, lambda: model.fit(TRAIN, **how))


def a_training_that_cannot_be_compiled(model: lm.Model) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CountingEngine, "compile", None)
        refused(TypeError, lambda: training(model))


@pytest.mark.parametrize(
    "work",
    [
        steps_and_a_run,
        lambda model: model.evaluate(TRAIN, lm.CrossEntropy(), [lm.Accuracy()], 8),
        lambda model: model.fit(TRAIN, validation=TRAIN, epochs=2, **HOW),
        a_fit_that_fails,
        a_training_that_cannot_be_compiled,
    ],
)
def test_all_memory_is_freed(work, counting):
    model = lm.Model(network())
    before = counting.held
    work(model)
    assert counting.held == before


def test_losses_on_a_device_are_kept_only_if_they_are_referenced(counting):
    expected = losses_of(float)
    counting.reads = counting.copies = 0
    with training(lm.Model(network())) as trainer:
        trainer.step(normal(8, 4, seed=0), labels(8))
        held = trainer.step(normal(8, 4, seed=1), labels(8))
        assert counting.copies == 0
        trainer.step(normal(8, 4, seed=2), labels(8))
        assert counting.copies == 1
    assert counting.reads == 0
    for _ in range(2):
        assert float(held) == expected[1]
        assert counting.reads == 1


AFTERWARDS: dict[str, Callable[[lm.Model, Any], object]] = {
    "a prediction": lambda model, _: model.predict(X),
    "a prediction of another size": lambda model, _: model.predict(X[:5]),
    "a prediction of a part": lambda model, _: model.part(model.network).predict(X),
    "an evaluation": lambda model, _: model.evaluate(TRAIN, lm.CrossEntropy()),
    "a step of another size": lambda _, trainer: trainer.step(X[:3], Y[:3]),
    "a run": lambda _, trainer: trainer.run(TRAIN, steps=3),
    "another training": lambda model, _: training(model, batch_size=50).release(),
    "a release": lambda _, trainer: trainer.release(),
}


@pytest.mark.parametrize("afterwards", AFTERWARDS)
def test_a_loss_on_a_device_is_kept_before_it_is_overwritten(afterwards, counting, model):
    expected = losses_of(float)
    counting.inner = InterpreterEngine(poison=True)
    model.predict(X)
    with training(model) as trainer:
        held = trainer.step(normal(8, 4, seed=0), labels(8))
        AFTERWARDS[afterwards](model, trainer)
        assert float(held) == expected[0]


def test_steps_and_predictions_allocate_nothing_and_a_run_for_its_data_set_only(counting, model):
    def made(work, times=1):
        """The allocations and compilations of repeated calls after the first one."""
        work()
        before = counting.allocations, counting.compilations
        for _ in range(times):
            work()
        return counting.allocations - before[0], counting.compilations - before[1]

    with training(model) as trainer:
        assert made(lambda: trainer.step(X, Y), 100) == (0, 0)
        assert made(lambda: trainer.run(TRAIN, steps=7)) == (2, 0)
    assert made(lambda: model.predict(X), 10) == (0, 0)


def test_a_released_training_frees_its_arena(model):
    with training(model, batch_size=200_000) as trainer:  # all caches are filled from here on
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


def test_threads_with_one_model_or_function_get_their_own_results(model):
    x = lm.Input()
    inputs = [normal(5, 4, seed=number) for number in range(4)]
    expected = [model.predict(x) for x in inputs]
    double = lm.compile(inputs=[x], outputs=[x * 2.0])

    def work(number):
        for size in range(1, 12):
            assert model.predict(normal(size + number, 4)).shape[0] == size + number
        for _ in range(1000):
            np.testing.assert_array_equal(model.predict(inputs[number]), expected[number])
            (found,) = double(np.full(3, number, "float32"))
            assert (found == 2 * number).all()

    in_threads(work)


def test_predictions_during_a_training_never_see_a_partial_update():
    # All columns of the output begin equal and are trained alike, so they stay equal.
    model = lm.Model(lm.Sequential(lm.Input(8), lm.Linear(300)))
    weight = np.tile(normal(1, 8), (300, 1))
    model.set_parameters({"1.weight": weight, "1.bias": np.zeros(300, "float32")})
    x = normal(16, 8)
    y = np.tile(normal(16, 1), (1, 300))
    stop = threading.Event()

    def work(number):
        if number == 0:
            with training(model, loss=lm.MSE(), optimizer=lm.SGD(0.01), batch_size=16) as trainer:
                for _ in range(1000):
                    trainer.step(x, y)
            stop.set()
        while not stop.is_set():
            found = model.predict(x)
            np.testing.assert_array_equal(found, np.tile(found[:, :1], (1, 300)))

    in_threads(work, 2)


def test_a_training_is_not_copied():
    with training(lm.Model(network())) as trainer:
        text = error_text(DefinitionError, lambda: copy.deepcopy(trainer))
    assert text == (
        "in Training: a training cannot be copied or pickled\n"
        "  Copy the model and make a new training of the copy. state() returns the optimizer's "
        "state, and restore(state) sets it."
    )


def test_a_function_is_copied_and_pickled_and_keeps_programs_for_some_sizes_only(counting):
    x = lm.Input()
    double = lm.compile(inputs=[x], outputs=[x * 2.0])
    for size in range(1, 40):
        double(np.ones(size, "float32"))
    before = counting.compilations
    double(np.ones(39, "float32"))
    assert counting.compilations == before
    double(np.ones(1, "float32"))
    assert counting.compilations == before + 1
    for other in (copy.deepcopy(double), pickle.loads(pickle.dumps(double))):
        np.testing.assert_array_equal(other(np.ones(3, "float32"))[0], [2.0, 2.0, 2.0])


# State --------------------------------------------------------------------------------------------


def test_a_training_continues_from_a_restored_state(model):
    with training(model) as trainer:
        trainer.run(TRAIN, steps=2)
        trainer.run(TRAIN, steps=3)
        state, parameters = trainer.state(), model.parameters()
        trainer.step(X, Y)
        expected = model.parameters()
    model.set_parameters(parameters)
    with training(model, seed=99) as trainer:
        trainer.restore(state)
        assert trainer.steps_done == 5
        trainer.step(X, Y)
    assert same(model.parameters(), expected)
    again = lm.Model(network())
    with training(again) as trainer:
        trainer.run(TRAIN, steps=5)
    assert same(again.parameters(), parameters)


def test_a_state_is_a_copy_and_one_that_does_not_fit_is_refused_and_changes_nothing(model):
    with training(model, optimizer=lm.SGD(0.1, momentum=0.9)) as one, training(model) as other:
        state = other.state()
        kept = {name: value.copy() for name, value in state.items()}
        other.step(X, Y)
        assert same(state, kept)
        before = other.state()
        error = refused(DefinitionError, lambda: other.restore(one.state()))
        wrong = {name: value[..., None] for name, value in before.items()}
        refused(DefinitionError, lambda: other.restore(wrong))
        assert same(other.state(), before)
    assert error.problem == "the saved state belongs to another optimizer or network"
    assert error.advice == "Resume with the same network and the same optimizer."


@pytest.mark.parametrize(
    ("examples", "size", "drop_last"),
    [
        *[(4, 4, False), (4, 1, False), (5, 2, False), (7, 7, False), (3, 8, False)],
        *[(4, 4, True), (4, 1, True), (5, 2, True), (7, 7, True)],
    ],
)
def test_a_run_takes_the_batches_of_one_epoch_after_another(examples, size, drop_last):
    data = Dataset(np.zeros((examples, 2), "float32"), np.zeros((examples, 1), "float32"))
    used = examples // size * size if drop_last else examples
    epochs = [
        [data.order(3, epoch)[start:used][:size].tolist() for start in range(0, used, size)]
        for epoch in range(30)
    ]
    skipped = len(epochs[0]) - 1
    done = 2 * len(epochs[0]) + skipped
    found = batches_after(data, size, done, 20, 3, drop_last=drop_last)
    taken = [rows.tolist() for rows in chain.from_iterable(found)]
    assert taken == list(chain.from_iterable(epochs[2:]))[skipped : skipped + 20]


def test_many_epochs_of_a_small_data_set_are_one_call(monkeypatch):
    model = lm.Model(lm.Sequential(lm.Input(2), lm.Linear(1)))
    calls: list[int] = []
    with model.training(lm.MSE(), lm.SGD(0.1), 4) as one:
        executable = one._program(4).executable
        run_many = executable.run_many

        def counted(resident, rows, names):
            calls.append(len(rows))
            return run_many(resident, rows, names)

        monkeypatch.setattr(executable, "run_many", counted)
        # An epoch of 4 examples is one training step.
        losses = one.run((np.ones((4, 2), "float32"), np.ones((4, 1), "float32")), 10_000)
    assert len(losses) == sum(calls) == 10_000
    # One training step, two, four, ..., until they take as long as a piece should.
    assert len(calls) < 40
