"""The program cache: programs on disk are found by all that they were compiled from."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.base import cache
from lamina.base.shapes import as_dtype, float32
from lamina.compiler import pipeline, program_cache
from lamina.compiler.pipeline import compile_graph
from lamina.compiler.program_cache import compile_cached
from lamina.engines import DEFAULT_TARGET
from lamina.graph import OPS, Graph, Op, apply, leaf
from lamina.learning.protocols import TrainingOptions
from lamina.ops.lowering_rules import Elementwise
from lamina.program.program import Program
from lamina.program.target import Target
from lamina.step.derive import BatchSpecs, default_targets, training_graph


class Counted:
    """Compiles, and counts how often."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, graph: Graph, *, batch: int, name: str, target: Target) -> Program:
        self.calls += 1
        return compile_graph(graph, batch=batch, name=name, target=target)


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    """An empty cache; counts compilations."""
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path))
    counted = Counted()
    monkeypatch.setattr(pipeline, "compile_graph", counted)
    return counted


def training_graph_of(net: lm.Network, loss: Any = None, optimizer: Any = None) -> Graph:
    loss = loss or lm.CrossEntropy()
    targets = default_targets(net, loss, float32)
    options = TrainingOptions(loss, optimizer or lm.Adam(1e-3))
    return training_graph(BatchSpecs(net, float32, targets=targets), options).graph


def classifier(features: int = 20, dropout: float = 0.5, layer: type = lm.ReLU) -> lm.Network:
    return lm.Sequential(
        lm.Input(9), lm.Linear(features), layer(), lm.Dropout(dropout), lm.Linear(4)
    )


def scaled(factor: Any, *, name: str = "y") -> Graph:
    x = leaf("x", "input", (3,), float32)
    return Graph((x,), ((name, x * ops.constant(np.asarray(factor, "float32"))),))


def test_a_graph_that_was_compiled_before_is_not_compiled_again(compiled: Counted) -> None:
    programs = [
        compile_cached(
            training_graph_of(classifier()), batch=8, name="training", target=DEFAULT_TARGET
        )
        for _ in range(3)
    ]
    assert compiled.calls == 1
    assert len({str(program) for program in programs}) == 1


@pytest.mark.sampled
def test_another_process_finds_the_program_by_the_same_key(tmp_path: Path) -> None:
    script = """
import lamina as lm
from lamina.compiler import pipeline
net = lm.Sequential(lm.Input(9), lm.Linear(20), lm.Tanh(), lm.Dropout(0.5), lm.Linear(4))
if {again}:
    pipeline.compile_graph = None
lm.Model(net).training(loss=lm.CrossEntropy(), optimizer=lm.Adam(), batch_size=3)
"""
    for seed, again in (("1", False), ("2", True)):
        environment = os.environ | {"PYTHONHASHSEED": seed, "LAMINA_CACHE": str(tmp_path)}
        text = script.format(again=again)
        subprocess.run([sys.executable, "-c", text], env=environment, check=True)


DIFFERENT: dict[str, Callable[[], tuple[Graph, int, str]]] = {
    "the first": lambda: (training_graph_of(classifier()), 8, "training"),
    "another batch": lambda: (training_graph_of(classifier()), 7, "training"),
    "another name": lambda: (training_graph_of(classifier()), 8, "evaluation"),
    "another size": lambda: (training_graph_of(classifier(21)), 8, "training"),
    "another number": lambda: (training_graph_of(classifier(dropout=0.25)), 8, "training"),
    "another layer": lambda: (training_graph_of(classifier(layer=lm.Tanh)), 8, "training"),
    "another loss": lambda: (training_graph_of(classifier(), lm.MSE()), 8, "training"),
    "another optimizer": lambda: (
        training_graph_of(classifier(), None, lm.SGD(0.1)),
        8,
        "training",
    ),
    "another momentum": lambda: (
        training_graph_of(classifier(), None, lm.SGD(0.1, momentum=0.9)),
        8,
        "training",
    ),
    "a constant": lambda: (scaled([1, 2, 3]), 1, "test"),
    "another constant": lambda: (scaled([1, 2, 4]), 1, "test"),
    "a constant of one number": lambda: (scaled(2), 1, "test"),
    "a negative zero": lambda: (scaled(-0.0), 1, "test"),
    "a zero": lambda: (scaled(0.0), 1, "test"),
    "another output": lambda: (scaled(0.0, name="z"), 1, "test"),
}


@pytest.mark.sampled
def test_graphs_of_different_programs_have_different_entries(compiled: Counted) -> None:
    for _ in range(2):
        for make in DIFFERENT.values():
            graph, batch, name = make()
            program = compile_cached(graph, batch=batch, name=name, target=DEFAULT_TARGET)
            assert str(program) == str(
                compile_graph(graph, batch=batch, name=name, target=DEFAULT_TARGET)
            )
    assert compiled.calls == len(DIFFERENT)


