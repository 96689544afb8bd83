"""Kernels of every schedule, of chains, and as phases, on the machine that runs PTX."""

import re
from dataclasses import replace
from functools import cache

import chain_cases
import numpy as np
import pytest
from alternatives import schedules_of
from chain_cases import check_chains
from doubles import DoubledDevice
from gpu_cases import CASES, LARGE, PANELS, Case, assert_close, compiled
from harness import run_program, training_step

import lamina as lm
from lamina import ops
from lamina.base.shapes import int32
from lamina.codegen.cuda_words import CUDA
from lamina.compiler.pipeline import compile_graph
from lamina.engines.cuda.build import programs_of
from lamina.engines.gpu import kernels
from lamina.engines.gpu.engine import GpuEngine
from lamina.engines.gpu.gpus import GpuFamily
from lamina.engines.gpu.phases import extra_clocks
from lamina.engines.gpu.schedule import MatrixSchedule, PassesSchedule, TreeSchedule
from lamina.engines.interpreter.engine import InterpreterEngine
from lamina.program.steps import Contraction

# These always run; the others if `--part` chooses them.
FIRST = (
    *("matmul-bf16", "transposed-bf16", "matmul-f16", "conv-bf16"),
    *("matmul-tf32", "conv-tf32", "stored-tf32"),
)


def with_samples(cases, first):
    return [
        pytest.param(case, id=case.name, marks=() if case.name in first else pytest.mark.sampled)
        for case in cases
    ]


class SeparateKernels(GpuFamily):
    """Kernels alone; the conformance tests run them as phases of others, too."""

    def __init__(self, traits, words, engine):
        super().__init__(traits, words, engine)
        self.key += "separate"

    def write(self, program, schedule, *, separate=False):
        return super().write(program, schedule, separate=True)


@cache
def engine(capability=(8, 0)):
    """The engine on a device of that compute capability, and the double of its driver."""
    device = DoubledDevice(capability)
    family = SeparateKernels(device.driver.traits, device.driver.words, "cuda")
    return GpuEngine("cuda", lambda: device.driver, lambda _: family), device.double


def check(case, schedules, tolerance, capability):
    """Runs a case with its own schedule, and others; returns the kinds of matrices.

    The others are all schedules, the schedules of warpgroups, or none.
    """
    cuda, _ = engine(capability)
    program = compiled(case, cuda.target)
    others = [] if schedules == "decided" else list(schedules_of(cuda, program))
    if schedules == "of warpgroups":
        others = [
            schedule
            for schedule in others
            if any(kernel.by_warpgroups for kernel in _matrices(schedule))
        ]
    compare(case, program, (None, *others), tolerance, capability)
    return {kernel.kind for schedule in others for kernel in _matrices(schedule)}


def compare(case, program, schedules, tolerance=2e-5, capability=(8, 0)):
    """Requires the interpreter's results of each schedule."""
    (cuda, double), feeds = engine(capability), case.feeds()
    expected, _ = run_program(program, InterpreterEngine(), feeds)
    for schedule in schedules:
        outputs, _ = run_program(program, cuda, feeds, schedule=schedule)
        faults = double.recover()
        assert not faults, f"{faults[0]}\n{schedule}"
        for name, value in expected.items():
            assert_close(outputs[name], value, tolerance, f"{name}\n{schedule}")


def _matrices(schedule):
    """The schedules of kernels whose warps multiply matrices."""
    kernels = [
        kernel
        for step in (schedule.steps if schedule is not None else ())
        for kernel in (step.passes[0].kernels if isinstance(step, PassesSchedule) else (step,))
    ]
    return [kernel for kernel in kernels if isinstance(kernel, MatrixSchedule)]


@pytest.mark.parametrize("case", with_samples(CASES, FIRST))
def test_every_schedule_gives_the_results_of_the_interpreter(case):
    kinds = check(case, "every", 2e-5, (8, 0))
    named = {"bf16": "bfloat16", "f16": "float16", "tf32": "tf32"}
    if case.name in FIRST:
        assert kinds == {named[case.name.rpartition("-")[2]]}


@pytest.mark.parametrize("case", LARGE, ids=lambda case: case.name)
@pytest.mark.sampled
def test_the_decided_schedules_give_the_results_of_the_interpreter(case):
    check(case, "decided", 1e-4, (8, 0))


@pytest.mark.cases(
    "case", *(one for one in CASES if one.name in FIRST), *PANELS, ids=lambda case: case.name
)
def test_warpgroups_multiply_on_hopper(case):
    assert check(case, "of warpgroups", 2e-5, (9, 0))


@pytest.mark.parametrize("name", ["matmul-f16", "transposed-f16"])
def test_the_oldest_gpus_multiply_matrices_of_float16(name):
    case = next(one for one in CASES if one.name == name)
    assert check(case, "every", 2e-5, (7, 5)) == {"float16"}


def test_floats_beyond_the_integers_become_the_nearest_one():
    cuda, double = engine()
    program = compiled(Case("cast", ((5,),), lambda x: ops.cast(x, int32)), cuda.target)
    x = np.asarray([3e9, 2147483648.0, 1.5, -3e9, -np.inf], np.float32)
    outputs, _ = run_program(program, cuda, {"x0": x})
    assert double.recover() == []
    assert outputs["y"].tolist() == [2**31 - 1, 2**31 - 1, 1, -(2**31), -(2**31)]


