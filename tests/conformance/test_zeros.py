"""Gradients that are exactly zero come out as zero: Adam and RMSProp divide by a gradient's size.

`test_cpu_windowed.py` tests Winograd convolutions, whose results are sums of terms that
should cancel.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from harness import run

import lamina as lm
from lamina import ops
from lamina.base.shapes import Array, float32
from lamina.graph import Graph, Tensor, bind_batch
from lamina.ops.differentiate import gradients

STEPS = 3


def images(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype("float32")


def moved(
    engine: str,
    layers: Sequence[Any],
    x: Array,
    region: Any,
    optimizer: Any,
    change: Callable[[dict[str, Array]], None] = lambda _: None,
    frozen: Sequence[str] = (),
) -> dict[str, Array]:
    """The parameters that training steps change, with a loss of a region of the output."""

    def loss(y: Tensor, _: Tensor) -> Tensor:
        return ops.mean(y[region] * y[region] + y[region])

    model = lm.Model(lm.Sequential(lm.Input(*x.shape[1:]), *layers), engine=engine, seed=0)
    first = model.parameters()
    change(first)
    model.set_parameters(first)
    with model.training(loss, optimizer, len(x), frozen=frozen) as training:
        for _ in range(STEPS):
            # The output has the shape of the input.
            training.step(x, x)
    return {name: value != first[name] for name, value in model.parameters().items()}


EACH_OPTIMIZER = pytest.mark.parametrize("optimizer", [lm.Adam(1e-3), lm.RMSProp(1e-3)], ids=repr)


@EACH_OPTIMIZER
def test_kernel_elements_over_padding_only_do_not_change(engine_name, optimizer):
    layers, region = [lm.Conv2d(16, 3, padding=1)], np.s_[:, :, 0, 0]
    changed = moved(engine_name, layers, images(16, 16, 16, 16), region, optimizer)
    expected = np.zeros((16, 16, 3, 3), bool)
    expected[:, :, 1:, 1:] = True
    np.testing.assert_array_equal(changed["1.weight"], expected)


@pytest.mark.parametrize("size", [3, 5])
@EACH_OPTIMIZER
def test_kernel_elements_over_zeros_only_do_not_change(engine_name, optimizer, size):
    x, reach = images(16, 16, 16, 16), size // 2
    # The loss reads the first four rows; only the last row of the kernel is over nonzero input.
    x[:, :, : 3 + reach] = 0
    layers, region = [lm.Conv2d(16, size, padding=reach)], np.s_[:, :, :4]
    changed = moved(engine_name, layers, x, region, optimizer)
    expected = np.zeros((16, 16, size, size), bool)
    expected[:, :, -1] = True
    np.testing.assert_array_equal(changed["1.weight"], expected)


@EACH_OPTIMIZER
def test_weights_of_zero_channels_do_not_change(engine_name, optimizer):
    x = images(8, 16, 8, 8)
    x[:, ::3] = 0

    def change(parameters):
        # Filters whose results are negative before ReLU.
        parameters["1.bias"][4:8] = -100

    layers = [lm.Conv2d(16, 3, padding=1), lm.ReLU(), lm.Conv2d(16, 3, padding=1)]
    changed = moved(engine_name, layers, x, np.s_[:], optimizer, change)
    first, second = np.ones((2, 16, 16, 3, 3), bool)
    first[:, ::3] = first[4:8] = False
    second[:, 4:8] = False
    np.testing.assert_array_equal(changed["1.weight"], first)
    np.testing.assert_array_equal(changed["3.weight"], second)


def test_weights_followed_by_zero_weights_only_do_not_change(engine_name):
    x = images(8, 16, 16, 16)
    x[:, :, 7:] = 0

    def change(parameters):
        # All kernel rows but the last are zero: row 6 of the loss depends on the row below only.
        parameters["2.weight"][:, :, :2] = 0

    layers = [lm.Conv2d(16, 3, padding=1), lm.Conv2d(16, 3, padding=1)]
    changed = moved(engine_name, layers, x, np.s_[:, :, 6], lm.Adam(1e-3), change, frozen=["2.*"])
    expected = np.zeros((16, 16, 3, 3), bool)
    # Row 7 of the first convolution reads rows 6 to 8; only row 6 is not zero.
    expected[:, :, 0] = True
    np.testing.assert_array_equal(changed["1.weight"], expected)


def test_a_query_with_one_key_has_no_gradient(engine, leaves):
    queries, keys, values, upstream = (
        leaves.add(images(3, 2, 9, 33, seed=seed)) for seed in range(4)
    )
    y = ops.attention(queries, keys, values, causal=True)
    derivatives = gradients(ops.sum(y * upstream), [queries, keys])
    of_queries = run(leaves.graph(derivatives), engine, leaves.feeds)["y0"]
    assert not of_queries[:, :, 0].any()
    assert of_queries[:, :, 1:].all()


@pytest.mark.parametrize(
    "layer",
    [lm.BatchNorm(), lm.InstanceNorm(affine=True), lm.GroupNorm(3)],
    ids=lambda layer: type(layer).__name__,
)
def test_weights_of_a_constant_channel_do_not_change(engine_name, layer):
    x = images(37, 6, 9, 9)
    x[:, :2] = 0.3
    changed = moved(engine_name, [layer], x, np.s_[:], lm.Adam(1e-3))
    np.testing.assert_array_equal(changed["1.weight"], [False] * 2 + [True] * 4)
    assert changed["1.bias"].all()


@pytest.mark.parametrize("power", [2.0, 3.0])
def test_a_window_of_zeros_has_the_norm_and_the_gradient_zero(engine, power):
    x = images(2, 3, 4, 6)
    x[:, :, :2] = 0
    network = lm.Sequential(lm.Input(*x.shape[1:]), lm.LPPool2d(2, power=power))
    trace = network.trace(dtype=float32, training=True)
    (y,) = trace.outputs
    named = (("norms", y), ("gradients", *gradients(ops.sum(y), trace.inputs)))
    outputs = run(bind_batch(Graph(trace.inputs, named), len(x)), engine, {"input0": x})
    assert not outputs["norms"][:, :, 0].any()
    assert outputs["norms"][:, :, 1].all()
    np.testing.assert_array_equal(outputs["gradients"] == 0, x == 0)
