"""The arena that the programs of a model share: bounded, moved, and without traces of others."""

import copy

import numpy as np
import pytest
from program_cases import program_of
from random_arrays import normal

import lamina as lm
from lamina.base.shapes import float32
from lamina.engines.discovery import open_engine
from lamina.engines.host import HostArena, aligned
from lamina.graph import leaf
from lamina.runtime import compiled

ENGINES = ("cpu", "interpreter")


def model(engine, hidden=16):
    layers = (lm.Linear(hidden), lm.ReLU(), lm.Dropout(0.2), lm.Linear(3))
    return lm.Model(lm.Sequential(lm.Input(5), *layers), engine=engine, seed=2)


def attach(classifier, batch_size, **options):
    loss, optimizer = lm.CrossEntropy(), lm.Adam(0.01)
    return classifier.training(loss=loss, optimizer=optimizer, batch_size=batch_size, **options)


def arena_of(one):
    return one._parameters.arena


def after_filling(arena):
    """`CompiledProgram.run`, for a model with this arena: all of it is NaN before."""
    run = compiled.CompiledProgram.run

    def filled(step, arrays):
        arena._block.fill(0xFF)
        run(step, arrays)

    return filled


class Tenant:
    def __init__(self):
        self.block = np.zeros(0, np.uint8)
        self.moves = 0

    def move_to(self, block):
        self.block = block
        self.moves += 1


def test_an_arena_is_as_large_as_the_largest_of_its_tenants():
    arena, small, large, third = HostArena(), Tenant(), Tenant(), Tenant()
    arena.enter(small, 100)
    arena.enter(large, 300)
    # It is large enough: no tenant is moved.
    arena.enter(third, 200)
    assert (arena.bytes, large.moves) == (300, 1)
    assert small.block is large.block
    assert small.block.ctypes.data % 64 == 0
    # A tenant without references is not counted.
    del third
    arena.leave(large)
    assert (arena.bytes, small.block.size) == (100, 100)
    arena.leave(small)
    assert arena.bytes == 0


def test_a_tenant_whose_allocation_fails_is_not_kept(monkeypatch):
    def small(size):
        if size > 200:
            raise MemoryError
        return aligned(size)

    arena, tenant = HostArena(), Tenant()
    arena.enter(tenant, 100)
    monkeypatch.setattr("lamina.engines.host.aligned", small)
    with pytest.raises(MemoryError):
        arena.enter(Tenant(), 300)
    assert (arena.bytes, tenant.moves) == (100, 1)
    arena.enter(Tenant(), 50)
    assert arena.bytes == 100


@pytest.mark.parametrize("engine", ENGINES)
def test_the_programs_of_a_model_share_one_arena(engine):
    classifier = model(engine)
    classifier.predict(normal(3, 5))
    with attach(classifier, 64) as training:
        largest = arena_of(classifier).bytes
        assert largest >= training.bill.arena_bytes
        for size in (1, 7, 64):
            training.step(normal(size, 5), np.arange(size) % 3)
            classifier.predict(normal(size, 5))
            classifier.part(classifier.network).predict(normal(size, 5))
        classifier.evaluate((normal(20, 5), np.arange(20) % 3), lm.CrossEntropy(), batch_size=20)
        assert arena_of(classifier).bytes == largest
    assert 0 < arena_of(classifier).bytes < largest


@pytest.mark.parametrize("engine", ENGINES)
def test_programs_that_share_an_arena_compute_the_same_as_alone(engine):
    """Each program moves the others when it is compiled, and leaves its numbers in their memory."""
    results = []
    for shared in (True, False):
        classifier, numbers = model(engine), []
        with attach(classifier, 64) as training:
            for size in (2, 33, 5, 64) * 3:
                x = normal(size, 5, seed=size)
                numbers.append(float(training.step(x, np.arange(size) % 3)))
                numbers.append((classifier if shared else copy.deepcopy(classifier)).predict(x))
                if shared:
                    classifier.predict(x[:1])
        results.append(numbers)
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)


def test_runs_over_a_data_set_continue_after_the_arena_moves():
    data = (normal(64, 5), np.arange(64) % 3)
    results = []
    for moved in (False, True):
        classifier = model("cpu")
        with attach(classifier, 16) as training:
            losses = [training.run(data, steps=3)]
            if moved:
                classifier.predict(normal(4000, 5))
            training.step(data[0][:16], data[1][:16])
            losses.append(training.run(data, steps=3))
        results.append(np.concatenate(losses))
    np.testing.assert_array_equal(*results)


def test_prepacked_weights_are_not_overwritten_by_other_programs():
    """Inference packs its weights once; other programs must not overwrite them."""
    net = lm.Sequential(lm.Input(64), lm.Linear(256), lm.Tanh(), lm.Linear(256), lm.Tanh())
    predictor, x = lm.Model(net), normal(256, 64)
    alone = predictor.predict(x)
    for size in (31, 1, 400):
        predictor.predict(normal(size, 64))
        np.testing.assert_array_equal(predictor.predict(x), alone)


@pytest.mark.sampled
@pytest.mark.parametrize("engine", ENGINES)
def test_no_program_reads_stale_contents_of_the_arena(engine, monkeypatch):
    """Workspaces included: the whole block is filled with NaN before every run."""
    layers = (lm.Conv2d(16, 3, padding=1), lm.BatchNorm(), lm.ReLU(), lm.MaxPool2d(2))
    layers = (*layers, lm.Conv2d(16, 5, stride=2, padding=2), lm.Flatten(), lm.Linear(4))
    x, y = normal(9, 16, 12, 12), np.arange(9) % 4
    results = []
    for poisoned in (False, True):
        cnn = lm.Model(lm.Sequential(lm.Input(16, 12, 12), *layers), engine=engine)
        if poisoned:
            monkeypatch.setattr(compiled.CompiledProgram, "run", after_filling(arena_of(cnn)))
        with cnn.training(loss=lm.CrossEntropy(), optimizer=lm.Adam(), batch_size=9) as training:
            losses = [float(training.step(x, y)) for _ in range(3)]
        results.append([*losses, cnn.predict(x), *cnn.parameters().values()])
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_training_keeps_programs_for_few_batch_sizes(engine, monkeypatch):
    monkeypatch.setattr(compiled, "MOST_PROGRAMS", 3)
    monkeypatch.setattr(compiled, "FEW_PROGRAMS", 9)
    classifier = model(engine, hidden=4)
    with attach(classifier, 7) as training:
        steps = training._programs._programs
        tenants = arena_of(classifier)._needs
        # The last of them was given up and is compiled again.
        for size in (1, 2, 3, 4, 5, 6, 7, 1):
            training.step(normal(size, 5), np.arange(size) % 3)
            assert size in steps
            assert len(tenants) <= 3
        assert [size for size in range(1, 8) if size in steps] == [1, 6, 7]
    assert not tenants


@pytest.mark.parametrize("engine", ENGINES)
def test_a_program_without_an_arena_has_one_of_its_own(engine):
    program = program_of(leaf("x", "input", (2,), float32) * 2)
    executable, other = (open_engine(engine).compile(program, {}) for _ in range(2))
    executable.run([np.ones(2, "float32")])
    other.run([np.full(2, 5, "float32")])
    np.testing.assert_array_equal(executable.output("y0"), [2, 2])


def test_a_copy_has_an_arena_of_its_own():
    classifier = model("cpu")
    expected = classifier.predict(normal(3, 5))
    other = copy.deepcopy(classifier)
    assert arena_of(other).bytes == 0
    np.testing.assert_array_equal(other.predict(normal(3, 5)), expected)
