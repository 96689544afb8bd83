"""Layouts: transposes sink until no step only moves numbers, and windows are never stored."""

import math

import numpy as np
import pytest
from program_cases import program_of

import lamina as lm
from lamina import ops
from lamina.base.shapes import float32, float64
from lamina.compiler.layout import sink_transposes
from lamina.graph import Graph, apply, evaluate, leaf
from lamina.ops.linalg import contract
from lamina.ops.reduce import ARGMAX
from lamina.program.scalar import Apply, Load
from lamina.program.steps import Contraction, Loop, Write, stores_of

BATCH = 4
LENET = (
    *(lm.Input(3, 16, 16), lm.Conv2d(8, 3, padding=1), lm.ReLU(), lm.Conv2d(12, 3)),
    *(lm.MaxPool2d(2), lm.Flatten(), lm.Linear(10)),
)
OVERLAPPING = (
    *(lm.Input(3, 16, 16), lm.Conv2d(8, 5, dilation=2, padding="same"), lm.Tanh()),
    *(lm.MaxPool2d(3, stride=2, padding=1), lm.Conv2d(8, 3)),
    *(lm.AvgPool2d(3, stride=1, padding=1), lm.Flatten(), lm.Linear(10)),
)
DEPTHWISE = (
    *(lm.Input(8, 12, 12), lm.Conv2d(8, 3, padding=1, groups=8), lm.BatchNorm(), lm.ReLU()),
    *(lm.Conv2d(16, 1), lm.BatchNorm(), lm.ReLU(), lm.Conv2d(16, 3, groups=4), lm.Flatten()),
    lm.Linear(10),
)
GENERATING = (
    *(lm.Input(16, 4, 4), lm.ConvTranspose2d(12, 4, stride=2, padding=1), lm.ReLU()),
    lm.ConvTranspose2d(6, 3, stride=2, padding=1, output_padding=1),
    *(lm.Sigmoid(), lm.Flatten(), lm.Linear(10)),
)
VOLUME = (
    *(lm.Input(2, 8, 8, 8), lm.Conv3d(4, 3, padding=1), lm.ReLU(), lm.MaxPool3d(2)),
    *(lm.Conv3d(8, 3), lm.Flatten(), lm.Linear(10)),
)
NETWORKS = {"LeNet": LENET, "overlapping": OVERLAPPING, "depthwise": DEPTHWISE}
NETWORKS |= {"generating": GENERATING, "volume": VOLUME}


def training(layers):
    return lm.Sequential(*layers).plan(BATCH, lm.CrossEntropy(), lm.Adam(1e-3)).program


def moves_only(step):
    """Whether a step only copies numbers to other indices."""
    if not isinstance(step, Loop) or not all(isinstance(stage, Write) for stage in step.stages):
        return False

    def is_moved(value):
        if not isinstance(value, Apply):
            return isinstance(value, Load)
        plain = not any(isinstance(operand, Apply) for operand in value.operands)
        return value.primitive == "cast" or (value.primitive == "select" and plain)

    return all(is_moved(store.value) for store in stores_of(step))


def test_steps_that_only_move_numbers_are_recognised():
    copy, padded = ops.transpose(X), ops.pad(X * 2.0, [(0, 0), (1, 1), (0, 0), (0, 0)], 1.0)
    program = program_of([copy, padded])
    assert [moves_only(step) for step in program.steps] == [True, False]


def test_inference_of_lenet_has_no_step_that_only_moves_numbers():
    program = lm.Sequential(*LENET).plan(BATCH).program
    kinds = [type(step) for step in program.steps]
    assert kinds == [Contraction, Contraction, Loop, Contraction]
    assert not any(moves_only(step) for step in program.steps)
    stored = [program.buffers[store.buffer] for step in program.steps for store in stores_of(step)]
    expected = [(BATCH, 16, 16, 8), (BATCH, 14, 14, 12), (BATCH, 588), (BATCH, 10)]
    assert [buffer.shape for buffer in stored] == expected


