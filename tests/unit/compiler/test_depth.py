"""Depth: no graph is too deep or too wide, and compiling takes a multiple of the layers' number.

Depth is tested with little of Python's stack left: a function that calls itself once for each level
then fails at a few hundred levels. Linear time is tested by counting calls.
"""

import copy
import inspect
import itertools
import os
import pickle
import sys
from contextlib import contextmanager

import numpy as np
import pytest
from program_cases import program_of

import lamina as lm
from lamina import ops
from lamina.base.shapes import float32, int64
from lamina.compiler import memory
from lamina.compiler.fusion.precedence import Precedence, cycle
from lamina.engines.cpu.native_program import write_program
from lamina.engines.cpu.processor import host
from lamina.graph import CONSTANT, Graph, bind_batch, evaluate, leaf, path_after, topological
from lamina.layers.layer import UNNAMED
from lamina.program.index import Index
from lamina.program.program import Buffer
from lamina.program.scalar import Apply, Load

# So many levels, and so many calls of Python functions to get through them.
LEVELS, CALLS = 200, 180
BATCH = 2


@contextmanager
def little_stack():
    """Nothing inside may call itself once for each level."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + CALLS)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def chain(link):
    def build(start, levels):
        x = start
        for level in range(levels):
            x = link(x, start, level)
        return x

    return build


def moved(x, _, level):
    batch, rows, columns = x.shape
    if level % 3 == 0:
        return ops.transpose(x, (0, 2, 1))
    return ops.flip(x, 2) if level % 3 == 1 else ops.reshape(x, (batch, columns, rows))


def branches(start, levels):
    return [ops.tanh(start * (number + 1.0)) for number in range(levels)]


def summed_in_order(start, levels):
    first, *others = branches(start, levels)
    for other in others:
        first = first + other
    return first


def summed_in_pairs(start, levels):
    found = branches(start, levels)
    while len(found) > 1:
        pairs = itertools.zip_longest(found[::2], found[1::2])
        found = [one if other is None else one + other for one, other in pairs]
    return found[0]


def joined(start, levels):
    # One kernel holds all of them, so that LLVM compiles it quickly.
    parts = [ops.abs(start[:, :1] * (number + 1.0) - 1.0) for number in range(levels)]
    return ops.sum(ops.concat(parts, 1), 1) * 0.5


def indices_of_indices(start, levels):
    indices = ops.cast(ops.abs(start), "int64")
    for _ in range(levels):
        indices = ops.take_along_axis(indices + 1 - 1, indices, 2)
    return ops.take_along_axis(start, indices, 2)


def doubled_indices(start, levels):
    indices = ops.cast(start * 0, "int64")
    for _ in range(levels):
        indices = indices + indices
    return ops.take_along_axis(start, indices, 2)


BUILDERS = {
    "elementwise": chain(lambda x, start, _: ops.tanh(x) + start),
    "two paths": chain(lambda x, _start, _level: ops.tanh(x) * 0.4 + ops.sin(x) * 0.4),
    "reductions": chain(lambda x, _start, _level: x * 0.5 + ops.sum(x, 2, keepdims=True) * 0.1),
    "movements": chain(moved),
    "scans": chain(lambda x, _start, _level: ops.cumsum(x, 2) * 0.5),
    "summed in order": summed_in_order,
    "summed in pairs": summed_in_pairs,
    "joined": joined,
    "indices of indices": indices_of_indices,
    "doubled indices": doubled_indices,
}


def array(network):
    shape = network.inputs[0].shape[1:]
    return np.random.default_rng(0).normal(size=(BATCH, *shape)).astype("float32")


@pytest.mark.parametrize("name", BUILDERS)
def test_a_graph_of_any_depth_is_planned_run_and_shown(name):
    start = lm.Input(4, 6)
    network = lm.Network(start, BUILDERS[name](start, LEVELS))
    x = array(network)
    with little_stack():
        model = lm.Model(network, engine="interpreter")
        predictions = model.predict(x)
        assert str(network)
        bill = network.plan(BATCH)
        assert len(str(bill.program)) < 2_000_000
        assert len(repr(bill.program.steps)) < 20_000_000
        copied = copy.deepcopy(network)
        assert str(copied) == str(network)
        assert np.array_equal(pickle.loads(pickle.dumps(model)).predict(x), predictions)
        assert np.allclose(lm.Model(network).predict(x), predictions, rtol=1e-3, atol=1e-5)


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["elementwise", "two paths", "summed in pairs", "reductions"])
def test_gradients_of_any_depth_agree_with_the_reference(name):
    start = lm.Input(4, 6)
    with little_stack():
        output = BUILDERS[name](start, 100)
        (slope,) = lm.gradients(output, [start])
        graph = bind_batch(Graph((start,), (("slope", slope),)), BATCH)
    x = np.random.default_rng(0).normal(size=(BATCH, 4, 6)).astype("float32")
    expected = evaluate(graph, {UNNAMED: x})[0]["slope"]
    for engine in ("interpreter", "cpu"):
        with little_stack():
            (gradient,) = lm.compile(inputs=[start], outputs=[slope], engine=engine)(x)
        assert np.allclose(gradient, expected, rtol=2e-3, atol=1e-5 * abs(expected).max())


@pytest.mark.sampled
def test_a_model_of_many_layers_is_saved_and_loaded_and_predicts(tmp_path):
    layers = [x for _ in range(LEVELS) for x in (lm.Linear(6), lm.Tanh())]
    with little_stack():
        model = lm.Model(lm.Sequential(lm.Input(6), *layers))
        x = array(model.network)
        model.save(tmp_path / "deep.safetensors")
        loaded = lm.load(tmp_path / "deep.safetensors")
        assert np.array_equal(loaded.predict(x), model.predict(x))


def linear(layers):
    blocks = [x for _ in range(layers) for x in (lm.Linear(4), lm.ReLU())]
    return lm.Sequential(lm.Input(4), *blocks, lm.Linear(2))


def residual(layers):
    x = start = lm.Input(2, 4, 4)
    for _ in range(layers // 4):
        x = x + lm.BatchNorm()(lm.Conv2d(2, 3, padding=1)(lm.ReLU()(x)))
    return lm.Network(start, lm.Linear(2)(lm.Flatten()(x)))


def calls(work):
    """How many functions are called, those written in C included."""
    count = 0

    def counted(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.sampled
@pytest.mark.parametrize("build", [linear, residual])
def test_the_work_of_compiling_grows_with_the_number_of_layers(build, monkeypatch):
    monkeypatch.setenv("LAMINA_CACHE", "off")
    # The search for a better plan has a bound of its own.
    monkeypatch.setattr(memory, "SEARCH_ROUNDS", 0)

    def work(layers):
        def compiled():
            model = lm.Model(build(layers), engine="interpreter")
            loss, optimizer = lm.CrossEntropy(), lm.SGD(0.1, momentum=0.9)
            with model.training(loss=loss, optimizer=optimizer, batch_size=4) as training:
                write_program(training.bill.program, host())

        return calls(compiled)

    work(8)
    # Less than four times as much, as equal blocks share their kernels.
    assert work(48) < 3.6 * work(12)


@pytest.mark.sampled
@pytest.mark.parametrize("build", [linear, residual])
def test_comparing_steps_takes_linear_time(build, monkeypatch):
    """Loops within one function make no calls: their work is counted in lines."""
    watched = ("precedence", "memory", "prepacking", "column_sums", "workers", "overlap")
    watched = {f"{name}.py" for name in (*watched, "workspaces", "native_program")}
    count = 0

    def local(_frame, event, _argument):
        nonlocal count
        count += event == "line"
        return local

    def traced(frame, _event, _argument):
        return local if os.path.basename(frame.f_code.co_filename) in watched else None

    def lines(levels):
        nonlocal count
        count, before = 0, sys.gettrace()
        sys.settrace(traced)
        try:
            plan = build(levels).plan(4, lm.CrossEntropy(), lm.SGD(0.1, momentum=0.9))
            write_program(plan.program, host())
        finally:
            sys.settrace(before)
        return count

    monkeypatch.setenv("LAMINA_CACHE", "off")
    monkeypatch.setattr(memory, "MOST_IN_LISTS", 0)
    # The search for a better plan has a bound of its own.
    monkeypatch.setattr(memory, "SEARCH_ROUNDS", 0)
    assert lines(48) < 4.6 * lines(12)


def test_paths_between_groups_are_found_while_groups_are_joined():
    random = np.random.default_rng(1)

    def reaches(predecessors, start, end):
        """Whether there is a path through another group."""
        seen, pending = set(), list(predecessors[end] - {start})
        while pending:
            group = pending.pop()
            if group == start:
                return True
            pending += predecessors[group] - seen
            seen |= predecessors[group]
        return False

    for _ in range(40):
        precedence = Precedence(
            {
                number: set(random.integers(0, number, 2).tolist()) if number else set()
                for number in range(14)
            }
        )
        for _ in range(8):
            groups = precedence.predecessors
            first, second = random.choice(list(groups), 2, replace=False).tolist()
            expected = reaches(groups, first, second) or reaches(groups, second, first)
            assert precedence.has_between(first, second) == expected
            if not expected:
                precedence.join(first, second)
        assert not cycle(precedence.predecessors)


def test_leaves_that_swap_their_values_need_one_copy_per_pair():
    leaves = [leaf(f"p{number}", "state", (3,), float32) for number in range(40)]
    updates = [(state, leaves[number ^ 1]) for number, state in enumerate(leaves)]
    updates[:2] = [(state, ops.flip(state, 0)) for state in leaves[:2]]
    program = program_of(leaves[0], updates)
    # One of each two goes through a copy, and each flipped one.
    assert len(program.plan.allocations) == 1 + 2 + 19


@pytest.mark.sampled
def test_lists_and_arrays_give_slots_the_same_offsets(monkeypatch):
    random = np.random.default_rng(2)
    regions = []
    for number in range(200):
        first = int(random.integers(80))
        buffer = Buffer(f"b{number}", "temporary", (int(random.integers(1, 5000)),), float32)
        lifetime = memory._Lifetime(buffer, first, first + int(random.integers(30)))
        regions.append(memory._Region([lifetime], buffer.bytes, 64 if number % 2 else 4))
    packed = []
    for most in (0, 1000):
        monkeypatch.setattr(memory, "MOST_IN_LISTS", most)
        packed.append(memory._pack(regions, memory._UNLIMITED_SPAN, 64, 0))
    assert packed[0] == packed[1]


def test_the_number_of_a_layer_counts_all_preceding_nodes():
    random = np.random.default_rng(3)
    for _ in range(20):
        tensors = [lm.Input(2), lm.Input(2), lm.Input(2)]
        for _ in range(30):
            chosen = [tensors[int(n)] for n in random.integers(0, len(tensors), 2)]
            left = tensors[-1] if random.random() < 0.6 else chosen[0]
            tensors.append(ops.tanh(left) if random.random() < 0.6 else left + chosen[1] * 2.0)
            operands = [tensors[-1]] if random.random() < 0.7 else [tensors[-1], chosen[0]]
            before = sum(node.op is not CONSTANT for node in topological(operands))
            assert path_after(operands, "Linear") == f"net/{before}:Linear"


def test_long_scalars_name_their_shared_subexpressions():
    scalar = Load("x", Index(), float32)
    for _ in range(3):
        scalar = Apply("add", (scalar, scalar), float32)
    assert str(scalar) == "((x[0] + x[0]) + (x[0] + x[0])) + ((x[0] + x[0]) + (x[0] + x[0]))"
    for _ in range(LEVELS):
        scalar = Apply("add", (scalar, scalar), float32)
    with little_stack():
        text = str(scalar)
    assert text.startswith(f"t{LEVELS + 1} + t{LEVELS + 1} where t0 = x[0] + x[0], t1 = t0 + t0,")
    assert repr(scalar) == f"Apply({text})"


@pytest.mark.sampled
def test_chains_of_tensors_and_of_scalars_are_freed():
    x = leaf("x", "input", (2,), float32)
    scalar = Load("x", Index(), int64)
    for _ in range(50_000):
        x = ops.neg(x)
        scalar = Apply("negative", (scalar,), int64)
    with little_stack():
        del x, scalar
