"""Recurrent layers: a cell applied along a sequence, to each element and the previous state.

The iterations are one loop of the program, for any length. The product of the inputs and their
weight is computed for all iterations before the loop. Only the product with the state is computed
in the loop.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import ClassVar, Literal

from lamina import ops
from lamina.errors import DTypeError, ShapeError
from lamina.graph import Tensor, described
from lamina.graph.kinds import Count, Depth, Fraction
from lamina.layers.checks import EMBEDDING, require_float
from lamina.layers.init import Uniform
from lamina.layers.layer import Layer
from lamina.layers.scope import InitializerOption, RegularizerOption, Scope, initializer
from lamina.records import frozen_dataclass
from lamina.shapes import int64, static

Tensors = Sequence[Tensor]


@frozen_dataclass
class _Recurrent(Layer, ABC):
    features: Count
    _: KW_ONLY
    layers: Depth = 1
    bidirectional: bool = False
    returns: Literal["all", "last"] = "all"
    dropout: Fraction = 0.0
    bias: bool = True
    truncate: Count | None = None
    weight_init: InitializerOption = None
    bias_init: InitializerOption = None
    weight_regularizer: RegularizerOption = None

    gates: ClassVar[int]
    states: ClassVar[int] = 1

    @abstractmethod
    def _iteration(
        self, states: Tensors, from_input: Tensor, product: Tensor, bias: Tensor | None
    ) -> Tensors:
        """The new states, the output first.

        Args:
            states: before the iteration.
            from_input: the product of the input and its weight, [batch, gates * features].
            product: the output of the previous iteration times its weight, of the same shape.
            bias: added to the product.
        """

    def forward(self, scope: Scope, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Builds all layers, one after the other."""
        if x.rank != 3 or not isinstance(x.shape[1], int):
            indices = x.rank == 2 and x.dtype.kind == "int"
            raise ShapeError(
                f"{type(self).__name__} needs sequences of features",
                facts=(("expected", "f32[batch, length, features]"), ("found", described(x))),
                advice=EMBEDDING if indices else "Add lm.Reshape(length, features) before it.",
            )
        require_float(self, x)
        (length,) = static(x.shape[1:2])
        inside = None if lengths is None else _mask(scope, lengths, x, length)
        last: list[Tensor] = []
        for layer in range(self.layers):
            if layer and self.dropout and scope.training:
                stay = 1.0 - self.dropout
                x = x * (scope.bernoulli(x.shape, stay) * (1.0 / stay))
            outputs: list[Tensor] = []
            last = []
            for reverse in (False, True) if self.bidirectional else (False,):
                suffix = f"_l{layer}{'_reverse' if reverse else ''}"
                states = self._direction(scope, x, inside, suffix, reverse)
                last.append(states[0 if reverse else length - 1])
                if inside is not None:
                    states = ops.where(inside, states, 0)
                outputs.append(ops.transpose(states, (1, 0, 2)))
            x = outputs[0] if len(outputs) == 1 else ops.concat(outputs, 2)
        if self.returns == "all":
            return x
        return last[0] if len(last) == 1 else ops.concat(last, 1)

    def _direction(
        self, scope: Scope, x: Tensor, inside: Tensor | None, suffix: str, reverse: bool
    ) -> Tensor:
        """The outputs of one layer in one direction: [length, batch, features]."""
        (inputs,) = static(x.shape[2:])
        outputs, bound = self.gates * self.features, 1.0 / math.sqrt(self.features)
        default = Uniform(-bound, bound)

        def weight(name: str, columns: int) -> Tensor:
            init = initializer(self.weight_init, default)
            shape = (outputs, columns)
            return scope.parameter(f"{name}{suffix}", shape, init, self.weight_regularizer)

        weight_ih = weight("weight_ih", inputs)
        weight_hh = weight("weight_hh", self.features)
        from_input = ops.matmul(x, ops.transpose(weight_ih))
        constants = [weight_hh]
        if self.bias:
            init = initializer(self.bias_init, default)
            biases = [
                scope.parameter(f"{name}{suffix}", (outputs,), init)
                for name in ("bias_ih", "bias_hh")
            ]
            from_input = from_input + biases[0]
            constants.append(biases[1])
        sequences = [ops.transpose(from_input, (1, 0, 2))]
        if inside is not None:
            sequences.append(inside)

        def iteration(
            states: Tensors, elements: Tensors, fixed: Tensors
        ) -> tuple[Tensors, Tensors]:
            product = ops.matmul(states[0], ops.transpose(fixed[0]))
            new = self._iteration(states, elements[0], product, fixed[1] if self.bias else None)
            if inside is not None:
                pairs = zip(new, states, strict=True)
                new = [ops.where(elements[1], after, before) for after, before in pairs]
            return new, []

        first = ops.full((x.shape[0], self.features), 0.0, x.dtype)
        found, _ = ops.recurrence(
            iteration,
            [first] * self.states,
            sequences,
            constants,
            reverse=reverse,
            truncate=self.truncate,
        )
        return found[0]


