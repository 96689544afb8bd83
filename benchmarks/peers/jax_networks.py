"""The networks of `lamina.networks` in plain JAX: functions of options, parameters and input.

Parameters come in Lamina's order; weights of matrix products are (in, out).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

# PyTorch and Lamina use it in every normalisation.
EPSILON = 1e-5


@dataclass(frozen=True)
class Ready:
    """A network.

    Attributes:
        forward: function of (options, parameters, input).
        tables: so many of the first parameters are embedding tables.
    """

    forward: Callable[[Any, Iterator[Array], Array], Array]
    tables: int = 0


def normalised(x: Array, weight: Array, bias: Array, epsilon: float = EPSILON) -> Array:
    """Batch normalisation of images."""
    mean, variance = (of(x, axis=(0, 2, 3), keepdims=True) for of in (jnp.mean, jnp.var))
    scale = weight[:, None, None] * lax.rsqrt(variance + epsilon)
    return (x - mean) * scale + bias[:, None, None]


def last_state(
    x: Array, from_input: Array, from_state: Array, input_bias: Array, state_bias: Array
) -> Array:
    """An LSTM over [batch, length, inputs], with the gates in the order i, f, g, o."""
    features = from_state.shape[0]
    given = jnp.swapaxes(x, 0, 1) @ from_input + (input_bias + state_bias)

    def step(carried: tuple[Array, Array], element: Array) -> tuple[tuple[Array, Array], None]:
        state, cell = carried
        let_in, keep, new, let_out = jnp.split(element + state @ from_state, 4, axis=1)
        cell = jax.nn.sigmoid(keep) * cell + jax.nn.sigmoid(let_in) * jnp.tanh(new)
        return (jax.nn.sigmoid(let_out) * jnp.tanh(cell), cell), None

    first = jnp.zeros((len(x), features), x.dtype)
    (state, _), _ = lax.scan(step, (first, first), given)
    return state


def convolved(
    parameters: Iterator[Array], x: Array, stride: int = 1, groups: int = 1, padding: int = 0
) -> Array:
    """A convolution without bias, and batch normalisation."""
    y = lax.conv_general_dilated(
        *(x, next(parameters), (stride, stride), [(padding, padding)] * 2),
        feature_group_count=groups,
    )
    return normalised(y, next(parameters), next(parameters))


def resnet(options: Any, parameters: Iterator[Array], x: Array) -> Array:
    if (options.depth, options.stem) != (18, "cifar"):
        raise NotImplementedError(f"a residual network of {options.depth} layers")
    x = jax.nn.relu(convolved(parameters, x, padding=1))
    for width, first_stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for stride in (first_stride, 1):
            y = jax.nn.relu(convolved(parameters, x, stride, padding=1))
            y = convolved(parameters, y, padding=1)
            past = x if x.shape[1] == width and stride == 1 else convolved(parameters, x, stride)
            x = jax.nn.relu(y + past)
    return jnp.mean(x, axis=(2, 3)) @ next(parameters) + next(parameters)


def mobilenet_v2(options: Any, parameters: Iterator[Array], x: Array) -> Array:
    if options.dropout or options.width != 1:
        raise NotImplementedError("a MobileNetV2 with dropout, or of another width")
    x = jax.nn.relu6(convolved(parameters, x, stride=2, padding=1))
    for expansion, channels, count, first_stride in (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    ):
        for number in range(count):
            stride = first_stride if number == 0 else 1
            inputs = x.shape[1]
            y = jax.nn.relu6(convolved(parameters, x)) if expansion > 1 else x
            y = jax.nn.relu6(convolved(parameters, y, stride, expansion * inputs, padding=1))
            y = convolved(parameters, y)
            x = x + y if stride == 1 and inputs == channels else y
    x = jax.nn.relu6(convolved(parameters, x))
    return jnp.mean(x, axis=(2, 3)) @ next(parameters) + next(parameters)


def transformer_encoder(options: Any, parameters: Iterator[Array], tokens: Array) -> Array:
    if options.dropout:
        raise NotImplementedError("a transformer with dropout")

    def linear(x: Array) -> Array:
        return x @ next(parameters) + next(parameters)

    def layer_norm(x: Array) -> Array:
        mean, variance = (of(x, axis=-1, keepdims=True) for of in (jnp.mean, jnp.var))
        return (x - mean) * lax.rsqrt(variance + EPSILON) * next(parameters) + next(parameters)

    x = next(parameters)[tokens] + next(parameters)
    for _ in range(options.layers):
        y = layer_norm(x)
        apart = (*x.shape[:2], options.heads, -1)
        queries, keys, values = (linear(y).reshape(apart) for _ in range(3))
        means = jax.nn.dot_product_attention(queries, keys, values, is_causal=options.causal)
        x = x + linear(means.reshape(x.shape))
        x = x + linear(jax.nn.gelu(linear(layer_norm(x)), approximate=False))
    return jnp.swapaxes(linear(layer_norm(x)), 1, 2)


READY = {
    "resnet": Ready(resnet),
    "mobilenet_v2": Ready(mobilenet_v2),
    "transformer_encoder": Ready(transformer_encoder, tables=2),
}
