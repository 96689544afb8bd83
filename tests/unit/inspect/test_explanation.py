"""Explanations and profiles: costs counted by hand, tables, listings, errors."""

import numpy as np
import pytest
from error_texts import error_text
from llvm_text import functions

import lamina as lm
from lamina import ops
from lamina.engines.discovery import devices
from lamina.errors import DataError, DefinitionError
from lamina.program.cost import space_of

ENGINES = [device.engine for device in devices() if not device.problem]
BATCH = 4


def small_model(engine="cpu"):
    net = lm.Sequential(lm.Input(6), lm.Linear(5), lm.ReLU(), lm.Linear(3))
    return lm.Model(net, engine=engine)


def test_a_contraction_costs_its_multiply_adds_and_the_bytes_of_its_operands():
    explanation = small_model().explain(batch_size=BATCH)
    step, cost = explanation.program.steps[0], explanation.costs[0]
    # 2 for each product, 1 for the bias, 1 for the activation.
    assert cost.operations == BATCH * 5 * (2 * 6 + 1 + 1)
    assert cost.read_bytes == 4 * (BATCH * 6 + 5 * 6 + 5)
    assert cost.written_bytes == 4 * BATCH * 5
    assert cost.bytes == cost.read_bytes + cost.written_bytes
    assert space_of(step) == "4 x 5 x 6"


def test_a_reduction_costs_an_operation_and_reads_no_element_twice():
    x = lm.Input(7)
    model = lm.Model(lm.Network(inputs=x, outputs=lm.ops.sum(x, 1)))
    explanation = model.explain(batch_size=BATCH)
    (step,), (cost,) = explanation.program.steps, explanation.costs
    assert (cost.operations, cost.read_bytes, cost.written_bytes) == (BATCH * 7, 4 * 28, 4 * BATCH)
    assert space_of(step) == "4 : 7"
    doubled = lm.ops.sum(lm.ops.concat([x, x], axis=1), 1, keepdims=True) + x
    model = lm.Model(lm.Network(inputs=x, outputs=doubled))
    for cost in model.explain(batch_size=BATCH).costs:
        assert cost.read_bytes <= 4 * BATCH * 7 + 4 * BATCH


def test_an_explanation_lists_every_step_and_the_sums():
    explanation = small_model().explain(BATCH, lm.CrossEntropy(), lm.Adam(1e-3))
    lines = str(explanation).splitlines()
    assert lines[0].startswith("training step, 4 examples, on cpu (")
    assert lines[2].split() == ["step", "name", "kind", "over", "FLOPs", "read", "written"]
    assert len(lines) == len(explanation.program.steps) + 8
    total = sum(cost.operations for cost in explanation.costs)
    assert lines[-3].split()[:3] == ["in", "all", f"{total:,}"]
    assert lines[-1].startswith("in addition to its memory bill it takes ")


@pytest.mark.sampled
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("width", [5, 200])
def test_an_engine_lists_every_step_in_all_its_languages(width, engine):
    # The wide network has gradients of biases that run inside of other steps.
    net = lm.Sequential(lm.Input(200), lm.Linear(width), lm.ReLU(), lm.Linear(200))
    explanation = lm.Model(net, engine=engine).explain(32, lm.CrossEntropy(), lm.SGD(0.1))
    for number, step in enumerate(explanation.program.steps):
        for language in explanation.languages:
            text = explanation.listing(number, language)
            if language == "program":
                assert text == str(step)
            elif language == "schedule":
                assert "work item" in text
            else:
                assert 0 < len(text) < len(explanation.listing(None, language))


def test_the_cpu_engine_shows_the_code_of_a_single_step():
    explanation = small_model().explain(BATCH, lm.CrossEntropy(), lm.SGD(0.1))
    program, first, second = (functions(explanation.listing(n, "llvm")) for n in (None, 0, 1))
    assert first
    assert second
    assert first != second
    assert first | second <= program
    assert "ret" in explanation.listing(1, "assembly")


def test_listings_of_unknown_steps_and_languages_are_refused():
    listing = small_model("interpreter").explain().listing
    assert error_text(DefinitionError, listing, 9) == (
        "in listing: the program has no such step\n"
        "  expected  0 to 1\n"
        "  found     9\n"
        "  Print the explanation: it numbers the steps."
    )
    assert error_text(DefinitionError, listing, 0, "assembly") == (
        "in listing: the engine has no listing in the language 'assembly'\n"
        "  expected  program\n"
        "  found     'assembly'\n"
        "  The engine is interpreter; others have other languages."
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_a_profile_times_every_step_and_leaves_the_model_as_it_is(engine):
    model = small_model(engine)
    before = model.parameters()
    profile = model.profile(BATCH, lm.CrossEntropy(), lm.Adam(1e-2), seconds=0.02)
    assert len(profile.seconds) == len(profile.explanation.program.steps)
    assert min(profile.seconds) >= 0
    assert sum(profile.seconds) > 0
    assert profile.runs >= 3
    for name, value in model.parameters().items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.sampled
def test_a_profile_names_the_slowest_step_first_and_the_peaks():
    profile = small_model().profile(BATCH, seconds=0.02)
    lines = str(profile).splitlines()
    assert lines[0].startswith("inference, 4 examples, on cpu (")
    slowest = max(range(len(profile.seconds)), key=lambda number: profile.seconds[number])
    assert lines[4].split()[0] == str(slowest)
    assert profile.peaks.operations > 1e8
    assert profile.peaks.bytes > 1e8
    assert "this machine's measured peaks: " in lines[-1]


@pytest.mark.sampled
def test_a_profile_runs_on_given_data():
    net = lm.Sequential(lm.Input(4), lm.Linear(2))
    x, y = np.zeros((BATCH, 4), "uint8"), np.zeros(BATCH, "int64")
    profile = lm.Model(net).profile(
        BATCH, lm.CrossEntropy(), lm.SGD(0.1), data=(x, y), seconds=0.01
    )
    kinds = {b.name: b.dtype.name for b in profile.explanation.program.of_kind("input")}
    assert kinds == {"input0": "uint8", "target0": "int64"}


def test_integer_inputs_without_data_and_a_loss_without_an_optimizer_are_refused():
    net = lm.Sequential(lm.Input(dtype="int64"), lambda k: ops.one_hot(k, 5), lm.Linear(2))
    assert error_text(DataError, lm.Model(net).profile, BATCH) == (
        "in profile: random examples cannot be made for an input of integers\n"
        "  input  0, i64[batch]\n"
        "  Give some: profile(..., data=(x, y)), or lamina profile FILE.py --data DATA."
    )
    for name in ("explain", "profile"):
        text = error_text(DefinitionError, getattr(small_model(), name), BATCH, lm.MSE())
        problem = "a training step needs both a loss and an optimizer"
        assert text.startswith(f"in {name}: {problem}\n  loss       MSE(")
