"""JAX's worker: a training step is one jitted function with donated parameters and state.

Optimizers are written by hand with PyTorch's formulas. Data and state are JAX arrays before the
clock starts. A run of many training steps is one call: a loop inside the compiled program, which
gathers the examples of each batch. The training step of a population is `jax.vmap` of that of one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from jax import Array, lax
from jax_networks import READY, convolution, last_state, normalised, product
from worker import Data, Workload, serve

ACTIVATIONS = {"ReLU": jax.nn.relu, "Sigmoid": jax.nn.sigmoid, "Tanh": jnp.tanh}

# In Lamina's order. Weights of matrix products are (in, out).
Parameters = list[Array]


class Jax:
    """A workload on JAX's default device.

    Args:
        mixed: the weights of products are rounded to bfloat16 in each training step, as
            torch.autocast does, and once for a forward pass.
    """

    def __init__(self, workload: Workload, data: Data, *, mixed: bool = False) -> None:
        self._workload = workload
        self._first = initial_parameters(workload, data)
        if mixed and workload.loss is None:
            self._first = rounded(workload, self._first)
        self._x, self._y, self._rows = jax.device_put((data.x, data.y, data.rows))
        network = partial(forward, workload, mixed=mixed)
        self._forward = jax.jit(network)
        bound = (workload, network)
        self._step = jax.jit(partial(step, *bound), donate_argnums=(0, 1))
        self._many = jax.jit(partial(many, *bound), donate_argnums=(0, 1))
        self.reset()

    def reset(self) -> None:
        # Copies, because donated arrays are gone after the training step.
        self._parameters = jax.tree.map(jnp.array, self._first)
        self._state = initial_state(self._workload, self._parameters)

    def run(self, steps: int) -> None:
        x, y = self._x, self._y
        if self._workload.loss is None:
            for _ in range(steps):
                self._outputs = self._forward(self._parameters, x)
                if self._workload.timed == "predict":
                    self._outputs.block_until_ready()
            jax.block_until_ready(self._outputs)
            return
        if self._workload.timed == "run":
            self._parameters, self._state = self._many(
                self._parameters, self._state, x, y, self._rows, steps
            )
        else:
            for _ in range(steps):
                self._parameters, self._state, self._loss = self._step(
                    self._parameters, self._state, x, y
                )
        jax.block_until_ready((self._parameters, self._state))

    def result(self) -> list[np.ndarray]:
        if self._workload.loss is None:
            return [np.array(self._outputs)]
        return [np.array(array) for array in jax.tree.leaves(self._parameters)]


def tables_of(workload: Workload) -> int:
    """So many of the first parameters are embedding tables."""
    architecture = workload.architecture
    return READY[architecture.function].tables if architecture.kind == "Ready" else 0


def initial_parameters(workload: Workload, data: Data) -> list[np.ndarray]:
    """Initial values: weights of matrix products as (in, out), embedding tables as they are."""
    tables = tables_of(workload)
    return [
        np.ascontiguousarray(np.swapaxes(array, -1, -2))
        if array.ndim == (2 if workload.members is None else 3) and number >= tables
        else array
        for number, array in enumerate(data.parameters)
    ]


def forward(workload: Workload, parameters: Parameters, x: Array, *, mixed: bool = False) -> Array:
    """The outputs of the network in float32."""
    if mixed:
        parameters = rounded(workload, parameters)
    return outputs(workload, iter(parameters), x).astype("float32")


def rounded(workload: Workload, parameters: Sequence[Any]) -> list[Any]:
    """The parameters, with the weights of products in bfloat16."""
    tables = tables_of(workload)
    return [
        array.astype(jnp.bfloat16) if array.ndim > 1 and number >= tables else array
        for number, array in enumerate(parameters)
    ]


def outputs(workload: Workload, remaining: Iterator[Array], x: Array) -> Array:
    architecture = workload.architecture
    if architecture.kind == "Ready":
        return READY[architecture.function].forward(architecture.options, remaining, x)
    for layer in architecture.layers:
        if layer.kind in WITH_PARAMETERS:
            apply = WITH_PARAMETERS[layer.kind][1]
            x = apply(layer, x, *(next(remaining) for _ in names_of(layer)))
        elif layer.kind == "MaxPool2d":
            size = (1, 1, layer.window, layer.window)
            x = lax.reduce_window(x, -jnp.inf, lax.max, size, size, "VALID")
        elif layer.kind == "Flatten":
            x = x.reshape(len(x), -1)
        else:
            x = ACTIVATIONS[layer.kind](x)
    return x


def convolved(layer: Any, x: Array, weight: Array, bias: Array) -> Array:
    y = convolution(x, weight, padding=layer.padding)
    return y + bias.astype(y.dtype)[:, None, None]


def names_of(layer: Any) -> tuple[str, ...]:
    """The names of the parameters that a layer has."""
    names, _ = WITH_PARAMETERS[layer.kind]
    return tuple(name for name in names if name != "bias" or getattr(layer, "bias", True))


# The names of a layer's parameters, and the function that computes the layer.
WITH_PARAMETERS = {
    "Linear": (("weight", "bias"), lambda layer, x, *parameters: product(x, *parameters)),
    "Conv2d": (("weight", "bias"), convolved),
    "BatchNorm": (
        ("weight", "bias"),
        lambda layer, x, weight, bias: normalised(x, weight, bias, layer.epsilon),
    ),
    "LSTM": (
        ("weight_ih", "weight_hh", "bias_ih", "bias_hh"),
        lambda layer, x, *parameters: last_state(x, *parameters),
    ),
}


def loss_of(workload: Workload, p: Array, y: Array) -> Array:
    if workload.loss.kind == "MSE":
        return jnp.mean(jnp.square(p - y))
    if workload.loss.kind == "BCE":
        # PyTorch's bound: a logarithm is at least -100.
        log, log1m = (jnp.maximum(jnp.log(value), -100.0) for value in (p, 1 - p))
        return -jnp.mean(y * log + (1 - y) * log1m)
    if workload.loss.kind == "CrossEntropy":
        chosen = jnp.take_along_axis(jax.nn.log_softmax(p, axis=1), y[:, None], axis=1)
        return -jnp.mean(chosen)
    raise NotImplementedError(workload.loss.kind)


def initial_state(workload: Workload, parameters: Parameters) -> Any:
    if workload.members is not None:
        return jax.vmap(partial(state_of_one, workload))(parameters)
    return state_of_one(workload, parameters)


def state_of_one(workload: Workload, parameters: Parameters) -> Any:
    def zeros() -> Parameters:
        return jax.tree.map(jnp.zeros_like, parameters)

    how = workload.optimizer
    if how is None or (how.kind == "SGD" and not how.momentum):
        return ()
    return zeros() if how.kind == "SGD" else (zeros(), zeros(), jnp.zeros((), "int32"))


def decays(workload: Workload, parameters: Parameters) -> list[float]:
    """The strength of L2 of each parameter."""
    architecture = workload.architecture
    if architecture.kind == "Ready":
        return [0.0] * len(parameters)
    penalties = [
        getattr(layer, f"{name}_regularizer", None)
        for layer in architecture.layers
        if layer.kind in WITH_PARAMETERS
        for name in names_of(layer)
    ]
    return [penalty.strength if penalty else 0.0 for penalty in penalties]


def step(
    workload: Workload,
    network: Callable[[Parameters, Array], Array],
    parameters: Parameters,
    state: Any,
    x: Array,
    y: Array,
) -> tuple[Parameters, Any, Array]:
    def loss_at(parameters: Parameters) -> Array:
        return loss_of(workload, network(parameters, x), y)

    loss, gradients = jax.value_and_grad(loss_at)(parameters)
    gradients = jax.tree.map(
        lambda gradient, parameter, decay: gradient + decay * parameter if decay else gradient,
        *(gradients, parameters, decays(workload, parameters)),
    )
    how = workload.optimizer
    if how.kind == "SGD":
        if how.momentum:
            gradients = state = jax.tree.map(lambda b, g: how.momentum * b + g, state, gradients)
        new = jax.tree.map(lambda p, g: p - how.rate * g, parameters, gradients)
        return new, state, loss
    if how.kind == "Adam":
        mean, square, count = state
        count = count + 1
        mean = jax.tree.map(lambda m, g: how.beta1 * m + (1 - how.beta1) * g, mean, gradients)
        square = jax.tree.map(
            lambda v, g: how.beta2 * v + (1 - how.beta2) * g * g, square, gradients
        )
        length = how.rate / (1 - how.beta1**count)
        scale = 1 / jnp.sqrt(1 - how.beta2**count)
        new = jax.tree.map(
            lambda p, m, v: p - length * m / (jnp.sqrt(v) * scale + how.epsilon),
            *(parameters, mean, square),
        )
        return new, (mean, square, count), loss
    raise NotImplementedError(how.kind)


def many(
    workload: Workload,
    network: Callable[[Parameters, Array], Array],
    parameters: Parameters,
    state: Any,
    x: Array,
    y: Array,
    rows: Array,
    steps: Array,
) -> tuple[Parameters, Any]:
    of_one = partial(step, workload, network)
    update = of_one if workload.members is None else jax.vmap(of_one)

    def body(number: Array, carried: tuple[Parameters, Any]) -> tuple[Parameters, Any]:
        batch = rows[number] if workload.members is None else rows[:, number]
        return update(*carried, x[batch], y[batch])[:2]

    return lax.fori_loop(0, steps, body, (parameters, state))


make = Jax


def versions() -> dict[str, Any]:
    return {
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "numpy": np.__version__,
        "python": sys.version.split()[0],
        "blas": "XLA's own",
        "devices": [str(device) for device in jax.devices()],
        "XLA_FLAGS": os.environ.get("XLA_FLAGS"),
        "NPROC": os.environ.get("NPROC"),
    }


if __name__ == "__main__":
    serve(make, versions())
