"""The workloads of `gpu.py`, and small ones of the same layers that try it out."""

from __future__ import annotations

import dataclasses

from lamina.layers import LSTM, Conv2d, Layer, Linear
from lamina.workloads import LARGE, PRODUCTS, WORKLOADS, Ready, Stack, Workload

# All are measured on a GPU, unless some are named.
MEASURED = PRODUCTS | LARGE | WORKLOADS
# Small workloads: the widths of hidden layers, the channels of convolutions, the inputs of a stack
# of linear layers, the examples in a batch, and the training steps of a run.
WIDTH, CHANNELS, INPUTS, BATCH, RUN = 16, 4, 24, 4, 20
# The last layer keeps its outputs, so the options of ready networks keep their classes.
SMALL_OPTIONS = {
    "resnet": {"input": (3, 16, 16), "width": 8},
    "mobilenet_v2": {"input": (3, 64, 64), "width": 0.25},
    "transformer_encoder": {
        "vocabulary": 16,
        "length": 8,
        "features": 16,
        "heads": 2,
        "layers": 1,
        "hidden": 32,
    },
}


def small(workload: Workload) -> Workload:
    """The workload with the same layers, loss and optimizer, but few weights and examples."""
    return dataclasses.replace(
        workload,
        architecture=_small_architecture(workload.architecture),
        batch=min(workload.batch, BATCH),
        examples=workload.examples and 3 * BATCH,
        steps=workload.steps and RUN,
        # Ready networks keep most of their weights, which take long without a GPU.
        compared_steps=1 if isinstance(workload.architecture, Ready) else workload.compared_steps,
    )


def _small_architecture(architecture: Stack | Ready) -> Stack | Ready:
    if isinstance(architecture, Ready):
        options = {**architecture.options, **SMALL_OPTIONS[architecture.function]}
        return dataclasses.replace(architecture, options=options)
    layers = tuple(_small_layer(layer) for layer in architecture.layers)
    return Stack(_small_shape(architecture.input_shape), layers)


def _small_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Fewer features or positions; images keep the size that windows and pooling need."""
    if len(shape) == 3:
        return (shape[0], *(min(extent, 16) for extent in shape[1:]))
    return tuple(min(extent, INPUTS) for extent in shape)


def _small_layer(layer: Layer) -> Layer:
    if isinstance(layer, Linear | LSTM):
        return dataclasses.replace(layer, features=min(layer.features, WIDTH))
    if isinstance(layer, Conv2d):
        return dataclasses.replace(layer, channels=min(layer.channels, CHANNELS))
    return layer


def named(name: str, tiny: bool) -> Workload:
    """The workload of that name, or its small one."""
    return small(MEASURED[name]) if tiny else MEASURED[name]
