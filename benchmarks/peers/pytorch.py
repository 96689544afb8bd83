"""PyTorch's worker: `python pytorch.py eager`, or `compile` for torch.compile.

`autocast` and `autocast.compile` are the same in mixed precision: the network and the loss run
under `torch.autocast` to bfloat16, and images have their channels last, as PyTorch recommends. The
weights of a forward pass are rounded once; autocast would round them in each call.

It is written as PyTorch's users write it: a module, a loss, an optimizer of torch.optim with its
default implementation. torch.compile compiles the network and the loss together; the optimizer is
not compiled.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pytorch_networks import READY, LastState
from torch import nn
from worker import Data, Workload, serve, threads

ACTIVATIONS = {"ReLU": nn.ReLU, "Sigmoid": nn.Sigmoid, "Tanh": nn.Tanh}
LOSSES = {"MSE": nn.MSELoss, "BCE": nn.BCELoss, "CrossEntropy": nn.CrossEntropyLoss}


class PyTorch:
    def __init__(
        self,
        workload: Workload,
        data: Data,
        *,
        compiled: bool,
        mode: str | None = None,
        mixed: bool = False,
        channels_last: bool | None = None,
        device: str = "cpu",
    ) -> None:
        torch.set_num_threads(threads())
        if compiled:
            # A function is compiled at most 8 times, then it runs eagerly; each workload has it.
            torch.compiler.reset()
        self._workload = workload
        self._model = network(workload.architecture).to(device)
        # The module's parameters, or slices of them, in Lamina's order.
        in_order = getattr(self._model, "in_order", self._model.parameters)
        with torch.no_grad():
            for parameter, value in zip(in_order(), data.parameters, strict=True):
                parameter.copy_(torch.from_numpy(value))
        self._first = {name: value.clone() for name, value in self._model.state_dict().items()}
        self._x = torch.from_numpy(data.x).to(device)
        if mixed and workload.loss is None:
            for parameter in self._model.parameters():
                if parameter.ndim > 1:
                    parameter.data = parameter.data.bfloat16()
        if (mixed if channels_last is None else channels_last) and self._x.ndim == 4:
            self._model = self._model.to(memory_format=torch.channels_last)
            self._x = self._x.contiguous(memory_format=torch.channels_last)
        self._autocast = torch.autocast(self._x.device.type, torch.bfloat16, enabled=mixed)
        if workload.loss is None:
            self._forward = compiled_of(self._model, mode) if compiled else self._model
            return
        assert data.y is not None
        self._y = torch.from_numpy(data.y).to(device)
        self._rows = None if data.rows is None else torch.from_numpy(data.rows).to(device)
        loss = LOSSES[workload.loss.kind]()

        def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            outputs = self._model(x)
            if mixed and isinstance(loss, nn.BCELoss):
                # Autocast on a GPU refuses this loss, because 16 bits cannot represent it.
                with torch.autocast(self._x.device.type, enabled=False):
                    return loss(outputs.float(), y)
            return loss(outputs, y)

        self._loss = compiled_of(loss_of, mode) if compiled else loss_of
        self._optimizer = optimizer(workload, self._model)

    def run(self, steps: int) -> None:
        if self._workload.loss is None:
            with torch.inference_mode():
                for _ in range(steps):
                    with self._autocast:
                        self._outputs = self._forward(self._x)
            return
        if self._workload.timed == "run":
            for rows in self._rows[:steps]:
                loss = self._step(self._x[rows], self._y[rows])
        else:
            for _ in range(steps):
                loss = self._step(self._x, self._y)
        loss.item()

    def _step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self._optimizer.zero_grad()
        with self._autocast:
            loss = self._loss(x, y)
        loss.backward()
        self._optimizer.step()
        return loss

    def reset(self) -> None:
        self._model.load_state_dict(self._first)
        if self._workload.optimizer is not None:
            self._optimizer.state.clear()

    def result(self) -> list[np.ndarray]:
        if self._workload.loss is None:
            return [self._outputs.float().cpu().numpy()]
        return [parameter.detach().cpu().numpy().copy() for parameter in self._model.parameters()]


def compiled_of(function: Callable[..., Any], mode: str | None) -> Callable[..., Any]:
    """The function compiled by torch.compile, in one of its modes; None for the default one."""
    compiled = torch.compile(function, mode=mode)
    if mode not in ("reduce-overhead", "max-autotune"):
        return compiled

    def call(*given: Any) -> Any:
        # CUDA graphs take back the memory of the call before.
        torch.compiler.cudagraph_mark_step_begin()
        return compiled(*given)

    return call


def network(architecture: Any) -> nn.Module:
    if architecture.kind == "Ready":
        return READY[architecture.function](**vars(architecture.options))
    layers: list[nn.Module] = []
    # Two zero examples pass through the layers, so that each layer gets its input's shape.
    example = torch.zeros(2, *architecture.input_shape)
    for layer in architecture.layers:
        layers.append(module(layer, example))
        with torch.no_grad():
            example = layers[-1](example)
    network = nn.Sequential(*layers)
    for part in network:
        if isinstance(part, nn.BatchNorm2d):
            part.reset_running_stats()
    return network


def module(layer: Any, x: torch.Tensor) -> nn.Module:
    """PyTorch's module of a layer, for inputs of the shape of x."""
    if layer.kind == "Linear":
        return nn.Linear(x.shape[-1], layer.features, bias=layer.bias)
    if layer.kind == "Conv2d":
        return nn.Conv2d(x.shape[1], layer.channels, layer.window, padding=layer.padding)
    if layer.kind == "MaxPool2d":
        return nn.MaxPool2d(layer.window)
    if layer.kind == "BatchNorm":
        return nn.BatchNorm2d(x.shape[1], layer.epsilon, layer.momentum)
    if layer.kind == "LSTM":
        return LastState(nn.LSTM(x.shape[-1], layer.features, batch_first=True))
    return nn.Flatten() if layer.kind == "Flatten" else ACTIVATIONS[layer.kind]()


