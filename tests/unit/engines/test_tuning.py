"""Tuning: which steps, which schedules, the choice, what is kept on disk. No test measures time."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from error_texts import error_text
from gpu_cases import TRAITS, timed_candidates
from harness import run_program
from program_cases import program_of

import lamina as lm
from lamina import ops
from lamina.base.shapes import float32
from lamina.codegen.words import OPENCL
from lamina.engines.engine import Candidate, TunedStep
from lamina.engines.gpu import memory as device_memory
from lamina.engines.gpu.contraction_schedules import costs_of_schedules
from lamina.engines.gpu.decisions import MOST_PROMISING, candidates, position_bits, promising
from lamina.engines.gpu.family import SingleSteps
from lamina.engines.gpu.gpus import GpuFamily, target_for
from lamina.engines.gpu.launches import Rates
from lamina.engines.gpu.memory import DeviceMemory
from lamina.engines.gpu.tuning import Tuner, _best, _fill
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.engines.simd.decide import candidates as of_processors
from lamina.engines.simd.decide.schedule import GemmSchedule
from lamina.errors import EngineError, InternalError
from lamina.graph import leaf
from lamina.inspect.explanation import Explanation, Tuning
from lamina.program.check import verify

# A product that is worth tuning on any device.
SIZE = 256


def network(target, size=SIZE):
    """y = x A and z = x B: two equal products of square matrices, whose weights stay."""
    x, a, b = (
        leaf(name, kind, (size, size), float32)
        for name, kind in (("x", "input"), ("a", "parameter"), ("b", "parameter"))
    )
    return program_of([ops.matmul(x, a), ops.matmul(x, b)], target=target)


def alone_of(program):
    return [*map(SingleSteps(program).program, range(len(program.steps)))]


def feeds(size=SIZE):
    generator = np.random.default_rng(0)
    return {name: generator.normal(size=(size, size)).astype("float32") for name in "xab"}


class FakeTimer:
    """Runs schedules, and returns made-up times; candidates are numbered as they come."""

    def __init__(self, fast=0, fails=None):
        self.fast, self.fails = fast, fails
        self.texts = {}
        self.calls = 0

    def __call__(self, schedule, repeat, runs):
        self.calls += 1
        number = self.texts.setdefault(schedule, len(self.texts))
        if number == self.fails:
            raise EngineError("the device is out of order")
        repeat()
        return 0.001 if number == self.fast else 0.0015


class TunedEngine:
    """An engine whose tuner has a fake timer, and the texts that its driver builds."""

    def __init__(self, engine, patch, on_call, **timer):
        self.engine, self.timer = engine, FakeTimer(**timer)
        self.driver, self.built = engine._driver, []
        self.tuner = Tuner(engine._opened, engine.family, self.timer)
        patch.setattr(engine, "_tuner", self.tuner)
        on_call(self.driver, "build", self.built.append)
        self.program = network(engine.target)

    @property
    def worked(self):
        """How many texts were built, and how many candidates were timed."""
        return len(self.built), self.timer.calls

    def compile(self):
        run_program(self.program, self.engine, feeds())


@pytest.fixture
def tuned(engine, on_call, tmp_path, monkeypatch):
    """Makes engines that tune, with an empty cache."""
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path))
    monkeypatch.setenv("LAMINA_TUNE", "1000")
    return lambda **timer: TunedEngine(engine, monkeypatch, on_call, **timer)


def test_the_fastest_candidate_is_chosen_for_all_equal_steps(tuned):
    tuning = tuned(fast=2)
    (step,) = tuning.tuner.tune(tuning.program)
    assert (step.steps, step.chosen) == ((0, 1), 2)
    seconds = [candidate.seconds for candidate in step.candidates]
    assert seconds == [0.001 if number == 2 else 0.0015 for number in range(len(seconds))]
    assert tuning.tuner.known_choices(tuning.program) == ((0, 2), (1, 2))


@pytest.mark.parametrize(
    ("chosen", "seconds"),
    [(0, (1.0, 0.95)), (1, (1.0, 0.85)), (2, (1.0, 0.85, 0.8)), (2, (None, 3, 2)), (0, (None,))],
)
def test_the_choice_of_the_model_stays_unless_another_one_is_clearly_faster(chosen, seconds):
    assert _best([Candidate("", each) for each in seconds]) == chosen


def test_a_program_runs_with_its_choices_and_gives_the_same_results(tuned, monkeypatch):
    tuning = tuned(fast=1)
    monkeypatch.setenv("LAMINA_TUNE", "0")
    before = tuning.engine.listing(tuning.program, None, "schedule")
    # The kernels of the model's choice are kept under another key.
    tuning.compile()
    monkeypatch.setenv("LAMINA_TUNE", "1000")
    outputs, _ = run_program(tuning.program, tuning.engine, feeds())
    after = tuning.engine.listing(tuning.program, None, "schedule")
    assert [*tuning.timer.texts][1].split(";")[0] in after
    assert before != after
    assert tuning.engine.listing(tuning.program, None, "opencl")
    expected, _ = run_program(tuning.program, InterpreterEngine(), feeds())
    for name in ("y0", "y1"):
        np.testing.assert_allclose(outputs[name], expected[name], rtol=1e-4, atol=1e-4)


def test_candidates_that_fail_are_dropped(tuned):
    tuning = tuned(fast=1, fails=1)
    (step,) = tuning.tuner.tune(tuning.program)
    assert step.chosen == 0
    text = [*tuning.timer.texts][1]
    assert step.candidates[1] == Candidate(text, None, "the device is out of order")
    assert step.candidates[2].seconds == 0.0015


def test_candidates_that_cannot_be_built_are_dropped(tuned, on_call):
    tuning = tuned(fast=0)

    def refuse_the_first(_):
        if not tuning.built:
            tuning.built.append("")
            raise InternalError("the OpenCL compiler refuses a kernel")

    on_call(tuning.driver, "build", refuse_the_first)
    (step,) = tuning.tuner.tune(tuning.program)
    assert step.candidates[0].problem == "the OpenCL compiler refuses a kernel"
    assert step.chosen == 1


def test_a_step_without_memory_is_not_tuned(tuned, monkeypatch):
    tuning = tuned()
    monkeypatch.setattr(device_memory, "NOT_ASKED_BYTES", 0)
    monkeypatch.setattr(type(tuning.driver), "available_bytes", lambda _: 1000)
    (step,) = tuning.tuner.tune(tuning.program)
    assert {candidate.problem for candidate in step.candidates} == {
        "there is not enough memory on the device"
    }
    assert (step.chosen, tuning.timer.calls) == (0, 0)


def test_tuning_releases_its_memory(tuned):
    tuning = tuned(fails=1)
    before = tuning.driver.allocated.bytes
    tuning.tuner.tune(tuning.program)
    assert tuning.timer.calls
    assert tuning.driver.allocated.bytes == before


@pytest.mark.parametrize(
    ("variable", "value"), [("LAMINA_TUNE", "0"), ("LAMINA_TUNE", "1e-9"), ("LAMINA_CACHE", "off")]
)
def test_nothing_is_tuned_without_time_or_a_cache(variable, value, tuned, monkeypatch):
    tuning = tuned(fast=1)
    monkeypatch.setenv(variable, value)
    tuning.compile()
    assert tuning.worked == (1, 0)
    if value == "0":
        # Also if there are choices on disk.
        tuning.tuner.tune(tuning.program)
        assert not tuning.tuner.choices(tuning.program)
        assert not tuning.tuner.known_choices(tuning.program)


@pytest.mark.parametrize("is_processor", [False, True])
def test_only_gpus_tune_by_default(is_processor, tuned, monkeypatch):
    tuning = tuned(fast=1)
    monkeypatch.delenv("LAMINA_TUNE")
    traits = replace(tuning.driver.traits, is_processor=is_processor)
    monkeypatch.setattr(tuning.driver, "traits", traits)
    assert bool(tuning.tuner.choices(tuning.program)) != is_processor
    assert bool(tuning.timer.calls) != is_processor
    # Processors use choices that somebody has asked for.
    tuning.tuner.tune(tuning.program)
    assert tuning.tuner.choices(tuning.program) == ((0, 1), (1, 1))


@pytest.mark.parametrize("seconds", ["fast", "-1", "nan", "inf", "2 s"])
def test_a_wrong_time_is_refused(seconds, tuned, monkeypatch):
    monkeypatch.setenv("LAMINA_TUNE", seconds)
    assert error_text(EngineError, tuned().compile) == (
        "LAMINA_TUNE is not a number of seconds\n"
        "  expected  a number of at least 0, such as 5\n"
        f"  found     {seconds!r}\n"
        "  Unset LAMINA_TUNE for the default; LAMINA_TUNE=0 takes the cost model's schedules."
    )


def test_small_programs_are_not_tuned(tuned):
    tuning = tuned()
    assert tuning.tuner.tune(network(tuning.engine.target, size=8)) == ()
    assert tuning.timer.calls == 0


def test_choices_are_read_from_disk(tuned):
    first = tuned(fast=1)
    first.compile()
    # A program for each candidate, then the whole program.
    assert len(first.built) == 1 + len(first.timer.texts)
    second = tuned(fast=0)
    assert second.tuner.choices(second.program) == first.tuner.choices(first.program) != ()
    assert second.worked == (0, 0)


def test_the_choices_of_the_process_that_was_done_first_are_used(tuned):
    slow, fast = tuned(fast=1), tuned(fast=2)
    original = fast.timer.__call__

    def interrupted(schedule, repeat, runs):
        # Another process tunes the program in the meantime.
        slow.tuner.choices(slow.program)
        return original(schedule, repeat, runs)

    tuner = Tuner(fast.engine._opened, fast.engine.family, interrupted)
    assert tuner.choices(fast.program) == ((0, 1), (1, 1))


def test_programs_share_the_choices_of_equal_steps(tuned):
    tuning = tuned(fast=1)
    (first,) = tuning.tuner.tune(tuning.program)
    calls = tuning.timer.calls
    (second,) = tuning.tuner.tune(replace(tuning.program, name="another"))
    assert (second, tuning.timer.calls) == (first, calls)


def test_another_driver_is_tuned_again(tuned):
    tuning = tuned(fast=1)
    tuning.tuner.tune(tuning.program)
    record = replace(tuning.driver.record, driver="another version")
    updated = SimpleNamespace(record=record, traits=tuning.driver.traits)
    other = Tuner(lambda: updated, tuning.engine.family)
    assert tuning.tuner.known_choices(tuning.program)
    assert not other.known_choices(tuning.program)


def test_listings_never_tune(tuned):
    tuning = tuned()
    tuning.engine.listing(tuning.program, None, "schedule")
    tuning.engine.listing(tuning.program, None, "opencl")
    tuning.engine.workspace_bytes(tuning.program)
    assert tuning.worked == (0, 0)


def test_equal_steps_are_equal_programs(training_program):
    layers = [lm.Input(16), *[layer for _ in range(4) for layer in (lm.Linear(16), lm.Tanh())]]
    alone = alone_of(training_program(layers, lm.MSE(), lm.SGD(0.1)))
    for program in alone:
        verify(program)
        assert not program.plan.blocks
    assert sum(program == alone[2] for program in alone) > 1


def test_weights_that_a_program_changes_are_inputs_of_its_steps(training_program):
    def kinds(frozen):
        layers = [lm.Input(16), lm.Linear(16)]
        program = training_program(layers, lm.MSE(), lm.SGD(0.1), frozen=frozen)
        buffers = [buffer for step in alone_of(program) for buffer in step.buffers.values()]
        return {buffer.kind for buffer in buffers if buffer.size > 1}  # not the rate

    assert kinds(["1.weight"]) == {"parameter", "input", "state"}
    assert kinds([]) == {"input", "state"}


def test_promising_schedules_are_the_fastest_and_others_of_each_kind():
    target = target_for(TRAITS, "opencl")
    for step in network(target, 512).steps:
        ranked, chosen = list(candidates(step, target, TRAITS)), promising(step, target, TRAITS)
        assert chosen[0] == ranked[0]
        assert len(set(chosen)) == len(chosen) <= MOST_PROMISING
        assert len(ranked) == 1 or len(chosen) > 1
        assert set(chosen) <= set(ranked)


def test_candidates_for_processors_begin_with_the_choice_of_the_model(engine):
    if isinstance(engine.family, GpuFamily):
        pytest.skip("this device is not a processor")
    alone = alone_of(network(engine.target))[0]
    schedules = engine.family.candidates(alone)
    assert schedules[0] == engine.family.decide(alone).steps[0]
    assert len(set(schedules)) == len(schedules) == 1 + of_processors.MOST
    assert all(isinstance(schedule, GemmSchedule) for schedule in schedules)
    assert schedules[0].right != schedules[1].right


LAYERS = {
    "recurrent": (lm.Input(5, 4), lm.LSTM(6), lm.Linear(3)),
    "convolutional": (
        *(lm.Input(4, 8, 8), lm.Conv2d(16, 3), lm.ReLU(), lm.MaxPool2d(2)),
        *(lm.Flatten(), lm.Linear(3)),
    ),
}


@pytest.mark.parametrize("kind", ["processor", "gpu"])
@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.sampled
def test_candidates_of_every_step_run(layers, kind, engine, driver, training_program):
    family = engine.family
    if kind == "gpu":
        family = GpuFamily(driver.traits, driver.words, "opencl")
    program = training_program(LAYERS[layers], lm.MSE(), lm.Adam(0.1), batch=8)
    seen = []
    timed = 0
    for alone in alone_of(program):
        if alone not in seen:
            seen.append(alone)
            outcomes, complete = timed_candidates(alone, family, driver, FakeTimer())
            assert complete
            assert not any(outcome.problem for outcome in outcomes)
            timed += len(outcomes) > 1
    assert timed


def test_floats_are_filled_with_numbers_that_are_not_0(driver):
    floats = DeviceMemory(driver, (50_001,), np.dtype("float32"))
    numbers = DeviceMemory(driver, (50,), np.dtype("int64"))
    for memory in (floats, numbers, DeviceMemory(driver, (0,), np.dtype("float32"))):
        _fill(memory)
    magnitudes = np.abs(floats.read())
    assert 0.5 <= magnitudes.min() <= magnitudes.max() <= 1.5
    assert not numbers.read().any()


NO_CACHE = "There is no cache on disk (LAMINA_CACHE): the choices are neither kept nor used."


def test_the_table_shows_what_was_tried():
    engine = InterpreterEngine()
    steps = (
        TunedStep(
            (0, 1),
            (
                Candidate("tiles of 4x4", 0.002, expected=0.0015),
                Candidate("dots of 2x2, " + "and so on, " * 8, 0.001),
                Candidate("tiles of 8x8", None, "out of order"),
                Candidate("a loop", None),
            ),
            1,
        ),
    )
    program = network(engine.target)
    table = [
        "step  over                time  expected  choice  schedule",
        "----  ---------------  -------  --------  ------  " + "-" * 67,
        "0, 1  256 x 256 x 256  2.00 ms   1.50 ms          tiles of 4x4",
        f"                       1.00 ms         -  chosen  dots of 2x2,{' and so on,' * 5}",
        "                                                  and so on, and so on, and so on,",
        "                             -         -          tiles of 8x8: out of order",
        "                             -         -          a loop: not run",
    ]
    explanation = Explanation(3, program, engine)
    assert str(Tuning(explanation, steps, has_cache=True)).splitlines()[2:] == table
    lines = ["", NO_CACHE]
    assert str(Tuning(explanation, steps, has_cache=False)).splitlines()[2:] == [*table, *lines]


def test_the_table_of_a_small_program_says_why_it_is_empty():
    engine = InterpreterEngine()
    text = str(Tuning(Explanation(3, network(engine.target), engine), (), has_cache=False))
    assert text.splitlines()[2:] == [
        "No step takes long enough, and has several schedules: the cost model decides."
    ]


@pytest.mark.parametrize("has_cache", [True, False])
def test_a_tuning_without_a_cache_says_that_nothing_is_kept(has_cache, tmp_path, monkeypatch):
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path) if has_cache else "off")
    engine = InterpreterEngine()
    step = TunedStep((0,), (Candidate("tiles", 0.002), Candidate("dots", 0.001)), 1)
    monkeypatch.setattr(engine, "tune", lambda _: (step,))
    text = str(Explanation(3, network(engine.target), engine).tuning())
    assert (NO_CACHE in text) != has_cache


@pytest.mark.parametrize("name", ["cpu", "interpreter"])
def test_other_engines_do_not_tune(name):
    model = lm.Model(lm.Sequential(lm.Input(3), lm.Linear(2)), engine=name)
    assert error_text(EngineError, model.tune) == (
        f"in tune: the engine {name} does not tune schedules\n"
        "  expected  an engine that does, such as opencl\n"
        f"  found     {name}\n"
        "  Name another engine: lm.Model(net, engine='opencl'), or --engine opencl on the command "
        "line."
    )


def test_the_expected_time_of_a_candidate_is_that_by_which_candidates_are_ranked():
    traits = replace(TRAITS, rates=Rates(clock=1e9))
    family = GpuFamily(traits, OPENCL, "opencl")
    (alone, _) = alone_of(network(family.target))
    schedules = family.candidates(alone)
    seconds = family.expected_seconds(alone, schedules)
    assert seconds[0] == min(seconds)
    bits = position_bits(alone.steps[0], family.target)
    (step,) = alone.steps
    clocks = costs_of_schedules(step, bits, traits)
    assert seconds == [clocks[schedule] / 1e9 for schedule in schedules]
    # Without a clock there are no seconds.
    clockless = GpuFamily(TRAITS, OPENCL, "opencl")
    assert clockless.expected_seconds(alone, schedules) == [None] * len(schedules)
