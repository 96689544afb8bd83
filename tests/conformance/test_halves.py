"""Floats of 16 bits on the engine under test: casts have the oracle's bits, all ops take them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from harness import CASES, DIFFERENTIABLE, Leaves, check, compare, run_program, values_of
from layer_cases import LAYERS, alone, values_for
from random_graphs import random_graph
from test_mixed_float64 import differentiated
from test_ops import weighted_gradients
from windowed_graphs import FILTERED_SEEDS, SEEDS, FilteredGraph, WindowedGraph

import lamina as lm
from lamina import ops
from lamina.base.shapes import Array, DType, as_dtype, bfloat16, converted, float16, float32, static
from lamina.compiler.pipeline import compile_graph
from lamina.engines.engine import Engine
from lamina.graph import LEAF, Op, Sample, apply, bind_batch, evaluate
from lamina.learning.protocols import TrainingOptions
from lamina.program.program import Program
from lamina.step.derive import default_targets, training_graph
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


def casts(array: Array, dtype: DType, engine: Engine) -> tuple[Array, Array]:
    """The array as another dtype: found on the engine, and expected."""
    leaves = Leaves()
    graph = leaves.graph([ops.cast(leaves.add(array), dtype)])
    program = compile_graph(graph, batch=1, name="casts", target=engine.target)
    outputs, _ = run_program(program, engine, leaves.feeds)
    expected, _ = evaluate(graph, leaves.feeds)
    return outputs["y0"], expected["y0"]


def assert_same_bits(found: Array, expected: Array, given: Array) -> None:
    """All bits are equal; NaN is any NaN."""
    bits = f"u{found.itemsize}"
    with np.errstate(all="ignore"):
        same = (found != found) & (expected != expected)
    same |= found.view(bits) == expected.view(bits)
    assert same.all(), list(
        zip(given[~same][:5], found[~same][:5], expected[~same][:5], strict=True)
    )


@HALVES
@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16", "float16", "int32", "bool"])
def test_every_number_of_16_bits_is_cast_exactly(half: DType, name: str, engine: Engine) -> None:
    numbers = every_half(half)
    found, expected = casts(numbers, as_dtype(name), engine)
    assert_same_bits(found, expected, numbers)


@HALVES
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_floats_are_rounded_once_to_16_bits(half: DType, name: str, engine: Engine) -> None:
    numbers = between(half)
    with np.errstate(all="ignore"):
        wide = numbers.astype(name)
        wide = np.concatenate([np.nextafter(wide, -np.inf), wide, np.nextafter(wide, np.inf)])
    wide = np.concatenate([wide, -wide])
    found, expected = casts(wide, half, engine)
    assert_same_bits(found, expected, wide)


@HALVES
@pytest.mark.parametrize("name", ["int32", "int64", "uint8", "bool"])
def test_integers_are_rounded_once_to_16_bits(half: DType, name: str, engine: Engine) -> None:
    dtype = as_dtype(name).numpy
    limits = np.iinfo("u1" if name == "bool" else dtype)
    near = [
        (1 << power) + (1 << max(power - 8, 0)) * middle + offset
        for power in range(limits.bits - 1)
        for middle in (0, 1, 3)
        for offset in (-1, 0, 1)
    ]
    every = [*range(-300, 300), *near, *(-one for one in near), limits.min, limits.max]
    inside = [one for one in every if limits.min <= one <= limits.max]
    numbers = np.array(inside, limits.dtype).astype(dtype)
    found, expected = casts(numbers, half, engine)
    assert_same_bits(found, expected, numbers)


@HALVES
def test_halves_are_moved_without_a_change(half: DType, engine: Engine) -> None:
    leaves = Leaves()
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


# Ops ----------------------------------------------------------------------------------------------


def takes_floats(case: Any) -> bool:
    """Whether a sample has operands of the float type under test."""
    _, sample = case.values
    return bool(sample.shapes) and (not sample.dtypes or "float" in sample.dtypes)


@HALVES
@pytest.mark.parametrize(("op", "sample"), [*filter(takes_floats, CASES)])
@pytest.mark.sampled
def test_an_op_takes_halves(op: Op, sample: Sample, half: DType, engine: Engine) -> None:
    leaves = Leaves()
    operands = [leaves.add(array) for array in values_of(sample, half)]
    check(leaves.graph([apply(op, *operands, **sample.attributes)]), engine, leaves.feeds)


@HALVES
@pytest.mark.parametrize(("op", "sample"), [*filter(takes_floats, DIFFERENTIABLE)])
@pytest.mark.sampled
def test_a_gradient_takes_halves(op: Op, sample: Sample, half: DType, engine: Engine) -> None:
    leaves = Leaves()
    operands = [leaves.add(array) for array in values_of(sample, half)]
    result = apply(op, *operands, **sample.attributes)
    check(leaves.graph(weighted_gradients(leaves, operands, result)), engine, leaves.feeds)


# Layers -------------------------------------------------------------------------------------------

# These round several tensors one after the other, or have steps at numbers that they compute.
SEVERAL_ROUNDINGS = frozenset(
    (
        *("MultiHeadAttention", "TransformerEncoderBlock", "TransformerDecoderBlock"),
        *("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell", "ColourJitter"),
    )
)
# Squares of such numbers overflow in float16.
LARGE = np.float32(300)


@HALVES
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.sampled
def test_a_layer_computes_in_float32(name: str, half: DType, engine: Engine) -> None:
    """In a model wholly in 16 bits: results and gradients of large numbers are rounded once."""
    case = LAYERS[name]
    narrow, wide = (differentiated(alone(case), dtype) for dtype in (half, float32))
    feeds: dict[str, Array] = {}
    for label, x in values_for(case, wide).items():
        is_large = label.startswith("input") and not case.indices
        feeds[label] = x if x.dtype.kind != "f" else converted(x * LARGE**is_large, half.numpy)
    check(narrow, engine, feeds)
    if name in SEVERAL_ROUNDINGS:
        return
    found, _ = evaluate(narrow, feeds)
    floats = {n: x if x.dtype.kind in "iu" else x.astype("float32") for n, x in feeds.items()}
    expected, _ = evaluate(wide, floats)
    for label, y in expected.items():
        own = y if y.dtype.kind != "f" else converted(converted(y, half.numpy), y.dtype)
        largest = np.abs(own[np.isfinite(own)]).max(initial=1)
        compare(label, converted(found[label], y.dtype), own, 3 * half.epsilon * largest)


# Mixed precision ----------------------------------------------------------------------------------


# Every fourth random graph is float32; the operands of its products are rounded.
@HALVES
@pytest.mark.parametrize("seed", range(3, 240, 4))
@pytest.mark.sampled
def test_a_random_graph_with_rounded_products(seed: int, half: DType, engine: Engine) -> None:
    made = random_graph(seed)
    graph = with_rounded_products(made.graph, half)
    check(graph, engine, made.feeds, runs=2 if graph.updates else 1)


@HALVES
@pytest.mark.parametrize("seed", [seed for seed in SEEDS if seed % 5 != 4])
@pytest.mark.sampled
def test_windows_with_rounded_products(seed: int, half: DType, engine: Engine) -> None:
    made = WindowedGraph(seed)
    graph = with_rounded_products(made.graph, half)

    def schedule(program: Program) -> list[Any]:
        # One of them, as all take long. The unit tests of windows, pairs, AMX and GPUs run all
        # schedules of fewer products.
        found = [*engine.schedules(program)]
        return random.Random(seed).sample(found, min(len(found), 1))

    check(graph, engine, made.feeds, schedules=schedule)


@HALVES
@pytest.mark.parametrize("seed", [seed for seed in FILTERED_SEEDS if seed % 5 != 4])
@pytest.mark.sampled
def test_windows_of_3x3_with_rounded_products(seed: int, half: DType, engine: Engine) -> None:
    made = FilteredGraph(seed)
    graph = with_rounded_products(made.graph, half)
    check(graph, engine, made.feeds)


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
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("leaves", [True, False], ids=["all", "computed"])
@pytest.mark.sampled
def test_a_training_step_in_mixed_precision(
    name: str, half: DType, leaves: bool, engine: Engine
) -> None:
    """With all operands of products rounded, and with the computed ones alone."""
    network, batch = NETWORKS[name]
    options = TrainingOptions(lm.CrossEntropy(), lm.SGD(0.1, momentum=0.9))
    targets = default_targets(network, options.loss, float32)
    made = training_graph(network, options, targets, dtype=float32, rounding=Rounding(half, leaves))
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
