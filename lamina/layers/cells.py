"""Recurrent cells: one iteration of a recurrent layer, and the formulas that they share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import ClassVar, Literal

from lamina import ops
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import Shape, shape_text, static
from lamina.checks.kinds import Count
from lamina.errors import ShapeError
from lamina.graph import Tensor, described
from lamina.layers.checks import require_float
from lamina.layers.init import Uniform
from lamina.layers.layer import Layer
from lamina.layers.scope import InitializerOption, RegularizerOption, Scope, parameter_of

__all__ = ["GRUCell", "LSTMCell", "RNNCell"]

Tensors = Sequence[Tensor]
CellActivation = Literal["tanh", "relu"]


class RecurrentUnit(Layer, ABC):
    """What a cell and a recurrent layer compute in an iteration.

    Attributes:
        gates: the rows of a weight are so many times the features.
        states: the number of states, the output first.
    """

    gates: ClassVar[int]
    states: ClassVar[int] = 1

    @abstractmethod
    def _next(self, states: Tensors, x: Tensor, h: Tensor, bias: Tensor | None) -> Tensors:
        """The new states.

        `x` is the product of the input and its weight, with its bias, and `h` the product of the
        previous output, both [batch, gates * features]; `bias` is added to `h`.
        """


class ElmanUnit(RecurrentUnit):
    """activation(x + h + bias): Elman (1990)."""

    activation: CellActivation
    gates = 1

    def _next(self, states: Tensors, x: Tensor, h: Tensor, bias: Tensor | None) -> Tensors:
        total = x + (h if bias is None else h + bias)
        return [ops.tanh(total) if self.activation == "tanh" else ops.relu(total)]


class LongShortTermMemory(RecurrentUnit):
    """The gates i, f, g, o; c = f c + i g, h = o tanh(c): Hochreiter, Schmidhuber (1997)."""

    gates = 4
    states = 2

    def _next(self, states: Tensors, x: Tensor, h: Tensor, bias: Tensor | None) -> Tensors:
        total = x + (h if bias is None else h + bias)
        i, f, g, o = ops.split(total, 4, -1)
        cell = ops.sigmoid(f) * states[1] + ops.sigmoid(i) * ops.tanh(g)
        return [ops.sigmoid(o) * ops.tanh(cell), cell]


class GatedRecurrentUnit(RecurrentUnit):
    """The gates r, z, n; h = (1 - z) n + z h: Cho et al. (2014), as in cuDNN."""

    gates = 3

    def _next(self, states: Tensors, x: Tensor, h: Tensor, bias: Tensor | None) -> Tensors:
        old = h if bias is None else h + bias
        reset_x, update_x, new_x = ops.split(x, 3, -1)
        reset_h, update_h, new_h = ops.split(old, 3, -1)
        update = ops.sigmoid(update_x + update_h)
        new = ops.tanh(new_x + ops.sigmoid(reset_x + reset_h) * new_h)
        return [new + update * (states[0] - new)]


def initial_states(layer: Layer, states: Tensors, expected: Sequence[Shape], x: Tensor) -> Tensors:
    """The states from which a recurrence starts: those given, if they fit it, or zeros."""
    if not states:
        zeros = {shape: ops.full(shape, 0.0, x.dtype) for shape in expected}
        return [zeros[shape] for shape in expected]
    names = ("h", "c")[: len(expected)]
    if [state.shape for state in states] != list(expected):
        texts = [f"{shape_text(s, x.dtype)}   {n}" for n, s in zip(names, expected, strict=True)]
        raise ShapeError(
            f"the initial states of {type(layer).__name__} have other shapes",
            facts=(
                *(("expected", text) for text in texts),
                *(("found", described(state)) for state in states),
            ),
            advice=f"Give {' and '.join(names)} after the input, or no state for zeros.",
        )
    for state in states:
        require_float(layer, state)
    return list(states)


@frozen_dataclass
class _Cell(RecurrentUnit, ABC):
    features: Count
    _: KW_ONLY
    bias: bool = True
    weight_init: InitializerOption = None
    bias_init: InitializerOption = None
    weight_regularizer: RegularizerOption = None

    def forward(self, scope: Scope, x: Tensor, *states: Tensor) -> Tensor | tuple[Tensor, ...]:
        require_float(self, x)
        if x.rank != 2:
            raise ShapeError(
                f"{type(self).__name__} needs features",
                facts=(("expected", "f32[batch, features]"), ("found", described(x))),
                advice=f"lm.{type(self).__name__.removesuffix('Cell')} takes whole sequences.",
            )
        (inputs,) = static(x.shape[1:])
        outputs, bound = self.gates * self.features, 1.0 / math.sqrt(self.features)
        usual = Uniform(-bound, bound)
        of_x, of_h = (
            parameter_of(self, scope, name, (outputs, columns), usual)
            for name, columns in (("weight_ih", inputs), ("weight_hh", self.features))
        )
        from_input, bias = ops.matmul(x, ops.transpose(of_x)), None
        if self.bias:
            of_x, bias = (
                parameter_of(self, scope, name, (outputs,), usual)
                for name in ("bias_ih", "bias_hh")
            )
            from_input = from_input + of_x
        shape = (x.shape[0], self.features)
        before = initial_states(self, states, [shape] * self.states, x)
        product = ops.matmul(before[0], ops.transpose(of_h))
        new = self._next(before, from_input, product, bias)
        return new[0] if len(new) == 1 else tuple(new)


@frozen_dataclass(kw_only=True)
class RNNCell(ElmanUnit, _Cell):
    """One iteration of `RNN`: h = activation(W_ih x + b_ih + W_hh h + b_hh).

    Takes f32 or f64 [batch, inputs], and the state, [batch, features], as a second tensor; without
    it the state is zeros. Gives the new state. After Elman (Cognitive Science 14, 1990).

    Its parameters are PyTorch's: `weight_ih`, (features, inputs), `weight_hh`,
    (features, features), `bias_ih` and `bias_hh`.

    Args:
        features: the number of features of the state.
        bias: whether biases are added.
        weight_init, bias_init: first values; by default uniform within 1 / sqrt(features).
        weight_regularizer: a penalty on both weights, such as `lm.L2(1e-4)`.
        activation: `"tanh"` or `"relu"`.

    Example:
        >>> lm.RNNCell(32)(lm.Input(8), lm.Input(32)).shape
        (batch, 32)
    """

    activation: CellActivation = "tanh"


@frozen_dataclass
class LSTMCell(LongShortTermMemory, _Cell):
    """One iteration of `LSTM`.

    Takes f32 or f64 [batch, inputs], and both states, h and c, [batch, features], as further
    tensors; without them the states are zeros. Gives the new h and c, a tuple. After Hochreiter and
    Schmidhuber (Neural Computation 9, 1997); the forget gate is from Gers, Schmidhuber, Cummins
    (2000).

    Its parameters are PyTorch's: `weight_ih`, (4 features, inputs), with the gates i, f, g, o one
    after the other, `weight_hh`, `bias_ih` and `bias_hh`.

    It takes the arguments of `RNNCell`, except the activation.

    Example:
        >>> h, c = lm.LSTMCell(32)(lm.Input(8), lm.Input(32), lm.Input(32))
        >>> h.shape
        (batch, 32)
    """


@frozen_dataclass
class GRUCell(GatedRecurrentUnit, _Cell):
    """One iteration of `GRU`.

    Takes f32 or f64 [batch, inputs], and the state, [batch, features], as a second tensor; without
    it the state is zeros. Gives the new state. After Cho et al. (EMNLP 2014), with the formulas of
    PyTorch and cuDNN.

    Its parameters are PyTorch's: `weight_ih`, (3 features, inputs), with the gates r, z, n one
    after the other, `weight_hh`, `bias_ih` and `bias_hh`.

    It takes the arguments of `RNNCell`, except the activation.

    Example:
        >>> lm.GRUCell(32)(lm.Input(8), lm.Input(32)).shape
        (batch, 32)
    """
