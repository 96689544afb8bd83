"""tinygrad's worker, on the OpenCL device that tinygrad chooses.

It is written as tinygrad's users write it: layers of tinygrad.nn, an optimizer of
tinygrad.nn.optim, and a training step or forward pass under TinyJit, which replays the kernels of
the second call. The harness sets DEV=CL, and TRAINING=1 for the optimizers.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from importlib.metadata import version
from typing import Any

import numpy as np
from tinygrad import Context, Device, Tensor, TinyJit, Variable, nn
from tinygrad_networks import READY, LastState
from worker import Data, Workload, serve

ACTIVATIONS = {"ReLU": Tensor.relu, "Sigmoid": Tensor.sigmoid, "Tanh": Tensor.tanh}
LOSSES = {
    "MSE": lambda p, y: (p - y).square().mean(),
    "BCE": Tensor.binary_crossentropy,
    "CrossEntropy": Tensor.sparse_categorical_crossentropy,
}
# TinyJit compiles at the first call, captures the kernels at the second one, and replays them.
CALLS_BEFORE_REPLAY = 3


class Tinygrad:
    def __init__(self, workload: Workload, data: Data) -> None:
        self._workload = workload
        self._x = device_tensor(data.x)
        self._model = network(workload.architecture, data.x[:2])
        self._parameters = [
            tensor for tensor in nn.state.get_parameters(self._model) if tensor.is_param
        ]
        for parameter, value in zip(self._parameters, data.parameters, strict=True):
            parameter.assign(Tensor(value)).realize()
        kept = nn.state.get_parameters(self._model)
        if workload.loss is not None:
            self._y, self._optimizer = device_tensor(data.y), optimizer(workload, self._model)
            kept += nn.state.get_parameters(self._optimizer)
        if workload.timed == "run":
            self._rows = device_tensor(data.rows)
        # TinyJit holds the buffers, so the first values are copied back into them.
        different = {id(tensor): tensor for tensor in kept}.values()
        self._first = [(tensor, tensor.realize().numpy()) for tensor in different]
        self._call = TinyJit(getattr(self, f"_{workload.timed}"))

    def run(self, steps: int) -> None:
        if self._workload.timed == "run":
            number = Variable("number", 0, len(self._rows) - 1)
            for step in range(steps):
                result = self._call(number.bind(step))
        else:
            for _ in range(steps):
                result = self._call()
        if self._workload.timed == "forward":
            self._outputs = result
            Device.default.synchronize()
        else:
            result.item()

    def _forward(self) -> Tensor:
        with Context(TRAINING=0):
            return self._model(self._x).realize()

    def _step(self) -> Tensor:
        return self._train(self._x, self._y)

    def _run(self, number: Variable) -> Tensor:
        rows = self._rows[number]
        return self._train(self._x[rows], self._y[rows])

    def _train(self, x: Tensor, y: Tensor) -> Tensor:
        self._optimizer.zero_grad()
        loss = LOSSES[self._workload.loss.kind](self._model(x), y).backward()
        return loss.realize(*self._optimizer.schedule_step())

    def reset(self) -> None:
        for tensor, value in self._first:
            tensor.assign(Tensor(value)).realize()
        Device.default.synchronize()

    def result(self) -> list[np.ndarray]:
        if self._workload.timed == "forward":
            return [self._outputs.numpy()]
        return [parameter.numpy() for parameter in self._parameters]


def device_tensor(array: np.ndarray) -> Tensor:
    """The array on the device; tinygrad's integers are int32."""
    if array.dtype == np.int64:
        array = array.astype("int32")
    return Tensor(array).realize()


def network(architecture: Any, x: np.ndarray) -> Any:
    if architecture.kind == "Ready":
        return READY[architecture.function](**vars(architecture.options))
    return Stack(architecture, x)


class Stack:
    """A sequence of layers."""

    def __init__(self, architecture: Any, x: np.ndarray) -> None:
        self.layers: list[Any] = []
        example = Tensor(x)
        for layer in architecture.layers:
            self.layers.append(layer_of(layer, example.shape))
            # Nothing is computed: only its shape is read.
            with Context(TRAINING=0):
                example = self.layers[-1](example)

    def __call__(self, x: Tensor) -> Tensor:
        return x.sequential(self.layers)


def layer_of(layer: Any, shape: tuple[int, ...]) -> Any:
    """tinygrad's layer, for inputs of a shape."""
    if layer.kind == "Linear":
        return nn.Linear(shape[-1], layer.features, layer.bias)
    if layer.kind == "Conv2d":
        return nn.Conv2d(shape[1], layer.channels, layer.window, padding=layer.padding)
    if layer.kind == "MaxPool2d":
        return lambda x: x.max_pool2d((layer.window, layer.window))
    if layer.kind == "BatchNorm":
        return nn.BatchNorm(shape[1], layer.epsilon, momentum=layer.momentum)
    if layer.kind == "LSTM":
        return LastState(shape[-1], layer.features)
    return (lambda x: x.flatten(1)) if layer.kind == "Flatten" else ACTIVATIONS[layer.kind]


def optimizer(workload: Workload, model: Any) -> nn.optim.Optimizer:
    """The optimizer, or a group of one for each strength of L2, as weight decay."""
    groups: dict[float, list[Tensor]] = defaultdict(list)
    if workload.architecture.kind == "Ready":
        groups[0.0] = nn.state.get_parameters(model)
    else:
        for layer, module in zip(workload.architecture.layers, model.layers, strict=True):
            for name, tensor in nn.state.get_state_dict(module).items():
                penalty = getattr(layer, f"{name}_regularizer", None)
                groups[penalty.strength if penalty else 0.0].append(tensor)
    how = workload.optimizer
    if how.kind == "SGD":
        made = [
            nn.optim.SGD(group, how.rate, how.momentum, decay) for decay, group in groups.items()
        ]
        return made[0] if len(made) == 1 else nn.optim.OptimizerGroup(*made)
    (group,) = groups.values()
    return {"Adam": nn.optim.Adam}[how.kind](group, how.rate, how.beta1, how.beta2, how.epsilon)


def make(workload: Workload, data: Data) -> Tinygrad:
    return Tinygrad(workload, data)


def make_warm(workload: Workload, data: Data) -> Tinygrad:
    """With its kernels captured, at the initial parameters."""
    peer = Tinygrad(workload, data)
    peer.run(CALLS_BEFORE_REPLAY)
    peer.reset()
    return peer


def versions() -> dict[str, Any]:
    return {
        "tinygrad": version("tinygrad"),
        "numpy": np.__version__,
        "python": sys.version.split()[0],
        "device": Device.default.device_name,
        "driver": Device.default.driver_version,
    }


if __name__ == "__main__":
    serve(make_warm, versions())
