"""Floats of 16 bits on the engine under test: casts have the oracle's bits, layers take them.

`test_ops.py` tests that all ops take them.
"""

import random
from itertools import product

import numpy as np
import pytest
from alternatives import schedules_of
from harness import Leaves, check, compare, run, training_step
from layer_cases import LAYERS, alone, values_for
from random_graphs import random_graph
from test_mixed_float64 import EACH_ROUNDING, differentiated
from windowed_graphs import FILTERED_SEEDS, SEEDS, FilteredGraph, WindowedGraph

import lamina as lm
from lamina import ops
from lamina.base.shapes import Array, DType, as_dtype, bfloat16, converted, float16, float32, static
from lamina.engines.engine import Engine
from lamina.graph import LEAF, bind_batch, evaluate
from lamina.step.precision import Rounding
from lamina.step.rounding import with_rounded_products

HALVES = pytest.mark.parametrize("half", [bfloat16, float16], ids=str)


def every_half(half: DType) -> Array:
    """All numbers of 16 bits, infinities, NaN and subnormal numbers included."""
    return np.arange(1 << 16, dtype=np.uint16).view(half.numpy)


def between(half: DType) -> Array:
    """Numbers of float64 near every point halfway between two positive neighbours of 16 bits."""
    with np.errstate(all="ignore"):
        numbers = np.arange(0x7FFF, dtype=np.uint16).view(half.numpy).astype("float64")
        numbers = numbers[np.isfinite(numbers)]
        middle = (numbers[:-1] + numbers[1:]) / 2
        last = numbers[-1] + (numbers[-1] - numbers[-2]) / 2
        ends = np.array([last, last * 2, 1e300, np.inf, np.nan, 1e-60, 0.0])
    return np.concatenate([numbers, middle, ends])


def check_casts(casts: list[tuple[Array, DType]], engine: Engine) -> None:
    """Each array is cast to its type with the bits of the oracle; NaN is any NaN."""
    leaves = Leaves()
    graph = leaves.graph([ops.cast(leaves.add(array), dtype) for array, dtype in casts])
    outputs = run(graph, engine, leaves.feeds)
    expected, _ = evaluate(graph, leaves.feeds)
    for (array, dtype), (name, desired) in zip(casts, expected.items(), strict=True):
        actual = outputs[name]
        with np.errstate(all="ignore"):
            same = (actual != actual) & (desired != desired)
        bits = f"u{actual.itemsize}"
        wrong = ~(same | (actual.view(bits) == desired.view(bits)))
        rows = zip(array[wrong][:5], actual[wrong][:5], desired[wrong][:5], strict=True)
        assert not wrong.any(), f"{array.dtype} to {dtype}: {[*rows]}"


@HALVES
def test_every_number_of_16_bits_is_cast_exactly(half, engine):
    names = ("float32", "float64", "bfloat16", "float16", "int32", "bool")
    check_casts([(every_half(half), as_dtype(name)) for name in names], engine)


@HALVES
def test_floats_are_rounded_once_to_16_bits(half, engine):
    casts: list[tuple[Array, DType]] = []
    for name in ("float32", "float64"):
        with np.errstate(all="ignore"):
            wide = between(half).astype(name)
            wide = np.concatenate([np.nextafter(wide, -np.inf), wide, np.nextafter(wide, np.inf)])
        casts.append((np.concatenate([wide, -wide]), half))
    check_casts(casts, engine)


@HALVES
def test_integers_are_rounded_once_to_16_bits(half, engine):
    casts: list[tuple[Array, DType]] = []
    for name in ("int32", "int64", "uint8", "bool"):
        dtype = as_dtype(name).numpy
        limits = np.iinfo("u1" if name == "bool" else dtype)
        near = [
            (1 << power) + (1 << max(power - 8, 0)) * middle + offset
            for power in range(limits.bits - 1)
            for middle in (0, 1, 3)
            for offset in (-1, 0, 1)
        ]
        every = [*range(-300, 300), *near, *(-number for number in near), limits.min, limits.max]
        inside = [number for number in every if limits.min <= number <= limits.max]
        casts.append((np.array(inside, limits.dtype).astype(dtype), half))
    check_casts(casts, engine)


@HALVES
def test_halves_are_moved_without_a_change(half, engine, leaves):
    x = leaves.add(every_half(half)[:0x7F00].reshape(254, 128))
    chosen = leaves.add(np.arange(128) % 3 == 0)
    outputs = [
        ops.transpose(x),
        ops.pad(x, [(1, 2), (0, 3)]),
        ops.concat([x[3:9], x[:2]], 0),
        ops.where(chosen, x, ops.flip(x)),
        ops.take(x, leaves.add(np.array([5, 0, 253])), 0),
    ]
    check(leaves.graph(outputs), engine, leaves.feeds, exact=True)


# These round several tensors one after the other, have steps at numbers that they compute, or add
# up the gradients of two uses.
SEVERAL_ROUNDINGS = frozenset(
    (
        *("MultiHeadAttention", "TransformerEncoderBlock", "TransformerDecoderBlock"),
        *("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell", "ColourJitter", "TiedLinear"),
    )
)
# Squares of such numbers overflow in float16.
LARGE = np.float32(300)