def optimizer(workload: Workload, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer, with a group of parameters for each strength of L2, as weight decay."""
    by_strength: dict[float, list[nn.Parameter]] = defaultdict(list)
    if workload.architecture.kind == "Ready":
        by_strength[0.0] = list(model.parameters())
    else:
        for layer, module in zip(workload.architecture.layers, model, strict=True):
            for name, parameter in module.named_parameters():
                penalty = getattr(layer, f"{name}_regularizer", None)
                by_strength[penalty.strength if penalty else 0.0].append(parameter)
    groups = [{"params": group, "weight_decay": decay} for decay, group in by_strength.items()]
    how = workload.optimizer
    if how.kind == "SGD":
        return torch.optim.SGD(groups, lr=how.rate, momentum=how.momentum)
    betas = (how.beta1, how.beta2)
    return {"Adam": torch.optim.Adam}[how.kind](groups, lr=how.rate, betas=betas, eps=how.epsilon)


def make(workload: Workload, data: Data) -> PyTorch:
    return PyTorch(workload, data, compiled=False)


def make_compiled(workload: Workload, data: Data) -> PyTorch:
    return PyTorch(workload, data, compiled=True)


def make_autocast(workload: Workload, data: Data) -> PyTorch:
    return PyTorch(workload, data, compiled=False, mixed=True)


def make_compiled_autocast(workload: Workload, data: Data) -> PyTorch:
    return PyTorch(workload, data, compiled=True, mixed=True)


def versions() -> dict[str, Any]:
    torch.set_num_threads(threads())
    built = torch.__config__.show()
    blas = ("MKL" if torch.backends.mkl.is_available() else "") + (
        " oneDNN" if torch.backends.mkldnn.is_available() else ""
    )
    return {
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "blas": blas.strip() or "unknown",
        "cpu capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "built": [line.strip(" -") for line in built.splitlines()[1:]],
    }


if __name__ == "__main__":
    makers = {"eager": make, "compile": make_compiled}
    makers |= {"autocast": make_autocast, "autocast.compile": make_compiled_autocast}
    serve(makers[sys.argv[1]], versions())
