"""The program cache: programs on disk are found by all that they were compiled from."""

from dataclasses import replace

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
from lamina.step.derive import BatchSpecs, default_targets, training_graph


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """An empty cache; the names of the programs that are compiled."""
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path))
    names = []

    def counted(graph, *, batch, name, target):
        names.append(name)
        return compile_graph(graph, batch=batch, name=name, target=target)

    monkeypatch.setattr(pipeline, "compile_graph", counted)
    return names


def cached(graph, batch=8, name="test", target=DEFAULT_TARGET):
    return str(compile_cached(graph, batch=batch, name=name, target=target))


def training_graph_of(net, loss=None, optimizer=None):
    loss = loss or lm.CrossEntropy()
    targets = default_targets(net, loss, float32)
    options = TrainingOptions(loss, optimizer or lm.Adam(1e-3))
    return training_graph(BatchSpecs(net, float32, targets=targets), options).graph


def classifier(features=20, dropout=0.5, layer=lm.ReLU):
    return lm.Sequential(
        lm.Input(9), lm.Linear(features), layer(), lm.Dropout(dropout), lm.Linear(4)
    )


def scaled(factor, *, name="y"):
    x = leaf("x", "input", (3,), float32)
    return Graph((x,), ((name, x * ops.constant(np.asarray(factor, "float32"))),))


@pytest.mark.parametrize(
    "make", [classifier, lambda: lm.networks.lstm_classifier(3, 7, inputs=2, features=8)]
)
def test_a_graph_that_was_compiled_before_is_not_compiled_again(make, compiled):
    assert len({cached(training_graph_of(make())) for _ in range(3)}) == 1
    assert len(compiled) == 1


# The first of them, another batch, another name, and so on.
DIFFERENT = [
    (lambda: training_graph_of(classifier()), 8, "test"),
    (lambda: training_graph_of(classifier()), 7, "test"),
    (lambda: training_graph_of(classifier()), 8, "evaluation"),
    (lambda: training_graph_of(classifier(21)), 8, "test"),
    (lambda: training_graph_of(classifier(dropout=0.25)), 8, "test"),
    (lambda: training_graph_of(classifier(layer=lm.Tanh)), 8, "test"),
    (lambda: training_graph_of(classifier(), lm.MSE()), 8, "test"),
    (lambda: training_graph_of(classifier(), optimizer=lm.SGD(0.1)), 8, "test"),
    (lambda: training_graph_of(classifier(), optimizer=lm.SGD(0.1, momentum=0.9)), 8, "test"),
    (lambda: scaled([1, 2, 3]), 8, "test"),
    (lambda: scaled([1, 2, 4]), 8, "test"),
    (lambda: scaled(2), 8, "test"),
    (lambda: scaled(-0.0), 8, "test"),
    (lambda: scaled(0.0), 8, "test"),
    (lambda: scaled(0.0, name="z"), 8, "test"),
]


@pytest.mark.sampled
def test_graphs_of_different_programs_have_different_entries(compiled):
    for make, batch, name in DIFFERENT * 2:
        graph = make()
        again = compile_graph(graph, batch=batch, name=name, target=DEFAULT_TARGET)
        assert cached(graph, batch, name) == str(again)
    assert len(compiled) == len(DIFFERENT)


def test_programs_for_other_targets_are_other_entries(compiled):
    shapes = {"x": (2, 3, 6, 6), "weight": (3, 1, 3, 3)}
    x, weight = (leaf(name, "input", shape, float32) for name, shape in shapes.items())
    y = ops.relu(ops.conv(x, weight, 1, 1, 1, groups=3))
    graph = Graph((x, weight), (("y", ops.sum(y @ y)),))
    for target in (DEFAULT_TARGET, replace(DEFAULT_TARGET, alignment_bytes=4096)) * 2:
        again = compile_graph(graph, batch=1, name="test", target=target)
        assert cached(graph, 1, target=target) == str(again)
    assert len(compiled) == 2


def test_a_shared_tensor_and_two_equal_ones_have_different_checksums():
    x = leaf("x", "input", (3,), float32)
    one, other = ops.exp(x), ops.exp(x)
    graphs = [Graph((x,), (("y", one + one),)), Graph((x,), (("y", one + other),))]
    assert len({program_cache.graph_checksum(graph) for graph in graphs}) == 2


def test_every_op_has_a_checksum_for_all_its_samples():
    described = set()
    count = 0
    for op in ops.ALL:
        for sample in op.samples:
            kinds = sample.dtypes or ("float",) * len(sample.shapes)
            operands = [
                leaf(f"x{n}", "input", shape, float32 if kind == "float" else as_dtype(kind))
                for n, (shape, kind) in enumerate(zip(sample.shapes, kinds, strict=True))
            ]
            graph = Graph(tuple(operands), (("y", apply(op, *operands, **sample.attributes)),))
            described.add(program_cache.graph_checksum(graph))
            count += 1
    assert None not in described
    # Samples may differ in their values alone.
    assert len(described) > 0.8 * count


def test_an_op_that_is_not_ours_is_compiled_each_time(compiled):
    exp = OPS["exp"]
    custom = Op("exp", exp.infer, None, exp.reference, exp.lowering)
    x = leaf("x", "input", (3,), float32)
    for _ in range(2):
        cached(Graph((x,), (("y", apply(custom, x)),)))
    assert len(compiled) == 2


@pytest.mark.parametrize(
    ("folder", "checksum", "kept"), [(True, "another", 1), (True, "", 0), (False, "another", 0)]
)
def test_the_cache_and_the_checksum_of_the_sources_decide_what_is_kept(
    folder, checksum, kept, compiled, monkeypatch, tmp_path
):
    cached(scaled(2))
    monkeypatch.setattr(program_cache.SOURCES, "checksum", checksum)
    if not folder:
        monkeypatch.setenv("LAMINA_CACHE", "off")
    before = len(list(tmp_path.rglob("*.object")))
    for _ in range(2):
        cached(scaled(2))
    assert len(compiled) == 3 - kept
    assert len(list(tmp_path.rglob("*.object"))) == before + kept


NONSENSE = {
    "nothing": b"",
    "truncated": b"\x08\0\0\0\0\0\0\0[[0]",
    "a pickle": b"cos\nsystem\n(S'false'\ntR.",
    "another value": b"\x08\0\0\0\0\0\0\0[[0], 1]",
}


@pytest.mark.parametrize("content", NONSENSE.values(), ids=NONSENSE)
def test_an_entry_that_is_no_program_is_made_anew(content, compiled, tmp_path, monkeypatch):
    kept = []

    def noted(key, data):
        kept.append(key)
        cache.keep(key, data)

    monkeypatch.setattr(program_cache, "keep", noted)
    expected = cached(scaled(2))
    # With a checksum that is right, as someone would write it.
    cache.keep(kept[0], content)
    assert cached(scaled(2)) == expected
    assert len(compiled) == 2
    assert cached(scaled(2)) == expected
    assert len(compiled) == 2
