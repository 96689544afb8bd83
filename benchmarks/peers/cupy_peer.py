"""CuPy's worker on a GPU: stacks of linear layers, with gradients written by hand.

CuPy has arrays and products of matrices (cuBLAS), but no layers and no gradients. So it has the
workloads of linear layers and activations only, as its users would write them.

With the device `cpu` the same code runs with NumPy. That measures nothing.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
from gpu_device import CPU, device_number, takes_tf32, wanted_device
from worker import Data, Make, ResidentPeer, Workload, serve

LAYERS = ("Linear", "ReLU", "Sigmoid", "Tanh")


class CuPy(ResidentPeer):
    """A workload as arrays of `xp`: the module cupy, or numpy in its place."""

    def __init__(self, workload: Workload, data: Data, xp: Any) -> None:
        kinds = {workload.architecture.kind}
        if kinds == {"Stack"}:
            kinds = {layer.kind for layer in workload.architecture.layers}
        if not kinds <= set(LAYERS):
            raise NotImplementedError("CuPy has no layers; only stacks of linear ones are written")
        self._xp, self._workload = xp, workload
        self._layers = workload.architecture.layers
        self._first = [xp.asarray(value) for value in data.parameters]
        self._host = (data.x, data.y)
        rows = None if data.rows is None else data.rows[0]
        x, y = (data.x, data.y) if rows is None else (data.x[rows], data.y[rows])
        self._resident = (xp.asarray(x), None if y is None else xp.asarray(y))
        self._whole = (xp.asarray(data.x), None if data.y is None else xp.asarray(data.y))
        self._rows = None if data.rows is None else xp.asarray(data.rows)
        self.reset()

    def reset(self) -> None:
        self._parameters = [value.copy() for value in self._first]
        self._velocity = [self._xp.zeros_like(value) for value in self._first]
        self._squares = [self._xp.zeros_like(value) for value in self._first]
        self._steps = 0

    def release(self) -> None:
        """Gives the memory that CuPy keeps back to the device, for the other peers."""
        xp = self._xp
        self.__dict__.clear()
        if xp is not np:
            xp.get_default_memory_pool().free_all_blocks()

    def _to_host(self, array: Any) -> np.ndarray:
        return array if self._xp is np else self._xp.asnumpy(array)

    def _wait(self) -> None:
        if self._xp is not np:
            self._xp.cuda.get_current_stream().synchronize()

    def result(self) -> list[np.ndarray]:
        if self._workload.timed == "forward":
            return [self._to_host(self._outputs)]
        return [self._to_host(value).copy() for value in self._parameters]

    # Calls

    def run(self, steps: int) -> None:
        """Whole calls: each copies its batch, but a run has its data on the device."""
        if self._rows is not None:
            x, y = self._whole
            for rows in self._rows[:steps]:
                self._step(x[rows], y[rows])
        else:
            for _ in range(steps):
                x, y = (None if array is None else self._xp.asarray(array) for array in self._host)
                self._call(x, y)
                if y is None:
                    self._to_host(self._outputs)
        self._wait()

    def _call(self, x: Any, y: Any) -> None:
        if y is None:
            self._outputs = self._forward(x)[-1]
        else:
            self._step(x, y)

    # Formulas

    def _forward(self, x: Any) -> list[Any]:
        """The inputs, and the outputs of each layer."""
        values, parameters, xp = [x], iter(self._parameters), self._xp
        for layer in self._layers:
            if layer.kind == "Linear":
                x = x @ next(parameters).T
                if layer.bias:
                    x += next(parameters)
            elif layer.kind == "ReLU":
                x = xp.maximum(x, 0)
            else:
                x = xp.tanh(x) if layer.kind == "Tanh" else 1 / (1 + xp.exp(-x))
            values.append(x)
        return values

    def _step(self, x: Any, y: Any) -> None:
        values = self._forward(x)
        gradients = self._gradients(values, self._loss_gradient(values[-1], y))
        self._steps += 1
        for number, gradient in enumerate(gradients):
            self._update(number, gradient)

    def _loss_gradient(self, outputs: Any, y: Any) -> Any:
        """The gradient of the mean loss."""
        kind, xp = self._workload.loss.kind, self._xp
        if kind == "MSE":
            return (outputs - y) * (2 / outputs.size)
        if kind == "BCE":
            return (outputs - y) / (outputs * (1 - outputs)) / outputs.size
        powers = xp.exp(outputs - outputs.max(axis=1, keepdims=True))
        gradient = powers / powers.sum(axis=1, keepdims=True)
        gradient[xp.arange(len(y)), y] -= 1
        return gradient / len(y)

    def _gradients(self, values: list[Any], gradient: Any) -> list[Any]:
        """The gradients of all parameters, their penalties included."""
        gradients: list[Any] = []
        left = list(self._parameters)
        for number in reversed(range(len(self._layers))):
            layer, before, after = self._layers[number], values[number], values[number + 1]
            if layer.kind == "ReLU":
                gradient = gradient * (after > 0)
            elif layer.kind == "Tanh":
                gradient = gradient * (1 - after * after)
            elif layer.kind == "Sigmoid":
                gradient = gradient * (after * (1 - after))
            else:
                if layer.bias:
                    bias_gradient = gradient.sum(axis=0)
                    gradients.append(_decayed(bias_gradient, layer.bias_regularizer, left.pop()))
                weight = left.pop()
                weight_gradient = gradient.T @ before
                gradients.append(_decayed(weight_gradient, layer.weight_regularizer, weight))
                gradient = gradient @ weight if number else None
        return gradients[::-1]

    def _update(self, number: int, gradient: Any) -> None:
        how, xp = self._workload.optimizer, self._xp
        velocity = self._velocity[number]
        if how.kind == "SGD":
            if how.momentum:
                velocity *= how.momentum
                velocity += gradient
                gradient = velocity
            self._parameters[number] -= how.rate * gradient
            return
        squares = self._squares[number]
        velocity += (1 - how.beta1) * (gradient - velocity)
        squares += (1 - how.beta2) * (gradient * gradient - squares)
        mean = velocity / (1 - how.beta1**self._steps)
        root = xp.sqrt(squares / (1 - how.beta2**self._steps))
        self._parameters[number] -= how.rate * mean / (root + how.epsilon)


def _decayed(gradient: Any, penalty: Any, parameter: Any) -> Any:
    """The gradient, plus the gradient of the penalty if there is one."""
    return gradient + penalty.strength * parameter if penalty else gradient


def main() -> None:
    device = wanted_device()
    versions: dict[str, Any] = {"python": sys.version.split()[0]}
    if device == CPU:
        xp: Any = np
        versions |= {"cupy": f"NumPy {np.__version__}, as a stand-in"}
    else:
        # Read when the first product is computed.
        os.environ["CUPY_TF32"] = str(int(takes_tf32()))
        import cupy as xp

        count = xp.cuda.runtime.getDeviceCount()
        properties = [xp.cuda.runtime.getDeviceProperties(number) for number in range(count)]
        names = [gpu["name"].decode() for gpu in properties]
        number = device_number(device, names)
        xp.cuda.Device(number).use()
        versions |= {"cupy": xp.__version__, "device": names[number], "TF32": takes_tf32()}
        versions |= {"CUDA": xp.cuda.runtime.runtimeGetVersion()}

    def make(workload: Workload, data: Data) -> CuPy:
        return CuPy(workload, data, xp)

    makes: Make = make
    serve(makes, versions)


if __name__ == "__main__":
    main()
