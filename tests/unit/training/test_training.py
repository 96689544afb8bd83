"""Trainings: steps and runs, what is refused, memory, threads, state and release."""

import copy
import math
import numbers
import operator
import pickle
import statistics
import threading
import tracemalloc
import warnings
from datetime import timedelta
from fractions import Fraction
from functools import partial
from itertools import chain

import numpy as np
import pytest
from error_texts import error_text, refused
from random_arrays import normal
from training_cases import TRAIN, X, Y, in_threads, labels, losses_of, network, same, training

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
    LaminaWarning,
    ReleasedError,
    ShapeError,
)
from lamina.training.epochs import batches_after


def test_a_run_gives_the_same_bits_as_single_training_steps():
    stepped, run = lm.Model(network()), lm.Model(network())
    with training(stepped) as stepping, training(run) as running:
        losses = []
        for epoch in range(2):
            for start in range(0, 50, 8):
                rows = TRAIN.order(3, epoch)[start : start + 8]
                losses.append(float(stepping.step(TRAIN.inputs[rows], TRAIN.targets[rows])))
        run_losses = running.run(TRAIN, steps=14, seed=3)
    np.testing.assert_array_equal(run_losses, np.array(losses, "float32"))
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
    unary = [abs, round, int, bool, hash, complex, math.trunc]
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
        for result, expected in (
            (function(loss, array), function(value, array)),
            (function(array, loss), function(array, value)),
        ):
            np.testing.assert_array_equal(result, expected, strict=True)
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
    "  The prediction has 3 classes: number them from 0, or give its last layer 8 features."
)
TOO_MANY = (
    "in step: the batch is larger than the training was made for\n"
    "  expected  at most 8\n"
    "  found     9\n"
    "  Make it with batch_size=9, or give fewer examples."
)


REFUSED = {
    "a label too high": (X, np.array([0, 1, 2, 7] * 2), DataError, LABEL),
    "too many examples": (normal(9, 4), labels(9), ShapeError, TOO_MANY),
    "a negative label": (X, np.array([0] * 7 + [-1]), DataError, "labels out of range"),
    "labels as floats": (X, np.zeros(8, "float32"), DTypeError, "target 0 has the wrong dtype"),
    "labels in a column": (X, np.zeros((8, 1), int), ShapeError, "target 0 has another shape"),
    "other features": (normal(8, 5), Y, ShapeError, "input 0 has another shape"),
    "too large numbers": (np.full((8, 4), 1e300), Y, DataError, "float32 cannot hold"),
    "fewer labels": (X, Y[:7], DataError, "differ in their number of examples"),
    "no examples": (X[:0], Y[:0], DataError, "there are no examples"),
    "no labels": (X, None, DataError, "another number of targets"),
    "no inputs": (None, Y, DataError, "another number of inputs"),
    "two targets": (X, (Y, Y), DataError, "another number of targets"),
}


@pytest.mark.cases("x, y, error, text", REFUSED)
def test_wrong_batches_are_refused_before_anything_changes(x, y, error, text, model):
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
    with training(model) as first, training(model, optimizer=lm.SGD(0.1)) as second:
        first.step(X, Y)
        between = model.parameters()
        second.step(X, Y)
        assert not same(model.parameters(), between)
        assert (first.steps_done, second.steps_done) == (1, 1)


def test_a_training_shares_the_parameters_with_its_model(model):
    with training(model, loss=lm.MSE()) as trainer:
        model.set_parameters({name: 0 * value for name, value in model.parameters().items()})
        y = normal(8, 3)
        assert float(trainer.step(X, y)) == pytest.approx(np.mean(y**2), rel=1e-5)
        assert (model.predict(X) != 0).any()