def _mask(scope: Scope, lengths: Tensor, x: Tensor, length: int) -> Tensor:
    """A mask of the positions before the end of each sequence: [length, batch, 1]."""
    if lengths.shape != x.shape[:1] or lengths.dtype.kind != "int":
        wrong = DTypeError if lengths.shape == x.shape[:1] else ShapeError
        raise wrong(
            "lengths are one whole number for each sequence",
            facts=(("expected", "i64[batch]"), ("found", described(lengths))),
            advice='Lengths follow from a mask: ops.sum(ops.cast(mask, "int64"), 1).'
            if lengths.shape == x.shape[:2]
            else 'Take them as lm.Input(dtype="int64").',
        )
    scope.limit_indices(
        lengths,
        length + 1,
        what="lengths",
        advice=f"The sequences have {length} positions; 0 is the length of an empty sequence.",
    )
    positions = ops.reshape(ops.arange(length, int64), (length, 1))
    return ops.expand_dims(ops.less(positions, ops.cast(lengths, int64)), -1)


def _by_gate(tensor: Tensor, gates: int) -> tuple[Tensor, ...]:
    """A tensor [..., gates * features] split into one tensor for each gate."""
    return ops.split(tensor, gates, -1)


@frozen_dataclass
class RNN(_Recurrent):
    """The simple recurrent layer: h = activation(W_ih x + b_ih + W_hh h + b_hh).

    Takes f32 or f64 [batch, length, inputs], and, if sequences differ in length, their lengths,
    integers [batch] from 0 to the length, as a second tensor. Gives [batch, length, features] with
    zeros after the end of each sequence, or the last state, [batch, features], zeros for an empty
    sequence. A bidirectional layer gives twice as many features. After Elman: Finding structure in
    time (Cognitive Science 14, 1990).

    Its parameters are named and shaped as PyTorch's: `weight_ih_l0` (features, inputs),
    `weight_hh_l0` (features, features), `bias_ih_l0`, `bias_hh_l0`; further layers have their
    number, and the backward direction has the suffix `_reverse`.

    Args:
        features: of the state.
        layers: how many are stacked; each takes the outputs of the one before.
        bidirectional: whether a second cell runs backwards; its outputs are appended as features.
        returns: `"all"` states, or the `"last"` one: at the end of each sequence, for the backward
            direction at its beginning.
        dropout: probability, between layers, as PyTorch's.
        bias: whether biases are added.
        truncate: stops the gradients of the states after every `truncate` iterations (truncated
            backpropagation through time); None: no truncation.
        weight_init, bias_init: first values; by default uniform within 1 / sqrt(features).
        weight_regularizer: a penalty on all weights, such as `lm.L2(1e-4)`.
        activation: `"tanh"` or `"relu"`.

    Raises:
        DefinitionError: for a number out of range.
        ShapeError: when applied to anything but sequences of features.
        DTypeError: when applied to integers, or if lengths are not integers.

    Example:
        >>> import lamina as lm
        >>> lm.RNN(32)(lm.Input(100, 8)).shape
        (Size(coefficient=1, offset=0), 100, 32)
    """

    _: KW_ONLY
    activation: Literal["tanh", "relu"] = "tanh"

    gates = 1

    def _iteration(
        self, states: Tensors, from_input: Tensor, product: Tensor, bias: Tensor | None
    ) -> Tensors:
        total = from_input + (product if bias is None else product + bias)
        return [ops.tanh(total) if self.activation == "tanh" else ops.relu(total)]