def test_programs_for_other_targets_are_other_entries(compiled: Counted) -> None:
    x, weight = (leaf(name, "input", shape, float32) for name, shape in SHAPES.items())
    y = ops.relu(ops.conv(x, weight, 1, 1, 1, groups=3))
    graph = Graph((x, weight), (("y", ops.sum(y @ y)),))
    targets = [DEFAULT_TARGET, replace(DEFAULT_TARGET, alignment_bytes=4096)]
    for target in targets * 2:
        program = compile_cached(graph, batch=1, name="test", target=target)
        again = compile_graph(graph, batch=1, name="test", target=target)
        assert str(program) == str(again)
    assert compiled.calls == 2


SHAPES = {"x": (2, 3, 6, 6), "weight": (3, 1, 3, 3)}


def test_a_shared_tensor_and_two_equal_ones_have_different_checksums() -> None:
    x = leaf("x", "input", (3,), float32)
    one, other = ops.exp(x), ops.exp(x)
    graphs = [Graph((x,), (("y", one + one),)), Graph((x,), (("y", one + other),))]
    assert len({program_cache._graph_checksum(graph) for graph in graphs}) == 2


def test_every_op_has_a_checksum_for_all_its_samples() -> None:
    described: set[str | None] = set()
    count = 0
    for op in ops.ALL:
        for sample in op.samples:
            kinds = sample.dtypes or ("float",) * len(sample.shapes)
            operands = [
                leaf(f"x{n}", "input", shape, float32 if kind == "float" else as_dtype(kind))
                for n, (shape, kind) in enumerate(zip(sample.shapes, kinds, strict=True))
            ]
            graph = Graph(tuple(operands), (("y", apply(op, *operands, **sample.attributes)),))
            described.add(program_cache._graph_checksum(graph))
            count += 1
    assert None not in described
    # Samples may differ in their values alone.
    assert len(described) > 0.8 * count


def test_programs_of_recurrent_networks_are_found_again(compiled: Counted) -> None:
    for _ in range(2):
        net = lm.networks.lstm_classifier(3, 7, inputs=2, features=8)
        compile_cached(training_graph_of(net), batch=4, name="training", target=DEFAULT_TARGET)
    assert compiled.calls == 1


def test_an_op_that_is_not_ours_is_compiled_each_time(compiled: Counted) -> None:
    known = OPS["exp"]
    assert isinstance(known.lowering, Elementwise)
    own = Op("exp", known.infer, None, known.reference, known.lowering)
    x = leaf("x", "input", (3,), float32)
    for _ in range(2):
        compile_cached(
            Graph((x,), (("y", apply(own, x)),)), batch=1, name="test", target=DEFAULT_TARGET
        )
    assert compiled.calls == 2


def test_another_version_of_the_sources_compiles_anew(
    compiled: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_cached(scaled(2), batch=1, name="test", target=DEFAULT_TARGET)
    monkeypatch.setattr(program_cache.SOURCES, "checksum", "another")
    compile_cached(scaled(2), batch=1, name="test", target=DEFAULT_TARGET)
    assert compiled.calls == 2


@pytest.mark.parametrize("without", ["the cache", "the sources"])
def test_nothing_is_stored_without_a_cache_or_a_checksum_of_the_sources(
    without: str, compiled: Counted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if without == "the cache":
        monkeypatch.setenv("LAMINA_CACHE", "off")
    else:
        monkeypatch.setattr(program_cache.SOURCES, "checksum", "")
    for _ in range(2):
        compile_cached(scaled(2), batch=1, name="test", target=DEFAULT_TARGET)
    assert compiled.calls == 2
    assert not list(tmp_path.rglob("*.object"))


NONSENSE = {
    "nothing": b"",
    "truncated": b"\x08\0\0\0\0\0\0\0[[0]",
    "a pickle": b"cos\nsystem\n(S'false'\ntR.",
    "another value": b"\x08\0\0\0\0\0\0\0[[0], 1]",
}


@pytest.mark.parametrize("content", NONSENSE.values(), ids=NONSENSE)
def test_an_entry_that_is_no_program_is_made_anew(
    content: bytes, compiled: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[str] = []

    def noted(key: str, data: bytes) -> None:
        kept.append(key)
        cache.keep(key, data)

    monkeypatch.setattr(program_cache, "keep", noted)
    expected = str(compile_cached(scaled(2), batch=1, name="test", target=DEFAULT_TARGET))
    # With a checksum that is right, as someone would write it.
    cache.keep(kept[0], content)
    assert str(compile_cached(scaled(2), batch=1, name="test", target=DEFAULT_TARGET)) == expected
    assert compiled.calls == 2
    assert str(compile_cached(scaled(2), batch=1, name="test", target=DEFAULT_TARGET)) == expected
    assert compiled.calls == 2


def test_models_learn_the_same_from_programs_that_were_read(compiled: Counted) -> None:
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(8, 9)).astype("float32"), generator.integers(0, 4, 8)
    results: list[list[np.ndarray[Any, Any]]] = []
    for _ in range(2):
        model = lm.Model(classifier(), seed=3)
        with model.training(loss=lm.CrossEntropy(), optimizer=lm.Adam(), batch_size=8) as training:
            for _ in range(3):
                training.step(x, y)
        results.append([*model.parameters().values(), model.predict(x)])
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)
    assert compiled.calls == 2
