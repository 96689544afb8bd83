"""Small kernels as the phases of one kernel, on the machine that runs PTX, which finds races."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from doubles import DoubledDevice
from harness import run_program, training_step
from test_cuda_schedules import SeparateKernels

import lamina as lm
from lamina.codegen.cuda_words import CUDA
from lamina.compiler.pipeline import compile_graph
from lamina.engines.cuda.build import programs_of
from lamina.engines.gpu import kernels
from lamina.engines.gpu.engine import GpuEngine
from lamina.engines.gpu.gpus import GpuFamily
from lamina.engines.gpu.phases import extra_clocks
from lamina.engines.gpu.schedule import TreeSchedule
from lamina.program.program import Program

DEVICES = {capability: DoubledDevice(capability) for capability in ((7, 5), (9, 0))}


def engine(kind: type[GpuFamily], capability: tuple[int, int]) -> GpuEngine:
    driver = DEVICES[capability].driver
    return GpuEngine("cuda", lambda: driver, lambda _: kind(driver.traits, driver.words, "cuda"))


def classifier() -> lm.Network:
    return lm.Sequential(lm.Input(20), lm.Linear(40), lm.BatchNorm(), lm.ReLU(), lm.Linear(16))


def recurrent() -> lm.Network:
    return lm.Sequential(lm.Input(7, 4), lm.LSTM(8), lm.Flatten(), lm.Linear(4))


def step_of(network: lm.Network, own: GpuEngine) -> Program:
    graph = training_step(network, lm.CrossEntropy(), lm.SGD(0.05, momentum=0.9)).graph
    return compile_graph(graph, batch=8, name="step", target=own.target)


def check(network: lm.Network, capability: tuple[int, int]) -> int:
    """Requires the bits of separate kernels from a training step; returns its launches."""
    own, separate = (engine(kind, capability) for kind in (GpuFamily, SeparateKernels))
    program = step_of(network, own)
    generator = np.random.default_rng(0)
    feeds = {
        one.name: generator.uniform(0.0, 1.0, one.shape).astype(one.dtype.numpy)
        for kind in ("input", "parameter", "state")
        for one in program.of_kind(kind)
    }
    rows = [run_program(program, one, feeds, runs=2) for one in (own, separate)]
    assert DEVICES[capability].double.recover() == []
    for found, expected in zip(*rows, strict=True):
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, name)
            assert np.isfinite(value).all(), name
    assert own.launch_count(program) < separate.launch_count(program)
    return own.launch_count(program)


@pytest.mark.parametrize(
    ("network", "capability", "launches"),
    [(classifier, (7, 5), 1), (recurrent, (9, 0), 3)],
    ids=["classifier", "recurrent"],
)
def test_phases_of_one_kernel_have_the_bits_of_separate_kernels(network, capability, launches):
    assert check(network(), capability) == launches


def test_a_kernel_is_compiled_with_its_own_phases_only():
    own = engine(GpuFamily, (9, 0))
    family, program = own.family, step_of(classifier(), own)
    text = family.write(program, family.decide(program)).text
    texts = programs_of(text)
    (joined,) = (name for name in texts if "joined" in name)
    assert texts[joined].count("_phase(") == text.count("_phase(") > 10
    assert all("_phase(" not in one for name, one in texts.items() if name != joined)


def test_functions_are_written_once_and_only_for_kernels_that_call_them():
    own = engine(SeparateKernels, (9, 0))
    layers = lm.Linear(33), lm.GELU(), lm.Linear(9), lm.Tanh(), lm.Linear(33), lm.GELU()
    program = step_of(lm.Sequential(lm.Input(20), *layers, lm.Linear(10)), own)
    text = own.family.write(program, own.family.decide(program), separate=True).text
    begins = re.escape(CUDA.inlined) + r" \S.* (\w+)\([^;]*\) \{$"
    names = re.findall(rf"^{begins}", text, re.MULTILINE)
    assert len({*names}) == len(names) >= 4
    called = 0
    for one in programs_of(text).values():
        # Functions whose calls stand in other functions are none of these.
        body = one[one.index(CUDA.kernel.split("__")[0] + "__global__") :]
        expected = [name for name in names if f"{name}(" in body]
        assert re.findall(rf"^{begins}", one, re.MULTILINE) == expected
        called += len(expected)
    assert called > len(names)


def test_launches_within_an_iteration_are_joined(monkeypatch, on_call):
    def without_trees(launch: Any, decided: Any, *more: Any) -> float | None:
        is_tree = isinstance(decided, TreeSchedule)
        return None if is_tree else extra_clocks(launch, decided, *more)

    monkeypatch.setenv("LAMINA_CACHE", "0")
    monkeypatch.setattr(kernels, "extra_clocks", without_trees)
    joined: list[bool] = []
    on_call(kernels, "write_phases", lambda *_, is_repeated: joined.append(is_repeated))
    check(recurrent(), (9, 0))
    assert True in joined
    assert False in joined
