"""The value of a layer on arrays, or its gradient, by the oracle."""

from collections.abc import Mapping, Sequence

import numpy as np

from lamina import layers as lm
from lamina.base.shapes import float64
from lamina.graph import Graph, Tensor, bind_batch, evaluate
from lamina.layers.layer import Layer
from lamina.layers.tracing import Trace, dtype_in_model, trace
from lamina.ops.differentiate import gradients


def traced(inputs: Sequence[Tensor], output: Tensor, training: bool = False) -> Trace:
    names = dict.fromkeys(inputs, ("", "net/0:Input")) | {output: ("0", "net/0:Layer")}
    dtypes = [dtype_in_model(tensor, float64) for tensor in inputs]
    return trace(inputs, [output], names, dtype=float64, training=training, input_dtypes=dtypes)


def run(
    layer: Layer,
    *arrays: np.ndarray,
    training: bool = False,
    variables: Mapping[str, np.ndarray] | None = None,
    upstream: np.ndarray | None = None,
    twice: bool = False,
) -> np.ndarray:
    """The layer's value for a batch; with an upstream gradient, the gradient of its first input.

    If `twice`, the gradient of the sum of that gradient's squares.
    """
    inputs = [lm.Input(*a.shape[1:], dtype=a.dtype if a.dtype != float else None) for a in arrays]
    y = layer(*inputs)
    if upstream is not None:
        arrays = (*arrays, upstream)
        inputs.append(lm.Input(*upstream.shape[1:]))
        y = y * inputs[-1]
    result = traced(inputs, y, training)
    (output,) = result.outputs
    if upstream is not None:
        (output,) = gradients(output, result.inputs[:1])
    if twice:
        (output,) = gradients(output * output, result.inputs[:1])
    graph = Graph(result.inputs, (("y", output),))
    feeds = {f"input{number}": array for number, array in enumerate(arrays)}
    outputs, _ = evaluate(
        bind_batch(graph, len(arrays[0])),
        {**feeds, "seed": np.int64(1), "step": np.int64(2), **(variables or {})},
    )
    return outputs["y"]
