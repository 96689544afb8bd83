"""Layers that change training images at random: the same images on every engine."""

from typing import Any

import numpy as np
import pytest
from harness import check, numbers_of, run, training_step

import lamina as lm
from lamina import ops
from lamina.base.shapes import Array, float32, static
from lamina.graph import Graph, bind_batch, evaluate, leaf
from lamina.layers.layer import Layer
from lamina.ops.differentiate import gradients

BATCH = 6
# They move pixels without arithmetic on them.
MOVING: list[Layer] = [
    *(lm.RandomFlip(), lm.RandomFlip(axis=-2, probability=0.3), lm.RandomCrop((4, 5))),
    lm.RandomCrop(7, padding=((2, 1), 3), padding_mode="reflect"),
    *(lm.RandomShift(2), lm.RandomShift((1, 3), mode="replicate")),
    *(lm.RandomErasing(probability=0.9, value=3.0), lm.CutMix()),
]
COMPUTING: list[Layer] = [
    lm.ColourJitter(brightness=0.3, contrast=0.3, saturation=0.3),
    *(lm.ColourJitter(hue=0.3), lm.RandomGreyscale(probability=0.5)),
    lm.RandomAffine(degrees=20, shift=0.1, scale=(0.8, 1.2), shear=10, padding="border"),
    *(lm.RandomRotation(30), lm.Mixup(alpha=0.4)),
]


def _traced(layer: Layer, dtype: str | None = None) -> Graph:
    """The result of the layer in training mode, and of floats the gradient of its input."""
    x = lm.Input(3, 7, 6, dtype=dtype)
    trace = lm.Network(x, layer(x)).trace(dtype=float32, training=True)
    (y,) = trace.outputs
    outputs: dict[str, Any] = {"y": y}
    inputs = list(trace.inputs)
    if dtype is None:
        inputs.append(leaf("upstream", "input", y.shape, float32))
        (outputs["slope"],) = gradients(ops.sum(y * inputs[-1]), trace.inputs)
    return bind_batch(Graph(tuple(inputs), tuple(outputs.items())), BATCH)


def _feeds(graph: Graph) -> dict[str, Array]:
    generator = np.random.default_rng(0)
    feeds: dict[str, Array] = {"seed": np.array(5), "step": np.array(4)}
    for node in graph.inputs:
        drawn = generator.random(static(node.shape))
        scale = 1 if node.dtype.is_float else 255
        feeds[node.attributes["name"]] = (drawn * scale).astype(node.dtype.numpy)
    return feeds


@pytest.mark.parametrize("layer", [*MOVING, *COMPUTING], ids=repr)
def test_a_changed_batch_and_its_gradient_equal_the_oracle(layer, engine):
    graph = _traced(layer)
    check(graph, engine, _feeds(graph))


@pytest.mark.parametrize("layer", MOVING, ids=repr)
@pytest.mark.parametrize("dtype", ["uint8", None])
def test_moved_pixels_have_the_same_bits(layer, dtype, engine):
    graph = _traced(layer, dtype)
    graph = Graph(graph.inputs[:1], graph.outputs[:1])
    feeds = _feeds(graph)
    expected, _ = evaluate(graph, feeds)
    outputs = run(graph, engine, feeds)
    assert outputs["y"].dtype == expected["y"].dtype
    assert outputs["y"].tobytes() == expected["y"].tobytes()
    assert not np.array_equal(expected["y"], feeds["input0"])


@pytest.mark.parametrize("layer", [lm.Mixup(), lm.CutMix()], ids=repr)
def test_a_training_step_with_mixed_examples(layer, engine):
    network = lm.Sequential(lm.Input(2, 4, 4), layer, lm.Flatten(), lm.Linear(3))
    made = training_step(network, lm.CrossEntropy(), lm.SGD(0.5))
    graph = bind_batch(made.graph, BATCH)
    generator = np.random.default_rng(1)
    feeds: dict[str, Array] = {"seed": np.array(5), "step": np.array(4), **numbers_of(made)}
    for node in graph.nodes():
        name = node.attributes.get("name", "")
        if name.startswith(("input", "3.")):
            feeds[name] = generator.normal(size=static(node.shape)).astype("float32")
        if name.startswith("target"):
            feeds[name] = generator.integers(0, 3, BATCH)
    check(graph, engine, feeds)