USES = {
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


# Batches of many sizes ----------------------------------------------------------------------------


def test_many_batch_sizes_are_a_warning_with_advice_that_trains_the_same_in_one_size():
    sizes, full = (8, 3, 4, 5, 6, 7, 2), 8
    net = lm.Sequential(lm.Input(4), lm.Linear(3))
    first, second = (lm.Model(net, seed=0) for _ in range(2))
    how = {"loss": lm.MSE(), "optimizer": lm.Adam(), "batch_size": full}
    sample = Dataset(normal(full, 4), normal(full, 3), weights=np.ones(full, "float32"))
    with first.training(**how) as plain, second.training(**how, data=sample) as filled:
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
            filled_loss = filled.step(x, y, weights=weights.astype("float32"))
            assert float(filled_loss) == pytest.approx(loss, rel=1e-5)
        assert len(filled._programs._programs) == 1


# Memory -------------------------------------------------------------------------------------------


class Counted:
    """A memory or a program of the interpreter, whose bytes count in its engine."""

    def __init__(self, engine, inner, count):
        self.engine, self.inner, self.bytes = engine, inner, count
        engine.bytes += count

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def release(self):
        self.engine.bytes -= self.bytes
        self.bytes = 0
        self.inner.release()


class CountedMemory(Counted):
    def copy_from(self, source):
        self.inner.copy_from(source.inner)


class CountedExecutable(Counted):
    """Like a program on a GPU, it returns results only when they are read."""

    synchronous = False

    def run_many(self, resident, rows, recorded):
        return self.inner.run_many({n: m.inner for n, m in resident.items()}, rows, recorded)

    def bound(self):
        return None

    def scalar(self, name):
        return self.read(lambda: self.inner.scalar(name))

    def kept_scalar(self, name):
        self.engine.copies += 1
        value = self.inner.kept_scalar(name)
        return lambda: self.read(value)

    def read(self, value):
        self.engine.reads += 1
        return value()


class CountingEngine:
    """The interpreter, counting bytes and calls, with memory of its own."""

    def __init__(self):
        self.inner = InterpreterEngine()
        self.device, self.target = self.inner.device, self.inner.target
        self.bytes = self.allocations = self.compilations = self.reads = self.copies = 0
        self.arenas = []

    def available_bytes(self, *_):
        return None

    shared = staging = available_bytes

    def needs(self, program, members=None):
        return self.inner.needs(program)

    @property
    def held(self):
        return self.bytes + sum(arena.bytes for arena in self.arenas)

    def arena(self):
        self.arenas.append(self.inner.arena())
        return self.arenas[-1]

    def permutations(self, *arguments):
        return self.inner.permutations(*arguments)

    def finite_check(self, memories):
        return self.inner.finite_check([one.inner for one in memories])

    def allocate(self, shape, dtype, members=None):
        self.allocations += 1
        memory = self.inner.allocate(shape, dtype)
        return CountedMemory(self, memory, memory.array.nbytes)

    def compile(self, program, memories, arena, *, timed, members=None):
        assert not timed
        assert members is None
        self.compilations += 1
        inner = {name: memory.inner for name, memory in memories.items()}
        inputs = sum(buffer.bytes for buffer in program.of_kind("input"))
        return CountedExecutable(self, self.inner.compile(program, inner, arena), inputs)


HOW = {"loss": lm.CrossEntropy(), "optimizer": lm.Adam(0.01), "batch_size": 8}


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


def steps_and_a_run(model):
    with training(model) as trainer:
        trainer.step(X, Y)
        trainer.step(X[:3], Y[:3])
        trainer.run(TRAIN, steps=10)


def a_fit_that_fails(model):
    how = {"validation": TRAIN, "callbacks": [lambda _: 1 / 0], **HOW}
    refused(ZeroDivisionError, lambda: model.fit(TRAIN, **how))


def a_training_that_cannot_be_compiled(model):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CountingEngine, "compile", None)
        refused(TypeError, lambda: training(model))


@pytest.mark.cases(
    "work",
    steps_and_a_run,
    lambda model: model.evaluate(TRAIN, lm.CrossEntropy(), [lm.Accuracy()], 8),
    lambda model: model.fit(TRAIN, validation=TRAIN, epochs=2, **HOW),
    a_fit_that_fails,
    a_training_that_cannot_be_compiled,
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


AFTERWARDS = {
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
            (doubled,) = double(np.full(3, number, "float32"))
            assert (doubled == 2 * number).all()

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
            predictions = model.predict(x)
            np.testing.assert_array_equal(predictions, np.tile(predictions[:, :1], (1, 300)))

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
    with training(model, optimizer=lm.SGD(0.1, momentum=0.9)) as momentum, training(model) as other:
        state = other.state()
        kept = {name: value.copy() for name, value in state.items()}
        other.step(X, Y)
        assert same(state, kept)
        before = other.state()
        error = refused(DefinitionError, lambda: other.restore(momentum.state()))
        wrong = {name: value[..., None] for name, value in before.items()}
        refused(DefinitionError, lambda: other.restore(wrong))
        assert same(other.state(), before)
    assert error.problem == "the saved state belongs to another optimizer or network"
    assert error.advice == "Resume with the same network and the same optimizer."


@pytest.mark.cases(
    ("examples", "size", "drop_last"),
    *[(4, 4, False), (4, 1, False), (5, 2, False), (7, 7, False), (3, 8, False)],
    *[(4, 4, True), (4, 1, True), (5, 2, True), (7, 7, True)],
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
    orders = partial(data.orders, 3)
    batches = batches_after(len(data), size, done, 20, orders, drop_last=drop_last)
    taken = [rows.tolist() for rows in chain.from_iterable(batches)]
    assert taken == list(chain.from_iterable(epochs[2:]))[skipped : skipped + 20]


def test_many_epochs_of_a_small_data_set_are_one_call(monkeypatch):
    model = lm.Model(lm.Sequential(lm.Input(2), lm.Linear(1)))
    calls = []
    with model.training(lm.MSE(), lm.SGD(0.1), 4) as trainer:
        executable = trainer._program(4).executable
        run_many = executable.run_many

        def counted(resident, rows, names):
            calls.append(len(rows))
            return run_many(resident, rows, names)

        monkeypatch.setattr(executable, "run_many", counted)
        # An epoch of 4 examples is one training step.
        losses = trainer.run((np.ones((4, 2), "float32"), np.ones((4, 1), "float32")), 10_000)
    assert len(losses) == sum(calls) == 10_000
    # One training step, two, four, ..., until they take as long as a piece should.
    assert len(calls) < 40