@pytest.mark.parametrize("name", NETWORKS)
def test_no_step_of_training_only_moves_numbers(name):
    moving = [str(step) for step in training(NETWORKS[name]).steps if moves_only(step)]
    assert not moving


@pytest.mark.parametrize("name", ["LeNet", "overlapping", "volume"])
def test_convolutions_store_their_channels_last(name):
    for step in training(NETWORKS[name]).steps:
        if isinstance(step, Contraction) and len(step.m) > 1:
            (column,) = step.n
            strides = [dict(store.index.terms).get(column) for store in step.stores]
            # Gradients of weights are stored in the order of the weights; Flatten has one, too.
            if "update" not in step.name and "Flatten" not in step.name:
                assert strides == [1] * len(strides), step


@pytest.mark.parametrize("name", NETWORKS)
def test_nothing_stored_is_larger_than_an_activation(name):
    first, *layers = NETWORKS[name]
    shapes = [first.shape]
    for layer in layers:
        first = layer(first)
        shapes.append(first.shape)
    largest = max(BATCH * math.prod(n for n in shape[1:] if isinstance(n, int)) for shape in shapes)
    program = training(NETWORKS[name])
    taken = {buffer.name: buffer.bytes for buffer in program.of_kind("temporary")}
    assert {n: size for n, size in taken.items() if size > largest * float32.itemsize} == {}


X = leaf("x", "input", (2, 3, 4, 5), float64)
ROW = leaf("r", "input", (5,), float64)
WEIGHT = leaf("w", "parameter", (3, 7), float64)


def swapped(x):
    return ops.transpose(x, (0, 2, 3, 1))


def back(x):
    return ops.transpose(x, (0, 3, 1, 2))


REMOVED = [
    back(ops.tanh(swapped(X))),
    back(swapped(X) * 2.0 + swapped(ops.exp(X))),
    ops.sum(swapped(X), (1, 3)),
    back(ops.pad(swapped(X), [(0, 1), (2, 0), (0, 0), (1, 1)])),
    back(ops.flip(swapped(X), (1, 3))),
    back(swapped(X)[:, 1:, ::2, :2]),
    back(ops.concat([swapped(X), swapped(X)], 3)),
    contract(ops.relu(swapped(X)), WEIGHT, list("bijc"), list("co"), list("bijo")),
    ops.window_sum(swapped(X), [ops.Window(2, 2), ops.Window(1)])[0, 0, 0, 0],
    ops.sum(ops.reshape(swapped(X), (2, 2, 2, 5, 3)), (1, 2, 3, 4)),
    ops.argmax(swapped(X), 3),
]
KEPT = [
    # The user determines the order of the result.
    swapped(ops.tanh(X)),
    # Which of several equal elements comes first depends on the order.
    apply(ARGMAX, ops.transpose(X, (0, 3, 2, 1)), axes=(1, 3)),
    # A row that is added lies along another axis.
    back(ops.transpose(X, (0, 1, 3, 2))[:, :, :, 0:1] + ROW[0:1]),
    ops.reshape(swapped(X), (2, 4, 15)),
    ops.broadcast_to(ops.transpose(X, (3, 2, 1, 0)), (2, 5, 4, 3, 2)),
    ops.cumsum(swapped(X), 1),
]


@pytest.mark.parametrize("result", [*REMOVED, *KEPT], ids=lambda result: result.op.name)
def test_transposes_that_are_not_needed_are_removed_and_values_stay(result):
    graph = Graph((X, ROW), (("y", result),))
    sunk = sink_transposes(graph)
    generator = np.random.default_rng(0)
    feeds = {x.attributes["name"]: generator.normal(size=x.shape) for x in (X, ROW, WEIGHT)}
    expected, values = (evaluate(version, feeds)[0]["y"] for version in (graph, sunk))
    np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-12, strict=True)
    is_left = any(node.op.name == "transpose" for node in sunk.nodes())
    assert is_left == any(result is kept for kept in KEPT)
