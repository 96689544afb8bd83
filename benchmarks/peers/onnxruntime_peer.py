"""ONNX Runtime's worker: `python onnxruntime_peer.py run`, or `bound`.

The network is written as an ONNX graph, which ONNX Runtime optimises when it makes the session.
`run` calls `session.run` with an array, as most users do; it returns a new array. `bound` runs the
session with input and output that were bound before, which takes less time for a small network.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from worker import Data, Workload, serve, threads

# The versions of the operators and of the file format.
OPERATORS, FORMAT = 17, 9
ACTIVATIONS = {"ReLU": "Relu", "Sigmoid": "Sigmoid", "Tanh": "Tanh"}


class OnnxRuntime:
    def __init__(self, workload: Workload, data: Data, *, bound: bool) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads()
        model = graph(workload.architecture, data.x.shape, data.parameters)
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self._feeds = {"x": data.x}
        self._outputs = self._session.run(None, self._feeds)
        self._binding = None
        if bound:
            self._x = onnxruntime.OrtValue.ortvalue_from_numpy(data.x)
            self._y = onnxruntime.OrtValue.ortvalue_from_numpy(self._outputs[0])
            self._binding = self._session.io_binding()
            self._binding.bind_ortvalue_input("x", self._x)
            self._binding.bind_ortvalue_output("y", self._y)

    def run(self, steps: int) -> None:
        if self._binding is None:
            for _ in range(steps):
                self._outputs = self._session.run(None, self._feeds)
            return
        for _ in range(steps):
            self._session.run_with_iobinding(self._binding)

    def reset(self) -> None:
        pass

    def result(self) -> list[np.ndarray]:
        return self._outputs if self._binding is None else [self._y.numpy()]


def graph(architecture: Any, shape: tuple[int, ...], parameters: list[np.ndarray]) -> Any:
    """The network as an ONNX model; its input is x and its output is y."""
    if architecture.kind != "Stack":
        raise ValueError(f"networks such as {architecture.function} are not written here")
    remaining, nodes, weights = iter(parameters), [], []
    name, last = "x", len(architecture.layers) - 1
    for number, layer in enumerate(architecture.layers):
        result = "y" if number == last else f"h{number}"
        kind, options, count = operator(layer)
        names = [f"p{number}.{index}" for index in range(count)]
        weights += [numpy_helper.from_array(next(remaining), label) for label in names]
        nodes.append(helper.make_node(kind, [name, *names], [result], **options))
        name = result
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (shape[0], None))
    model = helper.make_model(
        helper.make_graph(nodes, "network", [x], [y], weights),
        opset_imports=[helper.make_opsetid("", OPERATORS)],
        ir_version=FORMAT,
    )
    onnx.checker.check_model(model)
    return model


def operator(layer: Any) -> tuple[str, dict[str, Any], int]:
    """The ONNX operator of a layer, its attributes, and the number of its parameters."""
    if layer.kind == "Linear":
        return "Gemm", {"transB": 1}, 1 + layer.bias
    if layer.kind == "Conv2d":
        padding = [layer.padding] * 4
        return "Conv", {"kernel_shape": [layer.window] * 2, "pads": padding}, 1 + layer.bias
    if layer.kind == "MaxPool2d":
        return "MaxPool", {"kernel_shape": [layer.window] * 2, "strides": [layer.window] * 2}, 0
    return ("Flatten" if layer.kind == "Flatten" else ACTIVATIONS[layer.kind]), {}, 0


def make(workload: Workload, data: Data) -> OnnxRuntime:
    return OnnxRuntime(workload, data, bound=sys.argv[1] == "bound")


def versions() -> dict[str, Any]:
    return {
        "onnxruntime": onnxruntime.__version__,
        "python": sys.version.split()[0],
        "threads": threads(),
    }


if __name__ == "__main__":
    serve(make, versions())