def test_tiles_may_take_more_local_memory_than_kernels_can_declare():
    case = next(case for case in CASES if case.name == "transposed-bf16")
    cuda, _ = engine()
    program = compiled(case, cuda.target)
    (number,) = (n for n, step in enumerate(program.steps) if isinstance(step, Contraction))
    # The same tiles as a legal schedule, but more of them.
    pairs = ((schedule, schedule.steps[number]) for schedule in schedules_of(cuda, program))
    schedule, tiled = next(pair for pair in pairs if isinstance(pair[1], MatrixSchedule))
    stages = 2 + (48 << 10) * tiled.stages // tiled.local_bytes
    deeper = replace(tiled, stages=stages)
    assert 48 << 10 < deeper.local_bytes <= 163 << 10
    steps = (*schedule.steps[:number], deeper, *schedule.steps[number + 1 :])
    compare(case, program, [replace(schedule, steps=steps)])


@pytest.mark.parametrize("case", with_samples(chain_cases.CASES, ("causal", "mixed-bfloat16")))
def test_chains_give_the_results_of_the_interpreter(case, monkeypatch):
    monkeypatch.setattr("lamina.compiler.chains.LEAST_LENGTH", 1)
    cuda, double = engine()
    # The machine is slow: two of the odd ones.
    check_chains(case, cuda, cuda.target, lambda program: [*schedules_of(cuda, program)][::5])
    assert double.recover() == []


DEVICES = {capability: DoubledDevice(capability) for capability in ((7, 5), (9, 0))}


def phased_engine(kind, capability):
    driver = DEVICES[capability].driver
    return GpuEngine("cuda", lambda: driver, lambda _: kind(driver.traits, driver.words, "cuda"))


def classifier():
    return lm.Sequential(lm.Input(20), lm.Linear(40), lm.BatchNorm(), lm.ReLU(), lm.Linear(16))


def recurrent():
    return lm.Sequential(lm.Input(7, 4), lm.LSTM(8), lm.Flatten(), lm.Linear(4))


def step_of(network, own):
    graph = training_step(network, lm.CrossEntropy(), lm.SGD(0.05, momentum=0.9)).graph
    return compile_graph(graph, batch=8, name="step", target=own.target)


def check_phases(network, capability):
    """Requires the bits of separate kernels from a training step; returns its launches."""
    joined, separate = (phased_engine(kind, capability) for kind in (GpuFamily, SeparateKernels))
    program = step_of(network, joined)
    generator = np.random.default_rng(0)
    feeds = {
        buffer.name: generator.uniform(0.0, 1.0, buffer.shape).astype(buffer.dtype.numpy)
        for kind in ("input", "parameter", "state")
        for buffer in program.of_kind(kind)
    }
    rows = [run_program(program, phased, feeds, runs=2) for phased in (joined, separate)]
    assert DEVICES[capability].double.recover() == []
    for arrays, expected in zip(*rows, strict=True):
        for name, value in expected.items():
            np.testing.assert_array_equal(arrays[name], value, name)
            assert np.isfinite(value).all(), name
    assert joined.launch_count(program) < separate.launch_count(program)
    return joined.launch_count(program)


@pytest.mark.parametrize(
    ("network", "capability", "launches"),
    [(classifier, (7, 5), 1), (recurrent, (9, 0), 3)],
    ids=["classifier", "recurrent"],
)
def test_phases_of_one_kernel_have_the_bits_of_separate_kernels(network, capability, launches):
    assert check_phases(network(), capability) == launches


def test_a_kernel_is_compiled_with_its_own_phases_only():
    cuda = phased_engine(GpuFamily, (9, 0))
    family, program = cuda.family, step_of(classifier(), cuda)
    text = family.write(program, family.decide(program)).text
    texts = programs_of(text)
    (joined,) = (name for name in texts if "joined" in name)
    assert texts[joined].count("_phase(") == text.count("_phase(") > 10
    assert all("_phase(" not in source for name, source in texts.items() if name != joined)


def test_functions_are_written_once_and_only_for_kernels_that_call_them():
    cuda = phased_engine(SeparateKernels, (9, 0))
    layers = lm.Linear(33), lm.GELU(), lm.Linear(9), lm.Tanh(), lm.Linear(33), lm.GELU()
    program = step_of(lm.Sequential(lm.Input(20), *layers, lm.Linear(10)), cuda)
    text = cuda.family.write(program, cuda.family.decide(program), separate=True).text
    begins = re.escape(CUDA.inlined) + r" \S.* (\w+)\([^;]*\) \{$"
    names = re.findall(rf"^{begins}", text, re.MULTILINE)
    assert len({*names}) == len(names) >= 4
    called = 0
    for source in programs_of(text).values():
        # Functions whose calls stand in other functions are none of these.
        body = source[source.index(CUDA.kernel.split("__")[0] + "__global__") :]
        expected = [name for name in names if f"{name}(" in body]
        assert re.findall(rf"^{begins}", source, re.MULTILINE) == expected
        called += len(expected)
    assert called > len(names)


def test_launches_within_an_iteration_are_joined(monkeypatch, on_call):
    def without_trees(launch, decided, *more):
        is_tree = isinstance(decided, TreeSchedule)
        return None if is_tree else extra_clocks(launch, decided, *more)

    monkeypatch.setenv("LAMINA_CACHE", "0")
    monkeypatch.setattr(kernels, "extra_clocks", without_trees)
    joined = []
    on_call(kernels, "write_phases", lambda *_, is_repeated: joined.append(is_repeated))
    check_phases(recurrent(), (9, 0))
    assert True in joined
    assert False in joined