@HALVES
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.sampled
def test_a_layer_computes_in_float32(name, half, engine):
    """In a model wholly in 16 bits: results and gradients of large numbers are rounded once.

    The upstream gradient is large too. What overflows in 16 bits, rounded once, may be anything.
    """
    case = LAYERS[name]
    narrow, wide = (differentiated(alone(case), dtype) for dtype in (half, float32))
    feeds: dict[str, Array] = {}
    for label, x in values_for(case, wide).items():
        is_large = label == "weights" or (label.startswith("input") and not case.indices)
        feeds[label] = x if x.dtype.kind != "f" else converted(x * LARGE**is_large, half.numpy)
    check(narrow, engine, feeds)
    if name in SEVERAL_ROUNDINGS:
        return
    outputs, _ = evaluate(narrow, feeds)
    floats = {n: x if x.dtype.kind in "iu" else x.astype("float32") for n, x in feeds.items()}
    expected, _ = evaluate(wide, floats)
    for label, y in expected.items():
        rounded = y if y.dtype.kind != "f" else converted(converted(y, half.numpy), y.dtype)
        fits = np.isfinite(rounded)
        largest = np.abs(rounded[fits]).max(initial=1)
        actual = converted(outputs[label], y.dtype)[fits]
        compare(label, actual, rounded[fits], 3 * half.epsilon * largest)


# Every fourth random graph is float32; the operands of its products are rounded.
@EACH_ROUNDING
@pytest.mark.parametrize("seed", range(3, 240, 4))
@pytest.mark.sampled
def test_a_random_graph_with_rounded_products(seed, rounding, engine):
    made = random_graph(seed)
    graph = rounding.products(made.graph)
    check(graph, engine, made.feeds, runs=2 if graph.updates else 1)


@HALVES
@pytest.mark.parametrize(
    ("graphs", "first"),
    [*product([WindowedGraph], SEEDS[::10]), *product([FilteredGraph], FILTERED_SEEDS[::10])],
)
@pytest.mark.sampled
def test_windows_with_rounded_products(graphs, first, half, engine, check_cases):
    def schedule(program):
        # One of them, as all take long. The unit tests of windows, pairs, AMX and GPUs run all
        # schedules of fewer products.
        found = [*schedules_of(engine, program)] if graphs is WindowedGraph else []
        return random.Random(first).sample(found, min(len(found), 1))

    def build(seed, leaves):
        graph = with_rounded_products(graphs(seed, leaves).graph, half)
        return [tensor for _, tensor in graph.outputs]

    # Every fifth is float64.
    seeds = [seed for seed in range(first, first + 10) if seed % 5 != 4]
    check_cases(seeds, build, schedules=schedule)


NETWORKS: dict[str, tuple[lm.Network, int]] = {
    "dense": (
        lm.Sequential(
            *(lm.Input(20), lm.Linear(33), lm.ReLU(), lm.Linear(17), lm.GELU(), lm.Dropout(0.3)),
            *(lm.Linear(12), lm.LayerNorm(), lm.Tanh(), lm.Linear(5)),
        ),
        7,
    ),
    "images": (
        lm.Sequential(
            *(lm.Input(3, 12, 12), lm.Conv2d(8, 3, padding=1), lm.BatchNorm(), lm.ReLU()),
            *(lm.MaxPool2d(2), lm.Conv2d(16, 3, stride=2, bias=False), lm.BatchNorm()),
            *(lm.Hardtanh(), lm.Flatten(), lm.Linear(5)),
        ),
        6,
    ),
    "depthwise": (
        lm.Sequential(
            *(lm.Input(6, 8, 8), lm.Conv2d(12, 1), lm.ReLU(), lm.Conv2d(12, 3, groups=12)),
            *(lm.ConvTranspose2d(4, 2, stride=2), lm.AvgPool2d(3), lm.Flatten(), lm.Linear(5)),
        ),
        5,
    ),
    "LSTM": (lm.Sequential(lm.Input(9, 8), lm.LSTM(12, returns="last"), lm.Linear(5)), 6),
    "GRU": (
        lm.Sequential(lm.Input(9, 8), lm.GRU(12, bidirectional=True), lm.Flatten(), lm.Linear(5)),
        4,
    ),
    "RNN": (lm.Sequential(lm.Input(7, 8), lm.RNN(12, layers=2), lm.Flatten(), lm.Linear(5)), 4),
    "transformer": (
        lm.Sequential(
            *(lm.Input(12, dtype="int64"), lm.Embedding(11, 16)),
            *(lm.TransformerEncoderBlock(4, hidden=32, causal=True), lm.Flatten(), lm.Linear(5)),
        ),
        4,
    ),
}


@HALVES
@pytest.mark.cases("network, batch", NETWORKS)
@pytest.mark.parametrize("leaves", [True, False], ids=["all", "computed"])
@pytest.mark.sampled
def test_a_training_step_in_mixed_precision(network, batch, half, leaves, engine):
    """With all operands of products rounded, and with the computed ones alone."""
    optimizer = lm.SGD(0.1, momentum=0.9)
    rounding = Rounding(half, leaves)
    made = training_step(network, lm.CrossEntropy(), optimizer, rounding=rounding)
    generator = np.random.default_rng(0)
    feeds: dict[str, Array] = {}
    graph = bind_batch(made.graph, batch)
    for node in graph.nodes():
        if node.op is LEAF:
            leaf_name, shape = node.attributes["name"], static(node.shape)
            array = generator.normal(size=shape) * 0.4 + ("variance" in leaf_name)
            if not node.dtype.is_float:
                array = generator.integers(0, 5, shape)
            if leaf_name == "loss_scale":
                array = np.asarray(2.0**8)
            feeds[leaf_name] = np.asarray(array, node.dtype.numpy)
    check(graph, engine, feeds)