@frozen_dataclass
class LSTM(_Recurrent):
    """Long short-term memory: a cell state with input, forget and output gates.

    i, f, o = sigmoid(..) and g = tanh(..) of W_ih x + b_ih + W_hh h + b_hh, whose rows are in the
    order i, f, g, o; c = f c + i g, h = o tanh(c). Takes and gives tensors as `RNN` does; the
    result is h. After Hochreiter and Schmidhuber (Neural Computation 9, 1997); the forget gate f
    is from Gers, Schmidhuber, Cummins (2000).

    Its parameters are named and shaped as PyTorch's: `weight_ih_l0` (4 features, inputs), and so
    on.

    Args:
        features: of the state.
        layers: how many are stacked.
        bidirectional: whether a second cell runs backwards; its outputs are appended as features.
        returns: `"all"` states, or the `"last"` one.
        dropout: probability, between layers.
        bias: whether biases are added.
        truncate: stops the gradients of the states after every `truncate` iterations (truncated
            backpropagation through time); None: no truncation.
        weight_init, bias_init: first values; by default uniform within 1 / sqrt(features).
        weight_regularizer: a penalty on all weights.

    Raises:
        DefinitionError: for a number out of range.
        ShapeError: when applied to anything but sequences of features.
        DTypeError: when applied to integers, or if lengths are not integers.

    Example:
        >>> import lamina as lm
        >>> lm.LSTM(64, layers=2, bidirectional=True, returns="last")(lm.Input(100, 8)).shape
        (Size(coefficient=1, offset=0), 128)
    """

    gates = 4
    states = 2

    def _iteration(
        self, states: Tensors, from_input: Tensor, product: Tensor, bias: Tensor | None
    ) -> Tensors:
        total = from_input + (product if bias is None else product + bias)
        i, f, g, o = _by_gate(total, 4)
        cell = ops.sigmoid(f) * states[1] + ops.sigmoid(i) * ops.tanh(g)
        return [ops.sigmoid(o) * ops.tanh(cell), cell]


@frozen_dataclass
class GRU(_Recurrent):
    """The gated recurrent unit: a state with a reset gate and an update gate.

    With r, z = sigmoid(W_ih x + b_ih + W_hh h + b_hh) and
    n = tanh(W_in x + b_in + r (W_hn h + b_hn)): h = (1 - z) n + z h. The rows of the weights are in
    the order r, z, n. Takes and gives tensors as `RNN` does. After Cho et al. (EMNLP 2014), with
    the formulas of PyTorch and cuDNN.

    Its parameters are named and shaped as PyTorch's: `weight_ih_l0` (3 features, inputs), and so
    on.

    Args:
        features: of the state.
        layers: how many are stacked.
        bidirectional: whether a second cell runs backwards; its outputs are appended as features.
        returns: `"all"` states, or the `"last"` one.
        dropout: probability, between layers.
        bias: whether biases are added.
        truncate: stops the gradients of the states after every `truncate` iterations (truncated
            backpropagation through time); None: no truncation.
        weight_init, bias_init: first values; by default uniform within 1 / sqrt(features).
        weight_regularizer: a penalty on all weights.

    Raises:
        DefinitionError: for a number out of range.
        ShapeError: when applied to anything but sequences of features.
        DTypeError: when applied to integers, or if lengths are not integers.

    Example:
        >>> import lamina as lm
        >>> lm.GRU(32, returns="last")(lm.Input(100, 8)).shape
        (Size(coefficient=1, offset=0), 32)
    """

    gates = 3

    def _iteration(
        self, states: Tensors, from_input: Tensor, product: Tensor, bias: Tensor | None
    ) -> Tensors:
        old = product if bias is None else product + bias
        reset_x, update_x, new_x = _by_gate(from_input, 3)
        reset_h, update_h, new_h = _by_gate(old, 3)
        update = ops.sigmoid(update_x + update_h)
        new = ops.tanh(new_x + ops.sigmoid(reset_x + reset_h) * new_h)
        return [new + update * (states[0] - new)]
