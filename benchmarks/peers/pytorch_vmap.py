"""PyTorch's worker for populations: `torch.func.vmap` of the gradients, under torch.compile.

The parameters of all members are stacked. One compiled function computes the gradients of all, and
an optimizer of torch.optim, which works element by element, updates the stacked parameters.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pytorch import LOSSES, network, optimizer, versions
from torch.func import functional_call, grad, vmap
from worker import Data, Workload, serve, threads


class Stacked:
    def __init__(self, workload: Workload, data: Data) -> None:
        torch.set_num_threads(threads())
        torch.compiler.reset()
        self._workload = workload
        # The parameters of this module are those of all members.
        model, loss = network(workload.architecture), LOSSES[workload.loss.kind]()
        names = [name for name, _ in model.named_parameters()]
        self._first = [torch.from_numpy(value) for value in data.parameters]
        self._parameters = list(model.parameters())
        for parameter, value in zip(self._parameters, self._first, strict=True):
            parameter.data = value.clone()
        self._x, self._y = torch.from_numpy(data.x), torch.from_numpy(data.y)
        self._rows = torch.from_numpy(data.rows)
        template = network(workload.architecture)

        def loss_of(parameters: dict[str, Any], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return loss(functional_call(template, parameters, (x,)), y)

        def gradients(parameters: list[Any], x: torch.Tensor, y: torch.Tensor) -> list[Any]:
            named = dict(zip(names, parameters, strict=True))
            return list(vmap(grad(loss_of))(named, x, y).values())

        self._gradients = torch.compile(gradients)
        self._optimizer = optimizer(workload, model)

    def run(self, steps: int) -> None:
        for number in range(steps):
            rows = self._rows[:, number]
            with torch.no_grad():
                given = [parameter.detach() for parameter in self._parameters]
                found = self._gradients(given, self._x[rows], self._y[rows])
            for parameter, gradient in zip(self._parameters, found, strict=True):
                parameter.grad = gradient
            self._optimizer.step()

    def reset(self) -> None:
        for parameter, value in zip(self._parameters, self._first, strict=True):
            parameter.data = value.clone()
        self._optimizer.state.clear()

    def result(self) -> list[np.ndarray]:
        return [parameter.detach().numpy().copy() for parameter in self._parameters]


if __name__ == "__main__":
    serve(Stacked, versions())
