"""The networks of `lamina.networks` in plain JAX: functions of options, parameters and input.

Parameters come in Lamina's order; weights of matrix products are (in, out). A product rounds its
input to the type of its weight: weights in bfloat16 make products of bfloat16. Normalisations and
states that are added up stay in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array, lax

# PyTorch and Lamina use it in every normalisation.
EPSILON = 1e-5
# The implementation of attention. That of cuDNN is for numbers of 16 bits on a GPU.
ATTENTION: Literal["xla", "cudnn"] = "xla"


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
    """Batch normalisation of images, in float32."""
    precise = x.astype("float32")
    mean, variance = (of(precise, axis=(0, 2, 3), keepdims=True) for of in (jnp.mean, jnp.var))
    scale = weight[:, None, None] * lax.rsqrt(variance + epsilon)
    return ((precise - mean) * scale + bias[:, None, None]).astype(x.dtype)


def product(x: Array, weight: Array, bias: Array | None = None) -> Array:
    y = x.astype(weight.dtype) @ weight
    return y if bias is None else y + bias.astype(weight.dtype)


def convolution(
    x: Array, weight: Array, stride: int = 1, padding: int = 0, groups: int = 1
) -> Array:
    given = (x.astype(weight.dtype), weight, (stride, stride), [(padding, padding)] * 2)
    return lax.conv_general_dilated(*given, feature_group_count=groups)


def last_state(
    x: Array, from_input: Array, from_state: Array, input_bias: Array, state_bias: Array
) -> Array:
    """An LSTM over [batch, length, inputs], with the gates in the order i, f, g, o."""
    features = from_state.shape[0]
    projected = product(jnp.swapaxes(x, 0, 1), from_input, input_bias + state_bias)

    def step(carried: tuple[Array, Array], element: Array) -> tuple[tuple[Array, Array], None]:
        state, cell = carried
        gates = element + product(state, from_state)
        let_in, keep, new, let_out = jnp.split(gates.astype("float32"), 4, axis=1)
        cell = jax.nn.sigmoid(keep) * cell + jax.nn.sigmoid(let_in) * jnp.tanh(new)
        return (jax.nn.sigmoid(let_out) * jnp.tanh(cell), cell), None

    first = jnp.zeros((len(x), features), "float32")
    (state, _), _ = lax.scan(step, (first, first), projected)
    return state


def convolved(
    parameters: Iterator[Array], x: Array, stride: int = 1, groups: int = 1, padding: int = 0
) -> Array:
    """A convolution without bias, and batch normalisation."""
    y = convolution(x, next(parameters), stride, padding, groups)
    return normalised(y, next(parameters), next(parameters))


def resnet(options: Any, parameters: Iterator[Array], x: Array) -> Array:
    if (options.depth, options.stem) != (18, "cifar"):
        raise NotImplementedError(f"a residual network of {options.depth} layers")
    x = jax.nn.relu(convolved(parameters, x, padding=1))
    for first_stride in (1, 2, 2, 2):
        for stride in (first_stride, 1):
            y = jax.nn.relu(convolved(parameters, x, stride, padding=1))
            y = convolved(parameters, y, padding=1)
            past = x if x.shape == y.shape else convolved(parameters, x, stride)
            x = jax.nn.relu(y + past)
    return product(jnp.mean(x, axis=(2, 3)), next(parameters), next(parameters))


def mobilenet_v2(options: Any, parameters: Iterator[Array], x: Array) -> Array:
    if options.dropout:
        raise NotImplementedError("a MobileNetV2 with dropout")
    x = jax.nn.relu6(convolved(parameters, x, stride=2, padding=1))
    for expansion, count, first_stride in (
        *((1, 1, 1), (6, 2, 2), (6, 3, 2), (6, 4, 2)),
        *((6, 3, 1), (6, 3, 2), (6, 1, 1)),
    ):
        for number in range(count):
            stride = first_stride if number == 0 else 1
            y = jax.nn.relu6(convolved(parameters, x)) if expansion > 1 else x
            y = jax.nn.relu6(convolved(parameters, y, stride, y.shape[1], padding=1))
            y = convolved(parameters, y)
            x = x + y if x.shape == y.shape else y
    x = jax.nn.relu6(convolved(parameters, x))
    return product(jnp.mean(x, axis=(2, 3)), next(parameters), next(parameters))


def transformer_encoder(options: Any, parameters: Iterator[Array], tokens: Array) -> Array:
    if options.dropout:
        raise NotImplementedError("a transformer with dropout")

    def linear(x: Array) -> Array:
        return product(x, next(parameters), next(parameters))

    def layer_norm(x: Array) -> Array:
        x = x.astype("float32")
        mean, variance = (of(x, axis=-1, keepdims=True) for of in (jnp.mean, jnp.var))
        return (x - mean) * lax.rsqrt(variance + EPSILON) * next(parameters) + next(parameters)

    x = next(parameters)[tokens] + next(parameters)
    for _ in range(options.layers):
        y = layer_norm(x)
        apart = (*x.shape[:2], options.heads, -1)
        queries, keys, values = (linear(y).reshape(apart) for _ in range(3))
        means = jax.nn.dot_product_attention(
            *(queries, keys, values), is_causal=options.causal, implementation=ATTENTION
        )
        x = x + linear(means.reshape(x.shape))
        x = x + linear(jax.nn.gelu(linear(layer_norm(x)), approximate=False))
    return jnp.swapaxes(linear(layer_norm(x)), 1, 2)


READY = {
    "resnet": Ready(resnet),
    "mobilenet_v2": Ready(mobilenet_v2),
    "transformer_encoder": Ready(transformer_encoder, tables=2),
}
